//! How two queue pairs are made and connected.
#![expect(unsafe_code, reason = "posts memory that it owns")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use doorbell::provider::{Qp, QpCaps, QpType, Sharing, Srq};
use doorbell::worker::Config;
use doorbell::wr::RecvWr;
use doorbell::{CmId, ConnParam, Fabric, PortSpace, QpAttr, QpAttrEx};

use crate::bare::device::{Bare, Parts, Shape, receive, refused, stride};
use crate::bare::memory::Memory;
use crate::error::Failure;
use crate::meet::patience::PATIENCE;
use crate::meet::wire;

/// An id that listens for the other side.
pub(crate) struct Door<F: Fabric>(F::Id);

impl<F: Fabric> Door<F> {
    /// Listens on a free port.
    pub(crate) fn open(fabric: &F, ip: IpAddr) -> Result<Door<F>, Failure> {
        let mut id = fabric.create_id(None, PortSpace::Tcp)?;
        id.bind(SocketAddr::new(ip, 0))?;
        id.listen(0)?;
        Ok(Door(id))
    }

    pub(crate) fn addr(&self) -> Result<SocketAddr, Failure> {
        self.0.local_addr().ok_or_else(|| Failure::new("no port to listen on"))
    }

    /// Accepts the first side that connects.
    pub(crate) fn take(mut self, fabric: &F, shape: &Shape) -> Result<Bare<F>, Failure> {
        let mut id = self.0.get_request(Some(PATIENCE))?;
        let parts = parts(fabric, &mut id, shape)?;
        id.accept(&ConnParam::default())?;
        // The serving side waits for as long as the other side lives.
        join(parts, id, shape, None)
    }
}

/// Connects to a [`Door`].
pub(crate) fn dial<F: Fabric>(
    fabric: &F,
    addr: SocketAddr,
    shape: &Shape,
) -> Result<Bare<F>, Failure> {
    let mut id = fabric.create_id(None, PortSpace::Tcp)?;
    id.resolve_addr(None, addr, PATIENCE)?;
    id.resolve_route(PATIENCE)?;
    let parts = parts(fabric, &mut id, shape)?;
    id.connect(&ConnParam::default())?;
    join(parts, id, shape, Some(PATIENCE))
}

/// Makes all that a queue pair needs, and posts every receive.
fn parts<F: Fabric>(fabric: &F, id: &mut F::Id, shape: &Shape) -> Result<Parts<F>, Failure> {
    let caps = QpCaps {
        send_wr: Config::DEFAULT.send_queue,
        recv_wr: 0,
        send_sge: 1,
        recv_sge: 1,
        inline: Config::DEFAULT.inline_bytes,
    };
    let depth = caps.send_wr + shape.blocks;
    let (cq, poller) = fabric.create_cq(depth, Sharing::Exclusive)?;
    let srq = fabric.create_srq(shape.blocks)?;
    let attr = QpAttr {
        kind: QpType::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: Some(&srq),
        caps,
        signal_all: false,
        ex: QpAttrEx::default(),
    };
    let qp = id.create_qp(fabric, &attr)?;
    let bytes = shape.blocks as usize * stride(shape.block_bytes);
    let (blocks, out) = (Memory::new(fabric, bytes)?, Memory::new(fabric, shape.out_bytes)?);
    let parts = Parts { qp, srq, poller, blocks, out };
    let all: Vec<RecvWr> =
        (0..shape.blocks).map(|block| receive(&parts.blocks, shape, block)).collect();
    for list in all.chunks(256) {
        // SAFETY: the blocks lie in memory that outlives the queue, and nobody touches a block
        // before its completion was polled.
        unsafe { parts.srq.post(list) }.map_err(refused)?;
    }
    Ok(parts)
}

/// Puts the side together once the id is connected or accepted.
fn join<F: Fabric>(
    parts: Parts<F>,
    mut id: F::Id,
    shape: &Shape,
    patience: Option<Duration>,
) -> Result<Bare<F>, Failure> {
    id.set_rnr_timer(Config::DEFAULT.retry.rnr_timer)?;
    if (parts.qp.caps().inline as usize) < wire::WORD_BYTES {
        return Err(Failure::new("the device sends nothing inline; this test needs 16 bytes"));
    }
    Ok(Bare::new(parts, id, shape, patience))
}
