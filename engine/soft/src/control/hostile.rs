//! Peers that send anything: messages with any fields, cut, extended or changed, with any files, to
//! listeners, to sides that connect, and to established connections. Each loses its own connection,
//! nothing that it sent stays open or mapped, and honest peers are served.
//!
//! `DOORBELL_FUZZ` multiplies the number of seeds.
#![expect(unsafe_code, reason = "makes files, and sends more than the device ever would")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use doorbell_fabric::{Channel, EventKind};
use doorbell_fabric::{ConnParam, Depths};
use doorbell_seam::provider::{Poller, Qp};
use doorbell_seam::wc::Wc;

use super::sys::Socket;
use super::tests::{Liar, SOON, connect, listener, loopback, with_qp};
use super::wire::{Found, Lookup, Message, Place, Reply, Request};
use super::*;
use crate::scribbler::Dice;
use crate::{DIRECTORY_BYTES, FileName, LINK_BYTES};

fn array<const N: usize>(dice: &mut Dice) -> [u8; N] {
    std::array::from_fn(|_| dice.any() as u8)
}

/// Names the seed when a test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: seed {}", self.0);
        }
    }
}

/// Files that a liar owns, and may send or name.
struct Files(Vec<OwnedFd>);

impl Files {
    /// Pipes; memfds of several lengths, with and without seals; and files that are no memory at
    /// all.
    fn new() -> Files {
        let (reader, writer) = io::pipe().unwrap();
        let all = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        let mut files = vec![File::open("/dev/null").unwrap().into(), reader.into(), writer.into()];
        for length in [0, 1, 4096, LINK_BYTES - 1, LINK_BYTES, DIRECTORY_BYTES, 1 << 20] {
            for seals in [0, libc::F_SEAL_GROW, libc::F_SEAL_SHRINK, all] {
                files.push(memfd(length, seals));
            }
        }
        files.push(memfd(LINK_BYTES, all | libc::F_SEAL_WRITE));
        Files(files)
    }

    fn pick(&self, dice: &mut Dice) -> RawFd {
        self.0[dice.below(self.0.len())].as_raw_fd()
    }

    /// Often none, else any number of them.
    fn some(&self, dice: &mut Dice) -> Vec<RawFd> {
        let count = [0, 1, 2, 3, 40][dice.below(5)];
        (0..count).map(|_| self.pick(dice)).collect()
    }

    /// The identities of those that nobody else has.
    fn own(&self) -> Vec<Identity> {
        self.0.iter().skip(1).map(|file| identity(file.as_raw_fd())).collect()
    }

    fn name(&self, dice: &mut Dice) -> FileName {
        let fd = if dice.one_in(4) { dice.below(200) as RawFd } else { self.pick(dice) };
        let inode = if dice.one_in(8) { dice.any() } else { identity(fd).1 };
        FileName { fd: fd.cast_unsigned(), inode }
    }
}

fn memfd(length: usize, seals: i32) -> OwnedFd {
    let file = sys::memfd(c"hostile", libc::MFD_ALLOW_SEALING).unwrap();
    file.set_len(length as u64).unwrap();
    sys::seal(&file, seals).unwrap();
    file.into()
}

/// File system and inode.
type Identity = (u64, u64);

/// Zeros if there is no such file.
fn identity(fd: RawFd) -> Identity {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fstat writes one stat, if anything; all zero is one.
    unsafe {
        libc::fstat(fd, stat.as_mut_ptr());
        let stat = stat.assume_init();
        (stat.st_dev, stat.st_ino)
    }
}

/// The number of descriptors and mappings that this process has of those files.
fn held(files: &[Identity]) -> (usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let open = open.filter_map(number).filter(|fd| files.contains(&identity(*fd))).count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (open, maps.lines().filter(|line| line.contains("memfd:hostile")).count())
}

