// SPDX-License-Identifier: MIT OR Apache-2.0

//! The commands with the mock of CUDA's driver: loading, copies through GPU memory, the tools
//! by another name; how they behave on a terminal and in a pipe; and what they say of bad
//! input.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::pty::{openpty, Winsize};
use nix::sys::signal::{kill, Signal};
use nix::unistd::{geteuid, Pid};
use tempfile::TempDir;

/// A program run to its end.
struct Run {
    status: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        Run {
            status: output.status.code().expect("no signal ended it"),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    fn json(&self) -> serde_json::Value {
        assert_eq!(self.status, 0, "{}", self.stderr);
        serde_json::from_str(&self.stdout).expect("one JSON object")
    }

    /// A failure of one line, which says what is wrong and what to do.
    fn fails(&self, status: i32, part: &str) {
        assert_eq!(self.fault(status, part), None);
    }

    /// What is not so about it.
    fn fault(&self, status: i32, part: &str) -> Option<String> {
        let line = self.stderr.trim_end();
        let words = ["panicked", "backtrace", "RUST_"];
        let good = self.status == status
            && line.lines().count() == 1
            && line.contains(part)
            && line.contains("; fix: ")
            && !words.iter().any(|word| line.contains(word));
        (!good).then(|| format!("{} instead of {status} with {part:?}: {line}", self.status))
    }
}

/// The command with the mock's device, and nothing of the caller's configuration.
fn vramio<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = plain(Path::new(env!("CARGO_BIN_EXE_vramio")), args);
    let test = std::env::current_exe().expect("the test's own path");
    command.env("LD_LIBRARY_PATH", test.parent().expect("a directory"));
    command
}

fn plain<S: AsRef<OsStr>>(program: &Path, args: &[S]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("VRAMIO_CONFIG", "")
        .env("CUFILE_ENV_PATH_JSON", "");
    command
}

fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A safetensors file of these sizes; its bytes by name.
fn model(path: &Path, sizes: &[u64]) -> BTreeMap<String, Vec<u8>> {
    let mut header = serde_json::Map::new();
    let all = bytes(sizes.iter().sum::<u64>() as usize);
    let (mut at, mut wanted) = (0, BTreeMap::new());
    for (number, size) in sizes.iter().enumerate() {
        let name = format!("layer.{number}");
        let entry = serde_json::json!({
            "dtype": "U8", "shape": [size], "data_offsets": [at, at + size],
        });
        header.insert(name.clone(), entry);
        wanted.insert(name, all[at as usize..(at + size) as usize].to_vec());
        at += size;
    }
    let text = serde_json::Value::Object(header).to_string();
    let length = (text.len() as u64).to_le_bytes();
    fs::write(path, [&length, text.as_bytes(), &all].concat()).expect("it can be written");
    wanted
}

/// The symbolic link by which the program is another.
fn named(dir: &TempDir, name: &str) -> PathBuf {
    let link = dir.path().join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vramio"), &link).expect("a link");
    link
}

