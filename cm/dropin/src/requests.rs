//! Lists of requests: the pieces of one, and receives.
#![expect(unsafe_code, reason = "the C interface")]

use arrayvec::ArrayVec;
use doorbell_seam::wr::{PostError, RecvWr, SendOp, Sge, XrcOp};
use libc::c_int;

use crate::abi::{ibv_pd, ibv_recv_wr, ibv_sge};
use crate::border::{Errno, INVALID, object, quick_code};
use crate::memory::Pd;
use crate::scatter::{Owner, Scatter};

/// The requests that are passed to the device at once.
pub(crate) const STEP: usize = 16;

/// The pieces of a request of the program.
///
/// # Safety
/// There are as many as it says.
pub(crate) unsafe fn pieces<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], Errno> {
    let count = usize::try_from(count).map_err(|_| INVALID)?;
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as the caller says; both types have the same fields in the same places.
    Ok(unsafe { std::slice::from_raw_parts(list.cast::<Sge>(), count) })
}

/// The piece of a request that has one.
///
/// # Safety
/// As for [`pieces`].
#[inline(always)]
pub(crate) unsafe fn only_piece<'a>(list: *const ibv_sge, count: c_int) -> Option<&'a Sge> {
    if count != 1 {
        return None;
    }
    // SAFETY: as in `pieces`.
    unsafe { list.cast::<Sge>().as_ref() }
}

/// A copy of a piece, loaded field by field: a wide load would wait for the narrow stores by which
/// the program has just written it.
#[inline(always)]
pub(crate) fn by_field(piece: &Sge) -> Sge {
    // SAFETY: fields of a reference; volatile, or else the compiler joins the loads.
    unsafe {
        let length = (&raw const piece.length).read_volatile();
        let lkey = (&raw const piece.lkey).read_volatile();
        Sge { addr: piece.addr, length, lkey }
    }
}

/// Runs a call on a list of requests, which moves the pointer on. If it fails, the program learns
/// the first request that was not taken.
///
/// # Safety
/// `bad` is NULL or has room for a pointer.
pub(crate) unsafe fn on_list<T>(
    first: *mut T,
    bad: *mut *mut T,
    call: impl FnOnce(&mut *mut T) -> Result<(), Errno>,
) -> c_int {
    let mut next = first;
    let result = quick_code(|| call(&mut next));
    if result != 0 && !bad.is_null() {
        // SAFETY: as the caller says.
        unsafe { bad.write(next) };
    }
    result
}

/// A receive queue of the program: what its receives need beside a call of the device.
pub(crate) struct Queue<'a> {
    /// The protection domain of its receives.
    pub(crate) pd: *mut ibv_pd,
    pub(crate) scatter: &'a Scatter,
    pub(crate) owner: Owner,
    /// The pieces that a receive may have.
    pub(crate) pieces_max: u32,
}

/// Receives, as the device takes them: the receives made, and what is wrong with the one behind.
struct Receives {
    list: ArrayVec<RecvWr, STEP>,
    wrong: Result<(), Errno>,
}

/// A list of one receive of one piece, the commonest: it is loaded where the device stores it.
pub(crate) struct Only<'a> {
    wr: &'a ibv_recv_wr,
    piece: &'a Sge,
}

impl<'a> Only<'a> {
    /// `None`: it is another list.
    ///
    /// # Safety
    /// The list is the program's.
    #[inline(always)]
    pub(crate) unsafe fn of(list: *mut ibv_recv_wr) -> Option<Only<'a>> {
        // SAFETY: as the caller says.
        unsafe {
            let wr = list.as_ref().filter(|wr| wr.next.is_null())?;
            let piece = only_piece(wr.sg_list, wr.num_sge)?;
            Some(Only { wr, piece })
        }
    }

    #[inline(always)]
    pub(crate) fn receive(&self) -> RecvWr {
        RecvWr { wr_id: self.wr.wr_id, sge: by_field(self.piece) }
    }
}

