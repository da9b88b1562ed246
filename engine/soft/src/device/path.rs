//! Destinations of datagrams: address handles, and groups of queue pairs.
//!
//! The GID of a soft device names its table: process, descriptor, inode. So an address handle leads
//! to a peer's table, and the table leads to the inboxes of its queue pairs. A datagram carries its
//! sender's GID, so the receiver can reply.
//!
//! A queue pair becomes a member of a multicast group by registering with the system, and the
//! registration ends with the process ([`Neighbours::join`]). A sender looks up the members when it
//! makes the group's handle, and again on a send if somebody has joined or left since
//! ([`Changes`]). A member whose process was killed stays in the list until then. Once its inbox is
//! full, it costs each send a look there.
#![expect(unsafe_code, reason = "requests name handles by address")]

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
use crate::room::{FixedCapacity, TryGrow};
use crate::shm::changes::Changes;
use crate::shm::inbox::{DATAGRAM_MAX, Door, INBOX_BYTES, Outlet, Stamp};
use crate::shm::remote_map::RemoteMap;
use crate::wr::{AhName, MULTICAST_QPN, SendOp, SendWr};

/// An address handle of the soft device.
#[derive(Clone)]
pub struct SoftAh(Arc<Path>, #[expect(dead_code, reason = "a user of its domain")] Pd);

impl AddressHandle for SoftAh {
    fn name(&self) -> AhName {
        AhName(Arc::as_ptr(&self.0).expose_provenance())
    }
}

impl SoftAh {
    /// The path to a device or a group.
    pub(crate) fn new(
        device: &str,
        to: Gid,
        neighbours: Option<Neighbours>,
        pd: &Pd,
    ) -> Result<SoftAh, SetupError> {
        let absent = || {
            let asked = format!("an address handle to {to}");
            SetupError::new(Code::NoDevice, asked, "there is no such device, or not any more")
                .cure("take the address from an event or a datagram of that device")
        };
        let neighbours = neighbours.ok_or_else(absent)?;
        let path = if to.is_multicast() {
            let group = Group::new(device, to, neighbours)?;
            group.members.lock().renew(&group);
            Path::Group(group)
        } else {
            let (process, directory) = device_of(to);
            Path::Device((neighbours.remote_map)(process, directory).ok_or_else(absent)?)
        };
        Ok(SoftAh(Arc::new(path), pd.clone()))
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
    ) {
        match self {
            Path::Device(map) => map.put(qp, stamp, payload),
            Path::Group(group) if qp == MULTICAST_QPN => {
                group.put(stamp, payload, |member| Some(*member) != not_to);
            }
            Path::Group(_) => {}
        }
    }
}

/// A multicast group, or the queue pairs that want one kind of frames.
pub(crate) struct Group {
    device: Arc<str>,
    gid: Gid,
    neighbours: Neighbours,
    changes: Arc<Changes>,
    members: Mutex<Members>,
}

impl Group {
    /// A group whose members are first looked up on a send.
    pub(crate) fn new(device: &str, gid: Gid, neighbours: Neighbours) -> Result<Group, SetupError> {
        let changes = (neighbours.changes)(device)?;
        let members = Mutex::default();
        Ok(Group { device: device.into(), gid, neighbours, changes, members })
    }

    /// Another group of the same device.
    pub(crate) fn beside(&self, gid: Gid) -> Group {
        let (device, changes) = (self.device.clone(), self.changes.clone());
        Group { device, gid, neighbours: self.neighbours, changes, members: Mutex::default() }
    }

    /// Puts a datagram into the inboxes of the members for which `takes` returns true. `payload` is
    /// as in [`Outlet::put`].
    fn put(&self, stamp: &Stamp, payload: &impl Fn(Target<'_>), takes: impl Fn(&Member) -> bool) {
        let mut members = self.members.lock();
        if members.changes != Some(self.changes.count()) {
            members.renew(self);
        }
        for (member, outlet) in &members.list {
            if takes(member) && outlet.is_for(member.qp) {
                outlet.put(stamp, payload);
            }
        }
    }

    /// As [`Group::put`], for a frame. A frame that does not fit an inbox is dropped.
    pub(crate) fn put_frame(&self, stamp: &Stamp, frame: &[u8], takes: impl Fn(&Member) -> bool) {
        if frame.len() <= DATAGRAM_MAX as usize {
            let length = frame.len() as u32;
            let payload = |to: Target<'_>| to.write(frame);
            self.put(&Stamp { length, ..*stamp }, &payload, takes);
        }
    }

    /// True if this was a member at the last lookup.
    pub(crate) fn holds(&self, member: &Member) -> bool {
        self.members.lock().list.iter().any(|(known, _)| known == member)
    }
}

/// The members at the last lookup, with their inboxes.
#[derive(Default)]
struct Members {
    /// The count of [`Changes`] before that lookup, if there was one.
    changes: Option<u64>,
    list: Vec<(Member, Outlet)>,
}

impl Members {
    /// Looks up the members. The count is read first: who joins meanwhile changes it again.
    #[cold]
    fn renew(&mut self, group: &Group) {
        self.changes = Some(group.changes.count());
        let neighbours = &group.neighbours;
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
