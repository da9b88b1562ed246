//! A queue pair inside the device: its state and its part of each data-plane component.

use std_alloc::boxed::Box;

use crate::device::host::Member;
use crate::ext::raw::state::Raw;
use crate::ext::xrc_part::XrcPart;
use crate::model::pd::{PdMark, Who};
use crate::model::reads::Reads;
use crate::model::send_queue::SendQueue;
use crate::provider::{Access, QpCaps, QpType};
use crate::shm::inbox::Inbox;
use crate::shm::layout::{Header, KIND_SEND, KIND_WRITE, RecordFlags};
use crate::shm::ring::Until;
use crate::state::again::Again;
use crate::state::link::{CLOSED, Link};
use crate::state::place::Pointer;
use crate::wc::Status;
use crate::wr::RecvWr;

/// The states this device passes through (SM-7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Takes receives; nothing moves yet.
    Init,
    /// Both directions work, and the peer acknowledges the messages it takes (RC).
    Rts,
    /// Both directions work, and senders do not learn the fate of a send (UC, UD in RTS).
    Unreliable,
    /// As `Unreliable`, but a send has failed here: sends are flushed until the owner recovers the
    /// queue pair (SQE).
    Sqe,
    /// Everything outstanding is flushed.
    Err,
}

impl State {
    /// True if messages come in and their senders do not learn their fate.
    pub(crate) fn is_unreliable(self) -> bool {
        matches!(self, State::Unreliable | State::Sqe)
    }

    /// True if waiting requests may be written to the wire.
    pub(crate) fn sends(self) -> bool {
        matches!(self, State::Rts | State::Unreliable)
    }
}

/// How a peer has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Gone {
    /// It has ended the connection, and takes no more sends. As for [`Gone::Left`], but it may
    /// still wait for answers to its READs.
    HungUp,
    /// It has left. Without sends on their way the queue pair stays as it is: nobody tells a device
    /// whose peer is silent that it is gone.
    Left,
    /// It is known to be lost: the queue pair fails in any case.
    Lost,
}

/// An incoming message of several fragments.
#[derive(Clone, Copy)]
pub(crate) struct Assembly {
    pub(crate) wr: RecvWr,
    pub(crate) received: u32,
}

/// The statuses of a refusal: that of the receive which the record would use, if it would use one,
/// and that of the peer's request.
pub(crate) type Refusing = (Option<Status>, Status);

/// The incoming message of an unreliable queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// No message, or one that is being dropped.
    Nothing,
    /// A SEND.
    Send,
    /// This many bytes of a WRITE.
    Write(u32),
}

/// The extra part of a UD or RAW_PACKET queue pair.
pub(crate) struct Datagrams {
    pub(crate) inbox: Inbox,
    /// The index of the inbox in the device's table, if peers can find it there.
    pub(crate) place: Option<usize>,
    /// The key that senders must give.
    pub(crate) qkey: u32,
    /// This queue pair itself, if its sends to groups must not come back to it.
    pub(crate) not_to: Option<Member>,
    /// The extra part of a RAW_PACKET queue pair.
    pub(crate) raw: Option<Box<Raw>>,
}

