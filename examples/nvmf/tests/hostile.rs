//! Anything may come from a host: the session answers it, or ends that queue alone.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bed;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bed::{Bed, NQN, Numbers};
use doorbell::soft::SoftDevice;
use doorbell::wr::{SendFlags, SendOp};
use doorbell::{AddrInfo, Buffer, ConnParam, Endpoint, Hints, Id, QpInit, SendRequest};
use doorbell_nvmf::initiator::{Controller, Error, Host, Payload};
use doorbell_nvmf::session::{Place, Request, Session, Step, Work};
use doorbell_nvmf::store::Memory;
use doorbell_nvmf::subsystem::Subsystem;
use doorbell_nvmf::wire::cm::QueueRequest;
use doorbell_nvmf::wire::command::{Command, opcode};
use doorbell_nvmf::wire::connect::{Connect, ConnectData, Property};
use doorbell_nvmf::wire::log::GetLog;
use doorbell_nvmf::wire::sgl::{Data, Keyed};
use doorbell_nvmf::wire::status::Status;
use doorbell_nvmf::wire::{CAPSULE_BYTES, TRANSFER_BYTES};

const ADDR: &str = "127.0.0.1:4420";

fn connect_data(controller: u16) -> ConnectData {
    let (subsystem, host) = (NQN.to_owned(), "nqn.host".to_owned());
    ConnectData { host_id: [7; 16], controller, subsystem, host }
}

/// A capsule of Connect with its data inside.
fn connect_capsule(queue: u16, controller: u16) -> Vec<u8> {
    let connect = Connect { queue, depth: 16, keep_alive_ms: 0 }.command();
    let data = connect_data(controller).bytes();
    let connect = connect.data(Data::InCapsule { offset: 0, len: data.len() as u32 });
    [&connect.bytes()[..], &data].concat()
}

/// Capsules that make sense, as seeds of those that do not.
fn seeds() -> Vec<Vec<u8>> {
    let keyed = |len| Data::Keyed(Keyed { addr: 4096, len, key: 5, invalidate: true });
    let block = |code| Command::blocks(code, 1, 3, 8).data(keyed(4096));
    let inside = Data::InCapsule { offset: 0, len: 4096 };
    let mut seeds: Vec<Vec<u8>> = [
        Property::Cc.set(0x0046_0001),
        Property::Csts.get(),
        Property::Cap.get(),
        Command::new(opcode::IDENTIFY, 1).data(keyed(4096)),
        Command::new(opcode::IDENTIFY, 0).with(10, 1).data(keyed(4096)),
        Command::new(opcode::SET_FEATURES, 0).with(10, 7).with(11, 3 | 3 << 16),
        Command::new(opcode::GET_FEATURES, 0).with(10, 7),
        Command::new(opcode::ASYNC_EVENT, 0),
        Command::new(opcode::ABORT, 0),
        Command::new(opcode::KEEP_ALIVE, 0),
        GetLog { page: 2, offset: 0, len: 512 }.command().data(keyed(512)),
        block(opcode::READ),
        block(opcode::WRITE),
        block(opcode::COMPARE),
        Command::blocks(opcode::WRITE_ZEROES, 1, 0, 16),
        Command::new(opcode::DATASET_MANAGEMENT, 1).with(11, 4).data(keyed(16)),
        Command::new(opcode::FLUSH, 1),
    ]
    .iter()
    .map(|command| command.bytes().to_vec())
    .collect();
    let write = Command::blocks(opcode::WRITE, 1, 9, 8).data(inside);
    seeds.push([&write.bytes()[..], &[1; 4096]].concat());
    seeds.push(connect_capsule(0, 0xffff));
    seeds.push(connect_capsule(1, 1));
    seeds
}

/// A capsule with some bits turned, some bytes replaced, and perhaps cut.
fn spoilt(numbers: &mut Numbers, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut capsule = seeds[numbers.below(seeds.len() as u64) as usize].clone();
    for _ in 0..numbers.below(4) {
        // Most mistakes go into the command.
        let most = if numbers.below(4) == 0 { capsule.len() } else { 64 };
        let at = numbers.below(most as u64) as usize;
        match numbers.below(3) {
            0 => capsule[at] ^= 1 << numbers.below(8),
            1 => capsule[at] = numbers.next() as u8,
            _ => capsule[at] = 0xff,
        }
    }
    if numbers.below(16) == 0 {
        capsule.truncate(numbers.below(capsule.len() as u64 + 1) as usize);
    }
    capsule
}

