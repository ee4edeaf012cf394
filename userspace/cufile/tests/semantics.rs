// SPDX-License-Identifier: MIT OR Apache-2.0

//! The interface's rules, from C: programs against the public header, under the address
//! and undefined-behaviour sanitizers, on the mock of CUDA's driver.

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use common::{command, compile, directory, well, HEADER_118, HEADER_NEWEST};

const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// The program of a source, compiled once.
fn program(source: &'static str, version: &'static str) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<(&str, &str), PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let built = built.get_or_insert_default();
    let path = built.entry((source, version)).or_insert_with(|| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{source}.c"));
        let mut options = SANITIZERS.to_vec();
        if version == HEADER_NEWEST {
            options.push("-DCUFILE_VECTORS");
        }
        compile(&file, version, &options)
    });
    path.clone()
}

fn run(source: &'static str, version: &'static str, case: &str) {
    let directory = directory();
    let mut command = command(&program(source, version), directory.path());
    command
        .arg(case)
        .env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1");
    if version == HEADER_NEWEST {
        command.env("VRAMIO_CUFILE_ABI", "1190");
    }
    well(&command.output().expect("it runs"));
}

/// Every case of a program is one of a test's.
fn is_complete(source: &'static str, cases: &[&str]) {
    let listed = Command::new(program(source, HEADER_118))
        .arg("--list")
        .env("LD_LIBRARY_PATH", common::libraries())
        .output()
        .expect("it runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert_eq!(listed.lines().collect::<Vec<_>>(), cases);
}

macro_rules! cases {
    ($source:ident: $($case:ident)*) => {
        mod $source {
            $(
                #[test]
                fn $case() {
                    for version in [super::HEADER_118, super::HEADER_NEWEST] {
                        super::run(stringify!($source), version, stringify!($case));
                    }
                }
            )*

            #[test]
            fn no_case_is_left_out() {
                super::is_complete(stringify!($source), &[$(stringify!($case)),*]);
            }
        }
    };
}

cases! { sync:
    the_library_opens_by_itself_and_counts
    a_descriptor_is_registered_once
    descriptors_must_be_of_the_right_kind
    memory_is_registered_once
    no_more_memory_is_registered_than_allowed
    reads_are_exact
    the_end_of_a_file_is_the_end
    writes_are_exact
    bad_requests_have_their_codes
    memory_that_was_freed_is_refused
    host_and_managed_memory_are_memory
    requests_may_be_larger_than_four_gigabytes
    vectors_fill_one_piece_after_the_other
    threads_may_share_a_handle
    threads_may_register_at_the_same_time
    a_closing_waits_for_nobody
    a_child_begins_anew
    the_callers_context_stays
    memory_of_one_gpu_is_served_while_the_other_is_current
}

cases! { batch:
    batches_have_limits
    a_full_batch_completes
    batches_may_be_made_larger
    entries_fail_one_by_one
    a_timeout_is_kept
    what_is_called_off_says_so
    after_its_end_a_batch_moves_nothing
    threads_have_batches_of_their_own
}

cases! { stream:
    requests_are_done_in_order
    writes_take_what_the_stream_made
    nothing_moves_before_the_stream_comes_to_it
    what_is_fixed_is_read_at_once
    streams_do_not_wait_for_each_other
    the_default_stream_is_a_stream
    bad_requests_are_told_then_or_later
    without_threads_there_are_no_streams
    threads_have_streams_of_their_own
}

cases! { stats:
    buffers_are_not_overrun
    null_is_refused
    a_level_gives_what_it_has
    everything_is_counted_once
    parameters_are_kept_until_the_library_is_opened
    without_leave_nothing_is_copied
    flags_say_what_can_go_direct
    the_topology_can_be_exported
}
