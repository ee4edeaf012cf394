// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the command does where the module is not loaded: it says so, and
//! changes nothing.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

struct Run {
    status: i32,
    stdout: String,
    stderr: String,
}

fn vramio<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Run {
    assert!(
        !Path::new("/dev/vramio").exists(),
        "this test is about a machine without the module: unload vramio.ko"
    );
    let output = command(args).output().expect("the command runs");
    Run::from(output)
}

fn command<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramio"));
    // cargo puts the mock of the CUDA driver on the path.
    command
        .args(args)
        .stdin(Stdio::null())
        .env_remove("LD_LIBRARY_PATH");
    command
}

/// The exit status for a file that can't go direct: through host memory into a CUDA
/// device, or nowhere.
fn not_direct() -> i32 {
    if Path::new("/dev/nvidia0").exists() {
        2
    } else {
        3
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Run {
            status: output.status.code().expect("no signal ended it"),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

impl Run {
    /// A failure of one line on standard error.
    fn fails(&self, status: i32, parts: &[&str]) {
        assert_eq!(self.status, status, "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self.says(parts);
    }

    /// Bad usage, which clap explains.
    fn is_usage(&self, parts: &[&str]) {
        self.fails(64, parts);
        assert_eq!(self.stdout, "");
    }

    fn says(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).expect("one JSON object")
    }
}

fn directory_with_file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    fs::write(&file, [7; 4096]).expect("it can be written");
    (dir, file)
}

fn os(text: &str) -> &OsStr {
    OsStr::new(text)
}

#[test]
fn a_missing_module_is_named_with_the_fix() {
    let (_dir, file) = directory_with_file();
    let run = vramio([os("cp"), file.as_os_str(), os("gpu:0")]);
    run.fails(1, &["/dev/vramio", "no-module", "fix: load vramio.ko"]);
    assert_eq!(run.stdout, "");
}

#[test]
fn a_missing_module_is_json_too() {
    let (_dir, file) = directory_with_file();
    let run = vramio([os("cp"), os("--json"), file.as_os_str(), os("gpu:0")]);
    assert_eq!(run.status, 1);
    assert_eq!(run.json()["error"]["reason"], "no-module");
    assert_eq!(run.json()["error"]["errno"], "ENOENT");
}

#[test]
fn a_failed_copy_creates_and_changes_no_file() {
    let (dir, file) = directory_with_file();
    let new = dir.path().join("new");
    for destination in [&file, &new] {
        let run = vramio([
            os("cp"),
            os("--size"),
            os("4K"),
            os("gpu:0"),
            destination.as_os_str(),
        ]);
        run.fails(1, &["no-module"]);
    }
    assert!(!new.exists());
    assert_eq!(fs::read(&file).expect("it is still there"), [7; 4096]);
}

#[test]
fn a_missing_source_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("missing");
    let run = vramio([os("cp"), missing.as_os_str(), os("gpu:0")]);
    run.fails(1, &["missing", "No such file", "ENOENT", "fix:"]);
    let run = vramio([os("check"), missing.as_os_str()]);
    run.fails(1, &["missing", "No such file", "ENOENT", "fix:"]);
}

#[test]
fn what_is_no_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for bad in [dir.path(), Path::new("/dev/null")] {
        vramio([os("cp"), bad.as_os_str(), os("gpu:0")]).fails(1, &["file-type", "fix:"]);
        let run = vramio([os("check"), bad.as_os_str()]);
        assert_eq!(run.status, 3);
        assert!(run.stdout.contains("reason: file-type"), "{}", run.stdout);
    }
}

#[test]
fn a_fifo_does_not_hang() {
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = dir.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo runs").success());
    vramio([os("cp"), fifo.as_os_str(), os("gpu:0")]).fails(1, &["file-type"]);
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let (_dir, file) = directory_with_file();
    let cp = |size: &str, offset: &str| {
        let range = [os("--size"), os(size), os("--file-offset"), os(offset)];
        let sides = [os("cp"), file.as_os_str(), os("gpu:0")];
        vramio(sides.into_iter().chain(range))
    };
    cp("4097", "0").fails(1, &["4097", "4096", "use --size 4096"]);
    cp("1", "4K").fails(1, &["before the end", "--file-offset"]);
    cp("0", "4097").fails(1, &["before the end", "--file-offset"]);
}

