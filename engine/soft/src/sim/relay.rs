//! A relay carries datagrams over the network. Senders on the other devices put them into an inbox
//! of the relay, as they would into the queue pair's. The relay puts those that the network
//! delivers into the queue pair's inbox.

use doorbell_alloc::Mapping;
use std_alloc::sync::Arc;
use std_alloc::vec;

use crate::shm::inbox::{Inbox, Outlet, Stamp};

/// A datagram on its way.
#[derive(Clone)]
pub(super) struct Datagram {
    pub(super) stamp: Stamp,
    pub(super) payload: Arc<[u8]>,
}

/// See the module.
pub struct Relay {
    qp: u32,
    /// Where senders put datagrams; none when the queue pair is gone.
    inbox: Option<Inbox>,
    outlet: Outlet,
}

impl Relay {
    /// A relay to the queue pair whose inbox is mapped in `to`. Senders get `bag` instead, which is
    /// all zero and as long ([`super::super::INBOX_BYTES`]). `None` if either is too short.
    pub fn new(bag: Mapping, to: Mapping) -> Option<Relay> {
        let outlet = Outlet::new(to, 0, |_, _| None)?;
        let qp = outlet.owner();
        Some(Relay { qp, inbox: Some(Inbox::new(bag, qp, None)?), outlet })
    }

    /// The queue pair that it leads to.
    pub fn qp(&self) -> u32 {
        self.qp
    }

    /// Takes the oldest datagram.
    pub(super) fn take(&mut self) -> Option<Datagram> {
        if !self.outlet.is_for(self.qp) {
            self.inbox = None;
        }
        let inbox = self.inbox.as_mut()?;
        // One thread does everything here, so no sender is ever in the middle of a datagram.
        let stamp = inbox.first(|| 0)?;
        let mut payload = vec![0u8; stamp.length as usize];
        inbox.fetch_into(&mut payload);
        inbox.advance();
        Some(Datagram { stamp, payload: payload.into() })
    }

    /// Puts a datagram into the queue pair's own inbox, if that still exists.
    pub(super) fn put(&self, Datagram { stamp, payload }: &Datagram) {
        if !self.outlet.is_for(self.qp) {
            return;
        }
        self.outlet.put_bytes(stamp, payload);
    }
}
