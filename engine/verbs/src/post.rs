//! Requests go to the driver: a list is one call, and so one doorbell.
#![expect(unsafe_code, reason = "the driver's functions are called with requests that name memory")]

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;

use crate::rdma_core::{ibv_bind_mw, ibv_mw_bind, ibv_recv_wr};

use super::posted::{cause_of, posted};
use super::qp::VerbsQp;
use super::rss::VerbsWq;
use super::send::{Sender, bind_info};
use super::srq::VerbsSrq;
use super::window::VerbsWindow;
use crate::error::SetupError;
use crate::provider::{Qp, QpCaps, Srq, Window, WindowKind, Wq, WqState};
use crate::wr::{Binding, PostCause, PostError, RecvWr, SendFlags, SendWr};

#[cfg(test)]
mod tests;

/// Receives handed to the driver in one call: the list is built on the stack.
const CHUNK: usize = 64;

// SAFETY: calls on a queue pair may be made from any thread; the other pointers are written anew by
// each post.
unsafe impl Send for Sender {}

/// Hands a list of sends to the driver: one linked list, one call, one doorbell.
///
/// # Safety
/// The queue pair of the sender is alive, on the device of its function; buffers as for `Qp::post`.
#[inline]
unsafe fn post_sends(sender: &mut Sender, list: &[SendWr<'_>]) -> Result<(), PostError> {
    let (count, refusal) = sender.link(list);
    if count > 0 {
        let first = sender.first();
        let mut bad = ptr::null_mut();
        // SAFETY: `link` has written `count` requests, each pointing to the next; the last now ends
        // the list. Pieces lie in the caller's slice or in the sender; the caller vouches for the
        // queue pair and the buffers.
        let answer = unsafe {
            (*first.add(count - 1)).next = ptr::null_mut();
            (sender.post_send)(sender.qp, first, &raw mut bad)
        };
        posted(answer, first, bad, count)?;
    }
    match refusal {
        None => Ok(()),
        Some(cause) => Err(PostError { accepted: count, cause }),
    }
}

/// Hands a slice of receives to the driver as linked lists, and counts what it took (PL-1).
#[inline]
fn post_chunks(
    list: &[RecvWr],
    mut post: impl FnMut(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> Result<(), PostError> {
    let mut raw = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; CHUNK];
    let first: *mut ibv_recv_wr = raw.as_mut_ptr().cast();
    let mut accepted = 0;
    for chunk in list.chunks(CHUNK) {
        for (index, wr) in chunk.iter().enumerate() {
            let last = index + 1 == chunk.len();
            raw[index].write(ibv_recv_wr {
                wr_id: wr.wr_id,
                next: if last { ptr::null_mut() } else { first.wrapping_add(index + 1) },
                sg_list: (&raw const wr.sge).cast_mut().cast(),
                num_sge: (wr.sge.length != 0).into(),
            });
        }
        let mut bad = ptr::null_mut();
        let answer = post(first, &raw mut bad);
        if let Err(refused) = posted(answer, first, bad, chunk.len()) {
            return Err(PostError { accepted: accepted + refused.accepted, ..refused });
        }
        accepted += chunk.len();
    }
    Ok(())
}

impl Qp for VerbsQp {
    fn num(&self) -> u32 {
        self.num
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    #[inline]
    unsafe fn post(&mut self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        if !self.takes_sends() {
            return match list {
                [] => Ok(()),
                _ => Err(PostError { accepted: 0, cause: PostCause::State }),
            };
        }
        // SAFETY: the queue pair lives until this value is dropped; the caller vouches for the
        // buffers.
        unsafe { post_sends(&mut self.sender, list) }
    }

    unsafe fn post_recv(&mut self, list: &[RecvWr]) -> Result<(), PostError> {
        if self.shared_queue {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        }
        let (post, qp) = (self.post_recv, self.qp.as_ptr());
        // SAFETY: the queue pair lives until this value is dropped, the chunk is a valid list,
        // and the caller vouches for the buffers.
        post_chunks(list, |first, bad| unsafe { post(qp, first, bad) })
    }

    fn fail(&mut self) {
        self.to_err();
    }

    fn recover(&mut self) {
        self.sqe_to_rts();
    }
}

impl Srq for VerbsSrq {
    fn depth(&self) -> u32 {
        self.room()
    }

    #[inline]
    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        let (post, srq) = (self.post, self.srq.as_ptr());
        // SAFETY: the queue lives while its handle does, the chunk is a valid list, and the
        // caller vouches for the buffers.
        post_chunks(list, |first, bad| unsafe { post(srq, first, bad) })
    }
}

impl Wq for VerbsWq {
    fn num(&self) -> u32 {
        self.wq.number()
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn modify(&self, to: WqState) -> Result<(), SetupError> {
        self.go_to(to)
    }

    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        let wq = self.wq.as_ptr();
        // SAFETY: the queue lives while its handle does; drivers fill the field when they make it.
        let Some(post) = (unsafe { (*wq).post_recv }) else {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        };
        // SAFETY: the chunk is a valid list, and the caller vouches for the buffers.
        post_chunks(list, |first, bad| unsafe { post(wq, first, bad) })
    }
}

impl Window for VerbsWindow {
    type Qp = VerbsQp;

    unsafe fn bind(
        &mut self,
        qp: &mut VerbsQp,
        binding: Binding,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<u32, PostError> {
        self.kind.check_bound_by_call()?;
        let refused = |cause| Err(PostError { accepted: 0, cause });
        if !qp.takes_sends() {
            return refused(PostCause::State);
        }
        let send_flags = flags.to_verbs();
        let mut bind = ibv_mw_bind { wr_id, send_flags, bind_info: bind_info(&binding) };
        // SAFETY: queue pair and window live until their values are dropped; the caller vouches
        // for the region.
        match unsafe { ibv_bind_mw(qp.as_ptr(), self.as_ptr(), &raw mut bind) } {
            0 => Ok(self.rkey()),
            answer => refused(cause_of(answer)),
        }
    }

    fn kind(&self) -> WindowKind {
        self.kind
    }
    fn rkey(&self) -> u32 {
        self.mw.rkey()
    }
    fn handle(&self) -> u64 {
        self.as_ptr() as u64
    }
    fn set_rkey(&mut self, rkey: u32) {
        self.mw.set_rkey(rkey);
    }
}
