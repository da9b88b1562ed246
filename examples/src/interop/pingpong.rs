//! `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong` of ibverbs-utils: one message back
//! and forth, between queue pairs whose states the program changes itself.
//!
//! The sides exchange their addresses over TCP: local identifier, queue pair, first packet number
//! and GID, as 51 characters and a zero. The client sends its address first. The server answers
//! when its queue pair is in RTS, so that it is ready for the client's first message. Then each
//! side sends when its own message is complete and the peer's has arrived.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use doorbell::error::Code;
use doorbell::provider::{Access, GRH_BYTES, Gid, QpType};
use doorbell::wr::{SendFlags, SendOp};
use doorbell::{
    Buffer, CmError, Completion, ExternalQp, Fabric, Mtu, Program, QpFields, QpInit, QpState,
    Source, Target, UdParam,
};

use super::common::{Plan, announce, differs, is_unanswered, linger};

/// Number of receives that are kept posted.
const DEPTH: usize = 500;
/// Bytes of an address in the exchange, including the zero.
pub(super) const ADDRESS: usize = 52;
/// The Q_Key of the UD queue pairs of both sides.
const QKEY: u32 = 0x1111_1111;
/// The first packet number of this side; an arbitrary one.
pub(super) const PSN: u32 = 0x0012_3456;

/// The address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) qp: u32,
    pub(super) psn: u32,
    pub(super) gid: Gid,
}

impl Side {
    fn encode(self) -> [u8; ADDRESS] {
        let mut text = format!("0000:{:06x}:{:06x}:", self.qp, self.psn);
        for byte in self.gid.0 {
            text.push_str(&format!("{byte:02x}"));
        }
        let mut bytes = [0; ADDRESS];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8; ADDRESS]) -> Result<Side, CmError> {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end_matches('\0');
        let parse = || {
            let mut parts = text.split(':');
            let _lid = u16::from_str_radix(parts.next()?, 16).ok()?;
            let qp = u32::from_str_radix(parts.next()?, 16).ok()?;
            let psn = u32::from_str_radix(parts.next()?, 16).ok()?;
            let gid = u128::from_str_radix(parts.next()?, 16).ok()?.to_be_bytes();
            parts.next().is_none().then_some(Side { qp, psn, gid: Gid(gid) })
        };
        parse().ok_or_else(|| differs("the peer's address", "four fields", text))
    }
}

/// Exchanges addresses over TCP and returns those of the peer. The server sends its own after
/// `ready` has connected its queue pairs.
pub(super) fn exchange<const N: usize>(
    plan: &Plan,
    serves: bool,
    fabric: &impl Fabric,
    here: &[Side; N],
    ready: impl FnOnce(&[Side; N]) -> Result<(), CmError>,
) -> Result<[Side; N], CmError> {
    let failed = |error: io::Error| CmError::from_io("exchange addresses over TCP", &error);
    let ours: Vec<u8> = here.iter().flat_map(|side| side.encode()).collect();
    let mut theirs = vec![0; ours.len()];
    if serves {
        let listener = TcpListener::bind(plan.addr).map_err(failed)?;
        announce(listener.local_addr().ok(), fabric);
        let (mut stream, _) = listener.accept().map_err(failed)?;
        stream.read_exact(&mut theirs).map_err(failed)?;
        let there = decode(&theirs)?;
        ready(&there)?;
        stream.write_all(&ours).map_err(failed)?;
        // The peer sends "done". Its end of stream is as good, so the result is ignored.
        let _ = stream.read(&mut [0; 5]);
        return Ok(there);
    }
    let mut stream = TcpStream::connect(plan.addr).map_err(failed)?;
    stream.write_all(&ours).map_err(failed)?;
    stream.read_exact(&mut theirs).map_err(failed)?;
    let there = decode(&theirs)?;
    ready(&there)?;
    stream.write_all(b"done\0").map_err(failed)?;
    Ok(there)
}

fn decode<const N: usize>(bytes: &[u8]) -> Result<[Side; N], CmError> {
    let (texts, _) = bytes.as_chunks::<ADDRESS>();
    let sides = texts.iter().map(Side::decode).collect::<Result<Vec<Side>, CmError>>()?;
    let count = sides.len();
    sides.try_into().map_err(|_| differs("addresses of the peer", N, count))
}

/// Either side of a pingpong.
#[derive(Clone, Copy, Debug)]
pub struct Pingpong {
    /// The TCP address to listen on or to connect to, which also chooses the address of the device.
    pub plan: Plan,
    /// The transport.
    pub kind: QpType,
    /// True if this side listens.
    pub serves: bool,
    /// Number of messages each way.
    pub count: u32,
    /// Bytes of each.
    pub size: usize,
}

impl Pingpong {
    fn is_datagram(&self) -> bool {
        self.kind == QpType::Ud
    }

    /// Size of a receive buffer, bytes.
    fn recv_bytes(&self) -> usize {
        if self.is_datagram() { GRH_BYTES + self.size } else { self.size }
    }

