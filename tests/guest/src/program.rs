// SPDX-License-Identifier: MIT OR Apache-2.0

//! The worker as a program that uses the `vramio` crate.

use crate::router::to_value;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::{fork, pipe, ForkResult};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::{c_char, c_void, CString};
use std::fs::{self, File as StdFile, OpenOptions};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use vramio::gpu::cuda::{CudaAlloc, CudaGpu};
use vramio::{
    Batch, Config, Context, Direction, Error, File, GpuBuffer, Options, Outcome, Path, Policy,
    Submission,
};
use vramio_guest::client::{Answer, ClientOp, Counters, Done, Memory, Transfer};
use vramio_guest::protocol::Failure;

/// Where the mock of CUDA's driver lies in the guest.
const MOCK: &str = "/usr/lib/mock-cuda/libcuda.so.1";

/// Something that was made.
enum Thing {
    Context(Context),
    Memory { _frees_it: CudaAlloc },
    Buffer(GpuBuffer),
    File(File),
}

static THINGS: LazyLock<Mutex<HashMap<u32, Thing>>> = LazyLock::new(Mutex::default);

fn things() -> MutexGuard<'static, HashMap<u32, Thing>> {
    THINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(thing: Thing) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    things().insert(number, thing);
    number
}

// What `map_err` passes on is its own.
#[allow(clippy::needless_pass_by_value)]
fn failure(message: impl ToString) -> Failure {
    Failure {
        errno: 0,
        message: message.to_string(),
    }
}

/// A failure of the crate outside of a request.
#[allow(clippy::needless_pass_by_value)]
fn failed(error: Error) -> Failure {
    Failure {
        errno: error.errno.map_or(0, |errno| errno as i32),
        message: error.to_string(),
    }
}

fn context(number: u32) -> Result<Context, Failure> {
    match things().get(&number) {
        Some(Thing::Context(context)) => Ok(context.clone()),
        _ => Err(failure(format!("{number} is no context"))),
    }
}

/// Does one call.
pub fn run(op: ClientOp) -> Result<Value, Failure> {
    let mock = mock()?;
    match op {
        ClientOp::Context {
            policy,
            routing,
            sparse_threshold,
        } => {
            let mut config = Config::default();
            config.policy = policy.parse::<Policy>().map_err(failure)?;
            config.routing.enabled = routing;
            config.sparse_threshold = sparse_threshold;
            let context = Context::with_config(config).map_err(failed)?;
            to_value(keep(Thing::Context(context)))
        }
        ClientOp::Alloc { device, len } => {
            let gpu = CudaGpu::open(device).map_err(failed)?;
            let alloc = gpu.alloc(len).map_err(failed)?;
            let address = alloc.address();
            let mut pieces = Vec::new();
            let mut at = 0;
            while at < len {
                let (place, together) = mock.place(address + at)?;
                let together = together.min(len - at);
                pieces.push((place, together));
                at += together;
            }
            to_value(Memory {
                number: keep(Thing::Memory { _frees_it: alloc }),
                address,
                pieces,
            })
        }
        ClientOp::Buffer {
            context: number,
            address,
            len,
        } => {
            let context = context(number)?;
            // SAFETY: No Rust object lies in CUDA memory. That it is there is the test's
            // to see to, or to break.
            let buffer = unsafe { GpuBuffer::from_cuda(&context, address, len) };
            to_value(keep(Thing::Buffer(buffer.map_err(failed)?)))
        }
        ClientOp::File {
            context: number,
            path,
            write,
        } => {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(write).create(write);
            let file = File::open_with(&context(number)?, path, options).map_err(failed)?;
            to_value(keep(Thing::File(file)))
        }
        ClientOp::Drop { number } => {
            let thing = things().remove(&number);
            thing
                .map(drop)
                .ok_or_else(|| failure(format!("there is no {number}")))
                .and_then(to_value)
        }
        ClientOp::Transfer(transfer) => request(&transfer).and_then(to_value),
        ClientOp::Later(transfer) => {
            let pending = submission(&transfer)?.submit();
            to_value(answer(pending.wait()))
        }
        ClientOp::Submit(transfers) => submit(&transfers).and_then(to_value),
        ClientOp::Threads => threads().map_err(failure).and_then(to_value),
        ClientOp::InChild(transfer) => in_child(&transfer).and_then(to_value),
        ClientOp::Stats { context: number } => to_value(counters(&context(number)?)),
        ClientOp::Fail { name, code } => mock.fail(&name, code).and_then(to_value),
        ClientOp::Calls { name } => mock.calls(&name).and_then(to_value),
        ClientOp::Attribute { attribute, value } => {
            // SAFETY: This is the function's type, and it takes numbers only.
            let set = unsafe { mock.get::<extern "C" fn(u32, i32)>("mock_cuda_attribute") }?;
            set(attribute, value);
            to_value(())
        }
        ClientOp::Bar { bytes } => {
            // SAFETY: As above.
            let set = unsafe { mock.get::<extern "C" fn(u64)>("mock_cuda_bar") }?;
            set(bytes);
            to_value(())
        }
        ClientOp::Scatter { on } => {
            // SAFETY: As above.
            let set = unsafe { mock.get::<extern "C" fn(bool)>("mock_cuda_scatter") }?;
            set(on);
            to_value(())
        }
        ClientOp::Exit { status } => std::process::exit(status),
        ClientOp::SyncMemops { address } => mock.sync_memops(address).and_then(to_value),
    }
}

