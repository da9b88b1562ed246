//! Flows: which frames a queue pair of raw packets receives.
#![expect(unsafe_code, reason = "the C interface")]

use doorbell_fabric::Fabric;
use doorbell_seam::provider::FlowRule;
use doorbell_soft::SoftFlow;
use libc::c_int;

use crate::abi::ibv_qp;
use crate::abi_raw::*;
use crate::border::{ABSENT, Errno, INVALID, Noun, Object, code, given, pointer, take};
use crate::filter::Filter;
use crate::qp::qp_at;

/// A flow.
struct Flow {
    _flow: SoftFlow,
}

impl Noun for Flow {
    type C = ibv_flow;
    const TAG: u64 = 0x6462_5f66_6c00_000c;
}

/// The specification of that size at an address.
///
/// # Safety
/// There are as many bytes as it says, in any place.
unsafe fn read<T: Copy>(at: *const spec_header, size: usize) -> Result<spec<T>, Errno> {
    if size != size_of::<spec<T>>() {
        return Err(INVALID);
    }
    // SAFETY: as the caller says.
    Ok(unsafe { at.cast::<spec<T>>().read_unaligned() })
}

/// Adds a specification to a filter, and returns its size.
///
/// # Safety
/// As for [`read`].
unsafe fn add(filter: &mut Filter, at: *const spec_header) -> Result<usize, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        let spec_header { kind, size } = at.read_unaligned();
        let size = usize::from(size);
        match kind {
            0x20 => filter.ethernet(&read(at, size)?),
            0x30 => {
                let spec { kind, size, val, mask } = read::<ibv_flow_ipv4_filter>(at, size)?;
                let longer = |of: ibv_flow_ipv4_filter| ibv_flow_ipv4_ext_filter {
                    src_ip: of.src_ip,
                    dst_ip: of.dst_ip,
                    ..ibv_flow_ipv4_ext_filter::default()
                };
                filter.ipv4(&spec { kind, size, val: longer(val), mask: longer(mask) })
            }
            0x31 => filter.ipv6(&read(at, size)?),
            0x32 => filter.ipv4(&read(at, size)?),
            0x40 => filter.ports(6, &read(at, size)?),
            0x41 => filter.ports(17, &read(at, size)?),
            // Tunnels, actions.
            _ => Err(ABSENT),
        }?;
        Ok(size)
    }
}

/// The rule of a flow.
///
/// # Safety
/// The attributes are the program's, with as many specifications behind them as they say.
unsafe fn rule_of(at: *const ibv_flow_attr) -> Result<FlowRule, Errno> {
    const NORMAL: c_int = 0;
    const SNIFFER: c_int = 3;
    // SAFETY: as the caller says.
    let attr = unsafe { given(at) }?;
    if attr.port != 1 {
        return Err(INVALID);
    }
    if attr.comp_mask != 0 || attr.flags != 0 {
        return Err(ABSENT);
    }
    match attr.kind {
        SNIFFER if attr.num_of_specs == 0 => return Ok(FlowRule::All),
        NORMAL => {}
        _ => return Err(ABSENT),
    }
    let mut filter = Filter::default();
    let mut next = at.wrapping_add(1).cast::<spec_header>();
    for _ in 0..attr.num_of_specs {
        // SAFETY: as the caller says.
        let size = unsafe { add(&mut filter, next) }?;
        next = next.wrapping_byte_add(size);
    }
    Ok(FlowRule::Matching(filter.made))
}

/// `ibv_create_flow` of a context.
pub(crate) unsafe extern "C" fn create_flow(
    at: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    pointer(|| {
        // SAFETY: the program's queue pair and attributes.
        let (qp, rule, context) = unsafe { (qp_at(at)?, rule_of(attr)?, (*at).context) };
        let device = &qp.own.progress().device;
        let flow = device.create_flow(&qp.own.inner.lock().qp, rule)?;
        let c = ibv_flow { comp_mask: 0, context, handle: 0 };
        Ok(Object::give(c, Flow { _flow: flow }))
    })
}

/// `ibv_destroy_flow` of a context.
pub(crate) unsafe extern "C" fn destroy_flow(at: *mut ibv_flow) -> c_int {
    // SAFETY: the program's flow, which it no longer uses.
    code(|| unsafe { take::<Flow>(at) }.map(drop))
}
