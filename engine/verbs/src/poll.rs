//! Readers of completion queues.
#![expect(unsafe_code, reason = "completions are written by the driver into our buffer")]

use core::ffi::c_int;
use core::mem::MaybeUninit;

use crate::rdma_core::{ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc};

use super::cq::VerbsCq;
use super::objects::CqEx;
use super::shim::refused;
use crate::error::SetupError;
use crate::provider::wake::{Notifier, WakeFds};
use crate::provider::{Polled, Poller};
use crate::wc::{Status, Wc, WcFlags, WcOpcode};

/// The most completions taken from the driver in one call.
const CHUNK: usize = 16;

/// The reader of a [`VerbsCq`].
pub struct VerbsPoller {
    cq: VerbsCq,
    poll_cq: PollCq,
    broken: bool,
    ahead: Ahead,
    arms: Arms,
}

/// What the kernel was asked for and has not yet told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arms {
    /// How the queue is armed for certain: only for what is solicited, or for anything.
    armed: Option<Solicited>,
    /// Events that may come or have come, at most: one for each arming.
    events: u32,
}

/// True if a queue is armed only for what is solicited.
type Solicited = bool;

impl Arms {
    /// True if arming again would change nothing.
    fn cover(&self, solicited: Solicited) -> bool {
        self.armed == Some(false) || (solicited && self.armed == Some(true))
    }

    /// The queue was armed.
    fn add(&mut self, solicited: Solicited) {
        self.armed = Some(solicited);
        self.events = self.events.saturating_add(1);
    }

    /// `events` were taken, and no more had come.
    fn took(&mut self, events: u32) {
        if events > 0 {
            self.armed = None;
            // If the queue was armed twice, one event may answer both, or the second arming may
            // still be open. So at most one more event can come.
            self.events = self.events.saturating_sub(events).min(1);
        }
    }
}

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

/// The completions of a poll for one that found several: the next polls return them first.
struct Ahead {
    raw: [MaybeUninit<ibv_wc>; CHUNK],
    /// The first `got` are filled; `given` of those have been returned.
    given: usize,
    got: usize,
}

impl VerbsPoller {
    pub(super) fn new(cq: VerbsCq) -> VerbsPoller {
        let poll_cq = cq.wake.device.ops().poll_cq;
        VerbsPoller { cq, poll_cq, broken: false, ahead: Ahead::new(), arms: Arms::default() }
    }

    #[inline]
    fn take(&mut self, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        // SAFETY: the queue lives while its handle does.
        let got = unsafe { take(self.poll_cq, self.cq.cq.as_ptr(), out) };
        self.broken |= got.is_none();
        got.unwrap_or(0)
    }
}

/// Asks the driver for as many completions as there is room for. Returns how many came, or `None`
/// if the queue is broken.
///
/// # Safety
/// The queue is alive, and of the driver whose function that is.
#[inline]
unsafe fn take(poll_cq: PollCq, cq: *mut ibv_cq, out: &mut [MaybeUninit<ibv_wc>]) -> Option<usize> {
    // SAFETY: the caller vouches for the queue, and the driver writes at most `len` entries, which
    // is at most CHUNK.
    let got = unsafe { poll_cq(cq, out.len() as c_int, out.as_mut_ptr().cast()) };
    usize::try_from(got).ok().map(|got| got.min(out.len()))
}

impl Ahead {
    fn new() -> Ahead {
        Ahead { raw: [const { MaybeUninit::uninit() }; CHUNK], given: 0, got: 0 }
    }

