//! Memory from the allocator, for devices that can reach any memory.
#![expect(unsafe_code, reason = "allocates by hand: pages of their own")]

use core::ptr::NonNull;

use doorbell_alloc::{Mapping, Pages};
use std_alloc::alloc::{Layout, alloc_zeroed, dealloc};
use std_alloc::format;

use crate::error::{Code, SetupError};

const PAGE: usize = 4096;

fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len, PAGE).ok()
}

/// Frees what [`zeroed`] allocated.
///
/// # Safety
/// `ptr` and `len` are those of an allocation with [`layout`].
unsafe fn free(_owner: *mut (), ptr: NonNull<u8>, len: usize) {
    if let Some(layout) = layout(len) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(ptr.as_ptr(), layout) };
    }
}

/// At least `len` bytes, zeroed, in whole pages that hold nothing else.
///
/// # Errors
/// `NoMemory`.
pub fn zeroed(len: usize) -> Result<Mapping, SetupError> {
    let none = || SetupError::new(Code::NoMemory, format!("{len} bytes"), "out of memory");
    let len = len.max(1).checked_next_multiple_of(PAGE).ok_or_else(none)?;
    let layout = layout(len).ok_or_else(none)?;
    // SAFETY: the layout is not empty.
    let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(none)?;
    // SAFETY: fresh, zeroed memory that nobody else knows of; `free` undoes the allocation.
    Ok(unsafe { Mapping::from_raw_parts(ptr, len, Pages::Plain, core::ptr::null_mut(), free) })
}