#[test]
fn a_model_is_loaded_and_compared() {
    let dir = directory();
    let path = dir.path().join("m.safetensors");
    let name = path.to_str().expect("UTF-8");
    let wanted = model(&path, &[100_000, 1, 70_000, 4096]);
    let allow = ["load", name, "--policy", "allow"];
    let run = Run::of(&mut vramio(&[&allow[..], &["--verify", "--json"]].concat()));
    let json = run.json();
    assert_eq!(json["verified"], 174_097);
    assert_eq!(
        (&json["tensor_bytes"], &json["size"]),
        (&174_097.into(), &174_097.into())
    );
    assert_eq!(json["requests"], 1);
    assert_eq!(json["reasons"][0]["reason"], "no-module");
    let moved: u64 = json["paths"]
        .as_array()
        .expect("paths")
        .iter()
        .filter_map(|path| path["bytes"].as_u64())
        .sum();
    assert_eq!(json["bytes"], moved);
    let file = File::open(&path).expect("it opens");
    let tensors = json["tensors"].as_array().expect("tensors");
    assert_eq!(tensors.len(), wanted.len());
    for tensor in tensors {
        let own = &wanted[tensor["name"].as_str().expect("a name")];
        let mut there = vec![0; own.len()];
        let offset = tensor["file_offset"].as_u64().expect("an offset");
        file.read_exact_at(&mut there, offset).expect("it is there");
        assert_eq!(&there, own, "{tensor}");
    }

    let two = Run::of(&mut vramio(
        &[&allow[..], &["--gpu", "1,0", "--verify", "--json"]].concat(),
    ));
    let json = two.json();
    assert_eq!(
        (&json["verified"], &json["requests"]),
        (&174_097.into(), &2.into())
    );
    let gpus = |key: &str| [0, 1].map(|shard| json["gpus"][shard][key].clone());
    assert_eq!(gpus("name"), ["gpu:1", "gpu:0"]);
    assert_eq!(
        gpus("tensor_bytes"),
        [100_000.into(), 74_097.into()] as [serde_json::Value; 2]
    );
    let tensors = json["tensors"].as_array().expect("tensors");
    for tensor in tensors {
        let first = tensor["name"] == "layer.0";
        assert_eq!(tensor["gpu"], if first { "gpu:1" } else { "gpu:0" });
    }

    // More GPUs than tensors; and fewer than are named.
    let over = |gpus, devices| {
        let args = [&allow[..], &["--gpu", gpus, "--verify"]].concat();
        Run::of(vramio(&args).env("MOCK_CUDA_DEVICES", devices))
    };
    let run = over("4,3,2,1,0", "5");
    for part in [
        "-> gpu:4 gpu:3 gpu:2 gpu:1 gpu:0\n",
        "tensors: 4, 174097 bytes",
    ] {
        assert!(run.stdout.contains(part), "no {part:?} in {}", run.stdout);
    }
    over("0,1", "1").fails(1, "CUDA device 1");

    let text = Run::of(&mut vramio(&allow));
    for part in [
        "tensors: 4, 174097 bytes, requests: 1",
        " GB/s",
        "reason: no-module",
    ] {
        assert!(text.stdout.contains(part), "no {part:?} in {}", text.stdout);
    }
    let some = [
        &allow[..],
        &["--only", "layer.2", "--only", "layer.3", "--json"],
    ]
    .concat();
    assert_eq!(Run::of(&mut vramio(&some)).json()["tensor_bytes"], 74_096);
    let list = Run::of(&mut vramio(&["load", "--list", name]));
    assert!(
        list.stdout.ends_with("4 tensors, 174097 bytes\n"),
        "{}",
        list.stdout
    );
    Run::of(&mut vramio(&["load", name])).fails(1, "no-module");
    Run::of(&mut vramio(&["load", "--list", name, "--only", "x"])).fails(1, "no tensor's name");
    let quiet = Run::of(&mut vramio(&[&allow[..], &["-q"]].concat()));
    assert_eq!((quiet.status, &*quiet.stdout, &*quiet.stderr), (0, "", ""));
}

/// Between two files, in ranges and as a whole, in pieces of any size: the bytes outside the
/// range stay, and no file is copied onto itself.
#[test]
fn files_are_copied_through_gpu_memory() {
    let dir = directory();
    let file = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (source, destination) = (file("source"), file("destination"));
    let data = bytes(1_000_001);
    fs::write(&source, &data).expect("it can be written");
    let cp = [
        "cp",
        &source,
        &destination,
        "--policy",
        "allow",
        "--verify",
        "--json",
    ];
    for chunk in ["1M", "64K", "77777", "1G"] {
        let run = Run::of(&mut vramio(&[&cp[..], &["--chunk", chunk]].concat()));
        let json = run.json();
        assert_eq!(json["bytes"], 1_000_001);
        for side in ["read", "write"] {
            let paths = json[side]["paths"].as_array().expect("paths");
            let sum: u64 = paths.iter().filter_map(|p| p["bytes"].as_u64()).sum();
            assert_eq!(sum, 1_000_001, "{json}");
            assert_eq!(json[side]["reasons"][0]["reason"], "no-module");
        }
        assert_eq!(json["verified"]["bytes"], 1_000_001);
        let most = 2 * (1_000_001u64.min(json["gpu_bytes"].as_u64().expect("a size")));
        assert!(json["gpu_bytes"].as_u64() <= Some(most.next_multiple_of(8192)));
        assert!(
            fs::read(&destination).expect("it is there") == data,
            "{chunk}"
        );
    }
    fs::write(&destination, vec![9; 300_000]).expect("it can be written");
    let range = [
        "--file-offset",
        "12345",
        "--dst-offset",
        "777",
        "--size",
        "200001",
        "--chunk",
        "65536",
    ];
    Run::of(&mut vramio(&[&cp[..], &range].concat())).json();
    let mut wanted = vec![9; 300_000];
    wanted[777..200_778].copy_from_slice(&data[12345..212_346]);
    assert!(fs::read(&destination).expect("it is there") == wanted);

    let link = file("link");
    fs::hard_link(&source, &link).expect("a link");
    for same in [&source, &link] {
        Run::of(&mut vramio(&["cp", &source, same, "--policy", "allow"])).fails(1, "the same file");
    }
    assert!(fs::read(&source).expect("it is there") == data);
    let new = file("new");
    Run::of(&mut vramio(&["cp", &source, &new])).fails(1, "no-module");
    assert!(!Path::new(&new).exists());

    let gpu = ["cp", &source, "gpu:0", "--policy", "allow", "--verify"];
    let run = Run::of(&mut vramio(&gpu));
    let says = format!("verified: 1000001 bytes of {source}, as read(2) gives them");
    assert!(run.stdout.contains(&says), "{}", run.stdout);
    let back = [
        "cp", "gpu:0", &new, "--size", "5000", "--policy", "allow", "--verify", "--json",
    ];
    assert_eq!(
        Run::of(&mut vramio(&back)).json()["verified"]["bytes"],
        5000
    );
}

