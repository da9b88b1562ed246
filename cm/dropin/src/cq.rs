//! Completion queues and completion channels.
#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use doorbell_seam::provider::{AsyncEvents, ExtendedCq, Polled, ResizeCq, Sharing};
use doorbell_seam::wc::{Wc, WcFlags, WcOpcode};
use doorbell_soft::{LeftReceive, SoftCq, SoftDevice};
use libc::{c_int, c_uint};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};
use crate::abi_ext::ibv_cq_ex;
use crate::border::{
    Errno, INVALID, Noun, Object, called, code, lock, number, object, pointer, put, quick_number,
    quick_tag, take, zeroed,
};
use crate::context::context;
use crate::progress::{Listed, News, Progress, count_poll};
use crate::queue::{NONE, Queue, wait_by};
use crate::reader::{Current, Reader};
use crate::scatter;

/// After `PATIENCE` empty polls in a row, every `YIELD_EVERY`-th one yields.
const PATIENCE: u32 = 1024;
const YIELD_EVERY: u32 = 32;

/// Completions that are taken at once, where a poll takes more than one.
const STEP: usize = 8;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) cq: SoftCq,
    pub(crate) poller: Mutex<Reader>,
    /// What an extended poll has found.
    pub(crate) current: Current,
    /// Polls in a row that found nothing, since the program's last event.
    empty: AtomicU32,
    progress: &'static Progress,
    id: u64,
    /// The program waits for it. It changes under the lock of the poller, until the queue is
    /// destroyed.
    armed: AtomicBool,
    /// Queue pairs that use it.
    pub(crate) users: AtomicU32,
    /// Events that the program has taken and not acknowledged.
    taken: Mutex<u32>,
    acknowledged: Condvar,
}

impl Noun for Cq {
    type C = ibv_cq_ex;
    const TAG: u64 = quick_tag(0x6371_0004);
}

/// The completion queue at an address that the program gave.
///
/// # Safety
/// As for [`object`].
pub(crate) unsafe fn cq_at<'a>(at: *mut ibv_cq) -> Result<&'a Object<Cq>, Errno> {
    // SAFETY: as the caller says. The plain structure is the first field of the extended one,
    // which the program was given.
    unsafe { object::<Cq>(at.cast()) }
}

/// A completion channel: a queue of addresses of completion queues.
pub(crate) struct Channel {
    events: Queue<usize>,
    users: AtomicU32,
}

impl Noun for Channel {
    type C = ibv_comp_channel;
    const TAG: u64 = 0x6462_5f63_6800_0005;
}

impl Cq {
    pub(crate) fn progress(&self) -> &'static Progress {
        self.progress
    }

    /// A completion was found, which goes to the program.
    #[inline]
    pub(crate) fn found(&self, wc: Wc) -> Wc {
        if !wc.status.is_ok() {
            self.progress.tell_qp(wc.qp_num, News::Failed);
        }
        self.empty.store(0, Ordering::Relaxed);
        if !scatter::may_be_one(wc.wr_id) {
            return wc;
        }
        let is_receive = wc.status.is_ok() && wc.opcode == WcOpcode::Recv;
        let filled = is_receive.then_some(wc.byte_len);
        Wc { wr_id: self.progress.scatter.end(wc.wr_id, filled), ..wc }
    }

    /// A poll was in vain. After many of them, lets others have the core: the peer may wait for it.
    /// True if it did. The poll must look again then: what it has seen may be old by now, and the
    /// program may know of something later, such as the end of the connection.
    pub(crate) fn found_nothing(&self) -> bool {
        let empty = self.empty.load(Ordering::Relaxed);
        self.empty.store(empty.wrapping_add(1), Ordering::Relaxed);
        let rests = empty >= PATIENCE && empty.is_multiple_of(YIELD_EVERY);
        if rests {
            std::thread::yield_now();
        }
        rests
    }

    /// True if the program's last poll found nothing, and no event has come since. An entry that is
    /// there has come with the work that a poll of another queue did, so the program does not know
    /// of it. A NIC would make an event of it, if it had come after the program asked for one.
    fn is_unaware(&self) -> bool {
        self.empty.load(Ordering::Relaxed) > 0
    }

    /// True if a receive that was left may go there at once.
    #[inline(always)]
    fn may_take_left(&self, most: c_int, to: *mut ibv_wc) -> bool {
        most > 0 && !to.is_null() && !self.progress.scatter.has_some()
    }

    /// Gives that receive to the program.
    ///
    /// # Safety
    /// There is room for it.
    #[inline(always)]
    unsafe fn give_left(&self, wc: Wc, to: *mut ibv_wc) -> c_int {
        self.empty.store(0, Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { to.write(completion(wc)) };
        1
    }

    /// A notifier has rung: gives the program its event, if the awaited entry has come.
    fn wake(&self, at: *mut ibv_cq) {
        let mut poller = lock(&self.poller);
        if !poller.woken() {
            return;
        }
        // The program may have asked for a further event meanwhile.
        if !self.cq.is_armed() && self.armed.swap(false, Ordering::SeqCst) {
            self.progress.disarm();
        }
        // The program knows that it must poll.
        self.empty.store(0, Ordering::Relaxed);
        // SAFETY: alive, as the caller knows; its channel outlives it.
        unsafe {
            if let Ok(channel) = object::<Channel>((*at).channel) {
                channel.own.events.push(at as usize);
            }
        }
    }
}

