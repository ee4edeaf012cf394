// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where Debian's archive is: from the host's apt, or from `VRAMIO_MIRROR`.

use crate::process;
use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::process::Command;

/// The release that the build root and the kernels come from.
pub const RELEASE: &str = "trixie";

/// Signs the archive; the package debian-archive-keyring has it.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The addresses of Debian's archives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors {
    /// Candidates for the main archive, the likeliest first.
    pub archive: Vec<String>,
    /// The security archive, if one is known.
    pub security: Option<String>,
}

impl Mirrors {
    /// Finds the mirrors.
    ///
    /// # Errors
    ///
    /// When this is not a Debian host and `VRAMIO_MIRROR` is not set.
    pub fn find() -> Result<Self> {
        let chosen = std::env::var("VRAMIO_MIRROR").unwrap_or_default();
        if let Some(mirrors) = Self::from_variable(&chosen) {
            return Ok(mirrors);
        }
        let os = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let codename = debian_codename(&os).context(
            "this host is not Debian, so its apt does not know Debian's archive: \
             set VRAMIO_MIRROR to the address of a Debian mirror",
        )?;
        let uris = process::output(
            Command::new("apt-get")
                .args(["update", "--print-uris"])
                .env("LC_ALL", "C"),
        )
        .context("ask apt for its sources; or set VRAMIO_MIRROR to a Debian mirror")?;
        Self::from_uris(&uris, &codename)
    }

    /// The main archive, and after a space the security archive.
    fn from_variable(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace().map(trim);
        Some(Self {
            archive: vec![words.next()?],
            security: words.next(),
        })
    }

    /// From the lines of `apt-get update --print-uris` on the Debian release
    /// `codename`.
    fn from_uris(text: &str, codename: &str) -> Result<Self> {
        let mut suites: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut order = Vec::new();
        for line in text.lines() {
            let Some((base, suite)) = line
                .strip_prefix('\'')
                .and_then(|line| line.split_once('\''))
                .and_then(|(uri, _)| uri.strip_suffix("/InRelease"))
                .and_then(|uri| uri.rsplit_once("/dists/"))
            else {
                continue;
            };
            let base = trim(base);
            if !order.contains(&base) {
                order.push(base.clone());
            }
            suites.entry(base).or_default().push(suite);
        }
        let main = |suite: &str| {
            [
                codename,
                "stable",
                "oldstable",
                "testing",
                "sid",
                "unstable",
            ]
            .contains(&suite)
        };
        let has = |base: &String, wanted: &dyn Fn(&str) -> bool| {
            suites
                .get(base)
                .is_some_and(|suites| suites.iter().any(|s| wanted(s)))
        };
        let mut archive: Vec<String> = order
            .iter()
            .filter(|base| has(base, &main))
            .cloned()
            .collect();
        // Other vendors use the code name too, but only Debian has updates of it.
        archive.sort_by_key(|base| !has(base, &|suite| suite.ends_with("-updates")));
        let security = order
            .iter()
            .find(|base| {
                has(base, &|s| {
                    s.ends_with("-security") || s.ends_with("/updates")
                })
            })
            .cloned();
        if archive.is_empty() {
            bail!(
                "apt's sources name no archive of Debian {codename}: \
                 set VRAMIO_MIRROR to the address of a Debian mirror"
            );
        }
        Ok(Self { archive, security })
    }

    /// The sources of the release, for one main `archive`; with backports for
    /// kernels, without for the build root (their rustc is not the kernel's).
    pub fn sources(&self, archive: &str, backports: bool) -> Vec<String> {
        let line = |uri: &str, suite: &str| format!("deb [signed-by={KEYRING}] {uri} {suite} main");
        let mut lines = vec![
            line(archive, RELEASE),
            line(archive, &format!("{RELEASE}-updates")),
        ];
        if backports {
            lines.push(line(archive, &format!("{RELEASE}-backports")));
        }
        if let Some(security) = &self.security {
            lines.push(line(security, &format!("{RELEASE}-security")));
        }
        lines
    }
}

