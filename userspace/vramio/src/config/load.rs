// SPDX-License-Identifier: MIT OR Apache-2.0

//! The configuration file and the environment.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use toml::de::{DeTable, DeValue};
use toml::Spanned;
use vramio_abi::Reason;

use super::source;
use super::value::{Kind, Raw, Wrong};
use super::{bad_setting, Config, Key, Source, BAD_VALUE};
use crate::error::{BadSetting, Error, Explanation, Operation};

/// The variable that names the configuration file.
const VARIABLE: &str = "VRAMIO_CONFIG";

/// How the names of our variables begin.
const PREFIX: &str = "VRAMIO_";

static BAD_TYPE: Explanation = Explanation {
    sentence: "the value has the wrong type",
    fix: "correct the value, or leave the key out",
};

static NO_KEY: Explanation = Explanation {
    sentence: "there is no such key",
    fix: "correct the key's name, or remove it",
};

static NO_TOML: Explanation = Explanation {
    sentence: "it is no TOML",
    fix: "correct the line",
};

static NO_FILE: Explanation = Explanation {
    sentence: "the configuration can't be read",
    fix: "let VRAMIO_CONFIG name a regular file of at most 1 MiB that may be read, or nothing",
};

impl Config {
    /// Where the configuration file is looked for, unless `VRAMIO_CONFIG` says otherwise.
    pub const PATH: &str = "/etc/vramio.toml";

    /// The default, then the configuration file, then the environment.
    ///
    /// The file is the one that `VRAMIO_CONFIG` names (none, if that is empty), else
    /// [`PATH`](Self::PATH), if that exists. It is TOML; its keys are those of [`Key`].
    /// The environment's variables are [`Key::variable`]: sizes and numbers are written as
    /// in the file, lists of paths with colons in between, other lists with commas,
    /// thresholds as `ext4=64K,xfs=1M`. A list or table replaces the one that it goes
    /// before. A program with more rights than its caller (set-user-ID) does not look at
    /// the environment.
    ///
    /// # Errors
    ///
    /// The file can't be read, or it or the environment has something that is no good:
    /// [`Error::setting`] says what and where.
    pub fn load() -> Result<Config, Error> {
        Self::load_with(&source::variables(PREFIX))
    }

    /// The file that [`load`](Self::load) reads; [`PATH`](Self::PATH) also if there is none.
    /// `None` if the environment says that none is to be read.
    pub fn file() -> Option<PathBuf> {
        Self::file_with(&source::variables(PREFIX))
    }

    fn file_with(variables: &[(OsString, OsString)]) -> Option<PathBuf> {
        match variables.iter().find(|(name, _)| name == VARIABLE) {
            Some((_, path)) if path.is_empty() => None,
            Some((_, path)) => Some(path.into()),
            None => Some(Self::PATH.into()),
        }
    }

    fn load_with(variables: &[(OsString, OsString)]) -> Result<Config, Error> {
        let mut config = Config::default();
        if let Some(path) = Self::file_with(variables) {
            // The usual one need not be there.
            if path != Path::new(Self::PATH) || path.exists() {
                config.read_file(path)?;
            }
        }
        config.read_variables(variables)?;
        config.check()?;
        Ok(config)
    }

    /// Takes over what a configuration file says.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load). Nothing has changed then.
    pub fn read_file(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let text = read(path, &NO_FILE)?;
        self.read_text(path, &text)
    }

    /// The same for a text; the path is for errors and [`Source`]s.
    fn read_text(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let file = File { path, text };
        let table = file.parse()?;
        let mut changed = self.clone();
        file.take_table(&mut changed, table.get_ref(), "")?;
        changed.check_values()?;
        *self = changed;
        Ok(())
    }

    /// Takes over what the environment says.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load). Nothing has changed then.
    pub fn read_environment(&mut self) -> Result<(), Error> {
        self.read_variables(&source::variables(PREFIX))
    }

