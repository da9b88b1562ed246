//! Two ends on devices of their own: a connection, or two queue pairs of UD.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use doorbell::alloc::{Ask, MapRequest};
use doorbell::provider::{
    Access, AddressHandle, Datagrams, Poller, Provider, Qp, QpCaps, QpType, Region, Sharing,
};
use doorbell::soft::SoftDevice;
use doorbell::wc::Wc;
use doorbell::wr::{Destination, RecvWr, Remote, SendWr, Sge};
use doorbell::{CmId, ConnParam, Fabric, PortSpace, QpAttr, QpAttrEx};

/// The most requests of a queue pair, and the most receives.
const DEPTH: u32 = 64;
/// How long a step of connecting may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// One end.
pub(crate) struct End {
    // Fields drop in this order: the queue pair first.
    qp: <SoftDevice as Provider>::Qp,
    poller: <SoftDevice as Provider>::Poller,
    /// For datagrams: the destination of the other end.
    to: Option<(<SoftDevice as Datagrams>::Ah, u32, u32)>,
    region: <SoftDevice as Provider>::Region,
    _id: <SoftDevice as Fabric>::Id,
}

/// Two ends that can send to each other; datagrams go from the first to the second only. `mapped`:
/// each end has mapped the memory of the other.
pub(crate) fn pair(kind: QpType, bytes: usize, mapped: bool) -> [End; 2] {
    let space = if kind == QpType::Ud { PortSpace::Udp } else { PortSpace::Tcp };
    let (tell, told) = mpsc::channel();
    let passive = thread::spawn(move || {
        let device = SoftDevice::open().unwrap();
        let mut door = device.create_id(None, space).unwrap();
        door.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        door.listen(0).unwrap();
        tell.send(door.local_addr().unwrap()).unwrap();
        let id = door.get_request(Some(PATIENCE)).unwrap();
        End::new(&device, id, (kind, bytes, mapped), |id| id.accept(&ConnParam::default()).unwrap())
    });
    let device = SoftDevice::open().unwrap();
    let mut id = device.create_id(None, space).unwrap();
    id.resolve_addr(None, told.recv().unwrap(), PATIENCE).unwrap();
    id.resolve_route(PATIENCE).unwrap();
    let mut active = End::new(&device, id, (kind, bytes, mapped), |id| {
        id.connect(&ConnParam::default()).unwrap();
    });
    if let Some(ud) = active._id.ud() {
        active.to = Some((device.create_ah(&ud.to).unwrap(), ud.qp_num, ud.qkey));
    }
    [active, passive.join().unwrap()]
}

impl End {
    fn new(
        device: &SoftDevice,
        mut id: <SoftDevice as Fabric>::Id,
        (kind, bytes, mapped): (QpType, usize, bool),
        join: impl FnOnce(&mut <SoftDevice as Fabric>::Id),
    ) -> End {
        let caps = QpCaps { send_wr: DEPTH, recv_wr: DEPTH, send_sge: 1, recv_sge: 1, inline: 64 };
        let (cq, poller) = device.create_cq(2 * DEPTH, Sharing::Exclusive).unwrap();
        let attr = QpAttr {
            kind,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            caps,
            signal_all: false,
            ex: QpAttrEx::default(),
        };
        let qp = id.create_qp(device, &attr).unwrap();
        let memory = MapRequest::new(bytes).pages(Ask::Plain).shared(mapped).map().unwrap();
        let region = device.register(memory, Access::all()).unwrap();
        join(&mut id);
        End { qp, poller, to: None, region, _id: id }
    }

    pub(crate) fn sge(&self, at: usize, length: usize) -> Sge {
        let addr = self.region.remote(at).addr;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }

    pub(crate) fn remote(&self, at: usize) -> Remote {
        self.region.remote(at)
    }

    /// Where datagrams go.
    pub(crate) fn destination(&self) -> Destination {
        let (ah, qpn, qkey) = self.to.as_ref().unwrap();
        Destination { ah: ah.name(), qpn: *qpn, qkey: *qkey }
    }

    pub(crate) fn write_word(&self, at: usize, word: u64) {
        assert!(at + 8 <= self.region.len());
        // SAFETY: inside the region, which is mapped. One thread drives both devices, and it is in
        // neither of them now.
        unsafe { self.region.as_ptr().add(at).cast::<u64>().write_unaligned(word) };
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        assert!(at + 8 <= self.region.len());
        // SAFETY: as above.
        unsafe { self.region.as_ptr().add(at).cast::<u64>().read_unaligned() }
    }

    pub(crate) fn post(&mut self, wr: &SendWr<'_>) {
        // SAFETY: requests name the region, which outlives the queue pair, and nobody touches
        // memory in flight. One thread polls and posts.
        unsafe { self.qp.post(std::slice::from_ref(wr)) }.unwrap();
    }

    pub(crate) fn recv(&mut self, wr_id: u64, at: usize, length: usize) {
        let wr = RecvWr { wr_id, sge: self.sge(at, length) };
        // SAFETY: as above.
        unsafe { self.qp.post_recv(&[wr]) }.unwrap();
    }

    pub(crate) fn poll(&mut self, out: &mut [Wc]) -> usize {
        self.poller.poll(out)
    }
}
