//! [`Verbs`]: an open device of rdma-core, with a protection domain.
#![expect(unsafe_code, reason = "the device is opened and asked through libibverbs and librdmacm")]

use core::ffi::{CStr, c_int};
use core::net::{IpAddr, Ipv6Addr};
use core::ptr::NonNull;
use core::slice;

use crate::rdma_core::*;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::caps;
use super::parent::{self, Base, VerbsTd};
use super::rdma_core;
use super::shim::{errno, errno_text, from_c, refused};
use super::wake::never_block;
use super::xrc::{DefaultXrcd, VerbsXrcd};
use crate::error::{Code, SetupError};
use crate::provider::Caps;

/// The entries of a port's GID table that are read. Addresses of an interface come first.
const GIDS_READ: c_int = 16;

/// An open RDMA device of rdma-core. A clone is another handle on it.
///
/// Regions and queues made through a handle or its clones can be used together.
#[derive(Clone)]
pub struct Verbs(Arc<Device>);

/// The driver's functions for the hot path, looked up once.
#[derive(Clone, Copy)]
pub(super) struct Ops {
    pub(super) poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub(super) post_send: PostSend,
    pub(super) post_recv:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub(super) post_srq_recv:
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
}

pub(super) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// The device behind all its handles and objects.
pub(super) struct Device {
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    ops: Ops,
    caps: Caps,
    /// The descriptor of events does not block.
    events_ready: bool,
    default_xrcd: DefaultXrcd,
    /// The device as it was opened, if this is one of its further domains.
    root: Option<Arc<Device>>,
    /// For a parent domain: the objects that must be dropped after it.
    parent: Option<(Arc<Device>, Option<VerbsTd>)>,
}

