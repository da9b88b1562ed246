//! The links of this device instance to others. Each is made once per pair of places, and shared by
//! all connections between them.
//!
//! Every answer brings the memory of its link, even if the peer should have it already. Each answer
//! has its own socket, so an answer that names a link may be read before the answer that first
//! brought it.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use doorbell_alloc::{Ask, MapRequest, Mapping};
use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::wake::Notifier;

use super::carrier::{Carried, CarrierEnd};
use super::files;
use super::neighbours::remote_map;
use super::sys;
use super::wire::{Place, Reply};
use crate::{FileName, LINK_BYTES, LinkShared, QpControl, Side};

/// The two places that a link joins. The kernel names the peer's process, so no process can pretend
/// to be another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ends {
    pub(super) peer_pid: i32,
    pub(super) peer: Place,
    pub(super) here: Place,
}

/// A link as the registry knows it. The domains own the links.
struct Entry {
    id: u64,
    /// This side made it.
    maker: bool,
    link: Weak<LinkShared>,
}

/// A link on which both ends of one more connection are taken.
pub(super) struct Offer {
    pub(super) link: Arc<LinkShared>,
    pub(super) id: u64,
    pub(super) maker: bool,
    /// What the peer needs to join a carried link.
    carried: Option<OwnedFd>,
}

impl Offer {
    /// What the peer needs to join the link.
    pub(super) fn file(&self) -> Option<RawFd> {
        self.carried.as_ref().map(AsRawFd::as_raw_fd).or(self.link.memory().fd())
    }
}

/// The registry. Crossing connections may leave two links between the same places.
#[derive(Default)]
pub(super) struct Links {
    /// Carries all links, in place of shared memory; then each connection has its own link.
    carrier: Option<Carried>,
    made: AtomicU64,
    table: Mutex<HashMap<Ends, Vec<Entry>>>,
}

impl Links {
    /// Links that a carrier carries.
    pub(super) fn carried(carrier: Carried) -> Links {
        Links { carrier: Some(carrier), ..Links::default() }
    }

    /// A link for a connection that this side accepts: one that both have, or a new one, added to
    /// the domain of `qp`. `notifier` is the notifier of the peer's domain as the peer has sent it;
    /// only a new link uses it.
    pub(super) fn offer(
        &self,
        ends: Ends,
        directory: FileName,
        notifier: Option<BorrowedFd<'_>>,
        qp: &QpControl,
    ) -> Result<Offer, CmError> {
        if let Some(Carried { carrier, host }) = &self.carrier {
            let end = CarrierEnd::new(host, qp)?;
            let link = end.port.link().clone();
            let carried = Some(carrier.offer(end)?);
            return Ok(Offer { link, id: 0, maker: true, carried });
        }
        // Poisoning says that another thread panicked between two whole steps: still in order.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in table.get(&ends).into_iter().flatten() {
            if let Some(link) = entry.link.upgrade()
                && link.acquire()
            {
                return Ok(Offer { link, id: entry.id, maker: entry.maker, carried: None });
            }
        }
        let link = Arc::new(make((ends.peer_pid, directory), notifier)?);
        qp.attach(&link);
        let id = self.made.fetch_add(1, Ordering::Relaxed);
        add(&mut table, ends, Entry { id, maker: true, link: Arc::downgrade(&link) });
        Ok(Offer { link, id, maker: true, carried: None })
    }

    /// The link that the peer's answer names. The first of `files` is its memory, the second the
    /// notifier of the peer's domain.
    pub(super) fn take(
        &self,
        ends: Ends,
        reply: &Reply,
        files: Vec<OwnedFd>,
        qp: &QpControl,
    ) -> Result<Arc<LinkShared>, CmError> {
        let asked = TAKE;
        let mut files = files.into_iter();
        if let Some(Carried { carrier, host }) = &self.carrier {
            let missing = || CmError::new(Code::Invalid, asked, "the answer brought no descriptor");
            let file = files.next().ok_or_else(missing)?;
            let end = CarrierEnd::new(host, qp)?;
            let link = end.port.link().clone();
            carrier.take(end, file)?;
            return Ok(link);
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in table.get(&ends).into_iter().flatten() {
            if entry.id == reply.link
                && entry.maker != reply.maker
                && let Some(link) = entry.link.upgrade()
            {
                return Ok(link);
            }
        }
        let (true, Some(file)) = (reply.maker, files.next()) else {
            return Err(CmError::new(
                Code::Invalid,
                asked,
                "the answer names a link that does not exist",
            ));
        };
        let link = Arc::new(join((ends.peer_pid, reply.directory), file, files.next())?);
        qp.attach(&link);
        add(&mut table, ends, Entry { id: reply.link, maker: false, link: Arc::downgrade(&link) });
        Ok(link)
    }

    /// True if the memory of links is shared: no carrier carries them.
    pub(super) fn are_shared(&self) -> bool {
        self.carrier.is_none()
    }

    /// Links that are alive.
    #[cfg(test)]
    pub(super) fn alive(&self) -> usize {
        let table = self.table.lock().unwrap();
        table.values().flatten().filter(|entry| entry.link.strong_count() > 0).count()
    }
}

