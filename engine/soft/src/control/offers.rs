//! Offers of peers, which wait in the process of the second side until its queue pair takes them:
//! see [`super::rendezvous`].

use std::os::fd::OwnedFd;

use doorbell_fabric::Credentials;
use doorbell_seam::provider::Gid;

use super::spare::{Accepted, Spare};
use super::sys::{self, Epoll, Received, Socket};
use super::wire::{ByNumber, MESSAGE_MAX, Message};
use crate::device::host::device_of;

/// Offers that wait to be taken; further ones are refused. Each has up to three descriptors, so
/// most processes reach their own limit first. A peer may connect many queue pairs before this side
/// connects one.
pub(super) const OFFERS_MAX: usize = 1024;
/// Peers that have connected and not said a word; the oldest gives way.
const SILENT_MAX: usize = 32;
/// Peers that are taken in one step.
const STEP_MAX: usize = 64;
/// The key of the listener.
pub(super) const LISTENER: u64 = u64::MAX;
/// The key of the peers here.
pub(super) const WAITING: u64 = u64::MAX - 1;

/// The offers to one device.
pub(super) struct Offers {
    listener: Socket,
    spare: Spare,
    /// The listener is watched.
    listens: bool,
    silent: Vec<(Socket, Credentials)>,
    list: Vec<Offer>,
    most: usize,
}

/// A link that a peer has made.
pub(super) struct Offer {
    pub(super) socket: Socket,
    pub(super) what: ByNumber,
    pub(super) files: Vec<OwnedFd>,
}

impl Offers {
    /// At most that many.
    pub(super) fn new(listener: Socket, most: usize) -> Offers {
        let (silent, list) = (Vec::new(), Vec::new());
        Offers { listener, spare: Spare::new(), listens: false, silent, list, most }
    }

    /// Takes peers that have connected to the listener, and reads their offers.
    pub(super) fn admit(&mut self, watch: &Epoll) {
        self.take_peers(watch);
        for (socket, peer) in std::mem::take(&mut self.silent) {
            let mut bytes = [0; MESSAGE_MAX];
            let (message, files) = match socket.receive(&mut bytes) {
                Ok(Received::Nothing) => {
                    self.silent.push((socket, peer));
                    continue;
                }
                Ok(Received::Message(length, files)) => {
                    (bytes.get(..length).and_then(Message::decode), files)
                }
                // Closed, broken, or without its files.
                _ => (None, Vec::new()),
            };
            match message {
                Some(Message::ByNumber(what)) if is_of(peer, Gid(what.gid)) => {
                    self.add(Offer { socket, what, files }, watch);
                }
                _ => watch.remove(socket.fd()),
            }
        }
        let beyond = self.silent.len().saturating_sub(SILENT_MAX);
        self.silent.drain(..beyond).for_each(|(socket, _)| watch.remove(socket.fd()));
    }

    fn take_peers(&mut self, watch: &Epoll) {
        let mut listens = true;
        for _ in 0..STEP_MAX {
            match self.spare.accept(&self.listener) {
                // The end of its socket tells the peer that there were no descriptors.
                Ok(Some(Accepted { last: true, .. })) => {}
                Ok(Some(Accepted { socket, .. })) => {
                    if let Ok(peer) = socket.peer()
                        && peer.uid == sys::user()
                        && watch.add(socket.fd(), WAITING).is_ok()
                    {
                        self.silent.push((socket, peer));
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    listens = false;
                    break;
                }
            }
        }
        // If peers cannot be taken, the listener stays readable, and waiting for it would be
        // pointless. The next queue pair that looks for its offer tries again.
        if self.listens && !listens {
            watch.remove(self.listener.fd());
            self.listens = false;
        } else if listens {
            self.listen(watch);
        }
    }

    /// Watches the listener.
    pub(super) fn listen(&mut self, watch: &Epoll) {
        self.listens = self.listens || watch.add(self.listener.fd(), LISTENER).is_ok();
    }

    fn add(&mut self, offer: Offer, watch: &Epoll) {
        if self.list.len() >= self.most {
            self.purge(watch);
        }
        if self.list.len() < self.most {
            self.list.push(offer);
        } else {
            watch.remove(offer.socket.fd());
        }
    }

    /// Drops the offers whose makers have left.
    pub(super) fn purge(&mut self, watch: &Epoll) {
        self.list.retain(|offer| {
            let stands = offer.stands();
            if !stands {
                watch.remove(offer.socket.fd());
            }
            stands
        });
    }

    /// The offer of exactly that pair.
    pub(super) fn take(&mut self, wanted: ByNumber, watch: &Epoll) -> Option<Offer> {
        self.admit(watch);
        while let Some(at) = self.list.iter().position(|offer| offer.what == wanted) {
            let offer = self.list.remove(at);
            watch.remove(offer.socket.fd());
            if offer.stands() {
                return Some(offer);
            }
        }
        None
    }

    /// Offers and peers that wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.silent.len() + self.list.len()
    }
}

impl Drop for Offers {
    fn drop(&mut self) {
        self.listener.stop_listening();
    }
}

impl Offer {
    /// Its maker has not left, and said nothing more.
    fn stands(&self) -> bool {
        matches!(self.socket.receive(&mut [0; MESSAGE_MAX]), Ok(Received::Nothing))
    }
}

/// True if that process of this user has the device of that GID.
pub(super) fn is_of(peer: Credentials, gid: Gid) -> bool {
    peer.uid == sys::user() && peer.pid == device_of(gid).0
}
