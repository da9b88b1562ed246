//! Requests of an extended post (`ibv_wr_start` to `ibv_wr_complete`), as they are put together.

use doorbell_seam::wr::{Destination, SendFlags, SendOp, SendWr, Sge};

use crate::border::{ABSENT, Errno, INVALID};
use crate::requests::to_srq;

/// The requests of one queue pair.
#[derive(Default)]
pub(crate) struct Building {
    list: Vec<Request>,
    /// What was wrong first.
    wrong: Option<Errno>,
}

/// One request.
struct Request {
    wr_id: u64,
    flags: SendFlags,
    op: SendOp,
    pieces: Vec<Sge>,
    /// The bytes of an inline request, which may be gone when it is posted.
    inline: Vec<u8>,
}

impl Building {
    /// Begins anew.
    pub(crate) fn start(&mut self) {
        *self = Building::default();
    }

    /// One more request; `flags` are those of `ibv_send_flags`.
    pub(crate) fn add(&mut self, wr_id: u64, flags: u32, op: SendOp) {
        let flags = SendFlags::from_bits_truncate((flags & 0xf) as u8) - SendFlags::INLINE;
        let (pieces, inline) = (Vec::new(), Vec::new());
        self.list.push(Request { wr_id, flags, op, pieces, inline });
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
        self.last(|request| {
            request.pieces = pieces.to_vec();
            Ok(())
        });
    }

    /// Adds to its inline bytes.
    pub(crate) fn add_inline(&mut self, bytes: &[u8]) {
        self.last(|request| {
            request.flags |= SendFlags::INLINE;
            request.inline.extend_from_slice(bytes);
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

    /// Ends the building: the requests, as the device takes them, to that function.
    pub(crate) fn complete(
        &mut self,
        post: impl FnOnce(&[SendWr<'_>]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Building { list, wrong } = std::mem::take(self);
        wrong.map_or(Ok(()), Err)?;
        let requests: Vec<SendWr<'_>> = list.iter().map(Request::as_posted).collect();
        if requests.is_empty() { Ok(()) } else { post(&requests) }
    }
}

impl Request {
    fn as_posted(&self) -> SendWr<'_> {
        let (sge, more) = match self.pieces.split_first() {
            _ if self.flags.contains(SendFlags::INLINE) => (Sge::inline(&self.inline), &[][..]),
            Some((first, more)) => (*first, more),
            None => (Sge::default(), &[][..]),
        };
        SendWr { wr_id: self.wr_id, op: self.op, flags: self.flags, sge, more }
    }
}
