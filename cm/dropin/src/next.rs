//! Functions of other libraries that stand behind ours of the same name. A function here decides
//! whether it answers itself or sends the caller on. It sends it on by a jump: the other function
//! then sees the caller's return address. The C library tells by it which library has called, and
//! so where to look for files.
#![expect(unsafe_code, reason = "functions are looked up by name")]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What a function decides: the value to return, or, if `next` is not NULL, the function to jump
/// to with the same arguments. C returns both words in registers.
#[repr(C)]
pub(crate) struct Decision {
    value: *mut c_void,
    next: *mut c_void,
}

impl Decision {
    pub(crate) fn answer(value: *mut c_void) -> Decision {
        Decision { value, next: ptr::null_mut() }
    }

    pub(crate) fn go_on(next: *mut c_void) -> Decision {
        Decision { value: ptr::null_mut(), next }
    }
}

/// The body of a function that calls `$decide` with its own arguments, and then does what it has
/// decided. `$decide` is an `extern "C"` function that returns a [`Decision`]. All registers that
/// hold arguments are kept, so `$decide` may have fewer parameters, or none. No function here takes
/// floating-point arguments.
#[cfg(target_arch = "x86_64")]
macro_rules! decided {
    ($decide:expr) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            // Seven words and the return address: the stack stays aligned to 16 bytes. A variable
            // number of arguments comes with a count in `al`.
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push r8",
            ".cfi_adjust_cfa_offset 8",
            "push r9",
            ".cfi_adjust_cfa_offset 8",
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            "call {decide}",
            "test rdx, rdx",
            "jz 2f",
            "mov r11, rdx",
            "pop rax",
            ".cfi_adjust_cfa_offset -8",
            "pop r9",
            ".cfi_adjust_cfa_offset -8",
            "pop r8",
            ".cfi_adjust_cfa_offset -8",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "jmp r11",
            "2:",
            ".cfi_adjust_cfa_offset 56",
            "add rsp, 56",
            ".cfi_adjust_cfa_offset -56",
            "ret",
            ".cfi_endproc",
            decide = sym $decide,
        )
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! decided {
    ($decide:expr) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            // `bti c`: the function may be called by pointer.
            "hint #34",
            "stp x29, x30, [sp, #-80]!",
            ".cfi_def_cfa_offset 80",
            ".cfi_offset x29, -80",
            ".cfi_offset x30, -72",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "bl {decide}",
            "cbz x1, 2f",
            // A jump through this register is taken for a call.
            "mov x16, x1",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            ".cfi_remember_state",
            ".cfi_restore x29",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "br x16",
            "2:",
            ".cfi_restore_state",
            "ldp x29, x30, [sp], #80",
            ".cfi_restore x29",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "ret",
            ".cfi_endproc",
            decide = sym $decide,
        )
    };
}
pub(crate) use decided;

/// The function of that name in the libraries behind this one.
pub(crate) struct Next {
    name: &'static CStr,
    known: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, known: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; NULL if there is none. Two threads may both look it up, and find the same.
    pub(crate) fn address(&self) -> *mut c_void {
        self.or_found(|name| {
            // SAFETY: a name that ends with a zero.
            unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
        })
    }

    /// The same, looked up in another way.
    pub(crate) fn or_found(&self, find: impl FnOnce(&CStr) -> *mut c_void) -> *mut c_void {
        // Relaxed: the address is all there is to know.
        let known = self.known.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = find(self.name);
        if found.is_null() {
            // The program has not asked for this name, so it must not read of it.
            // SAFETY: takes the text of the last error, if there is one.
            unsafe { libc::dlerror() };
        }
        self.known.store(found, Ordering::Relaxed);
        found
    }
}
