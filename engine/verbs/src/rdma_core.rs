//! libibverbs and librdmacm: the types and inline functions of rdma-sys, and every exported
//! function that this crate calls.
//!
//! The libraries are loaded when they are first needed. So a program that is built for NICs also
//! starts on a machine without them, and runs on the soft device. A function that is declared here
//! has the name that it has in rdma-sys, and hides it. A call of a function of rdma-sys that is
//! missing here would make the program need the library at its start. The conformance suite looks
//! for that (`devices.rs`).
//!
//! Posting and polling do not come this way: they are functions of the driver (`device.rs`, `Ops`).
#![expect(unsafe_code, reason = "functions are looked up in a library by name")]
#![expect(
    clippy::disallowed_methods,
    reason = "one of them is declared; handles.rs calls it with care"
)]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::transmute;
use core::ptr::NonNull;
use std::sync::OnceLock;

use libc::sockaddr;
pub(crate) use rdma_sys::*;
use std_alloc::format;
use std_alloc::string::String;

use crate::error::{Code, SetupError};

/// The libraries by the names that programs ask for: those of their binary interfaces.
const NAMES: Names = Names { ibverbs: c"libibverbs.so.1", rdmacm: c"librdmacm.so.1" };

static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();

/// Loads the libraries, if that was not tried before. `asked` is for the error.
pub(crate) fn load(asked: &str) -> Result<(), SetupError> {
    match LOADED.get_or_init(|| Functions::load(&NAMES)) {
        Ok(_) => Ok(()),
        Err(missing) => Err(SetupError::new(Code::NoDevice, asked, missing.clone()).cure(
            "install rdma-core's libraries (Debian, Ubuntu: libibverbs1 librdmacm1 \
             ibverbs-providers; Fedora, RHEL: libibverbs librdmacm; Arch: rdma-core), or use the \
             device soft0, which needs none",
        )),
    }
}

/// The functions. Every object of this crate comes from a device, and `load` comes before the first
/// device.
fn functions() -> &'static Functions {
    match LOADED.get() {
        Some(Ok(functions)) => functions,
        _ => unreachable!("a function of rdma-core is called before its libraries are loaded"),
    }
}

/// Makes the library's own memory safe from forks; 0, or an errno. The library is loaded.
pub(crate) fn fork_init() -> c_int {
    // SAFETY: takes nothing; the library refuses it when it is too late.
    unsafe { ibv_fork_init() }
}

/// Whether the library's own memory is safe from forks. The library is loaded.
pub(crate) fn fork_status() -> ibv_fork_status {
    // SAFETY: takes nothing.
    unsafe { ibv_is_fork_initialized() }
}

/// The files of the libraries.
struct Names {
    ibverbs: &'static CStr,
    rdmacm: &'static CStr,
}

/// A library that stays loaded until the process ends, because drivers have threads and handlers
/// in it.
struct Library {
    handle: NonNull<c_void>,
    name: &'static CStr,
}

impl Library {
    fn open(name: &'static CStr) -> Result<Library, String> {
        // SAFETY: the name ends with a zero. Loading runs the library's own initialisation, as it
        // does at the start of a program that is linked to it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Library { handle, name }),
            None => Err(last_error(name)),
        }
    }

    /// The function of that name, in its default version: the one that the linker would take.
    fn find(&self, name: &CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: the library is loaded, and the name ends with a zero.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) }).ok_or_else(|| {
            let (library, name) = (self.name.to_string_lossy(), name.to_string_lossy());
            format!("{library} is too old: it has no {name}")
        })
    }
}

/// What the loader says. It names the file.
fn last_error(name: &CStr) -> String {
    // SAFETY: the text is this thread's own, valid until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{} cannot be loaded", name.to_string_lossy());
    }
    // SAFETY: not null, so a text that ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// For each function of C a field with its address, and a function that calls it. The constants
/// have the compiler check each declaration against the one of rdma-sys.
macro_rules! functions {
    ($($library:ident { $(
        fn $name:ident($($arg:ident: $type:ty),*) $(-> $answer:ty)?;
    )* })*) => {
        struct Functions { $($($name: unsafe extern "C" fn($($type),*) $(-> $answer)?,)*)* }

        impl Functions {
            fn load(names: &Names) -> Result<Functions, String> {
                $(let $library = Library::open(names.$library)?;)*
                Ok(Functions { $($($name: {
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    let found = $library.find(CStr::from_bytes_with_nul(name).unwrap_or(c""))?;
                    // SAFETY: the function of that name, which has the type that rdma-sys read
                    // from the library's headers.
                    unsafe {
                        transmute::<
                            NonNull<c_void>, unsafe extern "C" fn($($type),*) $(-> $answer)?
                        >(found)
                    }
                },)*)* })
            }

            #[cfg(test)]
            fn addresses(&self) -> Vec<(&'static str, *const c_void)> {
                vec![$($((stringify!($name), self.$name as *const c_void),)*)*]
            }
        }

        $($(
            /// The function of C.
            ///
            /// # Safety
            /// As its man page says.
            pub(crate) unsafe extern "C" fn $name($($arg: $type),*) $(-> $answer)? {
                // SAFETY: the caller keeps the promises of the man page.
                unsafe { (functions().$name)($($arg),*) }
            }
            const _: unsafe extern "C" fn($($type),*) $(-> $answer)? = rdma_sys::$name;
        )*)*
    };
}

