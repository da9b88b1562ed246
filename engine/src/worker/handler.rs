//! The trait that a program implements: the worker calls it for each event.

use super::datagrams::Datagram;
use super::message::{DownReason, Message, PeerId, Verdict};
use super::outbox::Outbox;
use crate::provider::Provider;
use crate::wc::Status;

/// What a program does with messages and other events. The worker calls these methods on its own
/// thread, and does nothing else until one returns: do not block in them.
pub trait Handler<P: Provider> {
    /// A message has come in. The verdict says what the worker does with its block.
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

    /// A peer is gone. Called once for each peer that was up. Messages to the peer that it has not
    /// answered may or may not have arrived. Read messages of the peer that you have kept in this
    /// call at the latest: after it their tokens are invalid.
    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, out: &mut Outbox<'_, P>) {
        let _ = (peer, why, out);
    }

    /// A request of [`Outbox::request`] is over: the bytes of its pieces are the handler's again,
    /// and a READ has brought its bytes. Called once for each request, before
    /// [`Handler::on_peer_down`] of its peer. `result` is an error if the request failed,
    /// [`Status::Flushed`] if an earlier failure ended the connection. Then the peer may or may not
    /// have carried it out.
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

    /// A turn found nothing to do. Return soon: this call delays the next message. Try sends again
    /// here that were refused for back-pressure, because no call says that there is room.
    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        let _ = out;
    }
}
