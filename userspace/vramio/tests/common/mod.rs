// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tests on the mock driver have in common.

#![allow(dead_code)]

use std::ffi::{c_char, c_void, CString};
use std::fs::{File as StdFile, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use tempfile::TempDir;
use vramio::gpu::cuda::{CudaAlloc, CudaGpu};
use vramio::{Config, Context, File, GpuBuffer, Policy};

/// What buffers hold before a request.
pub const POISON: u8 = 0xa5;

/// The mock of CUDA's driver; or the machine's own driver, where `VRAMIO_TEST_GPU` is set.
///
/// That one fails only by itself, and is as slow as it is: a test that needs the mock for
/// this has a name that begins with `mock_`, and is not run with the other one.
pub struct Mock(Option<Library>);

/// Loads the mock, unless the machine's own driver is to be used. From then on the crate
/// finds it by its name.
pub fn mock() -> &'static Mock {
    static MOCK: OnceLock<Mock> = OnceLock::new();
    MOCK.get_or_init(|| {
        if std::env::var_os("VRAMIO_TEST_GPU").is_some() {
            return Mock(None);
        }
        let program = std::env::current_exe().expect("the test's own path");
        let path = program.with_file_name("libcuda.so");
        // SAFETY: The library's constructors do nothing.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.expect("cargo has built the mock beside the test");
        let mock = Mock(Some(library));
        let version = vramio::Context::new().expect("a context").cuda_version();
        assert_eq!(version, Some(13000), "the mock driver is found");
        assert!(mock.calls("cuInit") > 0, "it is the mock that is found");
        mock
    })
}

impl Mock {
    /// Whether it is the machine's own driver.
    pub fn is_real(&self) -> bool {
        self.0.is_none()
    }

    fn library(&self) -> &Library {
        self.0.as_ref().expect("only the mock does that")
    }

    fn named<R>(
        &self,
        symbol: &str,
        name: &str,
        call: impl Fn(*mut c_void, *const c_char) -> R,
    ) -> R {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: The symbol is looked up, and not used here.
        let function = unsafe { self.library().get::<*mut c_void>(symbol.as_bytes()) };
        let function = function.expect("the mock has it").into_raw();
        call(function, name.as_ptr())
    }

    /// Lets a function fail with `code`, once, after it worked `skip` times.
    pub fn fail(&self, name: &str, skip: u32, code: u32) {
        self.named("mock_cuda_fail", name, |function, name| {
            // SAFETY: This is the function's type.
            let function: unsafe extern "C" fn(*const c_char, u32, u32) =
                unsafe { std::mem::transmute(function) };
            // SAFETY: The name is a C string.
            unsafe { function(name, skip, code) }
        });
    }

    /// How often a function was called.
    pub fn calls(&self, name: &str) -> u64 {
        self.named("mock_cuda_calls", name, |function, name| {
            // SAFETY: This is the function's type.
            let function: unsafe extern "C" fn(*const c_char) -> u64 =
                unsafe { std::mem::transmute(function) };
            // SAFETY: The name is a C string.
            unsafe { function(name) }
        })
    }

    /// Mistakes that the mock has seen.
    pub fn faults(&self) -> u64 {
        if self.is_real() {
            return 0;
        }
        self.named("mock_cuda_faults", "", |function, _| {
            // SAFETY: This is the function's type.
            let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(function) };
            function()
        })
    }

    /// Lets devices reach each other's memory, or not.
    pub fn peers(&self, on: bool) {
        self.named("mock_cuda_peers", "", |function, _| {
            // SAFETY: This is the function's type.
            let function: extern "C" fn(bool) = unsafe { std::mem::transmute(function) };
            function(on);
        });
    }

    /// Lets copies begin late, at random.
    pub fn delay(&self, microseconds: u64) {
        if self.is_real() {
            return;
        }
        self.named("mock_cuda_delay", "", |function, _| {
            // SAFETY: This is the function's type.
            let function: extern "C" fn(u64) = unsafe { std::mem::transmute(function) };
            function(microseconds);
        });
    }

    /// The current context of this thread.
    pub fn current(&self) -> usize {
        let mut ctx = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call.
        let result = unsafe { sys::cuCtxGetCurrent(&mut ctx) };
        assert_eq!(result, CUresult::CUDA_SUCCESS);
        ctx as usize
    }

    /// Makes a device's primary context current in this thread, or none.
    pub fn make_current(&self, device: Option<i32>) {
        let mut ctx = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call. The context is never released.
        unsafe {
            // A test may come here before the crate does.
            assert_eq!(sys::cuInit(0), CUresult::CUDA_SUCCESS);
            if let Some(device) = device {
                let retained = sys::cuDevicePrimaryCtxRetain(&mut ctx, device);
                assert_eq!(retained, CUresult::CUDA_SUCCESS);
            }
            assert_eq!(sys::cuCtxSetCurrent(ctx), CUresult::CUDA_SUCCESS);
        }
    }
}

