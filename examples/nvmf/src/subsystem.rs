//! The subsystem: its namespaces, and the controllers that hosts have made.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::controller::Controller;
use crate::store::Store;
use crate::wire::connect::{ANY_CONTROLLER, Connect, ConnectData, Refusal};
use crate::wire::log::Health;
use crate::wire::status::Status;
use crate::wire::{BLOCK_BYTES, DISCOVERY_NQN, identify};

/// A namespace with its store.
#[derive(Clone)]
pub struct Namespace {
    store: Arc<dyn Store>,
    shown: identify::Namespace,
}

impl Namespace {
    /// Where its blocks are.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// How Identify shows it.
    pub fn shown(&self) -> &identify::Namespace {
        &self.shown
    }
}

/// What a subsystem has done.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocks and commands that were read.
    pub read_blocks: AtomicU64,
    /// Blocks that were written.
    pub written_blocks: AtomicU64,
    /// Commands that read.
    pub reads: AtomicU64,
    /// Commands that wrote.
    pub writes: AtomicU64,
    /// Errors of a store.
    pub media_errors: AtomicU64,
    /// Commands that were answered with an error.
    pub refused: AtomicU64,
    /// Queue pairs that were rejected, or ended for breaking the protocol.
    pub breaches: AtomicU64,
    /// Controllers that fell silent.
    pub silent: AtomicU64,
}

impl Counters {
    /// Adds to a counter. Relaxed: counters guard no other memory.
    pub fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    /// The page on health.
    pub fn health(&self) -> Health {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Health {
            read_blocks: value(&self.read_blocks),
            written_blocks: value(&self.written_blocks),
            reads: value(&self.reads),
            writes: value(&self.writes),
            media_errors: value(&self.media_errors),
        }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        write!(
            f,
            "{} reads, {} writes, {} commands refused, {} media errors, {} breaches, {} silent",
            value(&self.reads),
            value(&self.writes),
            value(&self.refused),
            value(&self.media_errors),
            value(&self.breaches),
            value(&self.silent)
        )
    }
}

/// A subsystem. Its namespaces are numbered from 1.
pub struct Subsystem {
    nqn: String,
    serial: String,
    namespaces: Vec<Namespace>,
    /// I/O queues of a controller at most.
    queues: u16,
    controllers: Mutex<BTreeMap<u16, Arc<Controller>>>,
    /// Ended controllers that may still have commands on their way to a store.
    ending: Mutex<Vec<Arc<Controller>>>,
    /// What it has done.
    pub counters: Counters,
}

impl Subsystem {
    /// A subsystem with that name and those stores. `queues`: I/O queues of a controller at most.
    pub fn new(nqn: &str, stores: Vec<Arc<dyn Store>>, queues: u16) -> Subsystem {
        let hash = fnv(nqn.as_bytes());
        let namespace = |(index, store): (usize, Arc<dyn Store>)| {
            let mut guid = [0; 16];
            guid[..8].copy_from_slice(&hash.to_be_bytes());
            guid[8..].copy_from_slice(&(index as u64 + 1).to_be_bytes());
            let blocks = store.len() / BLOCK_BYTES;
            Namespace { store, shown: identify::Namespace { blocks, guid } }
        };
        Subsystem {
            nqn: nqn.to_owned(),
            serial: format!("{hash:016x}"),
            namespaces: stores.into_iter().enumerate().map(namespace).collect(),
            queues,
            controllers: Mutex::new(BTreeMap::new()),
            ending: Mutex::new(Vec::new()),
            counters: Counters::default(),
        }
    }

    /// Its name.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The highest number of a namespace.
    pub fn last_namespace(&self) -> u32 {
        self.namespaces.len() as u32
    }

    /// A namespace by its number.
    pub fn namespace(&self, id: u32) -> Option<&Namespace> {
        self.namespaces.get((id as usize).checked_sub(1)?)
    }

    /// All namespaces, from number 1 on.
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// I/O queues of a controller at most.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// How Identify shows a controller.
    pub fn shown(&self, controller: &Controller) -> identify::Controller {
        let discovery = controller.is_discovery();
        let subsystem = if discovery { DISCOVERY_NQN } else { &self.nqn };
        identify::Controller {
            id: controller.id(),
            discovery,
            serial: self.serial.clone(),
            subsystem: subsystem.to_owned(),
            namespaces: if discovery { 0 } else { self.last_namespace() },
        }
    }

    /// Controllers that exist.
    pub fn controllers(&self) -> usize {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Makes a controller for an admin queue.
    ///
    /// # Errors
    /// The refusal that Connect gets.
    pub fn connect_admin(
        &self,
        connect: &Connect,
        data: &ConnectData,
    ) -> Result<Arc<Controller>, Refusal> {
        if data.controller != ANY_CONTROLLER {
            return Err(Refusal::data(16));
        }
        let discovery = data.subsystem == DISCOVERY_NQN;
        if !discovery && data.subsystem != self.nqn {
            return Err(Refusal::data(256));
        }
        if data.host.is_empty() {
            return Err(Refusal::data(512));
        }
        if self.is_ending(data) {
            return Err(Status::CONNECT_BUSY.into());
        }
        let mut controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (1..ANY_CONTROLLER - 16).find(|id| !controllers.contains_key(id));
        let id = id.ok_or(Refusal::from(Status::CONNECT_BUSY))?;
        let made = Arc::new(Controller::new(id, discovery, connect, data));
        controllers.insert(id, made.clone());
        Ok(made)
    }

    /// Finds the controller of an I/O queue, and gives the queue to it.
    ///
    /// # Errors
    /// The refusal that Connect gets.
    pub fn connect_io(
        &self,
        connect: &Connect,
        data: &ConnectData,
    ) -> Result<Arc<Controller>, Refusal> {
        let controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        let found = controllers.get(&data.controller).ok_or(Refusal::data(16))?.clone();
        drop(controllers);
        if data.subsystem != self.nqn || found.is_discovery() {
            return Err(Refusal::data(256));
        }
        if !found.is_of(data) {
            return Err(Status::CONNECT_HOST.into());
        }
        found.add_queue(connect.queue)?;
        Ok(found)
    }

    /// True while a former controller of that host has queues or commands. A late write of its
    /// could otherwise undo what the host writes through its new controller.
    fn is_ending(&self, data: &ConnectData) -> bool {
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        // Queues and jobs hold the others.
        ending.retain(|controller| Arc::strong_count(controller) > 1);
        ending.iter().any(|controller| controller.is_of(data))
    }

    /// Ends a controller: its queues end as they notice.
    pub fn remove(&self, controller: &Arc<Controller>) {
        controller.end();
        let mut controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        controllers.remove(&controller.id());
        self.ending.lock().unwrap_or_else(PoisonError::into_inner).push(controller.clone());
    }
}

/// A hash of a name (FNV-1a), which stays the same for ever.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