#[test]
fn one_side_must_be_a_file() {
    vramio(["cp", "gpu:0", "gpu:1"]).is_usage(&["both sides are GPU memory"]);
    for (one, other) in [("a", "gpu:0"), ("gpu:0", "a")] {
        vramio(["cp", one, other, "--gpu", "1"]).is_usage(&["between two files"]);
        vramio(["cp", one, other, "--dst-offset", "1"]).is_usage(&["between two files"]);
    }
}

#[test]
fn gpu_memory_as_source_needs_a_size() {
    let dir = tempfile::tempdir().expect("a directory");
    let new = dir.path().join("new");
    let run = vramio([os("cp"), os("gpu:0"), new.as_os_str()]);
    run.is_usage(&["--size"]);
    assert!(!new.exists());
}

#[test]
fn bad_values_are_explained() {
    for size in ["1Q", "-5", "x", "", "99999999999T"] {
        vramio(["cp", "a", "gpu:0", "--size", size]).is_usage(&["--size"]);
    }
    vramio(["cp", "a", "gpu:0", "--chunk", "0"]).is_usage(&["must not be 0"]);
    vramio(["cp", "a", "gpu:x"]).is_usage(&["no GPU's number"]);
    vramio(["cp", "a"]).is_usage(&["DST"]);
    vramio(["explain"]).is_usage(&["FILE"]);
    vramio(["check", "a", "--mounts"]).is_usage(&["--mounts"]);
    vramio(["check", "--write"]).is_usage(&["FILE"]);
    vramio(["check", "a", "--gpu", "-1"]).is_usage(&["--gpu"]);
    vramio(["move"]).is_usage(&["move"]);
    vramio(["cp", "a", "gpu:0", "--json", "--quiet"]).is_usage(&["--quiet"]);
}

#[test]
fn check_says_that_the_module_is_missing() {
    let (_dir, file) = directory_with_file();
    for extra in ["--", "--write"] {
        let run = vramio([os("check"), file.as_os_str(), os(extra)]);
        assert_eq!(run.status, not_direct());
        assert_eq!(run.stderr, "");
        for line in [
            "verdict: refused",
            "reason: no-module",
            "fix: load vramio.ko",
        ] {
            assert!(run.stdout.contains(line), "{}", run.stdout);
        }
    }
    let run = vramio([os("check"), os("--json"), file.as_os_str()]);
    assert_eq!(run.status, not_direct());
    let json = run.json();
    assert_eq!(json["verdict"], "refused");
    assert_eq!(json["reason"]["reason"], "no-module");
    assert_eq!(json["gpu"], serde_json::Value::Null);
    assert_eq!(fs::read(&file).expect("it is still there"), [7; 4096]);
    let run = vramio([os("check"), file.as_os_str(), os("--gpu=99")]);
    run.fails(1, &["/dev/mockgpu99", "no-gpu", "fix:"]);
}

/// What holds of any machine that has no module.
#[test]
fn a_machine_without_the_module_is_not_direct() {
    let run = vramio(["check"]);
    assert!([2, 3].contains(&run.status), "{}", run.stderr);
    assert_eq!(run.stderr, "");
    for line in ["kernel\n", "module\n", "FAIL  module", "verdict: "] {
        assert!(run.stdout.contains(line), "no {line:?} in {}", run.stdout);
    }
    let run = vramio(["check", "--topology", "--json"]);
    let json = run.json();
    assert_ne!(json["verdict"], "direct");
    assert!(json["topology"]["functions"].is_array(), "{json}");
    let module = &json["findings"]["module"][0];
    assert_eq!(
        (&module["what"], &module["state"]),
        (&"module".into(), &"fail".into())
    );
}

