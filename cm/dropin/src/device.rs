//! The device: its list of one, and what contexts answer to queries.
#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::OnceLock;

use doorbell_seam::provider::{
    Atomics, Caps, HashFields, HashFunction, LinkLayer, PortAttr, Ports, Provider, QpType,
};
use doorbell_soft::SOFT_DEVICE;
use libc::{c_int, c_uint};

use crate::abi::*;
use crate::border::{Errno, INVALID, code, given, number, put, text, zeroed};
use crate::context::{context, device as shared_device};
use crate::paths::DEV_NAME;
use crate::queue::{NONE, wait_by};
use crate::scatter::PIECES_MAX;

/// A list entry that lives for ever. A program compares devices by address.
struct Listed(*mut Entry);

/// A device, and room for what libibverbs keeps behind its own. Vendors' libraries look there for
/// the functions of their driver; they find none.
#[repr(C)]
struct Entry {
    device: ibv_device,
    none: [usize; 32],
}
// SAFETY: nobody writes to it once it is made.
unsafe impl Send for Listed {}
// SAFETY: as above.
unsafe impl Sync for Listed {}

pub(crate) fn listed() -> *mut ibv_device {
    static LISTED: OnceLock<Listed> = OnceLock::new();
    let made = LISTED.get_or_init(|| {
        let device = ibv_device {
            _ops: [0; 2],
            // A channel adapter of InfiniBand's transport.
            node_type: 1,
            transport_type: 0,
            name: text(SOFT_DEVICE),
            dev_name: text(DEV_NAME),
            dev_path: text("/sys/class/infiniband_verbs/uverbs-soft0"),
            ibdev_path: text("/sys/class/infiniband/soft0"),
        };
        Listed(Box::into_raw(Box::new(Entry { device, none: [0; 32] })))
    });
    made.0.cast()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if !count.is_null() {
        // SAFETY: the program gives room for a number.
        unsafe { count.write(1) };
    }
    Box::into_raw(Box::new([listed(), ptr::null_mut()])).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: it is from `ibv_get_device_list`.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the program's device is the one of the list.
    if device.is_null() { ptr::null() } else { unsafe { (*device).name.as_ptr() } }
}

/// In network byte order; a local address, as all soft devices have.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    u64::from_ne_bytes([0x02, 0, 0, 0xff, 0xfe, b'd', b'b', 0])
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    // The kernel has not given it a number.
    -1
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    at: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the program's context.
    wait_by(number(|| Ok(unsafe { context(at) }?.own.events.fd())), || {
        // SAFETY: the program's context, and room for an event.
        unsafe {
            let own = &context(at)?.own;
            let next = own.events.next_and(|next| {
                own.progress.unacknowledged.add(next.element);
                Ok(())
            })?;
            let Some(next) = next else { return Ok(NONE) };
            put(event, next)?;
        }
        Ok(0)
    })
}

/// The destruction of the object that an event names waits for this.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    number(|| {
        // SAFETY: the program's event.
        let element = unsafe { given(event) }?.element;
        shared_device()?.unacknowledged.remove(element);
        Ok(0)
    });
}

