//! The host's side: a controller of a target, and its I/O queues.

mod error;
mod queue;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell::Fabric;

pub use self::error::Error;
pub use self::queue::{Payload, Queue, Tag};

use crate::wire::cm::QueueRequest;
use crate::wire::command::{Command, opcode};
use crate::wire::connect::{ANY_CONTROLLER, Connect, ConnectData, Property};
use crate::wire::discovery::{self, ENTRY_BYTES, Entry};
use crate::wire::identify::{self, Limits, Page, cns};
use crate::wire::log::{GetLog, page};
use crate::wire::response::Response;
use crate::wire::{ADMIN_DEPTH, DISCOVERY_NQN, IO_DEPTH, PAGE_BYTES, TRANSFER_BYTES};

/// How long the target may take for an admin command.
const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of data of an admin command at most.
const ADMIN_BYTES: usize = 2 * PAGE_BYTES;
/// Controller Configuration: enabled, entries of 64 and 16 bytes.
const ENABLE: u64 = 1 | 6 << 16 | 4 << 20;
/// The same, with a notification of shutdown.
const SHUT_DOWN: u64 = ENABLE | 1 << 14;
/// Entries of a discovery log that are read at most.
const ENTRIES_MAX: u64 = 256;

/// Who the host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub nqn: String,
    /// Its identifier.
    pub id: [u8; 16],
}

impl Default for Host {
    /// A name for this process.
    fn default() -> Host {
        let process = u128::from(std::process::id());
        let id = (0xd00b_e11d_0000_4000_8000_0000_0000_0000 | process).to_be_bytes();
        Host { nqn: format!("nqn.2026-11.rs.doorbell:host-{process}"), id }
    }
}

/// A controller of a target, by its admin queue. Dropping it shuts it down.
pub struct Controller<F: Fabric> {
    fabric: F,
    addr: SocketAddr,
    host: Host,
    subsystem: String,
    id: u16,
    admin: Queue<F>,
    limits: Limits,
    last_queue: u16,
    heard: Instant,
}

