//! Processes that are killed (SIGKILL) at any instruction: whoever they talked to hears of the end,
//! loses nothing but what was on its way, has nothing left over, and serves the next.
//!
//! The peer is this program, run again with a part to play. `DOORBELL_KILLS` says how often each
//! test kills; the default is what a test run has time for.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::soft::SoftDevice;
use doorbell_cm::{
    AddrInfo, Buffer, ConnParam, Endpoint, Exposed, Hints, Id, PortSpace, QpInit, Target,
};
use doorbell_engine::provider::{Access, GRH_BYTES};
use doorbell_engine::wc::Status;
use doorbell_engine::wr::{Remote, SendFlags, SendOp};

/// The variable that names the part to play, and the address to go to.
const PART: &str = "DOORBELL_KILLS_PART";

/// How long anything may take that must come.
const SOON: Duration = Duration::from_secs(20);
/// How long the end of a peer takes to be heard of, usually.
const END: Duration = Duration::from_millis(100);

/// Bytes of a datagram, and of a message, at most.
const DATAGRAM: usize = 4096;
const MESSAGE: usize = 20_000;
/// Receives at a time.
const RECEIVES: usize = 16;

/// Receivers of datagrams that are killed on: a sender that dies while it writes one costs its
/// receiver a place, of which there are 64.
const KILLS_EACH: u32 = 20;

fn kills() -> u32 {
    std::env::var("DOORBELL_KILLS").map_or(40, |count| count.parse().unwrap())
}

/// Numbers that look random, the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % bound
    }
}

/// Message `number`: its number, its length, and bytes that only it has.
fn text(number: u32, longest: usize) -> Vec<u8> {
    let length = 8 + number.wrapping_mul(2_654_435_761) as usize % (longest - 8);
    let mut bytes = [number.to_le_bytes(), (length as u32).to_le_bytes()].concat();
    bytes.extend((8..length).map(|at| (at as u32).wrapping_mul(31).wrapping_add(number) as u8));
    bytes
}

/// The number of a message that is whole.
fn number_of(bytes: &[u8], longest: usize) -> u32 {
    let number = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let number = number.unwrap();
    assert!(bytes == text(number, longest), "message {number} is not what was sent");
    number
}

/// Plays a part if one was given; otherwise there is nothing to test here.
#[test]
fn the_other_process() {
    let Ok(given) = std::env::var(PART) else { return };
    let (part, addr) = given.split_once(' ').unwrap();
    let addr = addr.parse().unwrap();
    match part {
        "talk" => talk(addr),
        _ => mail(addr),
    }
}

