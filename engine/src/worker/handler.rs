//! The trait that a user implements: the worker calls it for each thing that happens.

use super::datagrams::Datagram;
use super::message::{DownReason, Message, PeerId, Verdict};
use super::outbox::Outbox;
use crate::provider::Provider;
use crate::wc::Status;

/// What the worker calls. Everything runs on the worker's thread, to completion; nothing here
/// should block.
pub trait Handler<P: Provider> {
    /// A message has come in. The verdict says what becomes of its block.
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict;

    /// A datagram has come in; see [`Outbox::sender_of`] and [`Outbox::send_to`] for an
    /// answer. Its bytes are lent for this call.
    fn on_datagram(&mut self, datagram: Datagram<'_>, out: &mut Outbox<'_, P>) {
        let _ = (datagram, out);
    }

    /// A peer is connected, and you may send to it. Called before its first message.
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let _ = (peer, out);
    }

    /// A peer has finished sending ([`Outbox::finish_sending`]): this call comes after its last
    /// message. This side may still send, and answer messages that it keeps. To end the connection,
    /// call [`Outbox::finish_sending`] too, here or later. Called at most once for a peer, and not
    /// if the connection ends in another way first.
    ///
    /// If the handler does nothing here, the connection stays until something else ends it.
    fn on_finished_sending(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let _ = (peer, out);
    }

    /// A peer is gone. Called once for each peer that was up. Messages to it that it has not
    /// answered may or may not have arrived. This call is the last chance to read messages of it
    /// that you have kept: after it their tokens are invalid.
    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, out: &mut Outbox<'_, P>) {
        let _ = (peer, why, out);
    }

    /// A request taken by [`Outbox::request`] is over: the bytes of its pieces are the handler's
    /// again, and a READ has brought its bytes. Called once for each request, before its peer is
    /// down. After an error ([`Status::Flushed`]: its peer failed) the peer may have carried it out
    /// or not.
    fn on_send_done(
        &mut self,
        peer: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        let _ = (peer, token, result, out);
    }

    /// Another thread has submitted this key: see [`super::Handle::submit`].
    fn on_work(&mut self, key: u64, out: &mut Outbox<'_, P>) {
        let _ = (key, out);
    }

    /// A timer that was set with this key is due: see [`Outbox::set_timer`].
    fn on_timer(&mut self, key: u64, out: &mut Outbox<'_, P>) {
        let _ = (key, out);
    }

    /// A turn found nothing to do. Keep it short: it delays the next message. This is the place to
    /// try again what back-pressure has refused: the worker makes no call when there is room.
    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        let _ = out;
    }
}
