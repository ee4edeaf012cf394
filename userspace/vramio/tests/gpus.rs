// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two CUDA devices in one process: copies between them, contexts, and staging buffers of
//! each. `make test-gpu2` runs it on a machine that has two.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{content, context, mock, Vram};
use vramio::gpu::cuda::{CudaGpu, CudaPeer};
use vramio::Reason;

const MIB: u64 = 1 << 20;

/// Tests that set switches of the mock run alone.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gpu(number: u32) -> CudaGpu {
    mock();
    CudaGpu::open(number).expect("there are two devices")
}

/// Copies in pieces, in both directions, each waited for by its mark; the thread's context
/// is what it was before, whichever that is.
fn there_and_back(slack: u64) {
    let context = context(|_| ());
    let len = 5 * MIB + 12_345;
    let mut first = Vram::on(0, &context, len);
    let second = Vram::on(1, &context, len + slack);
    let data = content(1, 0, len as usize);
    first.fill(&data);
    let (zero, one) = (gpu(0), gpu(1));
    for device in [None, Some(0), Some(1)] {
        mock().make_current(device);
        let before = mock().current();
        let mut there = zero.peer(&one).expect("a stream");
        let mut at = 0;
        for piece in 0.. {
            let part = MIB.min(len - at);
            if part == 0 {
                break;
            }
            let (to, from) = (second.alloc.address() + slack, first.alloc.address());
            let slot = piece % CudaPeer::SLOTS;
            // SAFETY: Both allocations live on, and nobody else uses them.
            unsafe { there.copy(to + at, from + at, part) }.expect("it begins");
            there.mark(slot).expect("it is marked");
            if piece % 2 == 1 {
                there.wait(slot).expect("it is done");
                assert_eq!(mock().current(), before);
            }
            at += part;
        }
        there.finish().expect("all is done");
        let mut found = vec![0; len as usize];
        second.alloc.read(slack, &mut found).expect("it is read");
        assert!(found == data);
        first.fill(&vec![0; len as usize]);
        let mut back = one.peer(&zero).expect("a stream");
        // SAFETY: As above.
        unsafe { back.copy(first.alloc.address(), second.alloc.address() + slack, len) }
            .expect("it begins");
        back.finish().expect("it is done");
        assert!(first.content() == data);
        drop((there, back));
        assert_eq!(mock().current(), before);
    }
    mock().make_current(None);
    assert_eq!(mock().faults(), 0);
}

#[test]
fn what_is_copied_between_devices_arrives() {
    let _alone = alone();
    for slack in [0, 1, 4096] {
        there_and_back(slack);
    }
}

#[test]
fn mock_devices_that_do_not_reach_each_other_copy_all_the_same() {
    let _alone = alone();
    assert!(gpu(0).reaches(&gpu(1)) && !gpu(0).reaches(&gpu(0)));
    mock().peers(false);
    let reaches = gpu(0).reaches(&gpu(1));
    there_and_back(0);
    mock().peers(true);
    assert!(!reaches);
}

#[test]
fn mock_a_copy_that_fails_says_so_and_the_next_one_works() {
    let _alone = alone();
    let context = context(|_| ());
    let data = content(2, 0, MIB as usize);
    let mut first = Vram::on(0, &context, MIB);
    let second = Vram::on(1, &context, MIB);
    first.fill(&data);
    let mut peer = gpu(0).peer(&gpu(1)).expect("a stream");
    let copy = |peer: &mut CudaPeer| {
        let (to, from) = (second.alloc.address(), first.alloc.address());
        // SAFETY: Both allocations live on, and nobody else uses them.
        unsafe { peer.copy(to, from, MIB) }.and_then(|()| peer.mark(0))?;
        peer.wait(0)?;
        peer.finish()
    };
    for function in [
        "cuCtxPushCurrent_v2",
        "cuMemcpyPeerAsync",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuStreamSynchronize",
    ] {
        mock().fail(function, 0, 217);
        let error = copy(&mut peer).expect_err("it fails");
        assert_eq!(error.reason, Reason::PeerCopy, "{error}");
        assert!(error.to_string().contains(function), "{error}");
        assert_eq!(mock().current(), 0);
        copy(&mut peer).expect("it works");
        assert!(second.content() == data);
    }
    for function in ["cuCtxPushCurrent_v2", "cuStreamCreate", "cuEventCreate"] {
        mock().fail(function, 0, 2);
        let error = gpu(0).peer(&gpu(1)).expect_err("it fails");
        assert_eq!(error.reason, Reason::CudaError, "{error}");
        assert_eq!(mock().current(), 0);
    }
    assert_eq!(mock().faults(), 0);
}
