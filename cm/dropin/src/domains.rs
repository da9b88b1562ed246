//! Thread domains and parent domains.
#![expect(unsafe_code, reason = "the C interface")]

use std::sync::Arc;

use doorbell_seam::provider::ThreadDomains;
use libc::c_int;

use crate::abi::{ibv_context, ibv_pd};
use crate::abi_ext::{ibv_parent_domain_init_attr, ibv_td, ibv_td_init_attr};
use crate::border::{ABSENT, Errno, Noun, Object, code, given, object, pointer, take};
use crate::context::context;
use crate::memory::Pd;

/// A thread domain. The program promises that one thread alone uses its objects. This library gains
/// nothing by that, because its own thread polls them too.
struct Td {
    users: Arc<()>,
}

impl Noun for Td {
    type C = ibv_td;
    const TAG: u64 = 0x6462_5f74_6400_000b;
}

/// `alloc_td` of a context.
pub(crate) unsafe extern "C" fn alloc_td(
    at: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer(|| {
        // SAFETY: the program's context and attributes.
        let attr = unsafe {
            context(at)?;
            given(attr)?
        };
        if attr.comp_mask != 0 {
            return Err(ABSENT);
        }
        Ok(Object::give(ibv_td { context: at }, Td { users: Arc::new(()) }))
    })
}

/// `dealloc_td` of a context.
pub(crate) unsafe extern "C" fn dealloc_td(at: *mut ibv_td) -> c_int {
    code(|| {
        // SAFETY: the program's thread domain, which it no longer uses.
        unsafe {
            if Arc::strong_count(&object::<Td>(at)?.own.users) > 1 {
                return Err(Errno(libc::EBUSY));
            }
            take::<Td>(at).map(drop)
        }
    })
}

/// `alloc_parent_domain` of a context. Allocators are never called: the device allocates its queues
/// itself.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    at: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 2;
    pointer(|| {
        // SAFETY: the program's context, attributes and what they name.
        unsafe {
            context(at)?;
            let attr = given(attr)?;
            if attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
                return Err(ABSENT);
            }
            let td = match attr.td.is_null() {
                true => None,
                false => Some(object::<Td>(attr.td)?.own.users.clone()),
            };
            let device = object::<Pd>(attr.pd)?.own.device.alloc_parent_domain(None)?;
            Ok(Object::give(ibv_pd { context: at, handle: 0 }, Pd { device, _td: td }))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::ibv_get_device_list;
    use crate::memory::{ibv_alloc_pd, ibv_dealloc_pd};
    use crate::open::ibv_open_device;
    use std::ptr::null_mut;

    #[test]
    fn a_parent_domain_keeps_what_it_names() {
        const OK: c_int = 0;
        // SAFETY: our own calls, with what they gave.
        unsafe {
            let context = ibv_open_device(*ibv_get_device_list(null_mut()));
            let pd = ibv_alloc_pd(context);
            let mut attr = ibv_td_init_attr { comp_mask: 0 };
            let td = alloc_td(context, &raw mut attr);
            let mut attr = ibv_parent_domain_init_attr {
                pd,
                td,
                comp_mask: 0,
                alloc: None,
                free: None,
                pd_context: null_mut(),
            };
            let parent = alloc_parent_domain(context, &raw mut attr);
            assert!(!td.is_null() && !parent.is_null());
            assert_eq!((dealloc_td(td), ibv_dealloc_pd(pd)), (libc::EBUSY, libc::EBUSY));
            assert_eq!(ibv_dealloc_pd(parent), OK);
            assert_eq!((dealloc_td(td), ibv_dealloc_pd(pd)), (OK, OK));
            attr.comp_mask = 4;
            assert!(alloc_parent_domain(context, &raw mut attr).is_null(), "it is unknown");
        }
    }
}
