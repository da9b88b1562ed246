//! Mappings made by Linux: the request, the limits it reads before, the memory it makes, and the
//! look at what the kernel really gave.

mod error;

mod request;

mod limits;

mod memfd;

mod memory;

mod smaps;

pub use error::{MapError, MemfdError};
pub use request::MapRequest;
