//! Domains of extended reliable connections, and their shared receive queues. All of a domain is in
//! one process.
#![expect(unsafe_code, reason = "the C interface")]

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use doorbell_seam::provider::Xrc;
use doorbell_soft::{SoftDevice, SoftSrq, SoftXrcd};
use libc::c_int;

use crate::abi::{ibv_context, ibv_cq};
use crate::abi_context::ibv_srq_init_attr_ex;
use crate::abi_ext::{ibv_xrcd, ibv_xrcd_init_attr};
use crate::border::{
    ABSENT, Errno, INVALID, Noun, Object, code, given, lock, object, pointer, take,
};
use crate::context::context;
use crate::cq::cq_at;
use crate::per_process::PerProcess;
use crate::queue::last;

/// An XRC domain, as one `ibv_open_xrcd` gave it. Queues and queue pairs of it hold a clone.
pub(crate) struct Xrcd {
    pub(crate) domain: Arc<SoftXrcd>,
}

/// What the program holds.
struct Opened(Arc<Xrcd>);

impl Noun for Opened {
    type C = ibv_xrcd;
    const TAG: u64 = 0x6462_5f78_7263_0009;
}

/// The XRC domain at an address that the program gave.
///
/// # Safety
/// As for [`object`].
pub(crate) unsafe fn xrcd_at(at: *mut ibv_xrcd) -> Result<Arc<Xrcd>, Errno> {
    // SAFETY: as the caller says.
    Ok(unsafe { object::<Opened>(at) }?.own.0.clone())
}

/// A file, by device and inode.
type File = (u64, u64);

/// The domains that have a file, which further calls with that file open again.
static OF_FILES: PerProcess<Mutex<HashMap<File, Weak<SoftXrcd>>>> = PerProcess::new();

fn file_of(fd: c_int) -> Result<File, Errno> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for the answer.
    if unsafe { libc::fstat(fd, found.as_mut_ptr()) } != 0 {
        return Err(last());
    }
    // SAFETY: the call has filled it.
    let found = unsafe { found.assume_init() };
    Ok((found.st_dev, found.st_ino))
}

/// The domain of a file; `flags` are those of open(2).
fn open_file(device: &SoftDevice, fd: c_int, flags: c_int) -> Result<Arc<SoftXrcd>, Errno> {
    let file = file_of(fd)?;
    let mut all = lock(OF_FILES.get_or_make(|| Ok(Mutex::default()))?);
    all.retain(|_, domain| domain.strong_count() > 0);
    match all.get(&file).and_then(Weak::upgrade) {
        Some(_) if flags & libc::O_EXCL != 0 => Err(INVALID),
        Some(known) => Ok(known),
        None if flags & libc::O_CREAT == 0 => Err(Errno(libc::EAGAIN)),
        None => {
            let made = Arc::new(device.open_xrcd()?);
            all.insert(file, Arc::downgrade(&made));
            Ok(made)
        }
    }
}

/// `open_xrcd` of a context.
pub(crate) unsafe extern "C" fn open_xrcd(
    at: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    /// `IBV_XRCD_INIT_ATTR_FD` and `IBV_XRCD_INIT_ATTR_OFLAGS`.
    const BOTH: u32 = 3;
    pointer(|| {
        // SAFETY: the program's context and attributes.
        let (device, attr) = unsafe { (context(at)?.own.device(), given(attr)?) };
        if attr.comp_mask != BOTH {
            return Err(if attr.comp_mask & !BOTH != 0 { ABSENT } else { INVALID });
        }
        let domain = match attr.fd {
            -1 => Arc::new(device.open_xrcd()?),
            fd => open_file(device, fd, attr.oflags)?,
        };
        Ok(open(at, domain))
    })
}

/// Gives a domain to the program.
pub(crate) fn open(context: *mut ibv_context, domain: Arc<SoftXrcd>) -> *mut ibv_xrcd {
    Object::give(ibv_xrcd { context }, Opened(Arc::new(Xrcd { domain })))
}

