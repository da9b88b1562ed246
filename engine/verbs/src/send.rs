//! How send requests are handed to the driver: one linked list, one call, one doorbell.
#![expect(unsafe_code, reason = "requests are linked by pointer for the driver")]

use core::mem::{MaybeUninit, zeroed};
use core::ptr::{self, NonNull};

use crate::rdma_core::{
    atomic_t, bind_mw_t, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_send_wr, ibv_sge,
    ibv_wr_opcode, qp_type_t, rdma_t, tso_t, ud_t, wr_t, xrc_t,
};
use std_alloc::boxed::Box;

use super::access::access_flags;
use super::device::PostSend;
use super::posted::posted;
use crate::provider::{QpCaps, QpType};
use crate::wr::{Binding, Destination, PostCause, PostError, Remote, SendFlags, SendOp, SendWr};

/// Builds lists of requests in its own memory, and posts them.
pub(super) struct Sender {
    qp: NonNull<ibv_qp>,
    post_send: PostSend,
    caps: QpCaps,
    /// The type of the queue pair, which requests must fit.
    kind: QpType,
    /// The requests of one post, linked; as many as the send queue has slots. Fields that a request
    /// does not use keep old values.
    scratch: Box<[ibv_send_wr]>,
    /// Pieces of requests that have several, side by side.
    pieces: Box<[MaybeUninit<ibv_sge>]>,
}

impl Sender {
    /// For a queue pair with these capacities, which outlives the sender's last post.
    pub(super) fn new(
        qp: NonNull<ibv_qp>,
        post_send: PostSend,
        caps: QpCaps,
        kind: QpType,
    ) -> Sender {
        let slots = caps.send_wr as usize;
        // A request of one piece points to the caller's own.
        let pieces = if caps.send_sge > 1 { slots * caps.send_sge as usize } else { 0 };
        Sender {
            qp,
            post_send,
            caps,
            kind,
            scratch: (0..slots).map(|_| EMPTY).collect(),
            pieces: Box::new_uninit_slice(pieces),
        }
    }

    /// Posts a list.
    ///
    /// # Safety
    /// The queue pair is alive and on the device of `post_send`; buffers as for `Qp::post`.
    #[inline]
    pub(super) unsafe fn post(&mut self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        let (count, refusal) = self.link(list);
        if count > 0 {
            // SAFETY: the caller vouches for queue pair and buffers; `link` says how many.
            unsafe { self.ring(count)? }
        }
        match refusal {
            None => Ok(()),
            Some(cause) => Err(PostError { accepted: count, cause }),
        }
    }

    /// Why a request cannot be posted. It is checked here because drivers answer differently
    /// (SQ-4).
    #[inline]
    fn check(&self, wr: &SendWr<'_>) -> Option<PostCause> {
        let inline = wr.flags.contains(SendFlags::INLINE);
        if inline && wr.length() > u64::from(self.caps.inline) {
            return Some(PostCause::InlineTooLong);
        }
        if wr.pieces() > self.caps.send_sge.max(1) as usize {
            return Some(PostCause::TooManyPieces);
        }
        if wr.op.fits(self.kind) && wr.is_well_formed() { None } else { Some(PostCause::Malformed) }
    }

