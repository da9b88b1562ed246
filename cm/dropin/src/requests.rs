//! Lists of requests: the pieces of one, and receives.
#![expect(unsafe_code, reason = "the C interface")]

use arrayvec::ArrayVec;
use doorbell_seam::wr::{PostError, RecvWr, Sge};
use libc::c_int;

use crate::abi::{ibv_recv_wr, ibv_sge};
use crate::border::{Errno, INVALID};

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

/// Receives, as the device takes them: the receives made, the first that was not looked at, and
/// what is wrong with that.
struct Receives {
    list: ArrayVec<RecvWr, STEP>,
    wrong: Result<(), Errno>,
}

/// The next receives of a list.
///
/// # Safety
/// The list is the program's.
unsafe fn receives(mut next: *mut ibv_recv_wr) -> Receives {
    let mut list = ArrayVec::new();
    // SAFETY: the program's list, each request of which names the next.
    while let Some(wr) = unsafe { next.as_ref() }.filter(|_| !list.is_full()) {
        // SAFETY: as above.
        let sge = match unsafe { pieces(wr.sg_list, wr.num_sge) } {
            Ok([]) => Sge::default(),
            Ok([one]) => *one,
            // The device fills one piece.
            _ => return Receives { list, wrong: Err(INVALID) },
        };
        list.push(RecvWr { wr_id: wr.wr_id, sge });
        next = wr.next;
    }
    Receives { list, wrong: Ok(()) }
}

/// Posts a list of receives, by a call for some at a time. `next` is left at the first that was not
/// taken.
///
/// # Safety
/// As for [`receives`].
pub(crate) unsafe fn post_receives(
    next: &mut *mut ibv_recv_wr,
    mut post: impl FnMut(&[RecvWr]) -> Result<(), PostError>,
) -> Result<(), Errno> {
    while !next.is_null() {
        // SAFETY: as the caller says.
        let Receives { list, wrong } = unsafe { receives(*next) };
        let posted = if list.is_empty() { Ok(()) } else { post(&list) };
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
