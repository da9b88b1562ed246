//! RAW_PACKET queue pairs: Ethernet frames over a switch that joins all soft devices of the same
//! name on this machine.
//!
//! A post assembles a frame and hands it to the [`switch`]. The switch puts it into the inbox of
//! each queue pair with a rule for its destination. A poll takes the frame out of the inbox and
//! inspects it ([`frame`]). Inboxes and device discovery are those of datagrams
//! (`handles/datagram.rs`): inside the device a raw queue pair is a UD queue pair with an extra
//! part, so queue pairs of other types need no code for it.

mod filter;
mod flow;
mod frame;
mod hash;
mod packet;
pub(crate) mod rss;
pub(crate) mod state;
pub(crate) mod switch;
mod tso;
mod work_queue;

use std_alloc::boxed::Box;

use self::frame::{FRAME_MAX, HEADER, TAG};
use self::tso::{Place, Plan};
use self::work_queue::Queue;
use crate::device::nic::Nic;
use crate::model::buffers::{Pieces, Posted, Source, Target};
use crate::model::cq::{CompletionQueue, Sink};
use crate::provider::CreateFlags;
use crate::room::copy_into;
use crate::shm::copy::gather;
use crate::shm::inbox::BURST;
use crate::state::completion::error_wc;
use crate::state::qp::QpContext;
use crate::state::resources::Resources;
use crate::steps::admission::leaving;
use crate::wc::{Status, Wc, WcFlags, WcOpcode};
use crate::wr::{PostCause, SendOp, SendWr};

pub use self::flow::SoftFlow;
pub use self::rss::{SoftIndTable, SoftWq};
pub(crate) use self::state::Raw;

/// The longest header of a segmented send: room for two VLAN tags and all IP and TCP options.
pub const SEGMENT_HEADER_MAX: u16 = 256;

/// The largest payload of a segmented send.
const SEGMENTED_MAX: u64 = 1 << 18;

impl QpContext {
    /// True if work queues receive the frames of this queue pair.
    pub(crate) fn is_spread(&self) -> bool {
        let raw = self.datagrams.as_ref().and_then(|datagrams| datagrams.raw.as_ref());
        raw.is_some_and(|raw| raw.spread.is_some())
    }

    /// Sends one frame. The status tells only what happened on this side; nothing comes back from
    /// receivers.
    pub(crate) fn send_frame(&mut self, nic: &Nic, wr: &Posted<'_>) -> Status {
        let Some(pieces) = leaving(&nic.memory, self, wr) else { return Status::LocalProtection };
        let Some(raw) = self.datagrams.as_mut().and_then(|datagrams| datagrams.raw.as_mut()) else {
            return Status::LocalQpOperation;
        };
        let length = wr.length();
        if let SendOp::Tso(how) = wr.op {
            let cut = (wr.header(how), how.mss);
            return raw.send_segments(self.num, cut, &pieces, length);
        }
        if length < HEADER as u64 || length > FRAME_MAX as u64 {
            return Status::LocalLength;
        }
        gather(Target::of(&mut raw.frame[..]).part(0, length as u32), &pieces, 0);
        raw.deliver(self.num, length as usize);
        Status::Success
    }
}

