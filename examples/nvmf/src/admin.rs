//! Commands of the admin set.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::controller::Controller;
use crate::subsystem::Subsystem;
use crate::wire::command::{Command, opcode};
use crate::wire::identify::{self, EVENTS_MAX, cns};
use crate::wire::log::{self, GetLog};
use crate::wire::status::Status;
use crate::wire::{PAGE_BYTES, TRANSFER_BYTES, discovery};

/// Features, by their numbers.
mod feature {
    pub(super) const ARBITRATION: u8 = 0x01;
    pub(super) const POWER: u8 = 0x02;
    pub(super) const TEMPERATURE: u8 = 0x04;
    pub(super) const ERROR_RECOVERY: u8 = 0x05;
    pub(super) const WRITE_CACHE: u8 = 0x06;
    pub(super) const QUEUES: u8 = 0x07;
    pub(super) const ATOMICITY: u8 = 0x0a;
    pub(super) const EVENTS: u8 = 0x0b;
    pub(super) const KEEP_ALIVE: u8 = 0x0f;
    pub(super) const HOST_ID: u8 = 0x81;
}

/// What an admin command leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// An answer, with a result.
    Result(u64),
    /// An answer, with data.
    Data(Vec<u8>),
    /// No answer until something happens.
    Held,
    /// An answer, and one to an event request that ends.
    Aborted(u16),
}

/// The admin queue of a controller.
pub struct Admin {
    /// The controller.
    pub controller: Arc<Controller>,
    /// The address that the host has reached.
    addr: SocketAddr,
    /// Event requests without an answer, by their numbers.
    events: Vec<u16>,
}

impl Admin {
    /// The queue of a controller that the host has reached at `addr`.
    pub fn new(controller: Arc<Controller>, addr: SocketAddr) -> Admin {
        Admin { controller, addr, events: Vec::new() }
    }

    /// Carries out a command.
    ///
    /// # Errors
    /// The status that answers it.
    pub fn run(&mut self, subsystem: &Subsystem, command: &Command) -> Result<Done, Status> {
        let code = command.opcode();
        if code == opcode::KEEP_ALIVE {
            self.controller.hear();
            return Ok(Done::Result(0));
        }
        if !self.controller.is_ready() {
            return Err(Status::SEQUENCE);
        }
        match code {
            opcode::IDENTIFY => self.identify(subsystem, command),
            opcode::GET_LOG_PAGE => self.log(subsystem, command),
            opcode::ASYNC_EVENT if self.events.len() >= EVENTS_MAX => Err(Status::EVENT_LIMIT),
            opcode::ASYNC_EVENT => {
                self.events.push(command.id());
                Ok(Done::Held)
            }
            opcode::SET_FEATURES => self.set(subsystem, command),
            opcode::GET_FEATURES => self.get(subsystem, command),
            opcode::ABORT => Ok(self.abort(command)),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn identify(&self, subsystem: &Subsystem, command: &Command) -> Result<Done, Status> {
        let discovery = self.controller.is_discovery();
        let id = command.namespace();
        let space = || subsystem.namespace(id).ok_or(Status::INVALID_NAMESPACE);
        let page = match command.dword(10) as u8 {
            cns::CONTROLLER => subsystem.shown(&self.controller).page(),
            _ if discovery => return Err(Status::INVALID_FIELD),
            cns::NAMESPACE => space()?.shown().page(),
            cns::ACTIVE_NAMESPACES if id >= u32::MAX - 1 => return Err(Status::INVALID_NAMESPACE),
            cns::ACTIVE_NAMESPACES => identify::active(id, subsystem.last_namespace()),
            cns::NAMESPACE_DESCRIPTORS => space()?.shown().descriptors(),
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Done::Data(page.to_vec()))
    }

    fn log(&self, subsystem: &Subsystem, command: &Command) -> Result<Done, Status> {
        let get = GetLog::read(command)?;
        let whole = match (get.page, self.controller.is_discovery()) {
            (log::page::DISCOVERY, true) => {
                let subsystem = subsystem.nqn().to_owned();
                discovery::page(&[discovery::Entry { subsystem, addr: self.addr }])
            }
            (log::page::ERRORS, false) => log::errors(),
            (log::page::HEALTH, false) => subsystem.counters.health().page(),
            (log::page::FIRMWARE, false) => log::firmware(),
            _ => return Err(Status::INVALID_LOG),
        };
        get.cut(&whole, TRANSFER_BYTES).map(Done::Data)
    }

    fn set(&self, subsystem: &Subsystem, command: &Command) -> Result<Done, Status> {
        let (name, value) = (command.dword(10) as u8, command.dword(11));
        if command.dword(10) & 1 << 31 != 0 {
            return Err(Status::INVALID_FIELD); // Nothing can be saved.
        }
        match name {
            feature::QUEUES if !self.controller.is_discovery() => {
                let granted = self.controller.grant(value, subsystem.queues())?;
                return Ok(Done::Result(u64::from(granted)));
            }
            feature::KEEP_ALIVE => self.controller.set_keep_alive_ms(value),
            feature::WRITE_CACHE => return Err(Status::NOT_CHANGEABLE),
            feature::HOST_ID => return Err(Status::SEQUENCE), // Connect has set it.
            feature::ARBITRATION | feature::POWER | feature::TEMPERATURE => {
                self.controller.remember(name, value);
            }
            feature::ERROR_RECOVERY | feature::ATOMICITY | feature::EVENTS => {
                self.controller.remember(name, value);
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(Done::Result(0))
    }

    fn get(&self, subsystem: &Subsystem, command: &Command) -> Result<Done, Status> {
        let name = command.dword(10) as u8;
        // Nothing was saved, so the current and the saved value are the same as the default.
        let value = match name {
            feature::QUEUES if !self.controller.is_discovery() => {
                self.controller.granted(subsystem.queues())
            }
            feature::KEEP_ALIVE => self.controller.keep_alive_ms(),
            feature::WRITE_CACHE => 1,
            feature::HOST_ID if command.dword(11) & 1 == 0 => return Err(Status::INVALID_FIELD),
            feature::HOST_ID => return Ok(Done::Data(self.controller.host_id().to_vec())),
            feature::ARBITRATION | feature::POWER | feature::TEMPERATURE => {
                self.controller.remembered(name).unwrap_or_default()
            }
            feature::ERROR_RECOVERY | feature::ATOMICITY | feature::EVENTS => {
                self.controller.remembered(name).unwrap_or_default()
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Done::Result(u64::from(value)))
    }

    /// Ends an event request. Any other command ends by itself, so it is not aborted.
    fn abort(&mut self, command: &Command) -> Done {
        let (queue, id) = (command.dword(10) as u16, (command.dword(10) >> 16) as u16);
        match self.events.iter().position(|held| queue == 0 && *held == id) {
            Some(index) => Done::Aborted(self.events.swap_remove(index)),
            None => Done::Result(1),
        }
    }
}

/// Bytes of data that the host must have room for; `None` if the command has no data.
pub(crate) fn room(command: &Command) -> Option<usize> {
    match command.opcode() {
        opcode::IDENTIFY => Some(PAGE_BYTES),
        opcode::GET_LOG_PAGE => {
            GetLog::read(command).ok().map(|get| usize::try_from(get.len).unwrap_or(usize::MAX))
        }
        opcode::GET_FEATURES if command.dword(10) as u8 == feature::HOST_ID => Some(16),
        _ => None,
    }
}
