//! Opening the device: contexts, and the tables of functions in them, which `verbs.h` calls by
//! address.
#![expect(unsafe_code, reason = "the C interface")]

use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use doorbell_seam::provider::Provider;
use libc::c_int;

use crate::abi::{ibv_context, ibv_context_ops, ibv_device};
use crate::abi_context::verbs_context;
use crate::border::{Errno, Object, lock, number, pointer, take, zeroed};
use crate::context::{Context, context, device as shared_device};
use crate::queue::AsyncQueue;
use crate::{cq, cq_ex, create_ex, device, domains, flow, post, srq, window, wq, xrc};

/// What carries traffic.
fn ops() -> ibv_context_ops {
    ibv_context_ops {
        _compat_first: [None; 7],
        alloc_mw: Some(window::alloc_mw),
        bind_mw: Some(window::bind_mw),
        dealloc_mw: Some(window::dealloc_mw),
        _compat_create_cq: None,
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        _compat_cq: [None; 7],
        post_srq_recv: Some(srq::post_srq_recv),
        _compat_qp: [None; 4],
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        _compat_last: [None; 5],
    }
}

/// A context with its extended part. What is not named here is not supported.
fn extended(inner: ibv_context) -> verbs_context {
    verbs_context {
        query_port: Some(device::query_port_ex),
        alloc_parent_domain: Some(domains::alloc_parent_domain),
        dealloc_td: Some(domains::dealloc_td),
        alloc_td: Some(domains::alloc_td),
        destroy_rwq_ind_table: Some(wq::destroy_table),
        create_rwq_ind_table: Some(wq::create_table),
        destroy_wq: Some(wq::destroy_wq),
        modify_wq: Some(wq::modify_wq),
        create_wq: Some(wq::create_wq),
        query_rt_values: Some(cq_ex::query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        query_device_ex: Some(device::query_device_ex),
        ibv_destroy_flow: Some(flow::destroy_flow),
        ibv_create_flow: Some(flow::create_flow),
        create_qp_ex: Some(create_ex::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        sz: size_of::<verbs_context>(),
        context: inner,
        ..zeroed()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(at: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        if at != device::listed() {
            return Err(Errno(libc::ENODEV));
        }
        let progress = shared_device()?;
        let events = Arc::new(AsyncQueue::new()?);
        let (async_fd, comp_vectors) = (events.fd(), progress.device.caps().comp_vectors);
        let inner = ibv_context {
            device: at,
            ops: ops(),
            // There are no commands; programs may duplicate it all the same.
            cmd_fd: async_fd,
            async_fd,
            num_comp_vectors: comp_vectors.cast_signed(),
            mutex: zeroed(),
            // It has the extended part.
            abi_compat: ptr::without_provenance_mut(usize::MAX),
        };
        let c = extended(inner);
        let outer = Object::give(c, Context { progress, events: events.clone() });
        let inner = outer.wrapping_byte_add(offset_of!(verbs_context, context)).cast();
        lock(&progress.contexts).insert(inner as usize, events);
        Ok(inner)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(at: *mut ibv_context) -> c_int {
    number(|| {
        // SAFETY: the program's context, which it no longer uses.
        unsafe {
            let open = context(at)?;
            // From here on no event comes to it.
            lock(&open.own.progress.contexts).remove(&(at as usize));
            take::<Context>(open.c())?;
        }
        Ok(0)
    })
}
