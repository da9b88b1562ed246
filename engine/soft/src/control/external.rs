//! Queue pairs that belong to no id, and connections on their behalf (CM-12).
//!
//! The connection of such a queue pair is unknown before it goes to RTR. It then names the fields
//! that the connection manager gave out: peer, number, first packet. Until then the end waits under
//! these fields ([`super::waiting`]).

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use doorbell_fabric::CmError;
use doorbell_fabric::extended;
use doorbell_fabric::{Depths, QpAttr};
use doorbell_fabric::{Mtu, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, AddressVector, Gid, GlobalRoute, Qp, QpType};

use super::clock::{RNR_TIMER_DEFAULT, rnr_timer_ns};
use super::device::SoftDevice;
use super::end::{Core, End, State};
use super::links::Ends;
use super::rendezvous::Attempt;
use super::sys;
use super::waiting::{JoinQp, Token};
use super::wire::Instance;
use crate::{QpControl, SEGMENT_HEADER_MAX, SoftQp, SoftQpEx, SoftQpInit, Wiring};

/// `ibv_create_qp_ex`, with or without an id. The device's queue pair begins in INIT; `ExternalQp`
/// of `doorbell-cm` keeps the state RESET, and refuses what RESET does not allow.
pub(super) fn create(
    device: &SoftDevice,
    attr: &QpAttr<'_, SoftDevice>,
) -> Result<SoftQp, CmError> {
    extended::check(&format!("a queue pair of {}", device.name()), attr)?;
    let max_tso_header = attr.ex.max_tso_header.unwrap_or_default();
    if max_tso_header > SEGMENT_HEADER_MAX {
        let asked = format!("a queue pair with headers of {max_tso_header} bytes");
        let answer = format!("{} takes {SEGMENT_HEADER_MAX} at most (QX-7)", device.name());
        return Err(CmError::new(Code::Invalid, asked, answer));
    }
    let ex = SoftQpEx {
        max_tso_header,
        create_flags: attr.ex.create_flags.unwrap_or_default(),
        spread: attr.ex.rwq_ind_tbl.zip(attr.ex.rx_hash_conf.as_ref()),
    };
    let qp = device.1.create_qp(&SoftQpInit {
        kind: attr.kind,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        caps: attr.caps,
        signal_all: attr.signal_all,
        ex,
    })?;
    Ok(qp)
}

/// `ibv_modify_qp`; see [`SoftDevice::try_modify_qp`].
pub(super) fn modify(
    device: &SoftDevice,
    qp: &mut SoftQp,
    from: QpState,
    fields: &QpFields,
    attempt: &mut Attempt,
) -> Result<bool, CmError> {
    let raw = qp.kind() == QpType::RawPacket;
    check_peer(device, qp, from, fields)?;
    if let Some(rights) = fields.access {
        qp.control().set_rights(rights);
    }
    match (from, fields.state.unwrap_or(from)) {
        (QpState::Reset, QpState::Reset) => {}
        (_, QpState::Reset) => {
            let parting = device.part(qp.num());
            qp.reset();
            drop(parting);
        }
        (_, QpState::Sqd) if raw => {
            let asked = format!("take a queue pair of {} to Sqd", device.name());
            return Err(CmError::new(Code::NotSupported, asked, "frames are not held back")
                .cure("wait for the completions instead"));
        }
        (QpState::Rts, QpState::Sqd) => qp.pause(fields.sqd_notify.unwrap_or(false)),
        (_, QpState::Err) => qp.fail(),
        (from, _) if raw || qp.kind() == QpType::Ud => modify_datagrams(qp, from, fields),
        (_, QpState::Rtr) => return wire(device, &qp.control(), fields, attempt),
        (from, to) => {
            match (from, to) {
                (QpState::Sqe, QpState::Rts) => qp.recover(),
                (QpState::Sqd, QpState::Rts) => qp.resume(),
                _ => {}
            }
            set_figures(device, &qp.control(), fields);
        }
    }
    Ok(true)
}

