// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file of routes.

use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::Spanned;

use super::load::{raw, read, File};
use super::{bad_setting, BAD_VALUE};
use crate::error::{Error, Explanation};
use crate::pci::PciAddress;
use crate::routing::{Override, Overrides, Via, Whose};

static NO_FILE: Explanation = Explanation {
    sentence: "the file of routes can't be read",
    fix: "let routing.file name a regular file of at most 1 MiB that may be read, or nothing",
};

static NO_KEY: Explanation = Explanation {
    sentence: "there is no such key",
    fix: "write [[route]], and below it gpu, drive and via",
};

const WHOSE: &str = "a PCI function such as \"0000:03:00.0\", or \"*\" for all";
const VIA: &str = "\"direct\", \"host\", or the PCI function of a GPU such as \"0000:03:00.0\", \
    with \"host:\" before it to go through host memory first";
const ROUTES: &str = "[[route]] with gpu, drive and via";

type Value<'a> = Spanned<DeValue<'a>>;

impl Overrides {
    /// Reads a file of routes: TOML, a `[[route]]` for each, with `gpu`, `drive` and `via`.
    ///
    /// # Errors
    ///
    /// It can't be read, or something in it is no good:
    /// [`Error::setting`](crate::Error::setting) says what and in which line.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let text = read(path, &NO_FILE)?;
        parse(&File { path, text: &text })
    }
}

fn parse(file: &File<'_>) -> Result<Overrides, Error> {
    let mut routes = Vec::new();
    for (name, value) in file.parse()?.get_ref() {
        if name.get_ref() != "route" {
            let shown = raw(value.get_ref()).to_string();
            let bad = file.bad(&name.span(), name.get_ref(), &shown, ROUTES);
            return Err(bad_setting(bad, &NO_KEY));
        }
        let DeValue::Array(items) = value.get_ref() else {
            return Err(bad(file, "route", value, ROUTES));
        };
        for item in items {
            match item.get_ref() {
                DeValue::Table(table) => routes.push(route(file, item, table)?),
                _ => return Err(bad(file, "route", item, ROUTES)),
            }
        }
    }
    Ok(Overrides(routes))
}

fn bad(file: &File<'_>, key: &str, value: &Value<'_>, wanted: &str) -> Error {
    let shown = raw(value.get_ref()).to_string();
    bad_setting(file.bad(&value.span(), key, &shown, wanted), &BAD_VALUE)
}

fn route(file: &File<'_>, item: &Value<'_>, table: &DeTable<'_>) -> Result<Override, Error> {
    let (mut gpu, mut drive, mut via) = (None, None, None);
    for (name, value) in table {
        let key = format!("route.{}", name.get_ref());
        match name.get_ref().as_ref() {
            "gpu" => gpu = Some(whose(file, &key, value)?),
            "drive" => drive = Some(whose(file, &key, value)?),
            "via" => via = Some((way(file, &key, value)?, value)),
            _ => {
                let shown = raw(value.get_ref()).to_string();
                let bad = file.bad(&name.span(), &key, &shown, ROUTES);
                return Err(bad_setting(bad, &NO_KEY));
            }
        }
    }
    let missing = |key| bad(file, key, item, "a value: it is missing");
    let gpu = gpu.ok_or_else(|| missing("route.gpu"))?;
    let drive = drive.ok_or_else(|| missing("route.drive"))?;
    let (via, value) = via.ok_or_else(|| missing("route.via"))?;
    match (gpu, via) {
        (Whose::One(own), Via::Gpu(other) | Via::HostAndGpu(other)) if own == other => {
            let wanted = "\"direct\", or another GPU than the one that the data is for";
            Err(bad(file, "route.via", value, wanted))
        }
        _ => Ok(Override { gpu, drive, via }),
    }
}

fn text<'a>(value: &'a Value<'_>) -> Option<&'a str> {
    match value.get_ref() {
        DeValue::String(text) => Some(text),
        _ => None,
    }
}

fn whose(file: &File<'_>, key: &str, value: &Value<'_>) -> Result<Whose, Error> {
    match text(value) {
        Some("*") => Some(Whose::Every),
        text => text
            .and_then(|text| text.parse::<PciAddress>().ok())
            .map(Whose::One),
    }
    .ok_or_else(|| bad(file, key, value, WHOSE))
}

