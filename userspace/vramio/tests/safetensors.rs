// SPDX-License-Identifier: MIT OR Apache-2.0

//! Models in the safetensors format, into the mock's memory: each tensor's bytes are those of
//! the file, wherever they come to lie; and what is wrong with a file is said, never believed.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use common::{content, context, directory, mock};
use cudarc::driver::sys;
use proptest::prelude::*;
use serde_json::{json, Value};
use vramio::gpu::cuda::{CudaAlloc, CudaGpu};
use vramio::safetensors::{Header, LoadError, Loaded, Model, Options, Run};
use vramio::{Context, GpuBuffer, Policy};

/// A tensor to be: name, type, shape, bytes.
type Made = (&'static str, &'static str, Vec<u64>, u64);

/// Writes a file of these tensors; `pad` bytes more of spaces are in its header.
fn write(path: &Path, tensors: &[Made], pad: usize) -> BTreeMap<&'static str, Vec<u8>> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut data = Vec::new();
    let mut bytes = BTreeMap::new();
    for (number, (name, dtype, shape, len)) in tensors.iter().enumerate() {
        let begin = data.len() as u64;
        let own = content(number as u64 + 1, 0, *len as usize);
        data.extend_from_slice(&own);
        let entry = json!({
            "dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len],
        });
        header.insert((*name).to_owned(), entry);
        bytes.insert(*name, own);
    }
    let mut text = Value::Object(header).to_string();
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len() + pad);
    let file = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &data].concat();
    fs::write(path, file).expect("it can be written");
    bytes
}

/// Tensors of all sizes of elements, a scalar, one without elements, and one that puts the
/// rest out of step.
fn layers() -> Vec<Made> {
    vec![
        ("empty", "F32", vec![0, 7], 0),
        ("embed", "BF16", vec![1000, 129], 258_000),
        ("scale", "F64", vec![], 8),
        ("bytes", "U8", vec![3], 3),
        ("odd", "F32", vec![5000], 20_000),
        ("half", "F4", vec![4, 4], 8),
        ("mask", "BOOL", vec![70_001], 70_001),
        ("last", "I64", vec![2, 3], 48),
        ("none", "U8", vec![0], 0),
    ]
}

/// Loads into the mock's memory.
fn load(context: &Context, model: &Model, options: &Options) -> (Loaded, Vec<CudaAlloc>) {
    load_over(1, context, model, options)
}

/// The same over so many shards, each on one of the mock's devices.
fn load_over(
    shards: usize,
    context: &Context,
    model: &Model,
    options: &Options,
) -> (Loaded, Vec<CudaAlloc>) {
    mock();
    let gpus = [0, 1].map(|number| CudaGpu::open(number).expect("the mock has two devices"));
    let mut memory = Vec::new();
    let loaded = model.load_sharded(
        shards,
        options,
        |shard, size| -> Result<GpuBuffer, LoadError> {
            assert_eq!(size % 4096, 0);
            let piece = gpus[shard % 2].alloc(size)?;
            piece.write(0, &vec![common::POISON; size as usize])?;
            // SAFETY: The memory outlives the loading, and nothing else uses it meanwhile.
            let buffer = unsafe { GpuBuffer::from_cuda(context, piece.address(), size) }?;
            memory.push(piece);
            Ok(buffer)
        },
        |_| ControlFlow::Continue(()),
    );
    (loaded.expect("there is memory"), memory)
}

/// Every tensor is there once, aligned, and holds its bytes.
fn compare(loaded: &Loaded, memory: &[CudaAlloc], wanted: &BTreeMap<&'static str, Vec<u8>>) {
    loaded.complete().expect("all of it");
    let mut names: Vec<&str> = Vec::new();
    for tensor in &loaded.tensors {
        let own = &wanted[&*tensor.name];
        assert_eq!(tensor.buffer.size(), own.len() as u64, "{}", tensor.name);
        let piece = &memory[tensor.request];
        let mut data = vec![0; own.len()];
        piece
            .read(tensor.offset, &mut data)
            .expect("it can be read");
        assert!(&data == own, "{} holds other bytes", tensor.name);
        if !own.is_empty() {
            let address = piece.address() + tensor.offset;
            assert_eq!(address % tensor.dtype.align(), 0, "{}", tensor.name);
        }
        names.push(&tensor.name);
    }
    names.sort_unstable();
    assert_eq!(names, wanted.keys().copied().collect::<Vec<_>>());
    // Bytes beside the tensors are those of the file, or untouched.
    assert_eq!(memory.len(), loaded.requests.len());
    for request in &loaded.requests {
        let outcome = request.result.as_ref().expect("it worked");
        let moved: u64 = vramio::Path::ALL.iter().map(|p| outcome.moved.by(*p)).sum();
        assert_eq!(moved + outcome.zeroed, outcome.bytes);
        assert!(outcome.bytes >= request.run.len && outcome.bytes <= request.run.ask);
    }
}