/// Any server can be asked about: what `check` prints of one is taken elsewhere.
#[test]
fn ways_of_a_described_server_are_shown() {
    let mut server: serde_json::Value =
        serde_json::from_str(include_str!("two-switches.json")).expect("a server");
    server["peers"] = serde_json::json!([["0000:01:00.0", "0000:02:00.0"]]);
    let tree = serde_json::json!({ "verdict": "fallback", "topology": server });
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("it can be written");
        path
    };
    let description = file("tree.json", &tree.to_string());
    let ask = |variables: &[(&str, &OsStr)]| {
        let args = [os("check"), os("-t"), os("--tree"), description.as_os_str()];
        let mut command = command(args.into_iter().chain([os("--json")]));
        command.env("VRAMIO_CONFIG", "");
        command.envs(variables.iter().copied());
        Run::from(command.output().expect("the command runs"))
    };
    let far = |run: &Run| run.json()["routing"]["pairs"][1].clone();
    let off = ask(&[]);
    assert_eq!((off.status, &*off.stderr), (0, ""));
    assert_eq!(far(&off)["takes"]["kind"], "host");
    assert_eq!(far(&off)["others"][0]["reason"], "routing-off");
    let on = [("VRAMIO_ROUTING_ENABLED", os("true"))];
    let run = ask(&on);
    assert_eq!(far(&run)["takes"]["kind"], "peer");
    assert_eq!(far(&run)["takes"]["via"], "0000:01:00.0");
    assert_eq!(far(&run)["others"][1]["reason"], "host-bridge");

    let routes = file(
        "routes.toml",
        "[[route]]\ngpu = \"*\"\ndrive = \"*\"\nvia = \"host\"\n",
    );
    let run = ask(&[on[0], ("VRAMIO_ROUTING_FILE", routes.as_os_str())]);
    assert_eq!(run.status, 2);
    assert_eq!(far(&run)["takes"]["kind"], "host");
    assert_eq!(far(&run)["others"][0]["reason"], "route-override");
    let bad = file("bad.toml", "[[route]]\ngpu = \"gpu:0\"\n");
    let run = ask(&[on[0], ("VRAMIO_ROUTING_FILE", bad.as_os_str())]);
    assert_eq!(run.status, 1);
    assert!(run.stdout.contains("route.gpu"), "{}", run.stdout);
    // Without a tree it is none.
    let none = file("none.json", "{}");
    let run = vramio([os("check"), os("-t"), os("--tree"), none.as_os_str()]);
    run.fails(1, &["none.json", "functions"]);
    vramio([os("check"), os("--tree"), none.as_os_str()]).is_usage(&["--topology"]);
}

#[test]
fn mounts_are_listed_with_their_reasons() {
    let run = vramio(["check", "-m", "--json"]);
    assert!([0, 2, 3].contains(&run.status), "{}", run.stderr);
    let json = run.json();
    let mounts = json["mounts"].as_array().expect("a list");
    let memory = mounts
        .iter()
        .find(|mount| mount["file_system"] == "tmpfs")
        .expect("each Linux machine has a tmpfs");
    assert_eq!(memory["reason"], "tmpfs");
    assert_ne!(memory["verdict"], "direct");
    let text = vramio(["check", "-m"]).stdout;
    assert!(
        text.contains(memory["mount"].as_str().expect("a path")),
        "{text}"
    );
}

#[test]
fn a_file_in_memory_is_explained() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let file = dir.path().join("file");
    fs::write(&file, [7; 4096]).expect("it can be written");
    let run = vramio([os("explain"), file.as_os_str()]);
    assert_eq!(run.status, not_direct());
    for line in [
        "NO    tmpfs (file system): tmpfs:",
        "first in the way: tmpfs (file system)",
        "reason: no-module",
    ] {
        assert!(run.stdout.contains(line), "no {line:?} in {}", run.stdout);
    }
    let run = vramio([os("explain"), os("--json"), file.as_os_str()]);
    let json = run.json();
    assert_eq!(json["first_obstacle"], "tmpfs (file system)");
    assert_eq!(json["chain"]["below"][0]["reason"], "tmpfs");
    let run = vramio([os("explain"), dir.path().join("none").as_os_str()]);
    run.fails(1, &["none", "ENOENT", "fix:"]);
}

#[test]
fn info_says_that_the_module_is_missing() {
    vramio(["info"]).fails(1, &["no-module"]);
    let run = vramio(["info", "--json"]);
    assert_eq!(run.status, 1);
    assert_eq!(run.json()["error"]["reason"], "no-module");
}

#[test]
fn help_names_exit_statuses_and_units() {
    let run = vramio(["cp", "--help"]);
    assert_eq!(run.status, 0);
    for part in [
        "Exit status",
        "powers of 1024",
        "gpu:N",
        "--file-offset",
        "16M",
    ] {
        assert!(run.stdout.contains(part), "no {part:?} in {}", run.stdout);
    }
    let run = vramio(["check", "--help"]);
    assert!(run.stdout.contains("Exit status"), "{}", run.stdout);
}

