//! Rules of queue pairs of RAW_PACKET.
#![expect(unsafe_code, reason = "rules are made by the driver")]

use std::mem::zeroed;
use std::ptr::NonNull;

use crate::rdma_core::*;
use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::FlowRule;

use crate::{DestroyFlow, Verbs, VerbsQp};

/// A rule, until it is dropped.
pub struct VerbsFlow {
    flow: NonNull<ibv_flow>,
    destroy: DestroyFlow,
    _device: Verbs,
}

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for VerbsFlow {}

/// A rule with one specification, side by side as the driver reads them.
#[repr(C)]
struct Rule {
    attr: ibv_flow_attr,
    ethernet: ibv_flow_spec_eth,
}

const _: () = assert!(size_of::<Rule>() == 60);

/// The port a queue pair of this crate is on.
const PORT: u8 = 1;

fn raw(rule: FlowRule) -> Option<Rule> {
    // SAFETY: zero is a valid value of each field.
    let mut raw: Rule = unsafe { zeroed() };
    raw.attr.size = size_of::<Rule>() as u16;
    raw.attr.port = PORT;
    raw.ethernet.type_ = ibv_flow_spec_type::IBV_FLOW_SPEC_ETH;
    raw.ethernet.size = size_of::<ibv_flow_spec_eth>() as u16;
    match rule {
        FlowRule::All => raw.attr.type_ = ibv_flow_attr_type::IBV_FLOW_ATTR_SNIFFER,
        FlowRule::To(mac) => {
            raw.attr.type_ = ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL;
            raw.attr.num_of_specs = 1;
            raw.ethernet.val.dst_mac = mac.0;
            raw.ethernet.mask.dst_mac = [0xff; 6];
        }
        _ => return None,
    }
    Some(raw)
}

impl VerbsFlow {
    /// `ibv_create_flow`.
    pub(super) fn new(device: &Verbs, qp: &VerbsQp, rule: FlowRule) -> Result<VerbsFlow, CmError> {
        let asked = format!("the rule {rule:?} of a queue pair on {}", device.name());
        let (Some((create, destroy)), Some(mut raw)) = (device.flow_calls(), raw(rule)) else {
            let answer = "its driver has no such rules";
            return Err(CmError::new(Code::NotSupported, asked, answer));
        };
        // SAFETY: the queue pair is alive and of this device; the rule is read during the call.
        let flow = unsafe { create(qp.as_ptr(), (&raw mut raw).cast()) };
        let flow = NonNull::new(flow).ok_or_else(|| CmError::last_os(asked))?;
        Ok(VerbsFlow { flow, destroy, _device: device.clone() })
    }
}

impl Drop for VerbsFlow {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed here alone, before its queue pair.
        unsafe { (self.destroy)(self.flow.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_seam::provider::Mac;

    #[test]
    fn a_rule_for_an_address_names_all_of_it() {
        let one = raw(FlowRule::To(Mac([1, 2, 3, 4, 5, 6]))).unwrap();
        assert_eq!((one.attr.num_of_specs, one.attr.size), (1, 60));
        assert_eq!(one.ethernet.val.dst_mac, [1, 2, 3, 4, 5, 6]);
        assert_eq!(one.ethernet.mask.dst_mac, [0xff; 6]);
        let all = raw(FlowRule::All).unwrap();
        assert_eq!((all.attr.num_of_specs, all.attr.type_), (0, 3));
    }
}
