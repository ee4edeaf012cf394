// SPDX-License-Identifier: MIT OR Apache-2.0

//! QEMU's trace of the NVMe commands: what was read or written, and the memory
//! that the device touched for it.
//!
//! QEMU takes a command from its queue and maps its memory in one go, so the
//! lines of one command follow each other. The parser relies on that and proves
//! it: command ids must agree, and the mapped bytes of a good command must add
//! up to its length.

use anyhow::{bail, Context, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

/// The events to enable (`-trace enable=...`).
pub const EVENTS: [&str; 8] = [
    "pci_nvme_admin_cmd",
    "pci_nvme_io_cmd",
    "pci_nvme_read",
    "pci_nvme_write",
    "pci_nvme_map_addr",
    "pci_nvme_map_addr_cmb",
    "pci_nvme_enqueue_req_completion",
    "pci_nvme_err_*",
];

/// The same for what an IOMMU made of the addresses.
pub const TRANSLATIONS: [&str; 2] = ["vtd_iotlb_page_hit", "vtd_iotlb_page_update"];

/// Bytes of a page.
const PAGE: u64 = 4096;
/// In an entry of the IOMMU's tables: it maps more than a page, here 2 MiB. No
/// request is long enough for the next size.
const LARGE: u64 = 1 << 7;
/// Bytes of that.
const LARGE_PAGE: u64 = 2 << 20;
/// The bits of an entry that are an address.
const ADDRESS: u64 = ((1 << 52) - 1) & !(PAGE - 1);

/// A piece of memory that a command's data lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The address that the device used.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// Which way the data of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the disk to memory.
    Read,
    /// From memory to the disk.
    Write,
}

/// A read or write: where on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// First logical block.
    pub lba: u64,
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Command id; unique among the commands of a queue that are under way.
    pub cid: u16,
    /// Submission queue; 0 is the admin queue.
    pub sqid: u16,
    /// Namespace; 0 for the admin queue.
    pub nsid: u32,
    /// Opcode.
    pub opcode: u8,
    /// Set for reads and writes.
    pub transfer: Option<Transfer>,
    /// The memory of its data, in the order of the data.
    pub segments: Vec<Segment>,
    /// What an IOMMU made of its addresses: by page numbers, where there is one and
    /// it translates.
    pub pages: HashMap<u64, u64>,
    /// The status that it completed with; 0 is success.
    pub status: Option<u16>,
    /// Errors that QEMU named meanwhile.
    pub errors: Vec<String>,
}

impl Command {
    /// Bytes of its data.
    pub fn mapped(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len).sum()
    }

    /// What an IOMMU made of one of its addresses.
    pub fn translated(&self, addr: u64) -> Option<u64> {
        let page = self.pages.get(&(addr / PAGE))?;
        Some(page * PAGE + addr % PAGE)
    }

    /// Checks that a good read or write mapped as many bytes as it moved.
    fn check(&self) -> Result<()> {
        match self.transfer {
            Some(transfer) if self.status == Some(0) && self.mapped() != transfer.bytes => bail!(
                "the trace joins {} mapped bytes to a command of {} bytes: {self:?}",
                self.mapped(),
                transfer.bytes
            ),
            _ => Ok(()),
        }
    }
}

/// A trace that is being written.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    seen: u64,
    partial: Vec<u8>,
    parser: Parser,
}

impl Trace {
    /// The trace in the file `path`, from its start.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            seen: 0,
            partial: Vec::new(),
            parser: Parser::default(),
        }
    }

    /// Reads on, and gives the number of commands so far: the start of a window.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is not as expected.
    pub fn mark(&mut self) -> Result<usize> {
        let what = || format!("the trace {}", self.path.display());
        let mut file = File::open(&self.path).with_context(what)?;
        let mut fresh = std::mem::take(&mut self.partial);
        let read = file
            .seek(SeekFrom::Start(self.seen))
            .and_then(|_| file.read_to_end(&mut fresh))
            .with_context(what)?;
        self.seen += read as u64;
        let end = fresh
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        self.partial = fresh.split_off(end);
        for line in String::from_utf8_lossy(&fresh).lines() {
            self.parser
                .line(line)
                .with_context(|| format!("trace line {line:?}"))?;
        }
        Ok(self.parser.commands.len())
    }

    /// Reads on, and gives the commands since `mark`. All of them are whole if
    /// the requests that caused them have ended.
    ///
    /// # Errors
    ///
    /// As for [`Self::mark`], and when a command does not add up.
    pub fn since(&mut self, mark: usize) -> Result<&[Command]> {
        self.mark()?;
        let commands = self.parser.commands.get(mark..).unwrap_or_default();
        for command in commands {
            command.check()?;
        }
        Ok(commands)
    }
}