// SAFETY: the calls of libibverbs on a context and a protection domain may be made from any
// thread at the same time (its man pages call the library thread-safe); the rest is plain data.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Verbs {
    /// Loads libibverbs and librdmacm, which the first use of a device does otherwise. The program
    /// itself starts without them.
    ///
    /// # Errors
    /// `NoDevice` if they are missing or too old, with the packages to install.
    pub fn load() -> Result<(), SetupError> {
        rdma_core::load("use RDMA devices")
    }

    /// The names of the RDMA devices of this machine. Empty if there are none, no driver, or no
    /// libraries ([`Verbs::load`]).
    pub fn devices() -> Vec<String> {
        if Verbs::load().is_err() {
            return Vec::new();
        }
        Contexts::get().map(|contexts| contexts.names()).unwrap_or_default()
    }

    /// Opens the device of that name (`rxe0`, `mlx5_0` …) and makes a protection domain on it.
    ///
    /// # Errors
    /// `NoDevice` for an unknown name, with the known ones, and as for [`Verbs::load`]; otherwise
    /// the driver's error.
    pub fn open(name: &str) -> Result<Verbs, SetupError> {
        let asked = format!("open the RDMA device {name}");
        rdma_core::load(&asked)?;
        let contexts = Contexts::get().map_err(|errno| no_devices(&asked, errno))?;
        let Some(context) = contexts.named(name) else {
            let names = contexts.names();
            if names.is_empty() {
                return Err(no_devices(&asked, libc::ENODEV));
            }
            let answer = "this machine has no device of that name";
            return Err(SetupError::new(Code::NoDevice, asked, answer)
                .cure(format!("use one of: {}", names.join(", "))));
        };
        Device::open(context, name, &asked).map(|device| Verbs(Arc::new(device)))
    }

    /// The device's context, which is librdmacm's: valid for the life of the process.
    pub fn context(&self) -> *mut ibv_context {
        self.0.context.as_ptr()
    }

    /// The protection domain of this handle and its clones, valid while one of them lives.
    pub fn pd(&self) -> *mut ibv_pd {
        self.0.pd.as_ptr()
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.0.caps.device
    }

    /// The IP addresses of the device, read from its first GIDs. Empty on devices whose GIDs are no
    /// addresses (InfiniBand, iWARP).
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut found = Vec::new();
        for port in 1..=self.0.caps.ports {
            for index in 0..GIDS_READ {
                let mut gid = ibv_gid { raw: [0; 16] };
                // SAFETY: the context is open; the call fills the GID, whose bytes are valid
                // either way.
                let (answer, gid) =
                    unsafe { (ibv_query_gid(self.context(), port, index, &raw mut gid), gid.raw) };
                let addr = Ipv6Addr::from(gid).to_canonical();
                let usable = match addr {
                    IpAddr::V4(v4) => !v4.is_unspecified(),
                    IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_unicast_link_local(),
                };
                if answer == 0 && usable && !found.contains(&addr) {
                    found.push(addr);
                }
            }
        }
        found
    }

    /// The name of the device behind a context.
    ///
    /// # Safety
    /// `context` is a context that librdmacm or libibverbs has opened and not closed.
    pub unsafe fn name_of(context: *mut ibv_context) -> String {
        // SAFETY: the caller vouches for the context; the name lies in the device it points to.
        let name = unsafe { CStr::from_ptr(ibv_get_device_name((*context).device)) };
        name.to_string_lossy().into_owned()
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.0
    }

    /// The same device with a new protection domain.
    pub(super) fn new_pd(&self) -> Result<Verbs, SetupError> {
        let root = self.0.root();
        // SAFETY: the context is open.
        let pd = unsafe { ibv_alloc_pd(root.context()) };
        let asked = format!("a protection domain on {}", self.name());
        let pd = NonNull::new(pd).ok_or_else(|| refused(asked, errno()))?;
        Ok(Verbs(Arc::new(root.with_pd(pd, None))))
    }

    /// The same protection domain within a parent domain.
    pub(super) fn new_parent(&self, td: Option<&VerbsTd>) -> Result<Verbs, SetupError> {
        let under = self.0.parent.as_ref().map_or(&self.0, |(under, _)| under);
        let base = Base { context: under.context, pd: under.pd, name: self.name() };
        let pd = parent::alloc(base, td)?;
        Ok(Verbs(Arc::new(self.0.root().with_pd(pd, Some((under.clone(), td.cloned()))))))
    }

    /// Handles on this protection domain and objects that belong to it. The completion queues and
    /// the other protection domains of a device belong to its first domain.
    pub(super) fn users(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// The error of a machine without devices, with what to do.
fn no_devices(asked: &str, errno: i32) -> SetupError {
    let (answer, cure) = match errno {
        libc::ENODEV | libc::ENOSYS => (
            String::from("this machine has no RDMA device"),
            "load the NIC's driver; or use the device soft0, which needs none; or make a soft-RoCE \
             device: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE",
        ),
        libc::ENOENT => (
            format!("/dev/infiniband/rdma_cm: {}", errno_text(errno)),
            "load the connection manager: modprobe rdma_ucm",
        ),
        libc::EACCES | libc::EPERM => {
            (errno_text(errno), "allow this user to read and write /dev/infiniband/*")
        }
        _ => (errno_text(errno), "ask `rdma link` and `ibv_devinfo` for the state of the devices"),
    };
    let code = if errno == libc::ENOENT { Code::NoDevice } else { Code::from_errno(errno) };
    SetupError::new(code, asked, answer).cure(cure)
}

/// The contexts that librdmacm has opened: one per device, for the life of the process (G-4).
struct Contexts {
    list: NonNull<*mut ibv_context>,
    count: usize,
}

impl Contexts {
    /// Asks librdmacm, which is loaded; an errno if it has none.
    fn get() -> Result<Contexts, i32> {
        let mut count = 0;
        // SAFETY: the call writes a count and gives back an array of that length or NULL.
        let list = unsafe { rdma_get_devices(&raw mut count) };
        match NonNull::new(list) {
            Some(list) => Ok(Contexts { list, count: from_c(count) as usize }),
            None => Err(errno()),
        }
    }

    fn all(&self) -> &[*mut ibv_context] {
        // SAFETY: `get` was given an array of that many contexts, and only `drop` frees it.
        unsafe { slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }

    fn names(&self) -> Vec<String> {
        // SAFETY: librdmacm keeps each of its contexts open while the process lives.
        self.all().iter().map(|&context| unsafe { Verbs::name_of(context) }).collect()
    }

    fn named(&self, name: &str) -> Option<NonNull<ibv_context>> {
        let index = self.names().iter().position(|found| found == name)?;
        NonNull::new(self.all()[index])
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        // SAFETY: the array came from rdma_get_devices and is freed once; the contexts in it
        // stay open.
        unsafe { rdma_free_devices(self.list.as_ptr()) }
    }
}

impl Device {
    fn open(context: NonNull<ibv_context>, name: &str, asked: &str) -> Result<Device, SetupError> {
        let ops = Ops::of(context)
            .ok_or_else(|| refused(asked, libc::EOPNOTSUPP).cure("update rdma-core"))?;
        // SAFETY: the context is open.
        let pd = unsafe { ibv_alloc_pd(context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| refused(asked, errno()))?;
        // SAFETY: the context is open; the descriptor never changes.
        let events_ready = never_block(unsafe { (*context.as_ptr()).async_fd });
        let mut device = Device {
            context,
            pd,
            ops,
            caps: Caps::named(name),
            events_ready,
            default_xrcd: DefaultXrcd::default(),
            root: None,
            parent: None,
        };
        device.caps = caps::find(context, pd, name).map_err(|errno| refused(asked, errno))?;
        Ok(device)
    }

    /// The device as it was opened. Objects that belong to no domain belong to it.
    pub(super) fn root(self: &Arc<Device>) -> &Arc<Device> {
        self.root.as_ref().unwrap_or(self)
    }

    /// The parent domain on which extended completion queues are made, or else the device.
    pub(super) fn cq_home(self: &Arc<Device>) -> &Arc<Device> {
        if self.parent.is_some() { self } else { self.root() }
    }

    /// The domain, if it is a parent domain.
    pub(super) fn parent_domain(&self) -> Option<NonNull<ibv_pd>> {
        self.parent.is_some().then_some(self.pd)
    }

    /// This device with another domain.
    fn with_pd(
        self: &Arc<Device>,
        pd: NonNull<ibv_pd>,
        parent: Option<(Arc<Device>, Option<VerbsTd>)>,
    ) -> Device {
        Device {
            pd,
            context: self.context,
            ops: self.ops,
            caps: self.caps.clone(),
            events_ready: self.events_ready,
            default_xrcd: DefaultXrcd::default(),
            root: Some(self.clone()),
            parent,
        }
    }

    pub(super) fn events_ready(&self) -> bool {
        self.events_ready
    }

    pub(super) fn async_fd(&self) -> i32 {
        // SAFETY: as in `open`.
        unsafe { (*self.context()).async_fd }
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// The same, which is never null.
    pub(super) fn context_ref(&self) -> NonNull<ibv_context> {
        self.context
    }

    pub(super) fn open_xrcd(&self) -> Result<VerbsXrcd, SetupError> {
        VerbsXrcd::open(self.context, &self.caps)
    }

    /// The default XRC domain.
    pub(super) fn default_xrcd(self: &Arc<Device>) -> Result<VerbsXrcd, SetupError> {
        let root = self.root();
        root.default_xrcd.get(|| root.open_xrcd())
    }

    pub(super) fn new_td(&self) -> Result<VerbsTd, SetupError> {
        VerbsTd::new(self.context, &self.caps.device)
    }

    pub(super) fn pd(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }

    pub(super) fn ops(&self) -> Ops {
        self.ops
    }

    pub(super) fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Refuses a depth of 0 or over the device's limit.
    pub(super) fn check_depth(&self, what: &str, depth: u32, max: u32) -> Result<(), SetupError> {
        if depth == 0 || depth > max {
            return Err(SetupError::new(
                Code::Invalid,
                format!("a {what} of {depth}"),
                format!("{} takes 1 to {max}", self.caps.device),
            ));
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every object made on the domain held this device and is dropped. If the driver
        // could not destroy one of them, the call fails with EBUSY and the domain stays.
        unsafe { ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

impl Ops {
    /// The driver's functions; `None` if it lacks one.
    fn of(context: NonNull<ibv_context>) -> Option<Ops> {
        // SAFETY: the context is open, and its table is filled before it is handed out.
        let ops = unsafe { &(*context.as_ptr()).ops };
        Some(Ops {
            poll_cq: ops.poll_cq?,
            post_send: ops.post_send?,
            post_recv: ops.post_recv?,
            post_srq_recv: ops.post_srq_recv?,
        })
    }
}

impl core::fmt::Debug for Verbs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Verbs").field(&self.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::string::ToString;

    #[test]
    fn an_unknown_device_is_refused_with_a_cure() {
        let error = Verbs::open("no-such-device").expect_err("no device has that name");
        assert!(error.to_string().starts_with("open the RDMA device no-such-device: "));
        assert!(error.to_string().contains("; "), "no cure in: {error}");
    }

    #[test]
    fn a_machine_without_rdma_is_told_so() {
        for errno in [libc::ENODEV, libc::ENOENT, libc::EACCES, libc::EIO] {
            let error = no_devices("open x", errno);
            assert!(error.to_string().contains("; "), "no cure for {errno}: {error}");
        }
        assert_eq!(no_devices("open x", libc::ENOENT).code(), Code::NoDevice);
    }
}