functions! {
    ibverbs {
        fn ibv_ack_async_event(event: *mut ibv_async_event);
        fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_create_cq(
            context: *mut ibv_context, depth: c_int, cq_context: *mut c_void,
            channel: *mut ibv_comp_channel, vector: c_int
        ) -> *mut ibv_cq;
        fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
        fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        fn ibv_fork_init() -> c_int;
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void
        ) -> c_int;
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        fn ibv_init_ah_from_wc(
            context: *mut ibv_context, port: u8, wc: *mut ibv_wc, grh: *mut ibv_grh,
            attr: *mut ibv_ah_attr
        ) -> c_int;
        fn ibv_is_fork_initialized() -> ibv_fork_status;
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
        fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
        fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
        fn ibv_query_gid(
            context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid
        ) -> c_int;
        fn ibv_query_pkey(
            context: *mut ibv_context, port: u8, index: c_int, pkey: *mut __be16
        ) -> c_int;
        fn ibv_query_port(
            context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr
        ) -> c_int;
        fn ibv_query_qp(
            qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr
        ) -> c_int;
        fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
        fn ibv_reg_mr(
            pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int
        ) -> *mut ibv_mr;
        fn ibv_rereg_mr(
            mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize,
            access: c_int
        ) -> c_int;
        fn ibv_resize_cq(cq: *mut ibv_cq, depth: c_int) -> c_int;
    }
    rdmacm {
        fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
        fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
        fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
        fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
        fn rdma_create_ep(
            id: *mut *mut rdma_cm_id, info: *mut rdma_addrinfo, pd: *mut ibv_pd,
            init: *mut ibv_qp_init_attr
        ) -> c_int;
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_create_id(
            channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void,
            space: rdma_port_space::Type
        ) -> c_int;
        fn rdma_create_qp(
            id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr
        ) -> c_int;
        fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int;
        fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
        fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
        fn rdma_destroy_qp(id: *mut rdma_cm_id);
        fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
        fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
        fn rdma_free_devices(list: *mut *mut ibv_context);
        fn rdma_get_cm_event(
            channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event
        ) -> c_int;
        fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context;
        fn rdma_get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
        fn rdma_init_qp_attr(
            id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int
        ) -> c_int;
        fn rdma_join_multicast_ex(
            id: *mut rdma_cm_id, attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void
        ) -> c_int;
        fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
        fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
        fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
        fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int;
        fn rdma_resolve_addr(
            id: *mut rdma_cm_id, from: *mut sockaddr, to: *mut sockaddr, limit_ms: c_int
        ) -> c_int;
        fn rdma_resolve_route(id: *mut rdma_cm_id, limit_ms: c_int) -> c_int;
        fn rdma_set_option(
            id: *mut rdma_cm_id, level: c_int, option: c_int, value: *mut c_void, length: usize
        ) -> c_int;
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let names = Names { rdmacm: c"librdmacm.so.none", ..NAMES };
        let Err(missing) = Functions::load(&names) else { panic!("it exists") };
        assert!(missing.starts_with("librdmacm.so.none: cannot open"), "{missing}");
    }

    #[test]
    fn a_library_that_lacks_a_function_is_too_old() {
        let names = Names { ibverbs: c"libc.so.6", ..NAMES };
        let Err(missing) = Functions::load(&names) else { panic!("libc has no verbs") };
        assert_eq!(missing, "libc.so.6 is too old: it has no ibv_ack_async_event");
    }

    /// libibverbs keeps the functions of its first binary interface for old programs. They take
    /// other structures.
    #[test]
    #[cfg(target_env = "gnu")]
    fn functions_with_two_versions_are_of_the_newer_one() {
        let functions = Functions::load(&NAMES).expect("the libraries this was built with");
        let library = Library::open(NAMES.ibverbs).expect("loaded already");
        let version = |name: &str, version: &CStr| {
            let name = CString::new(name).expect("a name");
            let handle = library.handle.as_ptr();
            // SAFETY: the library is loaded, and both texts end with a zero.
            unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()).cast_const() }
        };
        let mut with_two = 0;
        for (name, address) in functions.addresses() {
            let old = version(name, c"IBVERBS_1.0");
            let new = version(name, c"IBVERBS_1.1");
            if !old.is_null() && !new.is_null() {
                assert_eq!(address, new, "{name}");
                assert_ne!(address, old, "{name}");
                with_two += 1;
            }
        }
        assert!(with_two > 20, "{with_two}");
    }
}
