//! Work queues, tables of them, and the hash that spreads frames over a table.
#![expect(unsafe_code, reason = "the C interface")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_fabric::Fabric;
use doorbell_seam::provider::{
    HASH_KEY_BYTES, HashFields, HashFunction, RxHash, Wq as _, WqFlags, WqState,
};
use doorbell_soft::{SoftIndTable, SoftWq};
use libc::c_int;

use crate::abi::{ibv_context, ibv_cq, ibv_recv_wr};
use crate::abi_raw::*;
use crate::border::{
    ABSENT, Errno, INVALID, Noun, Object, code, given, object, pointer, take, zeroed,
};
use crate::context::context;
use crate::cq::cq_at;
use crate::memory::Pd;
use crate::progress::Progress;
use crate::requests::{Queue, on_list};
use crate::scatter::{Owner, PIECES_MAX};

/// A work queue.
struct Wq {
    wq: SoftWq,
    sge: u32,
    /// Tables that name it.
    users: Arc<AtomicU32>,
    progress: &'static Progress,
}

impl Noun for Wq {
    type C = ibv_wq;
    const TAG: u64 = 0x6462_5f77_7100_000d;
}

/// A table of work queues.
struct Table {
    table: SoftIndTable,
    /// The completion queue of the first.
    cq: *mut ibv_cq,
    queues: Vec<Arc<AtomicU32>>,
}

impl Noun for Table {
    type C = ibv_rwq_ind_table;
    const TAG: u64 = 0x6462_5f74_6200_000e;
}

