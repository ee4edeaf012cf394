// SPDX-License-Identifier: MIT OR Apache-2.0

//! The result, in one line that scripts read field by field.

use std::time::Duration;

use crate::workload::sizes::Sizes;

/// Bytes of a KiB and of a GiB.
const KIB: u64 = 1 << 10;
const GIB: f64 = (1u64 << 30) as f64;

/// What a line says.
#[derive(Clone, Debug)]
pub struct Line {
    /// `READ`, `WRITE`, `RANDREAD` or `RANDWRITE`.
    pub kind: &'static str,
    /// `GPUD`, `CPUONLY` and so on.
    pub transfer: &'static str,
    /// Threads.
    pub threads: u64,
    /// Requests of a batch.
    pub depth: Option<u32>,
    /// Bytes that moved.
    pub done: u64,
    /// Bytes of the files.
    pub total: u64,
    /// How long requests are.
    pub io: Sizes,
    /// Requests.
    pub ops: u64,
    /// How long they took on average.
    pub latency: Duration,
    /// How long it took altogether.
    pub elapsed: Duration,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (min, max, step) = self.io.bounds();
        let [min, max, step] = [min, max, step].map(|bytes| bytes / KIB);
        let seconds = self.elapsed.as_secs_f64();
        let rate = if seconds > 0.0 {
            self.done as f64 / GIB / seconds
        } else {
            0.0
        };
        write!(
            f,
            "IoType: {} XferType: {} Threads: {} ",
            self.kind, self.transfer, self.threads
        )?;
        if let Some(depth) = self.depth {
            write!(f, "IoDepth: {depth} ")?;
        }
        write!(
            f,
            "DataSetSize: {}/{}(KiB) ",
            self.done / KIB,
            self.total / KIB
        )?;
        if min == max {
            write!(f, "IOSize: {min}(KiB) ")?;
        } else {
            write!(f, "IOSize: {min}-{max}-{step}(KiB) ")?;
        }
        write!(
            f,
            "Throughput: {rate:.6} GiB/sec, Avg_Latency: {:.6} usecs ops: {} total_time {seconds:.6} secs",
            self.latency.as_secs_f64() * 1e6,
            self.ops,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line {
            kind: "READ",
            transfer: "GPUD",
            threads: 8,
            depth: None,
            done: 8 << 30,
            total: 8 << 30,
            io: Sizes::one(1 << 20).expect("a size"),
            ops: 8192,
            latency: Duration::from_nanos(1_138_933_194),
            elapsed: Duration::from_secs(2),
        }
    }

    #[test]
    fn fields_are_where_scripts_look_for_them() {
        assert_eq!(
            line().to_string(),
            "IoType: READ XferType: GPUD Threads: 8 DataSetSize: 8388608/8388608(KiB) \
             IOSize: 1024(KiB) Throughput: 4.000000 GiB/sec, \
             Avg_Latency: 1138933.194000 usecs ops: 8192 total_time 2.000000 secs"
        );
        let batch = Line {
            depth: Some(10),
            io: Sizes::range(16 << 20, 32 << 20, 4 << 20).expect("a range"),
            ..line()
        };
        let text = batch.to_string();
        assert!(
            text.contains("Threads: 8 IoDepth: 10 DataSetSize:"),
            "{text}"
        );
        assert!(text.contains("IOSize: 16384-32768-4096(KiB) "), "{text}");
    }

    #[test]
    fn no_time_is_no_division() {
        let nothing = Line {
            elapsed: Duration::ZERO,
            done: 0,
            ..line()
        };
        assert!(nothing.to_string().contains("Throughput: 0.000000 GiB/sec"));
    }
}
