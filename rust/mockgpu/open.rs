// SPDX-License-Identifier: GPL-2.0

//! An open file of `/dev/mockgpuN`.

use crate::{
    abi::{
        MockgpuAlloc, MockgpuExport, MockgpuFree, MockgpuInfo, MockgpuMove, MockgpuPlace,
        MOCKGPU_ALLOC_SCATTERED, MOCKGPU_EXPORT_IOMMU, MOCKGPU_FREE_WAIT, MOCKGPU_IOC_ALLOC,
        MOCKGPU_IOC_EXPORT, MOCKGPU_IOC_FREE, MOCKGPU_IOC_INFO, MOCKGPU_IOC_MOVE,
        MOCKGPU_IOC_PLACE, MOCKGPU_MOVE_FORCE,
    },
    export::{self, Kind, Terms},
    memory::Memory,
    node::{Node, Operations},
};
use core::mem::size_of;
use kernel::{
    bindings,
    error::{from_err_ptr, to_result},
    fs::File,
    miscdevice::{MiscDevice, MiscDeviceRegistration},
    mm::virt::VmaNew,
    prelude::*,
    sync::{Arc, ArcBorrow},
    transmute::{AsBytes, FromBytes},
    uaccess::{UserPtr, UserSlice},
};

/// The owner of allocations, which go when it goes.
pub(crate) struct Open {
    memory: Arc<Memory>,
    owner: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.memory.close(self.owner);
    }
}

impl Operations for Open {
    type Shared = Arc<Memory>;
}

#[vtable]
impl MiscDevice for Open {
    type Ptr = Arc<Self>;

    fn open(file: &File, misc: &MiscDeviceRegistration<Self>) -> Result<Arc<Self>> {
        let memory = Node::shared(misc).clone();
        let owner = memory.open(file.as_ptr())?;
        Ok(Arc::new(Self { memory, owner }, GFP_KERNEL)?)
    }

    fn mmap(me: ArcBorrow<'_, Self>, _file: &File, vma: &VmaNew) -> Result {
        me.memory.map(me.owner, vma)
    }

    fn ioctl(me: ArcBorrow<'_, Self>, _file: &File, cmd: u32, arg: usize) -> Result<isize> {
        match cmd {
            MOCKGPU_IOC_INFO => call(arg, |a: &mut MockgpuInfo| {
                (a.total_bytes, a.allocated_bytes) = me.memory.usage();
                (a.domain, a.devid) = me.memory.address();
                Ok(())
            }),
            MOCKGPU_IOC_ALLOC => {
                let mut made = None;
                let result = call(arg, |a: &mut MockgpuAlloc| {
                    let scattered = a.flags & MOCKGPU_ALLOC_SCATTERED != 0;
                    a.offset = me.memory.allocate(me.owner, a.len, scattered)?;
                    made = Some(a.offset);
                    Ok(())
                });
                // The caller never learnt the offset.
                if let (Err(_), Some(offset)) = (&result, made) {
                    me.memory.free(me.owner, offset, false)?;
                }
                result
            }
            MOCKGPU_IOC_FREE => call(arg, |a: &mut MockgpuFree| {
                let wait = a.flags & MOCKGPU_FREE_WAIT != 0;
                me.memory.free(me.owner, a.offset, wait)
            }),
            MOCKGPU_IOC_EXPORT => call(arg, |a: &mut MockgpuExport| {
                let terms = Terms {
                    kind: Kind::from_raw(a.kind).ok_or(EINVAL)?,
                    iommu: a.flags & MOCKGPU_EXPORT_IOMMU != 0,
                    start: a.start,
                    len: a.len,
                    room: a.room,
                };
                let dmabuf = me.memory.export(me.owner, a.offset, &terms)?;
                // SAFETY: We own the reference, and give it to the descriptor.
                a.fd = unsafe { bindings::dma_buf_fd(dmabuf.as_ptr(), bindings::O_CLOEXEC as i32) };
                if a.fd < 0 {
                    // SAFETY: It is still ours.
                    unsafe { bindings::dma_buf_put(dmabuf.as_ptr()) };
                }
                to_result(a.fd.min(0))
            }),
            MOCKGPU_IOC_MOVE => call(arg, |a: &mut MockgpuMove| {
                if a.reserved != 0 {
                    return Err(EINVAL);
                }
                // SAFETY: Any number may be asked about.
                let dmabuf = from_err_ptr(unsafe { bindings::dma_buf_get(a.fd) })?;
                // SAFETY: We have a reference.
                let object = unsafe { export::object_of(dmabuf) };
                let moved = object.and_then(|(object, movable)| {
                    if !movable || !Arc::ptr_eq(&object.memory, &me.memory) {
                        return Err(Error::from_errno(-(bindings::EOPNOTSUPP as i32)));
                    }
                    let force = a.flags & MOCKGPU_MOVE_FORCE != 0;
                    me.memory.relocate(&object, force)
                });
                // SAFETY: It is ours.
                unsafe { bindings::dma_buf_put(dmabuf) };
                a.offset = moved?;
                Ok(())
            }),
            MOCKGPU_IOC_PLACE => call(arg, |a: &mut MockgpuPlace| {
                (a.place, a.len) = me.memory.object(me.owner, a.offset)?.place(a.at)?;
                Ok(())
            }),
            _ => Err(ENOTTY),
        }
    }
}

/// A structure of the ABI: integers, without padding.
trait Argument: AsBytes + FromBytes + Copy {
    /// Flags that it may have.
    const FLAGS: u32;

    fn head(&self) -> (u32, u32);
}

macro_rules! argument {
    ($($type:ty, $size:literal, $flags:expr;)*) => {$(
        const _: () = assert!(size_of::<$type>() == $size);
        // SAFETY: Integers: every bit pattern is valid.
        unsafe impl FromBytes for $type {}
        // SAFETY: The size is the sum of the members' sizes: there is no padding.
        unsafe impl AsBytes for $type {}
        impl Argument for $type {
            const FLAGS: u32 = $flags;

            fn head(&self) -> (u32, u32) {
                (self.size, self.flags)
            }
        }
    )*};
}

argument! {
    MockgpuInfo, 32, 0;
    MockgpuAlloc, 24, MOCKGPU_ALLOC_SCATTERED;
    MockgpuFree, 16, MOCKGPU_FREE_WAIT;
    MockgpuExport, 48, MOCKGPU_EXPORT_IOMMU;
    MockgpuMove, 24, MOCKGPU_MOVE_FORCE;
    MockgpuPlace, 40, 0;
}

/// Runs one ioctl on a structure of exactly the known size.
fn call<T: Argument>(arg: usize, body: impl FnOnce(&mut T) -> Result) -> Result<isize> {
    let slice = || UserSlice::new(UserPtr::from_addr(arg), size_of::<T>());
    let mut value = slice().reader().read::<T>()?;
    let (size, flags) = value.head();
    if size != size_of::<T>() as u32 || flags & !T::FLAGS != 0 {
        return Err(EINVAL);
    }
    body(&mut value)?;
    slice().writer().write(&value)?;
    Ok(0)
}