    fn read_variables(&mut self, variables: &[(OsString, OsString)]) -> Result<(), Error> {
        let mut changed = self.clone();
        for key in Key::ALL {
            let found = variables.iter().find(|(name, _)| name == key.variable());
            let Some((_, value)) = found else {
                continue;
            };
            let source = Source::Variable(key.variable().to_owned());
            let raw = match value.to_str() {
                Some(text) => Raw::Variable(text.to_owned()),
                None => Raw::Other(value.display().to_string()),
            };
            if let Err(wrong) = changed.set(key, &raw) {
                return Err(refuse(key.name(), source, wrong));
            }
            changed.set_source(key, source);
        }
        changed.check_values()?;
        *self = changed;
        Ok(())
    }
}

fn refuse(key: &str, source: Source, wrong: Wrong) -> Error {
    let key = match wrong.entry {
        Some(entry) => format!("{key}.{entry}"),
        None => key.to_owned(),
    };
    let why = match wrong.kind {
        Kind::Type => &BAD_TYPE,
        Kind::Value => &BAD_VALUE,
        Kind::Key => &NO_KEY,
    };
    bad_setting(
        BadSetting {
            source,
            key,
            value: wrong.value,
            wanted: wrong.wanted,
        },
        why,
    )
}

/// The text of a file.
pub(super) fn read(path: &Path, why: &'static Explanation) -> Result<String, Error> {
    source::read(path).map_err(|error| {
        let errno = error.raw_os_error().map(Errno::from_raw);
        let failed = Error::new(Operation::Configure, path.display().to_string())
            .with_reason(Reason::None)
            .explained(why);
        match errno {
            Some(errno) => failed.with_errno(errno),
            None => failed.with_driver(error.to_string()),
        }
    })
}

/// A configuration file.
pub(super) struct File<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl<'a> File<'a> {
    /// What stands in it.
    pub(super) fn parse(&self) -> Result<Spanned<DeTable<'a>>, Error> {
        DeTable::parse(self.text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            let shown = self.text.get(span.clone()).unwrap_or_default();
            let bad = self.bad(&span, "", shown, error.message());
            bad_setting(bad, &NO_TOML)
        })
    }

    fn source(&self, span: &Range<usize>) -> Source {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        Source::File {
            path: PathBuf::from(self.path),
            line: before.matches('\n').count() + 1,
        }
    }

    pub(super) fn bad(
        &self,
        span: &Range<usize>,
        key: &str,
        value: &str,
        wanted: &str,
    ) -> BadSetting {
        BadSetting {
            source: self.source(span),
            key: key.to_owned(),
            value: value.lines().next().unwrap_or_default().to_owned(),
            wanted: wanted.to_owned(),
        }
    }

    /// Takes the keys of a table over; `prefix` is its name and a dot.
    fn take_table(
        &self,
        config: &mut Config,
        table: &DeTable<'_>,
        prefix: &str,
    ) -> Result<(), Error> {
        for (name, value) in table {
            let key_name = format!("{prefix}{}", name.get_ref());
            let inner = format!("{key_name}.");
            let is_table = Key::ALL.iter().any(|key| key.name().starts_with(&inner));
            match (Key::of_name(&key_name), value.get_ref()) {
                (Some(key), _) => self.take(config, key, value)?,
                (None, DeValue::Table(table)) if is_table => {
                    self.take_table(config, table, &inner)?;
                }
                (None, _) => {
                    let keys = Key::ALL.map(Key::name).join(", ");
                    let wanted = if is_table {
                        "a table".to_owned()
                    } else {
                        format!("one of {keys}")
                    };
                    let shown = raw(value.get_ref()).to_string();
                    let bad = self.bad(&name.span(), &key_name, &shown, &wanted);
                    return Err(bad_setting(bad, if is_table { &BAD_TYPE } else { &NO_KEY }));
                }
            }
        }
        Ok(())
    }

    fn take(
        &self,
        config: &mut Config,
        key: Key,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), Error> {
        if let Err(wrong) = config.set(key, &raw(value.get_ref())) {
            let span = place(value, &wrong);
            return Err(refuse(key.name(), self.source(&span), wrong));
        }
        config.set_source(key, self.source(&value.span()));
        Ok(())
    }
}

