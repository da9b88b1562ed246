//! The XRC domain of all ids.

use std::sync::{Arc, OnceLock};

use doorbell_seam::provider::Xrc;

use crate::abi_ext::ibv_xrcd;
use crate::border::Errno;
use crate::context::device;
use crate::xrc;

use super::id::home;

/// The XRC domain of all ids, made once and kept, as in librdmacm.
pub(crate) fn home_xrcd() -> Result<*mut ibv_xrcd, Errno> {
    static HOME: OnceLock<usize> = OnceLock::new();
    if let Some(at) = HOME.get() {
        return Ok(*at as *mut ibv_xrcd);
    }
    let domain = Arc::new(device()?.device.default_xrcd()?);
    let opened = xrc::open(home()?.context(), domain);
    Ok(*HOME.get_or_init(|| opened as usize) as *mut ibv_xrcd)
}
