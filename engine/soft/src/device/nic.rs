//! The state that all domains of one soft device share: regions, numbers, limits, the clock.

use core::sync::atomic::{AtomicU32, Ordering};

use crossbeam::queue::ArrayQueue;
use doorbell_alloc::Mapping;
use spin::Mutex;
use std_alloc::format;
use std_alloc::vec::Vec;

use crate::device::host::{Host, gid_of};
use crate::error::{Code, SetupError};
use crate::event::{AsyncEvent, AsyncKind, Object};
use crate::model::limits::{QPS, READS_MAX, SEND_SGE_MAX};
use crate::model::memory::Memory;
use crate::model::pd::{PDS, PdMark};
use crate::model::recvq::RecvQueue;
use crate::model::table::REGIONS;
use crate::provider::wake::Notifier;
use crate::provider::{
    Atomics, Caps, CqFlags, Gid, LinkLayer, PortAttr, QpType, ReregFlags, SendOps, WcFields,
};
use crate::room::FixedCapacity;
use crate::shm::inbox::DATAGRAM_MAX;

/// The most events that can wait to be taken.
const EVENTS_MAX: usize = 256;

/// The device.
pub(crate) struct Nic {
    pub(crate) caps: Caps,
    pub(crate) memory: Memory,
    pub(crate) host: Host,
    /// Events that nobody has taken, oldest first. Events that find it full are lost and counted.
    events: ArrayQueue<AsyncEvent>,
    pub(crate) events_lost: AtomicU32,
    pub(crate) events_notifier: Option<Notifier>,
    /// The GID by which others find its table; all zero if nobody can.
    pub(crate) gid: Gid,
    domains: AtomicU32,
    queues: AtomicU32,
    srqs: AtomicU32,
    pds: AtomicU32,
    connections: AtomicU32,
    numbers: Mutex<Numbers>,
}

/// Free queue pair numbers, oldest first, so that a number is reused as late as possible.
struct Numbers {
    fresh: u32,
    freed: Vec<u32>,
    next: usize,
    /// Numbers in use: `freed` has room for all of them.
    out: usize,
}

impl Nic {
    pub(crate) fn new(name: &str, host: Host, directory: Option<Mapping>) -> Nic {
        let mut caps = Caps::named(name);
        caps.ports = 1;
        // Numbers 0 and 1 are reserved, and one is never reached.
        caps.qp_max = QPS as u32 - 3;
        (caps.cq_max, caps.srq_max, caps.mcast_groups_max) = (u32::MAX, u32::MAX, u32::MAX);
        // One table holds both, and its first entry is never given out.
        (caps.mr_max, caps.mw_max) = (REGIONS as u32 - 1, REGIONS as u32 - 1);
        caps.pd_max = PDS;
        caps.atomics = Atomics::Global;
        caps.qp_wr_max = 1 << 15;
        caps.send_sge_max = SEND_SGE_MAX as u32;
        caps.srq_wr_max = 1 << 20;
        // All receives of a worker's shared queue may complete, and its requests as well.
        caps.cqe_max = 1 << 21;
        caps.message_max = 1 << 30;
        caps.inline_max = 1024;
        caps.rd_atomic_max = READS_MAX as u8;
        caps.xrc = true;
        // Without a table for peers nobody finds the memory.
        caps.lends = directory.is_some();
        caps.rereg = ReregFlags::all();
        (caps.parent_domains, caps.thread_domains) = (true, true);
        caps.send_ops = SendOps::of(QpType::Rc);
        caps.comp_vectors = 1;
        caps.wc_fields = WcFields::all();
        caps.cq_flags = CqFlags::all();
        caps.srq_resize = true;
        let file = directory.as_ref().and_then(|mapping| (host.name_file)(mapping));
        let gid = match (host.neighbours, file) {
            (Some(neighbours), Some(file)) => gid_of(neighbours.process, file),
            _ => Gid::default(),
        };
        Nic {
            gid,
            caps,
            memory: Memory::new(directory, host.seed),
            host,
            events: ArrayQueue::new(EVENTS_MAX),
            events_lost: AtomicU32::new(0),
            events_notifier: (host.notifier)(),
            domains: AtomicU32::new(0),
            queues: AtomicU32::new(0),
            srqs: AtomicU32::new(1),
            pds: AtomicU32::new(1),
            connections: AtomicU32::new(0),
            numbers: Mutex::new(Numbers { fresh: 1, freed: Vec::new(), next: 0, out: 0 }),
        }
    }

