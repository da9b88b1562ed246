//! Memory for the messages of workers.

use doorbell_alloc::{Ask, MapError, MapRequest, Mapping};
use doorbell_seam::provider::Provider;

/// Maps at least `bytes` bytes for messages on this device: in huge pages of 2 MiB, or the best
/// pages available. Where the device lends ([`Caps::lends`]), other processes may read the memory,
/// so that long messages are copied once; if such memory cannot be had, for lack of a descriptor or
/// on Linux before 5.1, it is private, and long messages are copied twice.
///
/// [`Runtime::add`](crate::Runtime::add) uses it for its workers.
///
/// # Errors
/// As for [`MapRequest::map`], not strict.
///
/// [`Caps::lends`]: doorbell_seam::provider::Caps::lends
pub fn message_memory<P: Provider>(nic: &P, bytes: usize) -> Result<Mapping, MapError> {
    let request = MapRequest::new(bytes).pages(Ask::Huge2M);
    if nic.caps().lends
        && let Ok(memory) = request.readable(true).map()
    {
        return Ok(memory);
    }
    request.map()
}
