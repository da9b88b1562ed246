//! A target on a file, by io_uring where the system permits it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bed;
#[path = "../../tests/process/folder.rs"]
mod folder;

use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bed::Bed;
use doorbell::soft::SoftDevice;
use doorbell::{Buffer, message_memory};
use doorbell_nvmf::initiator::Payload;
use doorbell_nvmf::store::{File, Move, Ring, Store, Transfer};
use doorbell_nvmf::wire::command::{Command, opcode};
use folder::Folder;

/// A folder, and a file that is made in it. It is on a disk, because no ring serves files in
/// memory.
fn scratch(name: &str, bytes: u64) -> (Folder, File) {
    let folder = Folder::on_disk(name);
    let file = File::open(Path::new(&folder.file("disk")), Some(bytes)).unwrap();
    (folder, file)
}

type Jobs = Ring<SoftDevice, usize>;

/// A ring; none, with a word about it, where it is not permitted.
fn ring() -> Option<Jobs> {
    match Ring::new() {
        Ok(ring) => Some(ring),
        Err(error) => {
            println!("skipped: io_uring is not permitted here: {error}");
            None
        }
    }
}

/// Waits for the next transfer that has ended.
fn next(ring: &mut Jobs) -> (usize, Option<Buffer<SoftDevice>>, std::io::Result<usize>) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        ring.submit().unwrap();
        if let Some(ended) = ring.take() {
            return ended;
        }
        assert!(Instant::now() < end, "no transfer ends");
        std::thread::yield_now();
    }
}

#[test]
fn full_queues_keep_every_write_on_a_file() {
    let (folder, file) = scratch("full", 8 << 20);
    let bed = Bed::over(Arc::new(file), 2);
    let mut controller = bed.controller();
    controller.set_queues(2).unwrap();
    let mut queues = [controller.io_queue(128).unwrap(), controller.io_queue(128).unwrap()];
    bed::verify(&mut queues, 8 << 20, 2000);
    let last = Command::blocks(opcode::WRITE, 1, 16, 8).forced();
    bed::call(&mut queues[0], last, Payload::Out(&[0xa5; 4096])).unwrap();
    bed::call(&mut queues[0], Command::new(opcode::FLUSH, u32::MAX), Payload::None).unwrap();
    let bytes = std::fs::read(folder.file("disk")).unwrap();
    assert!(bytes[16 * 512..24 * 512].iter().all(|byte| *byte == 0xa5));
}

#[test]
fn a_ring_moves_bytes_with_and_without_registered_buffers() {
    let Some(mut ring) = ring() else { return };
    let ((_folder, file), device) = (scratch("ring", 1 << 20), SoftDevice::open().unwrap());
    let memory = message_memory(&device, 2 * 4096).unwrap();
    let mut buffers = Buffer::over(&device, memory, 2, 4096).unwrap();
    let region = (buffers[0].as_ptr() as usize, 2 * 4096);
    let set = ring.register([region, region]);
    for index in [None, set.map(|set| set * 2), set.map(|set| set * 2 + 1)] {
        let fill = 7 + index.map_or(0, |index| index as u8 + 1);
        let (mut from, mut to) = (buffers.pop().unwrap(), buffers.pop().unwrap());
        from.fill(fill);
        to.fill(0);
        let at = 8192;
        let transfer = |how, bytes: &[u8]| {
            let file = file.descriptor(at, bytes).unwrap();
            let len = if how == Move::Flush { 0 } else { 4096 };
            Transfer { file, how, at, len }
        };
        let write = transfer(Move::Write { force: true }, &from);
        ring.give(write, index, 1, Some(from)).unwrap();
        let (job, from, moved) = next(&mut ring);
        assert_eq!((job, moved.unwrap()), (1, 4096));
        ring.give(transfer(Move::Flush, &[]), None, 2, None).unwrap();
        assert_eq!(next(&mut ring).2.unwrap(), 0);
        ring.give(transfer(Move::Read, &to), index, 3, Some(to)).unwrap();
        let (job, to, moved) = next(&mut ring);
        assert_eq!((job, moved.unwrap()), (3, 4096));
        let to = to.unwrap();
        assert!(to.iter().all(|byte| *byte == fill), "{index:?}");
        buffers.extend([from.unwrap(), to]);
    }
    if let Some(set) = set {
        ring.unregister(set);
        let transfer = Transfer {
            file: file.descriptor(0, &buffers[0]).unwrap(),
            how: Move::Read,
            at: 0,
            len: 4096,
        };
        ring.give(transfer, Some(set * 2), 4, buffers.pop()).unwrap();
        assert!(next(&mut ring).2.is_err(), "nothing is registered any more");
    }
}

#[test]
fn a_full_ring_and_a_short_buffer_give_the_job_back_and_an_end_waits() {
    let Some(mut ring) = ring() else { return };
    let ((_folder, file), device) = (scratch("end", 1 << 20), SoftDevice::open().unwrap());
    let how = Move::Read;
    let transfer = |len| Transfer { file: file.descriptor(0, &[]).unwrap(), how, at: 0, len };
    let short = Buffer::new(&device, 4096).unwrap();
    let back = ring.give(transfer(8192), None, 9, Some(short)).unwrap_err();
    assert_eq!((back.0, back.1.unwrap().len()), (9, 4096));
    let mut taken = 0;
    while ring.give(transfer(0), None, taken, None).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, 1024, "each place of the ring is free again");
    assert!(!ring.is_empty());
    drop(ring);
    assert_eq!(file.len(), 1 << 20);
}

#[test]
fn a_transfer_that_never_ends_does_not_hold_up_the_end_of_a_ring() {
    let Some(mut ring) = ring() else { return };
    let device = SoftDevice::open().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let transfer = Transfer { file: reader.as_raw_fd(), how: Move::Read, at: 0, len: 64 };
    ring.give(transfer, None, 5, Some(Buffer::new(&device, 4096).unwrap())).unwrap();
    assert!(!ring.drain(Duration::from_millis(50)) && !ring.is_empty());
    writer.write_all(&[3; 64]).unwrap();
    assert!(ring.drain(Duration::from_secs(60)) && ring.is_empty());
}
