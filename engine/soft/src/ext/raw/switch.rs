//! The switch: decides which queue pairs receive a frame. Each rule of a queue pair is published to
//! all devices under a name, as a multicast membership is. A frame goes to every queue pair with a
//! rule for its destination, and to every queue pair with a rule for all frames.
//!
//! A rule takes effect at once: a sender looks up the receivers of a destination again when any
//! queue pair has got or lost one.

use std_alloc::vec::Vec;

use super::{filter, frame};
use crate::device::host::{Member, Neighbours};
use crate::device::path::{Group, Groups};
use crate::error::SetupError;
use crate::provider::{FlowRule, FrameFilter, Gid, Mac};
use crate::room::{FixedCapacity, RemoveAt};
use crate::shm::inbox::Stamp;

/// The most destinations whose receivers a sender remembers.
const KNOWN_MAX: usize = 64;

/// The name under which senders look for receivers with a rule: a group GID that is not a multicast
/// address.
pub(super) fn name_of(rule: FlowRule) -> Gid {
    let mut name = *b"\0raw\0\0\0\0\0\0\0\0\0\0\0\0";
    if let Some(mac) = address_of(rule) {
        name[4] = 1;
        name[10..].copy_from_slice(&mac.0);
    }
    Gid(name)
}

/// The address that all frames of a rule go to, if it has one.
fn address_of(rule: FlowRule) -> Option<Mac> {
    match rule {
        FlowRule::To(mac) => Some(mac),
        FlowRule::Matching(FrameFilter { ethernet, .. }) => {
            let whole = ethernet.mask.starts_with(&[0xff; 6]);
            whole.then(|| frame::destination(&ethernet.value)).flatten()
        }
        _ => None,
    }
}

/// True if a queue pair with these rules receives the frame.
pub(super) fn is_wanted(groups: &Groups, frame: &[u8]) -> bool {
    groups.rules.lock().iter().any(|rule| match rule {
        FlowRule::All => true,
        FlowRule::To(mac) => frame::destination(frame) == Some(*mac),
        FlowRule::Matching(filter) => filter::matches(filter, frame),
        _ => false,
    })
}

/// The sender's side of the switch.
pub(crate) struct Switch {
    /// The receivers of all frames.
    all: Group,
    /// The receivers for each address, the most recently used last.
    known: Vec<(Mac, Group)>,
}

impl Switch {
    pub(crate) fn new(device: &str, neighbours: Neighbours) -> Result<Switch, SetupError> {
        let all = Group::new(device, name_of(FlowRule::All), neighbours)?;
        Ok(Switch { all, known: Vec::with_capacity(KNOWN_MAX) })
    }

    /// Puts a frame into the inboxes of its receivers, except that of `not_to`.
    pub(super) fn put(&mut self, frame: &[u8], from: u32, not_to: Option<Member>) {
        let Some(to) = frame::destination(frame) else { return };
        let stamp = Stamp {
            length: frame.len() as u32,
            from,
            gid: Gid::default(),
            qkey: 0,
            imm: None,
            solicited: false,
        };
        let place = self.known.iter().position(|(mac, _)| *mac == to);
        let known = place.and_then(|place| self.known.remove_at(place));
        let known = known.unwrap_or_else(|| (to, self.all.beside(name_of(FlowRule::To(to)))));
        self.all.put_frame(&stamp, frame, |member| Some(*member) != not_to);
        let once = |member: &Member| Some(*member) != not_to && !self.all.holds(member);
        known.1.put_frame(&stamp, frame, once);
        if self.known.len() == KNOWN_MAX {
            self.known.drop_first(1);
        }
        self.known.put(known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_names_of_their_own() {
        let one = Mac([0xff, 0x02, 3, 4, 5, 6]);
        let names = [
            name_of(FlowRule::All),
            name_of(FlowRule::To(one)),
            name_of(FlowRule::To(Mac::default())),
            name_of(FlowRule::To(Mac::BROADCAST)),
        ];
        for (at, name) in names.iter().enumerate() {
            assert!(!name.is_multicast(), "groups of datagrams have other names");
            assert!(!names[..at].contains(name));
        }
    }
}
