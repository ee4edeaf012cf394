// SPDX-License-Identifier: MIT OR Apache-2.0

//! From nothing to a build root and a kernel.

use crate::apt::Apt;
use crate::cache::{Cache, Writer};
use crate::enter::BuildRoot;
use crate::kernel::{self, Kernel};
use crate::mirror::Mirrors;
use crate::resolve::{self, KernelSpec, Resolved};
use crate::{debug, host, root};
use anyhow::{bail, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The file of the cache that says which versions were resolved.
const RESOLVED: &str = "resolved.json";
/// The directory of the cache for packages whose entry is not made yet.
const DEBS: &str = "debs";

/// What a build or a boot needs.
#[derive(Debug)]
pub struct Prepared {
    /// Where all of it is kept; other stages may add their own entries.
    pub cache: Cache,
    /// The build root, which also has QEMU and the guest's programs.
    pub root: BuildRoot,
    /// The kernel.
    pub kernel: Kernel,
}

/// Prepares the preferred supported series, or `series` (such as `7.2`), or the debug
/// kernel of the preferred one ([`debug::SERIES`]), or one of [`resolve::IMAGES`], for which
/// no module can be built.
///
/// With `update` the archive is asked again which versions are the newest.
///
/// # Errors
///
/// When the host lacks space, tools or network, or a stage fails.
pub fn prepare(series: Option<&str>, update: bool) -> Result<Prepared> {
    if series == Some(debug::SERIES) {
        return debug::prepare(prepare(None, update)?);
    }
    resolve::check_series(series)?;
    let cache = Cache::open()?;
    if !update {
        if let Some(prepared) = load(&cache).and_then(|known| ready(&cache, &known, series)) {
            return Ok(prepared);
        }
    }
    host::check()?;
    let writer = cache.write()?;
    // Another process may have been faster.
    let known = load(&cache);
    host::check_space(cache.dir(), needed(&cache, known.as_ref(), series))?;
    let (resolved, apt) = match known {
        Some(known) if !update && !must_download(&cache, &known, series) => (known, None),
        known => {
            let (fresh, apt) = ask(&cache, &writer)?;
            let resolved = match known {
                Some(known) if !update => merge(&cache, &known, fresh),
                _ => fresh,
            };
            let text = serde_json::to_string_pretty(&resolved).context("format JSON")?;
            writer.file(RESOLVED, &text)?;
            (resolved, Some(apt))
        }
    };
    fill(&cache, &writer, &resolved, series, apt.as_ref())?;
    if update {
        prune(&writer, &resolved)?;
    }
    ready(&cache, &resolved, series).context("an entry of the cache disappeared: run it again")
}

/// What was resolved before; none if it is from another version of this code.
fn load(cache: &Cache) -> Option<Resolved> {
    serde_json::from_str(&fs::read_to_string(cache.path(RESOLVED)).ok()?).ok()
}

/// What the cache has, if it has all.
fn ready(cache: &Cache, resolved: &Resolved, series: Option<&str>) -> Option<Prepared> {
    let spec = resolved.kernel(series).ok()?;
    let entry = |name: &str| cache.has(name).then(|| cache.path(name));
    let root = entry(&resolved.root.entry)?;
    let image = entry(&spec.image_entry())?;
    let tree = match spec.tree_entry(&resolved.root) {
        Some(name) => Some(entry(&name)?),
        None => None,
    };
    Some(Prepared {
        cache: cache.clone(),
        root: BuildRoot::new(root),
        kernel: Kernel::new(spec, &image, tree),
    })
}

/// Whether the entries that are missing need the network.
fn must_download(cache: &Cache, resolved: &Resolved, series: Option<&str>) -> bool {
    let debs = cache.path(DEBS);
    resolved.kernel(series).map_or(true, |spec| {
        !cache.has(&resolved.root.entry)
            || (!is_made(cache, resolved, spec) && !spec.packages().iter().all(|p| p.is_in(&debs)))
    })
}

/// Bytes that the missing entries need; those of all if it is not known which
/// versions they will have.
fn needed(cache: &Cache, known: Option<&Resolved>, series: Option<&str>) -> u64 {
    let mut needed = root::SPACE + kernel::IMAGE_SPACE + kernel::TREE_SPACE;
    let Some(known) = known else {
        return needed;
    };
    if cache.has(&known.root.entry) {
        needed -= root::SPACE;
    }
    if let Ok(spec) = known.kernel(series) {
        if cache.has(&spec.image_entry()) {
            needed -= kernel::IMAGE_SPACE;
        }
        if spec
            .tree_entry(&known.root)
            .is_none_or(|tree| cache.has(&tree))
        {
            needed -= kernel::TREE_SPACE;
        }
    }
    needed
}

/// Whether all entries of the kernel are there.
fn is_made(cache: &Cache, resolved: &Resolved, spec: &KernelSpec) -> bool {
    spec.entries(&resolved.root)
        .iter()
        .all(|entry| cache.has(entry))
}

/// `fresh`, but with what `known` has and is already made.
fn merge(cache: &Cache, known: &Resolved, fresh: Resolved) -> Resolved {
    let mut merged = fresh;
    if cache.has(&known.root.entry) {
        merged.root = known.root.clone();
    }
    for (made, specs) in [
        (&mut merged.kernels, &known.kernels),
        (&mut merged.images, &known.images),
    ] {
        for (series, spec) in specs {
            if is_made(cache, known, spec) {
                made.insert(series.clone(), spec.clone());
            }
        }
    }
    merged
}

fn ask(cache: &Cache, writer: &Writer<'_>) -> Result<(Resolved, Apt)> {
    let apt = Apt::update(&cache.path("apt"), &Mirrors::find()?, &writer.log("apt"))?;
    Ok((Resolved::ask(&apt)?, apt))
}

/// Makes the entries that are missing.
fn fill(
    cache: &Cache,
    writer: &Writer<'_>,
    resolved: &Resolved,
    series: Option<&str>,
    apt: Option<&Apt>,
) -> Result<()> {
    let spec = resolved.kernel(series)?;
    let image = spec.image_entry();
    let apt = || apt.context("the archive was not asked: run `make prepare UPDATE=1`");
    let root = writer.entry(&resolved.root.entry, |dir, log| {
        root::build(&apt()?.root_sources(), writer.hold()?, dir, log)
    })?;
    let root = BuildRoot::new(root);
    if is_made(cache, resolved, spec) {
        return Ok(());
    }
    let debs = cache.path(DEBS);
    fs::create_dir_all(&debs).with_context(|| format!("create {}", debs.display()))?;
    if !spec.packages().iter().all(|p| p.is_in(&debs)) {
        apt()?.download(
            &format!("kernel {}", spec.release),
            &spec.packages(),
            &debs,
            &writer.log("download"),
        )?;
    }
    writer.entry(&image, |dir, log| {
        kernel::unpack_image(spec, &debs, &root, dir, log)
    })?;
    if let Some(tree) = spec.tree_entry(&resolved.root) {
        writer.entry(&tree, |dir, log| {
            kernel::prepare_tree(spec, &debs, &root, dir, log)
        })?;
    }
    for package in spec.packages() {
        // The entries have all of it.
        let _ = fs::remove_file(debs.join(package.file));
    }
    Ok(())
}

/// Removes what an update has replaced.
fn prune(writer: &Writer<'_>, resolved: &Resolved) -> Result<()> {
    let mut wanted = vec![resolved.root.entry.clone()];
    for spec in resolved.kernels.values().chain(resolved.images.values()) {
        wanted.extend(spec.entries(&resolved.root));
    }
    for name in writer.names()? {
        let ours = ["root-", "image-", "tree-", "guest-"]
            .iter()
            .any(|kind| name.starts_with(kind));
        if ours && !wanted.contains(&name) {
            writer.remove(&name)?;
        }
    }
    writer.remove(DEBS)
}

/// The checkout that this program was built in.
///
/// # Errors
///
/// When the current directory is in no checkout.
pub fn checkout() -> Result<PathBuf> {
    let here = std::env::current_dir().context("ask for the current directory")?;
    let found = here.ancestors().find(|dir| is_checkout(dir));
    match found {
        Some(dir) => Ok(dir.to_owned()),
        None => bail!(
            "{} is in no checkout of vramio: change into one",
            here.display()
        ),
    }
}

fn is_checkout(dir: &Path) -> bool {
    ["Cargo.toml", "Kbuild", "qemu/Cargo.toml"]
        .iter()
        .all(|name| dir.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apt::Package;
    use crate::resolve::RootSpec;
    use std::collections::BTreeMap;

    fn cache(name: &str) -> Cache {
        let dir =
            std::env::temp_dir().join(format!("vramio-prepare-{name}-{}", std::process::id()));
        Cache::at(&dir).unwrap()
    }

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            size: 3,
            file: format!("{name}-{version}.deb"),
        }
    }

    fn resolved(root: &str, version: &str) -> Resolved {
        let spec = KernelSpec {
            series: "7.3".into(),
            release: format!("{version}+deb13-amd64"),
            version: version.into(),
            image: vec![package("image", version)],
            headers: Some(package("headers", version)),
            source: Some(package("source", version)),
        };
        Resolved {
            root: RootSpec { entry: root.into() },
            kernels: BTreeMap::from([("7.3".to_owned(), spec)]),
            images: BTreeMap::new(),
        }
    }

    fn make(cache: &Cache, resolved: &Resolved) {
        let spec = resolved.kernel(None).unwrap();
        fs::create_dir(cache.path(&resolved.root.entry)).unwrap();
        for name in spec.entries(&resolved.root) {
            fs::create_dir(cache.path(&name)).unwrap();
        }
    }

    #[test]
    fn all_entries_or_not_ready() {
        let cache = cache("ready");
        let known = resolved("root-a", "7.3.4");
        assert!(ready(&cache, &known, None).is_none());
        make(&cache, &known);
        let prepared = ready(&cache, &known, None).unwrap();
        assert_eq!(prepared.kernel.release, "7.3.4+deb13-amd64");
        assert!(ready(&cache, &known, Some("7.2")).is_none());
        fs::remove_dir(cache.path("root-a")).unwrap();
        assert!(ready(&cache, &known, None).is_none());
        fs::remove_dir_all(cache.dir()).unwrap();
    }

    #[test]
    fn space_is_needed_only_for_what_is_not_there() {
        let cache = cache("space");
        let known = resolved("root-a", "7.3.4");
        let all = root::SPACE + kernel::IMAGE_SPACE + kernel::TREE_SPACE;
        assert_eq!(needed(&cache, None, None), all);
        assert_eq!(needed(&cache, Some(&known), None), all);
        fs::create_dir(cache.path("root-a")).unwrap();
        assert_eq!(needed(&cache, Some(&known), None), all - root::SPACE);
        fs::remove_dir(cache.path("root-a")).unwrap();
        make(&cache, &known);
        assert_eq!(needed(&cache, Some(&known), None), 0);
        fs::remove_dir_all(cache.dir()).unwrap();
    }

    #[test]
    fn the_network_is_needed_only_for_what_is_not_there() {
        let cache = cache("download");
        let known = resolved("root-a", "7.3.4");
        assert!(must_download(&cache, &known, None));
        fs::create_dir(cache.path("root-a")).unwrap();
        assert!(must_download(&cache, &known, None));
        fs::create_dir(cache.path(DEBS)).unwrap();
        for package in known.kernel(None).unwrap().packages() {
            fs::write(cache.path(DEBS).join(package.file), "abc").unwrap();
        }
        assert!(!must_download(&cache, &known, None));
        assert!(must_download(&cache, &known, Some("7.2")));
        fs::remove_dir_all(cache.dir()).unwrap();
    }

    #[test]
    fn what_is_made_stays_until_an_update() {
        let cache = cache("merge");
        let (old, new) = (resolved("root-a", "7.3.4"), resolved("root-b", "7.3.5"));
        assert_eq!(merge(&cache, &old, new.clone()), new);
        make(&cache, &old);
        assert_eq!(merge(&cache, &old, new.clone()), old);
        let writer = cache.write().unwrap();
        make(&cache, &new);
        prune(&writer, &new).unwrap();
        assert!(ready(&cache, &old, None).is_none());
        assert!(ready(&cache, &new, None).is_some());
        fs::remove_dir_all(cache.dir()).unwrap();
    }
}