/// Carries a request out as the target would, with data that the host made up.
fn carry_out(
    session: &mut Session,
    capsule: &[u8],
    request: Request,
    numbers: &mut Numbers,
) -> Status {
    let len = request.data_len();
    assert!(len <= TRANSFER_BYTES, "{len} bytes are more than any buffer has");
    let mut data = vec![numbers.next() as u8; len];
    if let Place::Capsule(range) = &request.place {
        data = capsule[range.clone()].to_vec();
    }
    let status = match &request.work {
        Work::Io(io) => io.run(&mut data),
        Work::Connect(_) => Status::SUCCESS,
    };
    session.finish(request, &data, status).status
}

/// A fuzz test with a fixed start: each run does the same.
#[test]
fn no_capsule_stops_a_session() {
    let (seeds, mut numbers) = (seeds(), Numbers(1));
    let store = Arc::new(Memory::new(1 << 20));
    let subsystem = Arc::new(Subsystem::new(NQN, vec![store], 8));
    let addr: SocketAddr = ADDR.parse().unwrap();
    let (mut good, mut bad, mut breaches) = (0, 0, 0);
    for round in 0..4000 {
        let mut admin = Session::new(subsystem.clone(), 0, 16, addr);
        let mut io = Session::new(subsystem.clone(), 1, 16, addr);
        for step in 0..40 {
            // Each round begins as a host does, so that most sessions get far.
            let capsule = match step {
                0 if round % 8 != 0 => seeds[seeds.len() - 2].clone(),
                1 if round % 8 != 1 => seeds[0].clone(),
                2 => connect_capsule(1, admin.controller().map_or(9, |made| made.id())),
                _ => spoilt(&mut numbers, &seeds),
            };
            let session = if step == 2 || step % 2 == 1 && step > 1 { &mut io } else { &mut admin };
            match session.take(&capsule) {
                Step::Breach => {
                    assert!(capsule.len() < 64, "a whole command gets an answer");
                    breaches += 1;
                }
                Step::Hold => {}
                Step::Gone => unreachable!("nothing ends a controller here"),
                Step::Request(request) => {
                    let status = carry_out(session, &capsule, request, &mut numbers);
                    if status.is_ok() { good += 1 } else { bad += 1 }
                }
                Step::Answers(answers) => {
                    let data = answers.iter().filter_map(|answer| answer.data.as_ref());
                    assert!(data.into_iter().all(|(at, bytes)| bytes.len() <= at.len as usize));
                    for answer in answers {
                        if answer.status.is_ok() { good += 1 } else { bad += 1 }
                    }
                }
            }
        }
    }
    assert!(good > 20_000 && bad > 20_000 && breaches > 500, "{good} {bad} {breaches}");
    assert_eq!(subsystem.controllers(), 0, "each ended with its admin queue");
}

/// A queue pair that says what it likes.
struct Raw(Id<SoftDevice>);

impl Raw {
    fn connect(bed: &Bed, private_data: &[u8]) -> Option<Raw> {
        let init = QpInit::rc().send_wr(64).recv_wr(256).inline(64);
        let info = AddrInfo::of(bed.addr(), &Hints::active());
        let mut id = Endpoint::create(&bed.device, &info, Some(&init)).unwrap().into_id();
        id.queues().post_recvs(&mut Buffer::many(&bed.device, 256, 16).unwrap()).unwrap();
        id.connect(&ConnParam { private_data, ..ConnParam::default() }).ok()?;
        Some(Raw(id))
    }

    /// Sends bytes; false once the connection has ended.
    fn say(&mut self, bed: &Bed, bytes: &[u8]) -> bool {
        let mut buffer = Buffer::new(&bed.device, bytes.len().max(1)).unwrap();
        buffer[..bytes.len()].copy_from_slice(bytes);
        let sent =
            self.0.queues().post_send(buffer, bytes.len(), SendOp::Send, SendFlags::SIGNALED);
        sent.is_ok()
            && self.0.queues().next_send(Duration::from_secs(60)).is_ok_and(|it| it.status.is_ok())
    }
}

/// A host that works, while others do not.
fn still_serves(bed: &Bed) {
    let mut controller = bed.controller();
    let mut queue = controller.io_queue(16).unwrap();
    let write = Command::blocks(opcode::WRITE, 1, 0, 1);
    bed::call(&mut queue, write, Payload::Out(&[9; 512])).unwrap();
    let read = bed::fetch(&mut queue, Command::blocks(opcode::READ, 1, 0, 1), 512).unwrap();
    assert_eq!(read, [9; 512]);
}

