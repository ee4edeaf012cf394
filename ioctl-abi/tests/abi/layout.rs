// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rust and C agree on every size, offset and number, and so do a 32-bit and a
//! 64-bit C compiler.

use std::fmt::Write as _;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use vramio_abi as abi;

use crate::generate::include_dir;

/// A name in C and the number that it stands for.
struct Fact {
    c: String,
    value: u64,
}

/// The size of a structure, and offset and size of each member. The pattern
/// makes it a compile error to leave a member out.
macro_rules! structure {
    ($facts:ident, $name:ident, $c:literal, [$($member:ident),* $(,)?]) => {{
        let value = abi::$name::default();
        let abi::$name { $($member: _),* } = value;
        $facts.push(Fact {
            c: format!("sizeof(struct {})", $c),
            value: size_of::<abi::$name>() as u64,
        });
        $(
            $facts.push(Fact {
                c: format!("offsetof(struct {}, {})", $c, stringify!($member)),
                value: offset_of!(abi::$name, $member) as u64,
            });
            $facts.push(Fact {
                c: format!("sizeof(((struct {} *)0)->{})", $c, stringify!($member)),
                value: std::mem::size_of_val(&value.$member) as u64,
            });
        )*
    }};
}

macro_rules! constants {
    ($facts:ident, [$($name:ident),* $(,)?]) => {
        $($facts.push(Fact {
            c: stringify!($name).to_owned(),
            value: u64::from(abi::$name),
        });)*
    };
}

fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    structure!(
        facts,
        VramioInfo,
        "vramio_info",
        [
            size,
            flags,
            abi_version,
            max_registrations,
            features,
            max_registration_bytes,
            part_bytes,
            sparse_part_bytes,
            registration_align,
            reason,
        ]
    );
    structure!(
        facts,
        VramioRegister,
        "vramio_register",
        [
            size,
            flags,
            addr,
            len,
            id,
            runs,
            provider_domain,
            provider_devid,
            reason,
            reserved,
            limit,
        ]
    );
    structure!(
        facts,
        VramioRegisterDmabuf,
        "vramio_register_dmabuf",
        [
            size,
            flags,
            fd,
            domain,
            devid,
            id,
            offset,
            len,
            bytes,
            bar_requested,
            bar_free,
            bar_total,
            runs,
            provider_domain,
            provider_devid,
            reason,
        ]
    );
    structure!(
        facts,
        VramioUnregister,
        "vramio_unregister",
        [size, flags, id, reason]
    );
    structure!(
        facts,
        VramioIo,
        "vramio_io",
        [
            size,
            flags,
            fd,
            buffer,
            file_offset,
            buffer_offset,
            len,
            bytes,
            submitted,
            uncovered,
            path,
            reason,
            certainty,
            error,
            parts,
            reserved,
        ]
    );
    structure!(
        facts,
        VramioProbe,
        "vramio_probe",
        [
            size,
            flags,
            fd,
            buffer,
            file_offset,
            buffer_offset,
            len,
            path,
            reason,
            certainty,
            error,
            mem_align,
            offset_align,
            distance,
            target_domain,
            target_devid,
            reserved,
            component,
        ]
    );
    structure!(
        facts,
        VramioStats,
        "vramio_stats",
        [
            size,
            flags,
            scope,
            provider_domain,
            provider_devid,
            reason,
            requests,
            bytes,
            uncovered,
            in_flight,
            certainty,
            latency,
            reasons,
        ]
    );
    structure!(
        facts,
        VramioBatch,
        "vramio_batch",
        [size, flags, entries, count, entry_size, done, reason,]
    );
    structure!(
        facts,
        VramioUring,
        "vramio_uring",
        [
            flags,
            fd,
            buffer,
            reserved,
            file_offset,
            buffer_offset,
            len,
            reserved2,
        ]
    );
    constants!(
        facts,
        [
            VRAMIO_IOC_TYPE,
            VRAMIO_IOC_INFO,
            VRAMIO_IOC_REGISTER,
            VRAMIO_IOC_UNREGISTER,
            VRAMIO_IOC_PROBE,
            VRAMIO_IOC_BATCH,
            VRAMIO_FEATURE_BATCH,
            VRAMIO_FEATURE_URING,
            VRAMIO_IO_WRITE,
            VRAMIO_BATCH_MAX,
            VRAMIO_IOC_READ,
            VRAMIO_IOC_WRITE,
            VRAMIO_IOC_REGISTER_DMABUF,
            VRAMIO_IOC_STATS,
            VRAMIO_STATS_MODULE,
            VRAMIO_STATS_OPEN,
            VRAMIO_STATS_PROVIDER,
            VRAMIO_ABI_VERSION,
            VRAMIO_FEATURE_USER_MAPPING,
            VRAMIO_FEATURE_DMABUF,
            VRAMIO_PROBE_WRITE,
        ]
    );
    for (kind, name, number) in enums() {
        facts.push(Fact {
            c: format!("VRAMIO_{kind}_{}", name.replace('-', "_").to_uppercase()),
            value: u64::from(number),
        });
    }
    facts
}

