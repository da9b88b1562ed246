//! Functions that need the real libraries: sockets over librdmacm, and functions that libibverbs
//! keeps for other parts of rdma-core. They need no device, and callers get the real ones. They are
//! here for programs that look for them by a handle, which is this library's.
#![expect(unsafe_code, reason = "symbols with the names of C libraries")]

use std::ffi::CStr;
use std::ptr;

use crate::border::{ABSENT, set_errno};
use crate::loader::find_real;
use crate::next::{Decision, Next, decided};

const VERBS: &CStr = c"libibverbs.so.1";
const MANAGER: &CStr = c"librdmacm.so.1";

/// Leads on to the function at that place: to the one behind this library, or else to that of the
/// real library, which is loaded now. Without that the caller gets an error.
extern "C" fn decide<const PLACE: usize>() -> Decision {
    let (library, next) = &FUNCTIONS[PLACE];
    let found = match next.address() {
        found if found.is_null() => next.or_found(|name| find_real(library, name)),
        found => found,
    };
    if found.is_null() {
        set_errno(ABSENT);
        return Decision::answer(ptr::without_provenance_mut(usize::MAX));
    }
    Decision::go_on(found)
}

/// A function of C for each name, and in `FUNCTIONS` where each leads to.
macro_rules! onward {
    ($($library:ident { $($name:ident)* })*) => {
        /// The places of the functions in `FUNCTIONS`.
        #[expect(non_camel_case_types, reason = "names of C")]
        enum Place { $($($name,)*)* }

        static FUNCTIONS: [(&CStr, Next); [$($(stringify!($name),)*)*].len()] = [$($({
            let name = concat!(stringify!($name), "\0").as_bytes();
            match CStr::from_bytes_with_nul(name) {
                Ok(name) => ($library, Next::new(name)),
                Err(_) => panic!("a name with a zero"),
            }
        },)*)*];

        $($(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                decided!(decide::<{ Place::$name as usize }>)
            }
        )*)*
    };
}

onward! {
    VERBS {
        ibv_copy_ah_attr_from_kern
        ibv_copy_path_rec_from_kern
        ibv_copy_path_rec_to_kern
        ibv_copy_qp_attr_from_kern
    }
    MANAGER {
        raccept rbind rclose rconnect repoll_create repoll_ctl repoll_wait rfcntl rgetpeername
        rgetsockname rgetsockopt riomap riounmap riowrite rlisten rpoll rread rreadv rrecv
        rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite
        rwritev
    }
}
