//! A relay carries datagrams over the network. Senders on the other devices put them into an inbox
//! of the relay, as they would into the queue pair's. The relay puts those that the network
//! delivers into the queue pair's inbox.
#![expect(unsafe_code, reason = "reads one inbox and writes another")]

use arrayvec::ArrayVec;
use doorbell_alloc::Mapping;
use std_alloc::sync::Arc;
use std_alloc::vec;

use crate::shm::inbox::{Inbox, Outlet, Stamp};
use crate::wr::Sge;

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
        // SAFETY: the vector has the length asked for.
        unsafe { inbox.fetch(payload.as_mut_ptr(), stamp.length) };
        inbox.advance();
        Some(Datagram { stamp, payload: payload.into() })
    }

    /// Puts a datagram into the queue pair's own inbox, if that still exists.
    pub(super) fn put(&self, Datagram { stamp, payload }: &Datagram) {
        if !self.outlet.is_for(self.qp) {
            return;
        }
        let addr = payload.as_ptr() as u64;
        let mut pieces = ArrayVec::new();
        pieces.push(Sge { addr, length: payload.len() as u32, lkey: 0 });
        let stamp = Stamp { length: payload.len() as u32, ..*stamp };
        // SAFETY: the one piece is the payload; it came out of a slot and has the stated length.
        unsafe { self.outlet.put(&stamp, &pieces) };
    }
}