const TAKE: &str = "take the link of the peer that accepted";

/// Makes the memory of a link to a device, which its process and its table name.
pub(super) fn make(
    (process, directory): (i32, FileName),
    notifier: Option<BorrowedFd<'_>>,
) -> Result<LinkShared, CmError> {
    let memory = memory_of_link()?;
    let map = remote_map(process, directory);
    let notifier = opened(notifier)?;
    Ok(LinkShared::new(memory, Side::Maker)?.with_remote_map(map).with_notifier(notifier))
}

/// Makes the memory of a link on which a queue pair of this device is its own peer.
pub(super) fn make_loop(
    (process, directory): (i32, FileName),
    notifier: Option<Notifier>,
) -> Result<LinkShared, CmError> {
    let link = LinkShared::new(memory_of_link()?, Side::Both)?;
    Ok(link.with_remote_map(remote_map(process, directory)).with_notifier(notifier))
}

fn memory_of_link() -> Result<Mapping, CmError> {
    let memory = MapRequest::new(LINK_BYTES).pages(Ask::Plain).shared(true).map();
    memory.map_err(|error| {
        let asked = format!("{LINK_BYTES} bytes of shared memory for a connection");
        CmError::new(Code::from_errno(error.errno()), asked, error.to_string())
    })
}

/// Maps the memory of a link that such a device has made and sent, with its notifier.
pub(super) fn join(
    (process, directory): (i32, FileName),
    file: OwnedFd,
    notifier: Option<OwnedFd>,
) -> Result<LinkShared, CmError> {
    let memory = Mapping::from_memfd(file, LINK_BYTES)
        .map_err(|error| CmError::new(Code::Invalid, TAKE, error.to_string()))?;
    if memory.pages().is_reserved() {
        // A hole punched there could end this process when no huge page is left to fill it.
        return Err(CmError::new(Code::Invalid, TAKE, "its memory consists of huge pages"));
    }
    let map = remote_map(process, directory);
    let notifier = opened(notifier)?;
    Ok(LinkShared::new(memory, Side::Taker)?.with_remote_map(map).with_notifier(notifier))
}

/// Opens the notifier that a peer has sent, if it has sent one. Without it, nobody could wake the
/// peer, so a connection without it fails.
fn opened(notifier: Option<impl AsFd>) -> Result<Option<Notifier>, CmError> {
    let asked = "open the notifier of the peer";
    let notifier = notifier.map(files::notifier_from_peer).transpose();
    notifier.map_err(|error| CmError::from_io(asked, &error))
}

/// Adds a link. When the table is full, removes the links that are gone.
fn add(table: &mut HashMap<Ends, Vec<Entry>>, ends: Ends, entry: Entry) {
    if table.len() == table.capacity() {
        give_up_dead(table);
        table.retain(|_, entries| {
            entries.retain(|entry| entry.link.strong_count() > 0);
            !entries.is_empty()
        });
    }
    let entries = table.entry(ends).or_default();
    entries.retain(|entry| entry.link.strong_count() > 0);
    entries.push(entry);
}

/// Gives back the ends of processes that have ended. A process may close its connections and end
/// before it gives back its ends of a link; then nobody else does.
fn give_up_dead(table: &HashMap<Ends, Vec<Entry>>) {
    for (ends, entries) in table {
        if sys::is_gone(ends.peer_pid) {
            entries
                .iter()
                .filter_map(|entry| entry.link.upgrade())
                .for_each(|link| link.peer_gone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The link of a process that has ended goes with its last user on this side. The link of a
    /// living process stays for its next connection.
    #[test]
    fn a_link_does_not_outlive_both_its_processes() {
        let mut dead = std::process::Command::new("/bin/true").spawn().unwrap();
        let gone = i32::try_from(dead.id()).unwrap();
        dead.wait().unwrap();
        let here = i32::try_from(std::process::id()).unwrap();
        let links: Vec<_> = [here, gone]
            .map(|peer_pid| {
                let memory = MapRequest::new(LINK_BYTES).pages(Ask::Plain).shared(true).map();
                let link = Arc::new(LinkShared::new(memory.unwrap(), Side::Maker).unwrap());
                (peer_pid, link)
            })
            .into();
        let mut table = HashMap::new();
        let place = |domain| Place { instance: [1; 16], domain, queue: 0 };
        for (peer_pid, link) in &links {
            let ends = Ends { peer_pid: *peer_pid, peer: place(1), here: place(2) };
            add(&mut table, ends, Entry { id: 0, maker: true, link: Arc::downgrade(link) });
        }
        // Enough to trigger the clean-up.
        let mut others = Vec::new();
        for domain in 3..40 {
            let memory = MapRequest::new(LINK_BYTES).pages(Ask::Plain).shared(true).map();
            let link = Arc::new(LinkShared::new(memory.unwrap(), Side::Maker).unwrap());
            let ends = Ends { peer_pid: here, peer: place(domain), here: place(2) };
            add(&mut table, ends, Entry { id: 0, maker: true, link: Arc::downgrade(&link) });
            others.push(link);
        }
        assert_eq!([links[0].1.acquire(), links[1].1.acquire()], [true, false]);
    }
}