/// Sends one message with any files, more than [`Socket::send`] takes. If the socket refuses it, it
/// is dropped.
fn send(socket: &Socket, bytes: &[u8], files: &[RawFd]) {
    let mut piece =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0_u64; 64];
    // SAFETY: the header names `piece` and `control`, which live during the call and have room for
    // the descriptors, 200 bytes at most and a head.
    unsafe {
        let mut header: libc::msghdr = MaybeUninit::zeroed().assume_init();
        (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
        let bytes = size_of_val(files) as u32;
        if bytes > 0 {
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            assert!(header.msg_controllen <= size_of_val(&control));
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (index, file) in files.iter().enumerate() {
                data.add(index).write_unaligned(*file);
            }
        }
        libc::sendmsg(socket.fd(), &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    }
}

/// A message of any kind, or of that kind.
fn message(dice: &mut Dice, files: &Files, kind: usize) -> Message {
    let place = Place { instance: array(dice), domain: dice.any() as u32, queue: 2 };
    let depths = Depths { responder: dice.any() as u8, initiator: dice.any() as u8 };
    let (qp, directory) = (dice.any() as u32, files.name(dice));
    let (retry_count, rnr_retry) = (dice.below(8) as u8, dice.below(8) as u8);
    match kind {
        0 => {
            let (from, data) = (loopback(dice.any() as u16), array(dice));
            Message::Request(Box::new(Request {
                place,
                qp,
                from,
                depths,
                retry_count,
                rnr_retry,
                directory,
                data,
            }))
        }
        1 => {
            let (link, maker, data) = (dice.any() % 3, !dice.one_in(4), array(dice));
            let reply = Reply { place, qp, link, maker, depths, rnr_retry, directory, data };
            Message::Reply(Box::new(reply))
        }
        2 => Message::Ready,
        3 => Message::Reject { status: dice.any() as i32, data: Box::new(array(dice)) },
        4 => Message::Bye,
        5 => Message::Lookup(Box::new(Lookup { from: loopback(7), data: array(dice) })),
        _ => {
            let (gid, qkey, data) = (array(dice), dice.any() as u32, array(dice));
            Message::Found(Box::new(Found { gid, qp, qkey, data }))
        }
    }
}

/// Sends something: often the expected message with wrong fields, else anything. True if it is a
/// goodbye.
fn say(dice: &mut Dice, files: &Files, socket: &Socket, expected: usize) -> bool {
    let kind = if dice.one_in(3) { dice.below(7) } else { expected };
    let mut bytes = message(dice, files, kind).encode();
    match dice.below(8) {
        0 => bytes.truncate(dice.below(bytes.len() + 1)),
        1 => bytes.resize(dice.below(400), 7),
        2 => {
            let at = dice.below(bytes.len());
            bytes[at] ^= 1 << dice.below(8);
        }
        3 => bytes[8..].fill_with(|| dice.any() as u8),
        _ => {}
    }
    send(socket, &bytes, &files.some(dice));
    Message::decode(&bytes) == Some(Message::Bye)
}

/// Does everything that is due on a channel. Requests are accepted, or not, with queue pairs that
/// stay until the end.
fn attend(dice: &mut Dice, channel: &SoftChannel, device: &SoftDevice, kept: &mut Vec<Kept>) {
    while let Some(event) = channel.next(Duration::from_millis(1)).unwrap() {
        if let (EventKind::ConnectRequest, Some(mut id)) = (event.kind, event.request) {
            if dice.one_in(4) {
                continue;
            }
            let (qp, poller) = with_qp(device, &mut id);
            // The side that asked may be gone.
            let _ = id.accept(&ConnParam::default());
            kept.push((id, qp, poller));
        }
    }
}

type Kept = (SoftId, SoftQp, SoftPoller);

/// Liars connect to a listener, which accepts most, and go on lying. Returns how many said goodbye.
fn lies_to_a_listener(dice: &mut Dice, device: &SoftDevice, files: &Files) -> usize {
    let channel = device.open_channel().unwrap();
    let (_listener, name) = listener(device, &channel);
    let (mut kept, mut goodbyes) = (Vec::new(), 0);
    let liars: Vec<_> = (0..4).map(|_| Liar::connect(&name)).collect();
    for expected in [0, 2, 4] {
        for liar in &liars {
            if !dice.one_in(4) {
                goodbyes += usize::from(say(dice, files, &liar.0, expected));
            }
        }
        attend(dice, &channel, device, &mut kept);
    }
    drop(liars);
    attend(dice, &channel, device, &mut kept);
    for (_, qp, poller) in &mut kept {
        qp.fail();
        poller.poll(&mut [Wc::default(); 4]);
    }
    goodbyes
}

/// A side connects to a liar, which answers.
fn lies_to_who_asks(dice: &mut Dice, device: &SoftDevice, files: &Files) -> usize {
    let socket = Socket::new().unwrap();
    let to = place::claim(&socket, device.name(), loopback(0), false).unwrap();
    socket.listen(4).unwrap();
    let channel = device.open_channel().unwrap();
    let mut id = device.create_id(Some(&channel), PortSpace::Tcp).unwrap();
    id.resolve_addr(None, to, SOON).unwrap();
    id.resolve_route(SOON).unwrap();
    let (_qp, mut poller) = with_qp(device, &mut id);
    id.connect(&ConnParam::default()).unwrap();
    let (mut kept, mut goodbyes) = (Vec::new(), 0);
    attend(dice, &channel, device, &mut kept);
    let liar = Liar(socket.accept().unwrap().expect("it has connected"));
    for expected in [1, 4] {
        goodbyes += usize::from(say(dice, files, &liar.0, expected));
        attend(dice, &channel, device, &mut kept);
        poller.poll(&mut [Wc::default(); 4]);
    }
    goodbyes
}

/// Liars on either side of datagrams.
fn lies_about_datagrams(dice: &mut Dice, device: &SoftDevice, files: &Files) -> usize {
    let channel = device.open_channel().unwrap();
    let mut listener = device.create_id(Some(&channel), PortSpace::Udp).unwrap();
    listener.bind(loopback(0)).unwrap();
    listener.listen(0).unwrap();
    let space = format!("{}.udp", device.name());
    let liar = Liar::connect(&place::name(&space, listener.local_addr().unwrap()));
    say(dice, files, &liar.0, 5);
    while let Some(event) = channel.next(Duration::from_millis(1)).unwrap() {
        if let Some(mut id) = event.request {
            let param = ConnParam { qp_num: 7, ..ConnParam::default() };
            let _ = id.accept(&param);
        }
    }
    say(dice, files, &liar.0, 5);
    assert!(channel.next(Duration::from_millis(1)).unwrap().is_none());
    0
}

#[test]
fn peers_that_say_anything_cost_their_own_connections() {
    let honest = SoftDevice::open().unwrap();
    let times = std::env::var("DOORBELL_FUZZ").ok().and_then(|text| text.parse().ok());
    let files = Files::new();
    let own = files.own();
    for seed in 0..200 * times.unwrap_or(1) {
        let _named = Seed(seed);
        let mut dice = Dice::new(seed);
        let device = SoftDevice::open().unwrap();
        let mut goodbyes = 0;
        for _ in 0..2 {
            goodbyes += match seed % 4 {
                0 | 1 => lies_to_a_listener(&mut dice, &device, &files),
                2 => lies_to_who_asks(&mut dice, &device, &files),
                _ => lies_about_datagrams(&mut dice, &device, &files),
            };
        }
        // A liar that said goodbye still holds its end of the link, which it alone can give back.
        // The link keeps its notifier and its table open.
        let left = device.0.links.alive();
        assert!(left <= goodbyes, "{left} links are left, of {goodbyes} goodbyes");
        let (open, mapped) = held(&own);
        assert!(open <= own.len() + left && mapped <= 2 * left, "{open} open, {mapped} mapped");
        drop(connect(&honest, &device, None));
        drop(device);
        assert_eq!(held(&own), (own.len(), 0), "a file is open, or mapped");
    }
}

/// Pages beyond the end of a file are there and cannot be read.
#[test]
fn a_file_that_ends_before_its_pages_is_not_looked_at() {
    let file = File::from(memfd(4096, 0));
    // SAFETY: the call takes numbers and touches no memory of ours.
    let answer =
        unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, 1 << 16) };
    assert_eq!(answer, 0);
    assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 16, "pages beyond the end");
    sys::seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW).unwrap();
    let name = files::name_of(file.as_raw_fd()).unwrap();
    let me = std::process::id().cast_signed();
    assert!(files::look(me, name, 4096).is_some());
    assert!(files::look(me, name, 1 << 16).is_none(), "longer than the file");
}
