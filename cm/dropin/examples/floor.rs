//! A library below `ib_send_lat` that does next to nothing. `speed.sh` measures it.
//!
//! It is loaded before the drop-in, which does everything but three calls: the two posts and the
//! poll. A post of a send copies the bytes into memory that both sides map, and sets a flag behind
//! them. A poll that finds the flag copies the bytes into the receive that was posted first. There
//! are no checks, no locks, no keys, no acknowledgements, and there is one message at a time, so it
//! serves a ping-pong of one queue pair and nothing else.
//!
//! As on the device, an answer goes into the lines of the question, and the first look after a send
//! comes after a pause. A look that comes too early takes the lines away from the peer. The device
//! learns how long the pause must be; here `FLOOR_PAUSE` says it, in steps of a few cycles.
//!
//! `FLOOR` names a file for the shared memory, which is empty when the first side comes.
#![expect(unsafe_code, reason = "the C interface")]

#[allow(dead_code, unreachable_pub, reason = "all structures of the header; this uses a few")]
#[path = "../src/abi.rs"]
mod abi;

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::fs::OpenOptions;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use abi::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};

/// Bytes of the lane, which is the shared memory: the flag, the length, and the message.
const LANE: usize = 4096;
/// Bytes in front of the message.
const HEAD: usize = 16;
/// The pause after a send, in steps, unless `FLOOR_PAUSE` says another. Of 0, 50, 100, 150, 200 and
/// 300 it was the best on near cores.
const PAUSE: u32 = 150;
/// Receives that may be posted at once; a power of two.
const RECEIVES: usize = 4096;
/// The bit of a send that asks for a completion.
const SIGNALED: u32 = 2;
/// The opcode of the completion of a receive.
const RECV: c_int = 128;

/// A posted receive.
#[derive(Clone, Copy)]
struct Receive {
    wr_id: u64,
    addr: u64,
}

/// What this side knows. One thread uses it, as `ib_send_lat` has one.
struct Floor {
    /// The lane. Null before the first call.
    lane: *mut u8,
    send_cq: *mut ibv_cq,
    /// The flag, as this side has last written or seen it: messages in both directions.
    flag: u64,
    received: usize,
    /// Steps of a pause, and whether the next look is the first after a send.
    pause: u32,
    has_sent: bool,
    /// The last send that asked for a completion, and whether it waits for one.
    wr_id: u64,
    completes: bool,
    receives: [Receive; RECEIVES],
    posted: usize,
}

struct Alone(UnsafeCell<Floor>);

// SAFETY: the program has one thread.
unsafe impl Sync for Alone {}

static FLOOR: Alone = Alone(UnsafeCell::new(Floor {
    lane: ptr::null_mut(),
    send_cq: ptr::null_mut(),
    flag: 0,
    received: 0,
    pause: 0,
    has_sent: false,
    wr_id: 0,
    completes: false,
    receives: [Receive { wr_id: 0, addr: 0 }; RECEIVES],
    posted: 0,
}));

/// The lane.
fn share() -> io::Result<*mut u8> {
    let name = std::env::var_os("FLOOR").ok_or(io::ErrorKind::NotFound)?;
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create(true).truncate(false).open(name)?;
    file.set_len(LANE as u64)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at =
        unsafe { libc::mmap(ptr::null_mut(), LANE, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if ptr::eq(at, libc::MAP_FAILED) { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

/// The word at the start of the lane.
///
/// # Safety
/// There is a lane at `at`.
#[inline(always)]
unsafe fn flag<'a>(at: *mut u8) -> &'a AtomicU64 {
    // SAFETY: as the caller says; the mapping stays.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

/// The first call for the queue pair maps the memory, and puts the three calls into the table of
/// the context. The drop-in does the rest, as it does in all later calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut c_void, mask: c_int) -> c_int {
    type Modify = unsafe extern "C" fn(*mut ibv_qp, *mut c_void, c_int) -> c_int;
    // SAFETY: one thread; the queue pair and its context are the program's, and the function of the
    // drop-in has that type.
    unsafe {
        let floor = &mut *FLOOR.0.get();
        if floor.lane.is_null() {
            let Ok(lane) = share() else { return libc::EBADF };
            let pause = std::env::var("FLOOR_PAUSE").ok().and_then(|steps| steps.parse().ok());
            (floor.lane, floor.pause) = (lane, pause.unwrap_or(PAUSE));
            floor.send_cq = (*qp).send_cq;
            let ops = &mut (*(*qp).context).ops;
            ops.post_send = Some(post_send);
            ops.post_recv = Some(post_recv);
            ops.poll_cq = Some(poll_cq);
        }
        let next = libc::dlsym(libc::RTLD_NEXT, c"ibv_modify_qp".as_ptr());
        if next.is_null() {
            // The drop-in is not loaded behind this library.
            return libc::ENOSYS;
        }
        std::mem::transmute::<*mut c_void, Modify>(next)(qp, attr, mask)
    }
}

unsafe extern "C" fn post_send(
    _qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    _bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: one thread, one request of one piece, which fits the lane. This side has taken what
    // lies there, and the peer leaves the lane alone until the flag changes.
    unsafe {
        let (floor, piece) = (&mut *FLOOR.0.get(), &*(*wr).sg_list);
        let length = piece.length as usize;
        ptr::copy_nonoverlapping(piece.addr as *const u8, floor.lane.add(HEAD), length);
        floor.lane.add(8).cast::<u64>().write(length as u64);
        if (*wr).send_flags & SIGNALED != 0 {
            (floor.wr_id, floor.completes) = ((*wr).wr_id, true);
        }
        (floor.flag, floor.has_sent) = (floor.flag + 1, true);
        // Release: whoever sees the flag sees the bytes.
        flag(floor.lane).store(floor.flag, Ordering::Release);
    }
    0
}

unsafe extern "C" fn post_recv(
    _qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: one thread, and the program's list of requests of one piece.
    unsafe {
        let (floor, mut next) = (&mut *FLOOR.0.get(), first);
        while let Some(wr) = next.as_ref() {
            let receive = Receive { wr_id: wr.wr_id, addr: (*wr.sg_list).addr };
            floor.receives[floor.posted % RECEIVES] = receive;
            floor.posted += 1;
            next = wr.next;
        }
    }
    0
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, _most: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: one thread, and the program's room for one completion at least. The receives that the
    // program has posted have room for a message.
    unsafe {
        let floor = &mut *FLOOR.0.get();
        if cq == floor.send_cq {
            if !std::mem::take(&mut floor.completes) {
                return 0;
            }
            to.write(ibv_wc { wr_id: floor.wr_id, ..ibv_wc::default() });
            return 1;
        }
        if std::mem::take(&mut floor.has_sent) {
            // The pause begins when the message is visible.
            fence(Ordering::SeqCst);
            for _ in 0..floor.pause {
                black_box(());
            }
        }
        // Acquire pairs with the flag's store in `post_send`.
        if flag(floor.lane).load(Ordering::Acquire) == floor.flag {
            return 0;
        }
        let Receive { wr_id, addr } = floor.receives[floor.received % RECEIVES];
        let length = floor.lane.add(8).cast::<u64>().read();
        ptr::copy_nonoverlapping(floor.lane.add(HEAD), addr as *mut u8, length as usize);
        (floor.flag, floor.received) = (floor.flag + 1, floor.received + 1);
        to.write(ibv_wc { wr_id, opcode: RECV, byte_len: length as u32, ..ibv_wc::default() });
        1
    }
}
