//! Posting sends and receives.
#![expect(unsafe_code, reason = "the C interface")]

use std::slice;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use doorbell_fabric::QpState;
use doorbell_seam::provider::{AddressHandle, Qp as _, QpType};
use doorbell_seam::wr::{Destination, PostError, Remote, SendFlags, SendOp, SendWr, Sge};
use libc::c_int;

use crate::abi::{ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr};
use crate::ah::Ah;
use crate::border::{ABSENT, Errno, INVALID, Object, called, object, quick_code};
use crate::qp::{Qp, qp_at, takes_receives};
use crate::requests::{Only, STEP, by_field, on_list, only_piece, pieces, to_srq};
use crate::window;

/// The opcode of a plain SEND (`IBV_WR_SEND`).
const SEND: c_int = 2;

/// The operation of a request.
///
/// # Safety
/// The request is the program's.
unsafe fn operation(wr: &ibv_send_wr, kind: QpType) -> Result<SendOp, Errno> {
    let imm = u32::from_be(wr.imm_data);
    if kind == QpType::Ud {
        // SAFETY: requests of UD queue pairs name a destination.
        let to = unsafe {
            let ud = wr.wr.ud;
            let ah = object::<Ah>(ud.ah)?.own.ah.name();
            Destination { ah, qpn: ud.remote_qpn, qkey: ud.remote_qkey }
        };
        return match wr.opcode {
            SEND => Ok(SendOp::SendTo(to)),
            3 => Ok(SendOp::SendToWithImm(to, imm)),
            _ => Err(INVALID),
        };
    }
    // SAFETY: numbers, whichever of the two it is.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
    let at = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
    let op = match wr.opcode {
        0 => SendOp::Write(remote),
        1 => SendOp::WriteWithImm(remote, imm),
        SEND => SendOp::Send,
        3 => SendOp::SendWithImm(imm),
        4 => SendOp::Read(remote),
        5 => SendOp::CompareSwap { at, compare: atomic.compare_add, swap: atomic.swap },
        6 => SendOp::FetchAdd { at, add: atomic.compare_add },
        7 => SendOp::LocalInv(wr.imm_data),
        // SAFETY: such a request names a window and a region of the program.
        8 => unsafe { window::bind(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info) }?,
        9 => SendOp::SendWithInv(wr.imm_data),
        10 | 15 => return Err(ABSENT),
        _ => return Err(INVALID),
    };
    Ok(if kind == QpType::XrcSend { to_srq(op, wr.remote_srqn) } else { op })
}

/// A request, as the device takes it.
///
/// # Safety
/// As for [`operation`].
#[inline(always)]
unsafe fn request<'a>(wr: &ibv_send_wr, kind: QpType) -> Result<SendWr<'a>, Errno> {
    // SAFETY: as the caller says.
    let (op, pieces) = unsafe { (operation(wr, kind)?, pieces(wr.sg_list, wr.num_sge)?) };
    let (sge, more) = match pieces.split_first() {
        Some((first, more)) => (*first, more),
        None => (Sge::default(), [].as_slice()),
    };
    Ok(SendWr { wr_id: wr.wr_id, op, flags: flags(wr), sge, more })
}

/// The flags of a request: the bits are those of the device; checksums are its own business.
#[inline(always)]
fn flags(wr: &ibv_send_wr) -> SendFlags {
    SendFlags::from_bits_truncate((wr.send_flags & 0xf) as u8)
}

/// How long a datagram waits for a receiver that does not take those before it.
const ROOM_LIMIT: Duration = Duration::from_millis(50);

/// Waits until the receiver of a datagram has room for it. A NIC puts datagrams into receives while
/// the receiver's program does something else; here that program must poll, and would miss what is
/// sent too fast for it. A receiver that has taken nothing in that time is not waited for again.
fn wait_for_room(qp: &Qp, wr: &SendWr<'_>) {
    // SAFETY: the program keeps the address handle.
    let has_room = || unsafe { doorbell_soft::has_room(wr) };
    if has_room() {
        return qp.deaf.store(false, Ordering::Relaxed);
    }
    let until = Instant::now() + ROOM_LIMIT;
    while !qp.deaf.load(Ordering::Relaxed) && !has_room() {
        // The receiver may wait for datagrams of this process.
        qp.progress().work();
        std::thread::yield_now();
        qp.deaf.store(Instant::now() >= until, Ordering::Relaxed);
    }
}