/// Where what is wrong with a value lies: it may be one entry of a table or a list.
fn place(value: &Spanned<DeValue<'_>>, wrong: &Wrong) -> Range<usize> {
    match (value.get_ref(), &wrong.entry) {
        (DeValue::Table(table), Some(entry)) => table
            .iter()
            .find(|(name, _)| name.get_ref() == entry)
            .map_or(value.span(), |(name, _)| name.span()),
        (DeValue::Array(items), _) => items
            .iter()
            .find(|item| {
                let item = raw(item.get_ref());
                item.to_string() == wrong.value
                    || matches!(&item, Raw::Text(text) if *text == wrong.value)
            })
            .map_or(value.span(), Spanned::span),
        _ => value.span(),
    }
}

pub(super) fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Raw::Integer(number),
            Err(_) => Raw::Other(number.as_str().to_owned()),
        },
        DeValue::Float(number) => Raw::Other(number.as_str().to_owned()),
        DeValue::Boolean(value) => Raw::Boolean(*value),
        DeValue::Datetime(date) => Raw::Other(date.to_string()),
        DeValue::Array(items) => Raw::List(items.iter().map(|item| raw(item.get_ref())).collect()),
        DeValue::Table(table) => Raw::Table(
            table
                .iter()
                .map(|(name, value)| (name.get_ref().to_string(), raw(value.get_ref())))
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::DirectEngine;
    use super::*;
    use crate::policy::Policy;

    const GOOD: &str = r#"
policy = "allow"                # line 2
threshold = "16K"
staging_bytes = 0x1000_0000
slab_bytes = "4MiB"
staging_wait = "500ms"
threads = 3
split_bytes = 0
direct = false
direct_engine = "kmod"
sparse_threshold = "8K"         # line 11

[thresholds]                    # line 13
ext4 = "64K"
xfs = 4096

[deny]
paths = ["/a", "/b c"]
mounts = ["/mnt/x"]
filesystems = ["xfs", "wekafs"]
devices = ["/dev/nvme0n1"]
drivers = ["nvme"]              # line 22

[routing]
enabled = true                  # line 25
order = ["peer", "switch"]
file = "/etc/routes.toml"
bytes = "64M"
chunk_bytes = "1M"
"#;

    fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, Error> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("vramio.toml");
        std::fs::write(&path, text).expect("it can be written");
        let mut all = vec![(VARIABLE.into(), path.into_os_string())];
        for (name, value) in variables {
            all.push(((*name).into(), (*value).into()));
        }
        Config::load_with(&all)
    }

    fn line(source: &Source) -> usize {
        match source {
            Source::File { line, .. } => *line,
            other => panic!("{other} is no file"),
        }
    }

    #[test]
    fn a_file_says_everything_and_where() {
        let config = load(GOOD, &[]).expect("a good file");
        assert_eq!(config.policy, Policy::Allow);
        assert_eq!(config.threshold, 16 << 10);
        assert_eq!(config.staging_bytes, 256 << 20);
        assert_eq!(config.slab_bytes, 4 << 20);
        assert_eq!(config.staging_wait, Duration::from_millis(500));
        assert_eq!(config.threads, 3);
        assert_eq!(config.split_bytes, 0);
        assert!(!config.direct);
        assert_eq!(config.direct_engine, DirectEngine::Kmod);
        assert_eq!(config.text(Key::Thresholds), "ext4=65536, xfs=4096");
        assert_eq!(config.sparse_threshold, 8 << 10);
        assert_eq!(config.text(Key::DenyPaths), "/a, /b c");
        assert_eq!(config.text(Key::DenyMounts), "/mnt/x");
        assert_eq!(config.text(Key::DenyFilesystems), "xfs, wekafs");
        assert_eq!(config.text(Key::DenyDevices), "/dev/nvme0n1");
        assert_eq!(config.text(Key::DenyDrivers), "nvme");
        assert!(config.routing.enabled);
        assert_eq!(config.text(Key::RoutingOrder), "peer, switch, host");
        assert_eq!(config.text(Key::RoutingFile), "/etc/routes.toml");
        assert_eq!(config.routing.bytes, 64 << 20);
        assert_eq!(config.routing.chunk_bytes, 1 << 20);
        let lines = Key::ALL.map(|key| line(&config.source(key)));
        assert_eq!(lines[..11], [2, 3, 13, 11, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(lines[11..], [18, 19, 20, 21, 22, 25, 26, 27, 28, 29]);
    }

    #[test]
    fn the_environment_goes_before_the_file_and_the_program_before_both() {
        let variables = [
            ("VRAMIO_POLICY", "strict"),
            ("VRAMIO_THRESHOLD", "1M"),
            ("VRAMIO_THRESHOLDS", "block=1, ext4=2K"),
            ("VRAMIO_SPARSE_THRESHOLD", "0"),
            ("VRAMIO_STAGING_WAIT", "7"),
            ("VRAMIO_THREADS", "5"),
            ("VRAMIO_DIRECT", "ON"),
            ("VRAMIO_DIRECT_ENGINE", "p2pdma"),
            ("VRAMIO_DENY_PATHS", "/x:/y"),
            ("VRAMIO_DENY_FILESYSTEMS", "ext4,tmpfs"),
            ("VRAMIO_DENY_DRIVERS", ""),
            ("VRAMIO_ROUTING_ORDER", "linked,host-bridge"),
            ("VRAMIO_ROUTING_FILE", ""),
            ("VRAMIO_CACHE", "somebody else's"),
        ];
        let mut config = load(GOOD, &variables).expect("good");
        assert_eq!(config.policy, Policy::Strict);
        assert_eq!(config.threshold, 1 << 20);
        assert_eq!(config.text(Key::Thresholds), "block=1, ext4=2048");
        assert_eq!(config.sparse_threshold, 0);
        assert_eq!(config.staging_wait, Duration::from_secs(7));
        assert_eq!(config.threads, 5);
        assert!(config.direct);
        assert_eq!(config.direct_engine, DirectEngine::P2pdma);
        assert_eq!(config.text(Key::DenyPaths), "/x, /y");
        assert_eq!(config.text(Key::DenyFilesystems), "ext4, tmpfs");
        assert!(config.deny.drivers.is_empty());
        assert_eq!(config.text(Key::RoutingOrder), "linked, host-bridge, host");
        assert_eq!(config.routing.file, None);
        assert_eq!(
            config.source(Key::Threads),
            Source::Variable("VRAMIO_THREADS".to_owned())
        );
        assert_eq!(line(&config.source(Key::SlabBytes)), 5);
        config.threads = 6;
        assert_eq!(config.source(Key::Threads), Source::Program);
    }

    /// Each of these files is wrong in one place; the error says where, in which key, and
    /// which value, and what would be right. It changes nothing.
    #[test]
    fn a_bad_file_is_refused_with_line_key_and_value() {
        let bad = [
            ("x = 1", 1, "x", "1"),
            ("\n\nPolicy = \"warn\"", 3, "Policy", "\"warn\""),
            ("deny.path = [\"/a\"]", 1, "deny.path", "[\"/a\"]"),
            ("[deny]\ndevice = 1", 2, "deny.device", "1"),
            ("[stats]\nx = 1", 1, "stats", "{ x = 1 }"),
            ("deny = 3", 1, "deny", "3"),
            ("policy = 1", 1, "policy", "1"),
            ("policy = \"Strict\"", 1, "policy", "\"Strict\""),
            ("threshold = -1", 1, "threshold", "-1"),
            ("threshold = 1.5", 1, "threshold", "1.5"),
            ("threshold = \"1.5G\"", 1, "threshold", "\"1.5G\""),
            ("threshold = true", 1, "threshold", "true"),
            (
                "[routing]\norder = [\"peer\", \"gpu\"]",
                2,
                "routing.order",
                "\"gpu\"",
            ),
            (
                "routing.order = [\"peer\", \"peer\"]",
                1,
                "routing.order",
                "[\"peer\", \"peer\"]",
            ),
            ("routing.file = \"routes\"", 1, "routing.file", "\"routes\""),
            (
                "threshold = 99999999999999999999",
                1,
                "threshold",
                "99999999999999999999",
            ),
            ("threshold = 2020-01-01", 1, "threshold", "2020-01-01"),
            ("thresholds = 5", 1, "thresholds", "5"),
            (
                "[thresholds]\next4 = 1\next5 = 1",
                3,
                "thresholds.ext5",
                "1",
            ),
            (
                "[thresholds]\n\next4 = \"a\"",
                3,
                "thresholds.ext4",
                "\"a\"",
            ),
            ("thresholds = { xfs = [1] }", 1, "thresholds.xfs", "[1]"),
            ("slab_bytes = 100", 1, "slab_bytes", "100"),
            ("slab_bytes = \"2G\"", 1, "slab_bytes", "2147483648"),
            ("\nstaging_bytes = 1", 2, "staging_bytes", "1"),
            ("staging_wait = -3", 1, "staging_wait", "-3"),
            (
                "staging_wait = \"2 fortnights\"",
                1,
                "staging_wait",
                "\"2 fortnights\"",
            ),
            ("staging_wait = 100000", 1, "staging_wait", "100000s"),
            ("threads = 0", 1, "threads", "0"),
            ("threads = \"4\"", 1, "threads", "\"4\""),
            ("threads = 2000", 1, "threads", "2000"),
            ("direct = \"true\"", 1, "direct", "\"true\""),
            ("direct = 1", 1, "direct", "1"),
            ("direct_engine = true", 1, "direct_engine", "true"),
            ("direct_engine = \"gds\"", 1, "direct_engine", "\"gds\""),
            ("deny.paths = \"/a\"", 1, "deny.paths", "\"/a\""),
            ("deny.paths = [\n\"/a\",\n7]", 3, "deny.paths", "7"),
            ("deny.mounts = [\"/a\", \n\"b\"]", 2, "deny.mounts", "\"b\""),
            (
                "deny.filesystems = [\"ext4\", \n\"ntfs\"]",
                2,
                "deny.filesystems",
                "ntfs",
            ),
            (
                "deny.devices = [\"nvme0n1\"]",
                1,
                "deny.devices",
                "\"nvme0n1\"",
            ),
            ("staging_bytes = \"64K\"", 0, "slab_bytes", "8388608"),
        ];
        for (text, at, key, value) in bad {
            let error = load(text, &[]).expect_err(text);
            let setting = error.setting.as_ref().expect("a setting");
            assert_eq!((&*setting.key, &*setting.value), (key, value), "{text}");
            if at > 0 {
                assert_eq!(line(&setting.source), at, "{text}");
            }
            assert!(!setting.wanted.is_empty(), "{text}");
            let shown = error.to_string();
            assert!(shown.contains(key) && shown.contains(value), "{shown}");
            assert_eq!(shown.lines().count(), 1, "{shown}");

            let mut config = Config::default();
            if at > 0 {
                let path = Path::new("/x");
                config.read_text(path, text).expect_err("bad");
            }
            assert_eq!(config, Config::default());
        }
    }

    #[test]
    fn what_is_no_toml_is_refused_with_its_line() {
        for (text, at) in [
            ("policy = ", 1),
            ("threads = 1\nthreads = 2", 2),
            ("threads = 1\n[deny\n", 2),
            ("\u{feff}\nx", 2),
            ("a = \"\\q\"", 1),
        ] {
            let error = load(text, &[]).expect_err(text);
            let setting = error.setting.as_ref().expect("a setting");
            assert_eq!(line(&setting.source), at, "{text}: {error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn a_bad_variable_is_refused_with_its_name() {
        for (name, value) in [
            ("VRAMIO_POLICY", "never"),
            ("VRAMIO_THREADS", "0"),
            ("VRAMIO_THREADS", "-1"),
            ("VRAMIO_THREADS", ""),
            ("VRAMIO_SLAB_BYTES", "3M"),
            ("VRAMIO_STAGING_WAIT", "long"),
            ("VRAMIO_DIRECT", "maybe"),
            ("VRAMIO_THRESHOLDS", "ext4"),
            ("VRAMIO_THRESHOLDS", "ext9=1"),
            ("VRAMIO_THRESHOLDS", "ext4=x"),
            ("VRAMIO_SPARSE_THRESHOLD", "-1"),
            ("VRAMIO_DENY_PATHS", "a:b"),
        ] {
            let error = load("", &[(name, value)]).expect_err(name);
            let setting = error.setting.as_ref().expect("a setting");
            assert_eq!(setting.source, Source::Variable(name.to_owned()), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
        // A value of the file that is no good is one, whatever the environment says.
        load("threads = 0", &[("VRAMIO_THREADS", "1")]).expect_err("bad");
    }

    #[test]
    fn a_file_that_is_none_is_refused_and_does_not_block() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let large = dir.path().join("large");
        let file = std::fs::File::create(&large).expect("a file");
        file.set_len((1 << 20) + 1).expect("it grows");
        let binary = dir.path().join("binary");
        std::fs::write(&binary, [0xff, 0xfe]).expect("a file");
        let missing = dir.path().join("missing");
        for path in [&pipe, &large, &binary, &missing, dir.path()] {
            let variables = [(VARIABLE.into(), path.as_os_str().to_owned())];
            let error = Config::load_with(&variables).expect_err("no file");
            let name = path.display().to_string();
            assert!(error.to_string().contains(&name), "{error}");
        }
        let none = [(VARIABLE.into(), OsString::new())];
        assert_eq!(Config::load_with(&none), Ok(Config::default()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// Whatever stands in a file: it is taken, and then every value is good, or it is
        /// refused, and nothing has changed.
        #[test]
        fn no_file_does_harm(
            lines in proptest::collection::vec(
                (0..Key::ALL.len() + 2, 0usize..14, any::<i64>()),
                0..6,
            ),
        ) {
            let mut text = String::new();
            for (key, kind, number) in lines {
                let key = Key::ALL.get(key).map_or("other", |key| key.name());
                let value = match kind {
                    0 => number.to_string(),
                    1 => (number % 70_000).to_string(),
                    2 => format!("\"{}K\"", number.rem_euclid(1 << 20)),
                    3 => "true".to_owned(),
                    4 => "\"strict\"".to_owned(),
                    5 => "[\"/a\", \"/b\"]".to_owned(),
                    6 => "[\"ext4\"]".to_owned(),
                    7 => "[1, \"a\"]".to_owned(),
                    8 => "{ ext4 = 1 }".to_owned(),
                    9 => "\"1h\"".to_owned(),
                    10 => (1u64 << number.rem_euclid(63)).to_string(),
                    11 => "\"\"".to_owned(),
                    12 => "[".to_owned(),
                    _ => "\"\u{1f600}²\"".to_owned(),
                };
                text.push_str(&format!("{key} = {value}\n"));
            }
            let mut config = Config::default();
            match config.read_text(Path::new("/x"), &text) {
                Ok(()) => prop_assert!(config.check_values().is_ok()),
                Err(error) => {
                    prop_assert_eq!(&config, &Config::default());
                    prop_assert!(error.setting.is_some());
                }
            }
        }
    }
}
