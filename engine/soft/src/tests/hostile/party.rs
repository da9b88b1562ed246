//! An attacked side and its account: each piece of memory has one owner at a time, and each request
//! returns once.

use crate::provider::{Xrc, XrcSrq};
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use super::super::*;
use crate::scribbler::{Dice, Hints, heap};
use crate::wc::WcOpcode;
use crate::wr::XrcOp;

/// Bytes of a slot; messages are shorter, so a part of each stays unchanged.
const SLOT: usize = 12 << 10;
const SLOTS: usize = 24;
pub(super) const LONGEST: usize = SLOT - 64;
/// The content of a slot where nobody has the right to write.
pub(super) const MARK: u8 = 0xd7;
/// The content of memory that nobody has the right to read.
pub(super) const SECRET: u8 = 0x9b;
/// Bytes to send, behind the slots.
const SOURCE: usize = SLOTS * SLOT;
const SOURCE_BYTES: usize = 32 << 10;
/// Bytes that peers may use.
const OPEN_BYTES: usize = 8 << 10;
/// Marks the numbers of receives.
const RECEIVE: u64 = 1 << 40;

pub(super) const DEEP: QpCaps =
    QpCaps { send_wr: 16, recv_wr: 32, send_sge: 4, recv_sge: 1, inline: 64 };

/// The user of a slot.
#[derive(Clone, Copy, Debug)]
struct Piece {
    slot: usize,
    length: usize,
}

/// The requests that a side has posted, and their memory.
pub(super) struct Ledger {
    region: SoftRegion,
    free: VecDeque<usize>,
    receives: BTreeMap<u64, Piece>,
    sends: VecDeque<(u64, bool, Option<Piece>)>,
    next: u64,
    /// Successful completions of either kind.
    pub(super) good: u32,
}

impl Ledger {
    /// In memory that no peer has a right to, and that peers read if it is `lent`.
    pub(super) fn new(nic: &Soft, lent: bool) -> Ledger {
        let memory = if lent { readable } else { heap };
        let region = nic.register(memory(SOURCE + SOURCE_BYTES), Access::LOCAL_WRITE).unwrap();
        let mut ledger = Ledger {
            region,
            free: (0..SLOTS).collect(),
            receives: BTreeMap::new(),
            sends: VecDeque::new(),
            next: 0,
            good: 0,
        };
        for slot in 0..SLOTS {
            ledger.bytes(slot).fill(MARK);
        }
        for n in 0..SOURCE_BYTES / 64 {
            let line: [u8; 64] = core::array::from_fn(|at| ((n + at) % 127) as u8);
            unsafe { ledger.region.as_ptr().add(SOURCE + n * 64).cast::<[u8; 64]>().write(line) };
        }
        ledger
    }

    /// The device writes there only while it owns the slot, and never during this call.
    fn bytes(&mut self, slot: usize) -> &mut [u8] {
        assert!(slot < SLOTS);
        unsafe { core::slice::from_raw_parts_mut(self.region.as_ptr().add(slot * SLOT), SLOT) }
    }

    pub(super) fn sge(&self, at: usize, length: usize) -> Sge {
        let addr = self.region.as_ptr() as u64 + at as u64;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }

