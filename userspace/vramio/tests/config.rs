// SPDX-License-Identifier: MIT OR Apache-2.0

//! Configurations at work: deny lists and the environment, with the mock of CUDA's driver.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use common::{content, directory, make, mock, open, path, Vram};
use vramio::{Config, Context, Key, Policy, Reason, Source};

/// Every deny list keeps a file from the direct path, and the reason is counted. A list
/// that names something else does not.
#[test]
fn a_denied_file_says_so() {
    mock();
    let dir = directory();
    let data = content(1, 0, 10_000);
    let std = make(&path(&dir), &data);
    let name = open(
        &Context::with_config(Config::default()).expect("a context"),
        &path(&dir),
    )
    .filesystem()
    .name;
    if name != "ext4" && name != "xfs" {
        // On others there is a reason of their own already.
        println!("no deny lists here: {name}");
        return;
    }
    let number = std.metadata().expect("metadata").dev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let event = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent"));
    let event = event.expect("sysfs");
    let device = event.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let device = format!("/dev/{}", device.expect("a name"));
    let mount = mount_of(dir.path());
    type Change = Box<dyn Fn(&mut Config)>;
    let directory = dir.path().to_owned();
    let cases: Vec<(bool, Change)> = vec![
        (false, Box::new(|_| ())),
        (
            true,
            Box::new(move |config| config.deny.paths = vec![directory.clone()]),
        ),
        (
            false,
            Box::new(|config| config.deny.paths = vec!["/nowhere".into()]),
        ),
        (
            true,
            Box::new(move |config| config.deny.mounts = vec![mount.clone()]),
        ),
        (
            false,
            Box::new(|config| config.deny.mounts = vec!["/proc".into()]),
        ),
        (
            true,
            Box::new(move |config| config.deny.filesystems = vec![name.to_owned()]),
        ),
        (
            false,
            Box::new(|config| config.deny.filesystems = vec!["nfs".to_owned()]),
        ),
        (
            true,
            Box::new(move |config| config.deny.devices = vec![device.clone().into()]),
        ),
        (
            false,
            Box::new(|config| config.deny.devices = vec!["/dev/null".into()]),
        ),
        (
            false,
            Box::new(|config| config.deny.drivers = vec!["no_such".to_owned()]),
        ),
    ];
    for (index, (denied, change)) in cases.iter().enumerate() {
        let mut config = Config::default();
        config.policy = Policy::Allow;
        change(&mut config);
        let context = Context::with_config(config).expect("a context");
        let file = open(&context, &path(&dir));
        let vram = Vram::new(&context, 10_000);
        let outcome = file.read_at(&vram.buffer, 0, 0, 10_000).expect("it reads");
        assert_eq!(outcome.bytes, 10_000);
        assert!(vram.content() == data);
        assert_eq!(
            outcome.reason == Reason::Denied,
            *denied,
            "{index} {outcome:?}"
        );
        assert_eq!(context.stats().reason(Reason::Denied), u64::from(*denied));

        let strict = file.with_policy(Policy::Strict).expect("a file");
        let error = strict.read_at(&vram.buffer, 0, 0, 10_000);
        let error = error.expect_err("nothing goes direct here");
        assert_eq!(error.reason == Reason::Denied, *denied, "{index} {error}");
    }
}

/// The mount point of a directory: where the device changes on the way up.
fn mount_of(path: &std::path::Path) -> PathBuf {
    let path = path.canonicalize().expect("it exists");
    let device = path.metadata().expect("metadata").dev();
    let same = |path: &&std::path::Path| path.metadata().expect("metadata").dev() == device;
    path.ancestors()
        .take_while(same)
        .last()
        .expect("itself")
        .to_owned()
}

/// `Context::new` looks at the file and the environment; `with_config` does not. This is
/// shown by a copy of this program, whose environment is its own.
#[test]
fn only_new_looks_outside() {
    const CHILD: &str = "VRAMIO_TEST_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let dir = directory();
        let file = path(&dir);
        std::fs::write(&file, "threads = 3\n[thresholds]\next4 = 77\n").expect("a file");
        let program = std::env::current_exe().expect("the program");
        let run = |value: &str| {
            Command::new(&program)
                .args(["--exact", "only_new_looks_outside", "--nocapture"])
                .env(CHILD, "1")
                .env("VRAMIO_CONFIG", &file)
                .env("VRAMIO_SPLIT_BYTES", value)
                .output()
                .expect("it runs")
        };
        let good = run("1M");
        assert!(good.status.success(), "{good:?}");
        let bad = run("-1");
        assert!(!bad.status.success());
        let said = String::from_utf8_lossy(&bad.stderr).into_owned()
            + &String::from_utf8_lossy(&bad.stdout);
        assert!(said.contains("VRAMIO_SPLIT_BYTES"), "{said}");
        return;
    }
    let config = Context::with_config(Config::default()).expect("a context");
    assert_eq!(config.config(), &Config::default());
    let context = Context::new().unwrap_or_else(|error| panic!("{error}"));
    let config = context.config();
    assert_eq!(config.threads, 3);
    assert_eq!(config.thresholds, BTreeMap::from([("ext4".to_owned(), 77)]));
    assert_eq!(config.split_bytes, 1 << 20);
    let variable = Source::Variable("VRAMIO_SPLIT_BYTES".to_owned());
    assert_eq!(config.source(Key::SplitBytes), variable);
    assert_eq!(config.source(Key::Policy), Source::Default);
}

#[test]
fn the_document_has_every_key() {
    let text = include_str!("../../../docs/configuration.md");
    for key in Key::ALL {
        let row = format!("| `{key}` | `{}` |", key.variable());
        assert!(text.contains(&row), "{row}");
    }
}
