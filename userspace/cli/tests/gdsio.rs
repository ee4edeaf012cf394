// SPDX-License-Identifier: MIT OR Apache-2.0

//! `gdsio` and `gdsio_verify` by their names, on the mock of CUDA's driver, without the module.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A directory on a real file system, in which the tools have their names.
fn directory() -> TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    for name in ["gdsio", "gdsio_verify"] {
        let link = dir.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vramio"), link).expect("a link");
    }
    dir
}

/// Runs a line of a script.
fn run(dir: &Path, line: &str) -> Output {
    let words: Vec<&str> = line.split_whitespace().collect();
    let program = std::env::current_exe().expect("the test's own path");
    Command::new(dir.join(words[0]))
        .args(&words[1..])
        .current_dir(dir)
        .stdin(Stdio::null())
        .env("VRAMIO_CONFIG", "")
        .env("LD_LIBRARY_PATH", program.parent().expect("a directory"))
        .output()
        .expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What it prints, if it succeeds.
fn works(dir: &TempDir, line: &str) -> String {
    let output = run(dir.path(), line);
    assert!(output.status.success(), "{line}: {output:?}");
    text(&output.stdout)
}

fn fails(dir: &TempDir, line: &str, status: i32, part: &str) {
    let output = run(dir.path(), line);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{line}: {stderr}");
    assert!(stderr.contains(part), "{line}: no {part:?} in {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    if status == 1 {
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

/// The fields of a result, as scripts take it apart: a name, then its value.
fn fields(line: &str) -> BTreeMap<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let named = |word: &str| word.ends_with(':') || word == "total_time";
    words
        .windows(2)
        .filter(|pair| named(pair[0]))
        .map(|pair| (pair[0].trim_end_matches(':').to_owned(), pair[1].to_owned()))
        .collect()
}

/// The results among the lines.
fn results(output: &str) -> Vec<BTreeMap<String, String>> {
    let lines = output.lines().filter(|line| line.starts_with("IoType:"));
    lines.map(fields).collect()
}

#[test]
fn every_transfer_writes_and_reads_back() {
    let dir = directory();
    let names = [
        "GPUD",
        "CPUONLY",
        "CPU_GPU",
        "CPU_ASYNC_GPU",
        "CPU_CACHED_GPU",
        "GPUD_ASYNC",
        "GPU_BATCH",
        "GPU_BATCH_STREAM",
    ];
    for (number, name) in names.into_iter().enumerate() {
        let options = format!("-f file{number} -d 0 -w 2 -s 2M -i 64K -k {number}");
        let batch = number >= 6;
        let extra = if batch { "-B 4" } else { "" };
        let said = works(
            &dir,
            &format!("gdsio {options} {extra} -x {number} -I 1 -V"),
        );
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 3, "{said}");
        assert_eq!(lines[1], "Verifying data", "{said}");
        for (result, kind) in results(&said).iter().zip(["WRITE", "READ"]) {
            assert_eq!(result["IoType"], kind, "{said}");
            assert_eq!(result["XferType"], name, "{said}");
            assert_eq!(result["Threads"], "2", "{said}");
            assert_eq!(
                result.get("IoDepth").map(String::as_str),
                batch.then_some("4")
            );
            assert_eq!(result["DataSetSize"], "2048/2048(KiB)", "{said}");
            assert_eq!(result["IOSize"], "64(KiB)", "{said}");
            assert_eq!(result["ops"], "32", "{said}");
            for number in ["Throughput", "Avg_Latency", "total_time"] {
                assert!(
                    result[number].parse::<f64>().expect("a number") > 0.0,
                    "{said}"
                );
            }
        }
        // What one of them has written, all others read; another seed is not the same data.
        for other in [0, 2, 6] {
            works(&dir, &format!("gdsio {options} -x {other} -I 0 -V"));
        }
        let wrong = format!("gdsio -f file{number} -s 2M -i 64K -k 99 -x {number} -I 0 -V");
        fails_verify(&dir, &wrong);
    }
    // One wrong byte is enough.
    let file = File::options().write(true).open(dir.path().join("file0"));
    let file = file.expect("it opens");
    file.write_all_at(&[0x5a], 1_234_567)
        .expect("it can be written");
    let stderr = fails_verify(&dir, "gdsio -f file0 -w 2 -s 2M -i 64K -k 0 -x 0 -I 0 -V");
    assert!(stderr.contains("byte 1234567"), "{stderr}");
}

fn fails_verify(dir: &TempDir, line: &str) -> String {
    let output = run(dir.path(), line);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}: {stderr}");
    assert!(stderr.contains("is not what seed"), "{line}: {stderr}");
    stderr
}