    /// For callers without an account: bytes of the first slot.
    pub(super) fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.bytes(0)[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn read(&mut self, at: usize, length: usize) -> Vec<u8> {
        self.bytes(0)[at..at + length].to_vec()
    }

    /// A slot that nobody has written to since it came back.
    fn borrow(&mut self, length: usize) -> Option<Piece> {
        let slot = self.free.pop_front()?;
        assert!(self.bytes(slot) == [MARK; SLOT], "written to with no owner");
        Some(Piece { slot, length })
    }

    /// A piece comes back: checks that nothing was written beside it.
    fn give_back(&mut self, Piece { slot, length }: Piece) {
        let whole = self.bytes(slot)[length..] == [MARK; SLOT][length..];
        assert!(whole, "written beyond {length} bytes");
        self.bytes(slot)[..length].fill(MARK);
        self.free.push_back(slot);
    }

    /// A new receive.
    pub(super) fn receive(&mut self, dice: &mut Dice, least: usize) -> Option<RecvWr> {
        if self.free.len() < 4 {
            return None;
        }
        let piece = self.borrow(least + length(dice, LONGEST - least))?;
        self.next += 1;
        let wr_id = self.next | RECEIVE;
        self.receives.insert(wr_id, piece);
        Some(RecvWr { wr_id, sge: self.sge(piece.slot * SLOT, piece.length) })
    }

    /// A new send; its result goes to a slot if it is not outward.
    fn send(&mut self, dice: &mut Dice, op: SendOp, length: usize) -> Option<(u64, Sge, bool)> {
        let (piece, at) = if op.is_outward() {
            (None, SOURCE + dice.below(SOURCE_BYTES - length))
        } else {
            let piece = self.borrow(length)?;
            (Some(piece), piece.slot * SLOT)
        };
        self.next += 1;
        // Some do not ask for a completion, but not so many that none asks.
        let silent = self.sends.iter().rev().take_while(|(_, signaled, _)| !signaled).count();
        let signaled = silent > 5 || dice.one_in(2);
        self.sends.push_back((self.next, signaled, piece));
        Some((self.next, self.sge(at, length), signaled))
    }

    /// The device did not take it.
    pub(super) fn unsend(&mut self) {
        let (_, _, piece) = self.sends.pop_back().unwrap();
        piece.into_iter().for_each(|piece| self.give_back(piece));
    }

    /// A send that asks for a completion.
    pub(super) fn outward(
        &mut self,
        dice: &mut Dice,
        op: SendOp,
        length: usize,
    ) -> SendWr<'static> {
        let (wr_id, sge, _) = self.send(dice, op, length).unwrap();
        self.sends.back_mut().unwrap().1 = true;
        SendWr { wr_id, op, flags: SendFlags::SIGNALED, sge, more: &[] }
    }

    /// A completion of something that was posted and has not come back before.
    pub(super) fn complete(&mut self, wc: &Wc) {
        self.good += u32::from(wc.status.is_ok());
        if wc.wr_id & RECEIVE != 0 {
            let piece = self.receives.remove(&wc.wr_id);
            let piece = piece.unwrap_or_else(|| panic!("not posted, or twice: {wc:?}"));
            if wc.status.is_ok() && wc.opcode == WcOpcode::RecvWriteWithImm {
                assert!(wc.byte_len <= 1 << 30, "{wc:?}");
            } else if wc.status.is_ok() {
                assert_eq!(wc.opcode, WcOpcode::Recv);
                assert!(wc.byte_len as usize <= piece.length, "{wc:?} of {piece:?}");
            }
            return self.give_back(piece);
        }
        loop {
            let first = self.sends.pop_front();
            let Some((wr_id, signaled, piece)) = first else { panic!("not posted: {wc:?}") };
            piece.into_iter().for_each(|piece| self.give_back(piece));
            if wr_id == wc.wr_id {
                return;
            }
            assert!(!signaled, "{wr_id} is missing before {wc:?}");
        }
    }

    pub(super) fn posted(&self) -> (usize, usize) {
        (self.sends.len(), self.receives.len())
    }

    /// Everything has come back, and nobody writes there any more.
    pub(super) fn close(&mut self) {
        assert_eq!(self.posted(), (0, 0), "sends, receives that did not come back");
        assert_eq!(self.free.len(), SLOTS);
        for _ in 0..SLOTS {
            let piece = self.borrow(0).unwrap();
            self.give_back(piece);
        }
    }

    pub(super) fn hint(&self) -> (u64, u64, u32) {
        (self.region.as_ptr() as u64, self.region.len() as u64, self.region.lkey())
    }
}

/// Lengths of all sizes, the short ones more often.
pub(super) fn length(dice: &mut Dice, most: usize) -> usize {
    let bound = [9, 41, 65, 201, 2000, 4100, most + 1][dice.below(7)];
    dice.below(bound.min(most + 1))
}

/// The kind of connection that is attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) qp: QpType,
    /// The receives belong to a shared queue.
    pub(super) srq: bool,
    /// Each maps the other's memory.
    pub(super) mapped: bool,
}

/// A side.
pub(super) struct Party {
    pub(super) qp: SoftQp,
    pub(super) poller: SoftPoller,
    pub(super) cq: SoftCq,
    srq: Option<SoftSrq>,
    xrcd: Option<SoftXrcd>,
    pub(super) ledger: Ledger,
    /// The memory that the peer may use, and the memory that it may not.
    pub(super) open: SoftRegion,
    secret: SoftRegion,
    pub(super) nic: Soft,
    kind: Kind,
    /// The longest message that fits every receive, and whether the side keeps to it.
    most: usize,
    pub(super) polite: bool,
    /// Error completions of this queue pair.
    pub(super) errors: u32,
}