fn way(file: &File<'_>, key: &str, value: &Value<'_>) -> Result<Via, Error> {
    match text(value) {
        Some("direct") => Some(Via::Direct),
        Some("host") => Some(Via::Host),
        text => text.and_then(|text| {
            let (kind, gpu): (fn(_) -> _, _) = match text.strip_prefix("host:") {
                Some(gpu) => (Via::HostAndGpu, gpu),
                None => (Via::Gpu, text),
            };
            gpu.parse().ok().map(kind)
        }),
    }
    .ok_or_else(|| bad(file, key, value, VIA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    fn read(text: &str) -> Result<Overrides, Error> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("routes.toml");
        std::fs::write(&path, text).expect("it can be written");
        Overrides::read(path)
    }

    #[test]
    fn routes_are_read_in_their_order() {
        let at = |text: &str| text.parse().expect("an address");
        let routes = read(
            "# the far GPU\n\
             [[route]]\ngpu = \"0000:13:00.0\"\ndrive = \"0000:04:00.0\"\nvia = \"0000:03:00.0\"\n\
             [[route]]\ngpu = \"*\"\ndrive = \"*\"\nvia = \"direct\"\n\
             [[route]]\nvia = \"host\"\ngpu = \"*\"\ndrive = \"0000:05:00.0\"\n\
             [[route]]\nvia = \"host:0000:03:00.0\"\ngpu = \"*\"\ndrive = \"*\"\n",
        );
        let route = |gpu, drive, via| Override { gpu, drive, via };
        let expected = Overrides(vec![
            route(
                Whose::One(at("0000:13:00.0")),
                Whose::One(at("0000:04:00.0")),
                Via::Gpu(at("0000:03:00.0")),
            ),
            route(Whose::Every, Whose::Every, Via::Direct),
            route(Whose::Every, Whose::One(at("0000:05:00.0")), Via::Host),
            route(
                Whose::Every,
                Whose::Every,
                Via::HostAndGpu(at("0000:03:00.0")),
            ),
        ]);
        assert_eq!(routes, Ok(expected));
        assert_eq!(read(""), Ok(Overrides::default()));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let good = "[[route]]\ngpu = \"*\"\ndrive = \"*\"\n";
        for (text, line, key, value) in [
            ("\nroutes = 1".to_owned(), 2, "routes", "1"),
            ("route = 1".to_owned(), 1, "route", "1"),
            ("route = [\n1]".to_owned(), 2, "route", "1"),
            (
                format!("{good}via = \"gpu:0\""),
                4,
                "route.via",
                "\"gpu:0\"",
            ),
            (format!("{good}via = 3"), 4, "route.via", "3"),
            (
                format!("{good}via = \"host:\""),
                4,
                "route.via",
                "\"host:\"",
            ),
            (format!("{good}nic = \"*\""), 4, "route.nic", "\"*\""),
            (
                good.replace("gpu = \"*\"", "gpu = \"3:0\""),
                2,
                "route.gpu",
                "\"3:0\"",
            ),
            (
                "[[route]]\ngpu = \"0000:03:00.0\"\ndrive = \"*\"\nvia = \"0000:03:00.0\""
                    .to_owned(),
                4,
                "route.via",
                "\"0000:03:00.0\"",
            ),
        ] {
            let error = read(&text).expect_err(&text);
            let setting = error.setting.as_ref().expect("a setting");
            assert_eq!((&*setting.key, &*setting.value), (key, value), "{text}");
            assert!(
                matches!(setting.source, Source::File { line: at, .. } if at == line),
                "{text}: {:?}",
                setting.source
            );
        }
        for (text, key) in [
            (good.to_owned(), "route.via"),
            (
                "[[route]]\nvia = \"host\"\ndrive = \"*\"".to_owned(),
                "route.gpu",
            ),
            (
                "[[route]]\nvia = \"host\"\ngpu = \"*\"".to_owned(),
                "route.drive",
            ),
        ] {
            let error = read(&text).expect_err("something is missing");
            assert_eq!(error.setting.expect("a setting").key, key);
        }
        let error = read("[[route]").expect_err("no TOML").to_string();
        assert!(error.contains("routes.toml"), "{error}");
        let error = Overrides::read("/nonexistent/routes").expect_err("no file");
        assert!(error.to_string().contains("routing.file"), "{error}");
    }
}
