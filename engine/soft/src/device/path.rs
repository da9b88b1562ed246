//! Destinations of datagrams: address handles, and groups of queue pairs.
//!
//! The GID of a soft device names its table: process, descriptor, inode. So an address handle leads
//! to a peer's table, and the table leads to the inboxes of its queue pairs. A datagram carries its
//! sender's GID, so the receiver can reply.
//!
//! A queue pair becomes a member of a multicast group by registering with the system, and the
//! registration ends with the process ([`Neighbours::join`]). A sender looks up the members when it
//! makes the group's handle, and again on a send at most every [`LOOK_EVERY_NS`]. So a new member
//! may miss what was sent in that time, and most sends cost no lookup.
#![expect(unsafe_code, reason = "requests name handles by address")]

use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;
use std_alloc::format;
use std_alloc::string::{String, ToString};
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use crate::device::host::{Host, Member, Membership, Neighbours, device_of};
use crate::device::pd::Pd;
use crate::error::{Code, SetupError};
use crate::model::buffers::{Posted, Target};
use crate::provider::{AddressHandle, FlowRule, Gid};
use crate::room::{Grow, Room};
use crate::shm::inbox::{DATAGRAM_MAX, Door, INBOX_BYTES, Outlet, Stamp};
use crate::shm::remote_map::RemoteMap;
use crate::wr::{AhName, MULTICAST_QPN, SendOp, SendWr};

/// The greatest age of a list of members, in nanoseconds.
const LOOK_EVERY_NS: u64 = 100_000_000;