/// A directory on a real file system, where direct I/O works.
pub fn directory() -> TempDir {
    let place = std::env::var_os("VRAMIO_TEST_DIR");
    let place = place.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    tempfile::tempdir_in(place).expect("a directory")
}

/// Bytes that tell where they belong.
pub fn content(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|at| {
            let mixed = ((at / 8) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed.to_le_bytes()[(at % 8) as usize] | 1
        })
        .collect()
}

/// A file with this content, which is on the disk.
pub fn make(path: &Path, data: &[u8]) -> StdFile {
    std::fs::write(path, data).expect("it can be written");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("it opens");
    file.sync_all().expect("it is synced");
    file
}

/// Drops a range of a file from the page cache; all of it if `len` is 0.
pub fn evict(file: &StdFile, offset: u64, len: u64) {
    file.sync_all().expect("it is synced");
    drop_clean(file, offset, len);
}

/// Drops what is in the page cache and on the drive as well.
pub fn drop_clean(file: &StdFile, offset: u64, len: u64) {
    // SAFETY: The call takes no memory.
    let result = unsafe {
        libc::posix_fadvise(
            file.as_raw_fd(),
            offset as i64,
            len as i64,
            libc::POSIX_FADV_DONTNEED,
        )
    };
    assert_eq!(result, 0);
}

/// Brings a range of a file into the page cache.
pub fn warm(file: &StdFile, offset: u64, len: usize) {
    let mut data = vec![0; len];
    let _ = file.read_at(&mut data, offset).expect("it can be read");
}

/// A context that goes through host memory alone, and says nothing.
pub fn context(change: impl FnOnce(&mut Config)) -> Context {
    let mut config = Config::default();
    config.policy = Policy::Allow;
    config.direct = false;
    change(&mut config);
    Context::with_config(config).expect("a context")
}

/// CUDA memory, poisoned, and the buffer of it.
pub struct Vram {
    pub alloc: CudaAlloc,
    pub buffer: GpuBuffer,
}

impl Vram {
    pub fn new(context: &Context, size: u64) -> Self {
        Vram::on(0, context, size)
    }

    /// On the device with this number.
    pub fn on(device: u32, context: &Context, size: u64) -> Self {
        mock();
        let gpu = CudaGpu::open(device).expect("there is the device");
        let alloc = gpu.alloc(size.max(1)).expect("there is memory");
        alloc
            .write(0, &vec![POISON; size as usize])
            .expect("it can be written");
        // SAFETY: The allocation lives as long as the value, and each test uses it
        // between requests only.
        let buffer = unsafe { GpuBuffer::from_cuda(context, alloc.address(), size.max(1)) };
        Vram {
            alloc,
            buffer: buffer.expect("the mock knows the address"),
        }
    }

    pub fn content(&self) -> Vec<u8> {
        let mut data = vec![0; self.alloc.size() as usize];
        self.alloc.read(0, &mut data).expect("it can be read");
        data
    }

    pub fn fill(&mut self, data: &[u8]) {
        self.alloc.write(0, data).expect("it can be written");
    }
}

/// Opens a file for requests in both directions.
pub fn open(context: &Context, path: &Path) -> File {
    File::open_with(context, path, OpenOptions::new().read(true).write(true)).expect("it opens")
}

/// The same, the caller's descriptor having `O_DIRECT`.
pub fn open_direct(context: &Context, path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    File::open_with(context, path, &options).expect("it opens")
}

/// A path in a directory.
pub fn path(dir: &TempDir) -> PathBuf {
    dir.path().join("file")
}