/// The lines of a section, as scripts take them apart.
fn section<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let mut lines = text.lines().map(str::trim);
    let rule = |line: &str| !line.is_empty() && line.chars().all(|c| c == '=');
    assert!(
        lines.any(|line| line == format!("{heading}:")),
        "no {heading} in {text}"
    );
    assert!(lines.next().is_some_and(rule), "{text}");
    lines.take_while(|line| !rule(line)).collect()
}

/// Sections, rows and their order; and nothing is called supported that `check` does not call
/// direct.
#[test]
fn gdscheck_says_what_check_says() {
    let dir = directory();
    let gdscheck = named(&dir, "gdscheck");
    let run = Run::of(&mut plain(&gdscheck, &["-p"]));
    assert_eq!(run.status, 0, "{}", run.stderr);
    let text = &run.stdout;
    let mut at = 0;
    for heading in [
        "GDS release version:",
        "nvidia_fs version:",
        "Platform: x86_64",
        "ENVIRONMENT:",
        "DRIVER CONFIGURATION:",
        "CUFILE CONFIGURATION:",
        "GPU INFO:",
        "PLATFORM INFO:",
        "IOMMU:",
        "Nvidia Driver Info Status:",
        "Cuda Driver Version Installed:",
        "Arch: x86_64(Linux",
        "Platform verification",
    ] {
        let found = text[at..].find(heading);
        at += found.unwrap_or_else(|| panic!("no {heading:?} where it belongs: {text}"));
    }
    let rows: Vec<(&str, &str)> = section(text, "DRIVER CONFIGURATION")
        .into_iter()
        .map(|row| row.split_once(':').expect("a row"))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    let names: Vec<&str> = rows.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "NVMe",
            "NVMeOF",
            "SCSI",
            "ScaleFlux CSD",
            "FSx Lustre",
            "NVMesh",
            "DDN EXAScaler",
            "IBM Spectrum Scale",
            "NFS",
            "BeeGFS",
            "ScaTeFS",
            "VIRTIOFS",
            "WekaFS",
            "Userspace RDMA",
            "--Mellanox PeerDirect",
            "--DmaBuf support",
            "--rdma library",
            "--rdma devices",
            "--rdma_device_status",
        ]
    );
    let check = Run::of(&mut plain(
        Path::new(env!("CARGO_BIN_EXE_vramio")),
        &["check"],
    ));
    assert!(
        [2, 3].contains(&check.status),
        "a machine without the module"
    );
    let usable = check.status == 2;
    for (name, value) in &rows[..13] {
        let wanted = if usable { "compat" } else { "Unsupported" };
        assert_eq!(value, &wanted, "{name}");
    }
    for part in [
        "p2pdma,",
        ": Supported",
        "supports GDS",
        "verification succeeded",
    ] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    // Each thing that is in the way according to `check` is named, and no other.
    let fails =
        |text: &str, mark: &str| text.lines().filter(|l| l.trim().starts_with(mark)).count();
    assert_eq!(fails(text, "FAIL: "), fails(&check.stdout, "FAIL "));

    // The configuration in force, from the file that the variable names.
    let json = dir.path().join("cufile.json");
    fs::write(
        &json,
        r#"{"properties": {"allow_compat_mode": false, "io_batchsize": 5}}"#,
    )
    .expect("it can be written");
    let run = Run::of(plain(&gdscheck, &["-p"]).env("CUFILE_ENV_PATH_JSON", &json));
    let rows = section(&run.stdout, "CUFILE CONFIGURATION");
    assert!(
        rows.contains(&"properties.use_compat_mode : false"),
        "{rows:?}"
    );
    assert!(
        rows.contains(&"properties.max_batch_io_size : 5"),
        "{rows:?}"
    );
    assert!(section(&run.stdout, "DRIVER CONFIGURATION")[0].ends_with("Unsupported"));
    let environment = section(&run.stdout, "ENVIRONMENT");
    assert!(environment
        .iter()
        .any(|l| l.starts_with("CUFILE_ENV_PATH_JSON : /")));

    // The other questions.
    for (args, part) in [
        (
            &["-v"][..],
            "nvidia_fs version:  2.27 libcufile version: 1.18",
        ),
        (&["-V"], "tmpfs: tmpfs keeps the data in host memory; fix:"),
        (&["-m"], "tmpfs: tmpfs keeps the data in host memory"),
        (&["-t"], " NVMe "),
    ] {
        let run = Run::of(&mut plain(&gdscheck, args));
        assert!(
            run.status == 0 && run.stdout.contains(part),
            "{args:?}: {}",
            run.stdout
        );
    }
    let mounts = Run::of(&mut plain(
        Path::new(env!("CARGO_BIN_EXE_vramio")),
        &["check", "-m"],
    ));
    assert_eq!(
        Run::of(&mut plain(&gdscheck, &["-m"])).stdout,
        mounts.stdout
    );
    assert!(!mounts
        .stdout
        .lines()
        .any(|line| line.starts_with("direct ")));

    // With a GPU, a file can be registered where the configuration allows the copy.
    let test = std::env::current_exe().expect("the test's own path");
    let libraries = test.parent().expect("a directory");
    let file = [OsStr::new("-f"), json.as_os_str()];
    let with = |configured: &str| {
        let mut command = plain(&gdscheck, &file);
        command.env("LD_LIBRARY_PATH", libraries);
        Run::of(command.env("CUFILE_ENV_PATH_JSON", configured))
    };
    let run = with("");
    assert_eq!(run.status, 0, "{}", run.stdout);
    assert!(
        run.stdout.contains("GDS register success"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("compat (no-module"), "{}", run.stdout);
    let run = with(json.to_str().expect("UTF-8"));
    assert_eq!(run.status, 1, "{}", run.stdout);
    assert!(run.stdout.contains("GDS register failed"), "{}", run.stdout);
}