impl Queue<'_> {
    /// The next receives of a list.
    ///
    /// # Safety
    /// The list is the program's.
    unsafe fn receives(&self, mut next: *mut ibv_recv_wr) -> Receives {
        let mut list = ArrayVec::new();
        // SAFETY: the program's list, each request of which names the next.
        while let Some(wr) = unsafe { next.as_ref() }.filter(|_| !list.is_full()) {
            // SAFETY: as above.
            match unsafe { self.receive(wr) } {
                Ok(receive) => list.push(receive),
                Err(errno) => return Receives { list, wrong: Err(errno) },
            }
            next = wr.next;
        }
        Receives { list, wrong: Ok(()) }
    }

    /// One receive, as the device takes it.
    ///
    /// # Safety
    /// It is the program's, as the protection domain is.
    unsafe fn receive(&self, wr: &ibv_recv_wr) -> Result<RecvWr, Errno> {
        // SAFETY: as the caller says.
        let pieces = unsafe { pieces(wr.sg_list, wr.num_sge) }?;
        let sge = match pieces {
            [] => Sge::default(),
            [one] => *one,
            many if many.len() > self.pieces_max as usize => return Err(INVALID),
            many => {
                // SAFETY: as the caller says.
                let device = unsafe { &object::<Pd>(self.pd)?.own.device };
                return self.scatter.begin(device, self.owner, wr.wr_id, many);
            }
        };
        Ok(RecvWr { wr_id: wr.wr_id, sge })
    }

    /// Posts any list of receives by that call, some at a time. `next` is left at the first that
    /// was not taken.
    ///
    /// # Safety
    /// As for [`Queue::receives`].
    #[inline(never)]
    pub(crate) unsafe fn post(
        &self,
        next: &mut *mut ibv_recv_wr,
        mut post: impl FnMut(&[RecvWr]) -> Result<(), PostError>,
    ) -> Result<(), Errno> {
        while !next.is_null() {
            // SAFETY: as the caller says.
            let Receives { list, wrong } = unsafe { self.receives(*next) };
            let posted = if list.is_empty() { Ok(()) } else { post(&list) };
            let accepted = posted.map_or_else(|error| error.accepted, |()| list.len());
            for _ in 0..accepted {
                // SAFETY: as above.
                *next = unsafe { (**next).next };
            }
            for refused in list.iter().skip(accepted) {
                self.scatter.cancel(refused.wr_id);
            }
            posted.map_err(|PostError { cause, .. }| Errno::from(cause))?;
            wrong?;
        }
        Ok(())
    }
}

/// The same request, to a shared receive queue; requests that name none stay.
pub(crate) fn to_srq(op: SendOp, srq: u32) -> SendOp {
    let op = match op {
        SendOp::Send => XrcOp::Send,
        SendOp::SendWithImm(imm) => XrcOp::SendWithImm(imm),
        SendOp::SendWithInv(key) => XrcOp::SendWithInv(key),
        SendOp::Write(at) => XrcOp::Write(at),
        SendOp::WriteWithImm(at, imm) => XrcOp::WriteWithImm(at, imm),
        SendOp::Read(at) => XrcOp::Read(at),
        SendOp::CompareSwap { at, compare, swap } => XrcOp::CompareSwap { at, compare, swap },
        SendOp::FetchAdd { at, add } => XrcOp::FetchAdd { at, add },
        other => return other,
    };
    SendOp::Xrc { srq, op }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_keeps_its_operands() {
        let at = doorbell_seam::wr::Remote { addr: 1, rkey: 2 };
        let all = [
            SendOp::Send,
            SendOp::SendWithImm(3),
            SendOp::SendWithInv(3),
            SendOp::Write(at),
            SendOp::WriteWithImm(at, 3),
            SendOp::Read(at),
            SendOp::CompareSwap { at, compare: 3, swap: 4 },
            SendOp::FetchAdd { at, add: 3 },
        ];
        for plain in all {
            let SendOp::Xrc { srq: 7, op } = to_srq(plain, 7) else { panic!("{plain:?}") };
            assert_eq!(op.plain(), plain);
        }
        assert_eq!(to_srq(SendOp::LocalInv(5), 7), SendOp::LocalInv(5));
    }
}
