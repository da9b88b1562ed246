//! Log pages, and the command that reads them.

use super::command::{Command, opcode};
use super::le::put;
use super::status::Status;

/// Identifiers of log pages.
#[expect(missing_docs, reason = "each is the page of that name")]
pub mod page {
    pub const ERRORS: u8 = 0x01;
    pub const HEALTH: u8 = 0x02;
    pub const FIRMWARE: u8 = 0x03;
    pub const DISCOVERY: u8 = 0x70;
}

/// Bytes of one entry of the error log, which has none that counts.
const ERROR_BYTES: usize = 64;
/// Bytes of the pages on health and on firmware.
const SMALL_BYTES: usize = 512;

/// What Get Log Page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLog {
    /// The page.
    pub page: u8,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl GetLog {
    /// Reads the command.
    ///
    /// # Errors
    /// Invalid Field: an offset that is no multiple of four.
    pub fn read(command: &Command) -> Result<GetLog, Status> {
        let dwords =
            u64::from(command.dword(10) >> 16) | u64::from(command.dword(11) & 0xffff) << 16;
        let offset = command.long(12);
        if !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD);
        }
        Ok(GetLog { page: command.dword(10) as u8, offset, len: (dwords + 1) * 4 })
    }

    /// The command; `len` is a multiple of four, and not zero.
    pub fn command(&self) -> Command {
        let dwords = (self.len / 4).wrapping_sub(1) as u32;
        Command::new(opcode::GET_LOG_PAGE, u32::MAX)
            .with(10, u32::from(self.page) | dwords << 16)
            .with(11, dwords >> 16)
            .with_long(12, self.offset)
    }

    /// The bytes that were asked for, of a whole page, with zeros behind its end.
    ///
    /// # Errors
    /// Invalid Field: it begins behind the end.
    pub fn cut(&self, whole: &[u8], most: usize) -> Result<Vec<u8>, Status> {
        let start = usize::try_from(self.offset).ok().filter(|start| *start <= whole.len());
        let rest = start.and_then(|start| whole.get(start..)).ok_or(Status::INVALID_FIELD)?;
        let len = usize::try_from(self.len).map_err(|_| Status::INVALID_FIELD)?.min(most);
        let mut out = vec![0; len];
        put(&mut out, 0, rest);
        Ok(out)
    }
}

/// Counters that the page on health shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Blocks that were read.
    pub read_blocks: u64,
    /// Blocks that were written.
    pub written_blocks: u64,
    /// Commands that read.
    pub reads: u64,
    /// Commands that wrote.
    pub writes: u64,
    /// Errors of the backing.
    pub media_errors: u64,
}

impl Health {
    /// The page.
    pub fn page(&self) -> Vec<u8> {
        let mut out = vec![0; SMALL_BYTES];
        put(&mut out, 1, &300_u16.to_le_bytes()); // Kelvin; no sensor is there.
        (out[3], out[4]) = (100, 10); // Percent of spare, and the threshold for a warning.
        // A unit of data is a thousand blocks, rounded up.
        let units = |blocks: u64| blocks.div_ceil(1000);
        put(&mut out, 32, &units(self.read_blocks).to_le_bytes());
        put(&mut out, 48, &units(self.written_blocks).to_le_bytes());
        put(&mut out, 64, &self.reads.to_le_bytes());
        put(&mut out, 80, &self.writes.to_le_bytes());
        put(&mut out, 160, &self.media_errors.to_le_bytes());
        out
    }
}

/// The error log: one entry without an error.
pub fn errors() -> Vec<u8> {
    vec![0; ERROR_BYTES]
}

/// The firmware slots: one, which is active.
pub fn firmware() -> Vec<u8> {
    let mut out = vec![0; SMALL_BYTES];
    out[0] = 1;
    super::le::put_padded(&mut out, 8, 8, env!("CARGO_PKG_VERSION"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let get = GetLog { page: page::DISCOVERY, offset: 1024, len: 0x5_0000 };
        assert_eq!(GetLog::read(&get.command()), Ok(get));
        let odd = GetLog { offset: 2, ..get }.command();
        assert_eq!(GetLog::read(&odd), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn a_page_is_cut_where_it_was_asked_for() {
        let get = |offset, len| GetLog { page: 1, offset, len };
        assert_eq!(get(4, 8).cut(&[1, 2, 3, 4, 5, 6], 4096), Ok(vec![5, 6, 0, 0, 0, 0, 0, 0]));
        assert_eq!(get(8, 4).cut(&[1; 6], 4096), Err(Status::INVALID_FIELD));
        assert_eq!(get(u64::MAX - 3, 4).cut(&[1; 6], 4096), Err(Status::INVALID_FIELD));
        assert_eq!(get(0, u64::MAX).cut(&[1; 6], 16).map(|page| page.len()), Ok(16), "bounded");
    }

    #[test]
    fn health_has_its_counters() {
        let health = Health { read_blocks: 1001, writes: 7, media_errors: 1, ..Health::default() };
        let page = health.page();
        assert_eq!((page[32], page[80], page[160]), (2, 7, 1));
    }
}