/// Carries a request out.
fn request(transfer: &Transfer) -> Result<Answer, Failure> {
    let Submission {
        direction,
        file,
        buffer,
        file_offset,
        buffer_offset,
        len,
        options,
    } = submission(transfer)?;
    let result = file.transfer(
        direction,
        &buffer,
        file_offset,
        buffer_offset,
        len,
        &options,
    );
    Ok(answer(result))
}

/// Submits requests, and waits for them.
fn submit(transfers: &[Transfer]) -> Result<Vec<Answer>, Failure> {
    let submissions: Result<Vec<_>, _> = transfers.iter().map(submission).collect();
    let mut batch = Batch::new();
    for (submission, tag) in submissions?.into_iter().zip(0..) {
        batch.submit(submission, tag);
    }
    let mut completions = batch.wait(transfers.len(), None);
    completions.sort_by_key(|completion| completion.tag);
    Ok(completions
        .into_iter()
        .map(|completion| answer(completion.result))
        .collect())
}

fn submission(transfer: &Transfer) -> Result<Submission, Failure> {
    let things = things();
    let (Some(Thing::File(file)), Some(Thing::Buffer(buffer))) =
        (things.get(&transfer.file), things.get(&transfer.buffer))
    else {
        return Err(failure("no such file, or no such buffer"));
    };
    Ok(Submission {
        direction: if transfer.write {
            Direction::Write
        } else {
            Direction::Read
        },
        file: file.clone(),
        buffer: buffer.clone(),
        file_offset: transfer.file_offset,
        buffer_offset: transfer.buffer_offset,
        len: transfer.len,
        options: Options::default(),
    })
}

fn answer(result: Result<Outcome, Error>) -> Answer {
    match result {
        Ok(outcome) => Answer::Done(done(&outcome)),
        Err(error) => Answer::Refused {
            errno: error.errno.map_or(0, |errno| errno as i32),
            reason: error.reason.to_string(),
            text: error.to_string(),
        },
    }
}

/// The names of the process's threads; one that ends meanwhile has none.
fn threads() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        match fs::read_to_string(task?.path().join("comm")) {
            Ok(name) => names.push(name.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // ESRCH: it ended after the file was opened.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(names)
}

fn done(outcome: &Outcome) -> Done {
    let moved = Path::ALL.into_iter().filter_map(|path| {
        let bytes = outcome.moved.by(path);
        (bytes > 0).then(|| (path.name().to_owned(), bytes))
    });
    Done {
        bytes: outcome.bytes,
        path: outcome.path.to_string(),
        reason: outcome.reason.to_string(),
        certainty: outcome.certainty.to_string(),
        moved: moved.collect(),
        zeroed: outcome.zeroed,
        uncovered: outcome.uncovered,
        via: outcome.via.map(|gpu| gpu.to_string()),
        error: outcome.error.map_or(0, |errno| errno as i32),
    }
}

fn counters(context: &Context) -> Counters {
    let stats = context.stats();
    let paths = Path::ALL.into_iter().zip(stats.paths);
    Counters {
        requests: stats.requests.iter().sum(),
        failed: stats.failed.iter().sum(),
        bytes: stats.bytes.iter().sum(),
        paths: paths
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(path, bytes)| (path.name().to_owned(), bytes))
            .collect(),
        zeroed: stats.zeroed,
        in_flight: stats.in_flight,
        reasons: stats
            .reasons
            .iter()
            .map(|(reason, count)| (reason.to_string(), *count))
            .collect(),
    }
}

