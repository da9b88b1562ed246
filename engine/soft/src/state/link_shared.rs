//! The part of a link that the control plane holds too: the memory, and the count of its users.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use doorbell_alloc::Mapping;
use spin::Once;
use std_alloc::sync::Arc;

use crate::error::{Code, SetupError};
use crate::provider::wake::Notifier;
use crate::shm::layout::{
    Direction, LINK_BYTES, LinkHeader, Side, set_colour, split, split_responses,
};
use crate::shm::remote_map::RemoteMap;

/// The part of a link that the control plane holds too: the memory, and the count of its users.
pub struct LinkShared {
    memory: Arc<Mapping>,
    /// What this side writes, what it reads, and the header.
    pub(super) out: Direction,
    pub(super) input: Direction,
    /// The same for responses.
    pub(super) responses: (Direction, Direction),
    pub(super) header: LinkHeader,
    pub(super) side: Side,
    peer_gone: AtomicBool,
    /// See [`LinkShared::of_one_pair`].
    one_pair: bool,
    pub(super) remote_map: Option<Arc<RemoteMap>>,
    pub(super) notifier: Arc<Once<Notifier>>,
}

/// The colour of the next link that this process makes. Colours follow each other in turn.
fn next_colour() -> u32 {
    static MADE: AtomicU32 = AtomicU32::new(0);
    // Models make the same link again and again, in the same memory.
    if cfg!(loom) { 0 } else { MADE.fetch_add(1, Ordering::Relaxed) }
}

impl LinkShared {
    /// Takes memory of at least [`LINK_BYTES`] for a link. New memory is all zero.
    ///
    /// # Errors
    /// Memory that is too short or not aligned to two cache lines.
    pub fn new(memory: Mapping, side: Side) -> Result<LinkShared, SetupError> {
        LinkShared::over(Arc::new(memory), side)
    }

    /// Both sides of a link within one address space.
    ///
    /// # Errors
    /// As for [`LinkShared::new`].
    pub fn pair(memory: Mapping) -> Result<(LinkShared, LinkShared), SetupError> {
        let memory = Arc::new(memory);
        let maker = LinkShared::over(memory.clone(), Side::Maker)?;
        Ok((maker, LinkShared::over(memory, Side::Taker)?))
    }

    pub(crate) fn over(memory: Arc<Mapping>, side: Side) -> Result<LinkShared, SetupError> {
        let too_short = || {
            SetupError::new(
                Code::Invalid,
                std_alloc::format!("a link in {} bytes of memory", memory.len()),
                std_alloc::format!("it needs {LINK_BYTES} bytes, aligned to 128"),
            )
        };
        if side != Side::Taker {
            set_colour(&memory, next_colour());
        }
        let (out, input, header) = split(&memory, side).ok_or_else(too_short)?;
        let responses = split_responses(&memory, side).ok_or_else(too_short)?;
        match side {
            Side::Maker => header.users().store(2, Ordering::Relaxed),
            Side::Both => header.users().store(1, Ordering::Relaxed),
            Side::Taker => {}
        }
        let peer_gone = AtomicBool::new(false);
        Ok(LinkShared {
            memory,
            out,
            input,
            responses,
            header,
            side,
            peer_gone,
            one_pair: false,
            remote_map: None,
            notifier: Arc::default(),
        })
    }

    /// Lets one-sided requests use the peer's memory directly, and the peer lend from it, through
    /// `map`. The regions that are likely to be used first are mapped now.
    #[must_use]
    pub fn with_remote_map(mut self, map: Option<Arc<RemoteMap>>) -> LinkShared {
        if let Some(map) = &map {
            map.map_ahead();
            for (n, key) in map.map_lent().into_iter().enumerate() {
                self.header.mapped(self.side, n).store(key, Ordering::Relaxed);
            }
        }
        self.remote_map = map;
        self
    }

    /// Says that one queue pair of each side uses the link, and that its control plane tells the
    /// peer when it leaves. From then on the queue pair's domain reads nothing more there: a NIC
    /// does not answer for a queue pair that is gone.
    #[must_use]
    pub fn of_one_pair(mut self) -> LinkShared {
        self.one_pair = true;
        self
    }

    pub(crate) fn is_of_one_pair(&self) -> bool {
        self.one_pair
    }

    /// Sets the notifier that wakes the peer's domain when it sleeps.
    #[must_use]
    pub fn with_notifier(self, notifier: Option<Notifier>) -> LinkShared {
        if let Some(notifier) = notifier {
            self.notifier.call_once(|| notifier);
        }
        self
    }

