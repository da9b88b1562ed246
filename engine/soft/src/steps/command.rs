//! Commands from the control plane to a domain.

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use crate::ext::xrc_part::NewXrcQueue;
use crate::model::recvq::{RecvQueue, Used};
use crate::provider::Access;
use crate::state::link::Link;
use crate::state::link_shared::LinkShared;
use crate::state::place::Place;
use crate::state::qp::{Gone, QpContext};

/// A command from the control plane to a domain.
pub(crate) enum Command {
    /// A new queue pair with its receive queue, which its handle points to as well.
    Add(Place<QpContext>, Arc<RecvQueue>, Used),
    /// Adds, or removes, a shared receive queue of an XRC domain.
    AddSrq(Box<NewXrcQueue>),
    RemoveSrq(u32),
    /// A new link, not yet used.
    AddLink(Box<Link>),
    /// The queue pair is connected over that link.
    Connect(Connect),
    /// The wait of the queue pair's peer between its retries.
    SetRnrTimer {
        num: u32,
        rnr_timer_ns: u64,
    },
    /// How often the queue pair's peer sends again what finds no receive; 7 is for ever (RC-1).
    SetRnrRetry {
        num: u32,
        retries: u8,
    },
    /// READs and atomics that the queue pair may have in flight.
    SetInitiatorDepth {
        num: u32,
        depth: u8,
    },
    /// READs and atomics that the queue pair's peer may have in flight.
    SetResponderDepth {
        num: u32,
        depth: u8,
    },
    /// The queue pair goes to ERR.
    Fail {
        num: u32,
    },
    /// Sets what the peer of the queue pair may do to memory.
    SetRights {
        num: u32,
        rights: Access,
    },
    /// The peer of the queue pair takes nothing more. The key is that of the connection: a queue
    /// pair that was reset since has another.
    PeerGone {
        num: u32,
        key: u32,
        how: Gone,
    },
    /// Sets the key of a UD queue pair.
    SetQkey {
        num: u32,
        qkey: u32,
    },
    /// Moves a UD queue pair to RTS.
    Open {
        num: u32,
        /// Datagrams before that ticket are dropped.
        first: u64,
    },
    /// Stops the queue pair from beginning sends, or lets it begin them again. With `notify`, an
    /// event says when no send is under way any more.
    Pause {
        num: u32,
        notify: bool,
    },
    Resume {
        num: u32,
    },
    /// Restarts the queue pair in INIT.
    Reset(Box<Reset>),
    /// An unreliable queue pair goes from SQE back to RTS.
    Recover {
        num: u32,
    },
    /// The queue pair goes away without completions (QX-17).
    Destroy {
        num: u32,
    },
}

/// The parameters of a connection.
pub(crate) struct Connect {
    pub(crate) num: u32,
    pub(crate) peer: u32,
    pub(crate) link: Arc<LinkShared>,
    pub(crate) rnr_retry: u8,
    pub(crate) rnr_timer_ns: u64,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_depth: u8,
}

/// The parameters of a queue pair's next life.
pub(crate) struct Reset {
    pub(crate) num: u32,
    /// Its receive queue: a new one, if the queue pair owns its queue.
    pub(crate) queue: Arc<RecvQueue>,
    pub(crate) used: Used,
    /// Links of this key are for it, see [`crate::state::qp::QpContext::key`].
    pub(crate) key: u32,
}

impl Command {
    /// True if the command brings an object that another command will end.
    pub(crate) fn gives(&self) -> bool {
        matches!(self, Command::Add(..) | Command::AddSrq(_))
    }
}
