//! What all domains of one soft device share: regions, numbers, limits, the clock.

use core::sync::atomic::{AtomicU32, Ordering};

use doorbell_alloc::Mapping;
use spin::Mutex;
use std_alloc::vec::Vec;

use super::Host;
use super::memory::Memory;
use super::qp::{ASKS_MAX, SEND_SGE_MAX};
use crate::provider::Caps;

/// Queue pairs of one device at most; the low bits of a number are its slot.
pub(super) const QPS: usize = 1 << 14;

/// The device.
pub(super) struct Nic {
    pub(super) caps: Caps,
    pub(super) memory: Memory,
    pub(super) host: Host,
    domains: AtomicU32,
    queues: AtomicU32,
    numbers: Mutex<Numbers>,
}

/// Free queue pair numbers, oldest first, so that a number comes back late.
struct Numbers {
    fresh: u32,
    freed: Vec<u32>,
    next: usize,
}

impl Nic {
    pub(super) fn new(name: &str, host: Host, directory: Option<Mapping>) -> Nic {
        let mut caps = Caps::named(name);
        caps.qp_wr_max = 1 << 15;
        caps.send_sge_max = SEND_SGE_MAX as u32;
        caps.cqe_max = 1 << 20;
        caps.srq_wr_max = 1 << 20;
        caps.message_max = 1 << 30;
        caps.inline_max = 1024;
        caps.rd_atomic_max = ASKS_MAX as u8;
        Nic {
            caps,
            memory: Memory::new(directory, host.seed),
            host,
            domains: AtomicU32::new(0),
            queues: AtomicU32::new(0),
            numbers: Mutex::new(Numbers { fresh: 1, freed: Vec::new(), next: 0 }),
        }
    }

    pub(super) fn next_domain(&self) -> u32 {
        self.domains.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn next_queue(&self) -> u32 {
        self.queues.fetch_add(1, Ordering::Relaxed)
    }

    /// A queue pair number nobody has: 24 bits, never 0 or 1 (reserved), with a slot of its own.
    pub(super) fn take_number(&self) -> Option<u32> {
        let mut numbers = self.numbers.lock();
        if numbers.fresh < QPS as u32 - 2 {
            numbers.fresh += 1;
            return Some(numbers.fresh);
        }
        let next = numbers.next;
        let num = *numbers.freed.get(next)?;
        numbers.next += 1;
        if numbers.next >= 1024 {
            numbers.freed.drain(..next + 1);
            numbers.next = 0;
        }
        Some(num)
    }

    /// Gives a number back; its slot comes out again under the next generation.
    pub(super) fn free_number(&self, num: u32) {
        let again = (num + QPS as u32) & 0x00ff_ffff;
        self.numbers.lock().freed.push(if again < 2 { again + QPS as u32 } else { again });
    }
}
