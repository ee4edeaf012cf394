// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the accounts say of a request, and what follows from that. Nothing is asked
//! here: the figures come from [`Accounts`](super::accounts).

use serde::Serialize;
use vramio::stats::ModuleCounters;
use vramio::{Certainty, Outcome, Path, Reason};

/// A sector of the block layer's accounts, bytes.
const SECTOR: u64 = 512;
/// Sectors of a data unit of an NVMe drive's SMART log.
const UNIT: u64 = 1000;
/// Below this, in bytes, looking at accounts makes as many calls as the request.
const LOOKING: u64 = 4096;

/// An account that can't be asked, and why.
pub type Asked<T> = Result<T, String>;

/// What was counted while the request was under way. Bytes, where nothing else is said.
#[derive(Clone, Debug)]
pub struct Counted {
    /// The memory's first byte that is not the file's.
    pub differs: Option<u64>,
    /// By the library: requests, and bytes that went direct.
    pub library: (u64, u64),
    /// By the module, of requests on our open device.
    pub module: Asked<ModuleCounters>,
    /// By the kernel, of what this process read from block devices.
    pub task: Asked<u64>,
    /// By the kernel, of what this process got by read calls.
    pub calls: Asked<u64>,
    /// By the block layer, of each drive.
    pub drives: Vec<(String, Asked<u64>)>,
    /// By each drive.
    pub smart: Vec<(String, Asked<Smart>)>,
    /// Pages of the range in the page cache, before and afterwards.
    pub cached: Asked<(u64, u64)>,
    /// Mappings of GPU memory for the drives, and how many the request needs at least.
    pub mapped: Asked<(u64, u64)>,
}

/// What a drive's SMART log and the block layer counted of all its namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smart {
    /// Data units, each of 1000 sectors, or a part of one.
    pub units: u64,
    /// Sectors: counted in a shorter time than the units, and in a longer one.
    pub sectors: (u64, u64),
}

/// One account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What it is; stable.
    pub account: &'static str,
    /// Who keeps it.
    pub kept_by: Keeper,
    /// Of which device, if there may be several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Whether it bears out the request's answer.
    pub says: Says,
    /// What a direct request makes of it.
    pub expected: String,
    /// What it shows, or why it can't be asked.
    pub seen: String,
}

/// Who keeps an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Keeper {
    /// Nobody: it is the data itself.
    Data,
    /// This project.
    Vramio,
    /// The kernel.
    Kernel,
    /// The drive.
    Drive,
}

/// What an account says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Says {
    /// It is as it must be.
    Agrees,
    /// It is not.
    Disagrees,
    /// It can't be asked.
    NotAvailable,
}

/// How much the accounts are worth together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Those that the kernel keeps bear it out, and none speaks against it.
    Consistent,
    /// None but our own does.
    Claimed,
    /// One speaks against it.
    Contradicted,
}

impl Grade {
    /// Of all rows.
    pub fn of(rows: &[Row]) -> Self {
        let agrees = |account| {
            let mut rows = rows.iter().filter(|row| row.account == account);
            rows.any(|row| row.says == Says::Agrees)
        };
        if rows.iter().any(|row| row.says == Says::Disagrees) {
            return Grade::Contradicted;
        }
        // The drive was read, nothing was kept in the page cache, and somebody saw that it
        // was the GPU's memory that it was read into.
        let from_drive = agrees("task") || agrees("block-layer");
        let to_gpu = agrees("module") || agrees("mapping");
        if from_drive && to_gpu && agrees("page-cache") {
            Grade::Consistent
        } else {
            Grade::Claimed
        }
    }

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Grade::Consistent => "consistent",
            Grade::Claimed => "claimed",
            Grade::Contradicted => "contradicted",
        }
    }
}

