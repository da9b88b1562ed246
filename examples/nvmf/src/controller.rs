//! A controller: what one host has set up, from the Connect of its admin queue to the end of it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::wire::connect::{Connect, ConnectData, Property, Refusal};
use crate::wire::status::Status;
use crate::wire::{IO_DEPTH, VERSION};

/// Milliseconds of silence that a discovery controller bears if its host names no limit.
const DISCOVERY_SILENCE_MS: u32 = 120_000;

/// Enable, in Controller Configuration.
const ENABLE: u32 = 1;
/// The fields of Controller Configuration for command set, page size and arbitration, which must
/// be zero.
const FIXED: u32 = 0x0000_3ff0;
/// Shutdown notification.
const SHUTDOWN: u32 = 0x0000_c000;
/// Ready, in Controller Status.
const READY: u32 = 1;
/// Shutdown has finished.
const SHUT: u32 = 2 << 2;
/// The controller has failed.
const FAILED: u32 = 1 << 1;

/// A controller.
#[derive(Debug)]
pub struct Controller {
    id: u16,
    discovery: bool,
    host_id: [u8; 16],
    host: String,
    /// Commands of the I/O set are carried out.
    ready: AtomicBool,
    ended: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    configuration: u32,
    status: u32,
    keep_alive_ms: u32,
    heard: Instant,
    /// I/O queues that the host may connect; `None` until it has asked.
    granted: Option<u16>,
    /// I/O queues that are connected.
    queues: BTreeSet<u16>,
    /// Features that are only remembered, by their numbers.
    remembered: [u32; 16],
}

