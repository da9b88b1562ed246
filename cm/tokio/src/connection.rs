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
use crate::inbox::Inbox;
use crate::job::{Failure, Job, Kind};

/// What is known of a connection.
pub(crate) struct Link {
    peer: PeerId,
    /// Why it has ended. Set before a job learns that its peer is gone.
    down: OnceLock<DownReason>,
    pub(crate) inbox: Inbox,
}

impl Link {
    pub(crate) fn new(peer: PeerId) -> Arc<Link> {
        Arc::new(Link { peer, down: OnceLock::new(), inbox: Inbox::default() })
    }

    pub(crate) fn is_down(&self, why: DownReason) {
        let _ = self.down.set(why);
        self.inbox.close(why == DownReason::Finished);
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
        for letter in self.link.inbox.drop_letters() {
            self.crossing.done_with(letter);
        }
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
        self.cross(bytes, Kind::Send, None, |_| ()).await
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
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let kind = Kind::Request(clock_ns().saturating_add(nanos));
        self.cross(bytes, kind, Some(limit), |job| job.bytes.clone()).await
    }

    /// The next message of the peer, oldest first: of [`Connection::send`], or of any worker. If
    /// several tasks call it, each message goes to one of them. `None`: every message was taken,
    /// and the peer has finished, by [`Connection::finish_sending`], by [`AsyncWorker::close`], or
    /// when it dropped the connection.
    ///
    /// While no task takes them, messages keep their receives, and the peer's sends wait when it is
    /// out of credit; its requests wait behind them. So memory is bounded, and nothing is dropped.
    /// If the future is dropped, no message is lost. What had come before the connection's end can
    /// be taken after it.
    ///
    /// A [`Service`](crate::Service::message) may take messages first; `()` leaves them all.
    ///
    /// # Errors
    /// After the last message: [`Failed::PeerDown`], [`Failed::Ended`].
    ///
    /// ```
    /// # use doorbell_tokio::{Connection, Failed};
    /// /// Adds up the lengths of all messages, and says how much it was.
    /// async fn serve(peer: Connection) -> Result<(), Failed> {
    ///     let mut sum = 0;
    ///     while let Some(bytes) = peer.recv().await? {
    ///         sum += bytes.len();
    ///     }
    ///     peer.send(&sum.to_le_bytes()).await?; // the peer still listens
    ///     peer.finish_sending().await
    /// }
    ///
    /// async fn ask(peer: Connection) -> Result<Option<Vec<u8>>, Failed> {
    ///     peer.send(b"hello").await?;
    ///     peer.finish_sending().await?;
    ///     peer.recv().await
    /// }
    /// ```
    ///
    /// [`AsyncWorker::close`]: crate::AsyncWorker::close
    pub async fn recv(&self) -> Result<Option<Vec<u8>>, Failed> {
        let Inner { crossing, link, .. } = &*self.0;
        match link.inbox.next().await {
            Ok(letter) => {
                let bytes = letter.bytes.clone();
                crossing.done_with(letter);
                Ok(Some(bytes))
            }
            Err(true) => Ok(None),
            Err(false) => Err(self.down().map_or_else(|| crossing.why_ended(), Failed::PeerDown)),
        }
    }

    /// Messages that have come and that no task has taken.
    pub fn unread(&self) -> usize {
        self.0.link.inbox.len()
    }

    /// Ends this side's sending, behind everything that was accepted before, and still takes
    /// messages. The peer's [`Connection::recv`] then returns `None`. Later sends and requests are
    /// refused, and a [`Service`](crate::Service) answers this peer no more. When both sides have
    /// finished, the connection ends with [`DownReason::Finished`].
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub async fn finish_sending(&self) -> Result<(), Failed> {
        self.cross(&[], Kind::FinishSending, None, |_| ()).await
    }

    /// Takes a job across, waits until it is back, and reads the result.
    async fn cross<T>(
        &self,
        bytes: &[u8],
        kind: Kind,
        limit: Option<Duration>,
        result: impl FnOnce(&Job) -> T,
    ) -> Result<T, Failed> {
        let Inner { crossing, link, longest, .. } = &*self.0;
        if bytes.len() > longest[usize::from(limit.is_some())] {
            return Err(Failed::NotSent(SendError::TooLong));
        }
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
