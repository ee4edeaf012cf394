// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file and the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::{parse_to_ast, CollectOptions, ParseOptions};
use vramio::{config_source, FileSystem, Source};

use crate::error::{Error, Problem};
use crate::key::{Effect, Key, Kind};
use crate::value::{Value, Wrong};

/// The variable that names the file.
const VARIABLE: &str = "CUFILE_ENV_PATH_JSON";

/// The key of file systems that never go direct.
const DENIED: &str = "denylist.filesystems";

/// Where the log goes: the environment alone says this.
pub(crate) const LOG_FILE: &str = "CUFILE_LOGFILE_PATH";

/// Variables that stand for a key.
static VARIABLES: [(&str, &str); 7] = [
    ("CUFILE_LOGGING_LEVEL", "logging.level"),
    ("CUFILE_LOGFILE_MAX_SIZE_MB", "logging.max_file_size_mb"),
    ("CUFILE_FORCE_COMPAT_MODE", "properties.force_compat_mode"),
    ("CUFILE_ALLOW_COMPAT_MODE", "properties.allow_compat_mode"),
    ("CUFILE_USE_PCIP2PDMA", "properties.use_pci_p2pdma"),
    (
        "CUFILE_SKIP_TOPOLOGY_DETECTION",
        "miscellaneous.skip_topology_detection",
    ),
    ("CUFILE_NVTX", "profile.nvtx"),
];

/// Variables of RDMA, which this library does not do.
static RDMA: [&str; 9] = [
    "CUFILE_CQ_DEPTH",
    "CUFILE_ETH_SL",
    "CUFILE_IB_SL",
    "CUFILE_MIN_RNR_TIMER",
    "CUFILE_RDMA_DC_KEY",
    "CUFILE_RDMA_HOP_LIMIT",
    "CUFILE_RDMA_PKEY_INDEX",
    "CUFILE_RDMA_SR_MAX_WR",
    "CUFILE_RDMA_SR_MAX_SGE",
];

/// JSON as cufile.json has it: with comments, and commas at the end of lists.
pub(crate) const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: true,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// A value that somebody has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// It.
    pub value: Value,
    /// Where it comes from.
    pub source: Source,
    /// Whether it is the usual value of its key, which NVIDIA's own file has.
    pub usual: bool,
}

/// Something that was accepted and has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Where it is.
    pub source: Source,
    /// The key, or the variable.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Why it has none.
    pub why: String,
    /// Whether the value is the usual one, which nobody may have chosen.
    pub usual: bool,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Notice {
            source,
            key,
            value,
            why,
            ..
        } = self;
        write!(f, "{source}: {key} = {value}: accepted, no effect: {why}")
    }
}

/// What file and environment say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cufile {
    pub(crate) entries: BTreeMap<String, Entry>,
    notices: Vec<Notice>,
}

impl Cufile {
    /// Where the file is looked for, unless `CUFILE_ENV_PATH_JSON` says otherwise.
    pub const PATH: &str = "/etc/cufile.json";

