// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which versions a name stands for, from the archive's metadata.
//!
//! The archive drops old builds, so nothing here is fixed. What was resolved is
//! kept in the cache and stays until an update is asked for.

use crate::apt::{Apt, Package};
use crate::root;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The series that the module supports, the preferred one first.
pub const SERIES: &[&str] = &["7.3", "7.2"];

/// The series that are booted as they are, without our module: those that show what goes
/// direct without it.
pub const IMAGES: &[&str] = &["6.18"];

/// Changes when the way kernels are unpacked and prepared does.
const RECIPE: u32 = 1;

/// Everything that was resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// The build root.
    pub root: RootSpec,
    /// The kernels by series.
    pub kernels: BTreeMap<String, KernelSpec>,
    /// Those of [`IMAGES`].
    #[serde(default)]
    pub images: BTreeMap<String, KernelSpec>,
}

/// A version of the build root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootSpec {
    /// Its name in the cache: it changes with the recipe and the packages.
    pub entry: String,
}

/// A version of a stock kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSpec {
    /// Upstream series, such as `7.3`.
    pub series: String,
    /// What `uname -r` says.
    pub release: String,
    /// Debian's version, the same for all packages below.
    pub version: String,
    /// The packages with image, modules and their indexes.
    pub image: Vec<Package>,
    /// The package with `.config` and `Module.symvers`; none for [`IMAGES`].
    pub headers: Option<Package>,
    /// The package with the source; none for [`IMAGES`].
    pub source: Option<Package>,
}

impl KernelSpec {
    /// The name of the entry with image and modules.
    pub fn image_entry(&self) -> String {
        format!("image-{}", self.id())
    }

    /// The name of the entry with the tree that `root`'s compiler prepared, if modules
    /// are built for it.
    pub fn tree_entry(&self, root: &RootSpec) -> Option<String> {
        self.source
            .as_ref()
            .map(|_| format!("tree-{}-{}", self.id(), root.entry))
    }

    /// The names of all its entries.
    pub fn entries(&self, root: &RootSpec) -> Vec<String> {
        let tree = self.tree_entry(root);
        std::iter::once(self.image_entry()).chain(tree).collect()
    }

    /// All its packages.
    pub fn packages(&self) -> Vec<Package> {
        let mut all = self.image.clone();
        all.extend(self.headers.clone());
        all.extend(self.source.clone());
        all
    }

    /// Release and version, fit for paths that make and shells see.
    fn id(&self) -> String {
        let version = self.version.replace('~', "-");
        format!("{}-{version}-r{RECIPE}", self.release)
    }
}

impl Resolved {
    /// Asks `apt`'s metadata for the build root, all supported series and [`IMAGES`].
    ///
    /// # Errors
    ///
    /// When it has no supported kernel or lacks a package of the build root.
    pub fn ask(apt: &Apt) -> Result<Self> {
        let root = RootSpec {
            entry: root::entry_name(&apt.candidates(root::PACKAGES)?),
        };
        let mut kernels = BTreeMap::new();
        let mut reasons = Vec::new();
        for series in SERIES {
            match kernel(apt, series) {
                Ok(spec) => drop(kernels.insert((*series).to_owned(), spec)),
                Err(reason) => reasons.push(format!("{reason:#}")),
            }
        }
        if kernels.is_empty() {
            bail!(
                "the archive has no supported kernel: {}",
                reasons.join("; ")
            );
        }
        let mut images = BTreeMap::new();
        for series in IMAGES {
            // The archive drops old series; then their tests say so.
            if let Some(spec) = image(apt, series)? {
                images.insert((*series).to_owned(), spec);
            }
        }
        Ok(Self {
            root,
            kernels,
            images,
        })
    }

    /// The kernel of `series`, or of the preferred one.
    ///
    /// # Errors
    ///
    /// When the series is not supported or the archive does not have it.
    pub fn kernel(&self, series: Option<&str>) -> Result<&KernelSpec> {
        check_series(series)?;
        let wanted: Vec<&str> = series.map_or_else(|| SERIES.to_vec(), |series| vec![series]);
        wanted
            .iter()
            .find_map(|series| self.kernels.get(*series).or(self.images.get(*series)))
            .with_context(|| {
                format!(
                    "the archive has no complete kernel {}: a stock image with headers and \
                     source of the same version",
                    wanted.join(" or ")
                )
            })
    }
}

