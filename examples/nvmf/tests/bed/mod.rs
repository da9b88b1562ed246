//! A target in this process, and what its tests ask of it.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use doorbell::soft::SoftDevice;
use doorbell_nvmf::initiator::{Controller, Error, Host, Payload, Queue, Tag};
use doorbell_nvmf::store::{Memory, Store};
use doorbell_nvmf::subsystem::Subsystem;
use doorbell_nvmf::target::{SPINS, Target};
use doorbell_nvmf::wire::command::{Command, opcode};

pub(crate) const NQN: &str = "nqn.2026-11.rs.doorbell:test";
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Bed {
    pub(crate) device: SoftDevice,
    pub(crate) target: Target,
}

impl Bed {
    pub(crate) fn new(bytes: u64, workers: usize) -> Bed {
        Bed::over(Arc::new(Memory::new(bytes)), workers)
    }

    pub(crate) fn over(store: Arc<dyn Store>, workers: usize) -> Bed {
        let device = SoftDevice::open().unwrap();
        let subsystem = Arc::new(Subsystem::new(NQN, vec![store], 8));
        let any = "127.0.0.1:0".parse().unwrap();
        let target = Target::start(&device, any, subsystem, workers, SPINS).unwrap();
        Bed { device, target }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.target.addr()
    }

    pub(crate) fn controller(&self) -> Controller<SoftDevice> {
        let host = Host::default();
        Controller::connect(&self.device, self.addr(), NQN, &host, Duration::ZERO).unwrap()
    }
}

pub(crate) fn call(
    queue: &mut Queue<SoftDevice>,
    command: Command,
    payload: Payload<'_>,
) -> Result<(), Error> {
    let tag = queue.submit(command, payload)?;
    let response = queue.wait(tag, "a command", LIMIT)?;
    queue.release(tag);
    match response.status {
        status if status.is_ok() => Ok(()),
        status => Err(Error::Refused { command: "a command", status }),
    }
}

pub(crate) fn fetch(
    queue: &mut Queue<SoftDevice>,
    command: Command,
    len: usize,
) -> Result<Vec<u8>, Error> {
    let tag = queue.submit(command, Payload::In(len))?;
    let response = queue.wait(tag, "a command", LIMIT)?;
    let mut out = vec![0; len];
    queue.read(tag, &mut out)?;
    queue.release(tag);
    match response.status {
        status if status.is_ok() => Ok(out),
        status => Err(Error::Refused { command: "a command", status }),
    }
}

/// Numbers that look random, the same in each run.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The bytes of one block of a write.
fn block(number: u64, version: u64) -> [u8; 512] {
    let mut out = [0; 512];
    for (index, word) in out.chunks_exact_mut(8).enumerate() {
        let mix = (number << 32 ^ version << 8 ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mix.to_le_bytes());
    }
    out
}

/// What a command in flight will have done.
enum Doing {
    Write,
    Read { at: u64, versions: Vec<u64> },
}

/// Writes and reads at random over all queues, which stay full; each read must bring what was last
/// written there. A block is in one command at a time.
pub(crate) fn verify(queues: &mut [Queue<SoftDevice>], bytes: u64, count: usize) {
    const SPAN: u64 = 64; // Blocks that a command may touch: its span is locked meanwhile.
    let spans = bytes / 512 / SPAN;
    let mut versions = vec![0_u64; (bytes / 512) as usize];
    let mut busy: HashMap<u64, ()> = HashMap::new();
    let mut flying: Vec<HashMap<Tag, (u64, Doing)>> =
        queues.iter().map(|_| HashMap::new()).collect();
    let (mut numbers, mut begun, mut done, mut version) = (Numbers(7), 0, 0, 0);
    let mut quiet = std::time::Instant::now();
    while done < count {
        for (queue, flying) in queues.iter_mut().zip(&mut flying) {
            while begun < count && queue.in_use() < queue.capacity() {
                let span = numbers.below(spans);
                if busy.contains_key(&span) {
                    break;
                }
                let start = numbers.below(SPAN);
                let blocks = 1 + numbers.below(SPAN - start);
                let at = span * SPAN + start;
                let range = at as usize..(at + blocks) as usize;
                let len = blocks as usize * 512;
                let (code, payload, doing);
                let mut data = Vec::new();
                if numbers.below(2) == 0 {
                    version += 1;
                    versions[range].fill(version);
                    (at..at + blocks).for_each(|number| data.extend(block(number, version)));
                    (code, payload, doing) = (opcode::WRITE, Payload::Out(&data), Doing::Write);
                } else {
                    let versions = versions[range].to_vec();
                    (code, payload) = (opcode::READ, Payload::In(len));
                    doing = Doing::Read { at, versions };
                }
                let tag =
                    queue.submit(Command::blocks(code, 1, at, blocks as u32), payload).unwrap();
                busy.insert(span, ());
                flying.insert(tag, (span, doing));
                begun += 1;
            }
            while let Some((tag, response)) = queue.poll().unwrap() {
                assert!(response.status.is_ok(), "{:?}", response.status);
                let (span, doing) = flying.remove(&tag).expect("it was submitted");
                if let Doing::Read { at, versions } = doing {
                    let mut data = vec![0; versions.len() * 512];
                    queue.read(tag, &mut data).unwrap();
                    for (index, (version, got)) in versions.iter().zip(data.chunks(512)).enumerate()
                    {
                        let number = at + index as u64;
                        let want = if *version == 0 { [0; 512] } else { block(number, *version) };
                        assert!(got == want, "block {number} has not its version {version}");
                    }
                }
                queue.release(tag);
                busy.remove(&span);
                (done, quiet) = (done + 1, std::time::Instant::now());
            }
        }
        assert!(quiet.elapsed() < LIMIT, "nothing moves: {done} of {count}");
        std::thread::yield_now();
    }
}