/// Compares what the request said with what was counted. Drives read multiples of `align`
/// bytes.
pub fn rows(outcome: &Outcome, align: u64, counted: &Counted) -> Vec<Row> {
    let bytes = outcome.bytes;
    // What lies in holes is on no drive.
    let data = bytes - outcome.zeroed.min(bytes);
    let on_drives = data.next_multiple_of(align);
    let mut rows = vec![
        Row::new("content", Keeper::Data)
            .expects(format!("the file's {bytes} bytes in GPU memory"))
            .judge(counted.differs.is_none(), || match counted.differs {
                None => "the same bytes".to_owned(),
                Some(at) => format!("byte {at} is another"),
            }),
        answer(outcome),
        Row::new("library", Keeper::Vramio)
            .expects(format!("1 request, {data} bytes direct"))
            .judge(counted.library == (1, data), || {
                let (requests, bytes) = counted.library;
                format!("{requests} requests, {bytes} bytes direct")
            }),
        module(data, &counted.module),
        Row::new("task", Keeper::Kernel)
            .expects(format!(
                "{on_drives} bytes read from block devices by this process"
            ))
            .ask(&counted.task, |read| {
                (*read == on_drives, format!("{read} bytes"))
            }),
        calls(outcome, data, &counted.calls),
    ];
    rows.extend(drives(on_drives, &counted.drives));
    rows.extend(smart(&counted.smart));
    rows.push(
        Row::new("page-cache", Keeper::Kernel)
            .expects("as many pages of the range as before".to_owned())
            .ask(&counted.cached, |(before, after)| {
                (before == after, format!("{before} before, {after} after"))
            }),
    );
    rows.push(mapping(&counted.mapped));
    rows
}

fn answer(outcome: &Outcome) -> Row {
    let (path, certainty) = (outcome.path, outcome.certainty);
    let direct = path.is_direct() && outcome.error.is_none();
    let mut seen = format!("{path} ({certainty})");
    if outcome.reason != Reason::None {
        seen += &format!(", {}: {}", outcome.reason, outcome.reason.sentence());
    }
    Row::new("answer", Keeper::Vramio)
        .expects("a direct path, and no doubt about it".to_owned())
        .judge(direct && certainty != Certainty::Refuted, || seen)
}

fn module(data: u64, counted: &Asked<ModuleCounters>) -> Row {
    Row::new("module", Keeper::Vramio)
        .expects(format!("{data} bytes on our open device, none by the CPU"))
        .ask(counted, |counted| {
            let refuted = counted.certain(Certainty::Refuted);
            let (bytes, by_cpu) = (counted.bytes[0], counted.uncovered);
            let mut seen = format!("{bytes} bytes, {by_cpu} by the CPU");
            for (reason, count) in &counted.reasons {
                seen += &format!(", {count} times {reason}");
            }
            let fits = bytes == data && by_cpu == 0 && refuted == 0;
            (fits, seen)
        })
}

/// What comes by read(2) and its kind goes where the CPU put it.
fn calls(outcome: &Outcome, data: u64, counted: &Asked<u64>) -> Row {
    let row = Row::new("read-calls", Keeper::Kernel)
        .expects(format!("fewer than {data} bytes by calls such as read(2)"));
    if outcome.path == Path::P2pdma {
        return row.unknown("without the module, requests are such calls".to_owned());
    }
    if data < LOOKING {
        return row.unknown("the request is too short to tell".to_owned());
    }
    row.ask(counted, |read| (*read < data, format!("{read} bytes")))
}

fn drives(on_drives: u64, drives: &[(String, Asked<u64>)]) -> Vec<Row> {
    let row = || Row::new("block-layer", Keeper::Kernel);
    let expected = format!("at least {} sectors read", on_drives / SECTOR);
    if drives.is_empty() {
        let row = row().expects(expected);
        return vec![row.unknown("the file is on no block device that is known".to_owned())];
    }
    let unknown: Vec<Row> = drives
        .iter()
        .filter_map(|(name, sectors)| Some((name, sectors.as_ref().err()?)))
        .map(|(name, why)| {
            row()
                .expects(expected.clone())
                .of(name.clone())
                .unknown(why.clone())
        })
        .collect();
    if !unknown.is_empty() {
        return unknown;
    }
    // A mirror reads from one of its drives, stripes from all: the sum tells.
    let known = drives
        .iter()
        .filter_map(|(name, sectors)| Some((name, sectors.as_ref().ok()?)));
    let sum: u64 = known.clone().map(|(_, sectors)| sectors).sum();
    let seen: Vec<String> = known
        .map(|(name, sectors)| format!("{name} {sectors}"))
        .collect();
    let row = row().expects(expected);
    vec![row.judge(sum * SECTOR >= on_drives, || seen.join(", "))]
}

fn smart(drives: &[(String, Asked<Smart>)]) -> Vec<Row> {
    let row = |name: &String| Row::new("smart", Keeper::Drive).of(name.clone());
    let rows = drives.iter().map(|(name, counted)| match counted {
        Ok(Smart {
            units,
            sectors: (least, most),
        }) => {
            let counted = units * UNIT;
            let fits = counted + UNIT >= *least && counted <= most + UNIT;
            row(name)
                .expects(format!(
                    "within one data unit of the {} that {most} sectors are",
                    *most as f64 / UNIT as f64
                ))
                .judge(fits, || format!("{units} data units"))
        }
        Err(why) => row(name)
            .expects("data units read as the block layer has sectors".to_owned())
            .unknown(why.clone()),
    });
    rows.collect()
}