/// Checks that `series` is one that the module supports, or one of [`IMAGES`].
///
/// # Errors
///
/// When it is not.
pub fn check_series(series: Option<&str>) -> Result<()> {
    match series {
        Some(series) if !SERIES.contains(&series) && !IMAGES.contains(&series) => bail!(
            "the kernel series {series} is not supported; these are: {}, and without modules \
             {}",
            SERIES.join(", "),
            IMAGES.join(", ")
        ),
        _ => Ok(()),
    }
}

/// The newest stock kernel of `series` with everything of the same version.
fn kernel(apt: &Apt, series: &str) -> Result<KernelSpec> {
    newest(&packages(apt, series)?, series)
        .with_context(|| format!("no complete stock kernel {series} in the archive"))
}

/// The newest stock image of `series`, if there is one.
fn image(apt: &Apt, series: &str) -> Result<Option<KernelSpec>> {
    Ok(newest_image(&packages(apt, series)?, series))
}

/// The packages of all stock kernels of `series`.
fn packages(apt: &Apt, series: &str) -> Result<Vec<Package>> {
    let images: Vec<String> = apt
        .names(&format!("linux-image-{series}."))?
        .into_iter()
        .filter(|name| patch_level(name, series).is_some())
        .collect();
    let mut names = vec![format!("linux-source-{series}")];
    for image in &images {
        let release = image.trim_start_matches("linux-image-");
        names.push(image.clone());
        for kind in ["headers", "base", "binary", "modules"] {
            names.push(format!("linux-{kind}-{release}"));
        }
    }
    apt.show(&names)
}

/// The newest complete kernel of `series` among `packages`.
fn newest(packages: &[Package], series: &str) -> Option<KernelSpec> {
    images(packages, series).find(|spec| spec.headers.is_some() && spec.source.is_some())
}

/// The newest image of `series` among `packages`, alone.
fn newest_image(packages: &[Package], series: &str) -> Option<KernelSpec> {
    let spec = images(packages, series).next()?;
    Some(KernelSpec {
        headers: None,
        source: None,
        ..spec
    })
}

/// The kernels of `series` among `packages`, the newest first.
fn images<'a>(packages: &'a [Package], series: &'a str) -> impl Iterator<Item = KernelSpec> + 'a {
    let find = move |name: &str, version: &str| {
        packages
            .iter()
            .find(|p| p.name == name && p.version == version)
            .cloned()
    };
    let mut images: Vec<_> = packages
        .iter()
        .filter_map(|p| Some((patch_level(&p.name, series)?, p)))
        .collect();
    images.sort_by(|(a, p), (b, q)| b.cmp(a).then_with(|| q.version.cmp(&p.version)));
    images.into_iter().map(move |(_, image)| {
        let release = image.name.trim_start_matches("linux-image-");
        let part = |kind: &str| find(&format!("linux-{kind}-{release}"), &image.version);
        // Newer packaging leaves linux-image empty.
        let mut files = match (part("binary"), part("modules")) {
            (Some(binary), Some(modules)) => vec![binary, modules],
            _ => vec![image.clone()],
        };
        files.extend(part("base"));
        KernelSpec {
            series: series.to_owned(),
            release: release.to_owned(),
            version: image.version.clone(),
            headers: part("headers"),
            source: find(&format!("linux-source-{series}"), &image.version),
            image: files,
        }
    })
}

