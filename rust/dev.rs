// SPDX-License-Identifier: GPL-2.0

//! `/dev/vramio`: file operations.

use crate::{
    abi, batch,
    ctx::Ctx,
    node::{Operations, UringCmd},
    target::Direction,
    uring,
};
use kernel::{
    fs::File,
    miscdevice::{MiscDevice, MiscDeviceRegistration},
    prelude::*,
    seq_file::SeqFile,
    sync::{Arc, ArcBorrow},
};

impl Operations for Ctx {
    type Shared = ();
    const URING_CMD: Option<UringCmd> = Some(uring::uring_cmd);
}

#[vtable]
impl MiscDevice for Ctx {
    type Ptr = Arc<Self>;

    fn open(_file: &File, _misc: &MiscDeviceRegistration<Self>) -> Result<Arc<Self>> {
        Arc::pin_init(Ctx::new(), GFP_KERNEL_ACCOUNT)
    }

    fn release(me: Arc<Self>, _file: &File) {
        me.close();
    }

    fn ioctl(me: ArcBorrow<'_, Self>, _file: &File, cmd: u32, arg: usize) -> Result<isize> {
        let refused = |refusal: abi::Refusal| {
            me.stats().refused(refusal);
            refusal
        };
        match cmd {
            abi::VRAMIO_IOC_INFO => abi::call(arg, |a| me.info(a)),
            abi::VRAMIO_IOC_REGISTER => registering(&me, arg, |a: &mut abi::VramioRegister| {
                me.register(a).map_err(refused)?;
                Ok(a.id)
            }),
            abi::VRAMIO_IOC_REGISTER_DMABUF => {
                registering(&me, arg, |a: &mut abi::VramioRegisterDmabuf| {
                    me.register_dmabuf(a).map_err(refused)?;
                    Ok(a.id)
                })
            }
            abi::VRAMIO_IOC_UNREGISTER => abi::call(arg, |a: &mut abi::VramioUnregister| {
                me.unregister(a).map_err(refused)
            }),
            abi::VRAMIO_IOC_PROBE => abi::call(arg, |a| me.probe(a)),
            abi::VRAMIO_IOC_READ => {
                abi::call(arg, |a| me.transfer(Direction::Read, a).map_err(refused))
            }
            abi::VRAMIO_IOC_WRITE => {
                abi::call(arg, |a| me.transfer(Direction::Write, a).map_err(refused))
            }
            abi::VRAMIO_IOC_BATCH => abi::call(arg, |a| batch::run(&me, a)),
            abi::VRAMIO_IOC_STATS => stats(&me, arg),
            _ => Err(ENOTTY),
        }
    }

    fn show_fdinfo(me: ArcBorrow<'_, Self>, m: &SeqFile, _file: &File) {
        me.show(m);
    }
}

/// Runs a call that makes the registration whose id `body` returns.
fn registering<T: abi::Argument>(
    ctx: &Ctx,
    arg: usize,
    body: impl FnOnce(&mut T) -> Result<u32, abi::Refusal>,
) -> Result<isize> {
    let mut made = None;
    let result = abi::call(arg, |a| {
        made = Some(body(a)?);
        Ok(())
    });
    // The caller never learnt the id: nothing may be left behind.
    if let (Err(_), Some(id)) = (&result, made) {
        ctx.undo_register(id);
    }
    result
}

/// Apart, because the structure is large and the stack below a request is deep.
#[inline(never)]
fn stats(ctx: &Ctx, arg: usize) -> Result<isize> {
    abi::call(arg, |a| ctx.count(a))
}