    /// The result of a poll for one completion, after `got` were taken into `raw`.
    #[inline]
    fn one_of(&mut self, got: usize) -> Polled {
        match got {
            0 => Polled::Nothing,
            // SAFETY: the driver has written the first entry.
            1 => Polled::One(convert(unsafe { self.raw[0].assume_init_ref() })),
            _ => {
                (self.given, self.got) = (0, got);
                Polled::More
            }
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.got == 0
    }

    /// Returns those that are left: how many, and whether the queue may have more now.
    #[cold]
    fn give(&mut self, out: &mut [Wc]) -> (usize, bool) {
        let count = out.len().min(self.got - self.given);
        for (to, from) in out.iter_mut().zip(&self.raw[self.given..self.given + count]) {
            // SAFETY: the driver has written the first `got` entries.
            *to = convert(unsafe { from.assume_init_ref() });
        }
        self.given += count;
        let may_more = self.given == CHUNK;
        if self.given == self.got {
            (self.given, self.got) = (0, 0);
        }
        (count, may_more)
    }
}

impl Poller for VerbsPoller {
    #[inline]
    fn poll(&mut self, out: &mut [Wc]) -> usize {
        let (mut filled, mut may_more) = (0, !self.broken);
        if !self.ahead.is_empty() {
            (filled, may_more) = self.ahead.give(out);
        }
        if !may_more {
            return filled;
        }
        let mut raw = [const { MaybeUninit::<ibv_wc>::uninit() }; CHUNK];
        for chunk in out[filled..].chunks_mut(CHUNK) {
            let got = self.take(&mut raw[..chunk.len()]);
            for (to, from) in chunk.iter_mut().zip(&raw[..got]) {
                // SAFETY: the driver has written the first `got` entries.
                *to = convert(unsafe { from.assume_init_ref() });
            }
            filled += got;
            if got < chunk.len() {
                break;
            }
        }
        filled
    }

    /// Asks for as many as a poll of a list does: it is one call of the driver either way, and
    /// tells whether a completion is the only one.
    #[inline]
    fn poll_one(&mut self) -> Polled {
        if self.broken || !self.ahead.is_empty() {
            return Polled::More;
        }
        // SAFETY: the queue lives while its handle does.
        match unsafe { take(self.poll_cq, self.cq.cq.as_ptr(), &mut self.ahead.raw) } {
            Some(got) => self.ahead.one_of(got),
            None => {
                self.broken = true;
                Polled::Nothing
            }
        }
    }

    fn is_broken(&self) -> bool {
        self.broken
    }

    /// Arms once: each call of the driver may be a system call.
    fn arm(&mut self, solicited: bool) -> Result<(), SetupError> {
        if self.arms.cover(solicited) {
            return Ok(());
        }
        match self.cq.cq.arm(solicited) {
            0 => {
                self.arms.add(solicited);
                Ok(())
            }
            answer => Err(refused("arm a completion queue", answer)),
        }
    }

    fn wake_fds(&self) -> Option<WakeFds> {
        let queue = self.cq.wake.notifier.as_ref().map(Notifier::fd);
        Some(WakeFds { device: self.cq.wake.channel.fd(), queue })
    }

    /// Usually one read, which takes the only event that can be there.
    fn woken(&mut self) -> bool {
        let events = self.cq.cq.drain(&self.cq.wake.channel, self.arms.events.max(1));
        self.arms.took(events);
        if events == 0
            && let Some(notifier) = &self.cq.wake.notifier
        {
            notifier.clear();
        }
        events > 0
    }

    fn notifier(&self) -> Option<Notifier> {
        self.cq.wake.notifier.clone()
    }
}

/// A completion as the seam has it; fields that the driver leaves undefined (CP-1) stay zero.
#[inline]
fn convert(raw: &ibv_wc) -> Wc {
    let mut wc = Wc {
        wr_id: raw.wr_id,
        qp_num: raw.qp_num,
        vendor_err: raw.vendor_err,
        status: Status::from_raw(raw.status),
        ..Wc::default()
    };
    if wc.status.is_ok() {
        wc.opcode = WcOpcode::from_raw(raw.opcode);
        wc.byte_len = raw.byte_len;
        wc.flags = WcFlags::from_bits_truncate(raw.wc_flags as u16);
        if wc.flags.contains(WcFlags::GRH) {
            // Of a datagram; otherwise the driver may not have written it.
            wc.src_qp = raw.src_qp;
        }
        if wc.flags.intersects(WcFlags::WITH_IMM | WcFlags::WITH_INV) {
            // SAFETY: with either flag the driver has written this field, and both fields of the
            // union are the same four bytes.
            let word = unsafe { raw.imm_data_invalidated_rkey_union.imm_data };
            let key = wc.flags.contains(WcFlags::WITH_INV);
            wc.imm = if key { word } else { u32::from_be(word) };
        }
    }
    wc
}

/// A completion of an extended queue that was started, and ends when this is dropped.
pub(super) struct Started<'a> {
    cq: &'a mut CqEx,
    end_poll: unsafe extern "C" fn(*mut ibv_cq_ex),
}

