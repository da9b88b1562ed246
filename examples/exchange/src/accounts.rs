//! The users of an exchange, and the answers to each: all of a day, so that a user who comes again
//! gets what it has missed.

use std::collections::{BTreeMap, HashMap};

use doorbell::prelude::*;

use crate::kept::Kept;
use crate::ouch::{ANSWER_LONGEST, Answer};
use crate::wire::{Answers, Channel, Login};

/// An answer with its channel in front, and its length.
type Stored = (u8, [u8; ANSWER_LONGEST + 1]);

/// A user.
#[derive(Default)]
struct Account {
    peer: Option<PeerId>,
    /// The answers, each with its channel in front, and how many were sent to that peer.
    answers: Kept<Stored>,
    sent: usize,
    sum: Answers,
}

/// All users.
#[derive(Default)]
pub struct Accounts {
    users: BTreeMap<u32, Account>,
    /// By [`PeerId::index`].
    by_peer: HashMap<usize, u32>,
    message: Vec<u8>,
}

impl Accounts {
    /// The user at that connection.
    pub fn user(&self, peer: PeerId) -> Option<u32> {
        self.by_peer.get(&peer.index()).copied()
    }

    /// A user has come. A connection of it from before gets no more answers.
    pub fn login(&mut self, peer: PeerId, login: Login) {
        let account = self.users.entry(login.user).or_default();
        if let Some(before) = account.peer.replace(peer) {
            self.by_peer.remove(&before.index());
        }
        account.sent = usize::try_from(login.answers).unwrap_or(usize::MAX);
        self.by_peer.insert(peer.index(), login.user);
    }

    /// A connection has ended.
    pub fn gone(&mut self, peer: PeerId) {
        let user = self.by_peer.remove(&peer.index());
        if let Some(account) = user.and_then(|user| self.users.get_mut(&user)) {
            account.peer = None;
        }
    }

    /// Keeps an answer to a user.
    pub fn keep(&mut self, user: u32, answer: &Answer) {
        let account = self.users.entry(user).or_default();
        let message = &mut self.message;
        Channel::Orders.begin(message);
        answer.write(message);
        account.sum.add(&message[1..]);
        let mut bytes = [0; ANSWER_LONGEST + 1];
        bytes.iter_mut().zip(&*message).for_each(|(to, byte)| *to = *byte);
        account.answers.push((message.len() as u8, bytes));
    }

    /// All answers to a user.
    pub fn sum(&self, user: u32) -> Answers {
        self.users.get(&user).map_or(Answers::default(), |account| account.sum)
    }

    /// Sends the answers that have not gone out, inline and at once, as far as there is room.
    pub fn send<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        for Account { peer, answers, sent, .. } in self.users.values_mut() {
            let Some(peer) = *peer else { continue };
            while let Some((length, bytes)) = answers.get(*sent) {
                if out.send_now(peer, &bytes[..usize::from(*length)]).is_err() {
                    break;
                }
                *sent += 1;
            }
        }
    }
}