fn mapping(mapped: &Asked<(u64, u64)>) -> Row {
    let row = Row::new("mapping", Keeper::Kernel);
    match mapped {
        Ok((hits, least)) => row
            .expects(format!(
                "the drive's driver maps peer-to-peer memory, at least {least} times"
            ))
            .judge(hits >= least, || format!("{hits} times")),
        Err(why) => row
            .expects("the drive's driver maps peer-to-peer memory".to_owned())
            .unknown(why.clone()),
    }
}

impl Row {
    fn new(account: &'static str, kept_by: Keeper) -> Self {
        Row {
            account,
            kept_by,
            object: None,
            says: Says::NotAvailable,
            expected: String::new(),
            seen: String::new(),
        }
    }

    fn expects(self, expected: String) -> Self {
        Row { expected, ..self }
    }

    fn of(self, object: String) -> Self {
        Row {
            object: Some(object),
            ..self
        }
    }

    fn judge(self, agrees: bool, seen: impl FnOnce() -> String) -> Self {
        Row {
            says: if agrees {
                Says::Agrees
            } else {
                Says::Disagrees
            },
            seen: seen(),
            ..self
        }
    }

    fn unknown(self, why: String) -> Self {
        Row { seen: why, ..self }
    }

    fn ask<T>(self, account: &Asked<T>, judge: impl FnOnce(&T) -> (bool, String)) -> Self {
        match account {
            Ok(value) => {
                let (agrees, seen) = judge(value);
                self.judge(agrees, || seen)
            }
            Err(why) => self.unknown(why.clone()),
        }
    }

    /// For people, at most [`WIDTH`] columns wide.
    pub fn to_text(&self) -> String {
        let says = match self.says {
            Says::Agrees => "agrees",
            Says::Disagrees => "DISAGREES",
            Says::NotAvailable => "not seen",
        };
        let object = match &self.object {
            Some(object) => format!("{object}: "),
            None => String::new(),
        };
        let head = format!("  {says:<9}  {:<11}  ", self.account);
        let expected = wrapped(&head, &format!("expected: {object}{}", self.expected));
        let indent = " ".repeat(head.len());
        expected + &wrapped(&indent, &format!("seen: {}", self.seen))
    }
}

/// Columns of the text.
const WIDTH: usize = 80;