/// In SQD the table allows another address, which may lead to the same peer alone. A queue pair
/// that an id has connected has no address here.
fn check_peer(
    device: &SoftDevice,
    qp: &SoftQp,
    from: QpState,
    fields: &QpFields,
) -> Result<(), CmError> {
    let rendezvous = device.0.rendezvous.get().filter(|_| from == QpState::Sqd);
    let known = rendezvous.and_then(|rendezvous| rendezvous.peer(qp.num()));
    let (Some(av), Some(known)) = (fields.av, known) else { return Ok(()) };
    if av.route.is_some_and(|route| route.gid == known) {
        return Ok(());
    }
    let asked = format!("give queue pair {} another address in SQD", qp.num());
    let answer = "it does not lead to the peer that the queue pair has";
    Err(CmError::new(Code::NotSupported, asked, answer)
        .cure("for another peer, take it to RESET and connect it again"))
}

/// Sets the figures of a connected queue pair.
fn set_figures(device: &SoftDevice, qp: &QpControl, fields: &QpFields) {
    if let Some(time) = fields.min_rnr_timer.and_then(rnr_timer_ns) {
        qp.set_rnr_timer(time);
    }
    if let Some(depth) = fields.max_rd_atomic {
        qp.set_initiator_depth(depth);
    }
    if let Some(depth) = fields.max_dest_rd_atomic {
        qp.set_responder_depth(depth);
    }
    if let Some(rendezvous) = device.0.rendezvous.get() {
        if let Some(retries) = fields.rnr_retry {
            rendezvous.say_rnr_retry(qp.num(), retries);
        }
        rendezvous.set_retries(qp.num(), fields.timeout, fields.retry_cnt);
    }
}

/// A UD or RAW_PACKET queue pair needs no peer. From RTR on it receives. The owner of its state
/// refuses sends before RTS.
fn modify_datagrams(qp: &mut SoftQp, from: QpState, fields: &QpFields) {
    if let Some(qkey) = fields.qkey {
        qp.control().set_qkey(qkey);
    }
    match (from, fields.state) {
        (_, Some(QpState::Rtr)) => qp.control().open(),
        (QpState::Sqe, Some(QpState::Rts)) => qp.recover(),
        (QpState::Sqd, Some(QpState::Rts)) => qp.resume(),
        _ => {}
    }
}

/// Joins the queue pair to the connection that the fields belong to.
fn wire(
    device: &SoftDevice,
    qp: &QpControl,
    fields: &QpFields,
    attempt: &mut Attempt,
) -> Result<bool, CmError> {
    let route = fields.av.and_then(|av| av.route);
    let token = route.zip(fields.dest_qp).zip(fields.rq_psn);
    let token = token.map(|((route, qp), psn)| Token { instance: route.gid.0, qp, psn });
    let found = token.and_then(|token| Some((token, device.0.waiting.find(&token)?)));
    let Some((token, end)) = found else {
        if let Some(((route, peer), rendezvous)) =
            route.zip(fields.dest_qp).zip(device.0.rendezvous.get())
        {
            let wiring = by_number(device, fields, peer);
            return rendezvous.try_connect(qp, (route.gid, peer), &wiring, attempt);
        }
        let asked = "take a queue pair to RTR";
        if route.is_none() {
            let answer = "the address of the peer has no GID";
            return Err(CmError::new(Code::Invalid, asked, answer).cure(
                "this device needs one, as RoCE does: QpFields::av with a route; in C \
                 ah_attr.is_global and grh.dgid (programs of rdma-core: -g 0)",
            ));
        }
        let answer = "the connection manager has not given out these fields, or for one only once";
        return Err(CmError::new(Code::NotSupported, asked, answer)
            .cure("on this device use what init_qp_attr says; it has no other way to a peer"));
    };
    // If this fails, the program may try again.
    end.join_qp(qp, fields)?;
    device.0.waiting.remove(&token);
    Ok(true)
}