/// A limit, in C's type.
fn limit(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(caps: &Caps) -> ibv_device_attr {
    const RC_RNR_NAK_GEN: c_uint = 1 << 12;
    const SRQ_RESIZE: c_uint = 1 << 13;
    const MEM_WINDOW: c_uint = 1 << 17;
    const XRC: c_uint = 1 << 20;
    // A window of type 2 is for the peer of one queue pair.
    const MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;
    const MANAGED_FLOW_STEERING: c_uint = 1 << 29;
    let guid = ibv_get_device_guid(ptr::null_mut());
    // Never 2 (IBV_ATOMIC_GLOB), which promises more: UCX does no atomics then.
    let atomics = match caps.atomics {
        Atomics::None => 0,
        Atomics::Hca | Atomics::Global => 1,
    };
    let reads = limit(caps.rd_atomic_max.into());
    ibv_device_attr {
        fw_ver: text(env!("CARGO_PKG_VERSION")),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: isize::MAX as u64,
        page_size_cap: 0xffff_f000,
        // Nobody's: the top byte of a vendor's number is 0.
        vendor_id: 0xff00_0000,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: limit(caps.qp_max),
        max_qp_wr: limit(caps.qp_wr_max),
        device_cap_flags: SRQ_RESIZE
            | RC_RNR_NAK_GEN
            | MEM_WINDOW
            | XRC
            | MEM_WINDOW_TYPE_2B
            | MANAGED_FLOW_STEERING,
        // One number for both directions.
        max_sge: limit(caps.send_sge_max.min(PIECES_MAX)),
        max_sge_rd: limit(caps.send_sge_max),
        max_cq: limit(caps.cq_max),
        max_cqe: limit(caps.cqe_max),
        max_mr: limit(caps.mr_max),
        max_pd: limit(caps.pd_max),
        max_qp_rd_atom: reads,
        max_ee_rd_atom: 0,
        max_res_rd_atom: reads.saturating_mul(limit(caps.qp_max)),
        max_qp_init_rd_atom: reads,
        max_ee_init_rd_atom: 0,
        atomic_cap: atomics,
        max_ee: 0,
        max_rdd: 0,
        max_mw: limit(caps.mw_max),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: limit(caps.qp_max),
        max_mcast_grp: limit(caps.mcast_groups_max),
        max_mcast_qp_attach: limit(caps.qp_max),
        max_total_mcast_qp_attach: limit(caps.qp_max),
        max_ah: c_int::MAX,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: limit(caps.srq_max),
        max_srq_wr: limit(caps.srq_wr_max),
        max_srq_sge: limit(PIECES_MAX),
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: caps.ports,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(at: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    code(|| {
        // SAFETY: the program's context, and room for the answer.
        unsafe { put(attr, device_attr(context(at)?.own.device().caps())) }
    })
}

/// Bits of `raw_packet_caps`, and the one that `device_cap_flags_ex` has for the second.
const CVLAN_STRIPPING: u32 = 1;
const SCATTER_FCS: u32 = 2;
const RAW_SCATTER_FCS: u64 = 1 << 34;

pub(crate) unsafe extern "C" fn query_device_ex(
    at: *mut ibv_context,
    _input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program's context.
        let caps = unsafe { context(at) }?.own.device().caps();
        let flags: u64 = device_attr(caps).device_cap_flags.into();
        let all = ibv_device_attr_ex {
            orig_attr: device_attr(caps),
            rss_caps: ibv_rss_caps {
                supported_qpts: 1 << QpType::RawPacket as u32,
                max_rwq_indirection_tables: caps.qp_max,
                max_rwq_indirection_table_size: 128,
                rx_hash_fields_mask: HashFields::all().bits(),
                rx_hash_function: HashFunction::Toeplitz as u8,
            },
            max_wq_type_rq: caps.qp_max,
            raw_packet_caps: CVLAN_STRIPPING | SCATTER_FCS,
            // A tick is a nanosecond; the second number is in kHz.
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: 1_000_000,
            device_cap_flags_ex: flags | RAW_SCATTER_FCS,
            phys_port_cnt_ex: caps.ports.into(),
            ..zeroed()
        };
        // SAFETY: the program gives room for `size` bytes.
        unsafe { put_bytes(attr, &all, size) }
    })
}

/// Writes the first `size` bytes of an answer: a program that was built with an older header has
/// room for fewer. One with a newer header has room for more, which becomes zero.
///
/// # Safety
/// `at` is NULL or has room for `size` bytes.
unsafe fn put_bytes<T>(at: *mut T, value: &T, size: usize) -> Result<(), Errno> {
    if at.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as the caller says, and the value has the bytes that are copied.
    unsafe {
        let bytes = ptr::from_ref(value).cast::<u8>();
        let known = size.min(size_of::<T>());
        ptr::copy_nonoverlapping(bytes, at.cast::<u8>(), known);
        at.cast::<u8>().wrapping_add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// The largest packet size of InfiniBand that is not more, as its number.
fn mtu(bytes: u32) -> c_int {
    (1..=5).rev().find(|number| 128_u32 << number <= bytes).unwrap_or(1)
}

fn port_attr(port: &PortAttr) -> ibv_port_attr {
    ibv_port_attr {
        state: port.state as c_int,
        max_mtu: mtu(port.max_mtu),
        active_mtu: mtu(port.active_mtu),
        gid_tbl_len: limit(port.gids),
        max_msg_sz: port.message_max,
        pkey_tbl_len: port.pkeys as u16,
        lid: port.lid,
        sm_lid: port.sm_lid,
        max_vl_num: 1,
        // Four lanes of 25 Gb/s, on which nothing depends.
        active_width: 2,
        active_speed: 32,
        // The link is up.
        phys_state: 5,
        link_layer: port.link_layer as u8,
        // Paths need a GID (`IBV_QPF_GRH_REQUIRED`).
        flags: u8::from(port.link_layer == LinkLayer::Ethernet),
        ..ibv_port_attr::default()
    }
}

pub(crate) unsafe extern "C" fn query_port_ex(
    at: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program's context, and room for `size` bytes.
        unsafe {
            let port = context(at)?.own.device().query_port(port)?;
            put_bytes(attr, &port_attr(&port), size)
        }
    })
}

/// Programs that were built with an older header have room for the fields up to `flags`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    at: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as the program vouches.
    unsafe { query_port_ex(at, port, attr, offset_of!(ibv_port_attr, port_cap_flags2)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    at: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    number(|| {
        let index = u32::try_from(index).map_err(|_| INVALID)?;
        // SAFETY: the program's context, and room for a GID.
        unsafe {
            let found = context(at)?.own.device().query_gid(port, index)?;
            put(gid, ibv_gid { raw: found.0 })?;
        }
        Ok(0)
    })
}

/// The number of RoCE version 2 in `enum ibv_gid_type`.
const ROCE_V2: u32 = 2;

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    at: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        if flags != 0 {
            return Err(INVALID);
        }
        let number = u8::try_from(port).map_err(|_| INVALID)?;
        // SAFETY: the program's context, and room for `size` bytes.
        unsafe {
            let device = context(at)?.own.device();
            if index > 0 {
                device.query_port(number)?;
                return Err(Errno(libc::ENODATA));
            }
            let gid = gid_aligned { raw: device.query_gid(number, index)?.0 };
            let all = ibv_gid_entry {
                gid,
                gid_index: index,
                port_num: port,
                gid_type: ROCE_V2,
                ndev_ifindex: 0,
            };
            put_bytes(entry, &all, size)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    at: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    if most == 0 {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: as the program vouches.
    let errno = unsafe { _ibv_query_gid_ex(at, 1, 0, entries, flags, size) };
    if errno == 0 { 1 } else { -(errno as isize) }
}

/// For perftest, by the number of sysfs: RoCE version 2.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    _at: *mut ibv_context,
    _port: u8,
    _index: c_uint,
    kind: *mut c_int,
) -> c_int {
    // SAFETY: the program gives room for a number.
    number(|| unsafe { put(kind, 1) }.map(|()| 0))
}

/// In network byte order.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    at: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    number(|| {
        let index = u32::try_from(index).map_err(|_| INVALID)?;
        // SAFETY: the program's context, and room for a key.
        unsafe {
            let found = context(at)?.own.device().query_pkey(port, index)?;
            put(pkey, found.to_be())?;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(at: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    number(|| {
        // SAFETY: the program's context.
        let found = unsafe { context(at) }?.own.device().query_pkey(port, 0)?;
        if found.to_be() == pkey { Ok(0) } else { Err(INVALID) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_structure_ends_in_zeros_and_a_shorter_one_is_not_overrun() {
        let mut room = [9_u64; 4];
        // SAFETY: room for as many bytes.
        unsafe {
            put_bytes(room.as_mut_ptr(), &1_u64, 24).unwrap();
            assert_eq!(room, [1, 0, 0, 9]);
            put_bytes(room.as_mut_ptr().wrapping_add(3), &0_u64, 4).unwrap();
        }
        assert_eq!(room[3], 9 & !0xffff_ffff);
    }

    /// Where `struct verbs_device` has the functions of a driver.
    #[test]
    fn vendors_libraries_find_no_driver_behind_a_device() {
        let behind = listed().wrapping_add(1).cast::<usize>();
        // SAFETY: a device lives for ever, with room behind it.
        assert_eq!(unsafe { behind.read() }, 0);
    }
}