    /// Reads the file that `CUFILE_ENV_PATH_JSON` names, else [`PATH`](Self::PATH) if that
    /// exists; then the environment, which goes before it. A program with more rights than
    /// its caller (set-user-ID) does not look at the environment.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn load() -> Result<Self, Error> {
        Self::load_with(&config_source::variables("CUFILE_"), Self::PATH.as_ref())
    }

    /// The file that [`load`](Self::load) reads, if there is one.
    pub fn file() -> Option<PathBuf> {
        Self::file_with(&config_source::variables("CUFILE_"), Self::PATH.as_ref())
    }

    fn file_with(variables: &[(OsString, OsString)], usual: &Path) -> Option<PathBuf> {
        match variables.iter().find(|(name, _)| name == VARIABLE) {
            Some((_, path)) if !path.is_empty() => Some(path.into()),
            _ => usual.exists().then(|| usual.to_owned()),
        }
    }

    fn load_with(variables: &[(OsString, OsString)], usual: &Path) -> Result<Self, Error> {
        let mut cufile = Cufile::default();
        if let Some(path) = Self::file_with(variables, usual) {
            cufile.read_file(&path)?;
        }
        cufile.read_variables(variables)?;
        cufile.check()?;
        Ok(cufile)
    }

    /// Takes a file over.
    ///
    /// # Errors
    ///
    /// What is wrong with it. Nothing has changed then.
    pub fn read_file(&mut self, path: &Path) -> Result<(), Error> {
        let text = config_source::read(path).map_err(|error| Error {
            place: Source::File {
                path: path.to_owned(),
                line: 0,
            },
            key: String::new(),
            value: String::new(),
            problem: Problem::Unreadable,
            wanted: error.to_string(),
        })?;
        self.read_text(path, &text)
    }

    /// The same for a text; the path is for errors and [`Source`]s.
    ///
    /// # Errors
    ///
    /// As [`read_file`](Self::read_file).
    pub fn read_text(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let file = File { path, text };
        let parsed = parse_to_ast(text, &CollectOptions::default(), &OPTIONS);
        let parsed = parsed.map_err(|error| {
            let wanted = error.kind().to_string();
            file.error(error.range().start, "", "", Problem::NotJson, wanted)
        })?;
        let mut changed = self.clone();
        match parsed.value {
            Some(ast::Value::Object(root)) => changed.take_object(&file, &root, "")?,
            // An empty file, or nothing but comments.
            None => {}
            Some(other) => {
                let wanted = "an object, which begins with {".to_owned();
                let at = other.range().start;
                return Err(file.error(at, "", "", Problem::WrongType, wanted));
            }
        }
        changed.check()?;
        *self = changed;
        Ok(())
    }

    fn take_object(
        &mut self,
        file: &File<'_>,
        object: &ast::Object<'_>,
        prefix: &str,
    ) -> Result<(), Error> {
        for property in &object.properties {
            let name = format!("{prefix}{}", property.name.as_str());
            let at = property.range().start;
            match (Key::find(&name), &property.value) {
                (Some((key, canonical)), value) => {
                    let shown = file.text_of(value);
                    let value = key.kind.take(value).map_err(|(problem, wanted)| {
                        file.error(value.range().start, &name, shown, problem, wanted)
                    })?;
                    self.put(key, canonical, value, file.source(at)).map_err(
                        |(problem, wanted)| file.error(at, &name, shown, problem, wanted),
                    )?;
                }
                (None, ast::Value::Object(inside)) if Key::is_section(&name) => {
                    self.take_object(file, inside, &format!("{name}."))?;
                }
                (None, value) => {
                    let (problem, wanted) = if Key::is_section(&name) {
                        (Problem::WrongType, "an object".to_owned())
                    } else {
                        (Problem::UnknownKey, hint(&name))
                    };
                    return Err(file.error(at, &name, file.text_of(value), problem, wanted));
                }
            }
        }
        Ok(())
    }

    /// Takes a value over. The same key may be there twice, with the same value.
    fn put(
        &mut self,
        key: &'static Key,
        name: String,
        value: Value,
        source: Source,
    ) -> Result<(), Wrong> {
        if let (Source::File { path, .. }, Some(before)) = (&source, self.entries.get(&name)) {
            let same = matches!(&before.source, Source::File { path: other, .. } if other == path);
            if same && before.value != value {
                let wanted = format!("{}, as at {}", before.value, before.source);
                return Err((Problem::Twice, wanted));
            }
        }
        let usual = key.usual.is(&value);
        if let (DENIED, Value::Texts(filesystems)) = (&*name, &value) {
            let unknown = |name: &&String| FileSystem::of_name(name).is_none();
            if let Some(unknown) = filesystems.iter().find(unknown) {
                let why = format!("{unknown} is not known, and never goes direct");
                self.notice(&source, &name, &value, &why, usual);
            }
        }
        if let Effect::None(why) = key.effect {
            self.notice(&source, &name, &value, why, usual);
        }
        self.entries.insert(
            name,
            Entry {
                value,
                source,
                usual,
            },
        );
        Ok(())
    }

    fn notice(&mut self, source: &Source, key: &str, value: &Value, why: &str, usual: bool) {
        self.notices.retain(|notice| notice.key != key);
        self.notices.push(Notice {
            source: source.clone(),
            key: key.to_owned(),
            value: value.to_string(),
            why: why.to_owned(),
            usual,
        });
    }

    fn read_variables(&mut self, variables: &[(OsString, OsString)]) -> Result<(), Error> {
        let mut changed = self.clone();
        for (variable, value) in variables {
            let Some(variable) = variable.to_str() else {
                continue;
            };
            let source = Source::Variable(variable.to_owned());
            let fail = |(problem, wanted): Wrong| Error {
                place: source.clone(),
                key: variable.to_owned(),
                value: value.display().to_string(),
                problem,
                wanted,
            };
            if RDMA.contains(&variable) {
                let shown = Value::Text(value.display().to_string());
                let why = "network file systems always go through host memory here";
                changed.notice(&source, variable, &shown, why, false);
                continue;
            }
            let found = VARIABLES.iter().find(|(known, _)| *known == variable);
            let kind = match found.and_then(|(_, name)| Key::find(name)) {
                Some((key, _)) => key.kind,
                None if variable == LOG_FILE => Kind::Text,
                None => continue,
            };
            let text = value.to_str();
            let text = text.ok_or_else(|| fail((Problem::WrongType, "UTF-8".to_owned())))?;
            let taken = kind.take_text(text).map_err(fail)?;
            match found.and_then(|(_, name)| Key::find(name)) {
                Some((key, name)) => {
                    changed
                        .put(key, name, taken, source.clone())
                        .map_err(fail)?;
                }
                None => {
                    let entry = Entry {
                        value: taken,
                        source: source.clone(),
                        usual: false,
                    };
                    changed.entries.insert(LOG_FILE.to_owned(), entry);
                }
            }
        }
        *self = changed;
        Ok(())
    }

    /// Checks what several keys say together: sizes of a pool's buffers and their numbers.
    fn check(&self) -> Result<(), Error> {
        for (sizes, counts) in POOLS {
            let (size, count) = (self.entries.get(sizes), self.entries.get(counts));
            let Some(blamed) = count.or(size) else {
                continue;
            };
            let (Some(sizes_kb), Some(numbers)) = (self.pool(sizes), self.pool(counts)) else {
                continue;
            };
            let fail = |key: &str, entry: &Entry, wanted: &str| {
                Err(Error {
                    place: entry.source.clone(),
                    key: key.to_owned(),
                    value: entry.value.to_string(),
                    problem: Problem::OutOfRange,
                    wanted: wanted.to_owned(),
                })
            };
            if sizes_kb.len() != numbers.len() {
                let key = if count.is_some() { counts } else { sizes };
                let wanted = format!("as many numbers as there are sizes, {}", sizes_kb.len());
                return fail(key, blamed, &wanted);
            }
            let rising = sizes_kb.windows(2).all(|pair| pair[0] < pair[1]);
            let whole = sizes_kb
                .iter()
                .all(|size| size.is_multiple_of(4) && *size <= 1 << 30);
            if let (Some(size), false) = (size, rising && whole && !sizes_kb.is_empty()) {
                return fail(sizes, size, "rising multiples of 4, at most 2^30");
            }
        }
        Ok(())
    }

    /// What is set of a key, by its name; a list of numbers has its usual value else.
    pub(crate) fn pool(&self, name: &str) -> Option<Vec<u64>> {
        match (self.numbers(name), Key::find(name)?.0.usual) {
            (Some(numbers), _) => Some(numbers.to_vec()),
            (None, crate::key::Usual::Numbers(usual)) => Some(usual.to_vec()),
            (None, _) => None,
        }
    }

    /// What was accepted and has no effect, each once.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// What is set of a key, by its name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// All that is set, by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries
            .iter()
            .map(|(name, entry)| (name.as_str(), entry))
    }

    /// What is set of a key that is true or false.
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.entries.get(name)?.value {
            Value::Flag(value) => Some(value),
            _ => None,
        }
    }

    /// What is set of a key that is a number.
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.entries.get(name)?.value {
            Value::Number(value) => Some(value),
            _ => None,
        }
    }

    /// What is set of a key that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match &self.entries.get(name)?.value {
            Value::Text(value) => Some(value),
            _ => None,
        }
    }

    /// What is set of a key that is a list of numbers.
    pub fn numbers(&self, name: &str) -> Option<&[u64]> {
        match &self.entries.get(name)?.value {
            Value::Numbers(value) => Some(value),
            _ => None,
        }
    }

    /// What is set of a key that is a list of texts.
    pub fn texts(&self, name: &str) -> Option<&[String]> {
        match &self.entries.get(name)?.value {
            Value::Texts(value) => Some(value),
            _ => None,
        }
    }

    /// The file that the environment wants the log in.
    pub fn log_file(&self) -> Option<&Path> {
        self.text(LOG_FILE)
            .filter(|path| !path.is_empty())
            .map(Path::new)
    }

    /// Most bytes of the log; `Some(None)` is no limit.
    pub fn log_bytes(&self) -> Option<Option<u64>> {
        let mib = self.number("logging.max_file_size_mb")?;
        Some(u64::try_from(mib).ok().map(|mib| mib << 20))
    }
}

