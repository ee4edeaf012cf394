// SPDX-License-Identifier: GPL-2.0

//! Names of devices: a short text without an allocation, and what kind of disk a
//! name belongs to.

use core::fmt;

/// Room for the longest name, bytes, its final NUL included. Longer ones are cut.
pub const NAME_BYTES: usize = 32;

/// A short text, padded with NUL bytes; the last byte always is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Name([u8; NAME_BYTES]);

impl Name {
    /// The text, cut off where there is no room.
    pub fn new(text: &[u8]) -> Self {
        let mut name = Self::default();
        name.push(text);
        name
    }

    /// The bytes, for a structure.
    pub fn bytes(self) -> [u8; NAME_BYTES] {
        self.0
    }

    /// The text; a question mark where it is not UTF-8.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().take_while(|&&b| b != 0).count();
        core::str::from_utf8(&self.0[..len]).unwrap_or("?")
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0[0] == 0
    }

    fn push(&mut self, text: &[u8]) {
        let len = self.0.iter().take_while(|&&b| b != 0).count();
        let room = NAME_BYTES - 1 - len;
        for (to, from) in self.0[len..len + room].iter_mut().zip(text) {
            *to = *from;
        }
    }
}

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Whose disk it is. Drivers choose the names of their disks, and no two choose
/// the same beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A namespace of an NVMe drive, or several paths to one.
    Nvme,
    /// An md array.
    Md,
    /// A device mapper device.
    Dm,
    /// A loop device.
    Loop,
    /// A virtio block device.
    Virtio,
    /// Any other.
    Other,
}

/// The kind of the disk with this name.
pub fn kind(name: &[u8]) -> Kind {
    let follows = |prefix: &[u8], ok: fn(u8) -> bool| {
        name.strip_prefix(prefix)
            .and_then(|rest| rest.first())
            .is_some_and(|&b| ok(b))
    };
    let digit = |b: u8| b.is_ascii_digit();
    if follows(b"nvme", digit) {
        Kind::Nvme
    } else if follows(b"md", |b| b.is_ascii_digit() || b == b'_') {
        Kind::Md
    } else if follows(b"dm-", digit) {
        Kind::Dm
    } else if follows(b"loop", digit) {
        Kind::Loop
    } else if follows(b"vd", |b| b.is_ascii_lowercase()) {
        Kind::Virtio
    } else {
        Kind::Other
    }
}

/// Whether `path` is the name of a path to the namespace of the NVMe disk `head`:
/// `nvme1c4n2` is one to `nvme1n2`.
pub fn is_path(head: &[u8], path: &[u8]) -> bool {
    let split = || {
        let (subsystem, rest) = number(path.strip_prefix(b"nvme")?)?;
        let (_controller, rest) = number(rest.strip_prefix(b"c")?)?;
        let (namespace, rest) = number(rest.strip_prefix(b"n")?)?;
        let (head_subsystem, head_rest) = number(head.strip_prefix(b"nvme")?)?;
        let (head_namespace, head_rest) = number(head_rest.strip_prefix(b"n")?)?;
        (rest.is_empty() && head_rest.is_empty())
            .then_some((subsystem, namespace) == (head_subsystem, head_namespace))
    };
    split().unwrap_or(false)
}

/// The digits at the beginning, at least one, and what follows them.
fn number(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = text.iter().take_while(|b| b.is_ascii_digit()).count();
    (len > 0).then(|| text.split_at(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write as _;
    use proptest::prelude::*;

    #[test]
    fn kinds() {
        for (name, expected) in [
            ("nvme0n1", Kind::Nvme),
            ("nvme0c1n1", Kind::Nvme),
            ("md0", Kind::Md),
            ("md_home", Kind::Md),
            ("md", Kind::Other),
            ("mdx", Kind::Other),
            ("dm-12", Kind::Dm),
            ("dm-", Kind::Other),
            ("loop7", Kind::Loop),
            ("vda", Kind::Virtio),
            ("sda", Kind::Other),
            ("", Kind::Other),
        ] {
            assert_eq!(kind(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn paths() {
        let is = |head: &str, path: &str| is_path(head.as_bytes(), path.as_bytes());
        assert!(is("nvme1n2", "nvme1c4n2"));
        assert!(is("nvme10n12", "nvme10c0n12"));
        assert!(!is("nvme1n2", "nvme1c4n22"));
        assert!(!is("nvme1n2", "nvme11c4n2"));
        assert!(!is("nvme1n2", "nvme1n2"));
        assert!(!is("nvme1n2", "nvme1c4n2p1"));
        assert!(!is("nvme1n2p1", "nvme1c4n2"));
        assert!(!is("nvme1n2", "nvme1c4"));
        assert!(!is("nvme1n2", "nvmec4n2"));
        assert!(!is("sda", "nvme1c4n2"));
    }

    #[test]
    fn long_names_are_cut_before_the_final_nul() {
        let name = Name::new(&[b'x'; 100]);
        assert_eq!(name.bytes()[..31], [b'x'; 31]);
        assert_eq!(name.bytes()[31], 0);
    }

    #[test]
    fn pieces_are_joined() {
        let mut name = Name::default();
        assert!(name.is_empty());
        write!(name, "{:04x}:{:02x}", 1, 0xab).unwrap();
        assert_eq!(&name.bytes()[..8], b"0001:ab\0");
        assert_eq!(name.as_str(), "0001:ab");
        assert_eq!(Name::new(b"\xff").as_str(), "?");
    }

    proptest! {
        #[test]
        fn a_path_names_its_head(s in 0u32..99, c in 0u32..99, n in 1u32..99, other in 0u32..99) {
            let path = format!("nvme{s}c{c}n{n}");
            let matches = |head: String| is_path(head.as_bytes(), path.as_bytes());
            let own = matches(format!("nvme{s}n{n}"));
            prop_assert!(own);
            let by_subsystem = matches(format!("nvme{other}n{n}"));
            prop_assert_eq!(by_subsystem, other == s);
            let by_namespace = matches(format!("nvme{s}n{other}"));
            prop_assert_eq!(by_namespace, other == n);
        }

        #[test]
        fn any_text_is_taken(text in prop::collection::vec(any::<u8>(), 0..80)) {
            let name = Name::new(&text);
            prop_assert_eq!(name.bytes()[NAME_BYTES - 1], 0);
            let _ = (kind(&text), is_path(&text, &text));
        }
    }
}
