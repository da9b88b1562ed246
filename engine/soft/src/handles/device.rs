//! The device, open.

use doorbell_alloc::Mapping;
use spin::Mutex;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use crate::device::host::Host;
use crate::device::nic::Nic;
use crate::device::pd::Pd;
use crate::error::{Code, SetupError};
use crate::ext::xrc::DefaultXrcd;
use crate::handles::poller::{CqPlace, SoftCq};
use crate::model::cq::{CompletionQueue, Stamps};
use crate::model::table::REGIONS;
use crate::provider::wake::Notifier;
use crate::provider::{Gid, Sharing};
use crate::steps::domain::Domain;

/// The soft device, open.
#[derive(Clone)]
pub struct Soft {
    pub(crate) nic: Arc<Nic>,
    pub(crate) shared: Arc<Domain>,
    pub(crate) pd: Pd,
    pub(crate) common_xrcd: Arc<Mutex<DefaultXrcd>>,
}

impl Soft {
    /// Opens the device on that system. Its table of regions lies in `directory`, which peers may
    /// read and nobody but this device may write; it has [`crate::DIRECTORY_BYTES`], all zero.
    /// Without one, no peer reaches its memory but through its own polls.
    pub fn new(name: &str, host: Host, directory: Option<Mapping>) -> Soft {
        let nic = Arc::new(Nic::new(name, host, directory));
        let shared = Arc::new(Domain::new(&nic, Sharing::Shared));
        Soft { nic, shared, pd: Pd::default(), common_xrcd: Arc::default() }
    }

    /// A completion queue of a domain.
    pub(crate) fn cq_in(
        &self,
        domain: &Arc<Domain>,
        (depth, notifier): (u32, Option<Notifier>),
        stamps: Option<Stamps>,
    ) -> SoftCq {
        let index = domain.add_cq(CompletionQueue::new(depth, notifier.clone(), stamps));
        let place = Arc::new(CqPlace { nic: self.nic.clone(), domain: domain.clone(), index });
        SoftCq { domain: domain.clone(), index, notifier, place }
    }

    /// A number for a queue pair.
    pub(crate) fn take_number(&self) -> Result<u32, SetupError> {
        self.nic.take_number().ok_or_else(|| {
            SetupError::new(Code::NoMemory, "a queue pair", "all numbers are in use")
                .cure("close connections first")
        })
    }

    /// The GID by which address handles lead here; all zero if none does.
    pub fn gid(&self) -> Gid {
        self.nic.gid
    }
}

pub(crate) fn table_full(asked: String) -> SetupError {
    let answer = format!("all {} entries of the region table are taken", REGIONS);
    SetupError::new(Code::NoMemory, asked, answer).cure("register fewer, larger regions")
}

pub(crate) fn check_depth(what: &str, depth: u32, max: u32) -> Result<(), SetupError> {
    if depth == 0 || depth > max {
        return Err(SetupError::new(
            Code::Invalid,
            format!("a {what} of {depth}"),
            format!("this device takes 1 to {max}"),
        ));
    }
    Ok(())
}