fn enums() -> impl Iterator<Item = (&'static str, &'static str, u32)> {
    let paths = abi::Path::ALL.map(|p| ("PATH", p.name(), p as u32));
    let certainties = abi::Certainty::ALL.map(|c| ("CERTAINTY", c.name(), c as u32));
    let reasons = abi::Reason::ALL.map(|r| ("REASON", r.name(), r as u32));
    paths.into_iter().chain(certainties).chain(reasons)
}

/// Where a C file of this test lies.
fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The C compiler with the header in its path; panics with its messages.
fn compile(source: &Path, options: &[&str]) {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu89", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include_dir())
        .args(options)
        .arg(source);
    let output = cc.output().expect("cc runs: install a C compiler");
    assert!(
        output.status.success(),
        "{cc:?} failed (linux/types.h comes with the kernel's user-space headers):\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_c_program_prints_the_same_layout() {
    let facts = facts();
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <linux/vramio.h>\n\nint main(void)\n{\n",
    );
    for Fact { c, .. } in &facts {
        writeln!(program, "\tprintf(\"%llu\\n\", (unsigned long long)({c}));").expect("a string");
    }
    program.push_str("\treturn 0;\n}\n");
    let source = scratch("layout.c");
    let binary = scratch("layout");
    fs::write(&source, program).expect("the program can be written");
    compile(&source, &["-o", binary.to_str().expect("a UTF-8 path")]);

    let output = Command::new(&binary).output().expect("the program runs");
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).expect("it prints digits");
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(printed.len(), facts.len());
    for (Fact { c, value }, printed) in facts.iter().zip(printed) {
        assert_eq!(printed, value.to_string(), "C against Rust: {c}");
    }
}

/// A process of either width sees the same layout. `_Static_assert` needs no C
/// library, so the 32-bit compile works where none is installed.
#[cfg(target_arch = "x86_64")]
#[test]
fn both_widths_have_one_layout() {
    let mut asserts = String::from("#include <stddef.h>\n#include <linux/vramio.h>\n\n");
    for Fact { c, value } in facts() {
        writeln!(asserts, "_Static_assert(({c}) == {value}ULL, \"{c}\");").expect("a string");
    }
    asserts.push_str("_Static_assert(sizeof(void *) == POINTER, \"the width\");\n");
    let source = scratch("layout-asserts.c");
    fs::write(&source, asserts).expect("the source can be written");

    compile(&source, &["-fsyntax-only", "-m64", "-DPOINTER=8"]);
    // The kernel's asm headers are the same for both widths, but lie in a
    // directory that only the compiler's own width searches.
    let output = Command::new("cc")
        .arg("-print-multiarch")
        .output()
        .expect("cc runs");
    let multiarch = String::from_utf8(output.stdout).expect("a directory name");
    let asm = format!("/usr/include/{}", multiarch.trim());
    compile(
        &source,
        &["-fsyntax-only", "-m32", "-DPOINTER=4", "-idirafter", &asm],
    );
}

/// The kernel copies `size` bytes: nothing in them may be padding, which would
/// carry bytes that nobody set.
#[test]
fn no_structure_has_padding() {
    let mut structures = 0;
    let mut size = 0;
    let mut members = 0;
    for Fact { c, value } in facts() {
        if c.starts_with("sizeof(struct ") {
            assert_eq!(size, members, "padding before {c}");
            (size, members) = (value, 0);
            structures += 1;
            assert_eq!(value % 8, 0, "{c} has a tail that 64-bit would pad");
        } else if c.starts_with("sizeof(") {
            members += value;
        }
    }
    assert_eq!(size, members, "padding in the last structure");
    assert_eq!(structures, 9);
}

/// The test GPU's ABI has no header; user space and module share the Rust, so
/// only its sizes can go wrong.
#[test]
fn the_mock_gpu_structures_have_no_padding() {
    use abi::mockgpu::{
        MockgpuAlloc, MockgpuExport, MockgpuFree, MockgpuInfo, MockgpuMove, MockgpuPlace,
    };
    assert_eq!(size_of::<MockgpuInfo>(), 4 + 4 + 8 + 8 + 4 + 4);
    assert_eq!(size_of::<MockgpuAlloc>(), 4 + 4 + 8 + 8);
    assert_eq!(size_of::<MockgpuFree>(), 4 + 4 + 8);
    assert_eq!(size_of::<MockgpuExport>(), 4 + 4 + 8 + 4 + 4 + 8 + 8 + 8);
    assert_eq!(size_of::<MockgpuMove>(), 4 + 4 + 4 + 4 + 8);
    assert_eq!(size_of::<MockgpuPlace>(), 4 + 4 + 8 + 8 + 8 + 8);
}
