//! Options of ids.

use std::ffi::c_int;

use doorbell_fabric::CmError;
use doorbell_fabric::{ACK_TIMEOUT_MAX, IdOption, PathRecord};
use doorbell_seam::error::Code;

use super::core::Core;
use super::record::Told;

// rdma-sys lacks these of <rdma/rdma_cma.h>.
const RDMA_OPTION_ID: c_int = 0;
const RDMA_OPTION_ID_TOS: c_int = 0;
const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
const RDMA_OPTION_ID_AFONLY: c_int = 2;
const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
const RDMA_OPTION_IB: c_int = 1;
const RDMA_OPTION_IB_PATH: c_int = 1;

/// `struct ibv_path_data`: flags, a reserved word, the record.
type PathData = [u8; 8 + 64];
/// The path of what the connection sends and of its management, there and back
/// (`IBV_PATH_FLAG_GMP`, `_PRIMARY`, `_BIDIRECTIONAL`).
const PATH_FLAGS: u32 = 1 | 2 | 8 | 32;
/// The selector before a number in a path record: exactly that number.
const EXACTLY: u8 = 2 << 6;
/// The path is reversible, and the number of paths is one.
const REVERSIBLE_ONE: u8 = 0x81;

/// `rdma_set_option` (CM-16).
pub(super) fn set(core: &Core, option: IdOption) -> Result<Option<Told>, CmError> {
    let asked = format!("set {option:?}");
    let done = match option {
        IdOption::Tos(tos) => call(core, RDMA_OPTION_ID_TOS, &[tos]),
        IdOption::ReuseAddr(on) => call(core, RDMA_OPTION_ID_REUSEADDR, &flag(on)),
        IdOption::AfOnly(on) => call(core, RDMA_OPTION_ID_AFONLY, &flag(on)),
        IdOption::AckTimeout(code) if code > ACK_TIMEOUT_MAX => {
            // The kernel would take it and cut it off.
            let answer = format!("codes go up to {ACK_TIMEOUT_MAX} (RC-2)");
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        IdOption::AckTimeout(code) => call(core, RDMA_OPTION_ID_ACK_TIMEOUT, &[code]),
        IdOption::IbPath(path) => {
            core.set_option(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &encode(&path))
        }
    };
    let in_time = match option {
        IdOption::IbPath(_) => "set it when the address is resolved, and the route is not",
        _ => "set it before the id is bound",
    };
    done.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => {
            CmError::new(Code::Invalid, asked, "the id's state does not allow it (CM-16)")
                .cure(in_time)
        }
        _ => CmError::from_io(asked, &error),
    })
}

/// A path as the kernel takes it: a record in the byte order of networks.
fn encode(path: &PathRecord) -> PathData {
    let label = path.flow_label << 8 | u32::from(path.hop_limit);
    let mut data: PathData = [0; size_of::<PathData>()];
    data[..4].copy_from_slice(&PATH_FLAGS.to_ne_bytes());
    let record = &mut data[8..];
    record[8..24].copy_from_slice(&path.to.0);
    record[24..40].copy_from_slice(&path.from.0);
    record[40..42].copy_from_slice(&path.to_lid.to_be_bytes());
    record[42..44].copy_from_slice(&path.from_lid.to_be_bytes());
    record[44..48].copy_from_slice(&label.to_be_bytes());
    record[48] = path.traffic_class;
    record[49] = REVERSIBLE_ONE;
    record[50..52].copy_from_slice(&path.pkey.to_be_bytes());
    record[52..54].copy_from_slice(&u16::from(path.service_level & 15).to_be_bytes());
    record[54] = EXACTLY | path.mtu as u8;
    record[55] = EXACTLY | path.rate & 63;
    record[56] = EXACTLY | path.packet_lifetime & 63;
    data
}

/// A number of C.
fn flag(on: bool) -> [u8; size_of::<c_int>()] {
    c_int::from(on).to_ne_bytes()
}

/// Hands over a value of the option's own type.
fn call(core: &Core, option: c_int, value: &[u8]) -> std::io::Result<Option<Told>> {
    core.set_option(RDMA_OPTION_ID, option, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::Mtu;
    use doorbell_seam::provider::Gid;

    /// Offsets as in <infiniband/sa.h>.
    #[test]
    fn a_path_is_a_record_of_64_bytes_behind_its_flags() {
        let path = PathRecord {
            to: Gid([1; 16]),
            from: Gid([2; 16]),
            to_lid: 0x0304,
            from_lid: 0x0506,
            flow_label: 0x7_0809,
            hop_limit: 10,
            traffic_class: 11,
            pkey: 0xffff,
            service_level: 12,
            mtu: Mtu::Bytes1024,
            rate: 3,
            packet_lifetime: 18,
        };
        let data = encode(&path);
        assert_eq!(data[..8], [PATH_FLAGS.to_ne_bytes(), [0; 4]].concat());
        assert_eq!((&data[16..32], &data[32..48]), (&[1; 16][..], &[2; 16][..]));
        assert_eq!(data[48..56], [3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(data[56..65], [11, 0x81, 0xff, 0xff, 0, 12, 0x83, 0x83, 0x92]);
        assert_eq!(data[65..], [0; 7]);
    }
}
