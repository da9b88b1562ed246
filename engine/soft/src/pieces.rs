//! The gather list of a request.
#![expect(unsafe_code, reason = "copies from the poster's buffers")]

use arrayvec::ArrayVec;

use super::copy;
use super::limits::SEND_SGE_MAX;
use crate::room::Room;
use crate::wr::Sge;

/// The pieces of one request.
pub(super) type Pieces = ArrayVec<Sge, SEND_SGE_MAX>;

/// The pieces of a post, which has checked that they are not too many.
pub(super) fn gathered(pieces: impl IntoIterator<Item = Sge>) -> Pieces {
    let mut list = Pieces::new();
    for piece in pieces {
        list.put(piece);
    }
    list
}

/// Copies bytes `from .. from + length` of a gather list.
///
/// # Safety
/// The pieces are readable and hold that many bytes; `to` is writable for `length` bytes.
pub(super) unsafe fn gather(mut to: *mut u8, pieces: &[Sge], mut from: u32, mut length: u32) {
    for piece in pieces {
        if from >= piece.length {
            from -= piece.length;
            continue;
        }
        let some = (piece.length - from).min(length);
        // SAFETY: inside the piece, and inside the `length` bytes of `to` still to be filled.
        unsafe {
            copy::untrusted(to, (piece.addr as *const u8).add(from as usize), some as usize);
            to = to.add(some as usize);
        }
        length -= some;
        from = 0;
    }
}