    /// The same for a link that is in use already; the first one counts. It rings at once, because
    /// the peer may have fallen asleep before.
    pub fn set_notifier(&self, notifier: Notifier) {
        self.notifier.call_once(|| notifier).ring();
    }

    /// Tells the peer that this side sleeps, or that it is awake. SeqCst: see
    /// [`PeerWaker`](crate::shm::peer_waker::PeerWaker).
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.header.asleep(self.side).store(asleep.into(), Ordering::SeqCst);
    }

    /// Tells the peer how often this side sends again what finds no receive, on a link of one queue
    /// pair: `rnr_retry` of `ibv_modify_qp`, so 7 is for ever (RC-1).
    #[cfg(feature = "std")]
    pub(crate) fn say_rnr_retry(&self, retries: u8) {
        // Relaxed: the publication of the first message comes after it.
        let word = u32::from(retries.min(7)) + 1;
        self.header.rnr_retry(self.side).store(word, Ordering::Relaxed);
    }

    /// How often the peer sends again what finds no receive; `None` if it has not said.
    pub(crate) fn peer_rnr_retry(&self) -> Option<u8> {
        let word = self.header.rnr_retry(self.side.peer()).load(Ordering::Relaxed);
        Some(word.checked_sub(1)?.min(7) as u8)
    }

    /// The directions, that of the maker first; then those of the responses.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn directions(&self) -> [&Direction; 4] {
        let (out, input) = &self.responses;
        match self.side {
            Side::Maker | Side::Both => [&self.out, &self.input, out, input],
            Side::Taker => [&self.input, &self.out, input, out],
        }
    }

    /// The memory, to pass on its file.
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Takes the link for both ends of one more connection. False if its last user has left:
    /// then it must not be used again.
    pub fn acquire(&self) -> bool {
        if self.peer_gone.load(Ordering::Relaxed) {
            return false;
        }
        let more = |users| if users == 0 { None } else { u32::checked_add(users, 2) };
        // Relaxed: the count orders nothing; the connection's messages do.
        let users = self.header.users();
        users.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives back one end.
    pub fn release_end(&self) {
        let less = |users: u32| users.checked_sub(1);
        let users = self.header.users();
        let _ = users.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Ends of connections that use it, over both sides.
    pub(crate) fn users(&self) -> u32 {
        self.header.users().load(Ordering::Relaxed)
    }

    /// The peer's process is gone: its ends will never be given back.
    pub fn peer_gone(&self) {
        self.peer_gone.store(true, Ordering::Relaxed);
    }

    /// True if this side is its own peer.
    pub(crate) fn is_loop(&self) -> bool {
        self.side == Side::Both
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.peer_gone.load(Ordering::Relaxed) || self.users() == 0
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::BTreeSet;

    use doorbell_alloc::{Ask, MapRequest};

    use super::*;
    use crate::shm::layout::LINE;

    fn memory() -> Arc<Mapping> {
        Arc::new(MapRequest::new(LINK_BYTES).pages(Ask::Plain).map().unwrap())
    }

    fn slot_of(way: &Direction) -> usize {
        way.slot_line(0).addr().get()
    }

    /// Links that are made one after the other have their slots at different places of a page, and
    /// both sides of a link find the same place.
    #[test]
    fn links_have_colours_on_which_both_sides_agree() {
        let mut places = BTreeSet::new();
        for _ in 0..16 {
            let memory = memory();
            let maker = LinkShared::over(memory.clone(), Side::Maker).unwrap();
            let taker = LinkShared::over(memory.clone(), Side::Taker).unwrap();
            for (one, other) in maker.directions().into_iter().zip(taker.directions()) {
                let slots = [one, other].map(slot_of);
                let data = [one, other].map(|way| way.data_from(0).at(0));
                assert!(slots[0] == slots[1] && data[0] == data[1]);
            }
            places.insert((slot_of(&maker.out) - memory.as_ptr().addr()) % 4096);
        }
        // Other tests make links meanwhile.
        assert!(places.len() > 8, "{places:?}");
    }

    /// A peer may write any colour: everything stays inside the memory.
    #[test]
    fn every_colour_is_in_bounds() {
        for colour in [0, 1, 31, 32, 12345, u32::MAX] {
            let memory = memory();
            set_colour(&memory, colour);
            let taker = LinkShared::over(memory.clone(), Side::Taker).unwrap();
            let bounds = memory.as_ptr().addr()..memory.as_ptr().addr() + LINK_BYTES;
            for way in taker.directions() {
                assert!(bounds.contains(&slot_of(way)));
                let end = way.data_from(0).at(u64::from(way.area())).addr();
                assert!(end <= bounds.end && end.is_multiple_of(LINE), "{colour}");
            }
        }
    }
}
