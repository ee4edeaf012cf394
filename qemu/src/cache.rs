// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cache: whole entries under versioned names, or none.
//!
//! An entry is built in a directory beside its final name and renamed when it
//! is whole. All writers hold one lock. Their children inherit it, so what a
//! killed run left running keeps the next run waiting, not guessing.

use anyhow::{bail, Context, Result};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Ends the name of an entry that is not whole.
const PARTIAL: &str = ".partial";

/// Marks a directory that has nothing but a cache, for backup programs and for
/// [`Writer::clear`].
const TAG: (&str, &str) = (
    "CACHEDIR.TAG",
    "Signature: 8a477f597d28d172789f06886806bc55\n# The cache of vramio; it can be removed.\n",
);

/// The cache's directory.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// Opens `$VRAMIO_CACHE`, else `$XDG_CACHE_HOME/vramio`, else
    /// `~/.cache/vramio`, and creates it when needed.
    ///
    /// # Errors
    ///
    /// When there is no such directory and it cannot be created.
    pub fn open() -> Result<Self> {
        Self::at(&choose(|name| std::env::var_os(name).map(PathBuf::from))?)
    }

    /// Opens the cache in `dir`, and creates it when needed.
    ///
    /// # Errors
    ///
    /// When it cannot be created.
    pub fn at(dir: &Path) -> Result<Self> {
        let make = || {
            fs::create_dir_all(dir)?;
            if fs::read_dir(dir)?.next().is_none() {
                fs::write(dir.join(TAG.0), TAG.1)?;
            }
            fs::create_dir_all(dir.join("log"))?;
            dir.canonicalize()
        };
        make().map(|dir| Self { dir }).with_context(|| {
            format!(
                "create the cache {}; set VRAMIO_CACHE to a directory that you can write",
                dir.display()
            )
        })
    }

    /// The cache's directory, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the entry `name` is, or will be.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether the entry `name` is there, which means that it is whole.
    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Bytes that this user can still write there.
    ///
    /// # Errors
    ///
    /// When the file system does not say.
    pub fn free(&self) -> Result<u64> {
        free(&self.dir)
    }

    /// Takes the lock, after other writers, and removes what they left
    /// unfinished.
    ///
    /// # Errors
    ///
    /// When the lock cannot be taken or left-overs cannot be removed.
    pub fn write(&self) -> Result<Writer<'_>> {
        let path = self.path("lock");
        let at = || format!("lock {}", path.display());
        let lock = File::options()
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .with_context(at)?;
        if lock.try_lock().is_err() {
            eprintln!(
                "waiting for another process that fills {}",
                self.dir.display()
            );
            lock.lock().with_context(at)?;
        }
        // SAFETY: `lock` is open, and F_SETFD takes no pointer.
        if unsafe { libc::fcntl(lock.as_raw_fd(), libc::F_SETFD, 0) } != 0 {
            return Err(std::io::Error::last_os_error()).with_context(at);
        }
        let writer = Writer { cache: self, lock };
        writer.sweep()?;
        Ok(writer)
    }
}

/// The cache's directory, from the environment.
fn choose(var: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let var = |name| var(name).filter(|path| !path.as_os_str().is_empty());
    var("VRAMIO_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("vramio")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache/vramio")))
        .context("no place for the cache: set VRAMIO_CACHE to a directory")
}

/// Bytes that this user can still write to the file system of `dir`.
///
/// # Errors
///
/// When the file system does not say.
pub fn free(dir: &Path) -> Result<u64> {
    let stat = nix::sys::statvfs::statvfs(dir)
        .with_context(|| format!("ask for the free space of {}", dir.display()))?;
    Ok(stat.blocks_available() * stat.fragment_size())
}

/// The right to change the cache.
#[derive(Debug)]
pub struct Writer<'a> {
    cache: &'a Cache,
    lock: File,
}

