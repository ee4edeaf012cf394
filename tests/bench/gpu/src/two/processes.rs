// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two GPUs in two processes, each reading its half of a cached file.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{ensure, Context as _, Result};
use bench::measure::Found;
use vramio::File;

use super::pair::{context, timed, Side};
use super::table::Table;
use super::MIB;

pub const BOTH: &str = "vramio, both at once, two processes";

/// Says that it is ready, reads once for each line that comes in, and says how long that took
/// and what it cost; at the end whether all was right.
pub fn child(device: u32, path: &Path, size: u64) -> Result<()> {
    let context = context()?;
    let half = size / 2;
    let side = Side::new(&context, device, half * u64::from(device), half)?;
    let file = File::open(&context, path)?;
    // As in one process, where each GPU was read into before: staging buffers are made.
    side.read(&file)?;
    side.poison()?;
    println!("ready");
    for line in std::io::stdin().lines() {
        line?;
        let found = timed(|| side.read(&file))?;
        println!("{} {}", found.time, found.cpu);
    }
    side.verify(path)?;
    println!("right");
    Ok(())
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(device: u32, path: &Path, mib: u64) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--child", &device.to_string(), "--size", &mib.to_string()])
            .arg("--file")
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("it is piped")?;
        let mut process = Process {
            child,
            lines: BufReader::new(output).lines(),
        };
        ensure!(process.line()? == "ready", "a process says something else");
        Ok(process)
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.lines.next().context("a process ended")??)
    }

    fn go(&mut self) -> Result<()> {
        let input = self.child.stdin.as_mut().context("it is piped")?;
        Ok(input.write_all(b"\n")?)
    }

    /// What its read cost, CPU seconds.
    fn cpu(&mut self) -> Result<f64> {
        let line = self.line()?;
        let cpu = line.split(' ').nth(1).context("a process says nothing")?;
        Ok(cpu.parse()?)
    }

    fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        ensure!(self.line()? == "right", "a process says something else");
        ensure!(self.child.wait()?.success(), "a process failed");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended is not there any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures both at the same time.
pub fn run(path: &Path, mib: u64, table: &mut Table) -> Result<()> {
    table.part("the same in two processes");
    let mut zero = Process::start(0, path, mib)?;
    let mut one = Process::start(1, path, mib)?;
    let size = mib * MIB / 2 * 2;
    table.best(&mut [(BOTH, size, &mut || {
        let begin = Instant::now();
        zero.go()?;
        one.go()?;
        let cpu = zero.cpu()? + one.cpu()?;
        let time = begin.elapsed().as_secs_f64();
        Ok(Found { time, cpu })
    })])?;
    zero.end()?;
    one.end()?;
    println!("right: both halves are what read(2) gives");
    Ok(())
}