#[derive(Debug, Default)]
struct Parser {
    commands: Vec<Command>,
}

/// The words of a line of the trace: `name value name value ...`.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn text(&self, name: &str) -> Result<&'a str> {
        let mut words = self.0.split(' ');
        while let Some(word) = words.next() {
            if word == name {
                return words.next().with_context(|| format!("{name} has no value"));
            }
        }
        bail!("no {name}")
    }

    fn number(&self, name: &str) -> Result<u64> {
        let text = self.text(name)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        }
        .with_context(|| format!("{name} {text:?} is no number"))
    }

    fn small<T: TryFrom<u64>>(&self, name: &str) -> Result<T> {
        let number = self.number(name)?;
        T::try_from(number)
            .ok()
            .with_context(|| format!("{name} {number} is too large"))
    }
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<()> {
        let Some((event, rest)) = line.split_once(' ') else {
            return Ok(());
        };
        let words = Words(rest);
        match event {
            "pci_nvme_admin_cmd" => self.begin(&words, 0),
            "pci_nvme_io_cmd" => self.begin(&words, words.small("nsid")?),
            "pci_nvme_read" => self.transfer(&words, Direction::Read),
            "pci_nvme_write" => self.transfer(&words, Direction::Write),
            "pci_nvme_map_addr" | "pci_nvme_map_addr_cmb" => self.map(&words),
            "pci_nvme_enqueue_req_completion" => self.complete(&words),
            "vtd_iotlb_page_hit" | "vtd_iotlb_page_update" => self.translate(&words),
            _ if event.starts_with("pci_nvme_err_") => {
                if let Some(command) = self.commands.last_mut() {
                    command.errors.push(line.to_owned());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, words: &Words<'_>, nsid: u32) -> Result<()> {
        self.commands.push(Command {
            cid: words.small("cid")?,
            sqid: words.small("sqid")?,
            nsid,
            opcode: words.small("opc")?,
            transfer: None,
            segments: Vec::new(),
            pages: HashMap::new(),
            status: None,
            errors: Vec::new(),
        });
        Ok(())
    }

    /// The command that the line belongs to.
    fn current(&mut self) -> Result<&mut Command> {
        self.commands.last_mut().context("no command before it")
    }

    fn transfer(&mut self, words: &Words<'_>, direction: Direction) -> Result<()> {
        let cid: u16 = words.small("cid")?;
        let command = self.current()?;
        if command.cid != cid || command.transfer.is_some() || !command.segments.is_empty() {
            bail!("it does not belong to the command before it: {command:?}");
        }
        command.transfer = Some(Transfer {
            direction,
            lba: words.number("lba")?,
            blocks: words.number("nlb")?,
            bytes: words.number("count")?,
        });
        Ok(())
    }

    fn map(&mut self, words: &Words<'_>) -> Result<()> {
        let next = Segment {
            addr: words.number("addr")?,
            len: words.number("len")?,
        };
        let segments = &mut self.current()?.segments;
        match segments.last_mut() {
            Some(last) if last.addr + last.len == next.addr => last.len += next.len,
            _ => segments.push(next),
        }
        Ok(())
    }

    /// QEMU translates the addresses of a command right after it has traced them.
    /// Those of its queues follow, which are other pages.
    fn translate(&mut self, words: &Words<'_>) -> Result<()> {
        let page = words.number("iova")? / PAGE;
        let entry = words.number("slpte")?;
        let mut phys = (entry & ADDRESS) / PAGE;
        if entry & LARGE != 0 {
            let within = LARGE_PAGE / PAGE - 1;
            phys = (phys & !within) | (page & within);
        }
        if let Some(command) = self.commands.last_mut() {
            command.pages.entry(page).or_insert(phys);
        }
        Ok(())
    }

    fn complete(&mut self, words: &Words<'_>) -> Result<()> {
        let cid: u16 = words.small("cid")?;
        let queue: u16 = words.small("cqid")?;
        let status: u16 = words.small("status")?;
        // Linux pairs each submission queue with the completion queue of the
        // same number. The number of commands under way is small.
        let command = self
            .commands
            .iter_mut()
            .rev()
            .find(|command| command.cid == cid && command.sqid == queue && command.status.is_none())
            .context("no such command is under way")?;
        command.status = Some(status);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &[&str]) -> Result<Vec<Command>> {
        let mut parser = Parser::default();
        for line in lines {
            parser.line(line)?;
        }
        Ok(parser.commands)
    }

    const READ: [&str; 5] = [
        "pci_nvme_io_cmd cid 4099 nsid 0x2 sqid 2 opc 0x2 opname 'NVME_NVM_CMD_READ'",
        "pci_nvme_read cid 4099 nsid 2 nlb 16 count 8192 lba 0x100",
        "pci_nvme_map_addr addr 0xfe000000 len 4096",
        "pci_nvme_map_addr addr 0xfe001000 len 2048",
        "pci_nvme_map_addr addr 0x3efdc000 len 2048",
    ];
    const DONE: &str = "pci_nvme_enqueue_req_completion cid 4099 cqid 2 dw0 0x0 dw1 0x0 status 0x0";

    #[test]
    fn the_lines_of_a_command_are_joined() {
        let commands = parse(&[&READ[..], &[DONE]].concat()).unwrap();
        let [command] = commands.as_slice() else {
            panic!("{commands:?}")
        };
        assert_eq!(
            (command.nsid, command.sqid, command.status),
            (2, 2, Some(0))
        );
        assert_eq!(
            command.transfer,
            Some(Transfer {
                direction: Direction::Read,
                lba: 0x100,
                blocks: 16,
                bytes: 8192,
            })
        );
        // Neighbours are one segment.
        let [first, second] = command.segments.as_slice() else {
            panic!("{command:?}")
        };
        assert_eq!((first.addr, first.len), (0xfe00_0000, 6144));
        assert_eq!((second.addr, second.len), (0x3efd_c000, 2048));
        command.check().unwrap();
    }

    #[test]
    fn translations_are_those_of_the_command() {
        let other = "pci_nvme_io_cmd cid 1 nsid 0x2 sqid 1 opc 0x2 opname 'NVME_NVM_CMD_READ'";
        let update = |entry: &str| {
            format!("vtd_iotlb_page_update IOTLB page update sid 0x300 iova 0xfe001000 slpte {entry} domain 0xa")
        };
        let (small, large) = (update("0xe0002003"), update("0xc0000083"));
        let lines = [&READ[..], &[&small, &large, DONE, other, &large]].concat();
        let commands = parse(&lines).unwrap();
        assert_eq!(commands[0].translated(0xfe00_1010), Some(0xe000_2010));
        assert_eq!(commands[0].translated(0xfe00_0000), None);
        assert_eq!(commands[1].translated(0xfe00_1010), Some(0xc000_1010));
    }

    #[test]
    fn a_good_command_that_does_not_add_up_is_an_error() {
        let commands = parse(&[&READ[..4], &[DONE]].concat()).unwrap();
        assert!(commands[0].check().is_err());
        // One that failed may have mapped a part only.
        let failed = DONE.replace("status 0x0", "status 0x2");
        let commands = parse(&[&READ[..4], &[failed.as_str()]].concat()).unwrap();
        commands[0].check().unwrap();
    }

    #[test]
    fn lines_of_two_commands_in_disorder_are_an_error() {
        let other = "pci_nvme_io_cmd cid 1 nsid 0x2 sqid 1 opc 0x2 opname 'NVME_NVM_CMD_READ'";
        assert!(parse(&[READ[0], other, READ[1]]).is_err());
        assert!(parse(&[READ[0], READ[2], READ[1]]).is_err());
        assert!(parse(&[READ[1]]).is_err());
        assert!(parse(&[READ[2]]).is_err());
        assert!(parse(&[READ[0], DONE, DONE]).is_err());
    }

    #[test]
    fn a_command_id_that_is_used_again_is_another_command() {
        let commands = parse(&[&READ[..], &[DONE], &READ[..], &[DONE]].concat()).unwrap();
        assert_eq!(commands.len(), 2);
        assert!(commands.iter().all(|command| command.status == Some(0)));
    }
}
