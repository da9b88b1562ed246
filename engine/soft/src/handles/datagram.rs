//! Datagrams: a post puts them into the inbox of the receiver's queue pair; a poll takes them out
//! of its own inbox. A datagram that cannot be delivered is dropped, and nobody is told.

use std_alloc::boxed::Box;
use std_alloc::format;
use std_alloc::sync::Arc;

use crate::device::host::Member;
use crate::device::nic::Nic;
use crate::device::path::{Groups, Path, no_groups};
use crate::error::{Code, SetupError};
use crate::ext::raw::header_fits;
use crate::ext::raw::state::Raw;
use crate::ext::raw::switch::Switch;
use crate::handles::create_qp::SoftQpEx;
use crate::handles::device::Soft;
use crate::handles::poller::SoftCq;
use crate::handles::qp_control::QpControl;
use crate::model::buffers::{Posted, Target};
use crate::model::cq::Sink;
use crate::model::send_queue::Sent;
use crate::model::table::INBOXES;
use crate::provider::wake::Notifier;
use crate::provider::{CreateFlags, GRH_BYTES, Gid, QpType};
use crate::shm::copy::gather;
use crate::shm::inbox::{BURST, DATAGRAM_MAX, INBOX_BYTES, Inbox, Stamp};
use crate::state::qp::{Datagrams, QpContext, State};
use crate::state::resources::Resources;
use crate::state::transport::Transport;
use crate::steps::admission::{admissible, keep_for_later, leaving, push};
use crate::steps::command::Command;
use crate::wc::{Status, Wc, WcFlags, WcOpcode};
use crate::wr::{Destination, PostError, RecvWr, SendFlags, SendOp};

/// With this bit in the key of a request, the datagram has the sender's own key.
const OWN_KEY: u32 = 1 << 31;

/// The fixed fields of an IPv4 header of a datagram: version 4, five words, do not fragment, 64
/// hops, UDP.
const IPV4: [u8; 20] = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1];

/// Bytes of UDP, transport headers and checksum around a payload (RoCE version 2).
const AROUND: usize = 8 + 12 + 8 + 4;

impl QpContext {
    /// Moves a UD or RAW_PACKET queue pair from INIT to RTS. Drops the datagrams before that
    /// ticket: the owner may have asked for RTS long before the domain carries it out, and may have
    /// told its peers meanwhile. False: it is another type, or not in INIT.
    pub(crate) fn open(&mut self, first: u64, clock: fn() -> u64) -> bool {
        let Some(datagrams) = self.datagrams.as_mut().filter(|_| self.state == State::Init) else {
            return false;
        };
        self.state = State::Unreliable;
        datagrams.inbox.skip_to(first, clock);
        true
    }

    /// True if something may be in its inbox; then it must be scheduled.
    fn has_datagrams(&self) -> bool {
        let waits = self.state != State::Err && !self.is_scheduled;
        waits && self.datagrams.as_ref().is_some_and(|datagrams| datagrams.inbox.has_news())
    }

    /// A post on a queue pair of UD or RAW_PACKET in RTS: everything in it leaves at once.
    pub(crate) fn post_datagrams(
        &mut self,
        nic: &Nic,
        list: &[Posted<'_>],
    ) -> Result<(), PostError> {
        for (accepted, wr) in list.iter().enumerate() {
            let checked = admissible(self, wr).and_then(|()| header_fits(self, wr));
            checked.map_err(|cause| PostError { accepted, cause })?;
            if self.paused && self.state == State::Unreliable {
                keep_for_later(self, wr);
                continue;
            }
            let status = match self.state {
                State::Unreliable if self.kind == QpType::Ud => self.send_datagram(nic, wr),
                State::Unreliable => self.send_frame(nic, wr),
                _ => Status::Flushed,
            };
            let how = if status.is_ok() { Sent::ON_WIRE } else { Sent::failed(status) };
            push(self, wr, 0, how);
            self.sq.sent = self.sq.posted;
            if !status.is_ok() {
                self.state = State::Sqe;
            }
        }
        Ok(())
    }

    /// Sends one datagram. The status tells only what this side knows: nobody learns whether it
    /// arrived.
    pub(crate) fn send_datagram(&self, nic: &Nic, wr: &Posted<'_>) -> Status {
        let (to, imm) = match wr.op {
            SendOp::SendTo(to) => (to, None),
            SendOp::SendToWithImm(to, imm) => (to, Some(imm)),
            _ => return Status::LocalQpOperation,
        };
        let Some(datagrams) = &self.datagrams else { return Status::LocalQpOperation };
        let length = wr.length();
        if length > DATAGRAM_MAX.into() {
            return Status::LocalLength;
        }
        let Some(pieces) = leaving(&nic.memory, self, wr) else { return Status::LocalProtection };
        let Destination { ah, qpn, qkey } = to;
        let stamp = Stamp {
            length: length as u32,
            from: self.num,
            gid: nic.gid,
            qkey: if qkey & OWN_KEY != 0 { datagrams.qkey } else { qkey },
            imm,
            solicited: wr.flags.contains(SendFlags::SOLICITED),
        };
        let payload = |to: Target<'_>| gather(to, &pieces, 0);
        let path = Path::named(wr, ah);
        path.deliver(qpn, &stamp, &payload, datagrams.not_to);
        Status::Success
    }
}

impl Transport {
    /// Schedules the queue pairs whose inboxes may have a datagram.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_inboxes(&mut self) {
        let mut place = 0;
        while let Some(num) = self.res.inboxes.at(place) {
            self.check(num);
            place += 1;
        }
    }

