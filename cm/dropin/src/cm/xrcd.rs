//! The XRC domain of all ids.

use std::sync::Arc;

use doorbell_seam::provider::Xrc;

use crate::abi_ext::ibv_xrcd;
use crate::border::Errno;
use crate::context::device;
use crate::per_process::PerProcess;
use crate::xrc;

use super::id::home;

/// The XRC domain of all ids, made once and kept, as in librdmacm.
pub(crate) fn home_xrcd() -> Result<*mut ibv_xrcd, Errno> {
    static HOME: PerProcess<usize> = PerProcess::new();
    let at = HOME.get_or_make(|| {
        let domain = Arc::new(device()?.device.default_xrcd()?);
        Ok(xrc::open(home()?.context(), domain) as usize)
    })?;
    Ok(*at as *mut ibv_xrcd)
}
