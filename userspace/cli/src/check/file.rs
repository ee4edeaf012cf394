// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio check FILE`: would requests on a file go direct, and if not, why?

use std::fs::File;
use std::path::Path;

use serde::Serialize;
use vramio::{
    Certainty, Code, Config, Context, Direction, Errno, Path as DataPath, PciAddress, Reason,
    Verdict,
};

use super::{Answer, Usable};
use crate::failure::Failure;
use crate::file;
use crate::gpu::{Gpu, GpuJson};

/// What is known about a file.
#[derive(Debug)]
pub struct FileAnswer<'a> {
    file: &'a Path,
    direction: Direction,
    gpu: Option<Gpu>,
    verdict: Verdict,
}

/// The verdict in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Decision {
    Direct,
    /// Not by one DMA, and not through host memory either.
    Routed,
    Refused,
    /// Nothing stands against it on the file's side, and there was no GPU to ask
    /// about.
    Undecided,
}

/// Asks what becomes of requests with this configuration, with a page of the GPU's memory.
pub fn ask(
    config: Config,
    path: &Path,
    gpu: Option<u32>,
    write: bool,
) -> Result<FileAnswer<'_>, Failure> {
    let direction = if write {
        Direction::Write
    } else {
        Direction::Read
    };
    let mut answer = FileAnswer {
        file: path,
        direction,
        gpu: None,
        verdict: refused(Reason::FileType.into(), None),
    };
    answer.gpu = match gpu {
        Some(number) => Some(Gpu::open(number)?),
        None => Gpu::find()?,
    };
    if file::kind(path)?.is_none() {
        return Ok(answer);
    }
    let file = file::open(path, write)?;

    let context = Context::with_config(config)?;
    let device = match context.device() {
        // The module is missing, too old, or not for this user.
        Err(error) if error.reason != Reason::None => {
            answer.verdict = refused(error.reason, error.errno);
            return Ok(answer);
        }
        result => result.map_err(Clone::clone)?,
    };
    answer.verdict = match &answer.gpu {
        Some(gpu) => probe(&context, gpu, &file, direction)?,
        None => device.probe(&file, direction)?,
    };
    Ok(answer)
}

/// Asks with one page of the GPU's memory.
fn probe(
    context: &Context,
    gpu: &Gpu,
    file: &File,
    direction: Direction,
) -> Result<Verdict, Failure> {
    let align = context
        .device()
        .map_or(1, |device| device.info().registration_align);
    let memory = gpu.alloc(context, align.max(1).into())?;
    let file = vramio::File::from_fd(context, file)?;
    match file.probe(direction, &memory.buffer, 0, 0, 0) {
        // The module does not take this GPU's memory.
        Err(error) if error.reason != Reason::None => Ok(refused(error.reason, error.errno)),
        result => Ok(result?),
    }
}

/// The verdict where no probe was possible.
fn refused(reason: Code<Reason>, error: Option<Errno>) -> Verdict {
    Verdict {
        path: DataPath::None.into(),
        reason,
        certainty: Certainty::None.into(),
        error,
        mem_align: None,
        offset_align: None,
        distance: None,
        target: None,
        via: None,
    }
}

impl FileAnswer<'_> {
    /// The GPU that was asked about.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// In a sentence, and the fix; that is empty if nothing is in the way.
    pub fn why(&self) -> (String, &'static str) {
        let reason = self.verdict.reason;
        if reason != Reason::None {
            (format!("{reason}: {}", reason.sentence()), reason.fix())
        } else if let Some(errno) = self.verdict.error {
            (format!("{errno:?} ({})", errno.desc()), "see errno(3)")
        } else {
            (self.sentence(), "")
        }
    }

    /// Why requests would not go direct: [`Reason::None`] if they would.
    pub fn reason(&self) -> Code<Reason> {
        match (self.decision(), &self.gpu) {
            (Decision::Undecided, None) => Reason::NoGpu.into(),
            _ => self.verdict.reason,
        }
    }

    /// The GPU that they would go through.
    pub fn via(&self) -> Option<PciAddress> {
        self.verdict.via
    }

    fn decision(&self) -> Decision {
        if self.verdict.is_refused() {
            Decision::Refused
        } else if self.verdict.path == DataPath::Routed {
            Decision::Routed
        } else if self.verdict.path.is_direct() {
            Decision::Direct
        } else {
            Decision::Undecided
        }
    }

    fn sentence(&self) -> String {
        match (self.decision(), &self.gpu) {
            (Decision::Direct, _) => format!("{}s would go direct", self.direction),
            (Decision::Routed, _) => {
                let via = self
                    .via()
                    .map_or("another GPU".to_owned(), |gpu| gpu.to_string());
                format!("{}s would go through the memory of {via}", self.direction)
            }
            (Decision::Refused, _) => format!("{}s would be refused", self.direction),
            (Decision::Undecided, None) => {
                "nothing stands against it in the file, and there is no GPU to ask about".to_owned()
            }
            (Decision::Undecided, Some(_)) => "the module names no direct path".to_owned(),
        }
    }
}