impl<F: Fabric> Controller<F> {
    /// Connects to a subsystem, and gets its controller ready. `keep_alive`: how long the target
    /// bears silence; zero for ever.
    ///
    /// # Errors
    /// Nobody listens, the target refuses, or it lacks keyed scatter-gather lists.
    pub fn connect(
        fabric: &F,
        addr: SocketAddr,
        subsystem: &str,
        host: &Host,
        keep_alive: Duration,
    ) -> Result<Controller<F>, Error> {
        let request =
            QueueRequest { queue: 0, receives: ADMIN_DEPTH, depth: ADMIN_DEPTH, controller: 0 };
        let mut admin = Queue::connect(fabric, addr, &request, ADMIN_BYTES)?;
        let keep_alive_ms = u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX);
        let connect = Connect { queue: 0, depth: ADMIN_DEPTH, keep_alive_ms };
        let data = ConnectData {
            host_id: host.id,
            controller: ANY_CONTROLLER,
            subsystem: subsystem.to_owned(),
            host: host.nqn.clone(),
        };
        let response = call(&mut admin, connect.command(), Payload::Out(&data.bytes()), "Connect")?;
        let limits = Limits { transfer: None, in_capsule: 0, commands: 0, keyed: false };
        let mut controller = Controller {
            fabric: fabric.clone(),
            addr,
            host: host.clone(),
            subsystem: subsystem.to_owned(),
            id: response.result as u16,
            admin,
            limits,
            last_queue: 0,
            heard: Instant::now(),
        };
        controller.enable()?;
        let page = controller.identify(cns::CONTROLLER, 0)?;
        controller.limits = Limits::read(&page);
        if !controller.limits.keyed {
            return Err(Error::Unfit("it takes no keyed scatter-gather lists"));
        }
        Ok(controller)
    }

    fn enable(&mut self) -> Result<(), Error> {
        self.call(Property::Cc.set(ENABLE), Payload::None, "Property Set")?;
        let end = Instant::now() + LIMIT;
        while self.call(Property::Csts.get(), Payload::None, "Property Get")?.result & 1 == 0 {
            if Instant::now() >= end {
                return Err(Error::TimedOut("the controller's start"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Sends an admin command, and waits for its response.
    ///
    /// # Errors
    /// `Refused`, or a lost connection.
    pub fn call(
        &mut self,
        command: Command,
        payload: Payload<'_>,
        what: &'static str,
    ) -> Result<Response, Error> {
        call(&mut self.admin, command, payload, what)
    }

    /// As [`Controller::call`], for a command that returns data.
    ///
    /// # Errors
    /// As there.
    pub fn fetch(
        &mut self,
        command: Command,
        len: usize,
        what: &'static str,
    ) -> Result<Vec<u8>, Error> {
        let tag = self.admin.submit(command, Payload::In(len))?;
        let response = self.admin.wait(tag, what, LIMIT)?;
        let mut out = vec![0; len];
        let read = self.admin.read(tag, &mut out);
        self.admin.release(tag);
        check(&response, what)?;
        read.map(|()| out)
    }

    /// The number of the controller.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Bytes of data that a command may have.
    pub fn transfer_bytes(&self) -> usize {
        self.limits.transfer.unwrap_or(TRANSFER_BYTES).min(TRANSFER_BYTES)
    }

    fn identify(&mut self, which: u8, namespace: u32) -> Result<Page, Error> {
        let command = Command::new(opcode::IDENTIFY, namespace).with(10, u32::from(which));
        let bytes = self.fetch(command, PAGE_BYTES, "Identify")?;
        bytes.try_into().map_err(|_| Error::Unfit("a page of another length"))
    }

    /// What the controller says about itself.
    ///
    /// # Errors
    /// As for [`Controller::call`].
    pub fn shown(&mut self) -> Result<identify::Controller, Error> {
        Ok(identify::Controller::read(&self.identify(cns::CONTROLLER, 0)?))
    }

    /// The numbers of the namespaces.
    ///
    /// # Errors
    /// As for [`Controller::call`].
    pub fn namespaces(&mut self) -> Result<Vec<u32>, Error> {
        Ok(identify::read_active(&self.identify(cns::ACTIVE_NAMESPACES, 0)?))
    }

    /// Blocks of a namespace, and the bytes of one.
    ///
    /// # Errors
    /// As for [`Controller::call`]; `Unfit` for a format that makes no sense.
    pub fn namespace(&mut self, id: u32) -> Result<(u64, u64), Error> {
        let page = self.identify(cns::NAMESPACE, id)?;
        identify::Namespace::read(&page).ok_or(Error::Unfit("a namespace without a format"))
    }

    /// Asks for `count` I/O queues; returns how many there may be.
    ///
    /// # Errors
    /// As for [`Controller::call`].
    pub fn set_queues(&mut self, count: u16) -> Result<u16, Error> {
        let last = u32::from(count.saturating_sub(1));
        let command = Command::new(opcode::SET_FEATURES, 0).with(10, 7).with(11, last | last << 16);
        let granted = self.call(command, Payload::None, "Set Features")?.result;
        Ok((granted as u16).min((granted >> 16) as u16).saturating_add(1))
    }

    /// Tells the target that the host is alive.
    ///
    /// # Errors
    /// As for [`Controller::call`].
    pub fn keep_alive(&mut self) -> Result<(), Error> {
        self.heard = Instant::now();
        self.call(Command::new(opcode::KEEP_ALIVE, 0), Payload::None, "Keep Alive").map(drop)
    }

    /// Tells it that if the last time was that long ago.
    ///
    /// # Errors
    /// As for [`Controller::call`].
    pub fn keep_alive_after(&mut self, time: Duration) -> Result<(), Error> {
        if self.heard.elapsed() >= time { self.keep_alive() } else { Ok(()) }
    }

    /// Connects the next I/O queue, for that many commands.
    ///
    /// # Errors
    /// As for [`Controller::call`].
    pub fn io_queue(&mut self, depth: u16) -> Result<Queue<F>, Error> {
        let depth = depth.clamp(2, IO_DEPTH).min(self.limits.commands.max(2));
        let number = self.last_queue + 1;
        let request = QueueRequest { queue: number, receives: depth, depth, controller: self.id };
        let mut queue = Queue::connect(&self.fabric, self.addr, &request, self.transfer_bytes())?;
        let data = ConnectData {
            host_id: self.host.id,
            controller: self.id,
            subsystem: self.subsystem.clone(),
            host: self.host.nqn.clone(),
        };
        let connect = Connect { queue: number, depth, keep_alive_ms: 0 };
        call(&mut queue, connect.command(), Payload::Out(&data.bytes()), "Connect")?;
        queue.set_in_capsule(self.limits.in_capsule);
        self.last_queue = number;
        Ok(queue)
    }
}

impl<F: Fabric> Drop for Controller<F> {
    fn drop(&mut self) {
        // The target ends it with the connection as well.
        let _ = self.call(Property::Cc.set(SHUT_DOWN), Payload::None, "shutdown");
    }
}

/// The subsystems that a target knows.
///
/// # Errors
/// As for [`Controller::connect`].
pub fn discover<F: Fabric>(fabric: &F, addr: SocketAddr, host: &Host) -> Result<Vec<Entry>, Error> {
    let mut controller = Controller::connect(fabric, addr, DISCOVERY_NQN, host, Duration::ZERO)?;
    let mut read = |offset: u64| {
        let get = GetLog { page: page::DISCOVERY, offset, len: ENTRY_BYTES as u64 };
        controller.fetch(get.command(), ENTRY_BYTES, "the discovery log")
    };
    let mut whole = read(0)?;
    for index in 1..=discovery::count(&whole).min(ENTRIES_MAX) {
        whole.extend(read(index * ENTRY_BYTES as u64)?);
    }
    Ok(discovery::read(&whole))
}

/// Sends a command, and waits for its response, on a queue that has no other in flight.
pub(crate) fn call<F: Fabric>(
    queue: &mut Queue<F>,
    command: Command,
    payload: Payload<'_>,
    what: &'static str,
) -> Result<Response, Error> {
    let tag = queue.submit(command, payload)?;
    let response = queue.wait(tag, what, LIMIT)?;
    queue.release(tag);
    check(&response, what)?;
    Ok(response)
}

fn check(response: &Response, command: &'static str) -> Result<(), Error> {
    match response.status {
        status if status.is_ok() => Ok(()),
        status => Err(Error::Refused { command, status }),
    }
}
