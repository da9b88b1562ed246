//! Send requests, and the completions that they return.

use std::time::{Duration, Instant};
use std::{fmt, thread};

use doorbell_fabric::{CmError, Fabric};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Provider, WcEx};
use doorbell_seam::wc::{Status, Wc, WcFlags, WcOpcode};
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::buffer::Buffer;
use crate::error::{PostFailed, Refused};

/// How long a wait sleeps between polls.
const NAP: Duration = Duration::from_micros(50);

/// Polls until something comes, at most for `limit`.
pub(crate) fn wait_for<T>(
    limit: Duration,
    asked: impl FnOnce() -> String,
    mut poll: impl FnMut() -> Option<T>,
) -> Result<T, CmError> {
    let end = Instant::now().checked_add(limit);
    loop {
        if let Some(found) = poll() {
            return Ok(found);
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            let answer = format!("none came within {limit:?}");
            return Err(CmError::new(Code::TimedOut, asked(), answer)
                .cure("a receive needs a peer that sends; a send may need a receive at the peer"));
        }
        thread::sleep(NAP);
    }
}

/// A send to be posted.
pub struct SendRequest<F: Fabric> {
    /// Its beginning holds the payload, or receives what is read.
    pub buffer: Buffer<F>,
    /// Bytes to send, to write or to read; 8 for an atomic.
    pub len: usize,
    /// The operation.
    pub op: SendOp,
    /// Signalling, inline, fence, solicited.
    pub flags: SendFlags,
}

impl<F: Fabric> SendRequest<F> {
    /// Posts this request alone, by a function that posts a list. If it refuses, the buffer comes
    /// back.
    pub(crate) fn post_by(
        self,
        post: impl FnOnce(&mut Vec<Self>) -> Result<(), PostFailed>,
    ) -> Result<(), Refused<Buffer<F>>> {
        let mut list = vec![self];
        post(&mut list).map_err(|failed| Refused {
            cause: failed.cause,
            back: list.pop().map(|request| request.buffer),
        })
    }
}

impl<F: Fabric> fmt::Debug for SendRequest<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRequest")
            .field("buffer", &self.buffer)
            .field("len", &self.len)
            .field("op", &self.op)
            .field("flags", &self.flags)
            .finish()
    }
}

/// A request that has ended.
pub struct Completion<P: Provider> {
    /// How it ended.
    pub status: Status,
    /// What it was; undefined on an error (CP-1).
    pub opcode: WcOpcode,
    /// The vendor's code for an error.
    pub vendor_err: u32,
    /// The posted buffer; `None` for an inline payload.
    pub buffer: Option<Buffer<P>>,
    /// Bytes received or read, or written by the peer's WRITE with immediate data; 0 for sends
    /// and WRITEs and on an error (CP-1, CP-2).
    pub len: usize,
    /// Immediate data of the sender.
    pub imm: Option<u32>,
    /// The sender's queue pair, of a datagram received.
    pub src_qp: u32,
    /// True if the buffer begins with the header of a datagram.
    pub(crate) with_header: bool,
    /// The key of our window that the message has invalidated (RC-5).
    pub invalidated: Option<u32>,
    /// The VLAN tag that was removed from a frame (QX-6); never present on the verbs device, whose
    /// completions of this kind do not carry it.
    pub vlan_tag: Option<u16>,
    /// On an extended completion queue, all fields that the queue was asked for
    /// ([`crate::CompletionQueue::with`]).
    pub extended: Option<Box<WcEx>>,
}

impl<P: Provider> Completion<P> {
    /// The bytes received or read; empty for a WRITE, which leaves the buffer untouched (RC-4).
    pub fn bytes(&self) -> &[u8] {
        if self.opcode == WcOpcode::RecvWriteWithImm {
            return &[];
        }
        self.buffer.as_deref().and_then(|buffer| buffer.get(..self.len)).unwrap_or(&[])
    }

    /// Returns the completion itself if it succeeded.
    ///
    /// # Errors
    /// `Errno(EIO)` with the status, its meaning and what to do.
    pub fn ok(self) -> Result<Completion<P>, CmError> {
        if self.status.is_ok() {
            return Ok(self);
        }
        let answer = format!("{} (vendor error {})", self.status, self.vendor_err);
        Err(CmError::new(Code::Errno(5), "carry out a posted request", answer))
    }
}

impl<P: Provider> fmt::Debug for Completion<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("status", &self.status)
            .field("opcode", &self.opcode)
            .field("vendor_err", &self.vendor_err)
            .field("buffer", &self.buffer)
            .field("len", &self.len)
            .field("imm", &self.imm)
            .field("src_qp", &self.src_qp)
            .field("invalidated", &self.invalidated)
            .field("vlan_tag", &self.vlan_tag)
            .field("extended", &self.extended)
            .finish()
    }
}

/// A completion that was polled.
pub(crate) struct Polled {
    pub(crate) wc: Wc,
    /// The same, of an extended queue.
    pub(crate) extended: Option<Box<WcEx>>,
}

pub(crate) fn completion<P: Provider>(polled: Polled, buffer: Option<Buffer<P>>) -> Completion<P> {
    let Polled { wc, extended } = polled;
    let room = buffer.as_ref().map_or(0, |buffer| buffer.len());
    let len = match wc.opcode {
        _ if !wc.status.is_ok() => 0,
        // The length counts what the peer wrote elsewhere.
        WcOpcode::RecvWriteWithImm => wc.byte_len as usize,
        // Never trust a length beyond the buffer that the device was given.
        WcOpcode::Recv | WcOpcode::Read => (wc.byte_len as usize).min(room),
        WcOpcode::CompareSwap | WcOpcode::FetchAdd => room.min(8),
        _ => 0,
    };
    let word = |flag| (wc.status.is_ok() && wc.flags.contains(flag)).then_some(wc.imm);
    Completion {
        src_qp: if wc.status.is_ok() { wc.src_qp } else { 0 },
        with_header: wc.status.is_ok() && wc.flags.contains(WcFlags::GRH),
        status: wc.status,
        opcode: wc.opcode,
        vendor_err: wc.vendor_err,
        len,
        imm: word(WcFlags::WITH_IMM),
        invalidated: word(WcFlags::WITH_INV),
        vlan_tag: word(WcFlags::CVLAN).map(|tag| tag as u16),
        buffer,
        extended,
    }
}