impl Party {
    /// `taker`: the side that takes receives, of two XRC sides. Messages have at most `most` bytes.
    pub(super) fn new(nic: Soft, (kind, taker): (Kind, bool), most: usize) -> Party {
        let xrc = kind.qp == QpType::XrcSend;
        let sharing = if xrc && taker { Sharing::Shared } else { Sharing::Exclusive };
        let (cq, poller) = nic.create_cq(256, sharing).unwrap();
        let xrcd = (xrc && taker).then(|| nic.open_xrcd().unwrap());
        let srq = match &xrcd {
            Some(xrcd) => Some(nic.create_xrc_srq(xrcd, &cq, 32).unwrap()),
            None => kind.srq.then(|| nic.create_srq(32).unwrap()),
        };
        let qp = new_qp(&nic, (&cq, srq.as_ref(), xrcd.as_ref()), kind.qp);
        let memory = |len| if kind.mapped { shared(len) } else { heap(len) };
        let open = nic.register(memory(OPEN_BYTES), Access::all()).unwrap();
        let secret = nic.register(heap(4096), Access::LOCAL_WRITE).unwrap();
        unsafe {
            open.as_ptr().write_bytes(0x11, OPEN_BYTES);
            secret.as_ptr().write_bytes(SECRET, 4096);
        }
        let ledger = Ledger::new(&nic, kind.mapped);
        Party {
            qp,
            poller,
            cq,
            srq,
            xrcd,
            ledger,
            open,
            secret,
            nic,
            kind,
            most,
            polite: true,
            errors: 0,
        }
    }

    fn receives(&self) -> bool {
        self.kind.qp != QpType::XrcSend || self.xrcd.is_some()
    }

    fn sends(&self) -> bool {
        self.xrcd.is_none()
    }

    /// The number of the shared receive queue, for XRC.
    pub(super) fn number(&self) -> u32 {
        self.srq.as_ref().and_then(|srq| srq.number()).unwrap_or(0)
    }

    pub(super) fn hint(&self, hints: &mut Hints) {
        let of = |region: &SoftRegion| (region.as_ptr() as u64, region.len() as u64, region.rkey());
        hints.nums.push(self.qp.num());
        hints.queues.push(self.number());
        hints.regions.extend([of(&self.open), of(&self.open), of(&self.secret)]);
        hints.regions.push(self.ledger.hint());
    }

    /// Posts receives, so that there are always some.
    pub(super) fn stock(&mut self, dice: &mut Dice) {
        while self.receives() && self.ledger.receives.len() < 12 && !dice.one_in(4) {
            let Some(wr) = self.ledger.receive(dice, self.most) else { return };
            let posted = unsafe {
                match &self.srq {
                    Some(srq) => srq.post(&[wr]),
                    None => self.qp.post_recv(&[wr]),
                }
            };
            posted.unwrap();
        }
    }

