// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cases, by what they are about.

mod allocation;
mod async_end;
mod async_io;
mod async_refuse;
mod broken;
mod cli;
mod clients;
mod cuda;
mod detect;
mod dmabuf;
mod failure;
mod family;
mod field;
mod frame;
mod fuzz;
mod leaks;
mod merge;
mod p2pdma;
mod planner;
mod platform;
mod process;
mod prove;
mod read;
mod refuse;
mod register;
mod removal;
mod routing;
mod stack;
mod storage;
mod unfit;
mod write;

use crate::lane::Case;

/// Every case.
pub fn all() -> Vec<Case> {
    let cases = [
        frame::cases(),
        read::cases(),
        write::cases(),
        refuse::cases(),
        register::cases(),
        stack::cases(),
        unfit::cases(),
        failure::cases(),
        dmabuf::cases(),
        async_io::cases(),
        async_refuse::cases(),
        async_end::cases(),
        process::cases(),
        family::cases(),
        field::cases(),
        // Its last event leaves a drive that cannot be taken out any more.
        removal::cases(),
        cli::cases(),
        prove::cases(),
        broken::cases(),
        clients::cases(),
        cuda::cases(),
        routing::cases(),
        planner::cases(),
        fuzz::cases(),
        merge::cases(),
        p2pdma::cases(),
        platform::cases(),
        storage::cases(),
        allocation::cases(),
        detect::cases(),
        // The last of each machine.
        leaks::cases(),
    ];
    let mut cases: Vec<Case> = cases.into_iter().flatten().collect();
    for case in &mut cases {
        for (_, report) in field::ALIASES.iter().filter(|(name, _)| *name == case.name) {
            case.reports.push(report);
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_has_its_case() {
        let cases = all();
        for (name, report) in field::ALIASES {
            assert!(
                cases.iter().any(|case| case.name == *name),
                "{report}: there is no case {name}"
            );
        }
    }
}
