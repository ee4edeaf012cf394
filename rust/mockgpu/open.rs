// SPDX-License-Identifier: GPL-2.0

//! An open file of `/dev/mockgpuN`.

use crate::{
    abi::{
        MockgpuAlloc, MockgpuFree, MockgpuInfo, MOCKGPU_IOC_ALLOC, MOCKGPU_IOC_FREE,
        MOCKGPU_IOC_INFO,
    },
    device::Gpu,
    memory::Memory,
    node::Node,
};
use core::mem::size_of;
use kernel::{
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

#[vtable]
impl MiscDevice for Open {
    type Ptr = Arc<Self>;

    fn open(file: &File, misc: &MiscDeviceRegistration<Self>) -> Result<Arc<Self>> {
        // SAFETY: Nodes of `Open` are members of a `Gpu` only.
        let memory = unsafe { Gpu::memory_of(Node::of(misc)) };
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
                    a.offset = me.memory.allocate(me.owner, a.len)?;
                    made = Some(a.offset);
                    Ok(())
                });
                // The caller never learnt the offset.
                if let (Err(_), Some(offset)) = (&result, made) {
                    me.memory.free(me.owner, offset)?;
                }
                result
            }
            MOCKGPU_IOC_FREE => call(arg, |a: &mut MockgpuFree| {
                me.memory.free(me.owner, a.offset)
            }),
            _ => Err(ENOTTY),
        }
    }
}

/// A structure of the ABI: integers, without padding.
trait Argument: AsBytes + FromBytes + Copy {
    fn head(&self) -> (u32, u32);
}

macro_rules! argument {
    ($($type:ty, $size:literal;)*) => {$(
        const _: () = assert!(size_of::<$type>() == $size);
        // SAFETY: Integers: every bit pattern is valid.
        unsafe impl FromBytes for $type {}
        // SAFETY: The size is the sum of the members' sizes: there is no padding.
        unsafe impl AsBytes for $type {}
        impl Argument for $type {
            fn head(&self) -> (u32, u32) {
                (self.size, self.flags)
            }
        }
    )*};
}

argument! {
    MockgpuInfo, 32;
    MockgpuAlloc, 24;
    MockgpuFree, 16;
}

/// Runs one ioctl on a structure of exactly the known size.
fn call<T: Argument>(arg: usize, body: impl FnOnce(&mut T) -> Result) -> Result<isize> {
    let slice = || UserSlice::new(UserPtr::from_addr(arg), size_of::<T>());
    let mut value = slice().reader().read::<T>()?;
    if value.head() != (size_of::<T>() as u32, 0) {
        return Err(EINVAL);
    }
    body(&mut value)?;
    slice().writer().write(&value)?;
    Ok(0)
}
