// SPDX-License-Identifier: MIT OR Apache-2.0

//! The demonstration: a file goes from NVMe into GPU memory and back, and two
//! witnesses outside the guest say how.

use crate::filesystem::FileSystem;
use crate::machine::Config;
use crate::oracle::{first_difference, Account, Flow, Place};
use crate::topology::Disk;
use crate::vm::{Parts, Vm};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::Exit;

/// Bytes of the file.
const SIZE: u64 = 64 << 20;
/// The disk.
const NSID: u32 = 1;
/// The path that the requests are to take.
const PATH: &str = "direct-switch";
const MOUNT: &str = "/mnt";
const SOURCE: &str = "/mnt/random";
const COPY: &str = "/mnt/copy";

/// What does not hold.
#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    /// Notes a requirement that does not hold.
    fn require(&mut self, holds: bool, requirement: impl FnOnce() -> String) {
        if !holds {
            let text = requirement();
            println!("FAILED: {text}");
            self.0.push(text);
        }
    }

    fn equal(&mut self, what: &str, found: &[u8], expected: &[u8]) {
        let hash = hex(&Sha256::digest(found));
        println!("sha256 {hash}  {what}");
        let difference = first_difference(found, expected);
        self.require(difference.is_none(), || {
            format!("{what}: {}", difference.unwrap_or_default())
        });
    }

    /// Checks which way the data went, and nothing but the data.
    fn flow(&mut self, what: &str, account: &Account, expected: &Flow) {
        let Account { data, other, .. } = account;
        self.require(data == expected, || {
            format!("{what}: data moved {data:?}, expected {expected:?}")
        });
        self.require(other.into_bar == 0 && other.from_bar == 0, || {
            format!("{what}: something else went by the BAR: {other:?}")
        });
    }
}

/// What `vramio cp` says about a copy.
struct Said {
    path: String,
    gpu_offset: u64,
}

/// Runs it. `false` when a requirement does not hold; each is printed.
///
/// # Errors
///
/// When it cannot be run to its end.
pub fn run(parts: &Parts) -> Result<bool> {
    let config = Config::new("demo", vec![Disk::new("demo0", NSID, 512 << 20)]);
    let mut vm = Vm::boot(parts, &config)?;
    println!("guest: Linux {}, stock", vm.guest.release());
    let session = vm.guest.session();
    FileSystem::Ext4.mount(&vm, &session, NSID, MOUNT)?;
    println!("disk: {} with ext4 at {MOUNT}", vm.device(NSID)?);

    let mut findings = Findings::default();
    let plan = FilePlan::dense(SOURCE, random_seed()?, SIZE);
    session.make(&plan)?;
    session.drop_caches()?;
    let content = plan.content(0, SIZE);
    let extents = session.extents(SOURCE)?;
    let image = vm.image(NSID)?;
    findings.equal(
        "the file on the disk",
        &image.read_extents(&extents, SIZE)?,
        &content,
    );

    let memory: Range<u64> = 0..config.vram;
    vm.vram.poison(&memory)?;
    let mark = vm.mark()?;
    let read = copy(&vm, &["vramio", "cp", SOURCE, "gpu:0"])?;
    let into = vm.account(mark, &Place::of_file(NSID, &extents))?;
    findings.equal(
        "the GPU's memory",
        &vm.vram.read(read.gpu_offset, SIZE)?,
        &content,
    );

    let mark = vm.mark()?;
    let size = SIZE.to_string();
    let written = copy(&vm, &["vramio", "cp", "gpu:0", COPY, "--size", &size])?;
    session.sync()?;
    let extents = session.extents(COPY)?;
    let back = vm.account(mark, &Place::of_file(NSID, &extents))?;
    findings.equal(
        "the second file on the disk",
        &image.read_extents(&extents, SIZE)?,
        &content,
    );

    findings.flow(
        "file to GPU memory",
        &into,
        &Flow {
            into_bar: SIZE,
            ..Flow::default()
        },
    );
    findings.flow(
        "GPU memory to file",
        &back,
        &Flow {
            from_bar: SIZE,
            ..Flow::default()
        },
    );
    findings.require(read.gpu_offset == written.gpu_offset, || {
        "the second copy did not get the memory of the first".to_owned()
    });
    for said in [&read, &written] {
        findings.require(said.path == PATH, || {
            format!("path {}, expected {PATH}", said.path)
        });
    }
    let checked = vm.check();
    findings.require(checked.is_ok(), || {
        format!("{:#}", checked.err().unwrap_or_else(|| anyhow::anyhow!("")))
    });

    println!();
    println!("path: {}", read.path);
    println!("data bytes into the BAR: {}", into.data.into_bar);
    println!("data bytes out of the BAR: {}", back.data.from_bar);
    println!(
        "data bytes into host RAM: {}",
        into.data.into_ram + back.data.into_ram
    );
    println!(
        "data bytes out of host RAM: {}",
        into.data.from_ram + back.data.from_ram
    );
    let passed = findings.0.is_empty();
    if !passed {
        println!("not as it should be:\n  {}", findings.0.join("\n  "));
    }
    println!("demo: {}", if passed { "PASS" } else { "FAIL" });
    Ok(passed)
}

/// Runs a copy in the guest and shows it.
fn copy(vm: &Vm, argv: &[&str]) -> Result<Said> {
    println!("\nguest# {}", argv.join(" "));
    let output = vm.guest.session().exec(argv)?;
    print!("{}{}", output.stdout, output.stderr);
    println!();
    anyhow::ensure!(
        output.exit == Exit::Code(0),
        "{} ended with {:?}",
        argv.join(" "),
        output.exit
    );
    Said::parse(&output.stdout).with_context(|| format!("the summary of {}", argv.join(" ")))
}

impl Said {
    /// Finds the lines `gpu: ... at 0x...` and `path: NAME (CERTAINTY)`.
    fn parse(summary: &str) -> Result<Self> {
        let line = |name: &str| {
            summary
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                .with_context(|| format!("it has no line {name}"))
        };
        let path = line("path")?;
        let offset = line("gpu")?.rsplit(' ').next().unwrap_or_default();
        let digits = offset.trim_start_matches("0x");
        Ok(Self {
            path: path.split(' ').next().unwrap_or_default().to_owned(),
            gpu_offset: u64::from_str_radix(digits, 16)
                .with_context(|| format!("the offset {offset} is no number"))?,
        })
    }
}

fn random_seed() -> Result<u64> {
    let mut seed = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut seed))
        .context("read /dev/urandom")?;
    Ok(u64::from_le_bytes(seed))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read() {
        let said = Said::parse(
            "/mnt/a -> gpu:0\ngpu: mock GPU 0 (0000:03:00.0) at 0x1000\n\
             67108864 bytes, 0.1 s, 671.1 MB/s\npath: direct-switch (consistent)\n",
        )
        .unwrap();
        assert_eq!((said.path.as_str(), said.gpu_offset), (PATH, 0x1000));
        assert!(Said::parse("path: none\n").is_err());
    }

    #[test]
    fn a_requirement_that_fails_is_named() {
        let mut findings = Findings::default();
        findings.equal("memory", b"abc", b"abc");
        findings.flow("way", &Account::default(), &Flow::default());
        assert!(findings.0.is_empty());
        findings.equal("memory", b"abd", b"abc");
        let expected = Flow {
            into_bar: 1,
            ..Flow::default()
        };
        findings.flow("way", &Account::default(), &expected);
        assert!(findings.0[0].starts_with("memory: byte 2"));
        assert!(findings.0[1].starts_with("way: data moved"));
    }
}