/// Text behind a head, in lines of at most [`WIDTH`] columns, if its words are no longer.
fn wrapped(head: &str, text: &str) -> String {
    let indent = " ".repeat(head.len());
    let mut lines = String::new();
    let mut line = head.to_owned();
    for word in text.split(' ') {
        if line.len() > head.len() && line.len() + 1 + word.len() > WIDTH {
            lines += &format!("{line}\n");
            line.clone_from(&indent);
        }
        if line.len() > head.len() {
            line.push(' ');
        }
        line += word;
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 16 << 20;
    /// The drive takes this much at once.
    const LEAST: u64 = BYTES >> 17;

    /// What a direct request says.
    fn direct() -> Outcome {
        Outcome::of_path(Path::DirectSwitch, Certainty::Consistent, BYTES)
    }

    fn module_counted(bytes: u64) -> ModuleCounters {
        let mut counted = ModuleCounters::default();
        counted.requests[0] = 1;
        counted.bytes[0] = bytes;
        counted.certainty[Certainty::Consistent as usize] = 1;
        counted
    }

    fn smart_counted(bytes: u64) -> Vec<(String, Asked<Smart>)> {
        let sectors = bytes / SECTOR;
        let units = sectors.div_ceil(UNIT);
        let sectors = (sectors, sectors);
        vec![("nvme0".to_owned(), Ok(Smart { units, sectors }))]
    }

    fn drive(bytes: u64) -> Vec<(String, Asked<u64>)> {
        vec![("nvme0n1".to_owned(), Ok(bytes / SECTOR))]
    }

    /// What all count of a direct request.
    fn honest() -> Counted {
        Counted {
            differs: None,
            library: (1, BYTES),
            module: Ok(module_counted(BYTES)),
            task: Ok(BYTES),
            calls: Ok(120),
            drives: drive(BYTES),
            smart: smart_counted(BYTES),
            cached: Ok((0, 0)),
            mapped: Ok((LEAST, LEAST)),
        }
    }

    fn contradicting(rows: &[Row]) -> Vec<&'static str> {
        let against = rows.iter().filter(|row| row.says == Says::Disagrees);
        against.map(|row| row.account).collect()
    }

    #[test]
    fn a_direct_request_is_consistent() {
        let rows = super::rows(&direct(), SECTOR, &honest());
        assert!(rows.iter().all(|row| row.says == Says::Agrees), "{rows:?}");
        assert_eq!(Grade::of(&rows), Grade::Consistent);
    }

    /// Statistics that call a bounced request direct: of all that are ours, nothing is
    /// wrong. Each way to bounce leaves its trace with somebody else.
    #[test]
    fn lying_statistics_are_contradicted_however_the_request_bounced() {
        let bounces: [(&str, Counted, &[&str]); 6] = [
            (
                "from the page cache, where it was",
                Counted {
                    task: Ok(0),
                    calls: Ok(BYTES + 120),
                    drives: drive(0),
                    smart: smart_counted(0),
                    cached: Ok((4096, 4096)),
                    mapped: Ok((0, LEAST)),
                    ..honest()
                },
                &["task", "read-calls", "block-layer", "mapping"],
            ),
            (
                "by way of the page cache",
                Counted {
                    calls: Ok(BYTES + 120),
                    cached: Ok((0, 4096)),
                    mapped: Ok((0, LEAST)),
                    ..honest()
                },
                &["read-calls", "page-cache", "mapping"],
            ),
            (
                "by direct I/O into host memory",
                Counted {
                    calls: Ok(BYTES + 120),
                    mapped: Ok((0, LEAST)),
                    ..honest()
                },
                &["read-calls", "mapping"],
            ),
            (
                "by another process",
                Counted {
                    task: Ok(0),
                    mapped: Ok((0, LEAST)),
                    ..honest()
                },
                &["task", "mapping"],
            ),
            (
                "in the kernel, by direct I/O in our name",
                Counted {
                    mapped: Ok((0, LEAST)),
                    ..honest()
                },
                &["mapping"],
            ),
            (
                "half of it",
                Counted {
                    mapped: Ok((LEAST / 2, LEAST)),
                    ..honest()
                },
                &["mapping"],
            ),
        ];
        for (how, counted, expected) in bounces {
            let rows = super::rows(&direct(), SECTOR, &counted);
            assert_eq!(contradicting(&rows), expected, "{how}");
            assert_eq!(Grade::of(&rows), Grade::Contradicted, "{how}");
        }
    }

    /// The same where the lie is the library's alone, and the module honest.
    #[test]
    fn a_lie_of_one_account_is_that_ones_contradiction() {
        let wrong = |change: fn(&mut ModuleCounters)| {
            let mut counted = module_counted(BYTES);
            change(&mut counted);
            Ok(counted)
        };
        let cases: [(&str, Counted); 12] = [
            (
                "content",
                Counted {
                    differs: Some(0),
                    ..honest()
                },
            ),
            (
                "library",
                Counted {
                    library: (1, 0),
                    ..honest()
                },
            ),
            (
                "library",
                Counted {
                    library: (2, BYTES),
                    ..honest()
                },
            ),
            (
                "module",
                Counted {
                    module: Ok(ModuleCounters::default()),
                    ..honest()
                },
            ),
            (
                "module",
                Counted {
                    module: wrong(|m| m.uncovered = 1),
                    ..honest()
                },
            ),
            (
                "module",
                Counted {
                    module: wrong(|m| m.certainty[3] = 1),
                    ..honest()
                },
            ),
            (
                "task",
                Counted {
                    task: Ok(BYTES - 512),
                    ..honest()
                },
            ),
            (
                "read-calls",
                Counted {
                    calls: Ok(BYTES),
                    ..honest()
                },
            ),
            (
                "block-layer",
                Counted {
                    drives: drive(BYTES - 512),
                    ..honest()
                },
            ),
            (
                "smart",
                Counted {
                    smart: smart_counted(BYTES / 2)
                        .into_iter()
                        .map(|(name, counted)| {
                            (
                                name,
                                counted.map(|counted| Smart {
                                    units: 33,
                                    ..counted
                                }),
                            )
                        })
                        .collect(),
                    ..honest()
                },
            ),
            (
                "page-cache",
                Counted {
                    cached: Ok((0, 1)),
                    ..honest()
                },
            ),
            (
                "mapping",
                Counted {
                    mapped: Ok((LEAST - 1, LEAST)),
                    ..honest()
                },
            ),
        ];
        for (account, counted) in cases {
            let rows = super::rows(&direct(), SECTOR, &counted);
            assert_eq!(contradicting(&rows), [account], "{rows:?}");
            assert_eq!(Grade::of(&rows), Grade::Contradicted);
        }
        for path in [Path::None, Path::CompatCache, Path::CompatDirect] {
            let said = Outcome::of_path(path, Certainty::Consistent, BYTES);
            assert!(contradicting(&super::rows(&said, SECTOR, &honest())).contains(&"answer"));
        }
        let refuted = Outcome::of_path(Path::DirectSwitch, Certainty::Refuted, BYTES);
        assert_eq!(
            contradicting(&super::rows(&refuted, SECTOR, &honest())),
            ["answer"]
        );
    }

    /// What can't be asked bears nothing out.
    #[test]
    fn without_the_kernels_accounts_it_is_a_claim() {
        let no = || "no".to_owned();
        let blind = Counted {
            task: Err(no()),
            calls: Err(no()),
            drives: vec![("nvme0n1".to_owned(), Err(no()))],
            smart: vec![("nvme0".to_owned(), Err(no()))],
            cached: Err(no()),
            mapped: Err(no()),
            ..honest()
        };
        let none = super::rows(&direct(), SECTOR, &blind);
        assert_eq!(Grade::of(&none), Grade::Claimed);
        assert!(contradicting(&none).is_empty());
        let grade = |counted: &Counted| Grade::of(&super::rows(&direct(), SECTOR, counted));
        // An ordinary user sees no mappings and no SMART log.
        let user = Counted {
            smart: blind.smart.clone(),
            mapped: Err(no()),
            ..honest()
        };
        assert_eq!(grade(&user), Grade::Consistent);
        // Without the module nothing but the mappings tells whose memory it was.
        let cases = [
            (
                Counted {
                    module: Err(no()),
                    ..honest()
                },
                Grade::Consistent,
            ),
            (
                Counted {
                    module: Err(no()),
                    ..user.clone()
                },
                Grade::Claimed,
            ),
            (
                Counted {
                    cached: Err(no()),
                    ..user.clone()
                },
                Grade::Claimed,
            ),
            (
                Counted {
                    task: Err(no()),
                    ..user.clone()
                },
                Grade::Consistent,
            ),
            (
                Counted {
                    task: Err(no()),
                    drives: Vec::new(),
                    ..user
                },
                Grade::Claimed,
            ),
        ];
        for (counted, expected) in cases {
            assert_eq!(grade(&counted), expected, "{counted:?}");
        }
    }

    #[test]
    fn the_text_is_narrow_and_complete() {
        for row in super::rows(&direct(), SECTOR, &honest()) {
            let text = row.to_text();
            assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&text).contains(&row.expected), "{text}");
            assert!(
                words(&text).ends_with(&format!("seen: {}", row.seen)),
                "{text}"
            );
        }
        let long = "x".repeat(WIDTH);
        assert_eq!(
            wrapped("  ", &format!("a {long} b")),
            format!("  a\n  {long}\n  b\n")
        );
    }

    #[test]
    fn drives_are_summed_up_and_others_may_use_them() {
        let row = |sectors: [u64; 2]| {
            let drives = sectors.map(|sectors| ("nvme".to_owned(), Ok(sectors)));
            super::drives(BYTES, &drives)[0].says
        };
        let all = BYTES / SECTOR;
        assert_eq!(row([all / 2, all / 2]), Says::Agrees);
        assert_eq!(row([0, all]), Says::Agrees);
        assert_eq!(row([all, 999]), Says::Agrees);
        assert_eq!(row([all / 2, all / 2 - 1]), Says::Disagrees);
    }

    #[test]
    fn data_units_are_to_within_one() {
        for (units, sectors, fits) in [
            (33, (32768, 32768), true),
            (32, (32768, 32768), true),
            (31, (32768, 32768), false),
            (34, (32768, 32768), false),
            (31, (30000, 32768), true),
            (35, (32768, 34567), true),
            (0, (0, 0), true),
            (0, (999, 999), true),
            (0, (2000, 2000), false),
            (1, (0, 0), true),
        ] {
            let drives = [("nvme0".to_owned(), Ok(Smart { units, sectors }))];
            let says = smart(&drives)[0].says;
            assert_eq!(says == Says::Agrees, fits, "{units} {sectors:?}");
        }
    }
}
