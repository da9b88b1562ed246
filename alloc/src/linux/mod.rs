//! Mappings made by Linux: the limits that are read first, the memory, and a look at what the
//! kernel really gave.

mod error;

mod machine;

mod nodes;

mod cgroup;
mod limits;

mod memfd;

mod guard;
mod memory;

mod bind;
mod prefault;

mod lock;
mod smaps;

mod request;

mod import;

mod view;

mod file;

pub use bind::{Where, where_is};
pub use error::{FileError, MapError, MemfdError};
pub use file::FileUse;
pub use machine::Machine;
pub use request::MapRequest;
pub use view::View;