impl Answer for FileAnswer<'_> {
    fn usable(&self) -> Usable {
        if matches!(self.decision(), Decision::Direct | Decision::Routed) {
            Usable::Direct
        } else if self.gpu.is_some() && self.verdict.reason != Reason::FileType {
            Usable::Fallback
        } else {
            Usable::No
        }
    }

    fn to_text(&self) -> String {
        let Verdict {
            path,
            certainty,
            error,
            mem_align,
            offset_align,
            distance,
            target,
            via,
            ..
        } = self.verdict;
        let reason = self.reason();
        let decision = match self.decision() {
            Decision::Direct => "direct",
            Decision::Routed => "routed",
            Decision::Refused => "refused",
            Decision::Undecided => "undecided",
        };
        let mut lines = vec![
            format!("file: {}", self.file.display()),
            format!("verdict: {decision} ({})", self.sentence()),
        ];
        if path != DataPath::None {
            lines.push(format!("path: {path} ({certainty})"));
        }
        if let Some(gpu) = via {
            lines.push(format!("routed via: {gpu}"));
        }
        if reason != Reason::None {
            lines.push(format!("reason: {reason}: {}", reason.sentence()));
            lines.push(format!("fix: {}", reason.fix()));
        }
        if let Some(errno) = error {
            lines.push(format!("errno: {errno:?} ({})", errno.desc()));
        }
        if let Some(bytes) = offset_align {
            lines.push(format!(
                "file offset and length: multiples of {bytes} bytes"
            ));
        }
        if let Some(bytes) = mem_align {
            lines.push(format!("offset in GPU memory: multiples of {bytes} bytes"));
        }
        if let Some(address) = target {
            lines.push(format!("drive: {address}"));
        }
        if let Some(gpu) = &self.gpu {
            lines.push(format!("gpu: {}", gpu.describe()));
        }
        if let Some(hops) = distance {
            lines.push(format!("distance: {hops}"));
        }
        lines.join("\n") + "\n"
    }

    fn to_json(&self) -> serde_json::Value {
        let verdict = &self.verdict;
        let reason = self.reason();
        let answer = AnswerJson {
            file: self.file.display().to_string(),
            operation: self.direction.to_string(),
            verdict: self.decision(),
            path: verdict.path.to_string(),
            certainty: verdict.certainty.to_string(),
            reason: (reason != Reason::None).then(|| ReasonJson {
                reason: reason.to_string(),
                sentence: reason.sentence(),
                fix: reason.fix(),
            }),
            errno: verdict.error.map(|errno| format!("{errno:?}")),
            offset_align: verdict.offset_align,
            mem_align: verdict.mem_align,
            drive: verdict.target.map(|address| address.to_string()),
            gpu: self.gpu.as_ref().map(Gpu::to_json),
            distance: verdict.distance,
            via: verdict.via.map(|address| address.to_string()),
        };
        crate::output::value(answer)
    }
}

/// An answer as JSON. Alignments are bytes.
#[derive(Debug, Serialize)]
struct AnswerJson {
    file: String,
    operation: String,
    verdict: Decision,
    path: String,
    certainty: String,
    reason: Option<ReasonJson>,
    errno: Option<String>,
    offset_align: Option<u32>,
    mem_align: Option<u32>,
    drive: Option<String>,
    gpu: Option<GpuJson>,
    distance: Option<u32>,
    via: Option<String>,
}