#[test]
fn hostile_queue_pairs_end_alone() {
    let bed = Bed::new(1 << 20, 2);
    let (seeds, mut numbers) = (seeds(), Numbers(2));
    let request = |queue| QueueRequest { queue, receives: 16, depth: 16, controller: 0 };
    for round in 0..60 {
        let Some(mut raw) = Raw::connect(&bed, &request(0).bytes()) else {
            panic!("round {round}: the target accepts what it knows")
        };
        if round % 4 != 0 {
            raw.say(&bed, &seeds[seeds.len() - 2]);
            raw.say(&bed, &seeds[0]);
        }
        for _ in 0..20 {
            // Its keys open nothing, so a READ or WRITE ends the queue pair.
            if !raw.say(&bed, &spoilt(&mut numbers, &seeds)) {
                break;
            }
        }
        if round % 20 == 19 {
            still_serves(&bed);
        }
    }
    assert!(!bed.target.is_stopped());
}

#[test]
fn private_data_without_sense_is_rejected() {
    let bed = Bed::new(1 << 20, 1);
    let mut numbers = Numbers(3);
    let mut accepted = 0;
    for _ in 0..40 {
        let data: Vec<u8> = (0..numbers.below(57)).map(|_| numbers.next() as u8).collect();
        accepted += u32::from(Raw::connect(&bed, &data).is_some());
    }
    assert!(accepted < 5, "{accepted}");
    let long = QueueRequest { queue: 1, receives: 16, depth: 129, controller: 0 };
    assert!(Raw::connect(&bed, &long.bytes()).is_none());
    still_serves(&bed);
}

/// The target's poll loop may take some of the commands before the others come, so that a flood has
/// to be repeated.
#[test]
fn more_commands_than_the_queue_holds_end_it() {
    let bed = Bed::new(1 << 20, 1);
    let request = QueueRequest { queue: 0, receives: 4, depth: 4, controller: 0 };
    let (end, mut ended) = (Instant::now() + Duration::from_secs(60), false);
    while !ended && Instant::now() < end {
        let mut raw = Raw::connect(&bed, &request.bytes()).unwrap();
        assert!(raw.say(&bed, &connect_capsule(0, 0xffff)));
        let buffers = Buffer::many(&bed.device, 48, 64).unwrap();
        let get = |mut buffer: Buffer<SoftDevice>| {
            buffer.copy_from_slice(Property::Csts.get().bytes());
            SendRequest { buffer, len: 64, op: SendOp::Send, flags: SendFlags::SIGNALED }
        };
        let mut list: Vec<_> = buffers.into_iter().map(get).collect();
        raw.0.queues().post_sends(&mut list).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        ended = bed.target.subsystem().counters.breaches.load(Ordering::Relaxed) > 0;
    }
    assert!(ended, "a host may use up the receives of others");
    still_serves(&bed);
}

#[test]
fn a_capsule_that_is_too_long_ends_its_queue() {
    let bed = Bed::new(1 << 20, 1);
    let request = QueueRequest { queue: 0, receives: 4, depth: 4, controller: 0 };
    let mut raw = Raw::connect(&bed, &request.bytes()).unwrap();
    assert!(raw.say(&bed, &connect_capsule(0, 0xffff)));
    let long = vec![0; CAPSULE_BYTES + 64];
    let (end, mut alive) = (Instant::now() + Duration::from_secs(60), true);
    while alive && Instant::now() < end {
        alive = raw.say(&bed, &long);
    }
    assert!(!alive, "a capsule that is too long fits no receive");
    still_serves(&bed);
}

#[test]
fn a_silent_host_loses_its_controller() {
    let bed = Bed::new(1 << 20, 1);
    let host = Host::default();
    let silence = Duration::from_millis(1500);
    let mut controller = Controller::connect(&bed.device, bed.addr(), NQN, &host, silence).unwrap();
    let mut queue = controller.io_queue(16).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < silence * 5 / 2 {
        controller.keep_alive().unwrap();
        std::thread::sleep(silence / 10);
    }
    bed::call(&mut queue, Command::new(opcode::FLUSH, 1), Payload::None).unwrap();
    assert_eq!(bed.target.subsystem().controllers(), 1);
    let end = Instant::now() + Duration::from_secs(60);
    while bed.target.subsystem().controllers() > 0 {
        assert!(Instant::now() < end, "the target waits for ever");
        std::thread::sleep(silence / 10);
    }
    let lost = bed::call(&mut queue, Command::new(opcode::FLUSH, 1), Payload::None).unwrap_err();
    assert!(matches!(lost, Error::Lost(_) | Error::Cm(_)), "{lost}");
    still_serves(&bed);
}