impl Writer<'_> {
    /// Builds the entry `name`, unless it is there, and returns its path.
    ///
    /// `build` fills the directory that it is given. The second path is the
    /// log for what it runs, which stays.
    ///
    /// # Errors
    ///
    /// When `build` fails, or the file system does.
    pub fn entry(
        &self,
        name: &str,
        build: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let whole = self.cache.path(name);
        if whole.exists() {
            return Ok(whole);
        }
        let partial = self.cache.path(&format!("{name}{PARTIAL}"));
        let log = self.log(name);
        let _ = fs::remove_file(&log);
        fs::create_dir(&partial).with_context(|| format!("create {}", partial.display()))?;
        if let Err(error) = build(&partial, &log) {
            // The next writer tries again.
            let _ = remove(&partial);
            return Err(error);
        }
        fs::rename(&partial, &whole)
            .with_context(|| format!("rename {} to {}", partial.display(), whole.display()))?;
        Ok(whole)
    }

    /// The lock as an empty standard input, for a child that must inherit no
    /// other descriptor.
    ///
    /// # Errors
    ///
    /// When there are too many open files.
    pub fn hold(&self) -> Result<Stdio> {
        let lock = self.lock.try_clone().context("duplicate the lock")?;
        Ok(lock.into())
    }

    /// The log of the stage `name`.
    pub fn log(&self, name: &str) -> PathBuf {
        self.cache.path(&format!("log/{name}.log"))
    }

    /// Replaces the file `name` as a whole.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> Result<()> {
        let whole = self.cache.path(name);
        let partial = self.cache.path(&format!("{name}{PARTIAL}"));
        fs::write(&partial, text)
            .and_then(|()| fs::rename(&partial, &whole))
            .with_context(|| format!("write {}", whole.display()))
    }

    /// Removes the entry or file `name`.
    ///
    /// # Errors
    ///
    /// When it is there and cannot be removed.
    pub fn remove(&self, name: &str) -> Result<()> {
        // Renamed first: half an entry must not have a whole one's name.
        let partial = self.cache.path(&format!("{name}{PARTIAL}"));
        match fs::rename(self.cache.path(name), &partial) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).with_context(|| format!("remove {name} from the cache")),
            Ok(()) => remove(&partial),
        }
    }

    /// Removes everything.
    ///
    /// # Errors
    ///
    /// When the directory had files of others before it became a cache, or
    /// something cannot be removed.
    pub fn clear(self) -> Result<()> {
        let dir = &self.cache.dir;
        if !self.cache.has(TAG.0) {
            bail!(
                "{} has no {}, so it may have other files than the cache: remove it by hand",
                dir.display(),
                TAG.0
            );
        }
        // All names first, for a run that is killed here.
        let names = self.names()?;
        for name in names.iter().filter(|name| *name != TAG.0) {
            let (whole, partial) = (dir.join(name), dir.join(format!("{name}{PARTIAL}")));
            fs::rename(&whole, &partial).with_context(|| format!("rename {}", whole.display()))?;
        }
        remove(dir)
    }

    /// The names of all whole entries and files.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.cache.dir).context("list the cache")? {
            names.push(
                entry
                    .context("list the cache")?
                    .file_name()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
        names.sort();
        Ok(names)
    }

    fn sweep(&self) -> Result<()> {
        for name in self.names()? {
            if name.ends_with(PARTIAL) {
                remove(&self.cache.path(&name))?;
            }
        }
        Ok(())
    }
}

/// Removes a file or a tree, but never what is mounted in it.
///
/// # Errors
///
/// When it is not there or cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
    if let Some(mount) = mount_below(&mounts, path) {
        bail!("remove {}: {mount} is mounted; unmount it", path.display());
    }
    let metadata = fs::symlink_metadata(path);
    let result = match metadata {
        Ok(metadata) if metadata.is_dir() => writable(path).and_then(|()| fs::remove_dir_all(path)),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        bail!("remove {}: {error}; remove it by hand", path.display());
    }
    Ok(())
}

/// Gives the owner of the tree `dir` the right to change each directory.
fn writable(dir: &Path) -> std::io::Result<()> {
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        let mode = fs::metadata(&dir)?.mode();
        if mode & 0o700 != 0o700 {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode | 0o700))?;
        }
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    Ok(())
}

