//! The gather list of a request.

use arrayvec::ArrayVec;

use crate::model::limits::SEND_SGE_MAX;
use crate::room::Room;
use crate::wr::Sge;

/// The pieces of one request.
pub(crate) type Pieces = ArrayVec<Sge, SEND_SGE_MAX>;

/// The pieces of a post, which has checked that they are not too many.
pub(crate) fn gathered(pieces: impl IntoIterator<Item = Sge>) -> Pieces {
    let mut list = Pieces::new();
    for piece in pieces {
        list.put(piece);
    }
    list
}
