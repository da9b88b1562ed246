//! What the specifications of a flow ask of a frame. Numbers in them are in network byte order, as
//! in a frame.

use doorbell_seam::provider::{Bits, FrameFilter, IpFilter};

use crate::abi_raw::*;
use crate::border::{ABSENT, Errno, INVALID};

/// A filter, as it is put together.
#[derive(Default)]
pub(crate) struct Filter {
    pub(crate) made: FrameFilter,
}

/// Bits of a field.
fn pair<T: Copy, const N: usize>(of: &spec<T>, field: fn(&T) -> [u8; N]) -> ([u8; N], [u8; N]) {
    (field(&of.val), field(&of.mask))
}

/// Sets the bits of a field at a place.
fn set<T: Copy, const N: usize, const M: usize>(
    bits: &mut Bits<M>,
    at: usize,
    of: &spec<T>,
    field: fn(&T) -> [u8; N],
) {
    let (value, mask) = pair(of, field);
    bits.set(at, value, mask);
}

impl Filter {
    pub(crate) fn ethernet(&mut self, of: &spec<ibv_flow_eth_filter>) -> Result<(), Errno> {
        if of.mask.vlan_tag != 0 {
            return Err(ABSENT);
        }
        let bits = &mut self.made.ethernet;
        set(bits, 0, of, |filter| filter.dst_mac);
        set(bits, 6, of, |filter| filter.src_mac);
        set(bits, 12, of, |filter| filter.ether_type.to_ne_bytes());
        Ok(())
    }

    /// IPv4, with or without the fields of the longer form.
    pub(crate) fn ipv4(&mut self, of: &spec<ibv_flow_ipv4_ext_filter>) -> Result<(), Errno> {
        let mut bits = Bits::default();
        set(&mut bits, 1, of, |filter| [filter.tos]);
        set(&mut bits, 8, of, |filter| [filter.ttl, filter.proto]);
        set(&mut bits, 12, of, |filter| filter.src_ip.to_ne_bytes());
        set(&mut bits, 16, of, |filter| filter.dst_ip.to_ne_bytes());
        if of.mask.flags != 0 {
            return Err(ABSENT);
        }
        self.ip(IpFilter::Four(bits))
    }

    pub(crate) fn ipv6(&mut self, of: &spec<ibv_flow_ipv6_filter>) -> Result<(), Errno> {
        let mut bits = Bits::default();
        // Version, class and label share the first four bytes.
        set(&mut bits, 0, of, |filter| {
            let class = u32::from(filter.traffic_class) << 20;
            (class | u32::from_be(filter.flow_label) & 0xf_ffff).to_be_bytes()
        });
        set(&mut bits, 6, of, |filter| [filter.next_hdr, filter.hop_limit]);
        set(&mut bits, 8, of, |filter| filter.src_ip);
        set(&mut bits, 24, of, |filter| filter.dst_ip);
        self.ip(IpFilter::Six(bits))
    }

    fn ip(&mut self, filter: IpFilter) -> Result<(), Errno> {
        match self.made.ip.replace(filter) {
            None => Ok(()),
            Some(_) => Err(INVALID),
        }
    }

    /// TCP or UDP, by its number.
    pub(crate) fn ports(
        &mut self,
        protocol: u8,
        of: &spec<ibv_flow_tcp_udp_filter>,
    ) -> Result<(), Errno> {
        let mut bits = Bits::default();
        set(&mut bits, 0, of, |filter| filter.src_port.to_ne_bytes());
        set(&mut bits, 2, of, |filter| filter.dst_port.to_ne_bytes());
        match self.made.ports.replace((protocol, bits)) {
            None => Ok(()),
            Some(_) => Err(INVALID),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_a_frame_has_them() {
        let mut filter = Filter::default();
        let val = ibv_flow_eth_filter {
            dst_mac: [1; 6],
            src_mac: [2; 6],
            ether_type: 0x800_u16.to_be(),
            vlan_tag: 0,
        };
        filter.ethernet(&spec { kind: 0x20, size: 0, val, mask: val }).unwrap();
        assert_eq!(filter.made.ethernet.value, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0]);
        let mask = ibv_flow_eth_filter { vlan_tag: 1, ..val };
        assert_eq!(filter.ethernet(&spec { kind: 0x20, size: 0, val, mask }), Err(ABSENT));
        let val = ibv_flow_ipv4_ext_filter {
            src_ip: 0x0102_0304_u32.to_be(),
            dst_ip: 0x0506_0708_u32.to_be(),
            proto: 17,
            tos: 9,
            ttl: 64,
            flags: 0,
        };
        let ipv4 = spec { kind: 0x32, size: 0, val, mask: val };
        filter.ipv4(&ipv4).unwrap();
        let Some(IpFilter::Four(bits)) = filter.made.ip else { panic!("it is IPv4") };
        let all = [0, 9, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!((bits.value, bits.mask), (all, all));
        assert_eq!(filter.ipv4(&ipv4), Err(INVALID), "there is one already");
        let val = ibv_flow_tcp_udp_filter { dst_port: 2_u16.to_be(), src_port: 1_u16.to_be() };
        filter.ports(6, &spec { kind: 0x40, size: 0, val, mask: val }).unwrap();
        assert_eq!(filter.made.ports.unwrap().1.value, [0, 1, 0, 2]);
    }

    #[test]
    fn class_and_label_of_ipv6_share_bytes() {
        let mut filter = Filter::default();
        let val = ibv_flow_ipv6_filter {
            flow_label: 0x0a_bcde_u32.to_be(),
            traffic_class: 0x12,
            next_hdr: 6,
            hop_limit: 7,
            src_ip: [1; 16],
            dst_ip: [2; 16],
        };
        filter.ipv6(&spec { kind: 0x31, size: 0, val, mask: val }).unwrap();
        let Some(IpFilter::Six(bits)) = filter.made.ip else { panic!("it is IPv6") };
        assert_eq!(bits.value[..8], [0x01, 0x2a, 0xbc, 0xde, 0, 0, 6, 7]);
        assert_eq!((bits.value[8], bits.value[24]), (1, 2));
    }
}
