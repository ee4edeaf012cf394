// SPDX-License-Identifier: MIT OR Apache-2.0

//! Buffers of memory that was freed meanwhile.

mod common;

use common::{content, context, directory, make, mock, open, path, POISON};
use vramio::gpu::cuda::CudaGpu;
use vramio::{GpuBuffer, Reason};

const MIB: u64 = 1 << 20;

/// A buffer may consist of several allocations side by side, as memory of cuMemMap does.
/// Each is watched, and a request is refused for those that it touches.
#[test]
fn each_allocation_of_a_buffer_is_watched() {
    mock();
    let dir = directory();
    let context = context(|_| ());
    let data = content(31, 0, (2 * MIB) as usize);
    make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    let gpu = CudaGpu::open(0).expect("the mock has a device");
    let mut memory: Vec<_> = (0..8)
        .map(|_| gpu.alloc(MIB).expect("there is memory"))
        .collect();
    memory.sort_by_key(|alloc| alloc.address());
    let first = memory
        .windows(2)
        .position(|pair| pair[0].address() + MIB == pair[1].address())
        .expect("the kernel puts mappings side by side");
    // SAFETY: Nothing else uses the memory.
    let buffer = unsafe { GpuBuffer::from_cuda(&context, memory[first].address(), 2 * MIB) };
    let buffer = buffer.expect("both are there");
    let outcome = file.read_at(&buffer, 0, 0, 2 * MIB).expect("it reads");
    assert_eq!(outcome.bytes, 2 * MIB);

    let second = memory.remove(first + 1);
    let address = second.address();
    drop(second);
    let check = || {
        let outcome = file
            .read_at(&buffer, 0, 0, MIB)
            .expect("the first is there");
        assert_eq!(outcome.bytes, MIB);
        for (at, len) in [(MIB, 1), (MIB - 1, 2), (0, 2 * MIB), (2 * MIB - 1, 1)] {
            let error = file.read_at(&buffer, 0, at, len).expect_err("it is freed");
            assert_eq!(error.reason, Reason::StaleBuffer, "{at} {len}");
        }
    };
    check();
    // Its address is other memory's now.
    let again = gpu.alloc(MIB).expect("there is memory");
    assert_eq!(again.address(), address);
    again
        .write(0, &vec![POISON; MIB as usize])
        .expect("it can be written");
    check();
    let mut found = vec![0; MIB as usize];
    again.read(0, &mut found).expect("it can be read");
    assert!(found.iter().all(|byte| *byte == POISON));
}