#[test]
fn every_tensor_holds_its_bytes() {
    let dir = directory();
    let path = dir.path().join("model.safetensors");
    let context = context(|_| ());
    for pad in [0, 1, 4, 5000] {
        let wanted = write(&path, &layers(), pad);
        let model = Model::open(&context, &path).expect("a model");
        assert_eq!(model.files[0].header.metadata["format"], "pt");
        for budget in [1 << 30, 100_000, 4096] {
            let options = Options { budget, depth: 3 };
            let (loaded, memory) = load(&context, &model, &options);
            compare(&loaded, &memory, &wanted);
            let largest = memory.iter().map(CudaAlloc::size).max().expect("some");
            assert!(
                budget >= largest || largest <= 258_000 + 2 * 4096,
                "{budget}"
            );
        }
    }
    let faults = mock().faults();
    assert_eq!(faults, 0);
}

/// A file whose tensors are in step with it is one request, which begins and ends at pages;
/// each gap and each change of step begins another.
#[test]
fn a_run_is_one_request() {
    let dir = directory();
    let path = dir.path().join("model.safetensors");
    let context = context(|_| ());
    let even: Vec<Made> = vec![
        ("a", "F32", vec![4096], 16384),
        ("b", "F32", vec![100], 400),
        ("c", "F32", vec![4096], 16384),
    ];
    let wanted = write(&path, &even, 0);
    let mut model = Model::open(&context, &path).expect("a model");
    let (loaded, memory) = load(&context, &model, &Options::default());
    compare(&loaded, &memory, &wanted);
    let [request] = &*loaded.requests else {
        panic!("{:?}", loaded.requests);
    };
    assert_eq!((request.run.file_offset, request.run.buffer_offset), (0, 0));
    assert_eq!(request.run.ask % 4096, 0);

    model.retain(|tensor| tensor.name != "b");
    let (loaded, memory) = load(&context, &model, &Options::default());
    assert_eq!(loaded.requests.len(), 2);
    let mut wanted = wanted;
    wanted.remove("b");
    compare(&loaded, &memory, &wanted);

    // 1: the tensors' place in the file is not one that they can have in memory.
    let wanted = write(&path, &even, 1);
    let model = Model::open(&context, &path).expect("a model");
    let (loaded, memory) = load(&context, &model, &Options::default());
    assert_eq!(loaded.requests.len(), 1);
    compare(&loaded, &memory, &wanted);
}

/// Over several GPUs: each tensor is there once, in the order of the files, and no shard has
/// more than half a tensor more than another, whatever their number.
#[test]
fn a_model_is_divided_by_bytes() {
    let dir = directory();
    let context = context(|_| ());
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let made = |from: usize, sizes: &[u64]| -> Vec<Made> {
        let tensors = sizes.iter().enumerate();
        tensors
            .map(|(at, len)| (names[from + at], "U8", vec![*len], *len))
            .collect()
    };
    let (one, two) = (
        dir.path().join("1.safetensors"),
        dir.path().join("2.safetensors"),
    );
    let mut wanted = write(&one, &made(0, &[50_000, 30_000, 0, 70_000, 10_000]), 3);
    wanted.extend(write(
        &two,
        &made(5, &[90_000, 1, 40_000, 60_000, 20_000]),
        0,
    ));
    let model = Model::open_all(&context, &[&one, &two]).expect("a model");
    let all = model.bytes();
    for shards in [1, 2, 3, 4, 20] {
        for (budget, depth) in [(1 << 30, 1), (65_536, 4)] {
            let options = Options { budget, depth };
            let (mut loaded, memory) = load_over(shards, &context, &model, &options);
            compare(&loaded, &memory, &wanted);
            loaded.tensors.sort_by(|a, b| a.name.cmp(&b.name));
            assert!(loaded.tensors.is_sorted_by_key(|tensor| tensor.shard));
            let share = |shard| -> u64 {
                let own = loaded.tensors.iter().filter(|tensor| tensor.shard == shard);
                own.map(|tensor| tensor.buffer.size()).sum()
            };
            for shard in 0..shards {
                let fair = all / shards as u64;
                assert!(share(shard).abs_diff(fair) <= 90_000, "{shard} of {shards}");
            }
            for tensor in &loaded.tensors {
                assert_eq!(loaded.requests[tensor.request].shard, tensor.shard);
                let piece = &memory[tensor.request];
                assert_eq!(device_of(piece.address()), tensor.shard % 2);
            }
        }
    }
    assert_eq!(mock().faults(), 0);
}

