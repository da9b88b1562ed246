//! Shared receive queues.
#![expect(unsafe_code, reason = "the C interface")]

use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_seam::provider::{Provider, Srq as _, SrqLimits, XrcSrq};
use doorbell_soft::SoftSrq;
use libc::c_int;

use crate::abi::*;
use crate::abi_context::*;
use crate::border::{
    ABSENT, Errno, INVALID, Noun, Object, code, given, lock, object, pointer, put, take, zeroed,
};
use crate::context::context;
use crate::memory::Pd;
use crate::progress::{Listed, Progress};
use crate::requests::{Only, Queue, on_list};
use crate::scatter::{Owner, PIECES_MAX};
use crate::xrc::XrcPart;

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) srq: SoftSrq,
    /// Queue pairs that use it.
    pub(crate) users: AtomicU32,
    /// Pieces that a receive may have.
    sge: u32,
    progress: &'static Progress,
    /// Of a queue in an XRC domain.
    _xrc: Option<XrcPart>,
}

impl Noun for Srq {
    type C = ibv_srq;
    const TAG: u64 = 0x6462_5f73_7271_0007;
}

/// Makes a shared receive queue, of an XRC domain if one is given.
unsafe fn create(
    at: *mut ibv_pd,
    srq_context: *mut std::ffi::c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<XrcPart>,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the program's domain; its context is alive.
    let (pd, of) = unsafe { (object::<Pd>(at)?, (*at).context) };
    if attr.max_sge > PIECES_MAX {
        return Err(INVALID);
    }
    let srq = match &xrc {
        // SAFETY: the program's queue.
        Some(part) => unsafe { part.create(&pd.own.device, attr.max_wr) }?,
        None => pd.own.device.create_srq(attr.max_wr)?,
    };
    (attr.max_wr, attr.max_sge) = (srq.depth(), attr.max_sge.max(1));
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
    let (id, users, sge) = (srq.id(), AtomicU32::new(0), attr.max_sge);
    let made = Object::give(c, Srq { srq, users, sge, progress, _xrc: xrc });
    lock(&progress.srqs).insert(id, Listed::silent(made as usize, of));
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
            create(pd, srq_context, &mut (*init).attr, None)
        }
    })
}

/// `create_srq_ex` of a context: basic queues, and those of an XRC domain.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const TYPE: u32 = 1;
    const PD: u32 = 2;
    const XRC: u32 = 4 | 8;
    pointer(|| {
        // SAFETY: the program's attributes and what they name.
        unsafe {
            let asked = given(init)?;
            let mask = asked.comp_mask;
            let kind = if mask & TYPE == 0 { 0 } else { asked.srq_type };
            let needed = if kind == 1 { PD | XRC } else { PD };
            if mask & needed != needed {
                return Err(INVALID);
            }
            if kind > 1 || mask & !(TYPE | needed) != 0 {
                return Err(ABSENT);
            }
            let xrc = if kind == 1 { Some(XrcPart::of(asked)?) } else { None };
            let (pd, srq_context) = (asked.pd, asked.srq_context);
            create(pd, srq_context, &mut (*init).attr, xrc)
        }
    })
}

/// `get_srq_num` of a context: the number of a queue in an XRC domain.
pub(crate) unsafe extern "C" fn get_srq_num(at: *mut ibv_srq, num: *mut u32) -> c_int {
    code(|| {
        // SAFETY: the program's queue, and room for the number.
        unsafe {
            let number = object::<Srq>(at)?.own.srq.number().ok_or(INVALID)?;
            put(num, number)
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
            let Srq { srq, sge, .. } = &object::<Srq>(at)?.own;
            let (max_wr, srq_limit) = (srq.depth(), srq.limit()?);
            put(attr, ibv_srq_attr { max_wr, max_sge: *sge, srq_limit })
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
            let (progress, id) = (srq.own.progress, srq.own.srq.id());
            progress.unlist(&progress.srqs, &id);
            drop(take::<Srq>(at)?);
            progress.scatter.forget(Owner::Srq(id));
            Ok(())
        }
    })
}

/// `post_srq_recv` of a context.
pub(crate) unsafe extern "C" fn post_srq_recv(
    at: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program's queue and list; it keeps the buffers, by the contract of
    // `ibv_post_srq_recv`.
    unsafe {
        on_list(first, bad, |next| {
            let Srq { srq, sge, progress, .. } = &object::<Srq>(at)?.own;
            if Only::of(*next).is_some_and(|only| srq.post_one(|| only.receive())) {
                return Ok(());
            }
            let queue = Queue {
                pd: (*at).pd,
                scatter: &progress.scatter,
                owner: Owner::Srq(srq.id()),
                pieces_max: *sge,
            };
            queue.post(next, |list| srq.post(list))
        })
    }
}