#[test]
fn completions_and_pages_are_made() {
    for shell in ["bash", "zsh", "fish"] {
        let run = Run::of(&mut vramio(&["completions", shell]));
        for part in ["load", "verify", "explain"] {
            assert!(run.stdout.contains(part), "{shell}: no {part}");
        }
    }
    let bash = Run::of(&mut vramio(&["completions", "bash"])).stdout;
    let script = format!("{bash}\nCOMP_WORDS=(vramio ch); COMP_CWORD=1; _vramio vramio ch vramio; echo ${{COMPREPLY[*]}}");
    let run = Run::of(Command::new("bash").args(["-c", &script]));
    assert_eq!((run.stdout.trim(), &*run.stderr), ("check", ""));
    let dir = directory();
    let run = Run::of(&mut vramio(&[OsStr::new("man"), dir.path().as_os_str()]));
    assert_eq!(run.status, 0, "{}", run.stderr);
    for page in [
        "vramio",
        "vramio-cp",
        "vramio-load",
        "vramio-check",
        "gdscheck",
    ] {
        let text = fs::read_to_string(dir.path().join(format!("{page}.1"))).expect("a page");
        assert!(
            text.contains(".SH NAME") && text.contains("Exit status"),
            "{page}"
        );
    }
}

/// Runs a command on a terminal of 80 columns; gives what it printed, and its status. When
/// `interrupt` has come up in it, it gets SIGINT.
fn on_terminal(mut command: Command, interrupt: Option<&str>) -> (String, i32) {
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(Some(&size), None).expect("a terminal");
    let side = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
    let mut child = command
        .stdin(side())
        .stdout(side())
        .stderr(side())
        .env("TERM", "xterm")
        .spawn()
        .expect("it starts");
    drop(command);
    drop(pty.slave);
    let mut terminal = File::from(pty.master);
    let (mut text, mut sent) = (Vec::new(), false);
    let mut buffer = [0; 4096];
    // EIO: nobody has the other side any more.
    while let Ok(got @ 1..) = terminal.read(&mut buffer) {
        text.extend_from_slice(&buffer[..got]);
        let seen = String::from_utf8_lossy(&text);
        if !sent && interrupt.is_some_and(|mark| seen.contains(mark)) {
            sent = true;
            let pid = Pid::from_raw(child.id() as i32);
            kill(pid, Signal::SIGINT).expect("it is there");
        }
    }
    let status = child.wait().expect("it ends");
    let text = String::from_utf8_lossy(&text).into_owned();
    (text, status.code().expect("no signal ended it"))
}

