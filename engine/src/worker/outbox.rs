//! The calls that a handler may make: send, reply, request, close, ask for room.

use super::core::Core;
use super::datagrams::{Datagram, DestinationId};
use super::handshake::PeerInfo;
use super::message::{Message, PeerId, Token};
use super::piece::{OwnPiece, Piece, RegionId};
use super::probes;
use super::requests::Request;
use super::send_error::{LendError, ListError, SendError};
use super::timers::TimerId;
use crate::error::SetupError;
use crate::provider::{AddressVector, Doorbell, Provider};
use crate::remote::{RemoteError, RemoteMemory};
use crate::wr::{Remote, SendFlags};

/// The calls that a handler may make. Sends are gathered for each peer, and go out with one
/// doorbell at the end of the turn, or sooner if there are [`SEND_BATCH`](super::SEND_BATCH) of
/// them. On a device whose doorbell is a store to memory, the first batch of messages that are sent
/// one by one is smaller ([`STORE_BATCH`](super::STORE_BATCH)). After a poll that found few
/// messages, the first send may ring at once.
pub struct Outbox<'a, P: Provider> {
    pub(super) core: &'a mut Core<P>,
}

impl<P: Provider> Outbox<'_, P> {
    /// Sends a copy of `bytes`, at most a block long.
    ///
    /// # Errors
    /// See [`SendError`]. Back-pressure ([`SendError::is_back_pressure`]) sends nothing. No call
    /// tells the handler when there is room again: keep the message in a queue of your own, and try
    /// it in [`Handler::on_idle`](super::Handler::on_idle) and after each message that comes. An
    /// answer usually brings credit.
    #[inline(always)]
    pub fn send(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), SendError> {
        probes::send(peer.slot, bytes.len() as u64);
        self.core.sender.send_copy(peer, None, bytes)
    }

    /// Sends copies of several messages, in order, as calls of [`Outbox::send`] would. It costs the
    /// least for each message, because it checks peer, room and credit once for many.
    ///
    /// # Errors
    /// See [`ListError`]. After back-pressure, try the rest again after a turn.
    #[inline(always)]
    pub fn send_list(&mut self, peer: PeerId, list: &[&[u8]]) -> Result<(), ListError> {
        for bytes in list.iter().filter(|_| cfg!(feature = "probes")) {
            probes::send(peer.slot, bytes.len() as u64);
        }
        self.core.sender.send_list(peer, list)
    }

    /// Sends a copy of `bytes` with immediate data.
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline(always)]
    pub fn send_imm(&mut self, peer: PeerId, bytes: &[u8], imm: u32) -> Result<(), SendError> {
        probes::send(peer.slot, bytes.len() as u64);
        self.core.sender.send_copy(peer, Some(imm), bytes)
    }

    /// Sends a copy of `bytes` and rings the doorbell at once, also for everything that waits for
    /// that peer. Use it for a message whose latency counts. Up to [`Config::inline_bytes`] it is
    /// copied once, from `bytes` to the device.
    ///
    /// [`Config::inline_bytes`]: super::Config::inline_bytes
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline(always)]
    pub fn send_now(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), SendError> {
        probes::send(peer.slot, bytes.len() as u64);
        if self.core.sender.send_now(peer, bytes)? == Doorbell::Later {
            self.core.flush();
        }
        Ok(())
    }

    /// Posts a request: a send from registered memory without a copy, a READ, a WRITE or an atomic.
    /// The worker calls [`super::Handler::on_send_done`] once for it, whatever happens, and never
    /// before this call has returned. Until then the bytes of its pieces belong to the device.
    ///
    /// # Errors
    /// See [`SendError`]. Then nothing was posted, and `on_send_done` is not called.
    pub fn request(&mut self, peer: PeerId, request: &Request<'_>) -> Result<(), SendError> {
        probes::request(peer.slot, request.token);
        self.core.request(peer, request, SendFlags::empty())
    }

    /// As [`Outbox::request`], for a READ of bytes that no earlier message to that peer changes: it
    /// may read them before the peer has taken those messages ([`SendFlags::UNORDERED`]).
    pub(crate) fn request_unordered(
        &mut self,
        peer: PeerId,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        probes::request(peer.slot, request.token);
        self.core.request(peer, request, SendFlags::UNORDERED)
    }

    /// Whether the peer takes messages and requests, if there is room.
    pub(crate) fn accepts(&mut self, peer: PeerId) -> Result<(), SendError> {
        self.core.sender.peers.get(peer).ok_or(SendError::NotConnected)?.accepts()
    }

    /// The turns so far, without the short ones that are not counted yet.
    pub(crate) fn turn(&self) -> u64 {
        self.core.turn
    }

    /// Number of requests that have not ended.
    pub fn pending(&self) -> usize {
        self.core.sender.accounts.requests.pending()
    }

    /// Describes bytes of the worker's memory for peers, so that they can READ, WRITE or do atomics
    /// there: see [`RemoteMemory`].
    ///
    /// # Errors
    /// `NoRights`: the region is not registered for peers. `OutOfBounds`: the piece is not in the
    /// worker's memory.
    pub fn remote_memory(&self, piece: Piece) -> Result<RemoteMemory, RemoteError> {
        self.core.regions.remote_memory(piece)
    }

    /// Address and key of the worker's memory from `offset` on, for peers that need no more than
    /// that, such as programs in C. `None`: the region is shorter.
    pub fn remote(&self, region: RegionId, offset: usize) -> Option<Remote> {
        self.core.regions.remote(region, offset)
    }

    /// Lends bytes of the worker's own memory. Requests in flight may read them meanwhile, such as
    /// a SEND or a WRITE from there. Looks at the requests that have not ended, at most
    /// [`Config::requests`](super::Config::requests).
    ///
    /// # Errors
    /// `InFlight`: a READ or an atomic that writes there has not ended. `OutOfBounds`: the piece is
    /// not in the worker's own memory.
    pub fn bytes(&self, piece: OwnPiece) -> Result<&[u8], LendError> {
        self.core.regions.lend(&self.core.sender.accounts.requests, piece.0)
    }

    /// Lends bytes of the worker's own memory to write to them, as [`Outbox::bytes`] does.
    ///
    /// # Errors
    /// `InFlight`: a request that reads or writes there has not ended. `OutOfBounds`: the piece is
    /// not in the worker's own memory.
    pub fn bytes_mut(&mut self, piece: OwnPiece) -> Result<&mut [u8], LendError> {
        self.core.regions.lend_mut(&self.core.sender.accounts.requests, piece.0)
    }

    /// Copies bytes into the worker's memory. A request in flight may see a part of them.
    ///
    /// # Errors
    /// `OutOfBounds`: they do not fit into the region.
    pub fn copy_in(
        &mut self,
        region: RegionId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        self.core.regions.copy_in(region, offset, bytes)
    }

    /// Copies bytes out of the worker's memory. A request in flight may have written a part of
    /// them.
    ///
    /// # Errors
    /// `OutOfBounds`: the region is shorter.
    pub fn copy_out(
        &self,
        region: RegionId,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), SendError> {
        self.core.regions.copy_out(region, offset, bytes)
    }

    /// A token to keep this message. Return it in [`super::Verdict::Keep`]: then the block stays
    /// until the token is used up or the peer is gone. `None`: `Config::keeps` messages are kept
    /// already. Each kept message takes one receive from its sender's window.
    pub fn keep(&mut self, message: &Message<'_>) -> Option<Token> {
        self.core.ask_keep(message)
    }

    /// A kept message, to read it or to write a reply in place. `None`: the token is used up.
    pub fn kept(&mut self, token: Token) -> Option<Message<'_>> {
        self.core.kept_message(token)
    }

    /// Replies with the first `len` bytes of a kept message's block, as [`super::Verdict::Reply`]
    /// does; the token is used up.
    ///
    /// # Errors
    /// `NotConnected`: the token was used, or its peer is gone. After `TooLongForPeer` and
    /// `FinishedSending` the token still names the message.
    pub fn reply(&mut self, token: Token, len: usize) -> Result<(), SendError> {
        self.core.reply_kept(token, len)
    }

    /// Gives a kept message back without a reply; the token is used up. False: it was used before,
    /// or its peer is gone.
    pub fn give_back(&mut self, token: Token) -> bool {
        self.core.give_back(token)
    }

    /// Number of messages that may still be kept.
    pub fn keep_room(&self) -> usize {
        self.core.kept.room()
    }

    /// The time of the last [`super::Worker::advance`], in the unit and from the zero of the
    /// caller's clock. 0 before the first.
    pub fn now(&self) -> u64 {
        self.core.timers.now
    }

    /// Sets a timer: the first [`super::Worker::advance`] to `at` or later calls
    /// [`super::Handler::on_timer`] with `key`, once. `None`: `Config::timers` are set already.
    ///
    /// `at` is a point in time on the clock of [`Outbox::now`], not a duration. `Runtime`,
    /// `run_sleeping` and [`Worker::run_by`](super::Worker::run_by) advance that clock. Without
    /// them or calls of `advance`, timers never fire.
    pub fn set_timer(&mut self, at: u64, key: u64) -> Option<TimerId> {
        self.core.timers.set(at, key)
    }

    /// Cancels a timer. False: it has fired, or was cancelled before.
    pub fn cancel_timer(&mut self, timer: TimerId) -> bool {
        self.core.timers.cancel(timer)
    }

    /// Resolves a destination of datagrams: a UD queue pair, or a multicast group (with
    /// [`crate::wr::MULTICAST_QPN`] for `qp`), and the queue key that it requires. Resolve each
    /// destination once and keep its id: this call allocates, and on some devices makes a system
    /// call.
    ///
    /// # Errors
    /// `NoMemory`: `Config::destinations` are in use. Otherwise the device's answer to the address.
    pub fn resolve(
        &mut self,
        to: &AddressVector,
        qp: u32,
        qkey: u32,
    ) -> Result<DestinationId, SetupError> {
        self.core.datagrams.resolve(to, qp, qkey)
    }

    /// Releases a destination. Its address handle goes when no datagram to it is in flight. False:
    /// it was released before.
    pub fn release_destination(&mut self, to: DestinationId) -> bool {
        self.core.datagrams.release(to)
    }

    /// Sends a copy of `bytes` as a datagram, at most [`Config::datagram_bytes`] long, with
    /// immediate data or without, and with a doorbell of its own. Datagrams may be lost, and the
    /// sender is not told.
    ///
    /// # Errors
    /// See [`SendError`]; `NotConnected`: the destination was released, or the worker has no queue
    /// pair for datagrams that sends now.
    ///
    /// [`Config::datagram_bytes`]: super::Config::datagram_bytes
    pub fn send_to(
        &mut self,
        to: DestinationId,
        bytes: &[u8],
        imm: Option<u32>,
    ) -> Result<(), SendError> {
        self.core.datagrams.send(to, imm, bytes, &mut self.core.sender.accounts)
    }

    /// The address of a datagram's sender, for [`Outbox::resolve`]; its queue pair is
    /// [`Datagram::source_qp`].
    ///
    /// # Errors
    /// `Invalid`: the datagram came without its header.
    pub fn sender_of(&self, datagram: &Datagram<'_>) -> Result<AddressVector, SetupError> {
        self.core.datagrams.sender_of(datagram)
    }

    /// Number of messages that may be sent to that peer now: the send queue has slots for them, and
    /// the peer has promised receives. 0 for a peer that is gone.
    ///
    /// When the peer has taken everything, there is room for at least its
    /// [`Config::window_min`](super::Config::window_min) - 1. Room for more is this side's share of
    /// the peer's receives. A program that asks for room and sends nothing gets a share as a busy
    /// one does. While other peers are busy, the share may stay smaller than it was when the peer
    /// came up.
    pub fn room(&mut self, peer: PeerId) -> u32 {
        self.core.sender.room(peer)
    }

    /// What is known of a peer: its address, the private data of its program, the longest message
    /// it takes. Known in [`super::Handler::on_peer_up`]. `None`: the peer is gone.
    pub fn peer_info(&self, peer: PeerId) -> Option<PeerInfo> {
        self.core.sender.peers.info(peer).copied()
    }

    /// The peers that are up, in the order of [`PeerId::index`].
    pub fn peers(&self) -> impl Iterator<Item = PeerId> {
        core::iter::successors(self.next_peer(None), |peer| self.next_peer(Some(*peer)))
    }

    /// The first peer that is up, or with `Some(peer)` the next one after it. With this a handler
    /// can send in a loop over the peers, which the iterator [`Outbox::peers`] does not allow.
    pub fn next_peer(&self, after: Option<PeerId>) -> Option<PeerId> {
        self.core.sender.peers.up_from(after.map_or(0, |peer| peer.slot.saturating_add(1)))
    }

    /// Sends everything that waits now, instead of at the end of the turn.
    pub fn flush(&mut self) {
        self.core.flush();
    }

    /// Finishes sending to a peer, and still takes its messages, as `shutdown(SHUT_WR)` of a socket
    /// does. Everything that was accepted for the peer goes out first, and then a note that there
    /// is no more. The peer's handler gets [`super::Handler::on_finished_sending`] behind the last
    /// message, and may go on sending and answering. When it has finished sending too, the
    /// connection ends, and [`super::Handler::on_peer_down`] says
    /// [`Finished`](super::DownReason::Finished) on both sides. If that takes longer than
    /// `Config::drain_turns` turns, this side closes the connection, and its handler gets
    /// [`CutOff`](super::DownReason::CutOff) unless all its own sends are acknowledged, or the peer
    /// has said goodbye.
    ///
    /// From now on sends, requests (READs and WRITEs too) and replies to this peer are refused with
    /// [`SendError::FinishedSending`], and a verdict of `Reply` counts as `Done`. Nothing bounds
    /// how long the peer goes on; [`Outbox::finish`], [`Outbox::close`] and
    /// [`Worker::drain`](super::Worker::drain) work as before. A plain RDMA program is not told.
    ///
    /// ```
    /// use doorbell_engine::worker::{Handler, Message, Outbox, PeerId, Verdict};
    /// use doorbell_seam::provider::Provider;
    ///
    /// /// Adds up what a peer sends, and answers when there is no more.
    /// #[derive(Default)]
    /// struct Sum(u64);
    ///
    /// impl<P: Provider> Handler<P> for Sum {
    ///     fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
    ///         self.0 += message.bytes().iter().copied().map(u64::from).sum::<u64>();
    ///         Verdict::Done
    ///     }
    ///     fn on_finished_sending(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
    ///         let _ = out.send(peer, &self.0.to_le_bytes());
    ///         out.finish_sending(peer); // on_peer_down follows: `Finished` on both sides
    ///     }
    /// }
    /// ```
    pub fn finish_sending(&mut self, peer: PeerId) {
        self.core.finish_sending(peer);
    }

    /// Closes the connection to a peer when everything that was accepted for it is acknowledged:
    /// messages, replies that wait for room or credit, requests. From now on only replies to
    /// messages of that peer are accepted; other sends and requests get `NotConnected`. It does not
    /// wait for messages that the handler keeps ([`Outbox::keep`]): answer them first. This side's
    /// handler then gets [`super::Handler::on_peer_down`] with `Closed`. After
    /// `Config::drain_turns` turns it closes the connection anyway. Requests that have not ended by
    /// then end with an error, usually [`Status::Flushed`](crate::wc::Status::Flushed), and after
    /// that the handler gets `CutOff`.
    pub fn finish(&mut self, peer: PeerId) {
        self.core.finish(peer);
    }

    /// Closes the connection to a peer at once. Messages that the peer has not received yet may be
    /// lost. The worker calls [`super::Handler::on_peer_down`] with `Closed` when the queue pair
    /// has drained.
    pub fn close(&mut self, peer: PeerId) {
        self.core.close(peer);
    }
}
