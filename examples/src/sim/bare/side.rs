//! A device with its queues and its memory.

use doorbell::error::SetupError;
use doorbell::provider::fault::Fault;
use doorbell::provider::trace::Trace as Recorded;
use doorbell::provider::{Access, CqInit, ExtendedCq, Provider, WcFields};
use doorbell::soft::sim::Prng;
use doorbell::soft::{DIRECTORY_BYTES, Host, Soft};

use super::super::device::{Device, DeviceSrq, Planted};
use super::super::trace::now;
use super::adds::Adds;
use super::desk::{Desk, Reader};
use super::direction::shelf;
use super::field::Field;
use super::neighbours;
use super::plan::{Plan, SidePlan};
use super::sizes::{DEPTH, FIRST_SLOT, PIECE, RECEIVES, SHELF, SLOTS};

/// A device and its memory.
pub(super) struct Side {
    pub(super) desks: Vec<Desk>,
    pub(super) srq: Option<DeviceSrq>,
    /// The memory that peers write to, add to, and read from.
    pub(super) field: Field,
    /// The memory that peers may only read.
    pub(super) shelf: Field,
    /// The memory of requests and receives.
    pub(super) local: Field,
    /// By receive place: the end that posted it, if it is posted.
    pub(super) places: Vec<Option<usize>>,
    pub(super) adds: Adds,
    pub(super) device: Device,
}

impl Side {
    pub(super) fn new(
        plan: &Plan,
        side: usize,
        prng: Prng,
        planted: Option<Planted>,
    ) -> Result<Side, SetupError> {
        let SidePlan { sharing, desks, srq, extended, .. } = plan.sides[side];
        let host = Host {
            name_file: neighbours::name_file,
            neighbours: Some(neighbours::all()),
            ..Host::alone(now)
        };
        let nic = Soft::new("sim0", host, Some(neighbours::shared(DIRECTORY_BYTES)?));
        let plant = match planted {
            Some(Planted::Device(plant)) => Some(plant),
            _ => None,
        };
        let device = Fault::new(Recorded::new(nic.clone()), prng, plan.odds, plant);
        let desk = || {
            let (cq, reader) = if extended {
                let fields =
                    WcFields::QP_NUM | WcFields::BYTE_LEN | WcFields::IMM | WcFields::SRC_QP;
                let init = CqInit { fields, ..CqInit::new(4096) };
                let (cq, poller) = device.create_cq_ex(&init)?;
                (cq, Reader::Extended(poller))
            } else {
                let (cq, poller) = device.create_cq(4096, sharing)?;
                (cq, Reader::Plain(poller))
            };
            Ok(Desk { cq, reader, empty: 0 })
        };
        let places = RECEIVES * plan.conns_max;
        let local = (DEPTH * plan.conns_max + places) * PIECE;
        let field = FIRST_SLOT + SLOTS * plan.conns_max * PIECE;
        let all = Access::all();
        let made = Side {
            desks: (0..desks).map(|_| desk()).collect::<Result<_, SetupError>>()?,
            srq: srq.then(|| device.create_srq(RECEIVES as u32)).transpose()?,
            field: Field::new(&nic, field, all)?,
            shelf: Field::new(&nic, SHELF, Access::REMOTE_READ)?,
            local: Field::new(&nic, local, Access::LOCAL_WRITE)?,
            places: vec![None; places],
            adds: Adds::default(),
            device,
        };
        made.shelf.fill(0, &shelf(side, SHELF));
        Ok(made)
    }

    /// The soft device inside.
    pub(super) fn nic(&self) -> &Soft {
        self.device.inner().inner()
    }

    /// Where the bytes of a receive lie.
    pub(super) fn place(&self, place: usize) -> usize {
        self.local.size() - (place + 1) * PIECE
    }
}