/// A queue pair. Indexes count requests since creation and wrap.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C, align(64))]
pub(crate) struct QpContext {
    /// Space that plain messages may use without further checks.
    pub(crate) reserved: Reserved,
    /// Its last short send.
    pub(crate) again: Again,
    /// The bits that the headers of all its whole messages have in common; set when connected.
    pub(crate) common: u64,
    pub(crate) sq: SendQueue,
    /// The index of the link from which whole messages may be taken without further checks: `link`
    /// in RTS with no message half received, `CLOSED` otherwise.
    pub(crate) open_on: usize,
    pub(crate) recv_cq: usize,
    /// The index of its link in the domain, and the peer's number; set when connected.
    pub(crate) link: usize,
    pub(crate) peer: u32,
    pub(crate) num: u32,
    pub(crate) kind: QpType,
    pub(crate) signal_all: bool,
    pub(crate) state: State,
    /// Its word in the device's table, without rights, while peers may use memory through it; 0
    /// otherwise.
    pub(crate) word: u64,
    /// The protection domain it belongs to.
    pub(crate) pd: PdMark,
    /// Connections of this queue pair use links with this key. At first it is the key of its
    /// receive queue; each reset assigns a new one, and so new links. A record over a link with
    /// another key is from a peer of an earlier connection.
    pub(crate) key: u32,
    /// Sends are accepted and do not begin (SQD).
    pub(crate) paused: bool,
    /// An event is wanted when all sends that have begun are done.
    pub(crate) draining: bool,
    /// For that, the peer was asked how far it has read.
    pub(crate) drain_urged: bool,
    /// Retries that the peer allows when we have no receive; 7 means unlimited (RC-1).
    pub(crate) rnr_retry: u8,
    /// Our wait between those retries, in nanoseconds.
    pub(crate) rnr_timer_ns: u64,
    /// True if it is in its link's backlog.
    pub(crate) in_backlog: bool,
    /// Its own READs and atomics.
    pub(crate) reads: Reads,
    /// READs and atomics the peer may have in flight (SQ-7).
    pub(crate) responder_depth: u8,
    /// What the peer may do to memory through this queue pair.
    pub(crate) rights: Access,
    /// The most that they may be.
    pub(crate) rights_max: Access,
    /// READs and atomics of the peer that were taken and not answered.
    pub(crate) pending_reads: u8,
    /// Completions up to this request are due, and wait for responses to earlier requests.
    pub(crate) parked: Option<u32>,
    /// Bytes of a WRITE that arrives in pieces.
    pub(crate) writing: Option<u32>,
    /// A message of the peer could not be read, because the peer's queue pair has failed or gone.
    /// What comes behind it is dropped until this queue pair fails too.
    pub(crate) sender_gone: bool,
    /// The record now in front is refused, with these statuses, when earlier responses are written:
    /// see [`Resources::refuse`](crate::state::resources::Resources::refuse).
    pub(crate) refusing: Option<Refusing>,
    /// For UD: the inbox for datagrams.
    pub(crate) datagrams: Option<Box<Datagrams>>,
    /// For UC: the state of the incoming message, and whether the peer is gone, so that sends go
    /// nowhere.
    pub(crate) incoming: Incoming,
    pub(crate) peer_lost: bool,
    /// The peer takes nothing more, and the sends on their way to it are still to be ended.
    pub(crate) peer_gone: Option<Gone>,
    /// The peer has gone: it reads no response.
    pub(crate) asker_gone: bool,
    pub(crate) failure: Failure,
    pub(crate) is_scheduled: bool,
    /// The last-WQE event was raised: it takes nothing more from its shared receive queue.
    pub(crate) last_wqe_raised: bool,
    pub(crate) send_cq: usize,
    /// Receive queue slot in the domain.
    pub(crate) rq: usize,
    pub(crate) rq_shared: bool,
    pub(crate) assembly: Option<Assembly>,
    /// When the receive queue was first found empty for the record now in front.
    pub(crate) rnr_since_ns: Option<u64>,
    pub(crate) xrc: XrcPart,
}

/// Ring space and send slots that the next plain messages may use without further checks, whether
/// they are deferred or published one by one. `DomainState::post_deferred` and
/// `DomainState::post_at_once_first` reserve. The reservation holds until something else happens to
/// the queue pair. In the shared domain the link alone is remembered
/// (`DomainState::remember_link`): then the queue pair is in RTS, and none of its requests waits.
/// These drop it:
///
/// - every other post: a one-sided or long request, or one that finds no space, takes a send slot
///   without bytes in the ring, or leaves a request that no other may overtake;
/// - everything that takes the queue pair out of RTS: an error, SQD, a reset.
///
/// Posts of other queue pairs on the same link use none of the reserved space: they move `at`
/// forward, and `until` is a position. A message may be written to a link that has left the fast
/// path meanwhile, as if it had been posted a little earlier.
#[derive(Clone, Copy)]
pub(crate) struct Reserved {
    /// The link. The queue pair counts as one of its users.
    pub(crate) link: Option<Pointer<Link>>,
    /// Ring space is free up to this position, with a send slot for each record that fits.
    pub(crate) until: Until,
}

impl Reserved {
    /// No reservation.
    pub(crate) const NONE: Reserved = Reserved { link: None, until: Until::NONE };
}