#[test]
fn random_places_are_found_again() {
    let dir = directory();
    for extra in ["", "-a 64K", "-U", "-U -x 4"] {
        let options = format!("-f file -w 3 -s 3M -i 4K:16K:4K -k 308 {extra}");
        let said = works(&dir, &format!("gdsio {options} -I 3 -V"));
        let results = results(&said);
        assert_eq!(results[0]["IoType"], "RANDWRITE", "{said}");
        assert_eq!(results[1]["IoType"], "RANDREAD", "{said}");
        assert_eq!(results[0]["IOSize"], "4-16-4(KiB)", "{said}");
        assert_eq!(
            results[0]["DataSetSize"], results[1]["DataSetSize"],
            "{said}"
        );
        works(&dir, &format!("gdsio {options} -I 2 -V"));
    }
}

#[test]
fn a_directory_has_a_file_for_each_thread() {
    let dir = directory();
    fs::create_dir(dir.path().join("d")).expect("a directory");
    let missing = "gdsio -D d -w 3 -s 1M -i 128K -I 0";
    fails(&dir, missing, 1, "write it first");
    works(&dir, "gdsio -D d -w 3 -s 1M -i 128K -I 1");
    for thread in 0..3 {
        let file = dir.path().join(format!("d/gdsio.{thread}"));
        assert_eq!(fs::metadata(file).expect("it is there").len(), 1 << 20);
    }
    let read = &results(&works(&dir, missing))[0];
    assert_eq!(read["DataSetSize"], "3072/3072(KiB)");
    assert_eq!(read["ops"], "24");

    // With a time it goes on until that is over, and checks nothing.
    let said = works(&dir, "gdsio -D d -w 3 -s 1M -i 128K -I 0 -T 1 -V -k 5");
    let result = &results(&said)[0];
    let (done, total) = result["DataSetSize"].split_once('/').expect("two numbers");
    assert_eq!(total, "3072(KiB)");
    assert!(done.parse::<u64>().expect("a number") > 3072, "{said}");
    let time: f64 = result["total_time"].parse().expect("a number");
    assert!((0.9..5.0).contains(&time), "{said}");
    fails(
        &dir,
        "gdsio -D d -w 3 -s 2M -I 0",
        1,
        "the file has 1048576 there",
    );
}

#[test]
fn a_configuration_file_has_jobs() {
    let dir = directory();
    fs::create_dir(dir.path().join("d")).expect("a directory");
    let global = "[global]\nname=two jobs\nxfer_type=0\nbs=64K\nsize=1MB\ndo_verify=1\n";
    let jobs = "[job1]\ngpu_dev_id=0\nnum_threads=2\ndirectory=d\n\
                [job2]\nfilename=f\nio_size=32K\nmem_type=4\n";
    let config = dir.path().join("a.gdsio");
    fs::write(&config, format!("{global}rw=write\n{jobs}")).expect("it can be written");
    let said = works(&dir, "gdsio a.gdsio");
    let result = &results(&said)[0];
    assert_eq!(result["Threads"], "3", "{said}");
    assert_eq!(result["DataSetSize"], "3072/3072(KiB)", "{said}");
    assert_eq!(result["ops"], (2 * 16 + 32).to_string(), "{said}");

    fs::write(&config, format!("{global}rw=sideways\n{jobs}")).expect("it can be written");
    fails(
        &dir,
        "gdsio a.gdsio",
        64,
        "a.gdsio: line 7: rw=sideways: use read, write",
    );

    let said = works(&dir, "gdsio -D d -w 2 -f f -w 1 -s 1M -I 0 -J");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("[job1] IoType: READ") && lines[1].starts_with("[job2] "));
    assert_eq!(fields(lines[0])["DataSetSize"], "2048/2048(KiB)", "{said}");
    assert_eq!(fields(lines[2])["DataSetSize"], "3072/3072(KiB)", "{said}");
}

