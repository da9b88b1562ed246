//! Address handles.

use core::mem::offset_of;
use core::net::IpAddr;

use crate::rdma_core::{ibv_ah, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_grh};
use std_alloc::format;
use std_alloc::sync::Arc;

use super::device::{Device, Verbs};
use super::handles::{Owned, gid_of};
use super::objects;
use super::shim::refused;
use crate::error::{Code, SetupError};
use crate::provider::{AddressHandle, AddressVector, GRH_BYTES, GlobalRoute};
use crate::wc::{Wc, WcFlags};
use crate::wr::AhName;

// rdma-sys writes these by hand; the figures are C's (<infiniband/verbs.h>).
const _: () = assert!(size_of::<ibv_ah_attr>() == 32 && offset_of!(ibv_ah_attr, dlid) == 24);
const _: () = assert!(offset_of!(ibv_global_route, flow_label) == 16);
const _: () = assert!(size_of::<ibv_grh>() == GRH_BYTES);

/// The port by which datagrams arrive. Completions do not name it; most devices have only one.
const PORT: u8 = 1;

/// An address handle of an RDMA device.
#[derive(Clone)]
pub struct VerbsAh(Arc<Handle>);

struct Handle {
    ah: Owned<ibv_ah>,
    /// Counts as a user of its protection domain.
    _device: Arc<Device>,
}

impl AddressHandle for VerbsAh {
    fn name(&self) -> AhName {
        AhName(self.0.ah.as_ptr().expose_provenance())
    }
}

impl VerbsAh {
    pub(super) fn new(device: &Arc<Device>, to: &AddressVector) -> Result<VerbsAh, SetupError> {
        let asked = || format!("an address handle to {to:?} on {}", device.caps().device);
        let ah = objects::create_ah(device.pd(), raw_address(to));
        let ah = ah.map_err(|errno| refused(asked(), errno))?;
        Ok(VerbsAh(Arc::new(Handle { ah, _device: device.clone() })))
    }
}

/// An address vector in C's form.
pub(crate) fn raw_address(to: &AddressVector) -> ibv_ah_attr {
    let route = to.route.unwrap_or_default();
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: route.gid.0 },
            flow_label: route.flow_label,
            sgid_index: route.source_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        },
        dlid: to.lid,
        sl: to.service_level,
        src_path_bits: to.source_path,
        static_rate: to.static_rate,
        is_global: to.route.is_some().into(),
        port_num: to.port,
    }
}

/// An address vector as librdmacm or libibverbs gives it.
pub(crate) fn address_of(raw: &ibv_ah_attr) -> AddressVector {
    let route = GlobalRoute {
        gid: gid_of(&raw.grh.dgid),
        flow_label: raw.grh.flow_label,
        source_index: raw.grh.sgid_index,
        hop_limit: raw.grh.hop_limit,
        traffic_class: raw.grh.traffic_class,
    };
    AddressVector {
        route: (raw.is_global != 0).then_some(route),
        lid: raw.dlid,
        service_level: raw.sl,
        source_path: raw.src_path_bits,
        static_rate: raw.static_rate,
        port: raw.port_num,
    }
}

/// `ibv_init_ah_from_wc`, which finds no sender of a datagram to a group; this does. A datagram
/// without the header, as within an InfiniBand subnet, needs the sender's local identifier, which
/// completions here do not carry.
pub(super) fn sender_of(
    device: &Verbs,
    wc: &Wc,
    header: &[u8; GRH_BYTES],
) -> Result<AddressVector, SetupError> {
    let asked = "the way back to the sender of a datagram";
    if !wc.status.is_ok() || !wc.flags.contains(WcFlags::GRH) {
        let answer = "the completion is not of a datagram with its header";
        return Err(SetupError::new(Code::Invalid, asked, answer));
    }
    way_back(device.device(), wc, header).or_else(|errno| {
        // Sent to a group, which is none of the port's GIDs: as if it had come to one of those.
        let mut own = device.each_address().filter_map(|ip| sent_to(header, ip));
        own.find_map(|header| way_back(device.device(), wc, &header).ok())
            .ok_or(refused(asked, errno))
    })
}

/// Makes the call; the errno if it fails.
fn way_back(device: &Device, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, i32> {
    device.context().address_of_sender(PORT, wc.src_qp, header).map(|raw| address_of(&raw))
}

/// The header of a datagram to a group, changed as if its destination were that address. `None` if
/// the datagram went to no group, or the address is of the other kind.
fn sent_to(header: &[u8; GRH_BYTES], ip: IpAddr) -> Option<[u8; GRH_BYTES]> {
    let mut header = *header;
    // IPv4 lies in the last twenty bytes; IPv6 has the same form as the header of InfiniBand.
    match (ip, header[20] >> 4) {
        (IpAddr::V4(ip), 4) if header[36] >> 4 == 0xe => {
            header[36..].copy_from_slice(&ip.octets());
            header[30..32].fill(0);
            let word = |two: &[u8]| two.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
            let sum: u32 = header[20..].chunks(2).map(word).sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !(sum + (sum >> 16)) as u16;
            header[30..32].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(ip), _) if header[0] >> 4 == 6 && header[24] == 0xff => {
            header[24..].copy_from_slice(&ip.octets());
        }
        _ => return None,
    }
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example header of a well-known account of this sum, sent to a group instead.
    #[test]
    fn a_header_is_sent_elsewhere_with_its_sum() {
        let mut header = [0; GRH_BYTES];
        header[20..].copy_from_slice(&[
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 1, 2, 0xc0, 0xa8, 0, 1, 239, 1, 2, 3,
        ]);
        let there = sent_to(&header, IpAddr::from([192, 168, 0, 199])).expect("it was to a group");
        assert_eq!((&there[30..32], &there[36..]), (&[0xb8, 0x61][..], &[192, 168, 0, 199][..]));
        assert_eq!(sent_to(&header, IpAddr::from([0u16; 8])), None);
        assert_eq!(sent_to(&there, IpAddr::from([192, 168, 0, 199])), None);
        let mut six = [0; GRH_BYTES];
        (six[0], six[24]) = (0x60, 0xff);
        let there = sent_to(&six, IpAddr::from([7u16; 8])).expect("it was to a group");
        assert_eq!(there[24..26], [0, 7]);
    }
}
