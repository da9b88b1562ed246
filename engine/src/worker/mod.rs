//! The worker: one core's loop, from completion to doorbell.
//!
//! [`Worker::turn`] is one bounded step: poll, admit, dispatch, flush, refill. Threads, pinning,
//! clocks and sleeping belong to the caller. In data order: [`SharedRecv`] holds the receive
//! memory, the control plane hands peers over through an [`Intake`], a [`Handler`] gets each
//! [`Message`], an [`Outbox`] takes the sends.
//!
//! The files below are grouped in the order in which a turn meets them: the turn, the handler and
//! its calls, the steps of the way out, the state by noun, plain data. A file uses files of its own
//! group and of later groups, and no two files use each other.

mod arm;
mod last_turns;
mod run;
mod setup;
mod turn;

mod admit;
mod dispatch;
mod drain;
mod handler;
mod outbox;

mod close;
mod core;
mod credit_return;
mod flush;
mod inline;
mod post;
mod replies;
mod request;
mod send;
mod sender;

mod accounts;
mod batch;
mod datagrams;
mod doorbell_policy;
mod early;
mod in_flight;
mod kept;
mod mailbox;
mod peer_resources;
mod peers;
mod promises;
mod recv_blocks;
mod regions;
mod requests;
mod send_blocks;
mod send_queue;
mod shared_recv;
mod shared_state;
mod slot_map;
mod timers;
mod watch;

mod breach;
mod config;
mod config_builder;
mod credit;
mod credit_rest;
mod handshake;
mod held;
mod message;
mod piece;
mod probes;
mod qp_domain;
mod send_error;
mod stats;
mod undone;
mod wr_id;

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
mod tests;

pub use self::arm::{Armed, Busy};
pub use self::breach::Breach;
pub use self::config::{
    Config, DIRTY_PEERS, INLINE_MAX, PIECES_MAX, POLL_BATCH, Retry, SEND_BATCH, STORE_BATCH,
};
pub use self::config_builder::{Choice, ConfigBuilder, Goal, Report};
pub use self::datagrams::{Datagram, DestinationId};
pub use self::handler::Handler;
pub use self::handshake::{
    Greeting, HANDSHAKE_BYTES, HANDSHAKE_VERSION, PEER_DATA_MAX, PeerData, PeerInfo, PrivateData,
    Refusal, RefusalReason,
};
pub use self::mailbox::Intake;
pub use self::message::{DownReason, Message, PeerId, Token, Verdict};
#[cfg(test)]
#[cfg(loom)]
pub(crate) use self::models::MODELS;
pub use self::outbox::Outbox;
pub use self::peer_resources::{PeerResources, PeerWatch};
pub use self::piece::{OwnPiece, OwnRegion, Piece, RegionId};
pub use self::requests::Request;
pub use self::send_error::{LendError, ListError, SendError};
pub use self::shared_recv::SharedRecv;
pub use self::shared_state::{Handle, Waker};
pub use self::stats::Stats;
pub use self::timers::TimerId;
pub use self::turn::Worker;
pub use self::undone::Undone;
pub use self::watch::Watch;
