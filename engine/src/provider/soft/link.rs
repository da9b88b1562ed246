//! A link: both directions between two domains, for one receive queue on each side. Queue pairs
//! share it; the number of the one meant is in each record.
#![expect(unsafe_code, reason = "owns the memory its two ends read and write")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use doorbell_alloc::Mapping;
use std_alloc::boxed::Box;
use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;
use std_alloc::vec;

use super::layout::{Header, KIND_NAK, LINK_BYTES, LinkHeader, RecordFlags, Side, split};
use super::ring::{Rx, Tx};
use crate::error::{Code, SetupError};
use crate::wc::Status;

/// Signalled requests on the wire of one link at most; more wait in the backlog.
const SIGNALED_MAX: u32 = 512;

/// Refusals that may wait for ring space; a peer that earns more is cut off.
const REFUSALS_MAX: usize = 64;

/// The part of a link that the control plane holds too: memory, and who still uses it.
pub struct LinkShared {
    memory: Arc<Mapping>,
    header: LinkHeader,
    side: Side,
    peer_gone: AtomicBool,
}

// SAFETY: the header is one atomic word in memory this value owns; the rest is plain data.
unsafe impl Send for LinkShared {}
// SAFETY: as above.
unsafe impl Sync for LinkShared {}

impl LinkShared {
    /// Takes memory of at least [`LINK_BYTES`] for a link. The maker's memory is all zero.
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

    fn over(memory: Arc<Mapping>, side: Side) -> Result<LinkShared, SetupError> {
        if memory.len() < LINK_BYTES || memory.as_ptr() as usize % 128 != 0 {
            return Err(SetupError::new(
                Code::Invalid,
                std_alloc::format!("a link in {} bytes of memory", memory.len()),
                std_alloc::format!("it needs {LINK_BYTES} bytes, aligned to 128"),
            ));
        }
        let base = NonNull::new(memory.as_ptr())
            .ok_or_else(|| SetupError::new(Code::Invalid, "a link", "the memory has no address"))?;
        // SAFETY: length and alignment were checked, and this value owns the mapping.
        let (_, _, header) = unsafe { split(base, side) };
        if side == Side::Maker {
            header.users().store(2, Ordering::Relaxed);
        }
        Ok(LinkShared { memory, header, side, peer_gone: AtomicBool::new(false) })
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

    /// The peer's process is gone: its ends will never be given back.
    pub fn peer_gone(&self) {
        self.peer_gone.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_unused(&self) -> bool {
        self.peer_gone.load(Ordering::Relaxed) || self.header.users().load(Ordering::Relaxed) == 0
    }
}

/// A signalled request on the wire.
#[derive(Clone, Copy, Default)]
pub(super) struct Signaled {
    /// Ring position behind it.
    pub(super) end: u32,
    /// Its queue pair.
    pub(super) qp: u32,
    /// Its index in that queue pair's send queue.
    pub(super) index: u32,
}

/// Signalled requests on the wire, oldest first, over all queue pairs of a link: completions are
/// found without looking at queue pairs that have none.
pub(super) struct SignaledQueue {
    ring: Box<[Signaled]>,
    head: u32,
    tail: u32,
}

impl SignaledQueue {
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.tail.wrapping_sub(self.head) < SIGNALED_MAX
    }
    #[inline(always)]
    pub(super) fn push(&mut self, signaled: Signaled) {
        self.ring[(self.tail & (SIGNALED_MAX - 1)) as usize] = signaled;
        self.tail = self.tail.wrapping_add(1);
    }
    #[inline(always)]
    pub(super) fn first(&self) -> Option<Signaled> {
        if self.head == self.tail {
            return None;
        }
        Some(self.ring[(self.head & (SIGNALED_MAX - 1)) as usize])
    }
    #[inline(always)]
    pub(super) fn pop(&mut self) {
        self.head = self.head.wrapping_add(1);
    }
}

/// A record that was refused: the peer's queue pair fails there.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    /// Ring position of the record.
    pub(super) at: u32,
    /// The number of our queue pair it was for.
    pub(super) qp: u32,
    /// What the sender's completion says.
    pub(super) status: Status,
}

/// One side of a link, inside its domain.
pub(super) struct Link {
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    pub(super) signaled: SignaledQueue,
    /// The peer has taken everything up to here, and no refusal for any of it is on its way.
    pub(super) safe: u32,
    /// The newest such promise; it counts once everything the peer wrote before it was read.
    promised: u32,
    /// The peer waits to hear how far this side has read.
    pub(super) asked: bool,
    /// Queue pairs with requests that did not fit, in order.
    pub(super) backlog: VecDeque<u32>,
    /// Refusals to be written, oldest first, and the queue pairs refused lately.
    pub(super) refusals: ArrayVec<Refusal, REFUSALS_MAX>,
    refused: ArrayVec<u32, REFUSALS_MAX>,
    /// The peer broke the rules: nothing more is read or written.
    pub(super) broken: bool,
    pub(super) users: u32,
    pub(super) shared: Arc<LinkShared>,
}