impl Raw {
    /// Cuts a send into frames and sends them, each with that header and payload length.
    fn send_segments(
        &mut self,
        num: u32,
        (from, mss): (Source<'_>, u16),
        pieces: &Pieces,
        length: u64,
    ) -> Status {
        let header_len = from.length().min(SEGMENT_HEADER_MAX.into()) as usize;
        let mut header = [0; SEGMENT_HEADER_MAX as usize];
        let Some(header) = header.get_mut(..header_len) else { return Status::LocalLength };
        Target::of(header).copy(from);
        let Some(plan) = Plan::of(header) else { return Status::LocalQpOperation };
        let mss = usize::from(mss);
        if header_len + mss > FRAME_MAX || length > SEGMENTED_MAX {
            return Status::LocalLength;
        }
        let (mut place, length) = (Place { number: 0, offset: 0, last: false }, length as u32);
        while !place.last {
            let part = (length - place.offset).min(mss as u32);
            place.last = place.offset + part == length;
            let end = header_len + part as usize;
            copy_into(&mut self.frame[..], header);
            let to = Target::of(&mut self.frame[..]).part(header_len as u32, part);
            gather(to, pieces, place.offset);
            plan.finish(self.frame.get_mut(..end).unwrap_or_default(), place);
            self.deliver(num, end);
            place = Place { number: place.number + 1, offset: place.offset + part, ..place };
        }
        Status::Success
    }

    /// Hands the current frame to the switch.
    fn deliver(&mut self, num: u32, length: usize) {
        let length = self.padded(length).len();
        let frame = self.frame.get(..length).unwrap_or_default();
        let blocks = self.flags.contains(CreateFlags::BLOCK_SELF_MCAST_LB);
        let back = !blocks && frame::destination(frame).is_some_and(|to| to.is_group());
        let not_to = self.member.filter(|_| !back);
        self.switch.put(frame, num, not_to);
    }

    /// Puts a frame into the oldest receive of a work queue, as
    /// [`Resources::receive_frame`] does for a queue pair.
    fn receive_in(&mut self, queue: &Queue, length: usize, cqs: &mut [CompletionQueue]) {
        let (length, tag) = finish(&mut self.frame[..], length, self.flags | queue.flags);
        let Some(wr) = queue.first().filter(|wr| length <= wr.sge.length) else { return };
        queue.advance();
        let Some(to) = queue.buffer(&wr, length) else {
            queue.complete(cqs, error_wc(wr.wr_id, queue.num, Status::LocalProtection));
            queue.fail(cqs);
            return;
        };
        to.write(&self.frame[..]);
        queue.complete(cqs, recv_wc(wr.wr_id, queue.num, length, tag));
    }
}

impl Resources {
    /// Takes incoming frames of a RAW_PACKET queue pair. Returns true if there may be more.
    pub(crate) fn receive_frames<S: Sink>(
        &mut self,
        qp: &mut QpContext,
        mut raw: Box<Raw>,
        sink: &mut S,
    ) -> bool {
        let mut more = true;
        for _ in 0..BURST {
            let Some(datagrams) = &mut qp.datagrams else { break };
            if sink.room() == 0 {
                break;
            }
            let Some(stamp) = datagrams.inbox.first(self.nic.host.clock) else {
                more = false;
                break;
            };
            datagrams.inbox.fetch(Target::of(&mut raw.frame[..]).part(0, stamp.length));
            datagrams.inbox.advance();
            let frame = raw.frame.get(..stamp.length as usize).unwrap_or_default();
            if !qp.state.is_unreliable() || !switch::is_wanted(&raw.groups, frame) {
                continue;
            }
            match raw.spread.as_ref().map(|spread| spread.queue_of(frame)) {
                None => self.receive_frame(qp, &mut raw, stamp.length as usize, sink),
                Some(Some(queue)) => {
                    raw.receive_in(&queue, stamp.length as usize, self.completions.all())
                }
                Some(None) => {}
            }
        }
        if let Some(datagrams) = &mut qp.datagrams {
            datagrams.raw = Some(raw);
        }
        more
    }

    /// Puts a frame into the oldest receive, if that has room for it.
    fn receive_frame<S: Sink>(
        &mut self,
        qp: &mut QpContext,
        raw: &mut Raw,
        length: usize,
        sink: &mut S,
    ) {
        let (length, tag) = finish(&mut raw.frame[..], length, raw.flags);
        let fill = |_: &QpContext, to: Target<'_>| to.write(&raw.frame[..]);
        let Some(wr) = self.take_whole_receive(qp, length, sink, fill) else { return };
        let wc = recv_wc(wr.wr_id, qp.num, length, tag);
        self.completions.receive(qp.recv_cq, wc, false, sink);
    }
}

/// Refuses a segmented send with a longer header than the queue pair was created for (QX-7).
pub(crate) fn header_fits(qp: &QpContext, wr: &SendWr<'_>) -> Result<(), PostCause> {
    let SendOp::Tso(how) = wr.op else { return Ok(()) };
    let raw = qp.datagrams.as_ref().and_then(|datagrams| datagrams.raw.as_ref());
    match raw {
        Some(raw) if how.header_len <= raw.max_tso_header => Ok(()),
        _ => Err(PostCause::Malformed),
    }
}

/// Applies the create flags: appends the check sequence, strips the VLAN tag. Returns the received
/// length and the tag.
fn finish(frame: &mut [u8], length: usize, flags: CreateFlags) -> (u32, Option<u16>) {
    let mut end = length;
    if flags.contains(CreateFlags::SCATTER_FCS) {
        // The check sequence covers the frame as it was sent, tag included.
        let (sent, behind) = frame.split_at_mut_checked(length).unwrap_or_default();
        end += copy_into(behind, &frame::fcs(sent));
    }
    let strips = flags.contains(CreateFlags::CVLAN_STRIPPING);
    let tag = if strips { frame::take_tag(frame.get_mut(..end).unwrap_or_default()) } else { None };
    if tag.is_some() {
        end -= TAG;
    }
    (end as u32, tag)
}

/// The completion of a receive that holds a frame.
fn recv_wc(wr_id: u64, qp_num: u32, byte_len: u32, tag: Option<u16>) -> Wc {
    Wc {
        wr_id,
        qp_num,
        byte_len,
        imm: tag.unwrap_or(0).into(),
        vendor_err: 0,
        status: Status::Success,
        opcode: WcOpcode::Recv,
        flags: if tag.is_some() { WcFlags::CVLAN } else { WcFlags::empty() },
        src_qp: 0,
    }
}
