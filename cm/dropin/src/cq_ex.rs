//! Extended completion queues: `ibv_create_cq_ex`, and the functions in `struct ibv_cq_ex`.
#![expect(unsafe_code, reason = "the C interface")]

use std::sync::PoisonError;

use doorbell_seam::provider::{CqFlags, CqInit, ExtendedCq, Provider, WcEx, WcFields};
use doorbell_seam::wc::WcFlags;
use libc::{c_int, c_uint};

use crate::abi::ibv_context;
use crate::abi_ext::*;
use crate::border::{ABSENT, Errno, INVALID, code, given, lock, object, pointer, quick_code};
use crate::context::context;
use crate::cq::{Asked, Cq, cq_at, create};
use crate::memory::Pd;
use crate::progress::count_poll;
use crate::reader::{Current, Reader};

/// Fields that every queue has: they cost nothing.
const ALWAYS: WcFields = WcFields::BYTE_LEN
    .union(WcFields::IMM)
    .union(WcFields::QP_NUM)
    .union(WcFields::SRC_QP)
    .union(WcFields::SLID)
    .union(WcFields::SL)
    .union(WcFields::DLID_PATH_BITS);

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `IBV_CQ_INIT_ATTR_MASK_PD`.
const MASK_FLAGS: u32 = 1;
const MASK_PD: u32 = 2;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` allows leaving out locks; this library keeps them.
const SINGLE_THREADED: u32 = 1;

/// `create_cq_ex` of a context.
pub(crate) unsafe extern "C" fn create_cq_ex(
    at: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: the program's context and attributes.
        let (device, attr) = unsafe { (&context(at)?.own.progress.device, given(attr)?) };
        if attr.comp_mask & !(MASK_FLAGS | MASK_PD) != 0 {
            return Err(ABSENT);
        }
        if attr.comp_mask & MASK_PD != 0 {
            // SAFETY: the program's parent domain.
            unsafe { object::<Pd>(attr.parent_domain) }?;
        }
        let flags = if attr.comp_mask & MASK_FLAGS != 0 { attr.flags } else { 0 };
        let flags = CqFlags::from_bits(flags & !SINGLE_THREADED).ok_or(ABSENT)?;
        let fields = u32::try_from(attr.wc_flags).ok().and_then(WcFields::from_bits);
        let fields = fields.ok_or(ABSENT)?;
        let caps = device.caps();
        if !caps.wc_fields.contains(fields) || !caps.cq_flags.contains(flags) {
            return Err(ABSENT);
        }
        let (depth, comp_vector) = (attr.cqe, attr.comp_vector);
        let init = CqInit { depth, comp_vector, fields: fields | ALWAYS, flags };
        let cqe = c_int::try_from(depth).map_err(|_| INVALID)?;
        let asked = Asked { cqe, cq_context: attr.cq_context, channel: attr.channel };
        // SAFETY: the program's context and channel.
        let made = unsafe {
            create(at, &asked, |device| {
                let (cq, poller) = device.create_cq_ex(&init)?;
                Ok((cq, Reader::Extended(poller)))
            })
        }?;
        let made = made.cast::<ibv_cq_ex>();
        // SAFETY: just made; nobody else knows it.
        unsafe { set_functions(&mut *made, fields) };
        Ok(made)
    })
}

fn set_functions(cq: &mut ibv_cq_ex, fields: WcFields) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    if fields.contains(WcFields::COMPLETION_TIMESTAMP) {
        cq.read_completion_ts = Some(read_completion_ts);
    }
    if fields.contains(WcFields::COMPLETION_TIMESTAMP_WALLCLOCK) {
        cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }
    if fields.contains(WcFields::CVLAN) {
        cq.read_cvlan = Some(read_cvlan);
    }
}

/// Takes the next completion and shows its first fields to the program. `None`: there is none.
///
/// # Safety
/// It is the program's queue.
unsafe fn take_next(cq: &Cq, at: *mut ibv_cq_ex) -> Option<WcEx> {
    count_poll();
    let mut next = lock(&cq.poller).next();
    if next.is_none() && cq.found_nothing() {
        next = lock(&cq.poller).next();
    }
    let mut wc = next?;
    wc.wr_id = cq.found(wc.plain()).wr_id;
    // SAFETY: as the caller says; the program writes neither.
    unsafe { ((*at).status, (*at).wr_id) = (wc.status as c_int, wc.wr_id) };
    Some(wc)
}

unsafe extern "C" fn start_poll(at: *mut ibv_cq_ex, attr: *const ibv_poll_cq_attr) -> c_int {
    quick_code(|| {
        // SAFETY: the program's queue and attributes.
        let (cq, attr) = unsafe { (&cq_at(at.cast())?.own, given(attr)?) };
        if attr.comp_mask != 0 {
            return Err(INVALID);
        }
        let Current { wc, ended } = &cq.current;
        let mut wc = lock(wc);
        while wc.is_some() {
            wc = ended.wait(wc).unwrap_or_else(PoisonError::into_inner);
        }
        // SAFETY: as above.
        *wc = unsafe { take_next(cq, at) };
        if wc.is_some() { Ok(()) } else { Err(NONE) }
    })
}

/// What a poll that finds nothing returns.
const NONE: Errno = Errno(libc::ENOENT);

unsafe extern "C" fn next_poll(at: *mut ibv_cq_ex) -> c_int {
    quick_code(|| {
        // SAFETY: the program's queue.
        let cq = unsafe { &cq_at(at.cast())?.own };
        // SAFETY: as above.
        let next = unsafe { take_next(cq, at) }.ok_or(NONE)?;
        // If there is no other completion, the poll stays open, and the last one stays readable
        // until `ibv_end_poll`.
        *lock(&cq.current.wc) = Some(next);
        Ok(())
    })
}

unsafe extern "C" fn end_poll(at: *mut ibv_cq_ex) {
    // SAFETY: the program's queue.
    if let Ok(cq) = unsafe { cq_at(at.cast()) } {
        *lock(&cq.own.current.wc) = None;
        // All of them: one that finds nothing ends its poll at once, and tells nobody.
        cq.own.current.ended.notify_all();
    }
}

/// Reads from the completion under way.
///
/// # Safety
/// It is the program's queue.
unsafe fn read<T: Default>(at: *mut ibv_cq_ex, field: impl FnOnce(&WcEx) -> T) -> T {
    // SAFETY: as the caller says.
    let cq = unsafe { cq_at(at.cast()) };
    let wc = cq.ok().and_then(|cq| *lock(&cq.own.current.wc));
    wc.as_ref().map(field).unwrap_or_default()
}

unsafe extern "C" fn read_opcode(at: *mut ibv_cq_ex) -> c_int {
    // SAFETY: as the program vouches, here and below.
    unsafe { read(at, |wc| wc.opcode as c_int) }
}

unsafe extern "C" fn read_vendor_err(at: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.vendor_err) }
}

unsafe extern "C" fn read_wc_flags(at: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.flags.bits().into()) }
}

unsafe extern "C" fn read_byte_len(at: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.byte_len.unwrap_or_default()) }
}

unsafe extern "C" fn read_imm_data(at: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(at, imm_data) }
}

/// Immediate data in network byte order, or a key as it is.
fn imm_data(wc: &WcEx) -> u32 {
    let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm).flatten();
    imm.map_or(wc.invalidated.unwrap_or_default(), u32::to_be)
}

unsafe extern "C" fn read_qp_num(at: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.qp_num.unwrap_or_default()) }
}

unsafe extern "C" fn read_src_qp(at: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.src_qp.unwrap_or_default()) }
}

unsafe extern "C" fn read_slid(at: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.slid.unwrap_or_default()) }
}

unsafe extern "C" fn read_sl(at: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.sl.unwrap_or_default()) }
}

unsafe extern "C" fn read_dlid_path_bits(at: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.dlid_path_bits.unwrap_or_default()) }
}

unsafe extern "C" fn read_completion_ts(at: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.completion_ts.unwrap_or_default()) }
}

unsafe extern "C" fn read_cvlan(at: *mut ibv_cq_ex) -> u16 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.cvlan.unwrap_or_default()) }
}

unsafe extern "C" fn read_completion_wallclock_ns(at: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as above.
    unsafe { read(at, |wc| wc.wallclock_ns.unwrap_or_default()) }
}

/// `query_rt_values` of a context: the clock of completion timestamps.
pub(crate) unsafe extern "C" fn query_rt_values(
    at: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    const RAW_CLOCK: u32 = 1;
    code(|| {
        // SAFETY: the program's context and values.
        let (device, values) = unsafe { (context(at)?.own.device(), values.as_mut()) };
        let values = values.ok_or(INVALID)?;
        let asked = std::mem::take(&mut values.comp_mask);
        if asked & !RAW_CLOCK != 0 {
            return Err(INVALID);
        }
        if asked & RAW_CLOCK != 0 {
            // All ticks are in the second field, as NICs' drivers have it.
            let ticks = i64::try_from(device.clock()).unwrap_or(i64::MAX);
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks };
            values.comp_mask = RAW_CLOCK;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use doorbell_seam::wc::Status;

    use super::*;
    use crate::cq::ibv_destroy_cq;
    use crate::device::ibv_get_device_list;
    use crate::open::ibv_open_device;
    use std::ptr::null_mut;

    #[test]
    fn immediate_data_is_in_network_byte_order_and_a_key_is_not() {
        let with_imm = WcEx { imm: Some(5), flags: WcFlags::WITH_IMM, ..WcEx::default() };
        assert_eq!(imm_data(&with_imm), 5_u32.to_be());
        let with_inv = WcEx { invalidated: Some(5), flags: WcFlags::WITH_INV, ..WcEx::default() };
        assert_eq!(imm_data(&with_inv), 5);
        assert_eq!(imm_data(&WcEx { status: Status::Flushed, ..WcEx::default() }), 0);
    }

    /// A queue with those fields and flags of creation; NULL with `errno`.
    fn queue(wc_flags: u64, flags: u32) -> *mut ibv_cq_ex {
        let mut attr = ibv_cq_init_attr_ex {
            cqe: 10,
            cq_context: null_mut(),
            channel: null_mut(),
            comp_vector: 0,
            wc_flags,
            comp_mask: MASK_FLAGS,
            flags,
            parent_domain: null_mut(),
        };
        // SAFETY: our own calls, with what they gave.
        unsafe {
            let context = ibv_open_device(*ibv_get_device_list(null_mut()));
            create_cq_ex(context, &raw mut attr)
        }
    }

    #[test]
    fn a_queue_has_what_was_asked_for_or_is_refused() {
        const TIMESTAMP: u64 = 1 << 7;
        const FLOW_TAG: u64 = 1 << 9;
        let refused = |cq: *mut ibv_cq_ex| {
            let errno = std::io::Error::last_os_error().raw_os_error();
            cq.is_null() && errno == Some(libc::EOPNOTSUPP)
        };
        assert!(refused(queue(FLOW_TAG, 0)));
        assert!(refused(queue(0, 1 << 7)));
        assert!(refused(queue(1 << 40, 0)));
        for (fields, has_time) in [(0, false), (TIMESTAMP, true)] {
            let cq = queue(fields, SINGLE_THREADED);
            // SAFETY: just made.
            unsafe {
                assert_eq!((*cq).read_completion_ts.is_some(), has_time);
                assert_eq!(ibv_destroy_cq(cq.cast()), 0);
            }
        }
    }

    /// A poll that finds nothing is over; one that has found something is over when it says so.
    #[test]
    fn one_poll_is_under_way_at_a_time() {
        let attr = ibv_poll_cq_attr { comp_mask: 0 };
        let at = queue(0, 0);
        // SAFETY: just made.
        let cq = unsafe {
            assert_eq!(start_poll(at, &raw const attr), libc::ENOENT);
            assert_eq!(start_poll(at, &raw const attr), libc::ENOENT);
            &cq_at(at.cast()).unwrap().own
        };
        *lock(&cq.current.wc) = Some(WcEx { qp_num: Some(7), ..WcEx::default() });
        let (done, ended) = mpsc::channel();
        let address = at as usize;
        let other = std::thread::spawn(move || {
            let attr = ibv_poll_cq_attr { comp_mask: 0 };
            // SAFETY: it is destroyed after this thread has ended.
            done.send(unsafe { start_poll(address as *mut ibv_cq_ex, &raw const attr) })
        });
        assert!(ended.recv_timeout(Duration::from_millis(50)).is_err(), "it must wait");
        // SAFETY: as above.
        unsafe {
            assert_eq!(read_qp_num(at), 7);
            end_poll(at);
        }
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(libc::ENOENT));
        other.join().unwrap().unwrap();
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { ibv_destroy_cq(at.cast()) }, 0);
    }
}
