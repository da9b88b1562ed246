//! A store in a file or a block device, past the page cache where the system can do that.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatfs};
use rustix::io::Errno;

use super::{Store, behind};

/// Bytes that one write of zeros has, where the file system cannot make them by itself.
const ZEROS: usize = 1 << 16;
/// The alignment that direct transfers need: of offset, length and address.
const ALIGNED: usize = 512;
/// The same on disks with larger sectors.
const ALIGNED_MORE: usize = 4096;
/// The number of the file system tmpfs (`statfs(2)`).
const TMPFS: i64 = 0x0102_1994;

/// A file or a block device.
#[derive(Debug)]
pub struct File {
    /// Past the page cache, if the file system can.
    direct: Option<std::fs::File>,
    /// For transfers that are not aligned, and for flushes.
    plain: std::fs::File,
    /// What direct transfers must be multiples of.
    aligned: usize,
    /// The file system is in memory: nothing waits for a disk.
    quick: bool,
    len: u64,
}

impl File {
    /// Opens a file or a block device. A file that does not exist is made with `len` bytes.
    ///
    /// # Errors
    /// The system's error; or the file is missing and no length is given.
    pub fn open(path: &Path, len: Option<u64>) -> io::Result<File> {
        let plain = match len {
            Some(len) if !path.exists() => {
                let made = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
                made.set_len(len)?;
                made.sync_all()?;
                made
            }
            _ => OpenOptions::new().read(true).write(true).open(path)?,
        };
        let meta = plain.metadata()?;
        let len = match meta.file_type().is_block_device() {
            true => io::Seek::seek(&mut &plain, io::SeekFrom::End(0))?,
            false => meta.len(),
        };
        let mut direct = OpenOptions::new();
        direct.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let direct = direct.open(path).ok();
        let aligned = match direct.as_ref().map(takes_blocks) {
            Some(false) => ALIGNED_MORE,
            _ => ALIGNED,
        };
        let quick = fstatfs(&plain).is_ok_and(|stat| stat.f_type == TMPFS);
        Ok(File { direct, plain, aligned, quick, len })
    }

    /// True if transfers go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The descriptor for a transfer of those bytes.
    fn for_transfer(&self, at: u64, bytes: &[u8]) -> &std::fs::File {
        let odd = at as usize | bytes.len() | bytes.as_ptr() as usize;
        match &self.direct {
            Some(direct) if odd.is_multiple_of(self.aligned) => direct,
            _ => &self.plain,
        }
    }

    fn check(&self, at: u64, len: u64) -> io::Result<()> {
        at.checked_add(len).filter(|end| *end <= self.len).map(drop).ok_or_else(behind)
    }

    /// Changes the room of bytes (`fallocate`). False if the file system cannot.
    fn allocate(&self, how: FallocateFlags, at: u64, len: u64) -> io::Result<bool> {
        match fallocate(&self.plain, how | FallocateFlags::KEEP_SIZE, at, len) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn write_zeros(&self, at: u64, len: u64) -> io::Result<()> {
        let zeros = vec![0; ZEROS];
        let mut done = 0;
        while done < len {
            let count = (len - done).min(ZEROS as u64) as usize;
            self.plain.write_all_at(zeros.get(..count).unwrap_or(&zeros), at + done)?;
            done += count as u64;
        }
        Ok(())
    }
}

/// True if a direct transfer of one block works.
fn takes_blocks(direct: &std::fs::File) -> bool {
    #[repr(align(512))]
    struct Block([u8; ALIGNED]);
    direct.read_at(&mut Block([0; ALIGNED]).0, ALIGNED as u64).is_ok()
}

impl Store for File {
    fn len(&self) -> u64 {
        self.len
    }

    fn descriptor(&self, at: u64, bytes: &[u8]) -> Option<RawFd> {
        self.check(at, bytes.len() as u64).ok()?;
        Some(self.for_transfer(at, bytes).as_raw_fd())
    }

    fn is_quick(&self) -> bool {
        self.quick
    }

    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.check(at, to.len() as u64)?;
        self.for_transfer(at, to).read_exact_at(to, at)
    }

    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.check(at, from.len() as u64)?;
        self.for_transfer(at, from).write_all_at(from, at)
    }

    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        self.check(at, len)?;
        if len > 0 && !self.allocate(FallocateFlags::ZERO_RANGE, at, len)? {
            self.write_zeros(at, len)?;
        }
        Ok(())
    }

    fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        self.check(at, len)?;
        if len > 0 && !self.allocate(FallocateFlags::PUNCH_HOLE, at, len)? {
            self.write_zeros(at, len)?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.plain.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("doorbell-nvmf-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_file_keeps_bytes_aligned_or_not() {
        let path = scratch("file");
        let _ = std::fs::remove_file(&path);
        let store = File::open(&path, Some(1 << 20)).unwrap();
        let data: Vec<u8> = (0..8192).map(|i| (i / 7) as u8).collect();
        store.write(4096, &data).unwrap();
        store.write(100_001, &data[..777]).unwrap();
        store.flush().unwrap();
        drop(store);
        let store = File::open(&path, None).unwrap();
        assert_eq!(store.len(), 1 << 20);
        let mut back = vec![1; 8192];
        store.read(4096, &mut back).unwrap();
        assert_eq!(back, data);
        store.read(100_001, &mut back[..777]).unwrap();
        assert_eq!(back[..777], data[..777]);
        store.zero(4096, 512).unwrap();
        store.discard(8192, 4096).unwrap();
        store.read(4096, &mut back).unwrap();
        assert!(back[..512].iter().chain(&back[4096..]).all(|byte| *byte == 0));
        assert_eq!(back[512..4096], data[512..4096]);
        assert!(store.write((1 << 20) - 1, &[1, 2]).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(File::open(&path, None).is_err(), "nobody makes a file by mistake");
    }
}