fn trim(uri: &str) -> String {
    uri.trim_end_matches('/').to_owned()
}

/// The code name in an `os-release` file, if it is Debian's own.
fn debian_codename(os_release: &str) -> Option<String> {
    let field = |name: &str| {
        os_release.lines().find_map(|line| {
            let value = line.strip_prefix(name)?.strip_prefix('=')?;
            Some(value.trim_matches(['"', '\'']).to_owned())
        })
    };
    if field("ID")? != "debian" {
        return None;
    }
    // Testing and unstable may have none.
    Some(field("VERSION_CODENAME").unwrap_or_else(|| "sid".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const URIS: &str = "\
'https://apt.vendor.example/linux/debian/dists/bookworm/InRelease' a 0 \n\
'http://mirror.example/debian/dists/bookworm/InRelease' b 0 \n\
'http://mirror.example/debian/dists/bookworm-updates/InRelease' c 0 \n\
'http://mirror.example/debian-security/dists/bookworm-security/InRelease' d 0 \n\
'https://flat.example/repo/InRelease' e 0 \n";

    #[test]
    fn apt_sources_give_archive_and_security() {
        let mirrors = Mirrors::from_uris(URIS, "bookworm").unwrap();
        assert_eq!(
            mirrors.archive,
            [
                "http://mirror.example/debian",
                "https://apt.vendor.example/linux/debian"
            ]
        );
        assert_eq!(
            mirrors.security.as_deref(),
            Some("http://mirror.example/debian-security")
        );
    }

    #[test]
    fn mirror_lists_keep_their_method() {
        let uris = "'mirror+file:/etc/apt/mirrors/debian.list/dists/trixie/InRelease' x 0";
        let mirrors = Mirrors::from_uris(uris, "trixie").unwrap();
        assert_eq!(
            mirrors.archive,
            ["mirror+file:/etc/apt/mirrors/debian.list"]
        );
        assert_eq!(mirrors.security, None);
    }

    #[test]
    fn no_debian_in_the_sources_is_an_error_with_the_fix() {
        let uris = "'https://apt.vendor.example/x/dists/stretch/InRelease' x 0";
        let error = Mirrors::from_uris(uris, "trixie").unwrap_err().to_string();
        assert!(error.contains("VRAMIO_MIRROR"), "{error}");
    }

    #[test]
    fn the_variable_names_one_or_two_archives() {
        assert_eq!(Mirrors::from_variable("  "), None);
        let one = Mirrors::from_variable("http://m.example/debian/").unwrap();
        assert_eq!(
            (one.archive, one.security),
            (vec!["http://m.example/debian".to_owned()], None)
        );
        let two = Mirrors::from_variable("http://m.example/d http://m.example/s").unwrap();
        assert_eq!(two.security.as_deref(), Some("http://m.example/s"));
    }

    #[test]
    fn only_debian_itself_counts() {
        assert_eq!(
            debian_codename("ID=debian\nVERSION_CODENAME=trixie\n").as_deref(),
            Some("trixie")
        );
        assert_eq!(debian_codename("ID=debian\n").as_deref(), Some("sid"));
        assert_eq!(
            debian_codename("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n"),
            None
        );
        assert_eq!(debian_codename(""), None);
    }

    #[test]
    fn only_kernels_come_from_backports() {
        let mirrors = Mirrors::from_uris(URIS, "bookworm").unwrap();
        let lines = mirrors.sources("http://m.example/debian", true).join("\n");
        assert!(lines.contains("trixie-backports main"), "{lines}");
        assert!(
            lines.contains("debian-security trixie-security main"),
            "{lines}"
        );
        let lines = mirrors.sources("http://m.example/debian", false).join("\n");
        assert!(!lines.contains("backports"), "{lines}");
    }
}