    fn queue_pair<F: Fabric>(&self, fabric: &F) -> Result<ExternalQp<F>, CmError> {
        let init = match self.kind {
            QpType::Uc => QpInit::uc(),
            QpType::Ud => QpInit::ud(),
            _ => QpInit::rc(),
        };
        ExternalQp::new(fabric, &init.send_wr(1).recv_wr(DEPTH as u32))
    }

    /// The attributes for INIT.
    pub(super) fn init(&self, source: &Source) -> QpFields {
        let access = (!self.is_datagram()).then(Access::empty);
        let qkey = self.is_datagram().then_some(QKEY);
        let (pkey_index, port) = (Some(0), Some(source.port));
        QpFields { access, qkey, pkey_index, port, ..QpFields::to(QpState::Init) }
    }

    /// Moves the queue pair from INIT to RTR and RTS, connected to the peer.
    pub(super) fn connect<F: Fabric>(
        &self,
        qp: &mut ExternalQp<F>,
        source: &Source,
        there: &Side,
    ) -> Result<(), CmError> {
        let (mut rtr, mut rts) = (QpFields::to(QpState::Rtr), QpFields::to(QpState::Rts));
        rts.sq_psn = Some(PSN);
        if !self.is_datagram() {
            rtr.av = Some(source.path_to(there.gid));
            rtr.path_mtu = Some(Mtu::Bytes1024);
            rtr.dest_qp = Some(there.qp);
            rtr.rq_psn = Some(there.psn);
        }
        if self.kind == QpType::Rc {
            (rtr.max_dest_rd_atomic, rtr.min_rnr_timer) = (Some(1), Some(12));
            (rts.timeout, rts.max_rd_atomic) = (Some(18), Some(1));
            (rts.retry_cnt, rts.rnr_retry) = (Some(7), Some(7));
        }
        qp.modify(&rtr)?;
        qp.modify(&rts)
    }

    fn check<F: Fabric>(&self, completion: &Completion<F>) -> Result<(), CmError> {
        if completion.len == self.recv_bytes() {
            return Ok(());
        }
        Err(differs("a message", format!("{} bytes", self.recv_bytes()), completion.len))
    }
}

impl Program for Pingpong {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let source = fabric.source(self.plan.addr.ip())?;
        let mut qp = self.queue_pair(&fabric)?;
        qp.modify(&self.init(&source))?;
        qp.post_recvs(&mut Buffer::many(&fabric, DEPTH, self.recv_bytes())?)?;
        let here = [Side { qp: qp.num(), psn: PSN, gid: source.gid }];
        let ready = |there: &[Side; 1]| self.connect(&mut qp, &source, &there[0]);
        let [there] = exchange(&self.plan, self.serves, &fabric, &here, ready)?;
        let target = match self.is_datagram() {
            true => {
                let to = source.path_to(there.gid);
                Some(Target::new(&fabric, &UdParam { to, qp_num: there.qp, qkey: QKEY })?)
            }
            false => None,
        };
        let mut buffer = Buffer::new(&fabric, self.size)?;
        for round in 1..=self.count {
            // The client starts, and the server answers each message.
            if self.serves {
                self.receive(&mut qp)?;
            }
            let is_last = self.serves && round == self.count;
            buffer = self.send(&mut qp, target.as_ref(), buffer, is_last)?;
            if !self.serves {
                self.receive(&mut qp)?;
            }
        }
        if self.kind == QpType::Rc {
            linger::<F>();
        }
        Ok(())
    }
}

impl Pingpong {
    /// Takes one message, and posts its buffer again.
    fn receive<F: Fabric>(&self, qp: &mut ExternalQp<F>) -> Result<(), CmError> {
        let completion = qp.next_recv(self.plan.time_left())?.ok()?;
        self.check(&completion)?;
        match completion.buffer {
            Some(buffer) => Ok(qp.post_recv(buffer)?),
            None => Err(differs("a receive", "its buffer back", "none")),
        }
    }

    /// Sends a message, and waits until it has arrived. After the last message the peer may exit
    /// before it acknowledges it; its own exit code says whether it got it.
    fn send<F: Fabric>(
        &self,
        qp: &mut ExternalQp<F>,
        target: Option<&Target<F>>,
        buffer: Buffer<F>,
        is_last: bool,
    ) -> Result<Buffer<F>, CmError> {
        match target {
            Some(target) => {
                qp.post_send_to(target, buffer, self.size, None, SendFlags::SIGNALED)?;
            }
            None => qp.post_send(buffer, self.size, SendOp::Send, SendFlags::SIGNALED)?,
        }
        let mut done = qp.next_send(self.plan.time_left())?;
        if !(is_last && is_unanswered(done.status)) {
            done = done.ok()?;
        }
        done.buffer.ok_or_else(|| {
            CmError::new(Code::Invalid, "send a message", "its buffer did not come back")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_decoded_as_it_was_encoded() {
        let side = Side { qp: 0x11, psn: 0xab_cdef, gid: Gid([0xfe; 16]) };
        let bytes = side.encode();
        let text = "0000:000011:abcdef:fefefefefefefefefefefefefefefefe\0";
        assert_eq!(&bytes[..text.len()], text.as_bytes());
        assert_eq!(Side::decode(&bytes), Ok(side));
        assert!(Side::decode(&[b'0'; ADDRESS]).is_err());
    }
}
