//! The handler of a client's worker: a [`Client`], and the program that uses it.

use doorbell::prelude::*;
use doorbell::wc::Status;

use crate::client::{Client, Outcome};

/// The program.
pub trait Caller {
    /// May start operations. Called after each thing that happens, and when idle.
    fn next(&mut self, client: &mut Client);

    /// An operation has ended.
    fn ended(&mut self, token: u64, outcome: Outcome<'_>);

    /// A worker of the server is gone.
    fn lost(&mut self, why: DownReason) {
        let _ = why;
    }
}

/// The handler.
pub struct ClientHandler<C> {
    /// The client.
    pub client: Client,
    /// The program.
    pub caller: C,
}

impl<C: Caller> ClientHandler<C> {
    fn go_on<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        self.caller.next(&mut self.client);
        self.client.pump(out);
        while let Some((token, outcome)) = self.client.refused() {
            self.caller.ended(token, outcome);
        }
    }
}

impl<P: Provider, C: Caller> Handler<P> for ClientHandler<C> {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        if let Some((token, outcome)) = self.client.message(&message, out) {
            self.caller.ended(token, outcome);
        }
        self.go_on(out);
        Verdict::Done
    }

    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        self.client.peer_up(peer, out);
    }

    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, out: &mut Outbox<'_, P>) {
        while let Some(token) = self.client.lost(peer, out) {
            self.caller.ended(token, Outcome::Lost);
        }
        self.caller.lost(why);
    }

    fn on_send_done(
        &mut self,
        _: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        if let Some((token, outcome)) = self.client.read_done(token, result, out) {
            self.caller.ended(token, outcome);
        }
        self.go_on(out);
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        self.go_on(out);
    }
}