impl Link {
    pub(super) fn new(shared: Arc<LinkShared>) -> Link {
        let base = NonNull::new(shared.memory.as_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: `LinkShared::new` checked the memory, and the link keeps it alive.
        let (out, input, _) = unsafe { split(base, shared.side) };
        Link {
            tx: Tx::new(out),
            rx: Rx::new(input),
            signaled: SignaledQueue {
                ring: vec![Signaled::default(); SIGNALED_MAX as usize].into_boxed_slice(),
                head: 0,
                tail: 0,
            },
            safe: 0,
            promised: 0,
            asked: false,
            backlog: VecDeque::new(),
            refusals: ArrayVec::new(),
            refused: ArrayVec::new(),
            broken: false,
            users: 0,
            shared,
        }
    }

    /// How far this side has read without a refusal outstanding.
    #[inline(always)]
    fn safe_ack(&self) -> u32 {
        match self.refusals.first() {
            None => self.rx.at,
            Some(refusal) => refusal.at,
        }
    }

    /// The acknowledgement to send along with a publication.
    #[inline(always)]
    pub(super) fn ack(&mut self) -> u32 {
        if self.refusals.is_empty() {
            self.rx.told = self.rx.at;
            self.asked = false;
        }
        self.safe_ack()
    }

    /// Takes over what the peer's bell said it has read.
    #[inline(always)]
    pub(super) fn note_ack(&mut self, upto: u32) {
        self.tx.note_freed(upto);
        self.promise(upto);
    }

    #[inline(always)]
    fn promise(&mut self, upto: u32) {
        let step = upto.wrapping_sub(self.promised);
        if step <= self.tx.at.wrapping_sub(self.promised) {
            self.promised = upto;
        }
    }

    /// Looks at the peer's own line, if somebody waits for it. Before the bell is read: what the
    /// bell names then includes every refusal the promise depends on.
    #[inline(always)]
    pub(super) fn look_at_taken(&mut self) {
        if let Some(first) = self.signaled.first()
            && !reached(self.promised, first.end)
        {
            let safe = self.tx.read_taken();
            self.promise(safe);
        }
    }

    /// Everything the peer wrote before its promise has been read: the promise counts.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        if self.rx.caught_up() {
            self.safe = self.promised;
        }
    }

    /// Space for `bytes`, looking at shared memory only if needed.
    #[inline(always)]
    pub(super) fn has_space(&mut self, bytes: u32) -> bool {
        self.tx.fits(bytes) || self.find_space(bytes)
    }

    #[cold]
    #[inline(never)]
    fn find_space(&mut self, bytes: u32) -> bool {
        self.tx.read_taken();
        let acked = self.rx.peer_ack();
        self.tx.note_freed(acked);
        self.tx.fits(bytes)
    }

    /// Notes that a record was refused; a queue pair is refused once.
    #[cold]
    pub(super) fn refuse(&mut self, qp: u32, status: Status) {
        if self.refused.contains(&qp) {
            return;
        }
        if self.refused.is_full() {
            self.refused.remove(0);
        }
        self.refused.push(qp);
        if self.refusals.try_push(Refusal { at: self.rx.at, qp, status }).is_err() {
            self.broken = true;
        }
    }

    /// Writes refusals as far as there is space.
    #[cold]
    pub(super) fn write_refusals(&mut self) {
        while let Some(refusal) = self.refusals.first().copied() {
            let header = Header::new(KIND_NAK, RecordFlags::empty(), 16, refusal.qp);
            if !self.has_space(header.record()) {
                break;
            }
            let body = self.tx.begin(header, 0).cast::<u64>();
            // SAFETY: `begin` gives space for the 16 bytes of the payload, 8-byte aligned.
            unsafe {
                body.write(u64::from(refusal.at));
                body.add(1).write(refusal.status as u64);
            }
            self.tx.end(header);
            self.refusals.remove(0);
            // Published one by one: the acknowledgement that goes along is still before the
            // next refusal.
            let ack = self.ack();
            self.tx.publish(ack);
        }
        self.tell_now();
    }

    /// Tells the peer now how far this side has read.
    pub(super) fn tell_now(&mut self) {
        if self.rx.told != self.rx.at || self.asked {
            let safe = self.safe_ack();
            self.rx.tell(safe);
            self.asked = false;
        }
    }
}

/// True if ring position `at` is `target` or behind it.
#[inline(always)]
pub(super) fn reached(at: u32, target: u32) -> bool {
    at.wrapping_sub(target) as i32 >= 0
}