/// The figures of a connection by number, as far as they are known in RTR. The peer tells its
/// `rnr_retry` when it goes to RTS. Until then its messages wait here for a receive without limit
/// (RC-1).
fn by_number(device: &SoftDevice, fields: &QpFields, peer: u32) -> Wiring {
    let most = device.0.rd_atomic_max();
    let timer = fields.min_rnr_timer.unwrap_or(RNR_TIMER_DEFAULT);
    Wiring {
        peer,
        peer_rnr_retry: 7,
        rnr_timer_ns: rnr_timer_ns(timer).unwrap_or_default(),
        initiator_depth: most,
        responder_depth: fields.max_dest_rd_atomic.unwrap_or(most).min(most),
    }
}

impl JoinQp for End {
    fn join_qp(&self, qp: &QpControl, fields: &QpFields) -> Result<(), CmError> {
        self.lock().wire(qp, fields)
    }
}

/// The fields for a step (`rdma_init_qp_attr`).
pub(super) fn fields_for(end: &Arc<End>, state: QpState) -> Result<QpFields, CmError> {
    let asked = || format!("what a queue pair needs for {state:?}");
    let mut core = end.lock();
    if core.state == State::Idle {
        return Err(CmError::new(Code::Invalid, asked(), "the id is bound to no device")
            .cure("bind it, or resolve the peer's address"));
    }
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let kind = core.kind;
    if state == QpState::Init {
        return Ok(QpFields {
            access: Some(rights),
            pkey_index: Some(0),
            port: Some(1),
            ..QpFields::to(state)
        });
    }
    let known = core.peer_of_external().zip(end.peer_qp.get());
    let Some(((instance, peer, depths), theirs)) = known else {
        let answer = format!("the id is {:?}: the peer is not known yet", core.state);
        return Err(CmError::new(Code::Invalid, asked(), answer)
            .cure("wait for CONNECT_RESPONSE, or take the id from a CONNECT_REQUEST event"));
    };
    // The active side's figure holds for both; how often a side's sends wait for a receive, the
    // other side says (QP-20).
    let asked_here = core.state == State::Answered;
    let retry_count = if asked_here { core.retry_count } else { theirs.retry_count };
    let rnr_retry = theirs.rnr_retry;
    match state {
        QpState::Rtr => {
            let psn = core.psn()?;
            let token = Token { instance, qp: peer, psn };
            let waiting: Weak<End> = Arc::downgrade(end);
            core.device.waiting.add(token, waiting);
            let route = GlobalRoute { gid: Gid(instance), hop_limit: 1, ..GlobalRoute::default() };
            Ok(QpFields {
                av: Some(AddressVector { route: Some(route), port: 1, ..AddressVector::default() }),
                path_mtu: Some(Mtu::Bytes4096),
                dest_qp: Some(peer),
                rq_psn: Some(psn),
                max_dest_rd_atomic: takes(kind).then_some(depths.responder),
                min_rnr_timer: takes(kind).then_some(RNR_TIMER_DEFAULT),
                ..QpFields::to(state)
            })
        }
        QpState::Rts => Ok(QpFields {
            timeout: Some(core.options.ack_timeout),
            retry_cnt: asks(kind).then_some(retry_count),
            rnr_retry: asks(kind).then_some(rnr_retry),
            sq_psn: Some(core.psn()?),
            max_rd_atomic: asks(kind).then_some(depths.initiator),
            ..QpFields::to(state)
        }),
        _ => {
            let answer = "the connection manager knows INIT, RTR and RTS only";
            Err(CmError::new(Code::Invalid, asked(), answer))
        }
    }
}

/// True if queue pairs of that type serve requests.
fn takes(kind: QpType) -> bool {
    kind != QpType::XrcSend
}

