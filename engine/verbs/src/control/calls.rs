//! The calls of a [`VerbsId`] ([`CmId`]).

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use doorbell_fabric::CmError;
use doorbell_fabric::{CmId, EventKind, IdKey};
use doorbell_fabric::{ConnParam, Depths, IdOption, Join, PortSpace, QpAttr, UdParam};
use doorbell_fabric::{Mask, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{ProtectionDomains, Provider, Qp, QpType};

use super::addr;
use super::channel::VerbsChannel;
use super::id::VerbsId;
use super::line::Deadline;
use super::param::{check_data, conn_param};
use super::record::Told;
use super::{fields, groups, options};
use crate::handles::zero;
use crate::rdma_core::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use crate::{Verbs, VerbsQp, VerbsXrcd};

/// How much longer than its limit a synchronous id waits for the kernel to end an attempt. The
/// kernel rounds the limit up, and until the attempt has ended it refuses another.
const KERNEL_LATE: Duration = Duration::from_secs(1);

/// How long connect and accept of a synchronous id wait. The kernel gives up earlier: after 15
/// attempts, about 65 s on RoCE.
const CONNECT_LIMIT: Duration = Duration::from_secs(90);

/// How long joining a group may take on a synchronous id: a subnet manager may have to be asked.
const JOIN_LIMIT: Duration = Duration::from_secs(10);

/// How long disconnect of a synchronous id waits for the peer's answer. By then the queue pair is
/// in ERR. The kernel repeats the request if no answer comes within 4.1 s (2^12 ms, its figure for
/// the peer's response) and twice the life of a packet, up to 6.1 s together. It repeats nothing
/// for an id that is destroyed, so the wait has room for two repetitions.
const DISCONNECT_LIMIT: Duration = Duration::from_secs(13);

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
                self.finish(&asked, told, EventKind::RouteResolved, (JOIN_LIMIT, Duration::ZERO))
            }
            _ => Ok(()),
        }
    }

    fn bind(&mut self, addr: SocketAddr) -> Result<(), CmError> {
        let asked = format!("bind to {addr}");
        addr::check(&self.device, &asked, addr)?;
        self.of_address(&asked, self.core.bind_addr(addr))?;
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
        self.note_earlier();
        let answer = self.core.resolve_addr(from, to, whole_ms(limit));
        let told = self.of_address(&asked, answer)?;
        self.finish(&asked, told, EventKind::AddrResolved, (limit, KERNEL_LATE))?;
        self.check_device(&asked)
    }

    fn resolve_route(&mut self, limit: Duration) -> Result<(), CmError> {
        self.note_earlier();
        let asked = format!("resolve the route to {}", self.peer());
        if self.core.context().is_none() {
            let error = CmError::new(Code::Invalid, asked, "the address is not resolved");
            return Err(error.cure("resolve_addr first"));
        }
        let told = self.of_address(&asked, self.core.resolve_route(whole_ms(limit)))?;
        self.finish(&asked, told, EventKind::RouteResolved, (limit, KERNEL_LATE))
    }

    fn create_qp(&mut self, pd: &Verbs, attr: &QpAttr<'_, Verbs>) -> Result<VerbsQp, CmError> {
        let asked = format!("a queue pair on {} with {:?}", self.device.name(), attr.caps);
        self.check_new_qp(&asked, attr.kind)?;
        if !pd.is_same_device(&self.device) {
            let answer = "the protection domain is of another device (QP-2)";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        let made = self.core.create_qp(&fields::new_qp(pd, &asked, attr)?);
        let (qp, caps) = made.map_err(|error| {
            let error = CmError::from_io(asked, &error);
            match error.code() {
                Code::NoMemory => error.cure("ask for less, or raise ulimit -l"),
                Code::NotSupported => error.cure("use another device, or ask without these fields"),
                _ => error.cure("ask for smaller capacities: together they may be too much"),
            }
        })?;
        Ok(VerbsQp::new(qp, attr.kind, caps, !fields::has_receives(attr), pd))
    }

    fn create_xrc_recv(&mut self, xrcd: &VerbsXrcd) -> Result<VerbsQp, CmError> {
        let asked = format!("a queue pair of XRC_RECV on {}", self.device.name());
        self.check_new_qp(&asked, QpType::XrcRecv)?;
        fields::check_xrcd(&self.device, &asked, xrcd)?;
        let made = self.core.create_qp(&fields::new_xrc_recv(xrcd));
        let (qp, caps) = made.map_err(|error| CmError::from_io(asked, &error))?;
        Ok(VerbsQp::new(qp, QpType::XrcRecv, caps, true, &self.device))
    }

    fn listen(&mut self, backlog: u32) -> Result<(), CmError> {
        let local = self.local_addr().map_or(String::from("any address"), |a| a.to_string());
        let asked = format!("listen on {local}");
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        self.of_address(&asked, self.core.listen(backlog))?;
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
        self.note_earlier();
        let told = groups::join(&self.core, &asked, group, how)?;
        self.finish(&asked, told, EventKind::MulticastJoin, (JOIN_LIMIT, Duration::ZERO))
    }

    fn leave_multicast(&mut self, group: IpAddr) -> Result<(), CmError> {
        groups::leave(&self.core, group)
    }

    fn connect(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        let asked = format!("connect to {}", self.peer());
        let space = self.core.space();
        let raw = conn_param(&asked, param, space.connect_data_max(), self.device.caps())?;
        if !space.is_datagram() {
            self.needs_qp(&asked)?;
        }
        let told = plain(&asked, self.core.connect(raw, param.private_data))?;
        self.finish(&asked, told, EventKind::Established, (CONNECT_LIMIT, Duration::ZERO))
    }

    fn accept(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        let asked = format!("accept {}", self.peer());
        let space = self.core.space();
        let raw = conn_param(&asked, param, space.accept_data_max(), self.device.caps())?;
        if !space.is_datagram() || param.qp_num == 0 {
            self.needs_qp(&asked)?;
        }
        let told = plain(&asked, self.core.accept(raw, param.private_data))?;
        if space.is_datagram() {
            // No event follows (CM-14).
            return Ok(());
        }
        self.finish(&asked, told, EventKind::Established, (CONNECT_LIMIT, Duration::ZERO))
    }

    fn connect_with(&mut self, qp: &VerbsQp, param: &ConnParam<'_>) -> Result<(), CmError> {
        let asked = format!("connect to {} for queue pair {}", self.peer(), qp.num());
        let most = self.core.space().connect_data_max();
        let mut raw = conn_param(&asked, param, most, self.device.caps())?;
        raw.qp_num = qp.num();
        let told = plain(&asked, self.core.connect(raw, param.private_data))?;
        self.finish(&asked, told, EventKind::ConnectResponse, (CONNECT_LIMIT, Duration::ZERO))
    }

    fn accept_with(&mut self, qp: &VerbsQp, param: &ConnParam<'_>) -> Result<(), CmError> {
        let asked = format!("accept {} for queue pair {}", self.peer(), qp.num());
        let space = self.core.space();
        let mut raw = conn_param(&asked, param, space.accept_data_max(), self.device.caps())?;
        raw.qp_num = qp.num();
        let told = plain(&asked, self.core.accept(raw, param.private_data))?;
        if space.is_datagram() {
            return Ok(());
        }
        self.finish(&asked, told, EventKind::Established, (CONNECT_LIMIT, Duration::ZERO))
    }

    fn init_qp_attr(&mut self, state: QpState) -> Result<QpFields, CmError> {
        let asked = format!("what a queue pair needs for {state:?}");
        if !matches!(state, QpState::Init | QpState::Rtr | QpState::Rts) {
            let answer = "the connection manager knows INIT, RTR and RTS only";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        let answer = self.core.init_qp_attr(state as u32);
        let (attr, mask) = answer.map_err(|error| CmError::from_io(&asked, &error))?;
        let mask = Mask::from_bits_truncate(mask);
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
        plain(&asked, self.core.establish()).map(drop)
    }

    fn query_qp(&self) -> Result<QpFields, CmError> {
        let none = || CmError::new(Code::Invalid, "query a queue pair", "the id has none");
        fields::queried(self.core.query_qp(fields::WHOLE).ok_or_else(none)?)
    }

    fn reject(&mut self, private_data: &[u8]) -> Result<(), CmError> {
        let asked = format!("reject {}", self.peer());
        check_data(&asked, private_data, self.core.space().reject_data_max())?;
        plain(&asked, self.core.reject(private_data)).map(drop)
    }

    /// On a synchronous id waits for the peer to disconnect too, at most 13 s: the network may lose
    /// the request, and the kernel repeats it after 4 to 6 s, as long as the id lives. Drop the id
    /// in place of this call to tell the peer once, without a wait.
    fn disconnect(&mut self) -> Result<(), CmError> {
        let asked = format!("disconnect from {}", self.peer());
        if self.core.space().is_datagram() {
            let answer = "datagrams have no connection";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        if self.parted || self.core.context().is_none() {
            return Err(CmError::new(Code::Invalid, asked, "the id is not connected"));
        }
        let told = plain(&asked, self.core.disconnect())?;
        self.parted = true;
        if self.record().has_left() {
            // Its event has been taken, and there is no second one.
            return Ok(());
        }
        match self.finish(&asked, told, EventKind::Disconnected, (DISCONNECT_LIMIT, Duration::ZERO))
        {
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
        let attr =
            ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTS, min_rnr_timer: code, ..zero() };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        let errno = self.core.modify_qp(attr, mask);
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

/// What a call has answered.
fn plain(asked: &str, answer: io::Result<Option<Told>>) -> Result<Option<Told>, CmError> {
    answer.map_err(|error| CmError::from_io(asked, &error))
}

/// A limit in milliseconds, rounded up. Only a limit of zero gives 0, which librdmacm refuses
/// (CM-3).
fn whole_ms(limit: Duration) -> c_int {
    c_int::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}