    /// The same for one inbox, in turn. True if something has come.
    pub(crate) fn check_inbox(&mut self) -> bool {
        self.res.inboxes.next().is_some_and(|num| self.check(num))
    }

    fn check(&mut self, num: u32) -> bool {
        let Some(qp) = self.qps.get_mut(num).filter(|qp| qp.has_datagrams()) else { return false };
        self.res.service_queue.schedule(qp);
        true
    }
}

impl Soft {
    /// Makes the extra part of a UD or RAW_PACKET queue pair. On an error its number is free again.
    pub(crate) fn datagrams(
        &self,
        num: u32,
        kind: QpType,
        cq: &SoftCq,
        ex: SoftQpEx<'_>,
    ) -> Result<(Box<Datagrams>, Arc<Groups>), SetupError> {
        let asked = format!("a queue pair of {kind:?}");
        let made = || {
            let none = "this device knows no other to talk to";
            let neighbours = self.nic.host.neighbours;
            let neighbours =
                neighbours.ok_or_else(|| SetupError::new(Code::NotSupported, &*asked, none))?;
            let memory = (neighbours.memory)(INBOX_BYTES)?;
            let file = (self.nic.host.name_file)(&memory);
            let notifier = cq.domain.local_waker.notifier.as_ref().map(Notifier::fd);
            let inbox = Inbox::new(memory, num, notifier.and_then(neighbours.name_notifier))
                .ok_or_else(|| {
                    SetupError::new(
                        Code::Invalid,
                        &*asked,
                        "its memory is too short or not aligned",
                    )
                })?;
            let device = &self.nic.caps.device;
            let member = file.map(|inbox| Member { process: neighbours.process, inbox, qp: num });
            let groups = Arc::new(Groups::new(device, member, inbox.door()));
            let blocks = ex.create_flags.contains(CreateFlags::BLOCK_SELF_MCAST_LB);
            let not_to = member.filter(|_| blocks);
            let (place, raw) = match kind {
                QpType::RawPacket => {
                    let spread = ex.spread.map(|(table, by)| {
                        let answer = "its work queues complete for another thread";
                        table
                            .spread(by, cq)
                            .ok_or_else(|| SetupError::new(Code::Invalid, &*asked, answer))
                    });
                    (
                        None,
                        Some({
                            let kind = (ex.create_flags, ex.max_tso_header);
                            let switch = Switch::new(device, neighbours)?;
                            Raw::new(switch, member, &groups, kind, spread.transpose()?)
                        }),
                    )
                }
                _ => {
                    let place = self.nic.memory.show_inbox(num, file).ok_or_else(|| {
                        let answer = format!("all {INBOXES} are in use");
                        SetupError::new(Code::NoMemory, &*asked, answer).cure("destroy some first")
                    })?;
                    (Some(place), None)
                }
            };
            let raw = raw.map(Box::new);
            Ok((Box::new(Datagrams { inbox, place, qkey: 0, not_to, raw }), groups))
        };
        made().inspect_err(|_| self.nic.free_number(num))
    }
}

impl QpControl {
    /// Sets the key of a UD queue pair, which senders must give. Does nothing to other types.
    pub fn set_qkey(&self, qkey: u32) {
        self.domain.command(Command::SetQkey { num: self.num, qkey });
    }

    /// Moves a UD queue pair from INIT to RTS: from then on it receives and sends. Does nothing to
    /// other types.
    pub fn open(&self) {
        if let Some(groups) = &self.groups {
            self.domain.command(Command::Open { num: self.num, first: groups.door.next() });
        }
    }