/// The first mount point of the table `mounts` that is `path` or below it.
fn mount_below<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .find(|mount| Path::new(mount).starts_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn cache() -> Cache {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "vramio-cache-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Cache::at(&std::env::temp_dir().join(name)).unwrap()
    }

    #[test]
    fn the_first_variable_that_is_set_wins() {
        let pick = |set: &[(&str, &str)]| {
            choose(|name| {
                set.iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| PathBuf::from(value))
            })
        };
        let all = [
            ("HOME", "/h"),
            ("XDG_CACHE_HOME", "/x"),
            ("VRAMIO_CACHE", "/v"),
        ];
        assert_eq!(pick(&all).unwrap(), Path::new("/v"));
        assert_eq!(pick(&all[..2]).unwrap(), Path::new("/x/vramio"));
        assert_eq!(pick(&all[..1]).unwrap(), Path::new("/h/.cache/vramio"));
        assert_eq!(
            pick(&[("HOME", "/h"), ("VRAMIO_CACHE", "")]).unwrap(),
            Path::new("/h/.cache/vramio")
        );
        assert!(pick(&[]).is_err());
    }

    #[test]
    fn an_entry_is_whole_or_absent() {
        let cache = cache();
        let writer = cache.write().unwrap();
        let failed = writer.entry("a", |dir, _| {
            fs::write(dir.join("half"), "").unwrap();
            bail!("no")
        });
        assert!(failed.is_err() && !cache.has("a"));
        let path = writer
            .entry("a", |dir, _| Ok(fs::write(dir.join("file"), "x")?))
            .unwrap();
        assert!(path.join("file").exists() && !path.join("half").exists());
        writer.entry("a", |_, _| bail!("not built twice")).unwrap();
        writer.remove("a").unwrap();
        writer.remove("a").unwrap();
        assert!(!cache.has("a"));
        writer.clear().unwrap();
        assert!(!cache.dir().exists());
    }

    #[test]
    fn what_a_killed_writer_left_is_removed() {
        let cache = cache();
        fs::create_dir(cache.path("b.partial")).unwrap();
        fs::write(cache.path("c.partial"), "").unwrap();
        fs::write(cache.path("d"), "").unwrap();
        let writer = cache.write().unwrap();
        assert_eq!(writer.names().unwrap(), [TAG.0, "d", "lock", "log"]);
        fs::remove_dir_all(cache.dir()).unwrap();
    }

    #[test]
    fn a_directory_of_others_is_not_cleared() {
        let old = cache();
        fs::remove_file(old.path(TAG.0)).unwrap();
        let cache = Cache::at(old.dir()).unwrap();
        let error = cache.write().unwrap().clear().unwrap_err().to_string();
        assert!(error.contains("by hand") && cache.dir().exists(), "{error}");
        fs::remove_dir_all(cache.dir()).unwrap();
    }

    #[test]
    fn nothing_mounted_is_removed() {
        let table = "proc /proc proc rw 0 0\nudev /c/x.partial/dev devtmpfs rw 0 0\n";
        assert_eq!(
            mount_below(table, Path::new("/c/x.partial")),
            Some("/c/x.partial/dev")
        );
        assert_eq!(mount_below(table, Path::new("/c/x")), None);
        assert!(remove(Path::new("/proc")).is_err());
    }

    #[test]
    fn a_tree_with_locked_directories_can_be_removed() {
        let cache = cache();
        let tree = cache.path("e");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        for dir in ["a/b", "a"] {
            fs::set_permissions(tree.join(dir), fs::Permissions::from_mode(0o555)).unwrap();
        }
        remove(&tree).unwrap();
        assert!(!tree.exists());
        fs::remove_dir_all(cache.dir()).unwrap();
    }

    #[test]
    fn a_second_writer_waits() {
        let cache = cache();
        let writer = cache.write().unwrap();
        let file = File::open(cache.path("lock")).unwrap();
        assert!(file.try_lock().is_err());
        drop(writer);
        file.try_lock().unwrap();
        fs::remove_dir_all(cache.dir()).unwrap();
    }
}
