//! A connection as the program's tasks have it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use doorbell::clock_ns;
use doorbell::worker::{DownReason, PeerId, SendError};
use tokio::sync::mpsc::UnboundedSender;

use crate::crossing::Crossing;
use crate::error::Failed;
use crate::job::{Failure, Job, Kind};

/// What is known of a connection.
pub(crate) struct Link {
    peer: PeerId,
    /// Why it has ended. Set before a job learns that its peer is gone.
    down: OnceLock<DownReason>,
}

impl Link {
    pub(crate) fn new(peer: PeerId) -> Arc<Link> {
        Arc::new(Link { peer, down: OnceLock::new() })
    }

    pub(crate) fn is_down(&self, why: DownReason) {
        let _ = self.down.set(why);
    }
}

/// A connection of an [`AsyncWorker`](crate::AsyncWorker). Clones are the same connection; any task
/// may have one. When the last one is dropped, the connection is closed, after everything that was
/// accepted for the peer has arrived.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    crossing: Arc<Crossing>,
    link: Arc<Link>,
    /// The longest message, and the longest request.
    longest: [usize; 2],
    /// Tells the driver when this is dropped.
    closed: UnboundedSender<PeerId>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without a driver all connections end.
        let _ = self.closed.send(self.link.peer);
    }
}

impl Connection {
    pub(crate) fn new(
        crossing: &Arc<Crossing>,
        link: &Arc<Link>,
        longest: [usize; 2],
        closed: UnboundedSender<PeerId>,
    ) -> Connection {
        let (crossing, link) = (crossing.clone(), link.clone());
        Connection(Arc::new(Inner { crossing, link, longest, closed }))
    }

    /// Its name in the worker: a [`Service`](crate::Service) sees the same.
    pub fn peer(&self) -> PeerId {
        self.0.link.peer
    }

    /// Why it has ended, as far as this side has noticed. `None`: it is up.
    pub fn down(&self) -> Option<DownReason> {
        self.0.link.down.get().copied()
    }

    /// Sends a message of up to [`Config::block_bytes`](doorbell::worker::Config::block_bytes)
    /// bytes. Ready when the worker has accepted it: from then on it arrives, unless the connection
    /// or the worker ends. It waits while the peer takes no more, while the send queue is full, or
    /// while all jobs are in use. Messages that are awaited one after the other arrive in that
    /// order.
    ///
    /// If the future is dropped, the message was sent once or not at all.
    ///
    /// # Errors
    /// [`Failed::PeerDown`]; [`Failed::NotSent`]: longer than this side or the peer allows;
    /// [`Failed::Ended`].
    pub async fn send(&self, bytes: &[u8]) -> Result<(), Failed> {
        self.cross(bytes, None, |_| ()).await
    }

    /// Sends a request and returns the peer's answer: of a
    /// [`Service`](crate::Service::request), or of any worker that answers with
    /// [`doorbell::rpc`]. `limit` begins with this call and includes every wait. A request is a
    /// message with [`HEADER`](doorbell::rpc::HEADER) bytes in front.
    ///
    /// If the future is dropped, the worker forgets the request, and drops an answer that comes
    /// later.
    ///
    /// # Errors
    /// [`Failed::DeadlinePassed`]: the peer may have received it. Otherwise as for
    /// [`Connection::send`].
    pub async fn request(&self, bytes: &[u8], limit: Duration) -> Result<Vec<u8>, Failed> {
        self.cross(bytes, Some(limit), |job| job.bytes.clone()).await
    }

    /// Takes a job across, waits until it is back, and reads the result.
    async fn cross<T>(
        &self,
        bytes: &[u8],
        limit: Option<Duration>,
        result: impl FnOnce(&Job) -> T,
    ) -> Result<T, Failed> {
        let Inner { crossing, link, longest, .. } = &*self.0;
        if bytes.len() > longest[usize::from(limit.is_some())] {
            return Err(Failed::NotSent(SendError::TooLong));
        }
        let nanos = |limit: Duration| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let kind = match limit {
            Some(limit) => Kind::Request(clock_ns().saturating_add(nanos(limit))),
            None => Kind::Send,
        };
        let mut job = crossing.slots.take(limit).await.map_err(|late| match late {
            true => Failed::DeadlinePassed,
            false => crossing.why_ended(),
        })?;
        (job.peer, job.kind) = (Some(link.peer), kind);
        job.bytes.clear();
        job.bytes.extend_from_slice(bytes);
        let ticket = Ticket { crossing, slot: job.slot, is_back: false };
        crossing.submit(job);
        let job = ticket.await;
        let outcome = job.outcome.map(|()| result(&job));
        crossing.slots.give_back(job);
        outcome.map_err(|failure| match failure {
            Failure::Deadline => Failed::DeadlinePassed,
            Failure::Down(why) => Failed::PeerDown(why),
            Failure::Gone => Failed::PeerDown(self.down().unwrap_or(DownReason::Disconnected)),
            Failure::NotSent(why) => Failed::NotSent(why),
            Failure::Ended => crossing.why_ended(),
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let down = self.down();
        f.debug_struct("Connection").field("peer", &self.peer()).field("down", &down).finish()
    }
}

/// Waits for a job.
struct Ticket<'a> {
    crossing: &'a Crossing,
    slot: u32,
    is_back: bool,
}

impl Future for Ticket<'_> {
    type Output = Box<Job>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Box<Job>> {
        let polled = self.crossing.poll(self.slot, context);
        self.is_back = polled.is_ready();
        polled
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.is_back {
            self.crossing.abandon(self.slot);
        }
    }
}
