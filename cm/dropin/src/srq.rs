//! Shared receive queues.
#![expect(unsafe_code, reason = "the C interface")]

use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_seam::provider::{Provider, Srq as _, SrqLimits};
use doorbell_soft::SoftSrq;
use libc::c_int;

use crate::abi::*;
use crate::border::{
    ABSENT, Errno, INVALID, Noun, Object, code, given, lock, object, pointer, put, take, zeroed,
};
use crate::context::context;
use crate::memory::Pd;
use crate::progress::{Known, Progress};
use crate::requests::post_receives;

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) srq: SoftSrq,
    /// Queue pairs that use it.
    pub(crate) users: AtomicU32,
    progress: &'static Progress,
}

impl Noun for Srq {
    type C = ibv_srq;
    const TAG: u64 = 0x6462_5f73_7271_0007;
}

unsafe fn create(
    at: *mut ibv_pd,
    srq_context: *mut std::ffi::c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the program's domain; its context is alive.
    let (pd, of) = unsafe { (object::<Pd>(at)?, (*at).context) };
    if attr.max_sge > 1 {
        return Err(INVALID);
    }
    let srq = pd.own.device.create_srq(attr.max_wr)?;
    (attr.max_wr, attr.max_sge) = (srq.depth(), 1);
    // SAFETY: as above.
    let progress = unsafe { context(of) }?.own.progress();
    let c = ibv_srq {
        context: of,
        srq_context,
        pd: at,
        handle: srq.id() as u32,
        mutex: zeroed(),
        cond: zeroed(),
        events_completed: 0,
    };
    let id = srq.id();
    let made = Object::give(c, Srq { srq, users: AtomicU32::new(0), progress });
    lock(&progress.srqs).insert(id, Known::silent(made as usize, of));
    Ok(made)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the program's domain and attributes.
        unsafe {
            let srq_context = given(init)?.srq_context;
            create(pd, srq_context, &mut (*init).attr)
        }
    })
}

/// `create_srq_ex` of a context: basic queues only.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const TYPE: u32 = 1;
    const PD: u32 = 2;
    pointer(|| {
        // SAFETY: the program's attributes and what they name.
        unsafe {
            let asked = given(init)?;
            if asked.comp_mask & PD == 0 {
                return Err(INVALID);
            }
            if asked.comp_mask & !(TYPE | PD) != 0
                || (asked.comp_mask & TYPE != 0 && asked.srq_type != 0)
            {
                return Err(ABSENT);
            }
            let (pd, srq_context) = (asked.pd, asked.srq_context);
            create(pd, srq_context, &mut (*init).attr)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    at: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the program's queue and attributes.
        let (srq, attr) = unsafe { (object::<Srq>(at)?, given(attr)?) };
        if mask & !3 != 0 {
            return Err(INVALID);
        }
        if mask & 1 != 0 {
            srq.own.srq.resize(attr.max_wr)?;
        }
        if mask & 2 != 0 {
            srq.own.srq.set_limit(attr.srq_limit)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(at: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    code(|| {
        // SAFETY: the program's queue, and room for the answer.
        unsafe {
            let srq = &object::<Srq>(at)?.own.srq;
            let (max_wr, srq_limit) = (srq.depth(), srq.limit()?);
            put(attr, ibv_srq_attr { max_wr, max_sge: 1, srq_limit })
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(at: *mut ibv_srq) -> c_int {
    code(|| {
        // SAFETY: the program's queue, which it no longer uses.
        unsafe {
            let srq = object::<Srq>(at)?;
            if srq.own.users.load(Ordering::SeqCst) > 0 {
                return Err(Errno(libc::EBUSY));
            }
            lock(&srq.own.progress.srqs).remove(&srq.own.srq.id());
            take::<Srq>(at).map(drop)
        }
    })
}

/// `post_srq_recv` of a context.
pub(crate) unsafe extern "C" fn post_srq_recv(
    at: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut next = first;
    let result = code(|| {
        // SAFETY: the program's queue and list; it keeps the buffers, by the contract of
        // `ibv_post_srq_recv`.
        unsafe {
            let srq = &object::<Srq>(at)?.own.srq;
            post_receives(&mut next, |list| srq.post(list))
        }
    });
    if result != 0 && !bad.is_null() {
        // SAFETY: the program gives room for a pointer.
        unsafe { bad.write(next) };
    }
    result
}