#[derive(Debug, Serialize)]
struct ReasonJson {
    reason: String,
    sentence: &'static str,
    fix: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(verdict: Verdict) -> FileAnswer<'static> {
        FileAnswer {
            file: Path::new("/data/a"),
            direction: Direction::Read,
            gpu: None,
            verdict,
        }
    }

    fn clear() -> Verdict {
        Verdict {
            certainty: Certainty::Forecast.into(),
            mem_align: Some(4),
            offset_align: Some(512),
            ..refused(Reason::None.into(), None)
        }
    }

    #[test]
    fn direct_needs_a_direct_path() {
        let direct = Verdict {
            path: DataPath::DirectSwitch.into(),
            ..clear()
        };
        assert_eq!(answer(direct).decision(), Decision::Direct);
        assert_eq!(answer(clear()).decision(), Decision::Undecided);
        let unknown = Verdict {
            path: Code::from_raw(99),
            ..clear()
        };
        assert_eq!(answer(unknown).decision(), Decision::Undecided);
    }

    /// One that goes over another GPU has a reason why it is not direct, and is none that is
    /// refused: 0 is the exit status, and text and JSON name the GPU.
    #[test]
    fn a_routed_one_says_by_what_and_why() {
        let gpu = "0000:03:00.0".parse().expect("an address");
        let verdict = Verdict {
            path: DataPath::Routed.into(),
            reason: Reason::HostBridge.into(),
            via: Some(gpu),
            mem_align: Some(1),
            ..clear()
        };
        let routed = answer(verdict);
        assert_eq!(routed.usable(), Usable::Direct);
        assert_eq!(routed.reason(), Reason::HostBridge);
        assert_eq!(
            routed.to_text(),
            "file: /data/a\n\
             verdict: routed (reads would go through the memory of 0000:03:00.0)\n\
             path: routed (forecast)\n\
             routed via: 0000:03:00.0\n\
             reason: host-bridge: drive and GPU have no PCIe switch in common, and the host bridge \
             is not known to pass peer-to-peer requests\n\
             fix: put both below one PCIe switch, or use a platform whose host bridge the kernel \
             allows\n\
             file offset and length: multiples of 512 bytes\n\
             offset in GPU memory: multiples of 1 bytes\n"
        );
        let json = routed.to_json();
        assert_eq!(json["verdict"], "routed");
        assert_eq!(json["path"], "routed");
        assert_eq!(json["via"], "0000:03:00.0");
        assert_eq!(json["reason"]["reason"], "host-bridge");
        let direct = Verdict {
            path: DataPath::DirectSwitch.into(),
            ..clear()
        };
        assert!(answer(direct).to_json()["via"].is_null());
        // An errno refuses it all the same.
        let refused = Verdict {
            error: Some(Errno::EINVAL),
            ..verdict
        };
        assert_eq!(answer(refused).decision(), Decision::Refused);
    }

    #[test]
    fn an_errno_or_a_reason_is_a_refusal() {
        let errno = Verdict {
            error: Some(Errno::EOPNOTSUPP),
            path: DataPath::DirectSwitch.into(),
            ..clear()
        };
        assert_eq!(answer(errno).decision(), Decision::Refused);
        let reason = Verdict {
            reason: Code::from_raw(200),
            ..clear()
        };
        assert_eq!(answer(reason).decision(), Decision::Refused);
    }

    #[test]
    fn the_text_says_what_is_known() {
        let direct = Verdict {
            path: DataPath::DirectSwitch.into(),
            distance: Some(4),
            ..clear()
        };
        assert_eq!(
            answer(direct).to_text(),
            "file: /data/a\n\
             verdict: direct (reads would go direct)\n\
             path: direct-switch (forecast)\n\
             file offset and length: multiples of 512 bytes\n\
             offset in GPU memory: multiples of 4 bytes\n\
             distance: 4\n"
        );
        let tmpfs = refused(Reason::NoBlockDevice.into(), Some(Errno::EOPNOTSUPP));
        assert_eq!(
            answer(tmpfs).to_text(),
            "file: /data/a\n\
             verdict: refused (reads would be refused)\n\
             reason: no-block-device: the file has no block device below it\n\
             fix: use a file on a local NVMe drive\n\
             errno: EOPNOTSUPP (Operation not supported on transport endpoint)\n"
        );
    }
}
