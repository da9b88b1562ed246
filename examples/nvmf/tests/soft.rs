//! The target and the initiator on the soft device, in one process.

mod bed;

use std::io::Write;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bed::{Bed, NQN};
use doorbell_nvmf::initiator::{self, Controller, Error, Host, Payload};
use doorbell_nvmf::wire::command::{Command, opcode};
use doorbell_nvmf::wire::status::Status;

#[test]
fn a_target_is_discovered() {
    let bed = Bed::new(1 << 20, 1);
    let found = initiator::discover(&bed.device, bed.addr(), &Host::default()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].subsystem.as_str(), found[0].addr), (NQN, bed.addr()));
}

#[test]
fn blocks_come_back_as_they_were_written() {
    let bed = Bed::new(8 << 20, 2);
    let mut controller = bed.controller();
    assert_eq!(controller.namespaces().unwrap(), [1]);
    assert_eq!(controller.namespace(1).unwrap(), ((8 << 20) / 512, 512));
    assert_eq!(controller.set_queues(2).unwrap(), 2);
    let mut queues = [controller.io_queue(128).unwrap(), controller.io_queue(32).unwrap()];
    // In the capsule, and by READ; a block, and the longest transfer.
    for (round, blocks) in [1_u32, 8, 9, 256].into_iter().enumerate() {
        let data: Vec<u8> = (0..blocks * 512).map(|i| (i * 7 + round as u32) as u8).collect();
        for (index, queue) in queues.iter_mut().enumerate() {
            let at = (round * 2 + index) as u64 * 300;
            let write = Command::blocks(opcode::WRITE, 1, at, blocks);
            bed::call(queue, write, Payload::Out(&data)).unwrap();
        }
        for (index, queue) in queues.iter_mut().rev().enumerate() {
            let at = (round * 2 + index) as u64 * 300;
            let read = Command::blocks(opcode::READ, 1, at, blocks);
            assert_eq!(bed::fetch(queue, read, data.len()).unwrap(), data, "{blocks} blocks");
        }
    }
    bed::call(&mut queues[0], Command::new(opcode::FLUSH, 1), Payload::None).unwrap();
}

#[test]
fn full_queues_keep_every_write() {
    let bed = Bed::new(16 << 20, 2);
    let mut controller = bed.controller();
    controller.set_queues(2).unwrap();
    let mut queues = [controller.io_queue(128).unwrap(), controller.io_queue(128).unwrap()];
    bed::verify(&mut queues, 16 << 20, 6000);
}

#[test]
fn wrong_commands_get_their_status() {
    let bed = Bed::new(1 << 20, 1);
    let mut controller = bed.controller();
    let mut queue = controller.io_queue(16).unwrap();
    let mut status =
        |command: Command, payload: Payload<'_>| match bed::call(&mut queue, command, payload) {
            Err(Error::Refused { status, .. }) => status,
            other => panic!("{other:?}"),
        };
    let blocks = |code, at, count| Command::blocks(code, 1, at, count);
    let (read, write) = (opcode::READ, opcode::WRITE);
    assert_eq!(status(blocks(read, 2047, 2), Payload::In(1024)), Status::OUT_OF_RANGE);
    assert_eq!(status(blocks(write, u64::MAX, 1), Payload::Out(&[0; 512])), Status::OUT_OF_RANGE);
    assert_eq!(status(blocks(read, 0, 2), Payload::In(512)), Status::SGL_LENGTH);
    assert_eq!(status(blocks(write, 0, 9), Payload::Out(&[0; 4096])), Status::SGL_LENGTH);
    assert_eq!(status(Command::new(0x55, 1), Payload::None), Status::INVALID_OPCODE);
    let other = Command::blocks(read, 3, 0, 1);
    assert_eq!(status(other, Payload::In(512)), Status::INVALID_NAMESPACE);
    let compare = blocks(opcode::COMPARE, 0, 1);
    assert_eq!(status(compare, Payload::Out(&[1; 512])), Status::COMPARE);
    bed::call(&mut queue, compare, Payload::Out(&[0; 512])).unwrap();
}

#[test]
fn zeros_and_deallocated_blocks_read_as_zeros() {
    let bed = Bed::new(1 << 20, 1);
    let mut controller = bed.controller();
    let mut queue = controller.io_queue(16).unwrap();
    bed::call(&mut queue, Command::blocks(opcode::WRITE, 1, 0, 8), Payload::Out(&[5; 4096]))
        .unwrap();
    let zero = Command::blocks(opcode::WRITE_ZEROES, 1, 1, 1);
    bed::call(&mut queue, zero, Payload::None).unwrap();
    let mut range = [0; 16];
    (range[4], range[8]) = (2, 4);
    let discard = Command::new(opcode::DATASET_MANAGEMENT, 1).with(11, 4);
    bed::call(&mut queue, discard, Payload::Out(&range)).unwrap();
    let read = bed::fetch(&mut queue, Command::blocks(opcode::READ, 1, 0, 8), 4096).unwrap();
    let blocks: Vec<u8> = read.chunks(512).map(|block| block[0]).collect();
    assert_eq!(blocks, [5, 0, 5, 5, 0, 0, 5, 5]);
}

#[test]
fn a_wrong_subsystem_and_a_wrong_queue_are_refused() {
    let bed = Bed::new(1 << 20, 1);
    let connect = |name: &str| {
        Controller::connect(&bed.device, bed.addr(), name, &Host::default(), Duration::ZERO)
    };
    match connect("nqn.none").map(drop) {
        Err(Error::Refused { status, .. }) => assert_eq!(status, Status::CONNECT_INVALID),
        other => panic!("{other:?}"),
    }
    let mut controller = bed.controller();
    assert_eq!(controller.set_queues(1).unwrap(), 1);
    let _first = controller.io_queue(16).unwrap();
    match controller.io_queue(16).map(drop) {
        Err(Error::Refused { status, .. }) => assert_eq!(status, Status::CONNECT_INVALID),
        other => panic!("{other:?}"),
    }
    controller.keep_alive().unwrap();
}

#[test]
fn a_sleep_also_ends_when_something_else_is_readable() {
    let bed = Bed::new(1 << 20, 1);
    let mut controller = bed.controller();
    controller.set_queues(1).unwrap();
    let mut queue = controller.io_queue(8).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let begun = Instant::now();
    // What came while the queue connected may end a sleep or two at once.
    let mut sleeps = 0;
    while begun.elapsed() < Duration::from_millis(20) {
        queue.sleep(Some(reader.as_fd()), Duration::from_millis(20)).unwrap();
        sleeps += 1;
    }
    assert!(sleeps <= 4, "{sleeps} sleeps");
    writer.write_all(b"x").unwrap();
    queue.sleep(Some(reader.as_fd()), Duration::from_secs(600)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(60));
    bed::call(&mut queue, Command::new(opcode::FLUSH, 1), Payload::None).unwrap();
}
