//! The device under both worlds, and the mistakes that can be planted in it, in the wire and in the
//! control plane.

use doorbell::alloc::{Ask, MapRequest, Mapping};
use doorbell::error::{Code, SetupError};
use doorbell::provider::fault::{Fault, FaultCq, FaultQp, Plant};
use doorbell::provider::trace::Trace;
use doorbell::provider::{ExtendedCq, Provider, Windows};
use doorbell::soft::sim::Mistake;
use doorbell::soft::{Soft, SoftQp};

/// The device under both worlds.
pub type Device = Fault<Trace<Soft>>;
/// Its queue pair.
pub type DeviceQp = FaultQp<Trace<Soft>>;
/// Its completion queue.
pub type DeviceCq = FaultCq<Trace<Soft>>;
/// Its reader.
pub type DevicePoller = <Device as Provider>::Poller;
/// Its reader of an extended queue.
pub type DevicePollerEx = <Device as ExtendedCq>::PollerEx;
/// Its shared receive queue.
pub type DeviceSrq = <Device as Provider>::Srq;
/// Its memory window.
pub type DeviceWindow = <Device as Windows>::Window;

/// Wraps a queue pair of the soft device inside, whose sends complete in `cq`.
pub(super) fn wrapped(device: &Device, qp: SoftQp, cq: &DeviceCq) -> DeviceQp {
    device.wrap(device.inner().wrap(qp, cq.inner()), cq)
}

/// Where a mistake is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// In the device, below both worlds.
    Device(Plant),
    /// In the wire, below both worlds.
    Wire(Mistake),
    /// In the control plane of the world with workers: a side never learns that its connection has
    /// ended.
    LostEnd,
}

/// All mistakes, by their names on the command line.
pub const PLANTS: &[(&str, Planted)] = &[
    ("early-slot", Planted::Device(Plant::EarlySlot)),
    ("double-repost", Planted::Device(Plant::DoubleRepost)),
    ("lost-tail", Planted::Device(Plant::LostTail)),
    ("altered-now", Planted::Device(Plant::AlteredNow)),
    ("lost-later", Planted::Device(Plant::LostLater)),
    ("swapped-list", Planted::Device(Plant::SwappedList)),
    ("lost-doorbell", Planted::Device(Plant::LostDoorbell)),
    ("doubled-one", Planted::Device(Plant::DoubledOne)),
    ("swapped-poll", Planted::Device(Plant::SwappedPoll)),
    ("doubled-next", Planted::Device(Plant::DoubledNext)),
    ("wrong-key", Planted::Device(Plant::WrongKey)),
    ("lost-command", Planted::Device(Plant::LostCommand)),
    ("replayed-atomic", Planted::Wire(Mistake::ReplayedAtomic)),
    ("stale-read", Planted::Wire(Mistake::StaleRead)),
    ("late-write", Planted::Wire(Mistake::LateWrite)),
    ("response-behind-messages", Planted::Wire(Mistake::ResponseBehindMessages)),
    ("short-datagram", Planted::Wire(Mistake::ShortDatagram)),
    ("wrong-sender", Planted::Wire(Mistake::WrongSender)),
    ("lost-end", Planted::LostEnd),
];

/// Memory for a wire and for what uses it. A simulation touches little of it, so most pages are
/// never obtained.
pub(super) fn memory(bytes: usize) -> Result<Mapping, SetupError> {
    let request = MapRequest::new(bytes).pages(Ask::Plain).lock(false).prefault(false);
    request.map().map_err(|error| {
        SetupError::new(Code::NoMemory, format!("{bytes} bytes"), format!("{error}"))
    })
}