/// Work was done for a queue that the program may wait for. The thread would see it a little later.
///
/// The queue at that address is alive.
pub(crate) fn wake(at: usize) {
    tell(at, News::Rang);
}

/// The thread has news of a completion queue.
fn tell(at: usize, news: News) {
    let at = at as *mut ibv_cq;
    // SAFETY: it leaves the list of the thread before it is destroyed.
    if let (Ok(cq), News::Rang) = (unsafe { cq_at(at) }, news) {
        cq.own.wake(at);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    at: *mut ibv_context,
) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: the program's context.
        unsafe { context(at) }?;
        let own = Channel { events: Queue::new()?, users: AtomicU32::new(0) };
        let c = ibv_comp_channel { context: at, fd: own.events.fd(), refcnt: 0 };
        Ok(Object::give(c, own))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(at: *mut ibv_comp_channel) -> c_int {
    code(|| {
        // SAFETY: the program's channel, which it no longer uses.
        unsafe {
            if object::<Channel>(at)?.own.users.load(Ordering::SeqCst) > 0 {
                return Err(Errno(libc::EBUSY));
            }
            take::<Channel>(at).map(drop)
        }
    })
}

/// What a program says about a completion queue beside what the device needs.
pub(crate) struct Asked {
    pub(crate) cqe: c_int,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
}

/// Makes a completion queue by that call.
///
/// # Safety
/// The context and the channel are the program's.
pub(crate) unsafe fn create(
    at: *mut ibv_context,
    asked: &Asked,
    make: impl FnOnce(&SoftDevice) -> Result<(SoftCq, Reader), Errno>,
) -> Result<*mut ibv_cq, Errno> {
    // SAFETY: as the caller says.
    let progress = unsafe { context(at) }?.own.progress();
    let (cq, poller) = make(&progress.device)?;
    let id = progress.device.cq_id(&cq);
    let fd = poller.wake_fds().and_then(|fds| fds.queue);
    let Asked { cqe, cq_context, channel } = *asked;
    if !channel.is_null() {
        // SAFETY: as the caller says.
        let channel = unsafe { object::<Channel>(channel) }?;
        progress.watch(fd.ok_or(Errno(libc::EMFILE))?, id)?;
        channel.own.users.fetch_add(1, Ordering::SeqCst);
    }
    let base = ibv_cq {
        context: at,
        channel,
        cq_context,
        handle: id as u32,
        cqe,
        mutex: zeroed(),
        cond: zeroed(),
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let own = Cq {
        cq,
        poller: Mutex::new(poller),
        current: Current::default(),
        empty: AtomicU32::new(0),
        progress,
        id,
        armed: AtomicBool::new(false),
        users: AtomicU32::new(0),
        taken: Mutex::new(0),
        acknowledged: Condvar::new(),
    };
    let given: *mut ibv_cq = Object::give(ibv_cq_ex { cq_base: base, ..zeroed() }, own).cast();
    lock(&progress.cqs).insert(id, Listed { at: given as usize, context: at as usize, tell });
    Ok(given)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    at: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let depth = u32::try_from(cqe).map_err(|_| INVALID)?;
        let vector = u32::try_from(comp_vector).map_err(|_| INVALID)?;
        let asked = Asked { cqe, cq_context, channel };
        // SAFETY: the program's context and channel.
        unsafe {
            create(at, &asked, |device| {
                let (cq, poller) = device.create_cq_on(depth, Sharing::Shared, vector)?;
                Ok((cq, Reader::Plain(poller)))
            })
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(at: *mut ibv_cq) -> c_int {
    code(|| {
        // SAFETY: the program's queue, which it no longer uses.
        let cq = unsafe { cq_at(at) }?;
        if cq.own.users.load(Ordering::SeqCst) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // From here on no event of it comes.
        cq.own.progress.unlist(&cq.own.progress.cqs, &cq.own.id);
        // SAFETY: alive; the program does not change its channel.
        let channel = unsafe { (*at).channel };
        if !channel.is_null() {
            // SAFETY: a channel outlives its queues.
            let channel = unsafe { object::<Channel>(channel) }?;
            if let Some(fd) = lock(&cq.own.poller).wake_fds().and_then(|fds| fds.queue) {
                cq.own.progress.unwatch(fd);
            }
            channel.own.events.forget(|event| *event == at as usize);
            channel.own.users.fetch_sub(1, Ordering::SeqCst);
        }
        if cq.own.armed.swap(false, Ordering::SeqCst) {
            cq.own.progress.disarm();
        }
        let mut taken = lock(&cq.own.taken);
        while *taken > 0 {
            taken = cq.own.acknowledged.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        drop(taken);
        // SAFETY: as above.
        unsafe { take::<Cq>(at.cast()) }.map(drop)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(at: *mut ibv_cq, cqe: c_int) -> c_int {
    code(|| {
        let depth = u32::try_from(cqe).map_err(|_| INVALID)?;
        // SAFETY: the program's queue.
        let cq = unsafe { cq_at(at) }?;
        // Completions that a NIC would have made by now count.
        cq.own.progress.work();
        let depth = cq.own.progress.device.resize_cq(&cq.own.cq, depth)?;
        // SAFETY: alive.
        unsafe { (*at).cqe = depth.cast_signed() };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the program's channel.
    wait_by(number(|| Ok(unsafe { object::<Channel>(channel) }?.own.events.fd())), || {
        // SAFETY: the program's channel, and room for the answers. In its destruction, a queue
        // takes its events out of the list, and then waits for those that were counted as taken.
        unsafe {
            let next = object::<Channel>(channel)?.own.events.next_and(|at| {
                *lock(&cq_at(*at as *mut ibv_cq)?.own.taken) += 1;
                Ok(())
            })?;
            let Some(at) = next else { return Ok(NONE) };
            let at = at as *mut ibv_cq;
            put(cq, at)?;
            put(cq_context, (*at).cq_context)?;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(at: *mut ibv_cq, count: c_uint) {
    number(|| {
        // SAFETY: the program's queue.
        let cq = unsafe { cq_at(at) }?;
        let mut taken = lock(&cq.own.taken);
        *taken = taken.saturating_sub(count);
        cq.own.acknowledged.notify_all();
        Ok(0)
    });
}

/// `req_notify_cq` of a context.
pub(crate) unsafe extern "C" fn req_notify_cq(at: *mut ibv_cq, solicited: c_int) -> c_int {
    code(|| {
        // SAFETY: the program's queue.
        let cq = unsafe { cq_at(at) }?;
        // SAFETY: alive.
        if unsafe { (*at).channel.is_null() } {
            // Nobody could hear of it.
            return Ok(());
        }
        let mut poller = lock(&cq.own.poller);
        if !cq.own.armed.swap(true, Ordering::SeqCst) {
            cq.own.progress.arm();
        }
        poller.arm(solicited != 0)?;
        if cq.own.is_unaware() {
            cq.own.cq.count_waiting();
        }
        // What came before this call and was not looked at counts as coming now.
        poller.poll(&mut []);
        drop(poller);
        cq.own.progress.call();
        Ok(())
    })
}

/// `poll_cq` of a context.
pub(crate) unsafe extern "C" fn poll_cq(at: *mut ibv_cq, most: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the program's queue, and it gives room for as many as it says.
    unsafe {
        let Ok(cq) = called::<Cq>(at.cast()) else { return poll_nothing() };
        count_poll();
        if cq.own.cq.has_left() { poll_left(cq, most, to) } else { poll_any(cq, most, to) }
    }
}

/// A poll of a queue for which the last one has left a receive. It makes no call but in tail
/// position, so it saves few registers.
///
/// # Safety
/// As for [`poll_cq`].
#[inline(never)]
unsafe extern "C" fn poll_left(cq: &Object<Cq>, most: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        if !cq.own.may_take_left(most, to) {
            return poll_any(cq, most, to);
        }
        match cq.own.cq.poll_left::<false>() {
            LeftReceive::Taken(wc) => cq.own.give_left(wc, to),
            LeftReceive::Long => poll_left_long(cq, most, to),
            LeftReceive::Later => poll_any(cq, most, to),
        }
    }
}

/// The same for a long message, if there is a place for its completion.
///
/// # Safety
/// As for [`poll_cq`].
#[cold]
#[inline(never)]
unsafe extern "C" fn poll_left_long(cq: &Object<Cq>, most: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        match cq.own.cq.poll_left::<true>() {
            LeftReceive::Taken(wc) => cq.own.give_left(wc, to),
            LeftReceive::Long | LeftReceive::Later => poll_any(cq, most, to),
        }
    }
}

/// A poll of something that is no queue.
#[cold]
#[inline(never)]
extern "C" fn poll_nothing() -> c_int {
    quick_number(|| Err(INVALID))
}

/// Any other poll. It and [`poll_left`] are functions of their own, in tail position, so that each
/// saves the registers that it uses.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe extern "C" fn poll_any(cq: &Object<Cq>, most: c_int, to: *mut ibv_wc) -> c_int {
    quick_number(|| {
        let most = usize::try_from(most).map_err(|_| INVALID)?;
        match most {
            // SAFETY: as the caller says.
            1 => unsafe { poll_one(&cq.own, to) },
            // SAFETY: as the caller says.
            _ => unsafe { poll_several(&cq.own, most, to) },
        }
    })
}

/// Takes a completion, if there is one.
///
/// # Safety
/// There is room for it.
#[inline(always)]
unsafe fn poll_one(cq: &Cq, to: *mut ibv_wc) -> Result<c_int, Errno> {
    match cq.cq.poll_one_shared() {
        Polled::Nothing if !cq.found_nothing() => Ok(0),
        // SAFETY: as the caller says.
        Polled::One(wc) => unsafe { put(to, completion(cq.found(wc))) }.map(|()| 1),
        // SAFETY: as the caller says.
        Polled::Nothing => unsafe { take_late(cq, 1, to) },
        // SAFETY: as the caller says.
        Polled::More => unsafe { take_some::<1>(cq, 1, to) },
    }
}

/// Takes up to `most` completions. The common case is a send that completes together with the
/// answer to it: these two are taken without a copy. Everything else goes by `take_some`.
///
/// # Safety
/// There is room for them.
#[inline(never)]
unsafe fn poll_several(cq: &Cq, most: usize, to: *mut ibv_wc) -> Result<c_int, Errno> {
    if most == 0 {
        return Ok(0);
    }
    match cq.cq.poll_one_shared() {
        Polled::Nothing if !cq.found_nothing() => Ok(0),
        // SAFETY: as the caller says.
        Polled::Nothing => unsafe { take_late(cq, most, to) },
        Polled::One(wc) => {
            let is_send = wc.opcode != WcOpcode::Recv;
            // SAFETY: as the caller says, for one of several.
            unsafe { put(to, completion(cq.found(wc))) }?;
            let left = if is_send { cq.cq.poll_left_shared() } else { None };
            let Some(wc) = left else { return Ok(1) };
            // SAFETY: as the caller says, for two of several.
            unsafe { put(to.wrapping_add(1), completion(cq.found(wc))) }.map(|()| 2)
        }
        // SAFETY: as the caller says.
        Polled::More => unsafe { take_some::<STEP>(cq, most, to) },
    }
}

/// Takes up to `most` completions, `AT_ONCE` at a time, by the rest of a poll.
///
/// # Safety
/// There is room for them.
#[inline(never)]
unsafe fn take_some<const AT_ONCE: usize>(
    cq: &Cq,
    most: usize,
    to: *mut ibv_wc,
) -> Result<c_int, Errno> {
    // SAFETY: as the caller says.
    match unsafe { take_up_to::<AT_ONCE>(cq, most, to) } {
        // SAFETY: as the caller says.
        Ok(0) if cq.found_nothing() => unsafe { take_late(cq, most, to) },
        done => done,
    }
}

/// Takes up to `most` completions that have come while others had the core.
///
/// # Safety
/// There is room for them.
#[cold]
#[inline(never)]
unsafe fn take_late(cq: &Cq, most: usize, to: *mut ibv_wc) -> Result<c_int, Errno> {
    // SAFETY: as the caller says.
    unsafe { take_up_to::<STEP>(cq, most, to) }
}

/// # Safety
/// There is room for up to `most` completions.
#[inline(always)]
unsafe fn take_up_to<const AT_ONCE: usize>(
    cq: &Cq,
    most: usize,
    to: *mut ibv_wc,
) -> Result<c_int, Errno> {
    let mut found = [Wc::default(); AT_ONCE];
    let mut done = 0;
    while done < most {
        let wanted = (most - done).min(AT_ONCE);
        let count = cq.cq.poll_more_shared(&mut found[..wanted]);
        for wc in found.iter().take(count) {
            // SAFETY: as the caller says.
            unsafe { put(to.wrapping_add(done), completion(cq.found(by_field(wc)))) }?;
            done += 1;
        }
        if count < wanted {
            break;
        }
    }
    Ok(done as c_int)
}

/// A copy of a completion, loaded field by field: the device has just stored it so, and a wide load
/// would wait for these stores.
#[inline(always)]
fn by_field(wc: &Wc) -> Wc {
    // SAFETY: fields of a reference; volatile, or else the compiler joins the loads.
    unsafe {
        Wc {
            wr_id: (&raw const wc.wr_id).read_volatile(),
            qp_num: (&raw const wc.qp_num).read_volatile(),
            byte_len: (&raw const wc.byte_len).read_volatile(),
            imm: (&raw const wc.imm).read_volatile(),
            vendor_err: (&raw const wc.vendor_err).read_volatile(),
            status: (&raw const wc.status).read_volatile(),
            opcode: (&raw const wc.opcode).read_volatile(),
            flags: (&raw const wc.flags).read_volatile(),
            src_qp: (&raw const wc.src_qp).read_volatile(),
        }
    }
}

/// A completion, as C has it. It is inlined so that one that [`SoftCq::poll_one_shared`] returns is
/// never in memory.
#[inline(always)]
fn completion(wc: Wc) -> ibv_wc {
    // Immediate data is in network byte order here; a key is not.
    let imm_data = if wc.flags.contains(WcFlags::WITH_IMM) { wc.imm.to_be() } else { wc.imm };
    ibv_wc {
        wr_id: wc.wr_id,
        status: wc.status as c_int,
        opcode: wc.opcode as c_int,
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data,
        qp_num: wc.qp_num,
        src_qp: wc.src_qp,
        wc_flags: wc.flags.bits().into(),
        ..ibv_wc::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_is_in_network_byte_order_and_a_key_is_not() {
        let flagged = |flags| completion(Wc { imm: 5, flags, ..Wc::default() }).imm_data;
        assert_eq!(flagged(WcFlags::WITH_IMM), 5_u32.to_be());
        assert_eq!(flagged(WcFlags::WITH_INV), 5);
    }
}