/// The device that an address is of.
fn device_of(address: u64) -> usize {
    let mut device = -1i32;
    // SAFETY: The attribute is an int, and the pointer is valid during the call.
    let result = unsafe {
        sys::cuPointerGetAttribute(
            (&raw mut device).cast(),
            sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            address,
        )
    };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    usize::try_from(device).expect("a device")
}

#[test]
fn an_index_names_the_files_beside_it() {
    let dir = directory();
    let file = |name: &str| dir.path().join(name);
    let context = context(|_| ());
    let mut wanted = write(&file("one.safetensors"), &layers(), 0);
    let more: Vec<Made> = vec![
        ("more", "F16", vec![3000], 6000),
        ("left out", "F16", vec![3], 6),
    ];
    wanted.extend(write(&file("two.safetensors"), &more, 0));
    wanted.remove("left out");
    let map: BTreeMap<&str, &str> = wanted
        .keys()
        .map(|name| {
            let second = *name == "more";
            (
                *name,
                if second {
                    "two.safetensors"
                } else {
                    "one.safetensors"
                },
            )
        })
        .collect();
    let index = file("model.safetensors.index.json");
    let put = |map: &Value| {
        let text = json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string();
        fs::write(&index, text).expect("it can be written");
    };
    put(&json!(map));
    for path in [index.as_path(), dir.path()] {
        let model = Model::open(&context, path).expect("a model");
        let (loaded, memory) = load(&context, &model, &Options::default());
        compare(&loaded, &memory, &wanted);
    }

    let refuses = |says: &str| {
        let error = Model::open(&context, &index).expect_err(says).to_string();
        assert!(error.contains(says) && error.contains("; fix: "), "{error}");
    };
    for outside in ["../one.safetensors", "/etc/passwd", "a/b", "..", ""] {
        put(&json!({ "embed": outside }));
        refuses("no plain file name");
    }
    put(&json!({ "embed": "two.safetensors" }));
    refuses("says that tensor \"embed\" is here");
    put(&json!({ "embed": "three.safetensors" }));
    refuses("three.safetensors");
    put(&json!({ "embed": 1 }));
    refuses("its text is no good");

    let both = [file("one.safetensors"), file("one.safetensors")];
    let error = Model::open_all(&context, &both).expect_err("the same twice");
    assert!(
        error.to_string().contains("one.safetensors, too"),
        "{error}"
    );
    let empty = directory();
    let error = Model::open(&context, empty.path()).expect_err("nothing there");
    assert!(error.to_string().contains("neither"), "{error}");
}

