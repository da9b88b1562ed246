//! The calls of a [`VerbsId`] ([`CmId`]).
#![expect(unsafe_code, reason = "ids and queue pairs are raw pointers of librdmacm")]

use std::ffi::c_int;
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{self, NonNull};
use std::time::Duration;

use crate::rdma_core::*;
use doorbell_fabric::CmError;
use doorbell_fabric::{CmId, EventKind, IdKey};
use doorbell_fabric::{ConnParam, Depths, IdOption, Join, PortSpace, QpAttr, UdParam};
use doorbell_fabric::{Mask, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{ProtectionDomains, Provider, Qp, QpType};

use super::addr::{self, Raw};
use super::channel::VerbsChannel;
use super::id::VerbsId;
use super::line::Deadline;
use super::param::{check_data, conn_param};
use super::{fields, groups, options};
use crate::{QpParts, Verbs, VerbsQp, VerbsXrcd};

/// How long connect and accept of a synchronous id wait. The kernel gives up earlier: after 15
/// attempts, about 65 s on RoCE.
const CONNECT_LIMIT: Duration = Duration::from_secs(90);

/// How long joining a group may take on a synchronous id: a subnet manager may have to be asked.
const JOIN_LIMIT: Duration = Duration::from_secs(10);

/// How long disconnect of a synchronous id waits for the peer's answer. By then the queue pair is
/// in ERR and the peer is told, whether it answers or not.
const DISCONNECT_LIMIT: Duration = Duration::from_secs(2);

impl CmId<Verbs> for VerbsId {
    fn key(&self) -> IdKey {
        self.record().key()
    }

    fn context(&self) -> u64 {
        self.record().context()
    }

    fn set_context(&mut self, context: u64) {
        self.record().set_context(context);
    }

    fn migrate(&mut self, channel: Option<&VerbsChannel>) -> Result<(), CmError> {
        let asked = "move an id to another channel";
        if channel.is_none() && self.core.is_sync() {
            let answer = "the id is synchronous already (MG-2)";
            return Err(CmError::new(Code::Invalid, "make an id synchronous", answer));
        }
        if self.listening {
            // The kernel moves the request and leaves its new id on the old channel, where
            // librdmacm does not look for it: nobody would ever answer it.
            let answer = "the id listens, and requests on their way to it would be lost";
            return Err(
                CmError::new(Code::Busy, asked, answer).cure("migrate it before it listens")
            );
        }
        let moved = self.core.migrate(channel.map(VerbsChannel::line));
        moved.map_err(|error| CmError::from_io(asked, &error))
    }

    fn set_option(&mut self, option: IdOption) -> Result<(), CmError> {
        let told = options::set(&self.core, option)?;
        match option {
            IdOption::IbPath(_) => {
                let asked = format!("take a path to {}", self.peer());
                self.finish(&asked, told, EventKind::RouteResolved, JOIN_LIMIT)
            }
            _ => Ok(()),
        }
    }

    fn bind(&mut self, addr: SocketAddr) -> Result<(), CmError> {
        let asked = format!("bind to {addr}");
        addr::check(&self.device, &asked, addr)?;
        let mut raw = Raw::new(addr);
        // SAFETY: id and address are alive.
        self.address_call(&asked, |id| unsafe { rdma_bind_addr(id, raw.as_mut_ptr()) })?;
        self.check_device(&asked)
    }

    fn resolve_addr(
        &mut self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        limit: Duration,
    ) -> Result<(), CmError> {
        let asked = format!("resolve {to}");
        for addr in from.into_iter().chain([to]) {
            addr::check(&self.device, &asked, addr)?;
        }
        let (mut from, mut to) = (from.map(Raw::new), Raw::new(to));
        let source = from.as_mut().map_or(ptr::null_mut(), Raw::as_mut_ptr);
        let told = self.address_call(&asked, |id| {
            // SAFETY: the id is alive, and so are the addresses.
            unsafe { rdma_resolve_addr(id, source, to.as_mut_ptr(), whole_ms(limit)) }
        })?;
        self.finish(&asked, told, EventKind::AddrResolved, limit)?;
        self.check_device(&asked)
    }

    fn resolve_route(&mut self, limit: Duration) -> Result<(), CmError> {
        let asked = format!("resolve the route to {}", self.peer());
        if self.core.context().is_null() {
            let error = CmError::new(Code::Invalid, asked, "the address is not resolved");
            return Err(error.cure("resolve_addr first"));
        }
        let told = self
            // SAFETY: the id is alive and bound to a device.
            .address_call(&asked, |id| unsafe { rdma_resolve_route(id, whole_ms(limit)) })?;
        self.finish(&asked, told, EventKind::RouteResolved, limit)
    }

    fn create_qp(&mut self, pd: &Verbs, attr: &QpAttr<'_, Verbs>) -> Result<VerbsQp, CmError> {
        let asked = format!("a queue pair on {} with {:?}", self.device.name(), attr.caps);
        self.check_new_qp(&asked, attr.kind)?;
        if !pd.is_same_device(&self.device) {
            let answer = "the protection domain is of another device (QP-2)";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        let mut init = fields::init_attr(pd, &asked, attr)?;
        let plain = fields::is_plain(attr);
        self.plain_call(&asked, |id| {
            let init = &raw mut init;
            // SAFETY: id, domain and queues are alive and of one device. The extended attributes
            // begin with the plain ones.
            unsafe {
                match plain {
                    true => rdma_create_qp(id, pd.pd(), init.cast()),
                    false => rdma_create_qp_ex(id, init),
                }
            }
        })
        .map_err(|error| match error.code() {
            Code::NoMemory => error.cure("ask for less, or raise ulimit -l"),
            Code::NotSupported => error.cure("use another device, or ask without these fields"),
            _ => error.cure("ask for smaller capacities: together they may be too much"),
        })?;
        let qp = self.new_qp(&asked)?;
        let caps = fields::caps_of(&init, attr);
        let parts = QpParts {
            kind: attr.kind,
            qp,
            caps,
            device: pd,
            cqs: Some((attr.send_cq, attr.recv_cq)),
            srq: attr.srq,
            xrcd: None,
            home: self.core.clone(),
        };
        // SAFETY: made just now with these queues and capacities; only the core destroys it.
        Ok(unsafe { VerbsQp::new(parts) })
    }

    fn create_xrc_recv(&mut self, xrcd: &VerbsXrcd) -> Result<VerbsQp, CmError> {
        let asked = format!("a queue pair of XRC_RECV on {}", self.device.name());
        self.check_new_qp(&asked, QpType::XrcRecv)?;
        fields::check_xrcd(&self.device, &asked, xrcd)?;
        let mut init = xrcd.recv_attr();
        self.plain_call(&asked, |id| {
            // SAFETY: id and domain are alive and of one device.
            unsafe { rdma_create_qp_ex(id, &raw mut init) }
        })?;
        let qp = self.new_qp(&asked)?;
        // SAFETY: made just now in that domain, without queues; only the core destroys it.
        Ok(unsafe { VerbsQp::new(fields::xrc_parts(&self.device, xrcd, qp, self.core.clone())) })
    }

    fn listen(&mut self, backlog: u32) -> Result<(), CmError> {
        let local = self.local_addr().map_or(String::from("any address"), |a| a.to_string());
        let asked = format!("listen on {local}");
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the id is alive.
        self.address_call(&asked, |id| unsafe { rdma_listen(id, backlog) })?;
        self.listening = true;
        Ok(())
    }

    fn get_request(&mut self, limit: Option<Duration>) -> Result<VerbsId, CmError> {
        let asked = "the next connection request";
        if !self.core.is_sync() {
            let error = CmError::new(Code::Invalid, asked, "the listener has an event channel");
            return Err(error.cure("take requests from the channel"));
        }
        let deadline = Deadline::after(limit);
        let failed = |error| CmError::from_io(asked, &error);
        let line = self.core.line();
        while line.wait(deadline).map_err(failed)? {
            if let Some(request) = self.try_request().map_err(failed)? {
                return Ok(request);
            }
        }
        Err(CmError::new(Code::TimedOut, asked, "none came in time"))
    }

    fn private_data(&self) -> &[u8] {
        self.record().private_data()
    }

    fn depths(&self) -> Option<Depths> {
        self.record().depths()
    }

    fn space(&self) -> PortSpace {
        self.core.space()
    }

    fn qp_type(&self) -> QpType {
        self.core.qp_type()
    }

    fn ud(&self) -> Option<UdParam> {
        self.record().ud()
    }

    fn join_multicast(&mut self, group: IpAddr, how: Join) -> Result<(), CmError> {
        let asked = format!("join the multicast group {group}");
        if !group.is_multicast() {
            let answer = "that is not the address of a group";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        let told = groups::join(&self.core, &asked, group, how)?;
        self.finish(&asked, told, EventKind::MulticastJoin, JOIN_LIMIT)
    }

    fn leave_multicast(&mut self, group: IpAddr) -> Result<(), CmError> {
        groups::leave(&self.core, group)
    }

    fn connect(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        let asked = format!("connect to {}", self.peer());
        let space = self.core.space();
        let mut raw = conn_param(&asked, param, space.connect_data_max(), self.device.caps())?;
        if !space.is_datagram() {
            self.needs_qp(&asked)?;
        }
        // SAFETY: the id is alive, and the private data as long as `param`.
        let told = self.plain_call(&asked, |id| unsafe { rdma_connect(id, &raw mut raw) })?;
        self.finish(&asked, told, EventKind::Established, CONNECT_LIMIT)
    }

    fn accept(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        let asked = format!("accept {}", self.peer());
        let space = self.core.space();
        let mut raw = conn_param(&asked, param, space.accept_data_max(), self.device.caps())?;
        if !space.is_datagram() || param.qp_num == 0 {
            self.needs_qp(&asked)?;
        }
        // SAFETY: the id is alive, and the private data as long as `param`.
        let told = self.plain_call(&asked, |id| unsafe { rdma_accept(id, &raw mut raw) })?;
        if space.is_datagram() {
            // No event follows (CM-14).
            return Ok(());
        }
        self.finish(&asked, told, EventKind::Established, CONNECT_LIMIT)
    }

    fn connect_with(&mut self, qp: &VerbsQp, param: &ConnParam<'_>) -> Result<(), CmError> {
        let asked = format!("connect to {} for queue pair {}", self.peer(), qp.num());
        let most = self.core.space().connect_data_max();
        let mut raw = conn_param(&asked, param, most, self.device.caps())?;
        raw.qp_num = qp.num();
        // SAFETY: the id is alive, and the private data as long as `param`.
        let told = self.plain_call(&asked, |id| unsafe { rdma_connect(id, &raw mut raw) })?;
        self.finish(&asked, told, EventKind::ConnectResponse, CONNECT_LIMIT)
    }

    fn accept_with(&mut self, qp: &VerbsQp, param: &ConnParam<'_>) -> Result<(), CmError> {
        let asked = format!("accept {} for queue pair {}", self.peer(), qp.num());
        let space = self.core.space();
        let mut raw = conn_param(&asked, param, space.accept_data_max(), self.device.caps())?;
        raw.qp_num = qp.num();
        // SAFETY: the id is alive, and the private data as long as `param`.
        let told = self.plain_call(&asked, |id| unsafe { rdma_accept(id, &raw mut raw) })?;
        if space.is_datagram() {
            return Ok(());
        }
        self.finish(&asked, told, EventKind::Established, CONNECT_LIMIT)
    }

    fn init_qp_attr(&mut self, state: QpState) -> Result<QpFields, CmError> {
        let asked = format!("what a queue pair needs for {state:?}");
        if !matches!(state, QpState::Init | QpState::Rtr | QpState::Rts) {
            let answer = "the connection manager knows INIT, RTR and RTS only";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        // SAFETY: zero is a valid value of each field.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = state as u32;
        let mut mask = 0;
        self.plain_call(&asked, |id| {
            // SAFETY: the id is alive, and so are structure and mask.
            unsafe { rdma_init_qp_attr(id, &raw mut attr, &raw mut mask) }
        })?;
        let mask = Mask::from_bits_truncate(mask.cast_unsigned());
        // What the kernel fills in when it knows the peer; before, it says next to nothing.
        let known = match state {
            QpState::Rtr => Mask::DEST_QP,
            QpState::Rts => Mask::SQ_PSN,
            _ => Mask::STATE,
        };
        if !mask.contains(known) {
            return Err(CmError::new(Code::Invalid, asked, "the peer is not known yet"));
        }
        Ok(fields::from_raw(&attr, mask))
    }

    fn establish(&mut self) -> Result<(), CmError> {
        let asked = format!("establish the connection to {}", self.peer());
        // librdmacm would say that all is well.
        if !self.record().take_wait() {
            return Err(CmError::new(Code::Invalid, asked, "the peer has not answered (CM-12)"));
        }
        // SAFETY: the id is alive.
        self.plain_call(&asked, |id| unsafe { rdma_establish(id) }).map(drop)
    }

    fn query_qp(&self) -> Result<QpFields, CmError> {
        // The lock keeps the queue pair from being destroyed on its thread.
        self.core.with(|id| {
            // SAFETY: the id is alive, and so is its queue pair if it has one.
            unsafe {
                match NonNull::new((*id).qp) {
                    Some(qp) => fields::query(qp),
                    None => {
                        let answer = "the id has none";
                        Err(CmError::new(Code::Invalid, "query a queue pair", answer))
                    }
                }
            }
        })
    }

    fn reject(&mut self, private_data: &[u8]) -> Result<(), CmError> {
        let asked = format!("reject {}", self.peer());
        let len = check_data(&asked, private_data, self.core.space().reject_data_max())?;
        let data = private_data.as_ptr().cast();
        // SAFETY: the id is alive, and the data for the call.
        self.plain_call(&asked, |id| unsafe { rdma_reject(id, data, len) })?;
        Ok(())
    }

    /// On a synchronous id waits for the peer to disconnect too, at most 2 s.
    fn disconnect(&mut self) -> Result<(), CmError> {
        let asked = format!("disconnect from {}", self.peer());
        if self.core.space().is_datagram() {
            let answer = "datagrams have no connection";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        if self.parted || self.core.context().is_null() {
            return Err(CmError::new(Code::Invalid, asked, "the id is not connected"));
        }
        // SAFETY: the id is alive and bound to a device.
        let told = self.plain_call(&asked, |id| unsafe { rdma_disconnect(id) })?;
        self.parted = true;
        if self.record().has_left() {
            // Its event has been taken, and there is no second one.
            return Ok(());
        }
        match self.finish(&asked, told, EventKind::Disconnected, DISCONNECT_LIMIT) {
            Err(error) if error.code() == Code::TimedOut => Ok(()),
            ended => ended,
        }
    }

    fn peer_left(&mut self) -> bool {
        let now = Deadline::after(Some(Duration::ZERO));
        // Whatever else is there, or goes wrong, does not end the connection.
        while self.core.is_sync() && !self.record().has_left() {
            if !matches!(self.core.next(now), Ok(Some(_))) {
                break;
            }
        }
        self.record().has_left()
    }

    fn set_rnr_timer(&mut self, code: u8) -> Result<(), CmError> {
        let asked = format!("RNR timer code {code}");
        if code > 31 {
            return Err(CmError::new(Code::Invalid, asked, "codes go from 0 to 31 (RC-1)"));
        }
        // SAFETY: zero is a valid value of each field.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.min_rnr_timer = code;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        // The lock keeps the queue pair from being destroyed on its thread.
        let errno = self.core.with(|id| {
            // SAFETY: the id is alive, and so is its queue pair if it has one.
            unsafe {
                match (*id).qp {
                    qp if qp.is_null() => libc::EINVAL,
                    qp => ibv_modify_qp(qp, &raw mut attr, mask.0.cast_signed()),
                }
            }
        });
        if errno == 0 {
            return Ok(());
        }
        let error = io::Error::from_raw_os_error(errno.saturating_abs());
        Err(CmError::from_io(asked, &error).cure("a connected queue pair is needed"))
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.core.local_addr()
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        self.core.peer_addr()
    }
}

/// A limit in milliseconds, rounded up. Only a limit of zero gives 0, which librdmacm refuses
/// (CM-3).
fn whole_ms(limit: Duration) -> c_int {
    c_int::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}
