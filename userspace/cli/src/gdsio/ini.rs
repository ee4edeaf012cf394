// SPDX-License-Identifier: MIT OR Apache-2.0

//! Configuration files: `[global]`, then `[jobN]`, with `key=value`.

use super::config::{self, Config, Job, Kind, Place, Transfer};
use crate::bench::args::duration;
use crate::gpu::MemoryKind;
use crate::workload::sizes::Sizes;

/// What a file says that the command line may say, too; with a line's number for complaints.
pub fn read(text: &str) -> Result<Config, String> {
    let mut config = Config {
        transfer: Transfer::Gpu,
        kind: Kind::Read,
        io: Sizes::default(),
        size: None,
        runtime: None,
        verify: false,
        seed: 0,
        random_fill: false,
        refill: false,
        unaligned: false,
        align: None,
        batch: None,
        mix: None,
        per_job: false,
        notices: Vec::new(),
        jobs: Vec::new(),
    };
    let mut offset = 0;
    let mut drafts: Vec<Draft> = Vec::new();
    let mut section = Section::None;
    for (index, line) in text.lines().enumerate() {
        let fail = |what: String| format!("line {}: {what}", index + 1);
        let line = line.split(['#', ';']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            section = match name.trim() {
                "global" => Section::Global,
                job if job.starts_with("job") => {
                    drafts.push(Draft::new(index + 1));
                    Section::Job
                }
                other => {
                    return Err(fail(format!(
                        "[{other}] is no section: there are [global] and [job1], [job2], ..."
                    )));
                }
            };
            continue;
        }
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| fail(format!("'{line}' is neither [section] nor key=value")))?;
        let (key, value) = (key.trim(), value.trim());
        let taken = match (section, drafts.last_mut()) {
            (Section::Global, _) => global(&mut config, &mut offset, key, value),
            (Section::Job, Some(draft)) => draft.take(key, value),
            _ => Err("it stands before the first section".to_owned()),
        };
        taken.map_err(|what| fail(format!("{key}={value}: {what}")))?;
    }
    for draft in drafts {
        config.jobs.push(draft.job(offset)?);
    }
    Ok(config)
}

#[derive(Clone, Copy)]
enum Section {
    None,
    Global,
    Job,
}

/// A job as far as it is read.
struct Draft {
    line: usize,
    place: Option<Place>,
    gpu: u32,
    numa: Option<u32>,
    threads: u32,
    memory: MemoryKind,
    offset: Option<u64>,
    io: Option<Sizes>,
    direct: bool,
}

