// SPDX-License-Identifier: MIT OR Apache-2.0

//! Marks in the instruction stream, for the counter in QEMU: long NOPs, which do
//! nothing but be seen.

/// `nop dword [rax + disp32]`, without the displacement.
const OPCODE: [u8; 3] = [0x0f, 0x1f, 0x80];
/// Bytes of a mark.
pub const LEN: usize = OPCODE.len() + 4;

/// Displacement of the mark that begins a window.
const BEGIN: u32 = u32::from_le_bytes(*b"vraB");
/// Displacement of the mark that ends it.
const END: u32 = u32::from_le_bytes(*b"vraE");

/// A mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Counting begins.
    Begin,
    /// It ends.
    End,
}

impl Mark {
    /// The mark that an instruction is.
    pub fn of(instruction: &[u8]) -> Option<Self> {
        let (opcode, displacement) = instruction.split_first_chunk::<3>()?;
        if *opcode != OPCODE {
            return None;
        }
        match u32::from_le_bytes(displacement.try_into().ok()?) {
            BEGIN => Some(Mark::Begin),
            END => Some(Mark::End),
            _ => None,
        }
    }
}

macro_rules! mark {
    ($name:ident, $displacement:expr, $doc:literal) => {
        #[doc = $doc]
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        pub fn $name() {
            // SAFETY: A NOP. The compiler is not told so, and moves no access to memory
            // across it.
            unsafe {
                core::arch::asm!(
                    ".byte 0x0f, 0x1f, 0x80", ".long {}",
                    const $displacement,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}

mark!(begin, BEGIN, "Counting begins here.");
mark!(end, END, "Counting ends here.");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marks_are_marks() {
        let nop = |d: u32| [&OPCODE[..], &d.to_le_bytes()].concat();
        assert_eq!(Mark::of(&nop(BEGIN)), Some(Mark::Begin));
        assert_eq!(Mark::of(&nop(END)), Some(Mark::End));
        assert_eq!(nop(END).len(), LEN);
        // What compilers align with.
        assert_eq!(Mark::of(&nop(0)), None);
        assert_eq!(Mark::of(&[0x90]), None);
        begin();
        end();
    }
}