/// Keys of pools: sizes and numbers.
pub(crate) const POOLS: [(&str, &str); 2] = [
    (
        "properties.posix_pool_slab_size_kb",
        "properties.posix_pool_slab_count",
    ),
    (
        "properties.gpu_bounce_buffer_slab_config.slab_size_kb",
        "properties.gpu_bounce_buffer_slab_config.slab_count",
    ),
];

fn hint(name: &str) -> String {
    let last = name.rsplit('.').next().unwrap_or_default();
    match Key::elsewhere(name) {
        None if Key::is_section(last) => format!("{last} at the top, perhaps"),
        Some(place) => format!("{place}, perhaps"),
        None => "a key of NVIDIA's configuration guide".to_owned(),
    }
}

/// The file, for places in it.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl<'a> File<'a> {
    fn source(&self, at: usize) -> Source {
        let before = self.text.get(..at).unwrap_or(self.text);
        Source::File {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
        }
    }

    /// A value, as it is written, on one line.
    fn text_of(&self, value: &ast::Value<'_>) -> &'a str {
        let text = self.text.get(value.range().start..value.range().end);
        text.and_then(|text| text.lines().next())
            .unwrap_or_default()
    }

    fn error(&self, at: usize, key: &str, value: &str, problem: Problem, wanted: String) -> Error {
        Error {
            place: self.source(at),
            key: key.to_owned(),
            value: value.to_owned(),
            problem,
            wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use vramio::{Config, Policy};

    use super::*;

    fn load(text: Option<&str>, variables: &[(&str, &str)]) -> Result<Cufile, Error> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cufile.json");
        if let Some(text) = text {
            std::fs::write(&path, text).expect("it can be written");
        }
        let variables: Vec<(OsString, OsString)> = variables
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        Cufile::load_with(&variables, &path)
    }

    #[test]
    fn without_a_file_nothing_is_set() {
        let cufile = load(None, &[]).expect("nothing is wrong");
        assert_eq!(cufile, Cufile::default());
        let config = cufile.config(Config::default());
        for key in vramio::Key::ALL {
            assert_eq!(config.source(key), Source::Default, "{key}");
            let usual = match key {
                // NVIDIA's.
                vramio::Key::SparseThreshold => "8192".to_owned(),
                key => Config::default().text(key),
            };
            assert_eq!(config.text(key), usual, "{key}");
        }
    }

    /// The default of runs between holes goes before no value that somebody chose, and is none
    /// where nothing may be copied; one that was chosen stays one.
    #[test]
    fn a_default_refuses_nothing() {
        let strict = [("CUFILE_ALLOW_COMPAT_MODE", "false")];
        let spelled =
            r#"{ "sparse": { "min_p2pdma_threshold_kb": 8, "p2p_compat_enable": true } }"#;
        let chosen = r#"{ "sparse": { "min_p2pdma_threshold_kb": 16 } }"#;
        let off = r#"{ "sparse": { "min_p2pdma_threshold_kb": 16, "p2p_compat_enable": false } }"#;
        for (text, bytes, bytes_of_strict, from_ours) in [
            (None, 8 << 10, 0, 4096),
            (Some(spelled), 8 << 10, 0, 4096),
            (Some(chosen), 16 << 10, 16 << 10, 16 << 10),
            (Some(off), 0, 0, 0),
        ] {
            let get = |variables: &[(&str, &str)], base: Config| {
                let config = load(text, variables).expect("good").config(base);
                config.sparse_threshold
            };
            let mut ours = Config::default();
            ours.sparse_threshold = 4096;
            let mut from = |source| {
                ours.set_source(vramio::Key::SparseThreshold, source);
                ours.clone()
            };
            let path = PathBuf::from("/etc/vramio.toml");
            let file = from(Source::File { path, line: 1 });
            let program = from(Source::Program);
            assert_eq!(get(&[], Config::default()), bytes, "{text:?}");
            assert_eq!(get(&strict, Config::default()), bytes_of_strict, "{text:?}");
            assert_eq!(get(&[], file), from_ours, "{text:?}");
            assert_eq!(get(&[], program), 4096, "{text:?}");
        }
    }

    #[test]
    fn the_environment_goes_before_the_file() {
        let text = r#"{ "properties": { "allow_compat_mode": false },
            "logging": { "level": "INFO", "max_file_size_mb": 16 } }"#;
        let file = load(Some(text), &[]).expect("good");
        assert_eq!(file.config(Config::default()).policy, Policy::Strict);
        assert_eq!(file.log_bytes(), Some(Some(16 << 20)));
        let variables = [
            ("CUFILE_ALLOW_COMPAT_MODE", "ON"),
            ("CUFILE_LOGGING_LEVEL", "debug"),
            ("CUFILE_LOGFILE_PATH", "/tmp/a.log"),
            ("CUFILE_LOGFILE_MAX_SIZE_MB", "-1"),
            ("CUFILE_SKIP_TOPOLOGY_DETECTION", "1"),
            ("CUFILE_IB_SL", "3"),
            ("CUFILE_OF_SOMEBODY", "x"),
        ];
        let both = load(Some(text), &variables).expect("good");
        assert_eq!(both.config(Config::default()).policy, Policy::Warn);
        assert_eq!(both.text("logging.level"), Some("debug"));
        assert_eq!(both.log_file(), Some(Path::new("/tmp/a.log")));
        assert_eq!(both.log_bytes(), Some(None));
        let entry = both.entry("properties.allow_compat_mode").expect("set");
        assert_eq!(
            entry.source.to_string(),
            "environment CUFILE_ALLOW_COMPAT_MODE"
        );
        let notices: Vec<&str> = both.notices().iter().map(|notice| &*notice.key).collect();
        let expected = ["miscellaneous.skip_topology_detection", "CUFILE_IB_SL"];
        assert_eq!(notices, expected);
        assert!(both.notices()[0]
            .to_string()
            .contains("accepted, no effect: "));

        let strict = [("CUFILE_ALLOW_COMPAT_MODE", "false")];
        let config = load(None, &strict).expect("good").config(Config::default());
        assert_eq!(config.policy, Policy::Strict);
        let source = Source::Variable("CUFILE_ALLOW_COMPAT_MODE".to_owned());
        assert_eq!(config.source(vramio::Key::Policy), source);
        let forced = [("CUFILE_FORCE_COMPAT_MODE", "true")];
        assert!(
            !load(None, &forced)
                .expect("good")
                .config(Config::default())
                .direct
        );
    }

    /// What the program or `VRAMIO_*` say goes before; what vramio's own file says, after.
    #[test]
    fn other_sources_keep_their_place() {
        let text = r#"{ "properties": { "allow_compat_mode": false },
            "execution": { "max_request_parallelism": 3 } }"#;
        let cufile = load(Some(text), &[]).expect("good");
        let with = |source: Source| {
            let mut base = Config::default();
            (base.policy, base.threads) = (Policy::Allow, 7);
            base.set_source(vramio::Key::Policy, source.clone());
            base.set_source(vramio::Key::Threads, source);
            let config = cufile.config(base);
            (config.policy, config.threads)
        };
        let outer = (Policy::Allow, 7);
        assert_eq!(with(Source::Variable("VRAMIO_POLICY".to_owned())), outer);
        assert_eq!(with(Source::Program), outer);
        let inner = (Policy::Strict, 3);
        let path = PathBuf::from("/etc/vramio.toml");
        assert_eq!(with(Source::File { path, line: 1 }), inner);
    }

    #[test]
    fn bad_variables_are_named() {
        for (name, value) in [
            ("CUFILE_ALLOW_COMPAT_MODE", "perhaps"),
            ("CUFILE_FORCE_COMPAT_MODE", ""),
            ("CUFILE_LOGGING_LEVEL", "loud"),
            ("CUFILE_LOGFILE_MAX_SIZE_MB", "0x10"),
            ("CUFILE_LOGFILE_MAX_SIZE_MB", "5000"),
        ] {
            let error = load(None, &[(name, value)]).expect_err(name);
            assert_eq!(error.place, Source::Variable(name.to_owned()));
            assert_eq!((&*error.key, &*error.value), (name, value));
            assert!(error.to_string().contains("fix:"), "{error}");
        }
    }

    /// The file that the environment names is read, and has to be there.
    #[test]
    fn the_environment_names_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let named = dir.path().join("named.json");
        std::fs::write(&named, r#"{ "profile": { "cufile_stats": 3 } }"#).expect("a file");
        let text = named.to_str().expect("UTF-8");
        let usual = Some(r#"{ "profile": { "cufile_stats": 1 } }"#);
        let stats = |cufile: &Cufile| cufile.number("profile.cufile_stats");
        let cufile = load(usual, &[(VARIABLE, text)]).expect("good");
        assert_eq!(stats(&cufile), Some(3));
        assert_eq!(
            stats(&load(usual, &[(VARIABLE, "")]).expect("good")),
            Some(1)
        );
        let pipe = dir.path().join("pipe");
        // SAFETY: The path is a C string.
        let made = unsafe {
            let path = std::ffi::CString::new(pipe.to_str().expect("UTF-8")).expect("no NUL");
            libc::mkfifo(path.as_ptr(), 0o600)
        };
        assert_eq!(made, 0);
        for bad in [dir.path().join("missing"), dir.path().to_owned(), pipe] {
            let text = bad.to_str().expect("UTF-8");
            let error = load(usual, &[(VARIABLE, text)]).expect_err("no file");
            assert_eq!(error.problem, Problem::Unreadable);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