    /// Links requests from the front of the list. Returns how many, and why the next is refused.
    #[inline]
    fn link(&mut self, list: &[SendWr<'_>]) -> (usize, Option<PostCause>) {
        let first = self.scratch.as_mut_ptr();
        let mut pieces_used = 0;
        let mut count = 0;
        for wr in list {
            let refusal = self.check(wr);
            if refusal.is_some() {
                return (count, refusal);
            }
            let Some(raw) = self.scratch.get_mut(count) else {
                return (count, Some(PostCause::Full));
            };
            let (sg_list, num_sge) = gather(wr, &mut self.pieces, &mut pieces_used);
            raw.wr_id = wr.wr_id;
            raw.next = first.wrapping_add(count + 1);
            raw.sg_list = sg_list;
            raw.num_sge = num_sge;
            raw.send_flags = wr.flags.to_verbs();
            fill_in(wr.op, raw);
            count += 1;
        }
        (count, None)
    }

    /// Posts the first `count` linked requests: one call, one doorbell.
    ///
    /// # Safety
    /// `count` is not 0, and `link` has just returned it; the rest as for [`Sender::post`].
    #[inline]
    unsafe fn ring(&mut self, count: usize) -> Result<(), PostError> {
        let first = self.scratch.as_mut_ptr();
        let mut bad = ptr::null_mut();
        // SAFETY: `link` has written `count` requests, each pointing to the next; the last now
        // ends the list. Pieces lie in the caller's slice or in `pieces`; the caller vouches
        // for the queue pair and the buffers.
        let answer = unsafe {
            (*first.add(count - 1)).next = ptr::null_mut();
            (self.post_send)(self.qp.as_ptr(), first, &raw mut bad)
        };
        posted(answer, first, bad, count)
    }
}

/// A SEND with nothing set.
const EMPTY: ibv_send_wr = {
    // SAFETY: zero is a valid value of each field, pointers included.
    let mut empty: ibv_send_wr = unsafe { zeroed() };
    empty.opcode = ibv_wr_opcode::IBV_WR_SEND;
    empty
};

#[inline]
fn rdma(at: Remote) -> wr_t {
    wr_t { rdma: rdma_t { remote_addr: at.addr, rkey: at.rkey } }
}

#[inline]
fn atomic(at: Remote, compare_add: u64, swap: u64) -> wr_t {
    wr_t { atomic: atomic_t { remote_addr: at.addr, compare_add, swap, rkey: at.rkey } }
}

#[inline]
fn datagram(to: Destination) -> wr_t {
    let ah = ptr::with_exposed_provenance_mut(to.ah.0);
    wr_t { ud: ud_t { ah, remote_qpn: to.qpn, remote_qkey: to.qkey } }
}

/// Fills in the operation and its operands. Fields that it does not use keep their values.
#[inline]
fn fill_in(op: SendOp, raw: &mut ibv_send_wr) {
    match op {
        SendOp::Send => raw.opcode = ibv_wr_opcode::IBV_WR_SEND,
        SendOp::SendTo(to) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND;
            raw.wr = datagram(to);
        }
        SendOp::SendToWithImm(to, imm) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            raw.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            raw.wr = datagram(to);
        }
        SendOp::SendWithImm(imm) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            raw.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
        }
        SendOp::Write(at) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            raw.wr = rdma(at);
        }
        SendOp::WriteWithImm(at, imm) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
            raw.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            raw.wr = rdma(at);
        }
        SendOp::Read(at) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
            raw.wr = rdma(at);
        }
        SendOp::CompareSwap { at, compare, swap } => {
            raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            raw.wr = atomic(at, compare, swap);
        }
        SendOp::FetchAdd { at, add } => {
            raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            raw.wr = atomic(at, add, 0);
        }
        SendOp::Xrc { srq, op } => {
            fill_in(op.plain(), raw);
            raw.qp_type = qp_type_t { xrc: xrc_t { remote_srqn: srq } };
        }
        SendOp::SendWithInv(key) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
            raw.imm_data_invalidated_rkey_union.invalidated_rkey = key;
        }
        SendOp::LocalInv(key) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_LOCAL_INV;
            raw.imm_data_invalidated_rkey_union.invalidated_rkey = key;
        }
        SendOp::Tso(how) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_TSO;
            let hdr = ptr::with_exposed_provenance_mut(how.header as usize);
            let tso = tso_t { hdr, hdr_sz: how.header_len, mss: how.mss };
            raw.bind_mw_tso_union.tso = tso;
        }
        SendOp::Bind(binding) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
            raw.bind_mw_tso_union.bind_mw = bind_mw_t {
                mw: binding.window as *mut ibv_mw,
                rkey: binding.rkey,
                bind_info: bind_info(&binding),
            };
        }
    }
}