impl Drop for Table {
    fn drop(&mut self) {
        for users in &self.queues {
            users.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// `create_wq` of a context.
pub(crate) unsafe extern "C" fn create_wq(
    at: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    const FLAGS: u32 = 1;
    pointer(|| {
        // SAFETY: the program's context, attributes and what they name.
        unsafe {
            let progress = context(at)?.own.progress();
            let asked = given(attr)?;
            let (pd, cq) = (object::<Pd>(asked.pd)?, cq_at(asked.cq)?);
            if asked.wq_type != 0 || asked.max_sge > PIECES_MAX {
                return Err(INVALID);
            }
            let flags = if asked.comp_mask & FLAGS != 0 { asked.create_flags } else { 0 };
            let flags = WqFlags::from_bits(flags).ok_or(ABSENT)?;
            if asked.comp_mask & !FLAGS != 0 {
                return Err(ABSENT);
            }
            let wq = pd.own.device.create_wq(&cq.own.cq, asked.max_wr.max(1), flags)?;
            let (wq_num, sge) = (wq.num(), asked.max_sge.max(1));
            let c = ibv_wq {
                context: at,
                pd: asked.pd,
                cq: asked.cq,
                wq_num,
                handle: wq_num,
                post_recv: Some(post_recv),
                ..zeroed()
            };
            ((*attr).max_wr, (*attr).max_sge) = (wq.depth(), sge);
            cq.own.users.fetch_add(1, Ordering::SeqCst);
            Ok(Object::give(c, Wq { wq, sge, users: Arc::default(), progress }))
        }
    })
}

/// `destroy_wq` of a context.
pub(crate) unsafe extern "C" fn destroy_wq(at: *mut ibv_wq) -> c_int {
    code(|| {
        // SAFETY: the program's queue, which it no longer uses, and its completion queue.
        unsafe {
            if object::<Wq>(at)?.own.users.load(Ordering::SeqCst) > 0 {
                return Err(Errno(libc::EBUSY));
            }
            let cq = (*at).cq;
            let Wq { wq, progress, .. } = take::<Wq>(at)?;
            let num = wq.num();
            drop(wq);
            progress.scatter.forget(Owner::Qp(num));
            cq_at(cq)?.own.users.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    })
}

/// `modify_wq` of a context: its state.
pub(crate) unsafe extern "C" fn modify_wq(at: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    const STATE: u32 = 1;
    const CURRENT: u32 = 2;
    code(|| {
        // SAFETY: the program's queue and attributes.
        let (wq, attr) = unsafe { (object::<Wq>(at)?, given(attr)?) };
        if attr.attr_mask & !(STATE | CURRENT) != 0 {
            return Err(ABSENT);
        }
        // SAFETY: alive.
        if attr.attr_mask & CURRENT != 0 && unsafe { (*at).state } != attr.curr_wq_state {
            return Err(INVALID);
        }
        if attr.attr_mask & STATE == 0 {
            return Ok(());
        }
        let to = match attr.wq_state {
            0 => WqState::Reset,
            1 => WqState::Ready,
            2 => WqState::Err,
            _ => return Err(INVALID),
        };
        wq.own.wq.modify(to)?;
        if to == WqState::Reset {
            wq.own.progress.scatter.forget(Owner::Qp(wq.own.wq.num()));
        }
        // SAFETY: alive.
        unsafe { (*at).state = attr.wq_state };
        Ok(())
    })
}

/// `post_recv` of a work queue.
unsafe extern "C" fn post_recv(
    at: *mut ibv_wq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program's queue and list; it keeps the buffers, by the contract of
    // `ibv_post_wq_recv`.
    unsafe {
        on_list(first, bad, |next| {
            let Wq { wq, sge, progress, .. } = &object::<Wq>(at)?.own;
            let queue = Queue {
                pd: (*at).pd,
                scatter: &progress.scatter,
                // It has a number like a queue pair's.
                owner: Owner::Qp(wq.num()),
                pieces_max: *sge,
            };
            queue.post(next, |list| wq.post(list))
        })
    }
}

/// `create_rwq_ind_table` of a context.
pub(crate) unsafe extern "C" fn create_table(
    at: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    /// The device refuses more.
    const LOG_MAX: u32 = 16;
    pointer(|| {
        // SAFETY: the program's context and attributes, with as many queues.
        unsafe {
            let device = context(at)?.own.device();
            let attr = given(attr)?;
            if attr.comp_mask != 0 || attr.log_ind_tbl_size > LOG_MAX {
                return Err(INVALID);
            }
            let queues = (0..1_usize << attr.log_ind_tbl_size)
                .map(|n| object::<Wq>(*given(attr.ind_tbl.wrapping_add(n))?).map(|wq| &wq.own))
                .collect::<Result<Vec<&Wq>, Errno>>()?;
            let handles: Vec<&SoftWq> = queues.iter().map(|wq| &wq.wq).collect();
            let table = device.create_rwq_ind_table(&handles)?;
            // There is one at least, as the device has seen.
            let cq = (**given(attr.ind_tbl)?).cq;
            let queues: Vec<_> = queues.iter().map(|wq| wq.users.clone()).collect();
            for users in &queues {
                users.fetch_add(1, Ordering::SeqCst);
            }
            let c =
                ibv_rwq_ind_table { context: at, ind_tbl_handle: 0, ind_tbl_num: 0, comp_mask: 0 };
            Ok(Object::give(c, Table { table, cq, queues }))
        }
    })
}

/// `destroy_rwq_ind_table` of a context.
pub(crate) unsafe extern "C" fn destroy_table(at: *mut ibv_rwq_ind_table) -> c_int {
    // SAFETY: the program's table, which it no longer uses.
    code(|| unsafe { take::<Table>(at) }.map(drop))
}

/// A table of the program, and the completion queue of its first work queue.
///
/// # Safety
/// As for [`object`].
pub(crate) unsafe fn table_at<'a>(
    at: *mut ibv_rwq_ind_table,
) -> Result<(&'a SoftIndTable, *mut ibv_cq), Errno> {
    // SAFETY: as the caller says.
    let table = unsafe { &object::<Table>(at)?.own };
    Ok((&table.table, table.cq))
}

/// How receives are spread.
///
/// # Safety
/// The key is the program's.
pub(crate) unsafe fn hash_of(conf: &ibv_rx_hash_conf) -> Result<RxHash, Errno> {
    let function = match conf.rx_hash_function {
        1 => HashFunction::Toeplitz,
        _ => return Err(ABSENT),
    };
    if usize::from(conf.rx_hash_key_len) != HASH_KEY_BYTES {
        return Err(INVALID);
    }
    let fields = HashFields::from_bits(conf.rx_hash_fields_mask).ok_or(ABSENT)?;
    // SAFETY: as the caller says; it has as many bytes.
    let key = *unsafe { given(conf.rx_hash_key.cast::<[u8; HASH_KEY_BYTES]>()) }?;
    Ok(RxHash { function, key, fields })
}
