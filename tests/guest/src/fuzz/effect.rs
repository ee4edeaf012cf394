// SPDX-License-Identifier: MIT OR Apache-2.0

//! What requests did to memory and files, compared with what they say.

use super::dice::BLOCK;
use super::expect::Io;
use super::legal::Outcome;
use super::world::{difference, World};

/// A request that is about to be made, with what it will find.
pub struct Pending {
    io: Io,
    /// The file's bytes, of a read.
    content: Vec<u8>,
    /// Size and blocks of the file.
    extent: (u64, u64),
}

/// What is known of what a request did.
#[derive(Clone, Copy)]
pub enum Did {
    /// It ended so.
    This(Outcome),
    /// It was refused: nothing.
    Nothing,
    /// It moved all that it should: the results could not be written.
    All,
    /// All or nothing.
    Perhaps,
}

impl Pending {
    /// Looks at what the request is about.
    pub fn new(world: &World, io: Io) -> Result<Self, String> {
        let store = &world.stores[io.store];
        let len = io.bytes.next_multiple_of(BLOCK);
        let content = match io.write {
            true => Vec::new(),
            false => store
                .read(io.file_offset, len)
                .map_err(|e| format!("direct read of the file: {e}"))?,
        };
        Ok(Self {
            io,
            content,
            extent: store.extent().map_err(|e| e.to_string())?,
        })
    }

    /// What it is.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// Checks the outcome and the memory or the file, and takes over what changed.
    pub fn settle(&self, world: &mut World, did: Did) -> Result<(), String> {
        let io = &self.io;
        let moved = match did {
            Did::Nothing => 0,
            Did::All => io.bytes,
            Did::Perhaps if self.arrived(world) => io.bytes,
            Did::Perhaps => 0,
            Did::This(outcome) => {
                outcome.check(io.write)?;
                if !io.unsure && (outcome.bytes, outcome.error) != (io.bytes, 0) {
                    return Err(format!(
                        "{} bytes and error {}, expected {} bytes: {io:?}",
                        outcome.bytes, outcome.error, io.bytes
                    ));
                }
                if outcome.bytes > io.bytes {
                    return Err(format!("{} bytes moved of {io:?}", outcome.bytes));
                }
                // None of the files has a hole that a request could meet.
                if outcome.uncovered > 0 {
                    return Err(format!(
                        "{} bytes are uncovered of {io:?}",
                        outcome.uncovered
                    ));
                }
                outcome.bytes
            }
        };
        let store = &mut world.stores[io.store];
        if moved == 0 {
            let now = store.extent().map_err(|e| e.to_string())?;
            if now.0 != self.extent.0 || (!io.write && now.1 != self.extent.1) {
                return Err(format!(
                    "size and blocks of the file went from {:?} to {now:?}, and nothing was \
                     written",
                    self.extent
                ));
            }
        }
        let region = &mut world.regions[io.region];
        let start = io.at as usize;
        if io.write {
            let source = &region.content[start..start + moved as usize];
            let found = store.read(io.file_offset, moved);
            let found = found.map_err(|e| format!("direct read of what was written: {e}"))?;
            if let Some(what) = difference(&found, source) {
                return Err(format!("what was written: {what}; {io:?}"));
            }
            let from = io.file_offset.min(store.content.len() as u64) as usize;
            for (to, byte) in store.content[from..].iter_mut().zip(source) {
                *to = *byte;
            }
            return store.cut().map_err(|e| format!("cut the file: {e}"));
        }
        let moved = moved as usize;
        region.content[start..start + moved].copy_from_slice(&self.content[..moved]);
        // The rest of the last block of the file may become zeros.
        let end = moved.next_multiple_of(BLOCK as usize);
        let tail = region.load(io.at + moved as u64, (end - moved) as u64);
        for (known, found) in region.content[start + moved..start + end]
            .iter_mut()
            .zip(tail)
        {
            if found == 0 {
                *known = 0;
            }
        }
        Ok(())
    }

    /// Whether the data has come to where it goes.
    fn arrived(&self, world: &World) -> bool {
        let io = &self.io;
        let region = &world.regions[io.region];
        let start = io.at as usize;
        match io.write {
            false => region.load(io.at, io.bytes) == self.content[..io.bytes as usize],
            true => world.stores[io.store]
                .read(io.file_offset, io.bytes)
                .is_ok_and(|found| found == region.content[start..start + io.bytes as usize]),
        }
    }
}