/// Carries a request out in a child of fork, which then drops all that it has.
fn in_child(transfer: &Transfer) -> Result<Answer, Failure> {
    let os = |errno: Errno| Failure {
        errno: errno as i32,
        message: format!("a child of fork: {errno}"),
    };
    let (from, to) = pipe().map_err(os)?;
    // No other thread is inside the table, so that the child finds it whole.
    let table = things();
    // SAFETY: The C library makes its allocator usable in the child, and nothing else
    // that the child uses is locked by another thread.
    match unsafe { fork() }.map_err(os)? {
        ForkResult::Child => {
            drop(from);
            drop(table);
            let answer = request(transfer);
            things().clear();
            let line = serde_json::to_string(&answer.map_err(|failure| failure.message));
            let written = line.map(|line| StdFile::from(to).write_all(line.as_bytes()));
            // SAFETY: It ends the process, and runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!matches!(written, Ok(Ok(()))))) }
        }
        ForkResult::Parent { child } => {
            drop(table);
            drop(to);
            let mut text = String::new();
            let read = StdFile::from(from).read_to_string(&mut text);
            let ended = waitpid(child, None).map_err(os)?;
            read.map_err(failure)?;
            let answer: Result<Answer, String> = serde_json::from_str(&text)
                .map_err(|error| failure(format!("{ended:?}, {text:?}: {error}")))?;
            answer.map_err(failure)
        }
    }
}

/// The mock of CUDA's driver.
struct Mock(Library);

/// Loads the mock; from then on the crate finds it by its name.
fn mock() -> Result<&'static Mock, Failure> {
    static MOCK_LIBRARY: OnceLock<Result<Mock, String>> = OnceLock::new();
    MOCK_LIBRARY
        .get_or_init(|| {
            // SAFETY: The library's constructors do nothing.
            unsafe { Library::open(Some(MOCK), RTLD_NOW | RTLD_GLOBAL) }
                .map(Mock)
                .map_err(|error| error.to_string())
        })
        .as_ref()
        .map_err(failure)
}

impl Mock {
    /// A function of the library.
    ///
    /// # Safety
    ///
    /// `F` is its type.
    unsafe fn get<F: Copy>(&self, name: &str) -> Result<F, Failure> {
        // SAFETY: As the caller promises.
        let symbol = unsafe { self.0.get::<F>(name.as_bytes()) };
        symbol.map(|symbol| *symbol).map_err(failure)
    }

    fn place(&self, address: u64) -> Result<(u64, u64), Failure> {
        type Place = unsafe extern "C" fn(u64, *mut u64, *mut u64) -> u32;
        let (mut place, mut len) = (0, 0);
        // SAFETY: This is the function's type, and the pointers are valid.
        match unsafe { self.get::<Place>("mock_cuda_place")?(address, &mut place, &mut len) } {
            0 if len > 0 => Ok((place, len)),
            code => Err(failure(format!("{address:#x} is nowhere: {code}"))),
        }
    }

    fn fail(&self, name: &str, code: u32) -> Result<(), Failure> {
        let name = CString::new(name).map_err(failure)?;
        type Fail = unsafe extern "C" fn(*const c_char, u32, u32);
        // SAFETY: This is the function's type, and the name is a C string.
        unsafe { self.get::<Fail>("mock_cuda_fail")?(name.as_ptr(), 0, code) };
        Ok(())
    }

    fn calls(&self, name: &str) -> Result<u64, Failure> {
        let name = CString::new(name).map_err(failure)?;
        type Calls = unsafe extern "C" fn(*const c_char) -> u64;
        // SAFETY: As above.
        Ok(unsafe { self.get::<Calls>("mock_cuda_calls")?(name.as_ptr()) })
    }

    fn sync_memops(&self, address: u64) -> Result<bool, Failure> {
        /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
        const ATTRIBUTE: u32 = 6;
        type Get = unsafe extern "C" fn(*mut c_void, u32, u64) -> u32;
        let mut on = 0u32;
        let to = (&raw mut on).cast::<c_void>();
        // SAFETY: This is the function's type, and the attribute is an int.
        match unsafe { self.get::<Get>("cuPointerGetAttribute")?(to, ATTRIBUTE, address) } {
            0 => Ok(on != 0),
            code => Err(failure(format!("{address:#x} has no attributes: {code}"))),
        }
    }
}
