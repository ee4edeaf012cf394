// SPDX-License-Identifier: GPL-2.0

//! Reading a device's attributes.
//!
//! Some facts about a block device are in its driver's private structures and in
//! sysfs only. They are read as user space reads them, through a mount of our own,
//! which no mount namespace hides and no caller can forge.

use core::ptr::{self, NonNull};
use kernel::{
    bindings,
    error::from_err_ptr,
    ffi,
    prelude::*,
    str::CString,
    sync::atomic::{Acquire, Atomic, Release},
};

/// The mount, between `Sysfs::new()` and its drop.
static MOUNT: Atomic<usize> = Atomic::new(0);

/// Keeps the mount.
pub(crate) struct Sysfs(NonNull<bindings::vfsmount>);

// SAFETY: A mount may be used and released on any thread.
unsafe impl Send for Sysfs {}
// SAFETY: As above.
unsafe impl Sync for Sysfs {}

impl Sysfs {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: sysfs is built in, so no module goes; null is checked.
        let mount = unsafe {
            let fs = NonNull::new(bindings::get_fs_type(c"sysfs".as_char_ptr())).ok_or(ENODEV)?;
            from_err_ptr(bindings::kern_mount(fs.as_ptr()))?
        };
        let mount = NonNull::new(mount).ok_or(ENODEV)?;
        MOUNT.store(mount.as_ptr() as usize, Release);
        Ok(Self(mount))
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        MOUNT.store(0, Release);
        // SAFETY: Made in `new`; no open file is left that could read.
        unsafe { bindings::kern_unmount(self.0.as_ptr()) };
    }
}

/// Reads an attribute into `buf`, and returns the text without the final newline.
///
/// # Safety
///
/// `dev` is a live device.
pub(crate) unsafe fn read<'a>(
    dev: *mut bindings::device,
    attribute: &CStr,
    buf: &'a mut [u8],
) -> Result<&'a [u8]> {
    let mount = ptr::with_exposed_provenance_mut::<bindings::vfsmount>(MOUNT.load(Acquire));
    // SAFETY: Per the contract.
    let path = unsafe { Path::of(dev)? };
    let name = CString::try_from_fmt(fmt!("{}/{}", path.as_str(), attribute))?;
    // SAFETY: The mount lives as long as open files of ours do. The file is closed here.
    let len = unsafe {
        let root = bindings::path {
            mnt: mount,
            dentry: (*mount).mnt_root,
        };
        let flags = bindings::O_RDONLY as i32;
        let file = from_err_ptr(bindings::file_open_root(
            &root,
            name.as_char_ptr(),
            flags,
            0,
        ))?;
        let mut pos = 0;
        let len = bindings::kernel_read(file, buf.as_mut_ptr().cast(), buf.len(), &mut pos);
        bindings::fput(file);
        len
    };
    let len = usize::try_from(len).map_err(|_| Error::from_errno(len as i32))?;
    Ok(buf[..len].trim_ascii_end())
}

/// A device's path below the root of sysfs.
struct Path(NonNull<ffi::c_char>);

impl Path {
    /// # Safety
    ///
    /// `dev` is a live device.
    unsafe fn of(dev: *mut bindings::device) -> Result<Self> {
        // SAFETY: Per the contract.
        let path =
            unsafe { bindings::kobject_get_path(&raw const (*dev).kobj, bindings::GFP_KERNEL) };
        NonNull::new(path).map(Self).ok_or(ENOMEM)
    }

    /// Without the slash at its beginning.
    fn as_str(&self) -> &str {
        // SAFETY: A string that we own.
        let path = unsafe { CStr::from_char_ptr(self.0.as_ptr()) };
        path.to_str().unwrap_or("").trim_start_matches('/')
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        // SAFETY: We own it; it was allocated with kmalloc().
        unsafe { bindings::kfree(self.0.as_ptr().cast()) };
    }
}

/// The driver's name of an NVMe controller's transport, as its device says.
///
/// # Safety
///
/// `disk` is a live device of an NVMe disk.
pub(crate) unsafe fn nvme_transport<'a>(
    disk: *mut bindings::device,
    buf: &'a mut [u8],
) -> Option<&'a [u8]> {
    // SAFETY: A live device keeps its parent.
    let controller = NonNull::new(unsafe { (*disk).parent })?;
    // SAFETY: As above.
    unsafe { read(controller.as_ptr(), c"transport", buf).ok() }
}

/// Whether an md array is of a level that only chooses the place of the data.
///
/// # Safety
///
/// `disk` is a live device of an md array.
pub(crate) unsafe fn md_passes_pages(disk: *mut bindings::device) -> bool {
    let mut buf = [0; 16];
    // SAFETY: Per the contract.
    let level = unsafe { read(disk, c"md/level", &mut buf) };
    matches!(level, Ok(b"raid0" | b"raid1" | b"raid10"))
}

/// Whether an md array has write-behind, by which it copies what it writes. An array
/// whose attribute cannot be read counts as one that has; one without a bitmap has
/// no attribute.
///
/// # Safety
///
/// `disk` is a live device of an md array.
pub(crate) unsafe fn md_write_behind(disk: *mut bindings::device) -> bool {
    // SAFETY: Per the contract.
    match unsafe { read(disk, c"md/bitmap/backlog", &mut [0; 24]) } {
        Ok(text) => text != b"0",
        Err(e) => e != ENOENT,
    }
}