fn global(config: &mut Config, offset: &mut u64, key: &str, value: &str) -> Result<(), String> {
    match key {
        "name" => {}
        "xfer_type" => config.transfer = numbered(value, "0 to 7", Transfer::of_number)?,
        "rw" => {
            config.kind = Kind::of_name(value).ok_or("use read, write, randread or randwrite")?;
        }
        "bs" => config.io = config::sizes(value)?,
        "size" => config.size = Some(config::positive(value)?),
        "runtime" if value == "0" => {}
        "runtime" => config.runtime = Some(duration(value)?),
        "do_verify" => config.verify = flag(value)?,
        "skip_bufregister" => {
            if flag(value)? {
                config.notices.push(super::args::NO_REGISTER.to_owned());
            }
        }
        "enable_nvlinks" => {
            if flag(value)? {
                config.notices.push(super::args::NO_NVLINKS.to_owned());
            }
        }
        "random_seed" => config.seed = number(value)?,
        "refill_buffer" => config.refill = flag(value)?,
        "fill_random" => config.random_fill = flag(value)?,
        "unaligned_random" => config.unaligned = flag(value)?,
        "start_offset" => *offset = config::bytes(value)?,
        _ => {
            return Err(
                "the keys of [global] are name, xfer_type, rw, bs, size, runtime, \
                        do_verify, skip_bufregister, enable_nvlinks, random_seed, \
                        refill_buffer, fill_random, unaligned_random, start_offset"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

impl Draft {
    fn new(line: usize) -> Self {
        Draft {
            line,
            place: None,
            gpu: 0,
            numa: None,
            threads: 1,
            memory: MemoryKind::Device,
            offset: None,
            io: None,
            direct: true,
        }
    }

    fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        let narrow =
            |value| u32::try_from(number(value)?).map_err(|_| "that is too much".to_owned());
        match key {
            "numa_node" => self.numa = Some(narrow(value)?),
            "gpu_dev_id" => self.gpu = narrow(value)?,
            "num_threads" => {
                self.threads = narrow(value)?;
                if !(1..=1024).contains(&self.threads) {
                    return Err("use 1 to 1024".to_owned());
                }
            }
            "directory" | "filename" if self.place.is_some() => {
                return Err("the job has a file or a directory already".to_owned());
            }
            "directory" => self.place = Some(Place::Directory(value.into())),
            "filename" => self.place = Some(Place::File(value.into())),
            "mem_type" => self.memory = numbered(value, "0 to 4", config::memory_of_number)?,
            "fd_type" => self.direct = !flag(value)?,
            "start_offset" => self.offset = Some(config::bytes(value)?),
            "io_size" => self.io = Some(config::sizes(value)?),
            _ => {
                return Err(
                    "the keys of a job are numa_node, gpu_dev_id, num_threads, directory, \
                            filename, mem_type, fd_type, start_offset, io_size"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    fn job(self, offset: u64) -> Result<Job, String> {
        let place = self.place.ok_or_else(|| {
            format!(
                "line {}: the job has neither filename nor directory",
                self.line
            )
        })?;
        Ok(Job {
            place,
            gpu: self.gpu,
            numa: self.numa,
            threads: self.threads,
            memory: self.memory,
            offset: self.offset.unwrap_or(offset),
            io: self.io,
            direct: self.direct,
        })
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "use a number".to_owned())
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err("use 0 or 1".to_owned()),
    }
}

fn numbered<T>(text: &str, all: &str, of: impl Fn(u64) -> Option<T>) -> Result<T, String> {
    let value = number(text).ok().and_then(of);
    value.ok_or_else(|| format!("use {all}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FILE: &str = "\
[global]
name=a test        # a comment
xfer_type=6
rw=randwrite
bs=4K:64KB:4K
size=1G
runtime=60
do_verify=0
random_seed=7
refill_buffer=1
start_offset=1M

; the jobs
[job1]
numa_node=1
gpu_dev_id=2
num_threads=8
directory=/mnt/a
[job2]
filename=/mnt/b c
mem_type=3
fd_type=1
start_offset=0
io_size=8K
";

    #[test]
    fn a_file_is_read() {
        let config = read(FILE).expect("it is right");
        assert_eq!(config.transfer, Transfer::GpuBatch);
        assert_eq!(config.kind, Kind::RandWrite);
        assert_eq!(config.io, config::sizes("4K:64K:4K").expect("sizes"));
        assert_eq!(config.size, Some(1 << 30));
        assert_eq!(config.runtime, Some(Duration::from_secs(60)));
        assert_eq!(
            (config.seed, config.refill, config.verify),
            (7, true, false)
        );
        let [first, second] = config.jobs.as_slice() else {
            panic!("{config:?}");
        };
        assert_eq!(first.place, Place::Directory("/mnt/a".into()));
        assert_eq!((first.numa, first.gpu, first.threads), (Some(1), 2, 8));
        assert_eq!(
            (first.offset, first.direct, first.io),
            (1 << 20, true, None)
        );
        assert_eq!(second.place, Place::File("/mnt/b c".into()));
        assert_eq!(
            (second.threads, second.offset, second.direct),
            (1, 0, false)
        );
        assert_eq!(second.memory, MemoryKind::Heap);
        assert_eq!(second.io, Sizes::one(8192));
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, part) in [
            (
                "size=1G",
                "line 1: size=1G: it stands before the first section",
            ),
            ("[global]\nsize", "line 2: 'size' is neither"),
            ("[global]\nxfer_type=9", "line 2: xfer_type=9: use 0 to 7"),
            ("[global]\nrw=sideways", "use read, write"),
            ("[global]\nbs=0", "line 2: bs=0: must not be 0"),
            (
                "[global]\nspeed=fast",
                "line 2: speed=fast: the keys of [global] are",
            ),
            ("[other]", "line 1: [other] is no section"),
            (
                "[global]\n[job1]\nnum_threads=2",
                "line 2: the job has neither filename",
            ),
            (
                "[job1]\nfilename=a\ndirectory=b",
                "line 3: directory=b: the job has",
            ),
            ("[job1]\nnum_threads=0", "use 1 to 1024"),
            ("[job1]\ngpu_dev_id=-1", "use a number"),
            ("[job1]\nrw=read", "the keys of a job are"),
            ("[global]\ndo_verify=maybe", "use 0 or 1"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
