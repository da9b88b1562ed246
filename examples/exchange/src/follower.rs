//! A client's picture of the market: the lines put together, and the books that they show.
//!
//! It begins with a snapshot and goes on with the feed. If messages are missing that the exchange
//! no longer has, it begins again with another snapshot.

use crate::feed::{Arbiter, Seen};
use crate::itch::Message;
use crate::mold::{Head, Session};
use crate::snapshot;
use crate::view::View;

/// What a follower needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A snapshot.
    Snapshot,
    /// These messages of the feed.
    Messages(Head),
}

/// See the module.
pub struct Follower {
    arbiter: Arbiter,
    view: View,
    /// It needs a snapshot, and has asked for it.
    behind: bool,
    asked: bool,
    /// The books of the snapshot that is coming.
    coming: Option<View>,
    snapshots: u64,
    wrong: Option<String>,
}

impl Follower {
    /// A follower of that session.
    pub fn new(session: Session) -> Follower {
        Follower {
            arbiter: Arbiter::new(session),
            view: View::default(),
            behind: true,
            asked: false,
            coming: None,
            snapshots: 0,
            wrong: None,
        }
    }

    /// The books, before the message [`Follower::next_sequence`].
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The number of the next message.
    pub fn next_sequence(&self) -> u64 {
        self.arbiter.next_sequence()
    }

    /// What its arbiter has seen, and how many snapshots it took.
    pub fn seen(&self) -> (Seen, u64) {
        (self.arbiter.seen(), self.snapshots)
    }

    /// Something that must not be: a message that does not fit the books, or a bad snapshot.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// True if its books are those of the newest message that it knows of.
    pub fn is_current(&self) -> bool {
        !self.behind && self.arbiter.missing().is_none()
    }

    /// What it needs now. It has to be asked for; [`Follower::asked`] says that it was.
    pub fn need(&self) -> Option<Need> {
        match (self.behind, self.asked) {
            // It comes over RC: asked for again, it would only come twice.
            (true, true) => None,
            (true, false) => Some(Need::Snapshot),
            (false, _) => self.arbiter.missing().map(Need::Messages),
        }
    }

    /// A snapshot was asked for.
    pub fn asked(&mut self) {
        self.asked = true;
    }

    /// The exchange says that its oldest message has this number.
    pub fn gone(&mut self, oldest: u64) {
        if !self.behind && self.arbiter.next_sequence() < oldest {
            (self.behind, self.asked) = (true, false);
        }
    }

    /// The exchange that it asked is gone, with all that was on its way.
    pub fn lost(&mut self) {
        (self.coming, self.asked) = (None, false);
    }

    /// Takes a packet. `applied` is called for each message that has changed the books, with the
    /// number of the message behind it.
    pub fn packet(&mut self, bytes: &[u8], mut applied: impl FnMut(&Message, u64, &View)) {
        let Follower { arbiter, view, wrong, .. } = self;
        arbiter.packet(bytes, |message, next| apply(view, wrong, message, next, &mut applied));
    }

    /// Takes a piece of a snapshot. `applied` as in [`Follower::packet`].
    pub fn snapshot(&mut self, bytes: &[u8], mut applied: impl FnMut(&Message, u64, &View)) {
        let coming = self.coming.get_or_insert_default();
        match snapshot::take(bytes, coming) {
            None => {
                self.coming = None;
                self.wrong.get_or_insert_with(|| "a damaged snapshot".into());
            }
            Some(None) => {}
            Some(Some(end)) => {
                let coming = self.coming.take().unwrap_or_default();
                (self.behind, self.asked) = (false, false);
                // The feed may have been faster: then the own books are the newer ones.
                if end.sequence > self.arbiter.next_sequence() {
                    self.view = coming;
                    self.snapshots += 1;
                    let Follower { arbiter, view, wrong, .. } = self;
                    arbiter.jump(end.sequence, |message, next| {
                        apply(view, wrong, message, next, &mut applied);
                    });
                }
            }
        }
    }
}

/// Applies a message of the feed.
fn apply(
    view: &mut View,
    wrong: &mut Option<String>,
    message: &[u8],
    next: u64,
    applied: &mut impl FnMut(&Message, u64, &View),
) {
    let read = Message::read(message);
    let result = read.map(|message| view.apply(&message));
    match (read, result) {
        (Some(message), Some(Ok(()))) => applied(&message, next, view),
        _ => drop(wrong.get_or_insert_with(|| format!("message {}: {result:?}", next - 1))),
    }
}
