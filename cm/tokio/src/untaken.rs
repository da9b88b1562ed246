//! Connections that peers have made and that no task has accepted.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell::worker::PeerId;
use tokio::sync::Notify;

use crate::connection::Connection;
use crate::inbox::first_of;

#[derive(Default)]
struct State {
    connections: VecDeque<Connection>,
    /// No connection comes any more.
    closed: bool,
}

/// These connections, oldest first. The worker's peers bound the number of those that are up, and
/// this list that of the others. The handles of the worker own it: with the last one, all of them
/// are dropped, and so closed.
pub(crate) struct Untaken {
    state: Mutex<State>,
    /// A connection has come, or the end.
    news: Notify,
    /// How many that have ended are kept, for their messages.
    ended_max: usize,
}

impl Untaken {
    pub(crate) fn new(ended_max: u32) -> Untaken {
        let (state, news) = (Mutex::default(), Notify::new());
        Untaken { state, news, ended_max: ended_max as usize }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one step, so a thread that panicked left nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, connection: Connection) {
        self.state().connections.push_back(connection);
        self.news.notify_one();
    }

    /// A peer is down, and its connection knows that. If that is here, it stays only for its
    /// messages, and only while there are not too many of this kind: the one that came first then
    /// goes.
    pub(crate) fn is_down(&self, peer: PeerId) {
        let has_ended = |connection: &Connection| connection.down().is_some();
        let mut state = self.state();
        let all = &mut state.connections;
        let Some(at) = all.iter().position(|connection| connection.peer() == peer) else { return };
        let gone = if all[at].unread() == 0 {
            Some(at)
        } else if all.iter().filter(|connection| has_ended(connection)).count() > self.ended_max {
            all.iter().position(has_ended)
        } else {
            None
        };
        let gone = gone.and_then(|at| all.remove(at));
        drop(state);
        drop(gone);
    }

    /// No connection comes any more.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.news.notify_waiters();
    }

    /// The next connection; `None` at the end. A future that is dropped takes none.
    pub(crate) async fn next(&self) -> Option<Connection> {
        first_of(&self.news, || {
            let mut state = self.state();
            let first = state.connections.pop_front();
            let more = !state.connections.is_empty();
            (first.is_some() || state.closed).then_some((first, more))
        })
        .await
    }
}
