// SPDX-License-Identifier: MIT OR Apache-2.0

//! The rows of `CUFILE CONFIGURATION`.

use vramio_cufile_config::{Cufile, Key, Usual, Value};

/// Rows, in order: what they are called there, and the key.
const ROWS: [(&str, &str); 35] = [
    ("properties.use_pci_p2pdma", "properties.use_pci_p2pdma"),
    ("properties.use_compat_mode", "properties.allow_compat_mode"),
    (
        "properties.force_compat_mode",
        "properties.force_compat_mode",
    ),
    (
        "properties.gds_rdma_write_support",
        "properties.gds_rdma_write_support",
    ),
    ("properties.use_poll_mode", "properties.use_poll_mode"),
    (
        "properties.poll_mode_max_size_kb",
        "properties.poll_mode_max_size_kb",
    ),
    ("properties.max_batch_io_size", "properties.io_batchsize"),
    (
        "properties.max_batch_io_timeout_msecs",
        "properties.max_batch_io_timeout_msecs",
    ),
    (
        "properties.max_direct_io_size_kb",
        "properties.max_direct_io_size_kb",
    ),
    (
        "properties.max_device_cache_size_kb",
        "properties.max_device_cache_size_kb",
    ),
    (
        "properties.per_buffer_cache_size_kb",
        "properties.per_buffer_cache_size_kb",
    ),
    (
        "properties.max_device_pinned_mem_size_kb",
        "properties.max_device_pinned_mem_size_kb",
    ),
    (
        "properties.posix_pool_slab_size_kb",
        "properties.posix_pool_slab_size_kb",
    ),
    (
        "properties.posix_pool_slab_count",
        "properties.posix_pool_slab_count",
    ),
    (
        "properties.rdma_peer_affinity_policy",
        "properties.rdma_load_balancing_policy",
    ),
    (
        "properties.rdma_dynamic_routing",
        "properties.rdma_dynamic_routing",
    ),
    (
        "fs.generic.posix_unaligned_writes",
        "fs.generic.posix_unaligned_writes",
    ),
    ("fs.lustre.posix_gds_min_kb", "fs.lustre.posix_gds_min_kb"),
    ("fs.beegfs.posix_gds_min_kb", "fs.beegfs.posix_gds_min_kb"),
    ("fs.weka.rdma_write_support", "fs.weka.rdma_write_support"),
    ("fs.gpfs.gds_write_support", "fs.gpfs.gds_write_support"),
    ("fs.gpfs.gds_async_support", "fs.gpfs.gds_async_support"),
    ("profile.nvtx", "profile.nvtx"),
    ("profile.cufile_stats", "profile.cufile_stats"),
    (
        "miscellaneous.api_check_aggressive",
        "miscellaneous.api_check_aggressive",
    ),
    ("execution.max_io_threads", "execution.max_io_threads"),
    (
        "execution.max_io_queue_depth",
        "execution.max_io_queue_depth",
    ),
    ("execution.parallel_io", "execution.parallel_io"),
    (
        "execution.min_io_threshold_size_kb",
        "execution.min_io_threshold_size_kb",
    ),
    (
        "execution.max_request_parallelism",
        "execution.max_request_parallelism",
    ),
    (
        "properties.force_odirect_mode",
        "properties.force_odirect_mode",
    ),
    ("properties.prefer_iouring", "properties.prefer_iouring"),
    ("block.nvme.use_pci_p2pdma", "block.nvme.use_pci_p2pdma"),
    ("block.nvmeof.use_pci_p2pdma", "block.nvmeof.use_pci_p2pdma"),
    ("block.raid.use_pci_p2pdma", "block.raid.use_pci_p2pdma"),
];

/// The rows, with the values in force: of the environment, the file, or the defaults.
pub fn rows(cufile: &Cufile) -> String {
    let mut text = String::new();
    for (shown, name) in ROWS {
        let value = cufile.entry(name).map(|entry| entry.value.clone());
        let value = value.or_else(|| usual(name));
        // Scripts know these two forms.
        let colon = if shown.starts_with("fs.") && !shown.starts_with("fs.generic.") {
            ":"
        } else {
            " :"
        };
        text += &format!(" {shown}{colon} {}\n", show(shown, value.as_ref()));
    }
    text
}

/// The value where nobody sets one.
fn usual(name: &str) -> Option<Value> {
    let (key, _) = Key::find(name)?;
    Some(match key.usual {
        Usual::Flag(value) => Value::Flag(value),
        Usual::Number(value) => Value::Number(value),
        Usual::Text(value) => Value::Text(value.to_owned()),
        Usual::Numbers(values) => Value::Numbers(values.to_vec()),
        Usual::Texts(values) => Value::Texts(values.iter().map(|v| (*v).to_owned()).collect()),
        Usual::Nothing | Usual::Differs => return None,
    })
}

fn show(shown: &str, value: Option<&Value>) -> String {
    match value {
        Some(Value::Flag(value)) if shown == "properties.rdma_dynamic_routing" => {
            u8::from(*value).to_string()
        }
        Some(Value::Text(text)) => text.clone(),
        Some(Value::Numbers(numbers)) => {
            let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            numbers.join(" ")
        }
        Some(value) => value.to_string(),
        None => default_where_versions_differ(shown).to_owned(),
    }
}

/// What libcufile here does where NVIDIA's versions differ.
fn default_where_versions_differ(shown: &str) -> &'static str {
    match shown {
        "properties.posix_pool_slab_count" => "128 64 64",
        "fs.gpfs.gds_write_support" => "false",
        _ => "not set",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_key() {
        for (shown, name) in ROWS {
            let (_, canonical) = Key::find(name).expect(name);
            let (_, same) = Key::find(shown).unwrap_or_else(|| {
                assert_eq!(shown, "properties.max_batch_io_size");
                Key::find(name).expect(name)
            });
            assert_eq!(canonical, same, "{shown}");
        }
    }

    #[test]
    fn the_file_goes_before_the_defaults() {
        let mut cufile = Cufile::default();
        let text = r#"{ "properties": { "allow_compat_mode": false, "io_batchsize": 7,
            "posix_pool_slab_size_kb": [4, 8], "posix_pool_slab_count": [1, 2] } }"#;
        let read = cufile.read_text("/etc/cufile.json".as_ref(), text);
        read.expect("it is a configuration");
        let rows = rows(&cufile);
        for row in [
            " properties.use_compat_mode : false\n",
            " properties.max_batch_io_size : 7\n",
            " properties.posix_pool_slab_size_kb : 4 8\n",
            " properties.posix_pool_slab_count : 1 2\n",
            " properties.rdma_dynamic_routing : 0\n",
            " properties.rdma_peer_affinity_policy : RoundRobin\n",
            " properties.max_direct_io_size_kb : 16384\n",
            " fs.lustre.posix_gds_min_kb: 0\n",
            " execution.parallel_io : true\n",
        ] {
            assert!(rows.contains(row), "no {row:?} in {rows}");
        }
        assert!(!rows.contains("not set"), "{rows}");
    }
}
