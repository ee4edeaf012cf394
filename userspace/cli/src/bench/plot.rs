// SPDX-License-Identifier: MIT OR Apache-2.0

//! A picture of a sweep.

use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::Report;
use super::Side;
use crate::failure::Failure;
use crate::size;
use crate::workload::way::Way;

/// Width and height, pixels.
const SIZE: (u32, u32) = (800, 760);

/// Draws rate and processor time by request size, a line for each path, into a file, which
/// is replaced.
pub fn write(report: &Report<'_>, path: &Path) -> Result<(), Failure> {
    let picture = draw(report).map_err(|error| {
        Failure::plain(
            "draw",
            path.display().to_string(),
            error,
            "report this as a bug",
        )
    })?;
    fs::write(path, picture).map_err(|error| Failure::io("write", path, &error))
}

/// The lines of one chart: for each path the points, request size and value.
type Lines = Vec<(Way, Vec<(f64, f64)>)>;

fn draw(report: &Report<'_>) -> Result<String, String> {
    let mut picture = String::new();
    {
        let area = SVGBackend::with_string(&mut picture, SIZE).into_drawing_area();
        let text = |error: DrawingAreaErrorKind<_>| error.to_string();
        area.fill(&WHITE).map_err(text)?;
        let title = format!(
            "{} {}, {} x {} requests",
            report.args.mode().name(),
            report.args.file.display(),
            report.args.threads,
            report.args.depth
        );
        let charts = area.split_evenly((2, 1));
        if let [above, below] = charts.as_slice() {
            let rate = lines(report, Side::rate);
            let corner = SeriesLabelPosition::UpperLeft;
            chart(above, &title, "GB/s", &rate, corner).map_err(text)?;
            let cost = lines(report, Side::cost);
            let corner = SeriesLabelPosition::UpperRight;
            chart(below, "", "processor seconds per GB", &cost, corner).map_err(text)?;
        }
        area.present().map_err(text)?;
    }
    Ok(picture)
}

fn lines(report: &Report<'_>, value: impl Fn(&Side) -> Option<f64>) -> Lines {
    let line = |way| {
        let points = report.points.iter().filter_map(|point| {
            let side = point.sides.iter().find(|side| side.way == way)?;
            let bytes = point.sizes.largest() as f64;
            Some((bytes.log2(), value(side)?))
        });
        (way, points.collect())
    };
    report.args.ways().into_iter().map(line).collect()
}

fn chart<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    unit: &str,
    lines: &Lines,
    corner: SeriesLabelPosition,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let low = points().map(|(x, _)| *x).fold(f64::INFINITY, f64::min);
    let high = points().map(|(x, _)| *x).fold(0.0, f64::max);
    let top = points().map(|(_, y)| *y).fold(0.0, f64::max);
    if !low.is_finite() {
        return Ok(());
    }
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(low..high.max(low + 1.0), 0.0..(top * 1.1).max(1e-6))?;
    chart
        .configure_mesh()
        .x_desc("request size")
        .y_desc(unit)
        .x_labels((high - low) as usize + 2)
        .x_label_formatter(&|bits| {
            if bits.fract() == 0.0 && *bits < 63.0 {
                size::short(1 << *bits as u64)
            } else {
                String::new()
            }
        })
        .max_light_lines(0)
        .draw()?;
    for (way, points) in lines {
        if points.is_empty() {
            continue;
        }
        let colour = colour(*way);
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                colour.stroke_width(2),
            ))?
            .label(way.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(
            points
                .iter()
                .map(|point| Circle::new(*point, 3, colour.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .position(corner)
        .draw()
}

/// Colours that people who can't tell red from green can tell apart.
fn colour(way: Way) -> RGBColor {
    match way {
        Way::Policy => RGBColor(90, 90, 90),
        Way::Direct => RGBColor(0, 114, 178),
        Way::P2pdma => RGBColor(0, 158, 115),
        Way::Compat => RGBColor(230, 159, 0),
        Way::Cpu => RGBColor(213, 94, 0),
    }
}