    /// Posts a request to a peer, or finds no room for it.
    pub(super) fn send(&mut self, dice: &mut Dice, to: &Goal, plain: bool) {
        if !self.sends() {
            return;
        }
        let (op, length) = if plain {
            (SendOp::Send, length(dice, self.most.min(200)))
        } else {
            self.request(dice, to)
        };
        let op = if self.kind.qp == QpType::XrcSend { over_xrc(op, to.queue) } else { op };
        let Some((wr_id, sge, signaled)) = self.ledger.send(dice, op, length) else { return };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::SOLICITED, dice.one_in(8));
        flags.set(SendFlags::FENCE, dice.one_in(16));
        let short = length <= self.qp.caps().inline as usize;
        flags.set(SendFlags::INLINE, short && op.is_outward() && !dice.one_in(3));
        let more = if op.is_send() && dice.one_in(8) { &[Sge::default()][..] } else { &[] };
        let wr = SendWr { wr_id, op, flags, sge, more };
        if unsafe { self.qp.post(&[wr]) }.is_err() {
            self.ledger.unsend();
        }
    }

    /// An empty message, which any receive takes.
    pub(super) fn say_nothing(&mut self, to: &Goal) {
        if !self.sends() {
            return;
        }
        let op = SendOp::Send;
        let op = if self.kind.qp == QpType::XrcSend { over_xrc(op, to.queue) } else { op };
        let wr = self.ledger.outward(&mut Dice::new(1), op, 0);
        if unsafe { self.qp.post(&[wr]) }.is_err() {
            self.ledger.unsend();
        }
    }

    fn request(&self, dice: &mut Dice, to: &Goal) -> (SendOp, usize) {
        let rude = !self.polite && dice.one_in(100);
        let whole = length(dice, if rude { LONGEST } else { self.most });
        let some = length(dice, OPEN_BYTES);
        let at = to.at.offset(dice.below(OPEN_BYTES - some + 1) as u64);
        let word = to.at.offset(8 * dice.below(OPEN_BYTES / 8) as u64);
        let asks = self.kind.qp != QpType::Uc;
        match dice.below(if asks { 16 } else { 11 }) {
            0..5 => (SendOp::Send, whole),
            5..7 => (SendOp::SendWithImm(dice.any() as u32), whole),
            7 if asks && rude => (SendOp::SendWithInv(dice.any() as u32), whole),
            7..9 => (SendOp::Write(at), some),
            9..11 => (SendOp::WriteWithImm(at, dice.any() as u32), some),
            11..14 => (SendOp::Read(at), some),
            14 => (SendOp::FetchAdd { at: word, add: dice.any() }, 8),
            _ => (SendOp::CompareSwap { at: word, compare: 0x11, swap: dice.any() }, 8),
        }
    }

    /// Handles completions; those of other queue pairs are returned.
    pub(super) fn poll(&mut self) -> Vec<Wc> {
        let mut out = [Wc::default(); 16];
        let count = self.poller.poll(&mut out);
        let (mut others, num) = (Vec::new(), self.qp.num());
        for wc in &out[..count] {
            if wc.qp_num == num {
                self.errors += u32::from(!wc.status.is_ok());
                self.ledger.complete(wc);
            } else {
                others.push(*wc);
            }
        }
        others
    }

    pub(super) fn goal(&self) -> Goal {
        Goal { at: self.open.remote(0), queue: self.number() }
    }

    /// Replaces this queue pair by another, with the same receive queue if that is shared.
    pub(super) fn reset(&mut self) {
        let queues = (&self.cq, self.srq.as_ref(), self.xrcd.as_ref());
        self.qp = new_qp(&self.nic, queues, self.kind.qp);
    }

    /// Checks that nobody has read or changed memory without a right.
    pub(super) fn keeps_its_secrets(&self, link: &LinkShared) {
        let secret = unsafe { core::slice::from_raw_parts(self.secret.as_ptr(), 4096) };
        assert!(secret == [SECRET; 4096], "a region without rights has changed");
        let seen = unsafe { core::slice::from_raw_parts(link.memory().as_ptr(), LINK_BYTES) };
        let told = seen.chunks_exact(8).any(|word| word == [SECRET; 8] || word == [MARK; 8]);
        assert!(!told, "the peer got bytes that it has no right to read");
    }
}

/// The destination of requests to a peer.
pub(super) struct Goal {
    at: Remote,
    queue: u32,
}

fn over_xrc(op: SendOp, srq: u32) -> SendOp {
    let op = match op {
        SendOp::SendWithImm(imm) => XrcOp::SendWithImm(imm),
        SendOp::SendWithInv(key) => XrcOp::SendWithInv(key),
        SendOp::Write(at) => XrcOp::Write(at),
        SendOp::WriteWithImm(at, imm) => XrcOp::WriteWithImm(at, imm),
        SendOp::Read(at) => XrcOp::Read(at),
        SendOp::FetchAdd { at, add } => XrcOp::FetchAdd { at, add },
        SendOp::CompareSwap { at, compare, swap } => XrcOp::CompareSwap { at, compare, swap },
        _ => XrcOp::Send,
    };
    SendOp::Xrc { srq, op }
}

fn new_qp(
    nic: &Soft,
    (cq, srq, xrcd): (&SoftCq, Option<&SoftSrq>, Option<&SoftXrcd>),
    kind: QpType,
) -> SoftQp {
    match (kind, xrcd) {
        (QpType::XrcSend, Some(xrcd)) => nic.create_xrc_recv(xrcd).unwrap(),
        _ => make_qp_of(kind, nic, cq, srq, DEEP),
    }
}
