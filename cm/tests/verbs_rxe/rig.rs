//! What the tests share: the device, a connected pair, and waits with a limit.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::Mapping;
use doorbell_cm::{AddrInfo, CmId, ConnParam, Fabric, Hints, QpAttr, QpAttrEx};
use doorbell_seam::provider::{Access, Poller, Provider, Qp, QpCaps, QpType, Region, Sharing, Srq};
use doorbell_seam::wc::Wc;
use doorbell_seam::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use doorbell_verbs::VerbsId;
use doorbell_verbs::{Verbs, VerbsCq, VerbsPoller, VerbsQp, VerbsRegion, VerbsSrq};

/// Nothing here takes this long; a test that would hang fails instead.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

pub(crate) const CAPS: QpCaps =
    QpCaps { send_wr: 32, recv_wr: 32, send_sge: 3, recv_sge: 1, inline: 128 };

/// Size of a block in a side's region, bytes. The first 64 blocks are for receives, the others for
/// sends.
pub(crate) const BLOCK: usize = 256;
const BLOCKS: usize = 128;

/// The device under test, and its address; `None` if there is none.
pub(crate) fn device() -> Option<(Verbs, IpAddr)> {
    let Some(name) =
        std::env::var("DOORBELL_DEVICE").ok().or_else(|| Verbs::devices().into_iter().next())
    else {
        println!("skipped: this machine has no RDMA device");
        return None;
    };
    let device = Verbs::open(&name).expect("the device opens");
    match device.addresses().into_iter().find(IpAddr::is_ipv4) {
        Some(ip) => Some((device, ip)),
        None => {
            println!("skipped: {name} has no IPv4 address");
            None
        }
    }
}

/// What one end uses before it is connected.
pub(crate) struct Kit {
    pub(crate) device: Verbs,
    pub(crate) cq: VerbsCq,
    pub(crate) poller: VerbsPoller,
    pub(crate) srq: Option<VerbsSrq>,
    pub(crate) region: VerbsRegion,
}

impl Kit {
    pub(crate) fn new(device: &Verbs, with_srq: bool) -> Kit {
        let memory = Mapping::plain(BLOCK * BLOCKS).expect("memory");
        let region = device.register(memory, Access::LOCAL_WRITE).expect("registered");
        let (cq, poller) = device.create_cq(256, Sharing::Exclusive).expect("a queue");
        let srq = with_srq.then(|| device.create_srq(64).expect("a shared queue"));
        Kit { device: device.clone(), cq, poller, srq, region }
    }

    pub(crate) fn attr(&self) -> QpAttr<'_, Verbs> {
        QpAttr {
            kind: QpType::Rc,
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: self.srq.as_ref(),
            caps: CAPS,
            signal_all: false,
            ex: QpAttrEx::default(),
        }
    }

    pub(crate) fn sge(&self, block: usize, length: usize) -> Sge {
        let addr = self.region.as_ptr() as u64 + (block * BLOCK) as u64;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }

    pub(crate) fn fill(&self, block: usize, bytes: &[u8]) {
        assert!(bytes.len() <= BLOCK && block < BLOCKS);
        // SAFETY: the block is in the region, and no request that uses it is outstanding.
        unsafe {
            let at = self.region.as_ptr().add(block * BLOCK);
            at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    pub(crate) fn bytes(&self, block: usize, length: usize) -> Vec<u8> {
        assert!(length <= BLOCK && block < BLOCKS);
        let mut out = vec![0; length];
        // SAFETY: the block is in the region, and its completion was polled.
        unsafe {
            let at = self.region.as_ptr().add(block * BLOCK);
            at.copy_to_nonoverlapping(out.as_mut_ptr(), length);
        }
        out
    }

    /// Posts receives on these blocks; `wr_id` is the number of the block.
    pub(crate) fn receive(&self, qp: &mut VerbsQp, blocks: std::ops::Range<usize>) {
        let list: Vec<RecvWr> =
            blocks.map(|b| RecvWr { wr_id: b as u64, sge: self.sge(b, BLOCK) }).collect();
        // SAFETY: the blocks stay registered until the queue pair is gone, and no test touches one
        // before its completion.
        let posted = unsafe {
            match &self.srq {
                Some(srq) => srq.post(&list),
                None => qp.post_recv(&list),
            }
        };
        posted.expect("receives fit");
    }

    /// Takes the next completion.
    pub(crate) fn one(&mut self) -> Wc {
        self.several(1)[0]
    }

    /// Takes the next completions.
    pub(crate) fn several(&mut self, count: usize) -> Vec<Wc> {
        let end = Instant::now() + LIMIT;
        let mut out = vec![Wc::default(); count];
        let mut got = 0;
        while got < count {
            got += self.poller.poll(&mut out[got..]);
            assert!(Instant::now() < end, "{got} of {count} completions, then silence");
            thread::yield_now();
        }
        out
    }

    pub(crate) fn is_quiet(&mut self) -> bool {
        self.poller.poll(&mut [Wc::default()]) == 0
    }
}

/// A signalled SEND with one gather entry.
pub(crate) fn send(wr_id: u64, sge: Sge) -> SendWr<'static> {
    SendWr { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sge, more: &[] }
}

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) qp: VerbsQp,
    pub(crate) id: VerbsId,
    pub(crate) kit: Kit,
}

/// A synchronous listener on a free port.
pub(crate) fn listener(device: &Verbs, ip: IpAddr) -> (VerbsId, SocketAddr) {
    let info = AddrInfo::of(SocketAddr::new(ip, 0), &Hints::passive());
    let mut listener = device.create_endpoint(&info).expect("an endpoint");
    listener.listen(0).expect("it listens");
    let addr = listener.local_addr().expect("a bound address");
    assert!(addr.port() != 0 && addr.ip() == ip, "{addr}");
    (listener, addr)
}

/// The passive end: takes one request and accepts it with 16 receives posted.
pub(crate) fn accept(listener: &mut VerbsId, kit: Kit, param: &ConnParam<'_>) -> Side {
    let mut id = listener.get_request(Some(LIMIT)).expect("a request");
    let mut qp = id.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
    kit.receive(&mut qp, 0..16);
    id.accept(param).expect("accepted");
    Side { qp, id, kit }
}

/// The active end, with 16 receives posted.
pub(crate) fn connect(kit: Kit, to: SocketAddr, param: &ConnParam<'_>) -> Side {
    let mut id = kit.device.create_endpoint(&AddrInfo::of(to, &Hints::active())).expect("resolved");
    let mut qp = id.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
    kit.receive(&mut qp, 0..16);
    id.connect(param).expect("connected");
    Side { qp, id, kit }
}

/// Passive and active end; the passive one with a shared receive queue.
pub(crate) fn pair(device: &Verbs, ip: IpAddr) -> (Side, Side) {
    let (mut listener, addr) = listener(device, ip);
    let kit = Kit::new(device, true);
    thread::scope(|scope| {
        let passive = scope.spawn(|| accept(&mut listener, kit, &ConnParam::default()));
        let active = connect(Kit::new(device, false), addr, &ConnParam::default());
        (passive.join().expect("the passive side"), active)
    })
}

/// Disconnects both ends, as two programs would.
pub(crate) fn part(passive: &mut Side, active: &mut Side) {
    thread::scope(|scope| {
        scope.spawn(|| passive.id.disconnect().expect("disconnected"));
        active.id.disconnect().expect("disconnected");
    });
}