/// A header that lies is refused, with what is wrong and what to do.
#[test]
fn hostile_headers_are_refused() {
    let dir = directory();
    let path = dir.path().join("model.safetensors");
    let context = context(|_| ());
    let whole = |text: &str, data: usize| {
        let length = text.len() as u64;
        [&length.to_le_bytes(), text.as_bytes(), &vec![1; data]].concat()
    };
    let one = |dtype: &str, shape: &str, begin: &str, end: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
    };
    let two = |first: (u64, u64), second: (u64, u64)| {
        let entry = |(begin, end): (u64, u64)| json!({ "dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end] });
        json!({ "a": entry(first), "b": entry(second) }).to_string()
    };
    let most = u64::MAX.to_string();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "0 bytes, too few"),
        (vec![0; 7], "7 bytes, too few"),
        (vec![0; 8], "does not begin with {"),
        (vec![0xff; 64], "more than the 100000000"),
        (
            100_000_001u64.to_le_bytes().to_vec(),
            "more than the 100000000",
        ),
        (
            100u64.to_le_bytes().to_vec(),
            "100 bytes long, in a file of 8",
        ),
        (whole("[]", 0), "does not begin with {"),
        (whole(" {}", 0), "does not begin with {"),
        (whole("{", 0), "its text is no good: EOF"),
        (whole("{\"a\":\u{7f}}", 0), "its text is no good"),
        (whole("{}{}", 0), "trailing characters"),
        (whole(r#"{"a":1}"#, 0), "its text is no good"),
        (
            whole(&format!("{{\"a\":{}", "[".repeat(5000)), 0),
            "its text is no good",
        ),
        (
            whole(r#"{"__metadata__":{"a":1}}"#, 0),
            "its text is no good",
        ),
        (
            whole(r#"{"__metadata__":{},"__metadata__":{}}"#, 0),
            "there twice",
        ),
        (whole("{}", 1), "1 bytes at offset 10 belong to no tensor"),
        (whole(&one("U8", "[4]", "0", "4"), 3), "cut off"),
        (whole(&one("U8", "[4]", "0", "4"), 5), "1 bytes at offset"),
        (whole(&one("U8", "[4]", "4", "8"), 8), "4 bytes at offset"),
        (
            whole(&one("U8", "[4]", "4", "0"), 4),
            "would lie from 4 to 0",
        ),
        (
            whole(&one("U8", "[4]", "-1", "3"), 4),
            "its text is no good",
        ),
        (
            whole(&one("U8", "[4]", "0", "4.5"), 4),
            "its text is no good",
        ),
        (whole(&one("U8", "[4]", "0", &most), 4), "cut off"),
        (whole(&one("U8", "[4]", &most, &most), 4), "cut off"),
        (
            whole(&one("U8", "[-4]", "0", "4"), 4),
            "its text is no good",
        ),
        (
            whole(&one("F32", "[4]", "0", "4"), 4),
            "not what F32 of shape [4] takes",
        ),
        (
            whole(&one("F4", "[1]", "0", "1"), 1),
            "not what F4 of shape [1] takes",
        ),
        (
            whole(&one("F64", &format!("[{most},2]"), "0", "4"), 4),
            "not what F64",
        ),
        (
            whole(&one("Q9", "[4]", "0", "4"), 4),
            "of type \"Q9\", which is not known",
        ),
        (
            whole(&one("U8\u{1b}[2J", "[4]", "0", "4"), 4),
            "its text is no good",
        ),
        (
            whole(&one("\\u001b[2J", "[4]", "0", "4"), 4),
            r"of type \u{1b}[2J",
        ),
        (
            whole(&two((0, 4), (2, 6)), 6),
            "\"b\" lies over tensor \"a\"",
        ),
        (
            whole(&two((0, 8), (0, 8)), 8),
            "\"b\" lies over tensor \"a\"",
        ),
        (
            whole(&two((0, 8), (2, 4)), 8),
            "\"b\" lies over tensor \"a\"",
        ),
        (
            whole(&two((0, 4), (4, 8)).replace("\"b\"", "\"a\""), 8),
            "tensor \"a\" is there twice",
        ),
        (
            whole(&one("U8", "[4]", "0", "4").replace("shape", "dtype"), 4),
            "its text is no good",
        ),
    ];
    for (bytes, says) in cases {
        fs::write(&path, &bytes).expect("it can be written");
        let error = Model::open(&context, &path).expect_err(says);
        let line = error.to_string();
        let says = says.replace(r"of type \u", "of type \"\\u");
        assert!(line.contains(&*says), "no {says:?} in {line}");
        assert!(
            line.contains("; fix: ") && line.lines().count() == 1,
            "{line}"
        );
        assert!(line.len() < 500 && !line.contains('\u{1b}'), "{line}");
    }
    let long = format!(
        "{{\"{}\":{{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,1]}}}}",
        "x".repeat(9000)
    );
    fs::write(&path, whole(&long, 1)).expect("it can be written");
    let line = Model::open(&context, &path)
        .expect_err("its size")
        .to_string();
    assert!(line.len() < 500, "{line}");
    let error = Model::open(&context, dir.path().join("none")).expect_err("not there");
    assert!(error.to_string().contains("ENOENT"), "{error}");
}

/// A file that shrinks after its header was read: nothing that is not there is called loaded.
#[test]
fn a_file_that_shrinks_is_short() {
    let dir = directory();
    let path = dir.path().join("model.safetensors");
    let context = context(|_| ());
    let tensors: Vec<Made> = vec![("a", "U8", vec![8192], 8192), ("b", "U8", vec![9000], 9000)];
    write(&path, &tensors, 0);
    let model = Model::open(&context, &path).expect("a model");
    let end = model.files[0].header.tensors[1].range.end;
    let file = fs::File::options()
        .write(true)
        .open(&path)
        .expect("it opens");
    file.set_len(end - 1).expect("it shrinks");
    let options = Options {
        budget: 12288,
        depth: 1,
    };
    let (loaded, _memory) = load(&context, &model, &options);
    let names: Vec<&str> = loaded.tensors.iter().map(|t| &*t.name).collect();
    assert_eq!(names, ["a"]);
    assert_eq!((loaded.bytes(), loaded.len), (8192, 8192 + 9000));
    let line = loaded
        .complete()
        .expect_err("a byte is missing")
        .to_string();
    assert!(line.contains("the file ended early"), "{line}");
}

/// What the policy does not allow is refused with its reason, before anything moves; and the
/// caller can end it.
#[test]
fn it_ends_early_with_the_reason() {
    let dir = directory();
    let path = dir.path().join("model.safetensors");
    write(&path, &layers(), 0);
    let strict = context(|config| config.policy = Policy::Strict);
    let model = Model::open(&strict, &path).expect("a model");
    let (loaded, _memory) = load(&strict, &model, &Options::default());
    assert_eq!(loaded.bytes(), 0);
    let line = loaded.complete().expect_err("strict").to_string();
    assert!(line.contains("(denied"), "{line}");

    let context = context(|_| ());
    let model = Model::open(&context, &path).expect("a model");
    let gpu = CudaGpu::open(0).expect("the mock has a device");
    let mut memory = Vec::new();
    let options = Options {
        budget: 4096,
        depth: 1,
    };
    let loaded = model.load(
        &options,
        |size| -> Result<GpuBuffer, LoadError> {
            let piece = gpu.alloc(size)?;
            // SAFETY: As above.
            let buffer = unsafe { GpuBuffer::from_cuda(&context, piece.address(), size) }?;
            memory.push(piece);
            Ok(buffer)
        },
        |_| ControlFlow::Break(()),
    );
    let loaded = loaded.expect("there is memory");
    assert!(loaded.stopped && loaded.bytes() < loaded.len);
    let error = loaded.complete().expect_err("it was ended");
    assert!(matches!(error, LoadError::Stopped { .. }), "{error}");
}

fn header() -> impl Strategy<Value = (String, u64)> {
    let shape = prop::collection::vec(0u64..50, 0..3);
    let entry = ("[a-z.]{1,8}", 0usize..4, shape);
    prop::collection::vec(entry, 0..8).prop_map(|entries| {
        let mut header = serde_json::Map::new();
        let mut end = 0;
        for (name, dtype, shape) in entries {
            let (dtype, bytes) = [("U8", 1), ("BF16", 2), ("F32", 4), ("F64", 8)][dtype];
            if header.contains_key(&name) {
                continue;
            }
            let size = shape.iter().product::<u64>() * bytes;
            let entry = json!({
                "dtype": dtype, "shape": shape, "data_offsets": [end, end + size],
            });
            header.insert(name, entry);
            end += size;
        }
        (Value::Object(header).to_string(), end)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A good header is read as it is, and its runs cover each tensor once, within the
    /// budget; a changed one is read as something of which the same holds, or refused.
    #[test]
    fn any_header_is_read_or_refused(
        (text, data) in header(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        change in any::<bool>(),
        budget in 4096u64..100_000,
    ) {
        let mut text = text.into_bytes();
        if change {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let file = 8 + text.len() as u64 + data;
        let header = match Header::parse(&text, file) {
            Ok(header) => header,
            Err(problem) => {
                prop_assert!(change, "{problem}");
                return Ok(());
            }
        };
        let sizes: u64 = header.tensors.iter().map(|t| t.range.end - t.range.start).sum();
        prop_assert_eq!(sizes, data);
        let mut next = 0;
        for run in Run::divide(&header.tensors, budget) {
            prop_assert_eq!(run.tensors.start, next);
            next = run.tensors.end;
            let tensors = &header.tensors[run.tensors.clone()];
            prop_assert!(run.memory() <= budget.next_multiple_of(4096) || tensors.len() == 1);
            prop_assert!(run.len <= run.ask && run.buffer_offset + run.ask <= run.memory());
            for tensor in tensors {
                prop_assert!(tensor.range.start >= run.file_offset);
                prop_assert!(tensor.range.end <= run.file_offset + run.len);
                let place = tensor.range.start - run.file_offset + run.buffer_offset;
                let empty = tensor.range.is_empty();
                prop_assert!(empty || place.is_multiple_of(tensor.dtype.align()));
            }
        }
        prop_assert_eq!(next, header.tensors.len());
    }
}