#[test]
fn a_reader_that_is_gone_is_no_failure() {
    let (_dir, file) = directory_with_file();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command([os("check"), file.as_os_str()])
        .stdout(writer)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(not_direct()));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn an_output_that_takes_nothing_is_a_failure() {
    let (_dir, file) = directory_with_file();
    let full = fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full opens");
    let output = command([os("check"), file.as_os_str()])
        .stdout(full)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ENOSPC"));
}

/// Runs the command with a configuration file and variables.
fn configured(text: &str, variables: &[(&str, &str)], args: &[&str]) -> (TempDir, Run) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("vramio.toml");
    fs::write(&file, text).expect("it can be written");
    let mut command = command(args);
    command.env("VRAMIO_CONFIG", &file);
    command.envs(variables.iter().copied());
    let run = Run::from(command.output().expect("the command runs"));
    (dir, run)
}

#[test]
fn every_value_says_where_it_comes_from() {
    let text = "threads = 3\nslab_bytes = \"1M\"\n";
    let variables = [("VRAMIO_THREADS", "2")];
    let (dir, run) = configured(text, &variables, &["config", "--json"]);
    assert_eq!(run.status, 0, "{}", run.stderr);
    let json = run.json();
    assert_eq!(json["threads"]["value"], "2");
    assert_eq!(json["threads"]["source"], "environment VRAMIO_THREADS");
    assert_eq!(json["slab_bytes"]["value"], "1048576");
    let file = dir.path().join("vramio.toml");
    assert_eq!(
        json["slab_bytes"]["source"],
        format!("{} line 2", file.display())
    );
    assert_eq!(json["policy"]["source"], "default");

    let (_dir, run) = configured(text, &variables, &["config"]);
    let line = "threads = 2  (environment VRAMIO_THREADS)\n";
    assert!(run.stdout.contains(line), "{}", run.stdout);
}

/// A configuration that is no good ends every command that reads one, before it does
/// anything.
#[test]
fn a_bad_configuration_is_refused() {
    let (dir, file) = directory_with_file();
    let source = file.to_str().expect("UTF-8");
    for args in [&["config"][..], &["cp", source, "gpu:0"]] {
        let (_dir, run) = configured("\nthreads = 0", &[], args);
        run.fails(1, &["vramio.toml line 2", "threads = 0", "fix:"]);
        let (_dir, run) = configured("", &[("VRAMIO_POLICY", "never")], args);
        run.fails(1, &["environment VRAMIO_POLICY", "policy = never", "fix:"]);
    }
    drop(dir);
}

/// `vramio cp` is strict, unless somebody says otherwise.
#[test]
fn the_command_line_goes_before_the_configuration() {
    let (_dir, file) = directory_with_file();
    let source = file.to_str().expect("UTF-8");
    let strict = |text: &str, variables: &[(&str, &str)], more: &[&str]| {
        let args = [&["cp", source, "gpu:0"], more].concat();
        let (_dir, run) = configured(text, variables, &args);
        // Without a module or a GPU, only what is missing first tells the two apart.
        run.stderr.contains("/dev/vramio:")
    };
    let allow = "policy = \"allow\"";
    assert!(strict("", &[], &[]));
    assert!(!strict(allow, &[], &[]));
    assert!(!strict("", &[("VRAMIO_POLICY", "warn")], &[]));
    assert!(strict(allow, &[("VRAMIO_POLICY", "strict")], &[]));
    assert!(strict(allow, &[], &["--policy", "strict"]));
    assert!(!strict("", &[], &["--policy", "allow"]));
}

/// Reads a file into host memory, in this process: so there is something to count.
fn count(requests: usize) {
    let (_dir, file) = directory_with_file();
    let context = vramio::Context::with_config(vramio::Config::default()).expect("a context");
    let file = vramio::File::open(&context, file).expect("it opens");
    let mut memory = vec![0u8; 4096];
    // SAFETY: The memory outlives the buffer, and nobody looks at it.
    let buffer =
        unsafe { vramio::GpuBuffer::from_host(&context, memory.as_mut_ptr().cast(), memory.len()) };
    let buffer = buffer.expect("a buffer");
    for _ in 0..requests {
        assert_eq!(
            file.read_at(&buffer, 0, 0, 4096).expect("it reads").bytes,
            4096
        );
    }
}