#[test]
fn every_kind_of_memory_takes_part() {
    let dir = directory();
    for memory in 0..=4 {
        for transfer in [0, 5, 6] {
            let line =
                format!("gdsio -f file -s 1M -i 4K:60K:8K -m {memory} -x {transfer} -k {memory}");
            works(&dir, &format!("{line} -I 1 -V"));
            works(&dir, &format!("{line} -I 0 -V -O 1"));
        }
    }
}

/// XferType is what was asked for; standard error says what became of it, and the
/// configuration is that of libcufile.
#[test]
fn the_way_is_said_and_the_configuration_holds() {
    let dir = directory();
    let output = run(dir.path(), "gdsio -f file -s 1M -I 1 -b -p");
    let stderr = text(&output.stderr);
    for part in [
        "-b: accepted, no effect",
        "-p: accepted",
        "100.0 % compat-",
        "no-module",
    ] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
    let strict = dir.path().join("cufile.json");
    fs::write(
        &strict,
        r#"{ "properties": { "allow_compat_mode": false } }"#,
    )
    .expect("it can be written");
    let program = std::env::current_exe().expect("the test's own path");
    let output = Command::new(dir.path().join("gdsio"))
        .args(["-f", "file", "-s", "1M"])
        .current_dir(dir.path())
        .env("CUFILE_ENV_PATH_JSON", &strict)
        .env("LD_LIBRARY_PATH", program.parent().expect("a directory"))
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("no-module"), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn what_does_not_go_together_is_one_line() {
    let dir = directory();
    fs::write(dir.path().join("file"), [7; 8192]).expect("it can be written");
    for line in [
        "gdsio -f file -m 3 -x 2",
        "gdsio -f file -B 8",
        "gdsio -f file -P x",
        "gdsio",
        "gdsio -f file -I 1 -s 8K -V -R",
    ] {
        let output = run(dir.path(), line);
        assert_eq!(output.status.code(), Some(64), "{line}");
        let stderr = text(&output.stderr);
        assert_eq!(stderr.lines().count(), 1, "{line}: {stderr}");
        assert!(stderr.starts_with("gdsio: "), "{line}: {stderr}");
    }
    for (line, part) in [
        ("gdsio -f nowhere/file", "there is no such file"),
        ("gdsio -f nowhere/file -I 1 -s 8K", "ENOENT"),
        ("gdsio -f .", "file-type"),
        ("gdsio -f file -d 9", "CUDA device 9"),
        ("gdsio -f file -n 99", "NUMA node 99"),
        ("gdsio -f file -i 1M", "requests are of up to 1048576"),
    ] {
        fails(&dir, line, 1, part);
    }
    assert_eq!(
        fs::read(dir.path().join("file")).expect("it is there"),
        [7; 8192]
    );
    assert!(works(&dir, "gdsio --help").contains("CONFIG"));
}

#[test]
fn a_file_arrives_as_it_is() {
    let dir = directory();
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
    fs::write(dir.path().join("file"), &data).expect("it can be written");
    let said = works(&dir, "gdsio_verify -d 0 -f file -n 1 -s 512K");
    assert_eq!(
        said,
        "gpu index :0,file :file, gpu buffer alignment :0, gpu buffer offset :0, \
         gpu devptr offset :0, file offset :0, io_requested :524288, io_chunk_size :524288, \
         bufregister :true, sync :1, nr ios :1, \nfsync :0, \nBatch mode: 0\n\
         Data Verification Success\n"
    );
    for options in [
        "",
        "-o 4097 -s 100001 -n 3",
        "-S 4K -m 0",
        "-S 4K -t 1",
        "-S 10000 -g 12345 -o 1",
    ] {
        let said = works(&dir, &format!("gdsio_verify -f file {options}"));
        assert!(
            said.ends_with("Data Verification Success\n"),
            "{options}: {said}"
        );
    }
    fails(
        &dir,
        "gdsio_verify -f file -s 512K -n 2",
        1,
        "the file has 1000000 there",
    );
    fails(&dir, "gdsio_verify -f none", 1, "ENOENT");
    fails(&dir, "gdsio_verify -f file -s 0", 64, "-s");
    fails(&dir, "gdsio_verify", 64, "-f");
}
