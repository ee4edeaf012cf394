// SPDX-License-Identifier: MIT OR Apache-2.0

//! Makes the C header from the Rust source of the ABI.
//!
//! cbindgen reads the Rust; the rest here is form: a kernel header has a licence
//! line, `__u32`, `_IO`, tabs and plain comments.

use std::fs;
use std::path::{Path, PathBuf};

/// The files that the header is made from.
pub const SOURCES: [&str; 2] = ["src/uapi.rs", "src/reason.rs"];

/// The crate's directory.
pub fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The directory that a C program includes `linux/vramio.h` from.
pub fn include_dir() -> PathBuf {
    crate_dir().join("../include/uapi")
}

/// The committed header.
pub fn header_path() -> PathBuf {
    include_dir().join("linux/vramio.h")
}

/// The header as it follows from the source.
pub fn header() -> String {
    let config = cbindgen::Config::from_file(crate_dir().join("cbindgen.toml"))
        .expect("ioctl-abi/cbindgen.toml is readable");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(crate_dir().join(source));
    }
    let mut raw = Vec::new();
    builder
        .generate()
        .expect("cbindgen understands the ABI's source")
        .write(&mut raw);
    let raw = String::from_utf8(raw).expect("cbindgen writes UTF-8");

    format!(
        "/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR MIT */\n\
         /*\n{} *\n * Made from ioctl-abi/src by: VRAMIO_UPDATE_HEADER=1 cargo test -p vramio-abi\n */\n\
         #ifndef _UAPI_LINUX_VRAMIO_H\n\
         #define _UAPI_LINUX_VRAMIO_H\n\n\
         #include <linux/ioctl.h>\n\
         #include <linux/types.h>\n\n\
         {}\n\n\
         #endif /* _UAPI_LINUX_VRAMIO_H */\n",
        module_doc(),
        body(&raw).trim_end(),
    )
}

/// The `//!` text of `uapi.rs`, as lines of a C comment.
fn module_doc() -> String {
    let source = fs::read_to_string(crate_dir().join(SOURCES[0])).expect("uapi.rs is readable");
    source
        .lines()
        .filter_map(|line| line.strip_prefix("//!"))
        .map(|line| format!("{}\n", format!(" *{}", prose(line)).trim_end()))
        .collect()
}

/// cbindgen's output in a kernel header's form.
fn body(raw: &str) -> String {
    let mut out = Vec::new();
    let mut lines = raw.lines();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        let indent = "\t".repeat((line.len() - text.len()) / 8);
        if text == "/*" {
            let comment: Vec<String> = lines
                .by_ref()
                .map(str::trim)
                .take_while(|l| *l != "*/")
                .map(prose)
                .collect();
            push_comment(&mut out, &indent, &comment);
        } else if text.starts_with("#if __STDC_VERSION__") {
            // C23 can say which type an enum has. The members here are __u32, so
            // nothing depends on it.
            lines
                .by_ref()
                .find(|l| l.starts_with("#endif // __STDC_VERSION__"));
        } else if text == "{" {
            let name = out.pop().expect("a brace follows the enum's name");
            out.push(format!("{name} {{"));
        } else if let Some(define) = text.strip_prefix("#define ") {
            if define.starts_with("VRAMIO_") {
                out.push(constant(define));
            } else {
                // An associated constant, which is Rust's alone: off with its
                // comment, too.
                out.truncate(out.iter().rposition(String::is_empty).unwrap_or(0));
            }
        } else {
            out.push(format!("{indent}{}", member(text)));
        }
    }
    out.join("\n")
}

/// On one line where it fits into 80 columns.
fn push_comment(out: &mut Vec<String>, indent: &str, comment: &[String]) {
    if let [text] = comment {
        let line = format!("/* {text} */");
        if indent.len() * 8 + line.len() <= 80 {
            out.push(format!("{indent}{line}"));
            return;
        }
    }
    out.push(format!("{indent}/*"));
    for text in comment {
        let line = format!("{indent} * {text}");
        out.push(line.trim_end().to_owned());
    }
    out.push(format!("{indent} */"));
}

/// `NAME value`, as a `#define`.
fn constant(define: &str) -> String {
    let (name, value) = define.split_once(' ').expect("a constant has a value");
    let value = match value.parse::<u32>() {
        Ok(number) if name == "VRAMIO_IOC_TYPE" => format!("{number:#X}"),
        Ok(number) if name.starts_with("VRAMIO_IOC_") => {
            format!("_IO(VRAMIO_IOC_TYPE, {})", number & 0xFF)
        }
        // Feature bits are a __u64, the other flags a __u32.
        _ if name.starts_with("VRAMIO_FEATURE_") => value.replace("(1 <<", "(1ULL <<"),
        _ => value.replace("(1 <<", "(1U <<"),
    };
    format!("#define {name} {value}")
}

/// A member of a structure with the kernel's type.
fn member(text: &str) -> String {
    for (from, to) in [
        ("uint32_t ", "__u32 "),
        ("int32_t ", "__s32 "),
        ("uint64_t ", "__u64 "),
        ("uint8_t ", "__u8 "),
    ] {
        if let Some(rest) = text.strip_prefix(from) {
            return format!("{to}{rest}");
        }
    }
    text.to_owned()
}

/// Rust documentation as plain text with C names.
fn prose(text: impl AsRef<str>) -> String {
    let mut out = String::new();
    for (index, piece) in text.as_ref().split('`').enumerate() {
        if index % 2 == 1 {
            out.push_str(&c_name(piece));
        } else {
            out.push_str(piece);
        }
    }
    // The brackets of a link to an item of the source.
    out.replace(['[', ']'], "")
        .replace("*Out*", "Out")
        .replace("*out*", "out")
}

/// The C name of a Rust item; other code stays as it is.
fn c_name(code: &str) -> String {
    let (item, part) = code.split_once("::").unwrap_or((code, ""));
    match item {
        "Path" | "Certainty" | "Reason" if part.is_empty() => {
            format!("enum vramio_{}", item.to_lowercase())
        }
        "Path" | "Certainty" | "Reason" => {
            format!(
                "VRAMIO_{}_{}",
                item.to_uppercase(),
                snake(part).to_uppercase()
            )
        }
        _ if item.starts_with("Vramio") && part.is_empty() => format!("struct {}", snake(item)),
        _ if item.starts_with("Vramio") => format!("{}.{part}", snake(item)),
        _ => code.to_owned(),
    }
}

/// `VramioIo` to `vramio_io`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}