    /// Its one port.
    pub(crate) fn port(&self, port: u8) -> Result<PortAttr, SetupError> {
        if port != 1 {
            let asked = format!("port {port} of {}", self.caps.device);
            return Err(SetupError::new(Code::Invalid, asked, "it has one, of number 1"));
        }
        let mut attr = PortAttr::active(LinkLayer::Ethernet, DATAGRAM_MAX);
        attr.message_max = self.caps.message_max;
        (attr.gids, attr.pkeys) = (1, 1);
        Ok(attr)
    }

    /// Its tables have one entry each.
    pub(crate) fn port_entry(&self, port: u8, index: u32) -> Result<(), SetupError> {
        self.port(port)?;
        if index == 0 {
            return Ok(());
        }
        let asked = format!("entry {index} of a table of {}", self.caps.device);
        Err(SetupError::new(Code::Invalid, asked, "the table has one, of index 0"))
    }

    /// Raises an event. Allocates nothing, and makes a system call only to wake a waiter.
    #[cold]
    pub(crate) fn raise(&self, kind: AsyncKind, object: Object) {
        if self.events.push(AsyncEvent { kind, object }).is_err() {
            self.events_lost.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(notifier) = &self.events_notifier {
            notifier.ring();
        }
    }

    /// Takes the oldest event.
    pub(crate) fn next_event(&self) -> Option<AsyncEvent> {
        if let Some(notifier) = &self.events_notifier {
            // Clear before looking: a later event rings again.
            notifier.clear();
        }
        let event = self.events.pop();
        if let (false, Some(notifier)) = (self.events.is_empty(), &self.events_notifier) {
            notifier.ring();
        }
        event
    }

    pub(crate) fn next_domain(&self) -> u32 {
        self.domains.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_queue(&self) -> u32 {
        self.queues.fetch_add(1, Ordering::Relaxed)
    }

    /// A new receive queue for `depth` receives, in memory of that protection domain.
    pub(crate) fn new_queue(&self, depth: u32, pd: PdMark) -> RecvQueue {
        RecvQueue::new(self.next_queue(), depth, pd, self.host.threads)
    }

    /// A number for an XRC domain or a shared receive queue of one; never 0.
    pub(crate) fn next_srq(&self) -> u32 {
        self.srqs.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a protection domain; never 0, which is the device's own.
    pub(crate) fn next_pd(&self) -> u32 {
        // It stays at the maximum: no number is used twice.
        let next = |pd: u32| pd.checked_add(1);
        self.pds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(u32::MAX)
    }

    /// Tells the connections of a queue pair apart.
    pub(crate) fn next_connection(&self) -> u8 {
        self.connections.fetch_add(1, Ordering::Relaxed) as u8
    }

    /// A free queue pair number: 24 bits, never 0 or 1 (reserved), with a slot of its own.
    pub(crate) fn take_number(&self) -> Option<u32> {
        let mut numbers = self.numbers.lock();
        // The data plane may be the one that gives a number back.
        let out = numbers.out + 1;
        numbers.freed.reserve(out);
        if numbers.fresh < QPS as u32 - 2 {
            (numbers.fresh, numbers.out) = (numbers.fresh + 1, out);
            return Some(numbers.fresh);
        }
        let next = numbers.next;
        let num = *numbers.freed.get(next)?;
        (numbers.next, numbers.out) = (next + 1, out);
        if numbers.next >= 1024 {
            numbers.freed.drain(..next + 1);
            numbers.next = 0;
        }
        Some(num)
    }

    /// Gives a number back. Its slot is reused under the next generation.
    pub(crate) fn free_number(&self, num: u32) {
        let again = (num + QPS as u32) & 0x00ff_ffff;
        let mut numbers = self.numbers.lock();
        numbers.out = numbers.out.saturating_sub(1);
        numbers.freed.put(if again < 2 { again + QPS as u32 } else { again });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Access;

    /// As many as it says, and no more.
    #[test]
    fn limits_are_those_that_are_met() {
        let nic = Nic::new("soft0", Host::alone(|| 0), None);
        let numbers = std::iter::from_fn(|| nic.take_number()).count();
        assert_eq!(numbers, nic.caps.qp_max as usize);
        let rights = (Access::empty(), Default::default());
        let regions = std::iter::from_fn(|| nic.memory.insert(0, 8, rights, None)).count();
        assert_eq!(regions, nic.caps.mr_max as usize);
    }
}
