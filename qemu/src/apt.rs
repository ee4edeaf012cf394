// SPDX-License-Identifier: MIT OR Apache-2.0

//! The host's apt with lists, state and sources of our own.
//!
//! Nothing of the host's package state is read or changed. Of its
//! configuration only the network settings (proxies, certificates, logins) are
//! kept.

use crate::mirror::{Mirrors, KEYRING};
use crate::process;
use crate::progress::Step;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A version of a binary package in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The size of its file in bytes.
    pub size: u64,
    /// The base name of its file in the pool.
    pub file: String,
}

/// A private apt.
#[derive(Debug)]
pub struct Apt {
    config: PathBuf,
    mirrors: Mirrors,
    archive: String,
}

impl Apt {
    /// Sets apt up in `dir` and downloads the metadata, from the first mirror
    /// that has it.
    ///
    /// # Errors
    ///
    /// When no mirror can be reached or verified.
    pub fn update(dir: &Path, mirrors: &Mirrors, log: &Path) -> Result<Self> {
        let mut failure = None;
        for archive in &mirrors.archive {
            let apt = Self::set_up(dir, mirrors, archive)?;
            let step = Step::start("package lists");
            let mut command = apt.command("apt-get");
            match process::run(&step, command.args(["-q", "update", "--error-on=any"]), log) {
                Ok(()) => {
                    step.done();
                    return Ok(apt);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure
            .map_or_else(|| bail!("no mirror is known: set VRAMIO_MIRROR"), Err)
            .context(
                "cannot read the archive's package lists; \
             check the network and apt's proxy, or set VRAMIO_MIRROR to another Debian mirror",
            )
    }

    fn set_up(dir: &Path, mirrors: &Mirrors, archive: &str) -> Result<Self> {
        let config = dir.join("apt.conf");
        let make = || -> Result<()> {
            for name in ["etc", "lists/partial", "cache/archives/partial"] {
                fs::create_dir_all(dir.join(name))?;
            }
            fs::write(dir.join("status"), "")?;
            let sources = mirrors.sources(archive, true).join("\n") + "\n";
            fs::write(dir.join("etc/sources.list"), sources)?;
            fs::write(&config, configuration(dir)? + &network()?)?;
            Ok(())
        };
        make().with_context(|| format!("set up apt in {}", dir.display()))?;
        Ok(Self {
            config,
            mirrors: mirrors.clone(),
            archive: archive.to_owned(),
        })
    }

    /// The sources for the build root.
    pub fn root_sources(&self) -> Vec<String> {
        self.mirrors.sources(&self.archive, false)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config).env("LC_ALL", "C");
        process::die_with_parent(&mut command);
        command
    }

    /// The names of all packages that begin with `prefix`.
    ///
    /// # Errors
    ///
    /// When apt fails.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let text = process::output(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// All versions of the packages `names`; a name without any is left out.
    ///
    /// # Errors
    ///
    /// When apt fails.
    pub fn show(&self, names: &[String]) -> Result<Vec<Package>> {
        // Asked for nothing but unknown names, apt-cache fails.
        let known = names
            .iter()
            .map(|name| self.names(name))
            .collect::<Result<Vec<_>>>()?
            .concat();
        let names: Vec<_> = names.iter().filter(|name| known.contains(name)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let text = process::output(self.command("apt-cache").arg("show").args(names))?;
        stanzas(&text)
    }

    /// The versions that apt would install in the build root.
    ///
    /// # Errors
    ///
    /// When the archive lacks one of `names`.
    pub fn candidates(&self, names: &[&str]) -> Result<Vec<(String, String)>> {
        let text = process::output(self.command("apt-cache").arg("policy").args(names))?;
        let found = candidates(&text);
        for name in names {
            if !found.iter().any(|(found, _)| found == name) {
                bail!("the archive has no package {name}, which the build root needs");
            }
        }
        Ok(found)
    }

    /// Downloads `packages`, which make `what`, into `dir`; those that are there
    /// are kept.
    ///
    /// # Errors
    ///
    /// When the archive does not have them any more or the network fails.
    pub fn download(&self, what: &str, packages: &[Package], dir: &Path, log: &Path) -> Result<()> {
        let missing: Vec<_> = packages.iter().filter(|p| !p.is_in(dir)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        // apt checks the hash before a file gets its name in `dir`.
        let fresh = dir.join("fetch");
        fs::create_dir_all(&fresh).with_context(|| format!("create {}", fresh.display()))?;
        let step = Step::start(&format!("download of {what}"));
        step.expect_bytes(missing.iter().map(|p| p.size).sum());
        for package in &missing {
            let before = done_bytes(&missing, dir);
            let mut command = self.command("apt-get");
            command
                .args(["-q", "download"])
                .arg(format!("{}={}", package.name, package.version))
                .current_dir(&fresh);
            process::watch(&step, &mut command, log, || {
                step.at_bytes(before + directory_bytes(&fresh));
            })
            .with_context(|| {
                format!(
                    "cannot download {} {}; check the network and apt's proxy, \
                     or set VRAMIO_MIRROR to another Debian mirror",
                    package.name, package.version
                )
            })?;
            let (from, to) = (fresh.join(package.download_name()), dir.join(&package.file));
            fs::rename(&from, &to)
                .with_context(|| format!("rename {} to {}", from.display(), to.display()))?;
        }
        step.done();
        Ok(())
    }
}

impl Package {
    /// Whether its file is in `dir`.
    pub fn is_in(&self, dir: &Path) -> bool {
        fs::metadata(dir.join(&self.file)).is_ok_and(|m| m.len() == self.size)
    }

    /// What `apt-get download` calls its file: the colon of an epoch is
    /// escaped there, while the pool leaves the epoch out.
    fn download_name(&self) -> String {
        let architecture = self.file.rsplit('_').next().unwrap_or_default();
        format!(
            "{}_{}_{architecture}",
            self.name,
            self.version.replace(':', "%3a")
        )
    }
}

fn done_bytes(packages: &[&Package], dir: &Path) -> u64 {
    packages
        .iter()
        .filter(|p| p.is_in(dir))
        .map(|p| p.size)
        .sum()
}

/// The size of all files directly in `dir` and in apt's `partial` beside them.
fn directory_bytes(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files
        .filter_map(|f| f.metadata().ok())
        .filter(fs::Metadata::is_file)
        .map(|m| m.len())
        .sum()
}

/// The private part of the configuration.
fn configuration(dir: &Path) -> Result<String> {
    let dir = dir
        .to_str()
        .context("the cache's path is not UTF-8: set VRAMIO_CACHE")?;
    if !Path::new(KEYRING).exists() {
        bail!("{KEYRING} is missing: install the package debian-archive-keyring");
    }
    Ok(format!(
        r#"Dir::State "{dir}";
Dir::State::Lists "{dir}/lists";
Dir::State::status "{dir}/status";
Dir::Cache "{dir}/cache";
Dir::Etc "{dir}/etc";
Dir::Etc::SourceList "{dir}/etc/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "root";
Acquire::Languages "none";
"#
    ))
}

/// The network part of the host's configuration.
///
/// # Errors
///
/// When apt is not there.
pub fn network() -> Result<String> {
    let text = process::output(Command::new("apt-config").arg("dump").env("LC_ALL", "C"))?;
    Ok(network_lines(&text))
}

fn network_lines(dump: &str) -> String {
    let keep = [
        "http", "https", "Check-", "Retries", "Force", "AllowTLS", "SSL",
    ];
    dump.lines()
        .filter(|line| {
            line.strip_prefix("Acquire::")
                .is_some_and(|rest| keep.iter().any(|key| rest.starts_with(key)))
        })
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Parses the output of `apt-cache show`.
fn stanzas(text: &str) -> Result<Vec<Package>> {
    let mut packages = Vec::new();
    for stanza in text.split("\n\n").filter(|s| !s.trim().is_empty()) {
        let field = |name: &str| {
            stanza
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                .with_context(|| format!("apt-cache show: no field {name} in a stanza"))
        };
        let path = field("Filename")?;
        packages.push(Package {
            name: field("Package")?.to_owned(),
            version: field("Version")?.to_owned(),
            size: field("Size")?
                .parse()
                .context("apt-cache show: the field Size")?,
            file: path.rsplit('/').next().unwrap_or(path).to_owned(),
        });
    }
    Ok(packages)
}

/// Parses the output of `apt-cache policy`.
fn candidates(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut name = None;
    for line in text.lines() {
        if let Some(header) = line.strip_suffix(':').filter(|h| !h.starts_with(' ')) {
            name = Some(header.to_owned());
        } else if let Some(version) = line.strip_prefix("  Candidate: ") {
            if version != "(none)" {
                found.extend(name.take().map(|name| (name, version.to_owned())));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stanzas_give_all_versions() {
        let text = "\
Package: linux-source-7.2
Version: 7.2.12-1~bpo13+1
Depends: xz-utils
Description: Linux
 Version: not this one
Filename: pool/main/l/linux/linux-source-7.2_7.2.12-1~bpo13+1_all.deb
Size: 164744800

Package: linux-source-7.2
Version: 7.2.11-1~bpo13+1
Filename: pool/main/l/linux/linux-source-7.2_7.2.11-1~bpo13+1_all.deb
Size: 5

";
        let packages = stanzas(text).unwrap();
        assert_eq!(packages.len(), 2);
        assert_eq!(packages[0].version, "7.2.12-1~bpo13+1");
        assert_eq!(packages[0].size, 164_744_800);
        assert_eq!(
            packages[0].file,
            "linux-source-7.2_7.2.12-1~bpo13+1_all.deb"
        );
        assert_eq!(packages[0].download_name(), packages[0].file);
        assert!(stanzas("Package: x\n").is_err());
    }

    #[test]
    fn an_epoch_is_escaped_in_downloads() {
        let package = Package {
            name: "q".into(),
            version: "1:10.0".into(),
            size: 1,
            file: "q_10.0_amd64.deb".into(),
        };
        assert_eq!(package.download_name(), "q_1%3a10.0_amd64.deb");
    }

    #[test]
    fn a_candidate_is_not_another_version() {
        let text = "\
rustc:
  Installed: (none)
  Candidate: 1.85.1+dfsg1-1+deb13u1
  Version table:
     1.97.1+dfsg1-1~bpo13+1 100
        100 http://m.example/debian trixie-backports/main amd64 Packages
nothing:
  Installed: (none)
  Candidate: (none)
";
        assert_eq!(
            candidates(text),
            [("rustc".to_owned(), "1.85.1+dfsg1-1+deb13u1".to_owned())]
        );
    }

    #[test]
    fn only_network_settings_are_kept() {
        let dump = "\
Acquire::http::Proxy \"http://proxy.example:3128\";
Acquire::Check-Valid-Until \"false\";
Acquire::Languages:: \"de\";
Acquire::GzipIndexes \"true\";
DPkg::Post-Invoke:: \"rm x\";
";
        assert_eq!(
            network_lines(dump),
            "Acquire::http::Proxy \"http://proxy.example:3128\";\nAcquire::Check-Valid-Until \"false\";\n"
        );
    }
}