/// The memory that a window is bound to, in C's form.
pub(super) fn bind_info(binding: &Binding) -> ibv_mw_bind_info {
    ibv_mw_bind_info {
        mr: binding.region as *mut ibv_mr,
        addr: binding.addr,
        length: binding.length,
        mw_access_flags: access_flags(binding.access).cast_unsigned(),
    }
}

/// The pieces of a request side by side: the caller's own if it is one, none if it is empty
/// (SQ-9; some devices read a length of 0 as 2 GiB), else copied to `store` from `used` on.
#[inline]
fn gather(
    wr: &SendWr<'_>,
    store: &mut [MaybeUninit<ibv_sge>],
    used: &mut usize,
) -> (*mut ibv_sge, i32) {
    if wr.more.is_empty() {
        return ((&raw const wr.sge).cast_mut().cast(), (wr.sge.length != 0).into());
    }
    let room = &mut store[*used..*used + wr.pieces()];
    let mut filled = 0;
    for sge in core::iter::once(&wr.sge).chain(wr.more) {
        if sge.length != 0 {
            room[filled].write(ibv_sge { addr: sge.addr, length: sge.length, lkey: sge.lkey });
            filled += 1;
        }
    }
    *used += filled;
    (room.as_mut_ptr().cast(), filled as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr::{AhName, Sge, XrcOp};
    use core::cell::RefCell;
    use core::ffi::c_int;
    use std_alloc::vec;
    use std_alloc::vec::Vec;

    /// What the driver of the tests saw of one request.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Seen {
        wr_id: u64,
        opcode: u32,
        flags: u32,
        imm: u32,
        lengths: Vec<u32>,
    }

    /// The driver of the tests: takes `room` requests, then answers `errno`.
    struct Driver {
        room: usize,
        errno: c_int,
        names_bad: bool,
        calls: usize,
        seen: Vec<Seen>,
    }

    unsafe extern "C" fn driver(
        qp: *mut ibv_qp,
        mut wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the tests hand their driver's cell over as the queue pair.
        let mut driver = unsafe { (*qp.cast::<RefCell<Driver>>()).borrow_mut() };
        driver.calls += 1;
        while !wr.is_null() {
            if driver.seen.len() == driver.room {
                if driver.names_bad {
                    // SAFETY: the address of the sender's variable.
                    unsafe { *bad = wr };
                }
                return driver.errno;
            }
            // SAFETY: the list was built by the sender and ends with NULL, and each request
            // names as many pieces as it has.
            unsafe {
                let one = &*wr;
                let count = one.num_sge as usize;
                let pieces = (0..count).map(|index| (*one.sg_list.add(index)).length);
                driver.seen.push(Seen {
                    wr_id: one.wr_id,
                    opcode: one.opcode,
                    flags: one.send_flags,
                    imm: one.imm_data_invalidated_rkey_union.imm_data,
                    lengths: pieces.collect(),
                });
                wr = one.next;
            }
        }
        0
    }

    fn with(driver_of: Driver, list: &[SendWr<'_>]) -> (Result<(), PostError>, Driver) {
        with_kind(QpType::Rc, driver_of, list)
    }

    fn with_kind(
        kind: QpType,
        driver_of: Driver,
        list: &[SendWr<'_>],
    ) -> (Result<(), PostError>, Driver) {
        let caps = QpCaps { send_wr: 8, send_sge: 3, inline: 64, ..QpCaps::default() };
        let cell = RefCell::new(driver_of);
        let mut sender = Sender::new(NonNull::from(&cell).cast(), driver, caps, kind);
        // SAFETY: the driver of the tests looks at no buffer.
        let answer = unsafe { sender.post(list) };
        (answer, cell.into_inner())
    }

    fn roomy() -> Driver {
        Driver { room: 1000, errno: 0, names_bad: true, calls: 0, seen: Vec::new() }
    }

    fn wr(wr_id: u64, length: u32) -> SendWr<'static> {
        let sge = Sge { addr: 4096, length, lkey: 1 };
        SendWr { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sge, more: &[] }
    }

    #[test]
    fn one_slice_is_one_doorbell() {
        let list: Vec<SendWr<'_>> = (0..8).map(|n| wr(n, 8)).collect();
        let (answer, driver) = with(roomy(), &list);
        assert_eq!((answer, driver.calls), (Ok(()), 1));
        assert!(driver.seen.iter().map(|seen| seen.wr_id).eq(0..8));
        assert_eq!((driver.seen[0].opcode, driver.seen[0].flags), (2, 2));
        let (answer, driver) = with(roomy(), &[]);
        assert_eq!((answer, driver.calls), (Ok(()), 0));
    }

    #[test]
    fn immediate_data_is_in_network_order() {
        let imm = SendWr { op: SendOp::SendWithImm(0x0102_0304), ..wr(1, 8) };
        let (_, driver) = with(roomy(), &[imm]);
        assert_eq!(driver.seen[0].opcode, 3);
        assert_eq!(driver.seen[0].imm.to_ne_bytes(), [1, 2, 3, 4]);
    }

    #[test]
    fn one_sided_requests_carry_address_key_and_operands() {
        let at = Remote { addr: 0x1234_5678_9abc, rkey: 77 };
        for (op, want) in [
            (SendOp::Write(at), (0, [at.addr, 77, 0, 0])),
            (SendOp::WriteWithImm(at, 5), (1, [at.addr, 77, 0, 0])),
            (SendOp::Read(at), (4, [at.addr, 77, 0, 0])),
            (SendOp::CompareSwap { at, compare: 3, swap: 4 }, (5, [at.addr, 3, 4, 77])),
            (SendOp::FetchAdd { at, add: 9 }, (6, [at.addr, 9, 0, 77])),
        ] {
            let mut raw = EMPTY;
            fill_in(op, &mut raw);
            // SAFETY: the field goes with the operation, and both are plain numbers.
            let operands = unsafe {
                let (rdma, atomic) = (raw.wr.rdma, raw.wr.atomic);
                match op.is_outward() || matches!(op, SendOp::Read(_)) {
                    true => [rdma.remote_addr, rdma.rkey.into(), 0, 0],
                    false => {
                        [atomic.remote_addr, atomic.compare_add, atomic.swap, atomic.rkey.into()]
                    }
                }
            };
            assert_eq!((raw.opcode, operands), want, "{op:?}");
        }
    }

    #[test]
    fn datagrams_carry_their_destination_and_go_nowhere_else() {
        let to = Destination { ah: AhName(0x7f00), qpn: 0x12_3456, qkey: 0x0123_4567 };
        let mut raw = EMPTY;
        fill_in(SendOp::SendToWithImm(to, 5), &mut raw);
        // SAFETY: the field goes with the operation.
        let ud = unsafe { raw.wr.ud };
        assert_eq!((ud.ah.addr(), ud.remote_qpn, ud.remote_qkey), (0x7f00, 0x12_3456, 0x0123_4567));
        assert_eq!(raw.opcode, 3);
        let datagram = SendWr { op: SendOp::SendTo(to), ..wr(1, 8) };
        let malformed = PostError { accepted: 0, cause: PostCause::Malformed };
        assert_eq!(with(roomy(), &[datagram]).0, Err(malformed));
        assert_eq!(with_kind(QpType::Ud, roomy(), &[wr(1, 8)]).0, Err(malformed));
        assert_eq!(with_kind(QpType::Ud, roomy(), &[datagram]).1.seen[0].opcode, 2);
    }

    #[test]
    fn the_shared_queue_goes_along_with_the_request() {
        let at = Remote { addr: 0x1000, rkey: 7 };
        for (op, opcode) in [
            (XrcOp::Send, 2),
            (XrcOp::SendWithImm(5), 3),
            (XrcOp::WriteWithImm(at, 5), 1),
            (XrcOp::SendWithInv(9), 9),
            (XrcOp::Write(at), 0),
            (XrcOp::Read(at), 4),
            (XrcOp::CompareSwap { at, compare: 1, swap: 2 }, 5),
            (XrcOp::FetchAdd { at, add: 1 }, 6),
        ] {
            let mut raw = EMPTY;
            fill_in(SendOp::Xrc { srq: 0x12_3456, op }, &mut raw);
            // SAFETY: the field goes with queue pairs of XRC.
            let srqn = unsafe { raw.qp_type.xrc.remote_srqn };
            assert_eq!((raw.opcode, srqn), (opcode, 0x12_3456), "{op:?}");
            let named = SendWr { op: SendOp::Xrc { srq: 1, op }, ..wr(1, 8) };
            assert_eq!(with_kind(QpType::XrcSend, roomy(), &[named]).1.seen[0].opcode, opcode);
            let malformed = PostError { accepted: 0, cause: PostCause::Malformed };
            assert_eq!(with(roomy(), &[named]).0, Err(malformed));
            assert_eq!(with_kind(QpType::XrcSend, roomy(), &[wr(1, 8)]).0, Err(malformed));
        }
    }

    #[test]
    fn pieces_keep_their_order_and_empty_ones_go() {
        let more = [Sge { length: 0, ..wr(1, 8).sge }, Sge { length: 5, ..wr(1, 8).sge }];
        let list =
            [SendWr { more: &more, ..wr(1, 7) }, wr(2, 0), SendWr { more: &more, ..wr(3, 0) }];
        let (answer, driver) = with(roomy(), &list);
        assert_eq!(answer, Ok(()));
        let lengths: Vec<&[u32]> = driver.seen.iter().map(|seen| &seen.lengths[..]).collect();
        assert_eq!(lengths, [&[7, 5][..], &[], &[5]]);
    }

    #[test]
    fn requests_that_a_driver_would_refuse_are_refused_with_a_cause() {
        let inline = SendWr { flags: SendFlags::INLINE, ..wr(2, 65) };
        let pieces = [wr(0, 1).sge; 3];
        let wide = SendWr { more: &pieces, ..wr(2, 1) };
        let at = Remote::default();
        let read = SendWr { op: SendOp::Read(at), flags: SendFlags::INLINE, ..wr(2, 8) };
        let add = SendWr { op: SendOp::FetchAdd { at, add: 1 }, ..wr(2, 4) };
        for (bad, cause) in [
            (inline, PostCause::InlineTooLong),
            (wide, PostCause::TooManyPieces),
            (read, PostCause::Malformed),
            (add, PostCause::Malformed),
        ] {
            let (answer, driver) = with(roomy(), &[wr(1, 8), bad, wr(3, 8)]);
            assert_eq!(answer, Err(PostError { accepted: 1, cause }));
            assert_eq!((driver.calls, driver.seen.len()), (1, 1));
            assert_eq!(with(roomy(), &[bad]).1.calls, 0);
        }
        let long = vec![wr(0, 8); 9];
        let full = PostError { accepted: 8, cause: PostCause::Full };
        assert_eq!(with(roomy(), &long).0, Err(full));
    }

    #[test]
    fn a_drivers_refusal_tells_how_many_it_took() {
        let list: Vec<SendWr<'_>> = (0..6).map(|n| wr(n, 8)).collect();
        for (errno, cause) in [
            (libc::ENOMEM, PostCause::Full),
            (-libc::ENOMEM, PostCause::Full),
            (libc::ENOSPC, PostCause::Full),
            (libc::EINVAL, PostCause::Device(libc::EINVAL)),
            (-libc::EINVAL, PostCause::Device(libc::EINVAL)),
            (0, PostCause::Device(libc::EIO)),
        ] {
            for room in 0..6 {
                let (answer, _) = with(Driver { room, errno, ..roomy() }, &list);
                assert_eq!(answer, Err(PostError { accepted: room, cause }));
            }
        }
    }

    #[test]
    fn a_driver_that_names_no_bad_request_owns_them_all() {
        let silent = Driver { room: 2, errno: libc::EINVAL, names_bad: false, ..roomy() };
        let (answer, _) = with(silent, &[wr(1, 8), wr(2, 8), wr(3, 8)]);
        let error = PostError { accepted: 3, cause: PostCause::Device(libc::EINVAL) };
        assert_eq!(answer, Err(error));
    }
}
