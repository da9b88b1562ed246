//! Messages on their way from the worker to a task.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell::worker::{PeerId, Token};
use tokio::sync::Notify;

/// A message for a task: a copy of its bytes. There is one for each receive of the worker.
pub(crate) struct Letter {
    pub(crate) peer: Option<PeerId>,
    /// The block that the worker keeps until a task has the message, so that the peer has one
    /// receive less. `None`: the block went back.
    pub(crate) token: Option<Token>,
    pub(crate) bytes: Vec<u8>,
}

impl Letter {
    /// A letter with room for `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Letter {
        Letter { peer: None, token: None, bytes: Vec::with_capacity(bytes) }
    }
}

#[derive(Default)]
struct State {
    letters: VecDeque<Box<Letter>>,
    /// No letter comes any more.
    closed: bool,
    /// The peer has finished, so the end is in order.
    finished: bool,
    /// Nobody will take a letter.
    unwanted: bool,
}

/// The messages of one connection that no task has taken, oldest first. The peer's credit bounds
/// their number. The worker does not touch it, and so takes no lock.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// A letter has come, or the end.
    news: Notify,
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one step, so a thread that panicked left nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a letter. It comes back if nobody will take it.
    pub(crate) fn push(&self, letter: Box<Letter>) -> Result<(), Box<Letter>> {
        let mut state = self.state();
        if state.unwanted {
            return Err(letter);
        }
        state.letters.push_back(letter);
        drop(state);
        self.news.notify_one();
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.state().letters.len()
    }

    /// No letter comes any more. `finished`: the peer has said so.
    pub(crate) fn close(&self, finished: bool) {
        let mut state = self.state();
        state.finished |= finished && !state.closed;
        state.closed = true;
        drop(state);
        self.news.notify_waiters();
    }

    /// Takes the blocks of all letters, and leaves the letters.
    pub(crate) fn take_tokens(&self) -> Vec<Token> {
        self.state().letters.iter_mut().filter_map(|letter| letter.token.take()).collect()
    }

    /// Nobody will take a letter from now on. Returns those that are there.
    pub(crate) fn drop_letters(&self) -> VecDeque<Box<Letter>> {
        let mut state = self.state();
        state.unwanted = true;
        std::mem::take(&mut state.letters)
    }

    /// The next letter, or at the end whether the peer has finished. A future that is dropped takes
    /// no letter.
    pub(crate) async fn next(&self) -> Result<Box<Letter>, bool> {
        first_of(&self.news, || {
            let mut state = self.state();
            match state.letters.pop_front() {
                Some(letter) => Some((Ok(letter), !state.letters.is_empty())),
                None => state.closed.then_some((Err(state.finished), false)),
            }
        })
        .await
    }
}

/// Waits until `look` finds something. `look` also says whether there is more.
pub(crate) async fn first_of<T>(news: &Notify, mut look: impl FnMut() -> Option<(T, bool)>) -> T {
    loop {
        // Listen first, then look, so nothing is missed.
        let mut notice = pin!(news.notified());
        notice.as_mut().enable();
        if let Some((found, more)) = look() {
            // Two pieces of news may have left one notice, and two tasks may wait.
            if more {
                news.notify_one();
            }
            return found;
        }
        notice.await;
    }
}