/// What a process counted is what the command shows of it, in each form.
#[test]
fn stats_show_what_was_counted() {
    let pid = std::process::id().to_string();
    count(3);
    let find = |json: &serde_json::Value| {
        let processes = json["processes"].as_array().expect("a list");
        let mut own = processes
            .iter()
            .filter(|process| process["pid"] == std::process::id());
        let found = own.next().expect("this process").clone();
        assert!(own.next().is_none());
        found["gpus"]["host"]["read"].clone()
    };
    let run = vramio(["stats", "-p", &pid, "--json"]);
    assert_eq!(run.status, 0, "{}", run.stderr);
    let read = find(&run.json());
    assert_eq!(read["requests"], 3);
    assert_eq!(read["bytes"], 3 * 4096);
    assert_eq!(read["in_flight"], 0);
    let path = &read["paths"]["compat-cache"];
    assert_eq!(path["sizes"]["4096"], 3, "{read}");
    assert_eq!(path["bytes"], 3 * 4096);
    let reasons = read["reasons"].as_object().expect("reasons");
    assert_eq!(reasons.len(), 1, "{read}");
    assert_eq!(find(&vramio(["stats", "--json"]).json()), read);

    let text = vramio(["stats", "-p", &pid]).stdout;
    assert!(text.contains("read: 3 requests, 12288 bytes"), "{text}");
    assert!(text.contains("compat-cache: 3 requests"), "{text}");

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("vramio.prom");
    let name = file.to_str().expect("UTF-8");
    let run = vramio(["stats", "-p", &pid, "--prometheus", name]);
    assert_eq!((run.status, &*run.stdout), (0, ""), "{}", run.stderr);
    let text = fs::read_to_string(&file).expect("it is there");
    let line = text
        .lines()
        .find(|line| line.starts_with("vramio_bytes_total{"));
    let line = line.expect("a line");
    assert!(line.contains(&format!("pid=\"{pid}\"")), "{line}");
    assert!(
        line.ends_with(r#"direction="read",path="compat-cache"} 12288"#),
        "{line}"
    );

    // What happens between two lines is in the second, and a signal ends it.
    let mut child = command(["stats", "-p", &pid, "--json", "--watch"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || -> serde_json::Value {
        let line = lines.next().expect("a line").expect("UTF-8");
        serde_json::from_str(&line).expect("one JSON object")
    };
    assert_eq!(find(&next()), read);
    count(2);
    let later = next();
    let read = find(&later);
    assert_eq!(
        (&read["requests"], &read["bytes"]),
        (&2.into(), &(2 * 4096).into())
    );
    assert!(later["interval_seconds"].as_f64().expect("a number") >= 1.0);
    assert_eq!(find(&next())["requests"], 0);
    // SAFETY: The call takes numbers, and the process is a child.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert!(child.wait().expect("it ends").success());

    let gone = vramio(["stats", "-p", "1"]);
    gone.fails(1, &["process 1", "fix:"]);
    let run = vramio(["stats", "--prometheus", "/nowhere/a.prom"]);
    run.fails(1, &["/nowhere/a.prom"]);
}

#[test]
fn prove_needs_a_gpu_and_the_module_and_leaves_no_file() {
    let (dir, file) = directory_with_file();
    let run = vramio([os("prove"), file.as_os_str()]);
    run.fails(not_direct(), &["fix: "]);
    // With a GPU, the module is what is missing.
    let output = Command::new(env!("CARGO_BIN_EXE_vramio"))
        .args([os("prove"), os("--json"), file.as_os_str()])
        .output()
        .expect("the command runs");
    let run = Run::from(output);
    run.fails(2, &["no-module", "fix: load vramio.ko"]);
    assert_eq!(run.json()["error"]["reason"], "no-module");
    let left: Vec<_> = fs::read_dir(dir.path()).expect("a directory").collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(fs::read(&file).expect("it is there"), [7; 4096]);

    vramio([os("prove")]).is_usage(&["<FILE>"]);
    vramio([os("prove"), file.as_os_str(), os("--size"), os("0")]).is_usage(&["must not be 0"]);
    vramio(["prove", "/nowhere/file", "--gpu", "x"]).is_usage(&["--gpu"]);
}
