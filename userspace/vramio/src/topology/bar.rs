// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a PCI function shows of its memory.

/// A range that it decodes, IORESOURCE_MEM of `include/linux/ioport.h`.
const MEMORY: u64 = 0x200;

/// A base address register that shows memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Its number, 0 to 5.
    pub number: usize,
    /// How much it shows, bytes.
    pub bytes: u64,
}

impl Bar {
    /// Those of a function, by the text of its file `resource` in sysfs.
    pub fn list(resource: &str) -> Vec<Bar> {
        // Six of the function's own; what follows is ROM and, of bridges, windows.
        let lines = resource.lines().take(6).enumerate();
        lines
            .filter_map(|(number, line)| read(number, line))
            .collect()
    }
}

fn read(number: usize, line: &str) -> Option<Bar> {
    let mut numbers = line
        .split_ascii_whitespace()
        .map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let mut next = || numbers.next().flatten();
    let (start, end, flags) = (next()?, next()?, next()?);
    let bytes = end.checked_sub(start)?.checked_add(1)?;
    (flags & MEMORY != 0 && start != 0).then_some(Bar { number, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_from_the_rest() {
        let text = "0x00000000f0000000 0x00000000f0ffffff 0x0000000000040200\n\
                    0x0000004000000000 0x0000005fffffffff 0x000000000014220c\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x0000000000006000 0x000000000000607f 0x0000000000040101\n\
                    nonsense\n\
                    0x2 0x1 0x200\n\
                    0x00000000fa000000 0x00000000fa07ffff 0x0000000000046200\n";
        let bar = |number, bytes| Bar { number, bytes };
        assert_eq!(Bar::list(text), [bar(0, 16 << 20), bar(1, 128 << 30)]);
        assert_eq!(Bar::list(""), []);
    }
}
