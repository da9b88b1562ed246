//! The protocol of one queue, without any I/O: capsules go in, answers and requests for data come
//! out. Anything may go in.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use crate::admin::{self, Admin, Done};
use crate::controller::Controller;
use crate::io::{Io, Way};
use crate::subsystem::{Counters, Subsystem};
use crate::wire::command::{Command, fabrics, opcode};
use crate::wire::connect::{CONNECT_BYTES, Connect, ConnectData, Property, Refusal};
use crate::wire::response::Response;
use crate::wire::sgl::{self, Data, Keyed};
use crate::wire::status::Status;
use crate::wire::{COMMAND_BYTES, TRANSFER_BYTES};

/// An answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of the command.
    pub id: u16,
    /// How it ended.
    pub status: Status,
    /// Its result.
    pub result: u64,
    /// Bytes that go to the host's memory before the answer.
    pub data: Option<(Keyed, Vec<u8>)>,
    /// The host's key that the answer invalidates.
    pub invalidate: Option<u32>,
}

impl Answer {
    fn new(id: u16, done: Result<u64, Status>) -> Answer {
        let (status, result) = match done {
            Ok(result) => (Status::SUCCESS, result),
            Err(status) => (status, 0),
        };
        Answer { id, status, result, data: None, invalidate: None }
    }
}

/// What a request does once its data is there.
pub enum Work {
    /// Connects the queue.
    Connect(Command),
    /// A command of the I/O set.
    Io(Io),
}

/// Where the data of a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It has none.
    None,
    /// In these bytes of the capsule.
    Capsule(Range<usize>),
    /// In the host's memory, from where it must come first.
    Take(Keyed),
    /// It goes to the host's memory afterwards.
    Give(Keyed),
}

/// A command that is not finished.
pub struct Request {
    /// Its number.
    pub id: u16,
    /// What to do.
    pub work: Work,
    /// Where its data is.
    pub place: Place,
    /// The host's key that a good answer invalidates.
    pub invalidate: Option<u32>,
}

impl Request {
    /// Bytes of its data.
    pub fn data_len(&self) -> usize {
        match (&self.place, &self.work) {
            (Place::None, _) => 0,
            (_, Work::Connect(_)) => CONNECT_BYTES,
            (_, Work::Io(io)) => io.data_len(),
        }
    }

    fn answer(self, done: Result<u64, Status>) -> Answer {
        let invalidate = self.invalidate.filter(|_| done.is_ok());
        Answer { invalidate, ..Answer::new(self.id, done) }
    }
}

/// What a capsule leads to.
pub enum Step {
    /// These answers.
    Answers(Vec<Answer>),
    /// A request to carry out.
    Request(Request),
    /// Nothing for now.
    Hold,
    /// The host breaks the protocol: the queue ends.
    Breach,
    /// The controller has ended, and the queue with it: an error would reach the host's programs,
    /// an ended connection is made again.
    Gone,
}

enum Role {
    /// Connect has not come.
    New,
    Admin(Admin),
    Io(Arc<Controller>),
}

/// One queue.
pub struct Session {
    subsystem: Arc<Subsystem>,
    /// The queue, as the connection request named it.
    queue: u16,
    depth: u16,
    addr: SocketAddr,
    role: Role,
    /// Commands that have come, modulo the depth.
    head: u16,
}

impl Session {
    /// A queue of `depth` entries that the host has reached at `addr`.
    pub fn new(subsystem: Arc<Subsystem>, queue: u16, depth: u16, addr: SocketAddr) -> Session {
        Session { subsystem, queue, depth, addr, role: Role::New, head: 0 }
    }

    /// True once Connect has succeeded.
    pub fn is_connected(&self) -> bool {
        !matches!(self.role, Role::New)
    }

