//! What is on its way: when each message was due, which one must come back next, and how long those
//! that came took. Times count from when a message was due, not from when it went out. So a stall
//! shows in every message that was due meanwhile.

use std::collections::VecDeque;

use crate::error::Failure;
use crate::machine::clock::Clock;
use crate::measure::times::Times;
use crate::traffic::payload::{self, LINKS_MAX};

/// Messages in flight on a link that need no more memory.
const IN_FLIGHT: usize = 1024;

/// A message on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// When it was due, in ticks; `None` if its time does not count.
    due: Option<u64>,
    size: usize,
}

/// One link.
struct Link {
    /// Messages sent so far; the next one has this sequence number.
    sent: u64,
    on_their_way: VecDeque<Sent>,
}

/// The messages of all links.
pub(crate) struct Ledger {
    links: Vec<Link>,
    /// One bit for each link with messages on their way.
    waiting: u64,
    /// Round trips since [`Ledger::restart`].
    pub(crate) times: Times,
    pub(crate) sent: u64,
    pub(crate) back: u64,
    /// Messages that came back with a wrong byte, a wrong size, or out of order.
    pub(crate) wrong: u64,
}

impl Ledger {
    pub(crate) fn new(links: usize, clock: &Clock) -> Result<Ledger, Failure> {
        let link = || Link { sent: 0, on_their_way: VecDeque::with_capacity(IN_FLIGHT) };
        assert!(links <= LINKS_MAX, "one bit for each link");
        let links = std::iter::repeat_with(link).take(links).collect();
        Ok(Ledger { links, waiting: 0, times: Times::new(clock)?, sent: 0, back: 0, wrong: 0 })
    }

    /// Forgets the times so far.
    pub(crate) fn restart(&mut self) {
        self.times.clear();
    }

    /// The number of the next message on a link.
    #[inline(always)]
    pub(crate) fn next(&self, link: usize) -> u64 {
        payload::number(link, self.links[link].sent)
    }

    /// The links to poll, one bit for each: those with messages on their way. A lone link is always
    /// polled. With many, each stands for a process, which polls for itself alone.
    #[inline(always)]
    pub(crate) fn to_poll(&self) -> Bits {
        Bits(self.waiting | u64::from(self.links.len() == 1))
    }

    /// A message has gone out.
    #[inline(always)]
    pub(crate) fn sent(&mut self, link: usize, due: Option<u64>, size: usize) {
        self.sent += 1;
        self.waiting |= 1 << link;
        let link = &mut self.links[link];
        link.sent += 1;
        link.on_their_way.push_back(Sent { due, size });
    }

    /// A message has come back. Reads all of it, then reads the clock. True if it is the one that
    /// must come now.
    #[inline(always)]
    pub(crate) fn came(&mut self, link: usize, bytes: &[u8], now: impl FnOnce() -> u64) -> bool {
        let Link { sent, on_their_way } = &mut self.links[link];
        let number = payload::number(link, *sent - on_their_way.len() as u64);
        let is_filled = payload::is_filled(bytes, number);
        let Some(first) = on_their_way.pop_front() else {
            self.wrong += 1;
            return false;
        };
        if on_their_way.is_empty() {
            self.waiting &= !(1 << link);
        }
        if let Some(due) = first.due {
            self.times.enter(now().saturating_sub(due));
        }
        self.back += 1;
        let is_right = is_filled && bytes.len() == first.size;
        self.wrong += u64::from(!is_right);
        is_right
    }
}

/// The numbers of the bits that are set, from the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let lowest = (self.0 != 0).then(|| self.0.trailing_zeros() as usize);
        self.0 &= self.0.wrapping_sub(1);
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(links: usize) -> Ledger {
        Ledger::new(links, &Clock { tick_ns: 1.0, step_ns: 1.0 }).unwrap()
    }

    fn message(ledger: &Ledger, link: usize, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        payload::fill(&mut bytes, ledger.next(link));
        bytes
    }

    #[test]
    fn a_time_counts_from_when_the_message_was_due() {
        let mut ledger = ledger(1);
        for due in [100, 200, 300] {
            let bytes = message(&ledger, 0, 64);
            ledger.sent(0, Some(due), bytes.len());
            assert!(ledger.came(0, &bytes, || 1000));
        }
        let of = |quantile| ledger.times.ns_at(quantile);
        assert_eq!((of(0.1).round(), of(0.5).round(), of(1.0).round()), (700.0, 800.0, 900.0));
    }

    #[test]
    fn a_wrong_byte_a_wrong_size_a_swap_and_a_surplus_are_counted() {
        let mut ledger = ledger(2);
        let mut wrong = 0;
        let mut send = |ledger: &mut Ledger, spoil: fn(&mut Vec<u8>)| {
            let mut bytes = message(ledger, 1, 64);
            ledger.sent(1, None, bytes.len());
            spoil(&mut bytes);
            let is_right = ledger.came(1, &bytes, || 1);
            wrong += u64::from(!is_right);
            assert_eq!(ledger.wrong, wrong);
            is_right
        };
        assert!(send(&mut ledger, |_| {}));
        assert!(!send(&mut ledger, |bytes| bytes[63] ^= 1));
        assert!(!send(&mut ledger, |bytes| bytes.truncate(56)));
        assert!(send(&mut ledger, |_| {}));
        // A message that was not sent, and one of another link.
        let surplus = message(&ledger, 1, 64);
        assert!(!ledger.came(1, &surplus, || 1));
        let other = message(&ledger, 0, 64);
        ledger.sent(0, None, 64);
        ledger.sent(1, None, 64);
        assert!(!ledger.came(1, &other, || 1) && ledger.came(0, &other, || 1));
        assert_eq!((ledger.sent, ledger.back), (6, 6));
    }

    #[test]
    fn links_with_messages_on_their_way_are_polled_and_a_lone_link_always() {
        let mut many = ledger(LINKS_MAX);
        let polled = |ledger: &Ledger| ledger.to_poll().collect::<Vec<usize>>();
        assert_eq!(polled(&many), [0; 0]);
        let mut messages = Vec::new();
        for link in [63, 0, 7, 7] {
            messages.push((link, message(&many, link, 64)));
            many.sent(link, None, 64);
        }
        assert_eq!(polled(&many), [0, 7, 63]);
        for ((link, bytes), left) in messages.iter().zip([&[0, 7][..], &[7], &[7], &[]]) {
            assert!(many.came(*link, bytes, || 1));
            assert_eq!(polled(&many), left);
        }
        assert_eq!(polled(&ledger(1)), [0]);
    }
}
