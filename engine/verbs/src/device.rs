//! [`Verbs`]: an open device of rdma-core, with a protection domain.

use core::net::{IpAddr, Ipv6Addr};

use crate::rdma_core::{ibv_context, ibv_pd};
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::caps;
use super::handles::{Context, Devices, Ops};
use super::objects::{self, Pd};
use super::parent::{self, VerbsTd};
use super::rdma_core;
use super::shim::{from_c, refused};
use super::sys::{errno_text, never_block};
use super::xrc::{DefaultXrcd, VerbsXrcd};
use crate::error::{Code, SetupError};
use crate::provider::{Caps, Gid};

/// An open RDMA device of rdma-core. A clone is another handle on it.
///
/// Regions and queues made through a handle or its clones can be used together.
#[derive(Clone)]
pub struct Verbs(Arc<Device>);

/// The device behind all its handles and objects.
pub(super) struct Device {
    context: Context,
    pd: Pd,
    ops: Ops,
    caps: Caps,
    /// The descriptor of events does not block.
    events_ready: bool,
    default_xrcd: DefaultXrcd,
    /// The device as it was opened, if this is one of its further domains.
    root: Option<Arc<Device>>,
    /// For a parent domain: the device with the domain that it is over.
    parent: Option<Arc<Device>>,
}

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
        Devices::list().map(|devices| devices.names()).unwrap_or_default()
    }

    /// Opens the device of that name (`rxe0`, `mlx5_0` …) and makes a protection domain on it.
    ///
    /// # Errors
    /// `NoDevice` for an unknown name, with the known ones, and as for [`Verbs::load`]; otherwise
    /// the driver's error.
    pub fn open(name: &str) -> Result<Verbs, SetupError> {
        let asked = format!("open the RDMA device {name}");
        rdma_core::load(&asked)?;
        let devices = Devices::list().map_err(|errno| no_devices(&asked, errno))?;
        let names = devices.names();
        let known = names.iter().position(|known| known == name);
        let Some(context) = known.and_then(|index| devices.keep(index)) else {
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

    /// The IP addresses of the device, read from its GIDs. Empty on devices whose GIDs are no
    /// addresses (InfiniBand, iWARP).
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut found = Vec::new();
        for addr in self.each_address() {
            if !found.contains(&addr) {
                found.push(addr);
            }
        }
        found
    }

    /// The same one by one, some more than once. It asks the device for each.
    pub(super) fn each_address(&self) -> impl Iterator<Item = IpAddr> {
        let context = self.0.context;
        (1..=self.0.caps.ports).flat_map(move |port| {
            let count = context.query_port(port).map_or(0, |attr| from_c(attr.gid_tbl_len));
            addresses_in(count, move |index| context.query_gid(port, index).ok())
        })
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.0
    }

    /// The same device with a new protection domain.
    pub(super) fn new_pd(&self) -> Result<Verbs, SetupError> {
        let root = self.0.root();
        let asked = || format!("a protection domain on {}", self.name());
        let pd = objects::alloc_pd(root.context).map_err(|errno| refused(asked(), errno))?;
        Ok(Verbs(Arc::new(root.with_pd(Arc::new(pd), None))))
    }

    /// The same protection domain within a parent domain.
    pub(super) fn new_parent(&self, td: Option<&VerbsTd>) -> Result<Verbs, SetupError> {
        let under = self.0.parent.as_ref().unwrap_or(&self.0);
        let pd = parent::alloc(&under.pd, td, self.name())?;
        Ok(Verbs(Arc::new(self.0.root().with_pd(pd, Some(under.clone())))))
    }

    /// Handles on this protection domain and objects that belong to it. The completion queues and
    /// the other protection domains of a device belong to its first domain.
    pub(super) fn users(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// The addresses in a table of `count` GIDs. Other GIDs may lie between them, and so may entries
/// that are empty or cannot be read.
fn addresses_in(count: u32, read: impl Fn(u32) -> Option<Gid>) -> impl Iterator<Item = IpAddr> {
    (0..count).filter_map(read).map(|gid| Ipv6Addr::from(gid.0).to_canonical()).filter(|addr| {
        match addr {
            IpAddr::V4(v4) => !v4.is_unspecified(),
            IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_unicast_link_local(),
        }
    })
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

impl Device {
    fn open(context: Context, name: &str, asked: &str) -> Result<Device, SetupError> {
        let failed = |errno| refused(asked, errno);
        let ops = context.ops();
        let ops = ops.ok_or_else(|| failed(libc::EOPNOTSUPP).cure("update rdma-core"))?;
        let pd = objects::alloc_pd(context).map(Arc::new).map_err(failed)?;
        Ok(Device {
            caps: caps::find(&pd, name).map_err(failed)?,
            context,
            pd,
            ops,
            events_ready: never_block(context.async_fd()),
            default_xrcd: DefaultXrcd::default(),
            root: None,
            parent: None,
        })
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
    pub(super) fn parent_domain(&self) -> Option<&Pd> {
        self.parent.is_some().then_some(&self.pd)
    }

    /// This device with another domain.
    fn with_pd(self: &Arc<Device>, pd: Pd, parent: Option<Arc<Device>>) -> Device {
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

    pub(super) fn context(&self) -> Context {
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

    pub(super) fn pd(&self) -> &Pd {
        &self.pd
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
    fn an_address_behind_many_other_gids_is_found() {
        let addr = IpAddr::from([10, 1, 2, 3]);
        let table = |index| match index {
            0..8 => Some(Gid([0; 16])),
            20 => None,
            30 => Some(Gid(core::net::Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped().octets())),
            _ => Some(Gid(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, index as u16).octets())),
        };
        assert_eq!(addresses_in(40, table).collect::<Vec<_>>(), [addr]);
        assert_eq!(addresses_in(30, table).count(), 0);
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
