// SPDX-License-Identifier: MIT OR Apache-2.0

//! An independent client in Rust: cudarc's own bindings, which load the library by its
//! name.

mod common;

use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::process::{Command, Stdio};

use cudarc::cufile::{result, safe::Cufile, sys};
use vramio::gpu::cuda::CudaGpu;
use vramio::stats::{Call, Reader};

const LEN: usize = 300_000;

/// Which process this is: the loader reads its search path when a process starts.
const CHILD: &str = "VRAMIO_TEST_CHILD";

#[test]
fn cudarc_reads_writes_and_makes_batches() {
    if std::env::var_os(CHILD).is_some() {
        client();
        return;
    }
    let child = Command::new(std::env::current_exe().expect("the test's own path"))
        .args(["--exact", "cudarc_reads_writes_and_makes_batches"])
        .env("LD_LIBRARY_PATH", common::libraries())
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    published(pid);
}

/// Its calls were counted where others see them, whatever the level of the statistics.
fn published(pid: u32) {
    let readers = Reader::all();
    let counted = readers.iter().filter(|reader| reader.pid() == pid);
    let counted: Vec<_> = counted.map(Reader::read).collect();
    let count = |call| {
        let calls = counted.iter().map(|process| process.call(call));
        calls.fold((0, 0), |(ok, err), call| (ok + call.ok, err + call.err))
    };
    for (call, expected) in [
        (Call::HandleRegister, (1, 0)),
        (Call::HandleDeregister, (1, 0)),
        (Call::BufRegister, (1, 0)),
        (Call::BufDeregister, (1, 0)),
        (Call::BatchSetup, (1, 0)),
        (Call::BatchSubmit, (1, 0)),
        (Call::BatchEnqueued, (4, 0)),
        (Call::BatchProcessed, (4, 0)),
        (Call::PosixBatchProcessed, (4, 0)),
        (Call::BatchComplete, (1, 0)),
        (Call::BatchCancel, (0, 0)),
        (Call::BatchDestroy, (1, 0)),
    ] {
        assert_eq!(count(call), expected, "{}", call.name());
    }
    let complete = counted
        .iter()
        .map(|process| process.call(Call::BatchComplete));
    assert_eq!(complete.map(|call| call.bytes[0]).sum::<u64>(), 4000);
}

fn client() {
    let directory = common::directory();
    let path = directory.path().join("file");
    let data: Vec<u8> = (0..LEN).map(|at| (at * 7 % 251) as u8).collect();
    fs::write(&path, &data).expect("it can be written");
    let cufile = Cufile::new().expect("it opens");
    let properties = cufile.get_properties().expect("properties");
    assert_eq!(properties.max_batch_io_size, 128);
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let handle = cufile.register(file.expect("it opens")).expect("a handle");

    let gpu = CudaGpu::open(0).expect("the mock has a device");
    let memory = gpu.alloc(LEN as u64).expect("there is memory");
    memory
        .write(0, &vec![0xa5; LEN])
        .expect("it can be written");
    let address = memory.address() as *mut c_void;
    let content = |len| {
        let mut read = vec![0; len];
        memory.read(0, &mut read).expect("it can be read");
        read
    };
    // SAFETY: The memory and the file live until the end of this function.
    unsafe {
        result::buf_register(address, LEN, 0).expect("it is registered");
        let read = result::read(handle.cu(), address, LEN, 0, 0);
        assert_eq!(read.expect("it reads"), LEN as isize);
        assert!(content(LEN) == data);
        let wrote = result::write(handle.cu(), address, 1000, LEN as i64, 5000);
        assert_eq!(wrote.expect("it writes"), 1000);
        assert_eq!(fs::read(&path).expect("the file")[LEN..], data[5000..6000]);
        let refused = result::read(handle.cu(), address, 10, -1, 0);
        assert!(refused.is_err());

        let batch = result::batch_io_setup(4).expect("a batch");
        let entries: Vec<sys::CUfileIOParams_t> = (0..4)
            .map(|i: usize| sys::CUfileIOParams_t {
                mode: sys::CUfileBatchMode_t::CUFILE_BATCH,
                u: sys::CUfileIOParams__bindgen_ty_1 {
                    batch: sys::CUfileIOParams__bindgen_ty_1__bindgen_ty_1 {
                        devPtr_base: address,
                        file_offset: 1000 * i as i64,
                        devPtr_offset: 2000 * i as i64,
                        size: 1000,
                    },
                },
                fh: handle.cu(),
                opcode: sys::CUfileOpcode_t::CUFILE_READ,
                cookie: i as *mut c_void,
            })
            .collect();
        result::batch_io_submit(batch, &entries, 0).expect("it is submitted");
        let mut events: [sys::CUfileIOEvents_t; 4] = std::mem::zeroed();
        let mut count = 4;
        let timeout = sys::timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        result::batch_io_get_status(batch, 4, &mut count, &mut events, &timeout).expect("status");
        assert_eq!(count, 4);
        for event in events {
            assert_eq!(event.status, sys::CUfileStatus_t::CUFILE_COMPLETE);
            assert_eq!(event.ret, 1000);
        }
        assert!(content(LEN)[2000..3000] == data[1000..2000]);
        result::batch_io_destroy(batch).expect("it ends");
        result::buf_deregister(address).expect("it ends");
    }
    // What it holds is the library's own code, not a copy of the test's.
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    assert!(maps.contains("libcufile.so"), "{maps}");
    drop(handle);
    drop(File::open(&path));
    result::driver_close().expect("it closes");
}