/// Patch level and Debian ABI of the stock image package `name`, such as
/// `linux-image-7.3.4+deb13-amd64`; none for real-time, cloud, debug and
/// unsigned images and for other series.
fn patch_level(name: &str, series: &str) -> Option<(u32, u32)> {
    let rest = name
        .strip_prefix("linux-image-")?
        .strip_prefix(series)?
        .strip_prefix('.')?;
    let (patch, abi) = rest.strip_suffix("-amd64")?.split_once("+deb13")?;
    let abi = match abi {
        "" => 0,
        abi => abi.strip_prefix('.')?.parse().ok()?,
    };
    Some((patch.parse().ok()?, abi))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            size: 1,
            file: format!("{name}_{version}_amd64.deb"),
        }
    }

    fn split(release: &str, version: &str) -> Vec<Package> {
        ["image", "headers", "base", "binary", "modules"]
            .map(|kind| package(&format!("linux-{kind}-{release}"), version))
            .to_vec()
    }

    #[test]
    fn only_stock_images_of_the_series_count() {
        let level = |name| patch_level(name, "7.3");
        assert_eq!(level("linux-image-7.3.4+deb13-amd64"), Some((4, 0)));
        assert_eq!(level("linux-image-7.3.11+deb13.1-amd64"), Some((11, 1)));
        for name in [
            "linux-image-7.3.4+deb13-rt-amd64",
            "linux-image-7.3.4+deb13-cloud-amd64",
            "linux-image-7.3.4+deb13-amd64-dbg",
            "linux-image-7.3.4+deb13-amd64-unsigned",
            "linux-image-7.3.4+deb14-amd64",
            "linux-image-7.30.4+deb13-amd64",
            "linux-image-amd64",
        ] {
            assert_eq!(level(name), None, "{name}");
        }
    }

    #[test]
    fn the_newest_is_by_number_not_by_text() {
        let mut packages = split("7.2.9+deb13-amd64", "7.2.9-1");
        packages.extend(split("7.2.12+deb13-amd64", "7.2.12-1"));
        packages.push(package("linux-source-7.2", "7.2.9-1"));
        packages.push(package("linux-source-7.2", "7.2.12-1"));
        let spec = newest(&packages, "7.2").unwrap();
        assert_eq!(spec.release, "7.2.12+deb13-amd64");
        assert_eq!(spec.image.len(), 3);
        assert_eq!(spec.source.map(|p| p.version).as_deref(), Some("7.2.12-1"));
    }

    #[test]
    fn an_image_alone_needs_no_source() {
        let mut packages = split("6.18.9+deb13-amd64", "6.18.9-1");
        packages.extend(split("6.18.15+deb13-amd64", "6.18.15-1"));
        assert_eq!(newest(&packages, "6.18"), None);
        let spec = newest_image(&packages, "6.18").unwrap();
        assert_eq!(spec.release, "6.18.15+deb13-amd64");
        assert_eq!(spec.packages(), spec.image);
        let root = RootSpec {
            entry: "root-x".into(),
        };
        assert_eq!(spec.entries(&root), [spec.image_entry()]);
        assert_eq!(newest_image(&packages, "6.17"), None);
    }

    #[test]
    fn what_an_older_harness_resolved_is_read() {
        let old = r#"{"root":{"entry":"root-x"},"kernels":{"7.3":{"series":"7.3","release":"r",
            "version":"v","image":[],
            "headers":{"name":"h","version":"v","size":1,"file":"h.deb"},
            "source":{"name":"s","version":"v","size":1,"file":"s.deb"}}}}"#;
        let resolved: Resolved = serde_json::from_str(old).unwrap();
        assert!(resolved.kernel(Some("7.3")).unwrap().source.is_some());
        assert!(resolved.kernel(Some("6.18")).is_err());
    }

    #[test]
    fn without_source_or_headers_the_next_older_is_taken() {
        let mut packages = split("7.2.9+deb13-amd64", "7.2.9-1");
        packages.extend(split("7.2.12+deb13-amd64", "7.2.12-1"));
        packages.push(package("linux-source-7.2", "7.2.9-1"));
        assert_eq!(newest(&packages, "7.2").unwrap().version, "7.2.9-1");
        packages.retain(|p| !p.name.starts_with("linux-headers-7.2.9"));
        assert_eq!(newest(&packages, "7.2"), None);
    }

    #[test]
    fn older_packaging_has_one_image_package() {
        let mut packages = split("7.2.9+deb13-amd64", "7.2.9-1");
        packages.retain(|p| !p.name.contains("binary") && !p.name.contains("modules"));
        packages.push(package("linux-source-7.2", "7.2.9-1"));
        let spec = newest(&packages, "7.2").unwrap();
        assert_eq!(spec.image[0].name, "linux-image-7.2.9+deb13-amd64");
        assert_eq!(spec.packages().len(), 4);
    }

    #[test]
    fn the_preferred_series_is_the_first_that_is_there() {
        let mut packages = split("7.2.9+deb13-amd64", "7.2.9-1~bpo13+1");
        packages.push(package("linux-source-7.2", "7.2.9-1~bpo13+1"));
        let spec = newest(&packages, "7.2").unwrap();
        let root = RootSpec {
            entry: "root-x".into(),
        };
        assert_eq!(
            spec.tree_entry(&root).as_deref(),
            Some("tree-7.2.9+deb13-amd64-7.2.9-1-bpo13+1-r1-root-x")
        );
        let resolved = Resolved {
            root,
            kernels: BTreeMap::from([("7.2".to_owned(), spec)]),
            images: BTreeMap::new(),
        };
        assert_eq!(resolved.kernel(None).unwrap().series, "7.2");
        assert!(resolved
            .kernel(Some("7.3"))
            .unwrap_err()
            .to_string()
            .contains("no complete"));
        assert!(resolved
            .kernel(Some("6.1"))
            .unwrap_err()
            .to_string()
            .contains("not supported"));
    }
}