/// What a terminal shows of a text: without control sequences, as lines.
fn shown(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\r' | '\n' => lines.push(String::new()),
            '\u{1b}' => {
                let _ = chars.by_ref().skip(1).find(char::is_ascii_alphabetic);
            }
            c => lines.last_mut().expect("one").push(c),
        }
    }
    lines
}

#[test]
fn eighty_columns_are_enough() {
    for args in [
        &["--help"][..],
        &["cp", "--help"],
        &["load", "--help"],
        &["check", "--help"],
    ] {
        let (text, status) = on_terminal(vramio(args), None);
        assert_eq!(status, 0);
        for line in shown(&text) {
            assert!(line.chars().count() <= 80, "{args:?}: {line}");
        }
        assert!(
            text.contains('\u{1b}'),
            "a terminal gets bold headings: {args:?}"
        );
        let mut plain = vramio(args);
        plain.env("NO_COLOR", "1");
        let (text, _) = on_terminal(plain, None);
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let piped = Run::of(&mut vramio(args));
        assert!(!piped.stdout.contains('\u{1b}'), "{}", piped.stdout);
    }
}

/// Ctrl-C in the midst of a copy: it ends after the request under way, the bar goes, and the
/// summary has the exact count.
#[test]
fn an_interrupted_copy_says_how_far_it_came() {
    let dir = directory();
    let file = dir.path().join("large");
    let size = 256 << 20;
    File::create(&file)
        .and_then(|file| file.set_len(size))
        .expect("a file");
    let out = dir.path().join("copy");
    for to in [OsStr::new("gpu:0"), out.as_os_str()] {
        let mut command = vramio(&[OsStr::new("cp"), file.as_os_str(), to]);
        command.args(["--policy", "allow", "--chunk", "4K"]);
        let (text, status) = on_terminal(command, Some("MiB/"));
        assert_eq!(status, 130, "{text}");
        let lines = shown(&text);
        let bars = lines.iter().filter(|line| line.contains("MiB/"));
        assert!(bars.clone().count() > 0);
        let says = |part: &str| lines.iter().find(|line| line.contains(part)).expect(part);
        let summary = says(" of 268435456 bytes, ");
        let moved: u64 = summary
            .split(' ')
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a number");
        assert!(
            (1..size).contains(&moved) && moved.is_multiple_of(4096),
            "{summary}"
        );
        // The last bar leaves room for what the terminal shows of Ctrl-C, and is cleared.
        assert!(
            bars.clone().all(|bar| bar.chars().count() <= 77),
            "{text:?}"
        );
        let cleared = format!("\r\u{1b}[2K{} -> {}", file.display(), to.to_string_lossy());
        assert!(text.contains(&cleared), "{text:?}");
        let why = says("signal 2 ended the copy");
        assert!(
            why.contains(&format!("{moved} of {size} bytes moved")),
            "{why}"
        );
        if to != OsStr::new("gpu:0") {
            assert_eq!(fs::metadata(&out).expect("it is there").len(), moved);
        }
    }
}