    /// See [`crate::provider::Multicast::attach_mcast`].
    ///
    /// # Errors
    /// As there.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), SetupError> {
        match self.groups.as_ref().filter(|_| self.kind == QpType::Ud) {
            Some(groups) => groups.join(group, self.domain.host()),
            None => Err(no_groups("attach a queue pair to a group")),
        }
    }

    /// See [`crate::provider::Multicast::detach_mcast`].
    ///
    /// # Errors
    /// As there.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), SetupError> {
        match self.groups.as_ref().filter(|_| self.kind == QpType::Ud) {
            Some(groups) => groups.leave(group),
            None => Err(no_groups("detach a queue pair from a group")),
        }
    }
}

impl Resources {
    /// Receives the datagrams of a UD or RAW_PACKET queue pair. True: there may be more.
    pub(crate) fn receive_datagrams<S: Sink>(&mut self, qp: &mut QpContext, sink: &mut S) -> bool {
        if qp.state == State::Err {
            return false;
        }
        if let Some(raw) = qp.datagrams.as_mut().and_then(|datagrams| datagrams.raw.take()) {
            return self.receive_frames(qp, raw, sink);
        }
        for _ in 0..BURST {
            let Some(datagrams) = &mut qp.datagrams else { return false };
            if sink.room() == 0 {
                break;
            }
            let Some(stamp) = datagrams.inbox.first(self.nic.host.clock) else { return false };
            let known = stamp.qkey == datagrams.qkey && qp.state.is_unreliable();
            if known {
                self.receive_datagram(qp, &stamp, sink);
            }
            if let Some(datagrams) = &mut qp.datagrams {
                datagrams.inbox.advance();
            }
        }
        true
    }

    /// Takes the oldest receive for a datagram or frame of that length, which `fill` writes there.
    /// A receive that is too short stays for the next one. If its memory may not be written, it
    /// completes with an error and the queue pair fails, whatever has come.
    pub(crate) fn take_whole_receive<S: Sink>(
        &mut self,
        qp: &mut QpContext,
        length: u32,
        sink: &mut S,
        fill: impl FnOnce(&QpContext, Target<'_>),
    ) -> Option<RecvWr> {
        let assembly = self.receives.begun(qp)?;
        let wr = assembly.wr;
        if length > wr.sge.length {
            qp.assembly = Some(assembly);
            return None;
        }
        qp.assembly = None;
        if let Some(to) = self.receives.buffer(qp, &wr, (0, length)) {
            fill(qp, to);
            return Some(wr);
        }
        self.completions.receive_failed(qp, wr.wr_id, Status::LocalProtection, sink);
        self.fail_qp(qp, 0, None);
        None
    }

    /// Gives the datagram in front to the oldest receive, if that has room for it and the header.
    fn receive_datagram<S: Sink>(&mut self, qp: &mut QpContext, stamp: &Stamp, sink: &mut S) {
        let length = stamp.length + GRH_BYTES as u32;
        let fill = |qp: &QpContext, to: Target<'_>| {
            to.write(&header_of(stamp));
            if let Some(datagrams) = &qp.datagrams {
                datagrams.inbox.fetch(to.part(GRH_BYTES as u32, stamp.length));
            }
        };
        let Some(wr) = self.take_whole_receive(qp, length, sink, fill) else { return };
        let with_imm = if stamp.imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        let wc = Wc {
            wr_id: wr.wr_id,
            qp_num: qp.num,
            byte_len: length,
            imm: stamp.imm.unwrap_or(0),
            vendor_err: 0,
            status: Status::Success,
            opcode: WcOpcode::Recv,
            flags: WcFlags::GRH | with_imm,
            src_qp: stamp.from,
        };
        self.completions.receive(qp.recv_cq, wc, stamp.solicited, sink);
    }
}

/// The bytes in front of a payload: in the last half an IPv4 header, as in RoCE version 2. Devices
/// may use the first half: this one puts the sender's GID there, see [`sender_in`].
fn header_of(stamp: &Stamp) -> [u8; GRH_BYTES] {
    let mut ip = IPV4;
    let total = (ip.len() + AROUND + stamp.length as usize) as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let word = |n: usize| u32::from(u16::from_be_bytes([ip[n], ip[n + 1]]));
    let mut sum: u32 = (0..ip.len()).step_by(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let mut header = [0; GRH_BYTES];
    header[..16].copy_from_slice(&stamp.gid.0);
    header[GRH_BYTES - ip.len()..].copy_from_slice(&ip);
    header
}

/// The sender that the header of a datagram names.
pub(crate) fn sender_in(header: &[u8; GRH_BYTES]) -> Gid {
    Gid(core::array::from_fn(|n| header[n]))
}
