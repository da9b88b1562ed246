//! Registered memory.
#![expect(unsafe_code, reason = "memory is registered with a device by address")]

use core::mem::{self, ManuallyDrop};
use core::ptr::{self, NonNull};

use crate::rdma_core::{
    ibv_dereg_mr, ibv_mr, ibv_reg_mr, ibv_rereg_mr, ibv_rereg_mr_err_code as Answer,
};
use doorbell_alloc::Mapping;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use super::access::access_flags;
use super::device::Device;
use super::shim::refused;
use super::sys::{errno, lock_limit};
use crate::error::{Code, SetupError};
use crate::provider::{Access, Left, Region, Rereg, ReregFailed, Reregistered};

/// Memory registered with an RDMA device.
pub struct VerbsRegion {
    mr: NonNull<ibv_mr>,
    memory: ManuallyDrop<Mapping>,
    lkey: u32,
    rkey: u32,
    access: Access,
    // Its protection domain lives as long as it.
    device: Arc<Device>,
}

// SAFETY: deregistering may be done on any thread; the mapping may go to any thread.
unsafe impl Send for VerbsRegion {}
// SAFETY: a shared reference gives out plain values only.
unsafe impl Sync for VerbsRegion {}

impl VerbsRegion {
    pub(super) fn new(
        device: &Arc<Device>,
        memory: Mapping,
        access: Access,
    ) -> Result<VerbsRegion, SetupError> {
        let asked = || {
            let (name, length) = (&device.caps().device, memory.len());
            format!("register {length} bytes with {name} for {access:?}")
        };
        if !access.is_consistent() {
            let answer = "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE (MR-1)";
            return Err(SetupError::new(Code::Invalid, asked(), answer));
        }
        // SAFETY: the mapping is valid for its length; it is owned here and outlives the
        // registration. The domain lives as long as the device.
        let mr = unsafe {
            let start = memory.as_ptr().cast();
            ibv_reg_mr(device.pd().as_ptr(), start, memory.len(), access_flags(access))
        };
        let Some(mr) = NonNull::new(mr) else {
            let errno = errno();
            let error = refused(asked(), errno);
            return Err(if errno == libc::ENOMEM { error.cure(lock_cure()) } else { error });
        };
        // SAFETY: the call has filled both keys.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        let memory = ManuallyDrop::new(memory);
        Ok(VerbsRegion { mr, memory, lkey, rkey, access, device: device.clone() })
    }

    /// Changes it (`ibv_rereg_mr`). The answer of that call tells what has become of the region.
    pub(super) fn change(
        mut self,
        device: &Arc<Device>,
        change: Rereg,
    ) -> Reregistered<VerbsRegion> {
        let (flags, name) = (change.flags(), &device.caps().device);
        if let Some(refusal) = change.refusal(device.context() == self.device.context()) {
            return Err(change.refused(refusal, self));
        }
        let offered = device.caps().rereg;
        if !offered.contains(flags) {
            let answer = format!("{name} can change of a region: {offered:?}");
            let cause = SetupError::new(Code::NotSupported, change.asked(), answer)
                .cure("drop it, and register the memory anew");
            return Err(change.refused(cause, self));
        }
        let (start, length) = match &change.memory {
            Some(memory) => (memory.as_ptr().cast(), memory.len()),
            None => (ptr::null_mut(), 0),
        };
        let access = change.access.map_or(0, access_flags);
        let (mr, pd, what) = (self.mr.as_ptr(), device.pd().as_ptr(), flags.bits().into());
        // SAFETY: the region and the domain are alive; the memory is valid for its length, owned
        // here, and outlives the registration.
        let answer = unsafe { ibv_rereg_mr(mr, what, pd, start, length, access) };
        let errno = errno();
        match answer {
            // DO_FORK_OLD: the new region is valid, and children do not get the old memory.
            0 | Answer::IBV_REREG_MR_ERR_DO_FORK_OLD => {
                // SAFETY: the call has filled both keys.
                (self.lkey, self.rkey) =
                    unsafe { ((*self.mr.as_ptr()).lkey, (*self.mr.as_ptr()).rkey) };
                self.access = change.access.unwrap_or(self.access);
                if change.pd {
                    self.device = device.clone();
                }
                let swap = |memory| mem::replace(&mut *self.memory, memory);
                let old = change.memory.map(swap);
                Ok((self, old))
            }
            Answer::IBV_REREG_MR_ERR_INPUT | Answer::IBV_REREG_MR_ERR_DONT_FORK_NEW => {
                let cause = refused(change.asked(), errno);
                Err(change.refused(cause, self))
            }
            _ => {
                let cause = refused(change.asked(), errno).cure("register the memory anew");
                let (left, memory) = self.end(change.memory);
                Err(ReregFailed::new(cause, Left::Memory(left), memory))
            }
        }
    }

    /// Ends the registration. Returns both memories if the device has let go of them.
    fn end(self, other: Option<Mapping>) -> (Option<Mapping>, Option<Mapping>) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the registration was made by `new` and ends once: `drop` does not come.
        let answer = unsafe { ibv_dereg_mr(this.mr.as_ptr()) };
        // SAFETY: both fields are taken once, for `this` is not dropped.
        let (memory, device) =
            unsafe { (ManuallyDrop::take(&mut this.memory), ptr::read(&raw const this.device)) };
        drop(device);
        if answer == 0 {
            return (Some(memory), other);
        }
        // A device that did not let go may still write there.
        mem::forget((memory, other));
        (None, None)
    }
}

/// How to lock more memory.
fn lock_cure() -> String {
    let Some(limit) = lock_limit() else {
        return String::from("free memory: locking it is not limited here");
    };
    format!(
        "this process may lock {limit} bytes in all (RLIMIT_MEMLOCK); raise it: ulimit -l \
         unlimited, or LimitMEMLOCK=infinity in a systemd unit, or run with CAP_IPC_LOCK"
    )
}

// SAFETY: the mapping is owned, stays at its address, and is unmapped only after the device has
// given it up.
unsafe impl Region for VerbsRegion {
    fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn lkey(&self) -> u32 {
        self.lkey
    }
    fn rkey(&self) -> u32 {
        self.rkey
    }
    fn access(&self) -> Access {
        self.access
    }
    fn handle(&self) -> u64 {
        self.mr.as_ptr() as u64
    }
}

impl Drop for VerbsRegion {
    fn drop(&mut self) {
        // SAFETY: the registration was made by `new` and ends once, here.
        let answer = unsafe { ibv_dereg_mr(self.mr.as_ptr()) };
        // A device that did not let go may still write: then the bytes stay mapped.
        if answer == 0 {
            // SAFETY: the device has given the memory up, and nothing uses the field after this.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cure_for_a_lock_limit_names_it() {
        let cure = lock_cure();
        assert!(cure.contains("RLIMIT_MEMLOCK") || cure.contains("not limited"), "{cure}");
    }
}