impl CqEx {
    /// Starts the oldest completion, if there is one (`ibv_start_poll`). An errno if the queue is
    /// broken.
    pub(super) fn start(&mut self) -> Result<Option<Started<'_>>, i32> {
        // SAFETY: the queue is alive; its functions never change.
        let (start, end) = unsafe { ((*self.as_ptr()).start_poll, (*self.as_ptr()).end_poll) };
        let (Some(start), Some(end_poll)) = (start, end) else { return Ok(None) };
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue is alive. Nothing is started: that would borrow this value.
        match unsafe { start(self.as_ptr(), &raw mut attr) } {
            0 => Ok(Some(Started { cq: self, end_poll })),
            libc::ENOENT => Ok(None),
            errno => Err(errno),
        }
    }
}

impl Started<'_> {
    fn raw(&self) -> &ibv_cq_ex {
        // SAFETY: the queue is alive. Nobody changes it while a completion is started.
        unsafe { &*self.cq.as_ptr() }
    }

    fn read<T>(&self, read: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>) -> Option<T> {
        // SAFETY: each caller in this block passes a read function of the queue, which may be
        // called while a completion is started.
        read.map(|read| unsafe { read(self.cq.as_ptr()) })
    }

    pub(super) fn wr_id(&self) -> u64 {
        self.raw().wr_id
    }
    pub(super) fn status(&self) -> Status {
        Status::from_raw(self.raw().status)
    }
    pub(super) fn opcode(&self) -> Option<u32> {
        self.read(self.raw().read_opcode)
    }
    pub(super) fn vendor_err(&self) -> Option<u32> {
        self.read(self.raw().read_vendor_err)
    }
    pub(super) fn byte_len(&self) -> Option<u32> {
        self.read(self.raw().read_byte_len)
    }
    /// In network byte order, or a key.
    pub(super) fn imm_data(&self) -> Option<u32> {
        self.read(self.raw().read_imm_data)
    }
    pub(super) fn qp_num(&self) -> Option<u32> {
        self.read(self.raw().read_qp_num)
    }
    pub(super) fn src_qp(&self) -> Option<u32> {
        self.read(self.raw().read_src_qp)
    }
    pub(super) fn wc_flags(&self) -> Option<u32> {
        self.read(self.raw().read_wc_flags)
    }
    pub(super) fn slid(&self) -> Option<u32> {
        self.read(self.raw().read_slid)
    }
    pub(super) fn sl(&self) -> Option<u8> {
        self.read(self.raw().read_sl)
    }
    pub(super) fn dlid_path_bits(&self) -> Option<u8> {
        self.read(self.raw().read_dlid_path_bits)
    }
    pub(super) fn completion_ts(&self) -> Option<u64> {
        self.read(self.raw().read_completion_ts)
    }
    pub(super) fn wallclock_ns(&self) -> Option<u64> {
        self.read(self.raw().read_completion_wallclock_ns)
    }
    pub(super) fn cvlan(&self) -> Option<u16> {
        self.read(self.raw().read_cvlan)
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        // SAFETY: a completion is started, and ended once, here.
        unsafe { (self.end_poll)(self.cq.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma_core::imm_data_invalidated_rkey_union_t as Imm;
    use core::mem::zeroed;
    use std_alloc::vec;
    use std_alloc::vec::Vec;

    fn raw(status: u32) -> ibv_wc {
        // SAFETY: zero is a valid value of each field.
        let mut raw: ibv_wc = unsafe { zeroed() };
        raw.wr_id = 7;
        raw.qp_num = 18;
        raw.status = status;
        raw.opcode = 128;
        raw.byte_len = 64;
        raw.wc_flags = WcFlags::WITH_IMM.bits().into();
        raw.imm_data_invalidated_rkey_union = Imm { imm_data: 0x0102_0304_u32.to_be() };
        raw
    }

    /// The queue of the tests: how many completions it has, numbered from 0, and how many were
    /// given; one that has fewer than were given is broken.
    struct Line {
        has: u64,
        given: u64,
        calls: usize,
    }

    unsafe extern "C" fn line(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
        // SAFETY: the tests hand their line over as the queue.
        let line = unsafe { &mut *cq.cast::<Line>() };
        line.calls += 1;
        if line.has < line.given {
            return -1;
        }
        let count = (line.has - line.given).min(most as u64);
        for n in 0..count {
            // SAFETY: room for `most` of them.
            unsafe { out.add(n as usize).write(ibv_wc { wr_id: line.given + n, ..raw(0) }) };
        }
        line.given += count;
        count as c_int
    }

    #[test]
    fn completions_taken_with_the_first_come_first_without_a_call() {
        for has in [0, 1, 2, 3, CHUNK as u64 - 1, CHUNK as u64] {
            for room in [1, 2, 5, CHUNK, 2 * CHUNK] {
                let mut queue = Line { has, given: 0, calls: 0 };
                let mut ahead = Ahead::new();
                // SAFETY: the line is alive, and the function is its own.
                let got = unsafe { take(line, (&raw mut queue).cast(), &mut ahead.raw) };
                match (has, ahead.one_of(got.expect("it works"))) {
                    (0, Polled::Nothing) => continue,
                    (1, Polled::One(wc)) if wc.wr_id == 0 => continue,
                    (2.., Polled::More) => {}
                    (_, other) => panic!("{other:?} of {has}"),
                }
                let (mut seen, mut may_more) = (Vec::new(), false);
                while !ahead.is_empty() {
                    assert!(!may_more, "there is no more before all of this was given");
                    let mut wcs = vec![Wc::default(); room];
                    let given;
                    (given, may_more) = ahead.give(&mut wcs);
                    seen.extend(wcs[..given].iter().map(|wc| wc.wr_id));
                }
                assert!(seen.iter().copied().eq(0..has), "{seen:?} of {has}");
                assert_eq!((may_more, queue.calls), (has == CHUNK as u64, 1));
            }
        }
    }

    #[test]
    fn a_queue_is_armed_once_until_its_event_has_come() {
        let mut arms = Arms::default();
        assert!(!arms.cover(true) && !arms.cover(false));
        arms.add(true);
        assert!(arms.cover(true) && !arms.cover(false), "other completions wake nobody yet");
        arms.add(false);
        assert!(arms.cover(true) && arms.cover(false));
        arms.took(0);
        assert_eq!(arms, Arms { armed: Some(false), events: 2 }, "nothing has come");
        arms.took(1);
        assert_eq!(arms, Arms { armed: None, events: 1 }, "it may still be armed, so one may come");
        arms.add(false);
        arms.took(2);
        assert_eq!(arms, Arms { armed: None, events: 0 });
    }

    #[test]
    fn a_queue_that_answers_an_error_is_broken() {
        let mut queue = Line { has: 0, given: 1, calls: 0 };
        let mut out = [const { MaybeUninit::uninit() }; 2];
        // SAFETY: as above.
        assert_eq!(unsafe { take(line, (&raw mut queue).cast(), &mut out) }, None);
    }

    #[test]
    fn a_success_carries_length_and_immediate_in_host_order() {
        let wc = convert(&raw(0));
        assert_eq!((wc.wr_id, wc.qp_num, wc.byte_len, wc.imm), (7, 18, 64, 0x0102_0304));
        assert_eq!((wc.opcode, wc.flags), (WcOpcode::Recv, WcFlags::WITH_IMM));
    }

    #[test]
    fn an_error_carries_only_defined_fields() {
        let wc = convert(&raw(5));
        assert_eq!((wc.wr_id, wc.qp_num, wc.status), (7, 18, Status::Flushed));
        assert_eq!((wc.byte_len, wc.imm, wc.flags), (0, 0, WcFlags::empty()));
    }

    #[test]
    fn flags_beyond_the_known_ones_are_dropped() {
        let mut with_more = raw(0);
        with_more.wc_flags = 0xffff_ff01;
        assert_eq!(convert(&with_more).flags, WcFlags::GRH);
    }
}