/// A reader that has gone away is no failure, and no noise.
#[test]
fn a_closed_pipe_is_quiet() {
    let dir = directory();
    let gdscheck = named(&dir, "gdscheck");
    let own = Path::new(env!("CARGO_BIN_EXE_vramio"));
    for (program, args, statuses) in [
        (own, &["check"][..], &[2, 3][..]),
        (own, &["check", "-m", "--json"], &[0, 2, 3]),
        (own, &["config"], &[0]),
        (own, &["completions", "bash"], &[0]),
        (own, &["cp", "--help"], &[0]),
        (&gdscheck, &["-p"], &[0]),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = plain(program, args)
            .stdout(writer)
            .output()
            .expect("it runs");
        let status = output.status.code().expect("no signal ended it");
        assert!(statuses.contains(&status), "{args:?}: {status}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

/// One line that says what is wrong and what to do, and the status that the manual says: for
/// every command.
#[test]
fn bad_input_is_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    // Another user has to come to the program.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("they are ours");
    let program = dir.path().join("vramio");
    fs::copy(env!("CARGO_BIN_EXE_vramio"), &program).expect("a copy");
    for tool in ["gdscheck", "gdsio", "gdsio_verify", "gds_stats"] {
        std::os::unix::fs::symlink(&program, dir.path().join(tool)).expect("a link");
    }
    let file = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        path.to_str().expect("UTF-8").to_owned()
    };
    let good = file("good", "some bytes", 0o644);
    let secret = file("secret", "{}", 0o000);
    let toml = file("bad.toml", "threads = 0\n", 0o644);
    let junk = file("junk.toml", "[[[", 0o644);
    let json = file(
        "bad.json",
        "{ \"properties\": { \"io_batchsize\": \"x\" } }",
        0o644,
    );
    let broken = file("broken.json", "{ \"properties\": ", 0o644);
    let (good, secret) = (good.as_str(), secret.as_str());
    let none = "/nowhere/at/all";
    let run = |name: &str, args: &[&str], variable: (&str, &str)| {
        let mut command = plain(&dir.path().join(name), args);
        command.env(variable.0, variable.1);
        if geteuid().is_root() {
            // Nothing is forbidden to root.
            command.uid(65534).gid(65534);
        }
        Run::of(&mut command)
    };
    let nothing = ("LANG", "C");
    let mut faults = Vec::new();
    let mut expect = |name: &str, args: &[&str], variable, status, part: &str| {
        let fault = run(name, args, variable).fault(status, part);
        faults.extend(fault.map(|fault| format!("{name} {args:?} {variable:?}: {fault}\n")));
    };

    let usage: &[(&[&str], &str)] = &[
        (&["cp", good, "gpu:0", "--size", "1Q"], "'1Q'"),
        (&["cp", good, "gpu:0", "--size", "-5"], "'-5'"),
        (&["cp", good, "gpu:0", "--size="], "--size"),
        (
            &["cp", good, "gpu:0", "--size", "99999999999T"],
            "99999999999T",
        ),
        (&["cp", good, "gpu:0", "--file-offset", "-1"], "'-1'"),
        (&["cp", good, "b", "--dst-offset", "1.5"], "'1.5'"),
        (&["cp", good, "gpu:0", "--chunk", "0"], "must not be 0"),
        (&["cp", good, "gpu:x"], "no GPU's number"),
        (&["cp", good, "gpu:-1"], "no GPU's number"),
        (&["cp", good, "b", "--gpu", "-1"], "'-1'"),
        (&["cp", good, ""], "empty path"),
        (&["cp", good], "<DST>"),
        (&["cp", good, "gpu:0", "--policy", "never"], "'never'"),
        (&["load"], "<MODEL>"),
        (&["load", good, "--budget", "1Q"], "'1Q'"),
        (&["load", good, "--budget", "-1"], "'-1'"),
        (&["load", good, "--budget", "0"], "must not be 0"),
        (&["load", good, "--depth", "-1"], "'-1'"),
        (&["load", good, "--depth", "0"], "'0'"),
        (&["load", good, "--gpu", "-1"], "'-1'"),
        (&["load", good, "--gpu", "0,1,0"], "GPU 0 is named twice"),
        (&["load", good, "--gpu", "0,"], "no number of a GPU"),
        (&["load", good, "--gpu", "99999999999"], "99999999999"),
        (&["load", good, "--list", "--verify"], "cannot be used with"),
        (&["check", good, "--gpu", "-1"], "'-1'"),
        (&["check", good, "-m"], "cannot be used with"),
        (&["check", "--write"], "<FILE>"),
        (&["explain"], "<FILE>"),
        (&["explain", good, "--gpu", "x"], "'x'"),
        (&["stats", "-p", "-1"], "-1"),
        (&["stats", "-p", "x"], "'x'"),
        (&["stats", "--watch=0"], "'0'"),
        (&["run"], "<COMMAND>"),
        (&["completions", "csh"], "bash"),
        (&["completions", "bash", "ls"], "'ls'"),
        (&["man"], "<DIRECTORY>"),
        (&["prove"], "<FILE>"),
        (&["prove", good, "--size", "1Q"], "'1Q'"),
        (&["prove", good, "--gpu", "-1"], "'-1'"),
        (&["bench"], "<FILE>"),
        (&["bench", good, "--bs", "1Q"], "'1Q'"),
        (&["bench", good, "--size", "-1"], "'-1'"),
        (&["bench", good, "--threads", "0"], "'0'"),
        (&["bench", good, "--threads", "-1"], "'-1'"),
        (&["bench", good, "--runtime", "-1s"], "'-1"),
        (&["bench", good, "--rw", "erase"], "'erase'"),
        (&["tune"], "<FILE>"),
        (&["tune", good, "--runtime", "soon"], "'soon'"),
        (&["tune", good, "--rounds", "-1"], "-1"),
        (&["chek"], "'chek'"),
    ];
    for (args, part) in usage {
        expect("vramio", args, nothing, 64, part);
    }
    let commands = [
        "cp",
        "load",
        "check",
        "explain",
        "prove",
        "info",
        "config",
        "stats",
        "bench",
        "tune",
        "run",
        "completions",
        "man",
    ];
    for command in commands {
        expect(
            "vramio",
            &[command, "--frobnicate"],
            nothing,
            64,
            "'--frobnicate'",
        );
    }
    expect("vramio", &["--frobnicate"], nothing, 64, "'--frobnicate'");
    expect("gdscheck", &["-Q"], nothing, 64, "'-Q'");
    let tools: &[(&str, &[&str], &str)] = &[
        ("gdscheck", &["-f"], "<FILE>"),
        ("gdsio", &["-f", good, "-Q"], "-Q"),
        ("gdsio", &[none], "No such file"),
        ("gdsio", &["-f", good, "-s", "1Q"], "1Q"),
        ("gdsio", &["-f", good, "-s", "1M", "-w", "-1"], "-1"),
        ("gdsio", &["-f", good, "-s", "1M", "-x", "9"], "9"),
        ("gdsio_verify", &["-Q"], "-Q"),
        ("gdsio_verify", &["-f", good, "-s", "1Q"], "1Q"),
        ("gds_stats", &["-Q"], "-Q"),
        ("gds_stats", &["-p", "-1"], "-1"),
        ("gds_stats", &["-p", "1", "-l", "9"], "9"),
    ];
    for (name, args, part) in tools {
        expect(name, args, nothing, 64, part);
    }

    let model = dir.path().join("m.safetensors");
    fs::write(&model, "no model").expect("it can be written");
    let model = model.to_str().expect("UTF-8");
    let failures: &[(&str, &[&str], &str)] = &[
        ("vramio", &["cp", none, "gpu:0"], "ENOENT"),
        ("vramio", &["cp", "/dev/null", "gpu:0"], "file-type"),
        ("vramio", &["cp", "/", "gpu:0"], "file-type"),
        ("vramio", &["cp", secret, "gpu:0"], "EACCES"),
        (
            "vramio",
            &["cp", good, "gpu:0", "--size", "1M"],
            "use --size 10",
        ),
        (
            "vramio",
            &["cp", good, "gpu:0", "--policy", "allow"],
            "no-gpu",
        ),
        (
            "vramio",
            &["cp", good, "/nowhere/x", "--policy", "allow"],
            "no-gpu",
        ),
        ("vramio", &["load", none], "ENOENT"),
        ("vramio", &["load", secret, "--list"], "EACCES"),
        ("vramio", &["load", model, "--list"], "header"),
        ("vramio", &["load", "/dev/null", "--list"], "file-type"),
        ("vramio", &["check", none], "ENOENT"),
        ("vramio", &["check", secret], "EACCES"),
        ("vramio", &["check", good, "--gpu", "77"], "no-gpu"),
        ("vramio", &["explain", none], "ENOENT"),
        ("vramio", &["explain", secret], "EACCES"),
        ("vramio", &["info"], "no-module"),
        ("vramio", &["stats", "-p", "1"], "process 1"),
        ("vramio", &["stats", "--prometheus", "/nowhere/a"], "ENOENT"),
        ("vramio", &["man", none], "ENOENT"),
        ("vramio", &["man", "/proc"], "/proc/vramio.1"),
        (
            "vramio",
            &["bench", none, "--runtime", "1s"],
            "no such file",
        ),
        ("vramio", &["tune", none], "ENOENT"),
        ("gdsio", &["-f", none, "-s", "1M"], "no such file"),
        ("gdsio_verify", &["-f", none, "-s", "1M"], "ENOENT"),
        ("gds_stats", &["-p", "1"], "process 1"),
        ("gdscheck", &["-f", none], "ENOENT"),
        ("gdscheck", &["-f", secret], "EACCES"),
    ];
    for (name, args, part) in failures {
        expect(name, args, nothing, 1, part);
    }
    let configured = [
        ("vramio", &["config"][..]),
        ("vramio", &["cp", good, "gpu:0"]),
        ("vramio", &["load", good]),
        ("vramio", &["check"]),
        ("vramio", &["check", good]),
        ("vramio", &["explain", good]),
        ("vramio", &["bench", good, "--runtime", "1s"]),
        ("vramio", &["tune", good]),
        ("gdscheck", &["-p"]),
        ("gdsio", &["-f", good, "-s", "1M"]),
        ("gdsio_verify", &["-f", good, "-s", "8"]),
    ];
    for (name, args) in configured {
        for (value, part) in [
            (toml.as_str(), "line 1"),
            (&junk, "junk.toml"),
            (secret, "EACCES"),
            (none, "ENOENT"),
        ] {
            expect(name, args, ("VRAMIO_CONFIG", value), 1, part);
        }
        expect(name, args, ("VRAMIO_THREADS", "1Q"), 1, "VRAMIO_THREADS");
    }
    for (value, part) in [
        (json.as_str(), "line 1"),
        (&broken, "broken.json"),
        (secret, "Permission denied"),
        (none, "No such file"),
    ] {
        for (name, args) in [
            ("gdscheck", &["-p"][..]),
            ("gdsio", &["-f", good, "-s", "1M"]),
            ("gdsio_verify", &["-f", good, "-s", "8"]),
        ] {
            expect(name, args, ("CUFILE_ENV_PATH_JSON", value), 1, part);
        }
    }
    assert!(faults.is_empty(), "{}", faults.concat());
}

/// Counts something in this process: reads into host memory, and calls as of libcufile.
fn count() {
    use vramio::stats::{count_calls, Call};
    let dir = directory();
    let path = dir.path().join("file");
    fs::write(&path, vec![7; 5 << 20]).expect("it can be written");
    let context = vramio::Context::with_config(vramio::Config::default()).expect("a context");
    let file = vramio::File::open(&context, &path).expect("it opens");
    let mut memory = vec![0u8; 5 << 20];
    // SAFETY: The memory outlives the buffer, and nobody looks at it.
    let buffer =
        unsafe { vramio::GpuBuffer::from_host(&context, memory.as_mut_ptr().cast(), memory.len()) };
    let buffer = buffer.expect("a buffer");
    for len in [5 << 20, 5 << 20, 4096, 1] {
        let read = file.read_at(&buffer, 0, 0, len).expect("it reads");
        assert_eq!(read.bytes, len);
    }
    assert!(file.write_at(&buffer, 0, 0, 1).is_err(), "open for reading");
    let took = std::time::Duration::from_micros(30);
    count_calls(Call::BatchSubmit, 3, 1, took, [0; 2]);
    count_calls(Call::BatchComplete, 3, 0, took, [9 << 20, 0]);
}

#[test]
fn gds_stats_says_what_was_counted() {
    let dir = directory();
    let gds_stats = named(&dir, "gds_stats");
    count();
    let pid = std::process::id().to_string();
    let says = |level: &str| {
        let run = Run::of(&mut plain(&gds_stats, &["-p", &pid, "-l", level]));
        assert_eq!(run.status, 0, "{}", run.stderr);
        run.stdout
    };
    let one = says("1");
    for line in [
        "Read: ok = 4 err = 0",
        "Write: ok = 0 err = 1",
        "BatchSubmit: ok = 3 err = 1",
        "BatchComplete: ok = 3 err = 0",
        "HandleRegister: ok = 0 err = 0",
        "Total Read Size (MiB): 10",
        "Read BandWidth (GiB/s): 0.000000",
        "Total Batch Read Size (MiB): 9",
        "Avg Batch Submit Latency (us): 10",
    ] {
        assert!(one.lines().any(|said| said == line), "{line}: {one}");
    }
    assert!(!one.contains("HISTOGRAM"), "{one}");
    let two = says("2");
    for line in [
        "0-4(KiB): 1  1",
        "4-8(KiB): 1  0",
        "4096-8192(KiB): 2  0",
        "65536-...(KiB): 0  0",
    ] {
        assert!(two.lines().any(|said| said == line), "{line}: {two}");
    }
    let three = says("3");
    let gpu = three
        .lines()
        .find(|line| line.starts_with("GPU host Read: "));
    let gpu = gpu.expect("a line for host memory");
    for part in [" n=4 posix=4 ", " err=0 MiB=10 Write: ", " n=1 posix=0 "] {
        assert!(gpu.contains(part), "{part}: {gpu}");
    }
    // The same figures by our own command, level by level.
    let stats = |level| Run::of(&mut vramio(&["stats", "-p", &pid, "-l", level])).stdout;
    assert!(stats("1").contains("read: 4 requests, 10489857 bytes"));
    assert!(!stats("1").contains("compat-"));
    assert!(stats("2").contains("2 of 4194304 to 8388607 bytes"));
    assert!(stats("3").contains("GPU host"));
    assert!(stats("3").contains("module: not readable: open /dev/vramio"));

    Run::of(&mut plain(&gds_stats, &["-p", "1"])).fails(1, "process 1");
    for bad in [&["-p", "x"][..], &[], &["-p", &pid, "-l", "4"]] {
        let run = Run::of(&mut plain(&gds_stats, bad));
        assert_eq!(
            (run.status, run.stderr.lines().count()),
            (64, 1),
            "{}",
            run.stderr
        );
    }
}
