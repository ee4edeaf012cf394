// SPDX-License-Identifier: MIT OR Apache-2.0

//! What an NVMe drive itself counts: the SMART log page (NVM Express base specification,
//! "SMART / Health Information").

use std::fs::File;
use std::os::fd::AsRawFd;

use super::evidence::Asked;

/// `struct nvme_passthru_cmd` of `include/uapi/linux/nvme_ioctl.h`.
#[repr(C)]
#[derive(Default)]
struct PassthruCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

nix::ioctl_readwrite!(admin_command, b'N', 0x41, PassthruCommand);

const GET_LOG_PAGE: u8 = 2;
const SMART_LOG: u32 = 2;
const LOG_BYTES: usize = 512;
/// Where the log has the data units read, 16 bytes.
const DATA_UNITS_READ: usize = 32;
/// All namespaces.
const CONTROLLER: u32 = u32::MAX;

/// Data units, each of 1000 sectors of 512 bytes, that were read from the drive with this
/// controller, such as `nvme0`, over its life.
pub fn units_read(controller: &str) -> Asked<u64> {
    let path = format!("/dev/{controller}");
    let why = |error: &dyn std::fmt::Display| format!("{path}: {error}; it takes root");
    let device = File::open(&path).map_err(|error| why(&error))?;
    let mut log = [0u8; LOG_BYTES];
    let mut command = PassthruCommand {
        opcode: GET_LOG_PAGE,
        nsid: CONTROLLER,
        addr: log.as_mut_ptr().expose_provenance() as u64,
        data_len: LOG_BYTES as u32,
        // The length in words less one, above the log's number.
        cdw10: (LOG_BYTES as u32 / 4 - 1) << 16 | SMART_LOG,
        ..PassthruCommand::default()
    };
    // SAFETY: The structure is the kernel's for this call, the kernel writes no more than
    // `data_len` bytes to `addr`, and both outlive the call.
    let status = unsafe { admin_command(device.as_raw_fd(), &raw mut command) }
        .map_err(|errno| why(&errno.desc()))?;
    if status != 0 {
        return Err(format!("{path}: the drive's status is {status:#x}"));
    }
    let mut units = [0; 16];
    units.copy_from_slice(&log[DATA_UNITS_READ..DATA_UNITS_READ + 16]);
    u64::try_from(u128::from_le_bytes(units)).map_err(|_| format!("{path}: no such number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_the_kernels_size() {
        assert_eq!(std::mem::size_of::<PassthruCommand>(), 72);
    }

    #[test]
    fn what_is_no_drive_says_so() {
        let why = units_read("null").expect_err("no drive");
        assert!(why.starts_with("/dev/null: "), "{why}");
        let why = units_read("nvme-that-is-not-there").expect_err("no drive");
        assert!(why.contains("No such file"), "{why}");
    }
}
