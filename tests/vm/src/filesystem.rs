// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file systems of the lane's machines, made when a case first wants one.

use crate::context::Context;
use crate::fleet;
use anyhow::Result;
pub use vramio_qemu::filesystem::FileSystem;

/// Namespace id of the disk that it fills.
pub fn nsid(fs: FileSystem) -> u32 {
    match fs {
        FileSystem::Ext4 => fleet::EXT4,
        FileSystem::Xfs => fleet::XFS,
    }
}

/// Where it is mounted; made and mounted if it is not.
pub fn mounted(fs: FileSystem, context: &Context<'_>) -> Result<String> {
    let target = format!("/mnt/{}", fs.name());
    fs.mount(context.vm, &context.session, nsid(fs), &target)?;
    Ok(target)
}