/// True if queue pairs of that type make requests.
fn asks(kind: QpType) -> bool {
    kind != QpType::XrcRecv
}

impl Core {
    /// The peer's device and queue pair, and the depths of the connection, as far as they are
    /// known.
    fn peer_of_external(&self) -> Option<(Instance, u32, Depths)> {
        match (self.state, &self.request, self.external.answer) {
            (State::Asked, Some(request), _) => {
                let depths = request.depths.swapped().within(self.depths_max());
                Some((request.place.instance, request.qp, depths))
            }
            (State::Answered, _, Some(peer)) => Some((self.peer_instance?, peer, self.depths)),
            _ => None,
        }
    }

    fn psn(&mut self) -> Result<u32, CmError> {
        if let Some(psn) = self.external.psn {
            return Ok(psn);
        }
        let mut bytes = [0; 4];
        sys::random(&mut bytes).map_err(|error| CmError::from_io("a packet number", &error))?;
        Ok(*self.external.psn.insert(u32::from_le_bytes(bytes) >> 8))
    }

    /// Joins a queue pair to this end's connection.
    fn wire(&mut self, qp: &QpControl, fields: &QpFields) -> Result<(), CmError> {
        let asked = "join a queue pair to a connection";
        let most = self.depths_max();
        let limit = |wanted: Option<u8>, most: u8| wanted.unwrap_or(most).min(most);
        let timer = fields.min_rnr_timer.unwrap_or(RNR_TIMER_DEFAULT);
        let wiring = |peer, rnr_retry, initiator| Wiring {
            peer,
            peer_rnr_retry: rnr_retry,
            rnr_timer_ns: rnr_timer_ns(timer).unwrap_or_default(),
            initiator_depth: initiator,
            responder_depth: limit(fields.max_dest_rd_atomic, most.responder),
        };
        match (self.state, &self.request, &self.external.qp, &self.link) {
            (State::Asked, Some(request), ..) => {
                let Some(peer) = self.peer else {
                    return Err(CmError::new(Code::Invalid, asked, "the peer has left")
                        .cure("drop the id, and wait for the next request"));
                };
                let here = self.place(qp);
                let ends = Ends { peer_pid: peer.pid, peer: request.place, here };
                let (links, notifier) = (&self.device.links, self.peer_notifier.as_ref());
                let notifier = notifier.map(AsFd::as_fd);
                let offer = links.offer(ends, request.directory, notifier, qp)?;
                // This side states its retries when it accepts.
                let initiator = request.depths.swapped().initiator.min(most.initiator);
                qp.connect(&offer.link, wiring(request.qp, 7, initiator));
                // The queue pair may have gone to RTR before.
                self.drop_external();
                self.external.offered = Some((offer, qp.num()));
                Ok(())
            }
            (State::Answered, _, Some(known), Some(link)) if self.external.unwired => {
                if known.num() != qp.num() {
                    let answer = format!("it is for queue pair {}", known.num());
                    return Err(CmError::new(Code::Invalid, asked, answer)
                        .cure("use the queue pair that connect was called with"));
                }
                let peer = self.external.answer.unwrap_or_default();
                qp.connect(link, wiring(peer, self.rnr_retry, self.depths.initiator));
                self.external.unwired = false;
                Ok(())
            }
            (state, ..) => {
                Err(CmError::new(Code::Invalid, asked, format!("the id is {state:?} by now"))
                    .cure("connect once more, with what init_qp_attr says then"))
            }
        }
    }

    /// Gives back what was prepared for a queue pair and not used.
    pub(super) fn drop_external(&mut self) {
        if let Some((offer, _)) = self.external.offered.take() {
            // The end that the peer would have taken.
            offer.link.release_end();
        }
        if std::mem::take(&mut self.external.unwired)
            && let Some(link) = &self.link
        {
            link.release_end();
        }
    }
}
