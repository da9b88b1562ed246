//! [`View`]: memory of another process, to be read.

use std::fs::File;

use memmap2::{MmapOptions, MmapRaw};

use super::error::{MapError, MemfdError, SHORT_OF_MEMORY, system};
use super::import::require_seal;
use crate::arith::SizeError;

/// Memory of another process, mapped here to be read until this is dropped. Its owner may write it
/// at any time, so nobody has a reference to its bytes.
#[derive(Debug)]
pub struct View {
    map: MmapRaw,
    len: usize,
}

impl View {
    /// Maps the first `len` bytes of a memfd, with all their page tables. It is enough that `file`
    /// is open for reading.
    ///
    /// The memfd must be sealed against shrinking and be at least `len` bytes long, as for
    /// [`Mapping::from_memfd`](crate::Mapping::from_memfd), which also says what huge pages risk.
    ///
    /// # Errors
    /// As there.
    pub fn of_memfd(file: &File, len: usize) -> Result<View, MemfdError> {
        if len == 0 {
            return Err(MapError::Size { len, source: SizeError::Zero }.into());
        }
        require_seal(file)?;
        // The seal has been checked, so the size cannot fall any more.
        let size = file.metadata().map_err(system("fstat", len, "none is known"))?.len();
        if size < len as u64 {
            return Err(MemfdError::Short { size, claimed: len });
        }
        let map = MmapOptions::new().len(len).populate().map_raw_read_only(file);
        Ok(View { map: map.map_err(system("mmap", len, SHORT_OF_MEMORY))?, len })
    }

    /// First byte, at the start of a page. The bytes are readable as long as this value lives, and
    /// must not be written through this address.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.map.as_ptr()
    }

    /// Length, bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// False: a view has at least one byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}
