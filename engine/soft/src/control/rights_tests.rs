//! Tests of access flags that change while a queue pair is connected.

use doorbell_alloc::Mapping;
use doorbell_fabric::{Fabric, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, AddressVector, Provider, QpType, Region};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{Remote, SendOp};

use super::rendezvous_tests::{Side, next, next_of};
use super::*;

const REFUSED: Status = Status::RemoteInvalidRequest;

/// A pair, with memory of the second side that the first may use.
struct Pair {
    one: Side,
    two: Side,
    here: SoftRegion,
    there: SoftRegion,
    state: QpState,
}

impl Pair {
    /// The queue pair of the second side has those rights. The first maps its memory if `maps`.
    fn new(rights: Access, depth: u8, maps: bool) -> Pair {
        let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
        let fields = QpFields { access: Some(rights), ..QpFields::to(QpState::Init) };
        two.device.modify_qp(&mut two.qp, QpState::Reset, &fields).unwrap();
        let (a, b) = (one.name(), two.name());
        one.connect(b).unwrap();
        two.connect_with(a, depth).unwrap();
        let memory = match maps {
            true => two.device.peer_memory(4096).unwrap(),
            false => Mapping::plain(4096).unwrap(),
        };
        let there = two.device.register(memory, Access::all()).unwrap();
        let memory = Mapping::plain(4096).unwrap();
        let here = one.device.register(memory, Access::LOCAL_WRITE).unwrap();
        Pair { one, two, here, there, state: QpState::Rts }
    }

    /// `ibv_modify_qp` of the second side, with flags.
    fn modify(&mut self, to: QpState, rights: Access) {
        self.set(QpFields { access: Some(rights), ..QpFields::to(to) }).unwrap();
    }

    fn set(&mut self, fields: QpFields) -> Result<(), CmError> {
        self.two.device.modify_qp(&mut self.two.qp, self.state, &fields)?;
        self.state = fields.state.unwrap_or(self.state);
        Ok(())
    }

    fn post(&mut self, op: fn(Remote) -> SendOp) {
        self.one.ask(op(self.there.remote(0)), &self.here);
    }

    /// How such a request of the first side ends.
    fn ends(&mut self, op: fn(Remote) -> SendOp) -> Status {
        self.post(op);
        next(&mut self.one, &mut self.two).status
    }

    /// How it ends if the second side does nothing: the first carries it out.
    fn ends_here(&mut self, op: fn(Remote) -> SendOp) -> Status {
        self.post(op);
        next_of(&mut self.one).status
    }
}

/// A right that is taken away binds requests that come later, whoever would carry them out.
#[test]
fn a_right_may_be_taken_from_a_connected_peer() {
    let both = Access::REMOTE_WRITE | Access::REMOTE_READ;
    for maps in [true, false] {
        let used = if maps { Pair::ends_here } else { Pair::ends };
        for to in [QpState::Rts, QpState::Sqd] {
            let mut pair = Pair::new(both, 1, maps);
            assert_eq!(used(&mut pair, SendOp::Write), Status::Success);
            pair.modify(to, both);
            pair.modify(to, Access::REMOTE_READ);
            assert_eq!(used(&mut pair, SendOp::Read), Status::Success);
            assert_eq!(pair.ends(SendOp::Write), REFUSED, "{maps} {to:?}");
        }
        let mut pair = Pair::new(both, 1, maps);
        pair.modify(QpState::Sqd, both);
        pair.modify(QpState::Rts, Access::REMOTE_WRITE);
        assert_eq!(used(&mut pair, SendOp::Write), Status::Success);
        assert_eq!(pair.ends(SendOp::Read), REFUSED, "{maps}");
    }
}

/// A right that is given counts for requests that come later. Depth 0 allows no READ.
#[test]
fn a_right_may_be_given_to_a_connected_peer() {
    for maps in [true, false] {
        let used = if maps { Pair::ends_here } else { Pair::ends };
        for (depth, status) in [(1, Status::Success), (0, REFUSED)] {
            let mut pair = Pair::new(Access::empty(), depth, maps);
            pair.modify(QpState::Rts, Access::REMOTE_WRITE | Access::REMOTE_READ);
            assert_eq!(used(&mut pair, SendOp::Write), Status::Success, "{maps}");
            assert_eq!(pair.ends(SendOp::Read), status, "{maps} {depth}");
        }
    }
}

/// In SQD the depth that the peer may use changes, and its rights with it; the peer stays.
#[test]
fn the_depth_of_a_connected_peer_may_change() {
    for maps in [true, false] {
        let used = if maps { Pair::ends_here } else { Pair::ends };
        for (from, to, status) in [(0, 4, Status::Success), (1, 0, REFUSED)] {
            let mut pair = Pair::new(Access::all(), from, maps);
            let route = pair.one.gid;
            pair.set(QpFields::to(QpState::Sqd)).unwrap();
            let fields = QpFields { max_dest_rd_atomic: Some(to), ..QpFields::to(QpState::Sqd) };
            let av = Some(AddressVector::to(pair.two.gid));
            let error = pair.set(QpFields { av, ..fields }).unwrap_err();
            assert_eq!(error.code(), Code::NotSupported);
            let av = Some(AddressVector::to(route));
            pair.set(QpFields { av, ..fields }).unwrap();
            pair.set(QpFields::to(QpState::Rts)).unwrap();
            assert_eq!(used(&mut pair, SendOp::Write), Status::Success);
            let read = if status == REFUSED { Pair::ends } else { used };
            assert_eq!(read(&mut pair, SendOp::Read), status, "{maps} {from}");
        }
    }
}