/// Why a queue pair fails, or has failed.
#[derive(Default)]
pub(crate) struct Failure {
    /// A request that could not run here, with its status. The queue pair fails when all requests
    /// before it are done.
    pub(crate) poison: Option<(u32, Status)>,
    /// The peer was asked how far it has read those requests.
    pub(crate) urged: bool,
    /// In ERR: the ring position up to which requests succeeded; `cause` is the status of the next.
    pub(crate) good_until: u64,
    pub(crate) cause: Option<Status>,
}

/// The parameters of a queue pair, besides its capacities.
pub(crate) struct QpParts {
    pub(crate) num: u32,
    pub(crate) kind: QpType,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) rq_shared: bool,
    pub(crate) signal_all: bool,
    pub(crate) pd: PdMark,
    pub(crate) key: u32,
}

impl QpContext {
    pub(crate) fn new(parts: &QpParts, caps: QpCaps) -> QpContext {
        QpContext::over(parts, SendQueue::new(caps.send_wr, caps.inline))
    }

    fn over(parts: &QpParts, sq: SendQueue) -> QpContext {
        QpContext {
            num: parts.num,
            state: State::Init,
            kind: parts.kind,
            signal_all: parts.signal_all,
            common: 0,
            word: 0,
            pd: parts.pd,
            key: parts.key,
            paused: false,
            draining: false,
            drain_urged: false,
            open_on: CLOSED,
            link: CLOSED,
            peer: 0,
            rnr_retry: 7,
            rnr_timer_ns: 0,
            reserved: Reserved::NONE,
            again: Again::NONE,
            sq,
            in_backlog: false,
            reads: Reads::default(),
            responder_depth: 0,
            rights: Access::empty(),
            rights_max: Access::all(),
            pending_reads: 0,
            parked: None,
            writing: None,
            sender_gone: false,
            refusing: None,
            datagrams: None,
            incoming: Incoming::Nothing,
            peer_lost: false,
            peer_gone: None,
            asker_gone: false,
            failure: Failure::default(),
            is_scheduled: false,
            last_wqe_raised: false,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            rq: usize::MAX,
            rq_shared: parts.rq_shared,
            assembly: None,
            rnr_since_ns: None,
            xrc: XrcPart::default(),
        }
    }

    /// Restarts the queue pair in the same memory. Everything else is as in a new one.
    pub(crate) fn reset(&mut self, parts: &QpParts) {
        let sq = self.sq.take();
        *self = QpContext {
            datagrams: self.datagrams.take(),
            xrc: self.xrc.again(),
            ..QpContext::over(parts, sq)
        };
    }

    /// What the peer may do to memory: what the program, the type and the depth allow.
    pub(crate) fn allowed(&self) -> Access {
        let mut rights = match self.kind {
            QpType::XrcSend => Access::empty(),
            _ => Access::REMOTE_WRITE,
        };
        if self.responder_depth > 0 {
            rights |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        rights & self.rights_max
    }

    /// The identity under which it uses memory.
    pub(crate) fn who(&self) -> Who {
        Who { qp: self.num, pd: self.pd }
    }

    /// True if a record continues the incoming message, or begins one when none is under way.
    /// `message` is the kind of the messages.
    pub(crate) fn is_in_order(&self, header: Header, message: u8) -> bool {
        let first = header.flags().contains(RecordFlags::FIRST);
        match (self.assembly, self.writing) {
            (Some(_), _) => {
                (header.kind() == message || message == KIND_SEND && header.is_send()) && !first
            }
            (None, Some(_)) => header.kind() == KIND_WRITE && !first,
            (None, None) => first,
        }
    }

    /// True if a request that ends before that position of the ring waits for its response.
    pub(crate) fn awaits_response_before(&mut self, at: u64) -> bool {
        let oldest = self.reads.oldest();
        oldest.is_some_and(|read| self.sq.entry(read).end <= at)
    }

    /// True if request `index`, or one before it, waits for its response.
    #[inline(always)]
    pub(crate) fn awaits_response(&self, index: u32) -> bool {
        // Both lie in `completed .. posted`.
        let place = |index: u32| index.wrapping_sub(self.sq.completed);
        self.reads.oldest().is_some_and(|oldest| place(oldest) <= place(index))
    }
}
