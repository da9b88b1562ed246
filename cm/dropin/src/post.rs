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

use crate::abi::{ibv_qp, ibv_recv_wr, ibv_send_wr};
use crate::ah::Ah;
use crate::border::{ABSENT, Errno, INVALID, object};
use crate::memory::Pd;
use crate::qp::{Inner, Qp, qp_at};
use crate::requests::{STEP, on_list, pieces, to_srq};
use crate::window;

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
            2 => Ok(SendOp::SendTo(to)),
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
        2 => SendOp::Send,
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
    // The bits are those of the device; checksums are its own business.
    let flags = SendFlags::from_bits_truncate((wr.send_flags & 0xf) as u8);
    Ok(SendWr { wr_id: wr.wr_id, op, flags, sge, more })
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
#[inline]
pub(crate) unsafe fn post_list(
    qp: &Qp,
    inner: &mut Inner,
    list: &[SendWr<'_>],
) -> Result<(), PostError> {
    if list.is_empty() {
        return Ok(());
    }
    if qp.kind() != QpType::Ud {
        // SAFETY: as the caller says; all queues are shared.
        return unsafe { inner.qp.post(list) };
    }
    for (accepted, wr) in list.iter().enumerate() {
        wait_for_room(qp, wr);
        // SAFETY: as above.
        let posted = unsafe { inner.qp.post(slice::from_ref(wr)) };
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
        on_list(first, bad, |next| {
            let qp = qp_at(at)?;
            let mut inner = qp.own.inner.lock();
            inner.may_send()?;
            let posted = match next.as_ref().filter(|wr| wr.next.is_null()) {
                Some(wr) => {
                    let made = request(wr, qp.own.kind())?;
                    post_list(&qp.own, &mut inner, slice::from_ref(&made))
                        .map_err(|PostError { cause, .. }| Errno::from(cause))
                }
                None => post_many(&qp.own, &mut inner, next),
            };
            // Also after a refusal: the requests before it were posted.
            qp.own.after_post(inner);
            posted
        })
    }
}

/// Posts a list of requests, some at a time. `next` is left at the first that was not taken.
///
/// # Safety
/// As for [`post_list`]; the list is the program's.
#[inline(never)]
unsafe fn post_many(qp: &Qp, inner: &mut Inner, next: &mut *mut ibv_send_wr) -> Result<(), Errno> {
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
        let posted = unsafe { post_list(qp, inner, &list) };
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
    // `ibv_post_recv`.
    unsafe {
        on_list(first, bad, |next| {
            let qp = qp_at(at)?;
            let mut inner = qp.own.inner.lock();
            if inner.state == QpState::Reset {
                return Err(INVALID);
            }
            let queue = qp.own.queue(&object::<Pd>((*at).pd)?.own.device);
            queue.post(next, |list| inner.qp.post_recv(list))?;
            if inner.state == QpState::Err {
                drop(inner);
                qp.own.progress().posted();
            }
            Ok(())
        })
    }
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