/// Passes requests to the device.
///
/// # Safety
/// The program keeps buffers and address handles until the requests have completed.
pub(crate) unsafe fn post_list(qp: &Qp, list: &[SendWr<'_>]) -> Result<(), PostError> {
    if list.is_empty() {
        return Ok(());
    }
    if qp.kind() != QpType::Ud {
        // SAFETY: as the caller says; the queue pair is alive.
        return unsafe { qp.sends.post(list) };
    }
    for (accepted, wr) in list.iter().enumerate() {
        wait_for_room(qp, wr);
        // SAFETY: as above.
        let posted = unsafe { qp.sends.post(slice::from_ref(wr)) };
        posted.map_err(|error| PostError { accepted, ..error })?;
    }
    Ok(())
}

/// `post_send` of a context.
pub(crate) unsafe extern "C" fn post_send(
    at: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program's queue pair and list; it keeps the buffers, by the contract of
    // `ibv_post_send`.
    unsafe {
        if let Ok(qp) = called::<Qp>(at.cast())
            && qp.own.takes_sends()
            && let Some(plain) = Plain::of(&qp.own, first)
            && qp.own.sends.post_short(|| plain.send())
        {
            return if qp.own.may_attend_post() { attend_post(qp) } else { 0 };
        }
        send_any(at, first, bad)
    }
}

/// The rest of [`post_send`] after a post, if something may be left to do.
#[cold]
#[inline(never)]
extern "C" fn attend_post(qp: &Object<Qp>) -> c_int {
    quick_code(|| {
        qp.own.after_post();
        Ok(())
    })
}

/// The rest of [`post_send`]. It is a function of its own, in tail position, so that the commonest
/// send keeps nothing over a call.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe extern "C" fn send_any(
    at: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        on_list(first, bad, |next| {
            let qp = &qp_at(at)?.own;
            if !qp.takes_sends() {
                return Err(INVALID);
            }
            let posted = match Plain::of(qp, *next) {
                Some(plain) => qp.sends.post_one(|| plain.send()).map_err(Errno::from),
                None => post_any(qp, next),
            };
            // Also after a refusal: the requests before it were posted.
            qp.after_post();
            posted
        })
    }
}

/// A list of one SEND of one piece on an RC queue pair, the commonest: it is loaded where the
/// device needs it.
struct Plain<'a> {
    wr: &'a ibv_send_wr,
    piece: &'a Sge,
}

impl<'a> Plain<'a> {
    /// `None`: it is another list.
    ///
    /// # Safety
    /// The list is the program's.
    #[inline(always)]
    unsafe fn of(qp: &Qp, list: *mut ibv_send_wr) -> Option<Plain<'a>> {
        // SAFETY: as the caller says.
        unsafe {
            let wr = list.as_ref()?;
            if wr.opcode != SEND || !wr.next.is_null() || qp.kind() != QpType::Rc {
                return None;
            }
            Some(Plain { wr, piece: only_piece(wr.sg_list, wr.num_sge)? })
        }
    }

    #[inline(always)]
    fn send(&self) -> SendWr<'static> {
        let (wr_id, flags, sge) = (self.wr.wr_id, flags(self.wr), by_field(self.piece));
        SendWr { wr_id, op: SendOp::Send, flags, sge, more: &[] }
    }
}

/// Posts any list of requests. `next` is left at the first that was not taken.
///
/// # Safety
/// As for [`post_list`]; the list is the program's.
#[inline(never)]
unsafe fn post_any(qp: &Qp, next: &mut *mut ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    unsafe {
        match next.as_ref().filter(|wr| wr.next.is_null()) {
            Some(wr) => Ok(post_list(qp, &[request(wr, qp.kind())?])?),
            None => post_many(qp, next),
        }
    }
}