/// `close_xrcd` of a context.
pub(crate) unsafe extern "C" fn close_xrcd(at: *mut ibv_xrcd) -> c_int {
    code(|| {
        // SAFETY: the program's domain, which it no longer uses.
        unsafe {
            if Arc::strong_count(&object::<Opened>(at)?.own.0) > 1 {
                return Err(Errno(libc::EBUSY));
            }
            take::<Opened>(at).map(drop)
        }
    })
}

/// What a shared receive queue of an XRC domain has beside others.
pub(crate) struct XrcPart {
    xrcd: Arc<Xrcd>,
    /// The address of the completion queue.
    cq: usize,
}

impl XrcPart {
    /// What the attributes name.
    ///
    /// # Safety
    /// It is the program's.
    pub(crate) unsafe fn of(attr: &ibv_srq_init_attr_ex) -> Result<XrcPart, Errno> {
        // SAFETY: as the caller says.
        unsafe {
            let xrcd = xrcd_at(attr.xrcd)?;
            cq_at(attr.cq)?.own.users.fetch_add(1, Ordering::SeqCst);
            Ok(XrcPart { xrcd, cq: attr.cq as usize })
        }
    }

    /// The queue.
    ///
    /// # Safety
    /// The completion queue is alive.
    pub(crate) unsafe fn create(&self, pd: &SoftDevice, depth: u32) -> Result<SoftSrq, Errno> {
        // SAFETY: as the caller says.
        let cq = unsafe { cq_at(self.cq as *mut ibv_cq) }?;
        Ok(pd.create_xrc_srq(&self.xrcd.domain, &cq.own.cq, depth)?)
    }
}

impl Drop for XrcPart {
    fn drop(&mut self) {
        // SAFETY: a completion queue with users is not destroyed.
        if let Ok(cq) = unsafe { cq_at(self.cq as *mut ibv_cq) } {
            cq.own.users.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_one_domain_as_long_as_it_is_open() {
        use std::os::fd::AsRawFd;
        let device = SoftDevice::open().unwrap();
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let open = |flags| open_file(&device, file.as_raw_fd(), flags);
        assert_eq!(open(0).err(), Some(Errno(libc::EAGAIN)));
        let first = open(libc::O_CREAT).unwrap();
        let second = open(0).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(open(libc::O_EXCL).err(), Some(INVALID));
        drop((first, second));
        assert_eq!(open(0).err(), Some(Errno(libc::EAGAIN)));
    }

    #[test]
    fn a_domain_stays_while_a_queue_is_in_it() {
        use crate::abi::ibv_srq_attr;
        use crate::cq::{ibv_create_cq, ibv_destroy_cq};
        use crate::memory::ibv_alloc_pd;
        use crate::srq::{create_srq_ex, get_srq_num, ibv_destroy_srq};
        use std::ptr::null_mut;
        // SAFETY: our own calls, with what they gave.
        unsafe {
            let list = crate::device::ibv_get_device_list(null_mut());
            let context = crate::open::ibv_open_device(*list);
            let mut attr = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
            let xrcd = open_xrcd(context, &raw mut attr);
            let cq = ibv_create_cq(context, 10, null_mut(), null_mut(), 0);
            let mut init = ibv_srq_init_attr_ex {
                srq_context: null_mut(),
                attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
                comp_mask: 15,
                srq_type: 1,
                pd: ibv_alloc_pd(context),
                xrcd,
                cq,
                tm_cap: [0; 2],
            };
            let srq = create_srq_ex(context, &raw mut init);
            let mut number = 0;
            assert_eq!(get_srq_num(srq, &raw mut number), 0);
            assert_ne!(number, 0);
            assert_eq!((close_xrcd(xrcd), ibv_destroy_cq(cq)), (libc::EBUSY, libc::EBUSY));
            assert_eq!(ibv_destroy_srq(srq), 0);
            assert_eq!((close_xrcd(xrcd), ibv_destroy_cq(cq)), (0, 0));
            // A queue of no domain has no number.
            (init.comp_mask, init.srq_type) = (3, 0);
            let plain = create_srq_ex(context, &raw mut init);
            assert_eq!(get_srq_num(plain, &raw mut number), libc::EINVAL);
            assert_eq!(ibv_destroy_srq(plain), 0);
        }
    }
}
