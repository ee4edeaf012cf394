// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file systems of the lane's machines, made when a case first wants one.

use crate::context::Context;
use crate::fleet;
use anyhow::Result;
use vramio_guest::file::FilePlan;
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

/// Makes a file of a file system, unless an earlier case left the very same on the disk: a
/// large one takes the guest a while.
pub fn made(fs: FileSystem, context: &Context<'_>, plan: &FilePlan) -> Result<()> {
    if let Ok(extents) = context.session.extents(&plan.path) {
        let image = context.vm.image(nsid(fs))?;
        if image.read_extents(&extents, plan.size)? == plan.content(0, plan.size) {
            return Ok(());
        }
    }
    Ok(context.session.make(plan)?)
}
