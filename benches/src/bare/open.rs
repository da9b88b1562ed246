//! How two queue pairs are made and connected.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use doorbell::provider::{Qp, QpCaps, QpType, Sharing};
use doorbell::worker::Config;
use doorbell::{CmId, ConnParam, Fabric, PortSpace, QpAttr, QpAttrEx, UdParam};

use crate::ask::request::Transport;
use crate::bare::device::{Bare, Parts, Shape, Way, stride};
use crate::bare::memory::Memory;
use crate::error::Failure;
use crate::meet::patience::PATIENCE;
use crate::meet::wire;

/// An id that listens for the other side.
pub(crate) struct Door<F: Fabric>(F::Id);

fn space(transport: Transport) -> PortSpace {
    if transport == Transport::Ud { PortSpace::Udp } else { PortSpace::Tcp }
}

impl<F: Fabric> Door<F> {
    /// Listens on a free port.
    pub(crate) fn open(fabric: &F, ip: IpAddr, transport: Transport) -> Result<Door<F>, Failure> {
        let mut id = fabric.create_id(None, space(transport))?;
        id.bind(SocketAddr::new(ip, 0))?;
        id.listen(0)?;
        Ok(Door(id))
    }

    pub(crate) fn addr(&self) -> Result<SocketAddr, Failure> {
        self.0.local_addr().ok_or_else(|| Failure::new("no port to listen on"))
    }

    /// Accepts the first side that connects.
    pub(crate) fn take<const OTHER: bool>(
        mut self,
        fabric: &F,
        shape: &Shape,
    ) -> Result<Bare<F, OTHER>, Failure> {
        let mut id = self.0.get_request(Some(PATIENCE))?;
        let parts = parts(fabric, &mut id, shape)?;
        id.accept(&ConnParam::default())?;
        // The serving side waits for as long as the other side lives; of datagrams nothing tells
        // when that ends.
        let patience = (shape.transport == Transport::Ud).then_some(PATIENCE);
        join(fabric, parts, (id, None), shape, patience)
    }
}

/// Connects to a [`Door`].
pub(crate) fn dial<F: Fabric, const OTHER: bool>(
    fabric: &F,
    addr: SocketAddr,
    shape: &Shape,
) -> Result<Bare<F, OTHER>, Failure> {
    let mut id = fabric.create_id(None, space(shape.transport))?;
    id.resolve_addr(None, addr, PATIENCE)?;
    id.resolve_route(PATIENCE)?;
    let parts = parts(fabric, &mut id, shape)?;
    id.connect(&ConnParam::default())?;
    let way = |ud: UdParam| Way::new(fabric, &ud.to, (ud.qp_num, ud.qkey));
    let ud = id.ud().filter(|_| shape.transport == Transport::Ud);
    let to = ud.map(way).transpose()?;
    join(fabric, parts, (id, to), shape, Some(PATIENCE))
}

/// Makes all that a queue pair needs, and posts every receive.
fn parts<F: Fabric>(fabric: &F, id: &mut F::Id, shape: &Shape) -> Result<Parts<F>, Failure> {
    let caps = QpCaps {
        send_wr: Config::DEFAULT.send_queue,
        recv_wr: if shape.srq { 0 } else { shape.blocks },
        send_sge: 1,
        recv_sge: 1,
        inline: Config::DEFAULT.inline_bytes,
    };
    let depth = caps.send_wr + shape.blocks;
    let (cq, poller) = fabric.create_cq(depth, Sharing::Exclusive)?;
    let srq = fabric.create_srq(shape.blocks)?;
    let attr = QpAttr {
        kind: match shape.transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
        },
        send_cq: &cq,
        recv_cq: &cq,
        srq: shape.srq.then_some(&srq),
        caps,
        signal_all: false,
        ex: QpAttrEx::default(),
    };
    let qp = id.create_qp(fabric, &attr)?;
    let bytes = shape.blocks as usize * stride(shape.block_bytes);
    let (blocks, out) = (Memory::new(fabric, bytes)?, Memory::new(fabric, shape.out_bytes)?);
    let mut parts = Parts { qp, srq, poller, blocks, out };
    parts.post_blocks(shape)?;
    Ok(parts)
}

/// Puts the side together once the id is connected or accepted.
fn join<F: Fabric, const OTHER: bool>(
    fabric: &F,
    parts: Parts<F>,
    (mut id, to): (F::Id, Option<Way<F>>),
    shape: &Shape,
    patience: Option<Duration>,
) -> Result<Bare<F, OTHER>, Failure> {
    if shape.transport == Transport::Rc {
        id.set_rnr_timer(Config::DEFAULT.retry.rnr_timer)?;
    }
    if (parts.qp.caps().inline as usize) < wire::WORD_BYTES {
        return Err(Failure::new("the device sends nothing inline; this test needs 16 bytes"));
    }
    Ok(Bare::new(fabric, parts, (id, to), shape, patience))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::request::{Request, Test};
    use doorbell::soft::SoftDevice;

    #[test]
    fn receives_are_shared_only_if_that_is_asked() {
        let device = SoftDevice::open().unwrap();
        for srq in [true, false] {
            let request = Request { srq, ..Request::new(Test::Latency, 8) };
            let ip = IpAddr::from([127, 0, 0, 1]);
            let door = Door::open(&device, ip, request.transport).unwrap();
            let mut id = device.create_id(None, PortSpace::Tcp).unwrap();
            id.resolve_addr(None, door.addr().unwrap(), PATIENCE).unwrap();
            id.resolve_route(PATIENCE).unwrap();
            let parts = parts(&device, &mut id, &Shape::echoes(&request)).unwrap();
            assert_eq!(parts.qp.caps().recv_wr > 0, !srq);
        }
    }
}