    /// Its controller.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        match &self.role {
            Role::New => None,
            Role::Admin(admin) => Some(&admin.controller),
            Role::Io(controller) => Some(controller),
        }
    }

    /// True for a connected admin queue.
    pub fn is_admin(&self) -> bool {
        matches!(self.role, Role::Admin(_))
    }

    /// The subsystem.
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// Ends the queue: an admin queue takes its controller along.
    pub fn end(&mut self) {
        match std::mem::replace(&mut self.role, Role::New) {
            Role::New => {}
            Role::Admin(admin) => self.subsystem.remove(&admin.controller),
            Role::Io(controller) => controller.remove_queue(self.queue),
        }
    }

    /// The response capsule of an answer.
    pub fn response(&self, answer: &Answer) -> Response {
        let Answer { id, status, result, .. } = *answer;
        Response { result, head: self.head, queue: self.queue, id, status }
    }

    /// Takes a capsule.
    pub fn take(&mut self, capsule: &[u8]) -> Step {
        if self.controller().is_some_and(|controller| controller.is_ended()) {
            return Step::Gone;
        }
        let Some(command) = Command::read(capsule) else { return Step::Breach };
        self.head = (self.head + 1) % self.depth.max(1);
        let extra = capsule.get(COMMAND_BYTES..).unwrap_or_default();
        match self.step(&command, extra) {
            Ok(step) => step,
            Err(status) => self.refuse(&command, status.into()),
        }
    }

    fn refuse(&self, command: &Command, refusal: Refusal) -> Step {
        Counters::add(&self.subsystem.counters.refused, 1);
        let answer = Answer::new(command.id(), Err(refusal.status));
        Step::Answers(vec![Answer { result: refusal.result, ..answer }])
    }

    fn step(&mut self, command: &Command, extra: &[u8]) -> Result<Step, Status> {
        let data = command.place()?;
        if data.len() > TRANSFER_BYTES {
            return Err(Status::INVALID_FIELD);
        }
        if command.opcode() == opcode::FABRICS {
            return self.fabrics(command, data, extra);
        }
        match &mut self.role {
            Role::New => Err(Status::SEQUENCE),
            Role::Io(controller) if !controller.is_ready() => Err(Status::SEQUENCE),
            Role::Io(_) => {
                let io = Io::read(&self.subsystem, command)?;
                let place = place(data, extra, io.way(), io.data_len())?;
                Ok(Step::Request(request(command.id(), Work::Io(io), place)))
            }
            Role::Admin(admin) => {
                let room = admin::room(command);
                let to = room.map(|len| place(data, extra, Way::Give, len)).transpose()?;
                let done = admin.run(&self.subsystem, command)?;
                Ok(admin_step(command.id(), done, to))
            }
        }
    }

    fn fabrics(&mut self, command: &Command, data: Data, extra: &[u8]) -> Result<Step, Status> {
        let kind = command.fabrics_type();
        match (kind, &mut self.role) {
            (fabrics::CONNECT, Role::New) => {
                let place = place(data, extra, Way::Take, CONNECT_BYTES)?;
                Ok(Step::Request(request(command.id(), Work::Connect(*command), place)))
            }
            (_, Role::New) | (fabrics::CONNECT, _) => Err(Status::SEQUENCE),
            (fabrics::PROPERTY_GET, Role::Admin(admin)) => {
                let value = admin.controller.property(Property::read(command)?);
                Ok(Step::Answers(vec![Answer::new(command.id(), Ok(value))]))
            }
            (fabrics::PROPERTY_SET, Role::Admin(admin)) => {
                let property = Property::read(command)?;
                admin.controller.set_property(property, command.long(12))?;
                Ok(Step::Answers(vec![Answer::new(command.id(), Ok(0))]))
            }
            (fabrics::DISCONNECT, Role::Io(controller)) => {
                // The host closes the queue pair once it has the answer.
                controller.remove_queue(self.queue);
                Ok(Step::Answers(vec![Answer::new(command.id(), Ok(0))]))
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Finishes a request whose data is there: `data` has the host's bytes. Bytes for the host are
    /// read into it before.
    pub fn finish(&mut self, request: Request, data: &[u8], status: Status) -> Answer {
        let done = match &request.work {
            Work::Connect(command) => match self.connect(command, data) {
                Ok(id) => Ok(u64::from(id)),
                Err(refusal) => {
                    Counters::add(&self.subsystem.counters.refused, 1);
                    let answer = request.answer(Err(refusal.status));
                    return Answer { result: refusal.result, ..answer };
                }
            },
            Work::Io(io) => {
                io.count(&self.subsystem.counters, status);
                if status.is_ok() { Ok(0) } else { Err(status) }
            }
        };
        request.answer(done)
    }

    fn connect(&mut self, command: &Command, data: &[u8]) -> Result<u16, Refusal> {
        let (connect, data) = (Connect::read(command)?, ConnectData::read(data)?);
        if self.is_connected() {
            return Err(Status::SEQUENCE.into());
        }
        if connect.queue != self.queue {
            return Err(Refusal::field(42));
        }
        // The queue pair was made for `depth` commands.
        if connect.depth > self.depth {
            return Err(Refusal::field(44));
        }
        self.depth = connect.depth;
        let controller = if self.queue == 0 {
            let made = self.subsystem.connect_admin(&connect, &data)?;
            self.role = Role::Admin(Admin::new(made.clone(), self.addr));
            made
        } else {
            let found = self.subsystem.connect_io(&connect, &data)?;
            self.role = Role::Io(found.clone());
            found
        };
        Ok(controller.id())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

fn request(id: u16, work: Work, place: Place) -> Request {
    let invalidate = match &place {
        Place::Take(keyed) | Place::Give(keyed) => keyed.invalidate.then_some(keyed.key),
        Place::None | Place::Capsule(_) => None,
    };
    Request { id, work, place, invalidate }
}

fn admin_step(id: u16, done: Done, to: Option<Place>) -> Step {
    let answer = |result| Answer::new(id, Ok(result));
    match (done, to) {
        (Done::Held, _) => Step::Hold,
        (Done::Result(result), _) => Step::Answers(vec![answer(result)]),
        (Done::Aborted(other), _) => {
            Step::Answers(vec![Answer::new(other, Err(Status::ABORT_REQUESTED)), answer(0)])
        }
        (Done::Data(bytes), Some(Place::Give(keyed))) => {
            let invalidate = keyed.invalidate.then_some(keyed.key);
            Step::Answers(vec![Answer { data: Some((keyed, bytes)), invalidate, ..answer(0) }])
        }
        (Done::Data(_), _) => Step::Answers(vec![Answer::new(id, Err(Status::SGL_LENGTH))]),
    }
}

/// Where `len` bytes are that go that way.
fn place(data: Data, extra: &[u8], way: Way, len: usize) -> Result<Place, Status> {
    if way == Way::None {
        return Ok(Place::None);
    }
    if data.len() < len {
        return Err(Status::SGL_LENGTH);
    }
    match (data, way) {
        (Data::Keyed(keyed), Way::Take) => Ok(Place::Take(Keyed { len: len as u32, ..keyed })),
        (Data::Keyed(keyed), _) => Ok(Place::Give(Keyed { len: len as u32, ..keyed })),
        (Data::InCapsule { offset, len: named }, Way::Take) => {
            sgl::in_capsule(extra, offset, named)?;
            let start = COMMAND_BYTES + offset as usize;
            Ok(Place::Capsule(start..start + len))
        }
        (Data::InCapsule { .. }, _) => Err(Status::SGL_TYPE),
    }
}
