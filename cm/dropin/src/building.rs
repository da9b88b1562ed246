//! Requests of an extended post (`ibv_wr_start` to `ibv_wr_complete`), as they are put together.

use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};

use arrayvec::ArrayVec;
use doorbell_seam::wr::{Destination, SendFlags, SendOp, SendWr, Sge};
use doorbell_soft::{Biased, Threads};

use crate::border::{ABSENT, Errno, INVALID, lock};
use crate::requests::{STEP, to_srq};

/// The extended post of one queue pair. It is one thread's from its start to its end: another one
/// that starts waits, as at the spinlock of rdma-core's drivers. So a thread that starts twice
/// without an end waits for itself, as it does there.
pub(crate) struct ExtendedPost {
    building: Biased<Building>,
    /// A thread that waits holds it from its look at the post until it sleeps.
    waits: Mutex<()>,
    ended: Condvar,
}

impl ExtendedPost {
    pub(crate) fn new(threads: Threads) -> ExtendedPost {
        let building = Biased::new(Building::default(), threads);
        ExtendedPost { building, waits: Mutex::new(()), ended: Condvar::new() }
    }

    /// Begins one, behind those of other threads.
    pub(crate) fn start(&self) {
        if !self.building.lock().start(0) {
            self.wait_and_start();
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_and_start(&self) {
        let mut waits = lock(&self.waits);
        self.building.lock().waiting += 1;
        while !self.building.lock().start(1) {
            waits = self.ended.wait(waits).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs a step of it; what is wrong with it shows at the end.
    pub(crate) fn step(&self, step: impl FnOnce(&mut Building) -> Result<(), Errno>) {
        let mut building = self.building.lock();
        if let Err(errno) = step(&mut building) {
            building.fail(errno);
        }
    }

    /// Ends it by that call, and lets another thread begin.
    pub(crate) fn end<R>(&self, end: impl FnOnce(&mut Building) -> R) -> R {
        let mut building = self.building.lock();
        building.is_begun = false;
        let (result, waiting) = (end(&mut building), building.waiting);
        drop(building);
        if waiting > 0 {
            drop(lock(&self.waits));
            self.ended.notify_one();
        }
        result
    }
}

/// The requests of one queue pair. The lists keep their memory, so that only posts that are longer
/// than those before them allocate.
#[derive(Default)]
pub(crate) struct Building {
    list: Vec<Request>,
    /// The pieces of all requests.
    pieces: Vec<Sge>,
    /// The bytes of all inline requests: the program's may be gone when they are posted.
    inline: Vec<u8>,
    /// What was wrong first.
    wrong: Option<Errno>,
    /// A post has started and not ended.
    is_begun: bool,
    /// Threads that wait to start one.
    waiting: u32,
}

/// One request.
struct Request {
    wr_id: u64,
    flags: SendFlags,
    op: SendOp,
    /// Its part of the pieces, or of the inline bytes if it is inline.
    payload: Range<usize>,
}

impl Building {
    /// Starts a post for one thread, of which `waited` have waited for it. False: one is under way.
    fn start(&mut self, waited: u32) -> bool {
        if self.is_begun {
            return false;
        }
        self.is_begun = true;
        self.waiting -= waited;
        self.clear();
        true
    }

    /// Forgets the requests.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.pieces.clear();
        self.inline.clear();
        self.wrong = None;
    }

    /// One more request; `flags` are those of `ibv_send_flags`.
    pub(crate) fn add(&mut self, wr_id: u64, flags: u32, op: SendOp) {
        let flags = SendFlags::from_bits_truncate((flags & 0xf) as u8) - SendFlags::INLINE;
        self.list.push(Request { wr_id, flags, op, payload: 0..0 });
    }

    /// Something is wrong; nothing of it is posted.
    pub(crate) fn fail(&mut self, errno: Errno) {
        self.wrong.get_or_insert(errno);
    }

    /// Changes the request begun last.
    fn last(&mut self, change: impl FnOnce(&mut Request) -> Result<(), Errno>) {
        let result = self.list.last_mut().map_or(Err(INVALID), change);
        if let Err(errno) = result {
            self.fail(errno);
        }
    }

    /// Sets its pieces.
    pub(crate) fn set_pieces(&mut self, pieces: &[Sge]) {
        let start = self.pieces.len();
        self.pieces.extend_from_slice(pieces);
        let payload = start..self.pieces.len();
        self.last(|request| {
            request.payload = payload;
            Ok(())
        });
    }

    /// Adds to its inline bytes.
    pub(crate) fn add_inline(&mut self, bytes: &[u8]) {
        let start = self.inline.len();
        self.inline.extend_from_slice(bytes);
        let end = self.inline.len();
        self.last(|request| {
            if !request.flags.contains(SendFlags::INLINE) {
                request.flags |= SendFlags::INLINE;
                request.payload = start..start;
            }
            request.payload.end = end;
            Ok(())
        });
    }

    /// Makes it a datagram to that destination.
    pub(crate) fn set_destination(&mut self, to: Destination) {
        self.last(|request| {
            request.op = match request.op {
                SendOp::Send => SendOp::SendTo(to),
                SendOp::SendWithImm(imm) => SendOp::SendToWithImm(to, imm),
                _ => return Err(ABSENT),
            };
            Ok(())
        });
    }

    /// Makes it one to a shared receive queue of an XRC domain.
    pub(crate) fn set_srq(&mut self, number: u32) {
        self.last(|request| {
            request.op = to_srq(request.op, number);
            Ok(())
        });
    }

    /// Ends the building: the requests, as the device takes them, to `post`, some at a time. If
    /// they are several, `check` gets them all before, with the number of those ahead.
    pub(crate) fn complete(
        &mut self,
        check: impl FnMut(usize, &[SendWr<'_>]) -> Result<(), Errno>,
        mut post: impl FnMut(&[SendWr<'_>]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let right = self.wrong.map_or(Ok(()), Err);
        let checked = match self.list.len() {
            0 | 1 => right,
            _ => right.and_then(|()| self.each_step(check)),
        };
        let posted = checked.and_then(|()| self.each_step(|_, requests| post(requests)));
        self.clear();
        posted
    }

    fn each_step(
        &self,
        mut step: impl FnMut(usize, &[SendWr<'_>]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        for (n, some) in self.list.chunks(STEP).enumerate() {
            let requests: ArrayVec<SendWr<'_>, STEP> =
                some.iter().map(|request| self.as_posted(request)).collect();
            step(n * STEP, &requests)?;
        }
        Ok(())
    }

    fn as_posted(&self, request: &Request) -> SendWr<'_> {
        let Request { wr_id, flags, op, payload } = request;
        let (sge, more) = if flags.contains(SendFlags::INLINE) {
            (Sge::inline(self.inline.get(payload.clone()).unwrap_or_default()), &[][..])
        } else {
            let pieces = self.pieces.get(payload.clone()).unwrap_or_default();
            pieces.split_first().map_or((Sge::default(), &[][..]), |(first, more)| (*first, more))
        };
        SendWr { wr_id: *wr_id, op: *op, flags: *flags, sge, more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program posts without end: each post uses the memory of the one before it.
    #[test]
    fn a_post_like_the_last_one_allocates_nothing() {
        let mut building = Building::default();
        let mut places = Vec::new();
        for round in 0..3 {
            building.clear();
            for n in 0..40 {
                building.add(n, 0, SendOp::Send);
                match n % 2 {
                    0 => building.set_pieces(&[Sge::default(); 2]),
                    _ => building.add_inline(b"bytes"),
                }
            }
            let Building { list, pieces, inline, .. } = &building;
            places.push((list.as_ptr(), pieces.as_ptr(), inline.as_ptr()));
            let mut posted = 0;
            let post = |requests: &[SendWr<'_>]| {
                posted += requests.len();
                Ok(())
            };
            let all = building.complete(|_, _| Ok(()), post);
            assert_eq!((all, posted), (Ok(()), 40), "{round}");
        }
        assert_eq!(places[1..], [places[0]; 2]);
    }

    #[test]
    fn each_request_has_its_own_bytes_and_pieces() {
        let mut building = Building::default();
        building.clear();
        building.add(1, 0, SendOp::Send);
        building.add_inline(b"ab");
        building.add_inline(b"c");
        building.add(2, 0, SendOp::Send);
        building.set_pieces(&[
            Sge { addr: 1, length: 2, lkey: 3 },
            Sge { addr: 4, length: 5, lkey: 6 },
        ]);
        building.add(3, 0, SendOp::Send);
        building.add_inline(b"def");
        building.add(4, 0, SendOp::Send);
        let posted = building.complete(
            |_, _| Ok(()),
            |requests| {
                let lengths = requests.iter().map(|wr| (wr.wr_id, wr.length()));
                assert_eq!(lengths.collect::<Vec<_>>(), [(1, 3), (2, 7), (3, 3), (4, 0)]);
                assert!(
                    requests[0].flags.contains(SendFlags::INLINE) && requests[1].more.len() == 1
                );
                Ok(())
            },
        );
        assert_eq!(posted, Ok(()));
        building.fail(INVALID);
        assert_eq!(building.complete(|_, _| Ok(()), |_| Ok(())), Err(INVALID));
        let nothing = |_: &[SendWr<'_>]| panic!("nothing is left");
        assert_eq!(building.complete(|_, _| Ok(()), nothing), Ok(()));
    }

    #[test]
    fn several_requests_are_posted_only_if_all_are_taken() {
        let mut building = Building::default();
        let count = 2 * STEP + 1;
        (0..count).for_each(|n| building.add(n as u64, 0, SendOp::Send));
        let mut seen = Vec::new();
        let check = |ahead, requests: &[SendWr<'_>]| {
            seen.push((ahead, requests.len()));
            if ahead + requests.len() < count { Ok(()) } else { Err(INVALID) }
        };
        assert_eq!(building.complete(check, |_| panic!("it posts")), Err(INVALID));
        assert_eq!(seen, [(0, STEP), (STEP, STEP), (2 * STEP, 1)]);
    }
}
