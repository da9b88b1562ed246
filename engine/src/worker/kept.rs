//! Messages that the handler keeps beyond its call: a bounded table of blocks, named by tokens.

use std_alloc::vec::Vec;

use super::message::{PeerId, Token};
use crate::room::FixedCapacity;
use crate::search;

/// The message that a token names.
#[derive(Clone, Copy)]
pub(super) struct KeptMessage {
    pub(super) peer: PeerId,
    pub(super) block: u32,
    pub(super) length: u32,
    pub(super) imm: Option<u32>,
    pub(super) written: Option<u32>,
}

#[derive(Clone, Copy)]
enum Place {
    Free,
    /// A token was given out, and has no verdict yet: with it the counter of receives that the
    /// worker had given back by then. It tells a later message in the same block apart.
    Asked(KeptMessage, u64),
    Kept(KeptMessage),
}

/// The table of kept messages.
pub(super) struct Kept {
    places: Vec<(u32, Place)>,
    free: Vec<u32>,
    /// The place of a token whose verdict is outstanding, or was never given.
    asked: Option<u32>,
    /// Where the next search begins.
    next: usize,
}

impl Kept {
    pub(super) fn new(most: u32) -> Kept {
        Kept {
            places: (0..most).map(|_| (0, Place::Free)).collect(),
            free: (0..most).rev().collect(),
            asked: None,
            next: 0,
        }
    }

    /// A token for the message in hand, which counts once the verdict says so. `refilled` counts
    /// the receives that were given back. `None`: all are taken.
    pub(super) fn ask(&mut self, keeping: KeptMessage, refilled: u64) -> Option<Token> {
        // Forgets a token that was requested and not used.
        let index = self.asked.take().or_else(|| self.free.pop())?;
        let (generation, place) = self.places.get_mut(index as usize)?;
        *generation = generation.wrapping_add(1);
        *place = Place::Asked(keeping, refilled);
        self.asked = Some(index);
        Some(Token::new(index, *generation))
    }

    /// The verdict: block `block` is kept. False if the token is not one given for it in this call:
    /// a block comes again only after it was given back, and no call gives blocks back.
    pub(super) fn keep(&mut self, block: u32, token: Token, refilled: u64) -> bool {
        let Some((generation, place)) = self.places.get_mut(token.index() as usize) else {
            return false;
        };
        match *place {
            Place::Asked(keeping, then)
                if keeping.block == block
                    && then == refilled
                    && *generation == token.generation() =>
            {
                *place = Place::Kept(keeping);
                self.asked = None;
                true
            }
            _ => false,
        }
    }

    /// The message that a token names.
    pub(super) fn get(&self, token: Token) -> Option<KeptMessage> {
        match self.places.get(token.index() as usize) {
            Some((generation, Place::Kept(keeping))) if *generation == token.generation() => {
                Some(*keeping)
            }
            _ => None,
        }
    }

    /// Takes the message out: the token is used up.
    pub(super) fn take(&mut self, token: Token) -> Option<KeptMessage> {
        let keeping = self.get(token)?;
        self.clear(token.index());
        Some(keeping)
    }

    /// Takes out one kept message of a peer, if there is one.
    pub(super) fn take_of(&mut self, peer: PeerId) -> Option<KeptMessage> {
        let of = |place: &Place| matches!(place, Place::Kept(keeping) if keeping.peer == peer);
        let index = search::resume(&self.places, &mut self.next, |(_, place)| of(place))?;
        let Some((_, Place::Kept(keeping))) = self.places.get(index).copied() else {
            return None;
        };
        self.clear(index as u32);
        Some(keeping)
    }

    fn clear(&mut self, index: u32) {
        if let Some((generation, place)) = self.places.get_mut(index as usize) {
            *generation = generation.wrapping_add(1);
            *place = Place::Free;
            self.free.put(index);
        }
    }

    /// Messages that may still be kept.
    pub(super) fn room(&self) -> usize {
        self.free.len() + usize::from(self.asked.is_some())
    }

    /// Messages kept now.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.room()
    }
}
