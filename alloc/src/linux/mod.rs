//! Mappings made by Linux: the request, the limits it reads before, the memory it makes, and the
//! look at what the kernel really gave.

mod error;

mod request;

mod groups;
mod limits;
mod machine;
mod nodes;

mod memfd;

mod guard;
mod memory;

mod bind;
mod prefault;

mod smaps;

pub use bind::{Where, where_is};
pub use error::{MapError, MemfdError};
pub use machine::Machine;
pub use request::MapRequest;