impl Controller {
    /// The controller that a Connect of an admin queue makes.
    pub fn new(id: u16, discovery: bool, connect: &Connect, data: &ConnectData) -> Controller {
        let asked = connect.keep_alive_ms;
        let silent = discovery && asked == 0;
        let state = State {
            configuration: 0,
            status: 0,
            keep_alive_ms: if silent { DISCOVERY_SILENCE_MS } else { asked },
            heard: Instant::now(),
            granted: None,
            queues: BTreeSet::new(),
            remembered: [0; 16],
        };
        Controller {
            id,
            discovery,
            host_id: data.host_id,
            host: data.host.clone(),
            ready: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// True for one of the discovery subsystem.
    pub fn is_discovery(&self) -> bool {
        self.discovery
    }

    /// The host's identifier.
    pub fn host_id(&self) -> [u8; 16] {
        self.host_id
    }

    /// True if that host has made it.
    pub fn is_of(&self, data: &ConnectData) -> bool {
        self.host_id == data.host_id && self.host == data.host
    }

    /// True if it carries out commands.
    pub fn is_ready(&self) -> bool {
        // Relaxed, here and below: a host enables a controller, waits for the answer, and only
        // then connects queues; the flags guard no other memory.
        self.ready.load(Ordering::Relaxed)
    }

    /// True once it has ended. Its queues end, too.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Ends it.
    pub fn end(&self) {
        self.ready.store(false, Ordering::Relaxed);
        self.ended.store(true, Ordering::Relaxed);
    }

    /// The host has sent something that keeps the controller alive.
    pub fn hear(&self) {
        self.state().heard = Instant::now();
    }

    /// True if the host has been silent for longer than it said it would be. A host gets twice the
    /// time before its controller ends, because a command may be on its way.
    pub fn is_silent(&self, now: Instant) -> bool {
        let state = self.state();
        let limit = Duration::from_millis(u64::from(state.keep_alive_ms));
        !limit.is_zero() && now.saturating_duration_since(state.heard) > limit * 2
    }

    /// Gives an I/O queue to it.
    ///
    /// # Errors
    /// The refusal that Connect gets: not ready, a number that was not granted, or one in use.
    pub fn add_queue(&self, queue: u16) -> Result<(), Refusal> {
        if !self.is_ready() {
            return Err(Status::SEQUENCE.into());
        }
        let mut state = self.state();
        if queue == 0 || queue > state.granted.unwrap_or(1) {
            return Err(Refusal::field(42));
        }
        if !state.queues.insert(queue) {
            return Err(Status::SEQUENCE.into());
        }
        Ok(())
    }

    /// Takes an I/O queue back.
    pub fn remove_queue(&self, queue: u16) {
        self.state().queues.remove(&queue);
    }

    /// Sets the number of I/O queues; returns how many the host gets, of at most `most`.
    ///
    /// # Errors
    /// Command Sequence Error once an I/O queue is connected; Invalid Field.
    pub fn grant(&self, asked: u32, most: u16) -> Result<u32, Status> {
        let (sends, completions) = (asked & 0xffff, asked >> 16);
        if sends == 0xffff || completions == 0xffff {
            return Err(Status::INVALID_FIELD);
        }
        let mut state = self.state();
        if !state.queues.is_empty() {
            return Err(Status::SEQUENCE);
        }
        // A queue pair is both a submission and a completion queue.
        let count = (sends.min(completions) as u16).saturating_add(1).min(most.max(1));
        state.granted = Some(count);
        Ok(queue_count(count))
    }

    /// The number of I/O queues, as Get Features returns it.
    pub fn granted(&self, most: u16) -> u32 {
        queue_count(self.state().granted.unwrap_or(most))
    }

    /// Milliseconds of silence after which it ends; 0 for never.
    pub fn keep_alive_ms(&self) -> u32 {
        self.state().keep_alive_ms
    }

    /// Sets that limit.
    pub fn set_keep_alive_ms(&self, limit: u32) {
        let mut state = self.state();
        (state.keep_alive_ms, state.heard) = (limit, Instant::now());
    }

    /// A feature that is only remembered.
    pub fn remembered(&self, feature: u8) -> Option<u32> {
        self.state().remembered.get(usize::from(feature)).copied()
    }

    /// Remembers the value of a feature. False if there is no room for that number.
    pub fn remember(&self, feature: u8, value: u32) -> bool {
        match self.state().remembered.get_mut(usize::from(feature)) {
            Some(place) => {
                *place = value;
                true
            }
            None => false,
        }
    }

    /// The value of a property.
    pub fn property(&self, property: Property) -> u64 {
        let state = self.state();
        match property {
            Property::Cap => capabilities(),
            Property::Vs => u64::from(VERSION),
            Property::Cc => u64::from(state.configuration),
            Property::Csts => u64::from(state.status),
        }
    }

    /// Sets a property.
    ///
    /// # Errors
    /// Invalid Field: it cannot be set.
    pub fn set_property(&self, property: Property, value: u64) -> Result<(), Status> {
        if property != Property::Cc {
            return Err(Status::INVALID_FIELD);
        }
        let value = value as u32;
        let mut state = self.state();
        let before = state.configuration;
        state.configuration = value;
        state.status = if value & ENABLE == 0 {
            0
        } else if value & FIXED != 0 {
            FAILED
        } else {
            READY
        };
        if value & SHUTDOWN != 0 {
            state.status |= SHUT;
        }
        if before & ENABLE == 0 && value & ENABLE != 0 {
            state.heard = Instant::now();
        }
        let ready = state.status & READY != 0 && value & SHUTDOWN == 0;
        self.ready.store(ready, Ordering::Relaxed);
        Ok(())
    }
}

/// A count of queues in both halves of a word, from zero.
fn queue_count(count: u16) -> u32 {
    let last = u32::from(count.saturating_sub(1));
    last | last << 16
}

/// Controller Capabilities: the depth of queues from zero, contiguous queues, up to 7.5 s to get
/// ready, the NVM command set, pages of 4 KiB.
fn capabilities() -> u64 {
    u64::from(IO_DEPTH - 1) | 1 << 16 | 15 << 24 | 1 << 37
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(keep_alive_ms: u32) -> Controller {
        let connect = Connect { queue: 0, depth: 32, keep_alive_ms };
        let data = ConnectData {
            host_id: [1; 16],
            controller: 0xffff,
            subsystem: "s".to_owned(),
            host: "h".to_owned(),
        };
        Controller::new(1, false, &connect, &data)
    }

    #[test]
    fn it_is_ready_while_it_is_enabled() {
        let controller = controller(0);
        assert_eq!(controller.property(Property::Csts), 0);
        controller.set_property(Property::Cc, 0x0046_0001).unwrap();
        assert!(controller.is_ready() && controller.property(Property::Csts) == 1);
        controller.set_property(Property::Cc, 0x0046_4001).unwrap();
        assert_eq!(controller.property(Property::Csts) >> 2, 2, "shutdown has finished");
        assert!(!controller.is_ready());
        controller.set_property(Property::Cc, 0).unwrap();
        assert_eq!(controller.property(Property::Csts), 0);
        controller.set_property(Property::Cc, 0x0046_0081).unwrap();
        assert_eq!(controller.property(Property::Csts), u64::from(FAILED), "no such page size");
        assert_eq!(controller.set_property(Property::Csts, 0), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn queues_are_granted_connected_once_and_given_back() {
        let controller = controller(0);
        assert!(controller.add_queue(1).is_err(), "it is not ready");
        controller.set_property(Property::Cc, 1).unwrap();
        assert_eq!(controller.grant(7 | 7 << 16, 4), Ok(3 | 3 << 16));
        assert_eq!(controller.grant(0xffff, 4), Err(Status::INVALID_FIELD));
        assert!(controller.add_queue(0).is_err() && controller.add_queue(5).is_err());
        assert!(controller.add_queue(4).is_ok() && controller.add_queue(4).is_err());
        assert_eq!(controller.grant(1, 4), Err(Status::SEQUENCE));
        controller.remove_queue(4);
        assert!(controller.add_queue(4).is_ok());
    }

    #[test]
    fn silence_ends_after_its_limit() {
        let controller = controller(1000);
        let now = Instant::now();
        assert!(!controller.is_silent(now + Duration::from_millis(1900)));
        assert!(controller.is_silent(now + Duration::from_millis(2100)));
        controller.set_keep_alive_ms(0);
        assert!(!controller.is_silent(now + Duration::from_secs(9999)));
    }
}