/// An address handle of the soft device.
#[derive(Clone)]
pub struct SoftAh(Arc<Path>, #[expect(dead_code, reason = "a user of its domain")] Pd);

impl AddressHandle for SoftAh {
    fn name(&self) -> AhName {
        AhName(Arc::as_ptr(&self.0).expose_provenance())
    }
}

impl SoftAh {
    /// The path to a device or a group; `None` if there is no such device.
    pub(crate) fn new(device: &str, to: Gid, host: &Host, pd: &Pd) -> Option<SoftAh> {
        let neighbours = host.neighbours?;
        let path = if to.is_multicast() {
            let group = Group::unseen(&device.into(), to);
            let mut members = group.members.lock();
            members.at_ns = (host.clock)();
            members.look(&group, &neighbours);
            drop(members);
            Path::Group(group)
        } else {
            let (process, directory) = device_of(to);
            Path::Device((neighbours.remote_map)(process, directory)?)
        };
        Some(SoftAh(Arc::new(path), pd.clone()))
    }
}

/// False: the datagram of that request would be dropped if it were sent now, because its receiver
/// has not taken older ones. True for requests of other kinds.
///
/// # Safety
/// As for [`Qp::post`](crate::provider::Qp::post).
pub unsafe fn has_room(wr: &SendWr<'_>) -> bool {
    // SAFETY: as the caller says.
    let wr = unsafe { Posted::one(wr) };
    match wr.op {
        SendOp::SendTo(to) | SendOp::SendToWithImm(to, _) => {
            Path::named(wr, to.ah).has_room(to.qpn)
        }
        _ => true,
    }
}

/// The destination that a handle names.
pub(crate) enum Path {
    Device(Arc<RemoteMap>),
    Group(Group),
}

impl Path {
    /// The path that a request names.
    pub(crate) fn named<'a>(_request: &'a Posted<'_>, name: AhName) -> &'a Path {
        // SAFETY: the poster vouches for the handle until the request has completed. It is one of
        // this device, which names a path by its address; the path stays where it is.
        unsafe { &*core::ptr::with_exposed_provenance(name.0) }
    }

    /// False: the queue pair of that number has no room for a datagram. Groups always have.
    pub(crate) fn has_room(&self, qp: u32) -> bool {
        match self {
            Path::Device(map) => map.has_room(qp),
            Path::Group(_) => true,
        }
    }

    /// Puts a datagram into the inboxes of its destination; for a group, not into that of `not_to`.
    /// `payload` is as in [`Outlet::put`].
    pub(crate) fn deliver(
        &self,
        qp: u32,
        stamp: &Stamp,
        payload: &impl Fn(Target<'_>),
        not_to: Option<Member>,
        host: &Host,
    ) {
        match self {
            Path::Device(map) => map.put(qp, stamp, payload),
            Path::Group(group) if qp == MULTICAST_QPN => {
                group.put(stamp, payload, host, |member| Some(*member) != not_to);
            }
            Path::Group(_) => {}
        }
    }
}

/// A multicast group, or the queue pairs that want one kind of frames.
pub(crate) struct Group {
    device: Arc<str>,
    gid: Gid,
    members: Mutex<Members>,
}

/// The number of joins and leaves in this process.
static CHANGES: AtomicU64 = AtomicU64::new(0);

impl Group {
    /// A group whose members are first looked up on a send.
    pub(crate) fn unseen(device: &Arc<str>, gid: Gid) -> Group {
        let members = Members { at_ns: 0, changes: u64::MAX, list: Vec::new() };
        Group { device: device.clone(), gid, members: Mutex::new(members) }
    }

    /// Puts a datagram into the inboxes of the members for which `takes` returns true. `payload` is
    /// as in [`Outlet::put`].
    fn put(
        &self,
        stamp: &Stamp,
        payload: &impl Fn(Target<'_>),
        host: &Host,
        takes: impl Fn(&Member) -> bool,
    ) {
        let mut members = self.members.lock();
        let now = (host.clock)();
        if let Some(neighbours) = &host.neighbours
            && now.saturating_sub(members.at_ns) >= LOOK_EVERY_NS
        {
            members.look(self, neighbours);
            members.at_ns = now;
        }
        for (member, outlet) in &members.list {
            if takes(member) && outlet.is_for(member.qp) {
                outlet.put(stamp, payload);
            }
        }
    }

    /// As [`Group::put`], for a frame. A queue pair of this process receives it at once after
    /// joining. A frame that does not fit an inbox is dropped.
    pub(crate) fn put_at_once(
        &self,
        stamp: &Stamp,
        frame: &[u8],
        host: &Host,
        takes: impl Fn(&Member) -> bool,
    ) {
        // Acquire pairs with the Release of a joining thread: its registration is visible by then.
        let changes = CHANGES.load(Ordering::Acquire);
        let mut members = self.members.lock();
        if let (true, Some(neighbours)) = (members.changes != changes, &host.neighbours) {
            members.look(self, neighbours);
            (members.at_ns, members.changes) = ((host.clock)(), changes);
        }
        drop(members);
        if frame.len() <= DATAGRAM_MAX as usize {
            let length = frame.len() as u32;
            let payload = |to: Target<'_>| to.write(frame);
            self.put(&Stamp { length, ..*stamp }, &payload, host, takes);
        }
    }

    /// True if this was a member at the last lookup.
    pub(crate) fn holds(&self, member: &Member) -> bool {
        self.members.lock().list.iter().any(|(known, _)| known == member)
    }
}

/// The members at the last lookup, with their inboxes.
struct Members {
    at_ns: u64,
    /// The value of [`CHANGES`] at that time.
    changes: u64,
    list: Vec<(Member, Outlet)>,
}

impl Members {
    #[cold]
    fn look(&mut self, group: &Group, neighbours: &Neighbours) {
        let found = (neighbours.members)(&group.device, group.gid);
        self.list.retain(|(member, _)| found.contains(member));
        for member in found {
            if self.list.iter().any(|(known, _)| *known == member) {
                continue;
            }
            let memory = (neighbours.attach)(member.process, member.inbox, INBOX_BYTES as u64);
            let outlet =
                memory.and_then(|memory| Outlet::new(memory, member.process, neighbours.notifier));
            // A member for which no memory is left misses datagrams until the next lookup.
            if let Some(outlet) = outlet
                && self.list.make_room(self.list.len() + 1)
            {
                self.list.put((member, outlet));
            }
        }
    }
}

/// The groups that a UD queue pair belongs to. It leaves them when it ends, even while others hold
/// this value.
pub(crate) struct Groups {
    device: String,
    member: Option<Member>,
    list: Mutex<Option<Vec<(Gid, Membership)>>>,
    /// The flow rules of a RAW_PACKET queue pair. Each is in the list under its name.
    pub(crate) rules: Mutex<Vec<FlowRule>>,
    /// The queue pair's inbox.
    pub(crate) door: Door,
}

impl Groups {
    pub(crate) fn new(device: &str, member: Option<Member>, door: Door) -> Groups {
        let (list, rules) = (Mutex::new(Some(Vec::new())), Mutex::new(Vec::new()));
        Groups { device: device.to_string(), member, list, rules, door }
    }

    /// See [`crate::provider::Multicast::attach_mcast`].
    pub(crate) fn join(&self, group: Gid, host: &Host) -> Result<(), SetupError> {
        let asked = || format!("attach a queue pair to the group {group}");
        if !group.is_multicast() {
            let answer = "that is not the address of a group";
            return Err(SetupError::new(Code::Invalid, asked(), answer));
        }
        self.add(group, &asked(), host)
    }

    /// Makes the queue pair a member of a group, which need not be a multicast group. Joining twice
    /// changes nothing.
    pub(crate) fn add(&self, group: Gid, asked: &str, host: &Host) -> Result<(), SetupError> {
        let mut list = self.list.lock();
        let (Some(list), Some(member), Some(neighbours)) =
            (list.as_mut(), self.member, host.neighbours)
        else {
            let answer = "the queue pair is gone, or nobody can find it";
            return Err(SetupError::new(Code::Invalid, asked, answer));
        };
        if list.iter().all(|(gid, _)| *gid != group) {
            list.push((group, (neighbours.join)(&self.device, group, member)?));
            CHANGES.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// See [`crate::provider::Multicast::detach_mcast`].
    pub(crate) fn leave(&self, group: Gid) -> Result<(), SetupError> {
        let mut list = self.list.lock();
        let place = list.as_ref().and_then(|list| list.iter().position(|(gid, _)| *gid == group));
        match (list.as_mut(), place) {
            (Some(list), Some(place)) => {
                list.swap_remove(place);
                Ok(())
            }
            _ => {
                let asked = format!("detach a queue pair from the group {group}");
                Err(SetupError::new(Code::Invalid, asked, "it is not in that group"))
            }
        }
    }

    /// Leaves all groups: the queue pair goes away.
    pub(crate) fn end(&self) {
        self.rules.lock().clear();
        *self.list.lock() = None;
    }
}

/// The error for a queue pair that cannot be in a group.
pub(crate) fn no_groups(kind: &str) -> SetupError {
    SetupError::new(Code::Invalid, kind, "only queue pairs of UD are in groups")
}