/// Posts a list of several requests, `STEP` at a time.
///
/// # Safety
/// As for [`post_any`].
unsafe fn post_many(qp: &Qp, next: &mut *mut ibv_send_wr) -> Result<(), Errno> {
    while !next.is_null() {
        let mut list = ArrayVec::<SendWr<'_>, STEP>::new();
        let mut wrong = Ok(());
        let mut end = *next;
        // SAFETY: the program's list, each request of which names the next.
        while let Some(wr) = unsafe { end.as_ref() }.filter(|_| !list.is_full()) {
            // SAFETY: as above.
            match unsafe { request(wr, qp.kind()) } {
                Ok(made) => list.push(made),
                Err(errno) => {
                    wrong = Err(errno);
                    break;
                }
            }
            end = wr.next;
        }
        // SAFETY: as the caller says.
        let posted = unsafe { post_list(qp, &list) };
        let accepted = posted.map_or_else(|error| error.accepted, |()| list.len());
        for _ in 0..accepted {
            // SAFETY: as above.
            *next = unsafe { (**next).next };
        }
        posted.map_err(|PostError { cause, .. }| Errno::from(cause))?;
        wrong?;
    }
    Ok(())
}

/// `post_recv` of a context.
pub(crate) unsafe extern "C" fn post_recv(
    at: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program's queue pair and list; it keeps the buffers, by the contract of
    // `ibv_post_recv`. The receive queue is that of the queue pair as long as that takes receives.
    unsafe {
        if let Ok(qp) = called::<Qp>(at.cast())
            && let Some(only) = Only::of(first)
            && let Some(receives) = &qp.own.receives
            && receives.post_one(|| qp.own.takes_receives(), || only.receive())
        {
            return 0;
        }
        receive_any(at, first, bad)
    }
}

/// The rest of [`post_recv`]. It is a function of its own, in tail position, so that the commonest
/// receive saves no registers.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe extern "C" fn receive_any(
    at: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        on_list(first, bad, |next| {
            let qp = &qp_at(at)?.own;
            if receive_one(qp, *next) { Ok(()) } else { receive_many(qp, (*at).pd, next) }
        })
    }
}

/// Posts a list of one receive of one piece, the commonest. False: it is another list, or the queue
/// pair is in RESET or ERR, or something stands in its way. Nothing was done then, and
/// [`receive_many`] posts it.
///
/// # Safety
/// As for [`receive_many`].
#[inline(always)]
unsafe fn receive_one(qp: &Qp, list: *mut ibv_recv_wr) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let Some(only) = Only::of(list) else { return false };
        let mut inner = qp.inner.lock();
        takes_receives(inner.state) && inner.qp.post_one_recv(|| only.receive())
    }
}

/// Posts any list of receives. `next` is left at the first that was not taken.
///
/// # Safety
/// The list is the program's, as the protection domain is; the program keeps the buffers until the
/// receives have completed.
#[inline(never)]
unsafe fn receive_many(qp: &Qp, pd: *mut ibv_pd, next: &mut *mut ibv_recv_wr) -> Result<(), Errno> {
    let mut inner = qp.inner.lock();
    if inner.state == QpState::Reset {
        return Err(INVALID);
    }
    // SAFETY: as the caller says.
    unsafe { qp.queue(pd).post(next, |list| inner.qp.post_recv(list)) }?;
    if inner.state == QpState::Err {
        drop(inner);
        qp.progress().posted();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::border::zeroed;

    #[test]
    fn immediate_data_is_in_network_byte_order_and_a_key_is_not() {
        let made = |opcode, imm_data| {
            let wr = ibv_send_wr { opcode, imm_data, ..zeroed() };
            // SAFETY: requests of this type name no objects.
            unsafe { operation(&wr, QpType::Rc) }
        };
        assert_eq!(made(3, 5_u32.to_be()), Ok(SendOp::SendWithImm(5)));
        assert_eq!(made(9, 5), Ok(SendOp::SendWithInv(5)));
        assert_eq!(made(8, 0), Err(INVALID), "no window");
        assert_eq!(made(10, 0), Err(ABSENT));
        assert_eq!(made(77, 0), Err(INVALID));
    }
}
