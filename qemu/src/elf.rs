// SPDX-License-Identifier: MIT OR Apache-2.0

//! What programs, libraries and kernel modules say that they need.

use anyhow::{Context, Result};
use goblin::elf::Elf;

/// The shared objects that a program or library needs: its loader, as a path,
/// and the names of its libraries. A static program needs nothing.
///
/// # Errors
///
/// When `bytes` is no ELF file.
pub fn needed(bytes: &[u8]) -> Result<(Option<String>, Vec<String>)> {
    let elf = Elf::parse(bytes).context("read the ELF headers")?;
    let loader = elf.interpreter.map(str::to_owned);
    let libraries = elf.libraries.iter().map(|&name| name.to_owned()).collect();
    Ok((loader, libraries))
}

/// The modules that a kernel module needs, from its `.modinfo`, with `_` for `-`.
///
/// # Errors
///
/// When `bytes` is no kernel module.
pub fn depends(bytes: &[u8]) -> Result<Vec<String>> {
    let elf = Elf::parse(bytes).context("read the ELF headers")?;
    let range = elf
        .section_headers
        .iter()
        .find(|header| elf.shdr_strtab.get_at(header.sh_name) == Some(".modinfo"))
        .and_then(|header| header.file_range())
        .context("the file has no .modinfo: it is no kernel module")?;
    let modinfo = bytes.get(range).context(".modinfo leaves the file")?;
    Ok(modinfo
        .split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix("depends="))
        .flat_map(|list| list.split(','))
        .filter(|name| !name.is_empty())
        .map(module_name)
        .collect())
}

/// A module's name as the kernel prints it: `dm-mod` is `dm_mod`.
pub fn module_name(name: &str) -> String {
    name.replace('-', "_")
}