fn peer(part: &str, addr: SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(PART, format!("{part} {addr}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// One at a time: what another has open would look left behind.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What could be left behind: descriptors, mappings of memfds, files where such things are kept.
#[derive(Debug, PartialEq, Eq)]
struct Belongings {
    descriptors: usize,
    memfds: usize,
    files: BTreeSet<String>,
}

fn belongings() -> Belongings {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let runtime = std::env::var("XDG_RUNTIME_DIR").unwrap_or_else(|_| "/run/doorbell".to_owned());
    let names = ["/dev/shm", "/dev/hugepages", &*runtime].into_iter().flat_map(fs::read_dir);
    let names = names.flatten().flatten().map(|entry| entry.path().display().to_string());
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let ours = format!("{:08x}", std::process::id());
    let sockets = sockets.lines().filter_map(|line| line.split_ascii_whitespace().nth(7));
    let groups = sockets.filter(|name| name.contains("doorbell") && name.contains(&*ours));
    Belongings {
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        memfds: maps.lines().filter(|line| line.contains("memfd:")).count(),
        files: names.chain(groups.map(str::to_owned)).filter(|n| n.contains("doorbell")).collect(),
    }
}

fn talkers() -> QpInit<SoftDevice> {
    QpInit::rc().send_wr(8).recv_wr(RECEIVES as u32).inline(64)
}

/// Connects, then sends, writes, reads and counts for ever.
fn talk(addr: SocketAddr) {
    let device = SoftDevice::open().unwrap();
    let info = AddrInfo::of(addr, &Hints::active());
    let mut id = Endpoint::create(&device, &info, Some(&talkers())).unwrap().into_id();
    id.connect(&ConnParam::default()).unwrap();
    let told = id.private_data();
    let addr = u64::from_le_bytes(*told.first_chunk().unwrap());
    let rkey = u32::from_le_bytes(*told[8..].first_chunk().unwrap());
    let at = Remote { addr, rkey };
    for number in 0.. {
        let mut buffer = Buffer::new(&device, MESSAGE).unwrap();
        let message = text(number, MESSAGE);
        buffer[..message.len()].copy_from_slice(&message);
        let (op, length) = match number % 5 {
            0 => (SendOp::Write(at.offset(64)), message.len()),
            1 => (SendOp::Read(at.offset(64)), message.len()),
            2 => (SendOp::FetchAdd { at, add: 1 }, 8),
            _ => (SendOp::Send, message.len()),
        };
        id.post_send(buffer, length, op, SendFlags::SIGNALED).unwrap();
        id.next_send(SOON).unwrap().ok().unwrap();
    }
}

/// Serves one peer that is killed some time after it has connected, or before; how long it took to
/// hear of that, if it had.
fn serve(
    device: &SoftDevice,
    listener: &mut Endpoint<SoftDevice>,
    addr: SocketAddr,
    kill_after: Duration,
) -> Option<Duration> {
    let mut child = peer("talk", addr);
    let killer = thread::spawn(move || {
        thread::sleep(kill_after);
        child.kill().unwrap();
        child.wait().unwrap();
        Instant::now()
    });
    let exposed = Exposed::new(
        device,
        64 + MESSAGE,
        Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    )
    .unwrap();
    let mut heard = None;
    while !killer.is_finished() {
        let Ok(mut id) = listener.get_request(Some(Duration::from_millis(10))) else { continue };
        id.post_recvs(&mut Buffer::many(device, RECEIVES, MESSAGE).unwrap()).unwrap();
        let Remote { addr, rkey } = exposed.remote(0);
        let told = [&addr.to_le_bytes()[..], &rkey.to_le_bytes()].concat();
        if id.accept(&ConnParam { private_data: &told, ..ConnParam::default() }).is_ok() {
            heard = Some(listen_to(&mut id));
        }
    }
    let killed = killer.join().unwrap();
    heard.map(|heard| heard.saturating_duration_since(killed))
}

/// Takes what comes until the peer is gone, when that was heard of. Every receive comes home.
fn listen_to(id: &mut Id<SoftDevice>) -> Instant {
    let (mut posted, mut last) = (RECEIVES, None);
    let mut heard = None;
    loop {
        match id.next_recv(SOON) {
            Ok(came) if came.status.is_ok() => {
                assert!(heard.is_none(), "a message behind the end");
                let number = number_of(came.bytes(), MESSAGE);
                assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
                last = Some(number);
                id.post_recv(came.buffer.unwrap()).unwrap();
            }
            Ok(came) => {
                assert_eq!(came.status, Status::Flushed);
                heard.get_or_insert_with(Instant::now);
                posted -= 1;
                if posted == 0 {
                    break;
                }
            }
            Err(error) => panic!("{posted} receives did not come back: {error}"),
        }
    }
    assert!(id.peer_left() && id.next_recv(Duration::ZERO).is_err());
    heard.unwrap()
}

#[test]
fn a_killed_talker_ends_its_connection_and_leaves_nothing() {
    let _alone = alone();
    let device = SoftDevice::open().unwrap();
    let info = AddrInfo::of(SocketAddr::from(([127, 0, 0, 1], 0)), &Hints::passive());
    let mut listener = Endpoint::create(&device, &info, Some(&talkers())).unwrap();
    listener.listen(0).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut dice = Dice(7);
    serve(&device, &mut listener, addr, Duration::from_millis(60));
    let before = belongings();
    let mut took = Vec::new();
    for _ in 0..kills() {
        let after = Duration::from_micros(dice.below(40_000));
        took.extend(serve(&device, &mut listener, addr, after));
    }
    took.sort();
    assert!(took.len() as u32 >= kills() / 4, "{} of {} had connected", took.len(), kills());
    // A machine with other things to do may be late now and then.
    assert!(took[took.len() / 2] < END, "{took:?}");
    assert_eq!(belongings(), before);
}

fn mailers() -> QpInit<SoftDevice> {
    QpInit::ud().send_wr(8).recv_wr(RECEIVES as u32).inline(64)
}

/// Looks the receiver up, then sends datagrams for ever.
fn mail(addr: SocketAddr) {
    let device = SoftDevice::open().unwrap();
    let hints = Hints { space: PortSpace::Udp, ..Hints::active() };
    let info = AddrInfo::of(addr, &hints);
    let mut id = Endpoint::create(&device, &info, Some(&mailers())).unwrap().into_id();
    id.connect(&ConnParam::default()).unwrap();
    let target = Target::new(&device, &id.ud().unwrap()).unwrap();
    let mut buffer = Buffer::new(&device, DATAGRAM).unwrap();
    for number in 0.. {
        let message = text(number, DATAGRAM);
        buffer[..message.len()].copy_from_slice(&message);
        id.post_send_to(&target, buffer, message.len(), None, SendFlags::SIGNALED).unwrap();
        buffer = id.next_send(SOON).unwrap().ok().unwrap().buffer.unwrap();
    }
}

/// Who receives datagrams: an id that is looked up, and one of this process that sends to it.
struct Receiver {
    device: SoftDevice,
    listener: Endpoint<SoftDevice>,
    addr: SocketAddr,
    id: Id<SoftDevice>,
    friend: Id<SoftDevice>,
    target: Target<SoftDevice>,
}

impl Receiver {
    fn new() -> Receiver {
        let device = SoftDevice::open().unwrap();
        let hints = Hints { space: PortSpace::Udp, ..Hints::passive() };
        let info = AddrInfo::of(SocketAddr::from(([127, 0, 0, 1], 0)), &hints);
        let mut listener = Endpoint::create(&device, &info, None).unwrap();
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap();
        let bound = || {
            let mut id = Id::create(&device, None, PortSpace::Udp).unwrap();
            id.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            id.create_qp(&mailers()).unwrap();
            id
        };
        let (mut id, friend) = (bound(), bound());
        let size = GRH_BYTES + DATAGRAM;
        id.post_recvs(&mut Buffer::many(&device, RECEIVES, size).unwrap()).unwrap();
        // The friend finds it as a stranger would.
        let hints = Hints { space: PortSpace::Udp, ..Hints::active() };
        let info = AddrInfo::of(addr, &hints);
        let mut finder = Endpoint::create(&device, &info, Some(&mailers())).unwrap();
        let finder = thread::scope(|scope| {
            let found = scope.spawn(move || {
                finder.connect(&ConnParam::default()).unwrap();
                finder.into_id()
            });
            let mut request = listener.get_request(Some(SOON)).unwrap();
            let (qp_num, _) = id.qp().unwrap();
            request.accept(&ConnParam { qp_num, ..ConnParam::default() }).unwrap();
            found.join().unwrap()
        });
        let target = Target::new(&device, &finder.ud().unwrap()).unwrap();
        Receiver { device, listener, addr, id, friend, target }
    }

    /// One sender that is killed after so many datagrams, and a little.
    fn survive(&mut self, datagrams: u32, then: Duration) {
        let mut child = peer("mail", self.addr);
        let mut request = self.listener.get_request(Some(SOON)).unwrap();
        let (qp_num, _) = self.id.qp().unwrap();
        request.accept(&ConnParam { qp_num, ..ConnParam::default() }).unwrap();
        let mut last = None;
        for _ in 0..datagrams {
            last = self.take(SOON, last).or_else(|| panic!("nothing comes"));
        }
        let killer = thread::spawn(move || {
            thread::sleep(then);
            child.kill().unwrap();
            child.wait().unwrap();
        });
        while !killer.is_finished() {
            last = self.take(Duration::from_millis(1), last).or(last);
        }
        killer.join().unwrap();
        // What it had sent is all there is, and whole; then comes what others send.
        while let Some(number) = self.take(Duration::from_millis(5), last) {
            last = Some(number);
        }
        for number in 0..3 {
            let message = &text(number, 64)[..];
            self.friend
                .post_inline_to(&self.target, message, Some(number), SendFlags::SIGNALED)
                .unwrap();
            self.friend.next_send(SOON).unwrap().ok().unwrap();
            // A dead sender holds up nobody.
            let came = self.id.next_recv(SOON).unwrap();
            assert_eq!(came.imm, Some(number));
            assert_eq!(came.datagram().unwrap().1, message);
            self.id.post_recv(came.buffer.unwrap()).unwrap();
        }
    }

    /// The next datagram of the stranger, which is whole and behind the last; its number.
    fn take(&mut self, limit: Duration, last: Option<u32>) -> Option<u32> {
        let came = self.id.next_recv(limit).ok()?.ok().unwrap();
        let number = number_of(came.datagram().unwrap().1, DATAGRAM);
        assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
        self.id.post_recv(came.buffer.unwrap()).unwrap();
        Some(number)
    }
}

#[test]
fn a_killed_sender_of_datagrams_holds_up_nobody_and_leaves_nothing() {
    let _alone = alone();
    let mut dice = Dice(11);
    let survive = |kills: u32, dice: &mut Dice| {
        let mut receiver = Receiver::new();
        for _ in 0..kills {
            let then = Duration::from_micros(dice.below(2000));
            receiver.survive(1 + dice.below(200) as u32, then);
        }
        drop(receiver.device);
    };
    survive(1, &mut dice);
    let before = belongings();
    let mut left = kills();
    while left > 0 {
        let some = left.min(KILLS_EACH);
        survive(some, &mut dice);
        left -= some;
    }
    assert_eq!(belongings(), before);
}
