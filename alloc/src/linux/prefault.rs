//! Obtains every page of a range now, with several threads if the range is long.
#![expect(unsafe_code, reason = "fallocate(2), and a touch of one byte a page")]

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::io;
use std::os::fd::AsRawFd;
use std::thread;

use super::error::{MapError, SHORT_OF_MEMORY, check, system};
use super::limits;
use super::memory::Memory;
use crate::pages::Pages;

/// Bytes that a thread takes at a time: some milliseconds of clearing pages.
const PIECE: usize = 16 << 20;

/// Bytes of work that are worth the start of one more thread.
const SHARE: usize = 32 << 20;

/// Beyond this number, more threads clear memory no faster.
const THREADS_MAX: usize = 16;

/// How many threads obtain `len` bytes: at most one for each processor that this thread may run on,
/// so that a pinned caller works alone and disturbs no other core.
pub(super) fn threads(len: usize) -> usize {
    let wanted = (len / SHARE).clamp(1, THREADS_MAX);
    if wanted == 1 {
        return 1;
    }
    wanted.min(thread::available_parallelism().map_or(1, |number| number.get()))
}

/// Obtains every page now and keeps its contents. `threads` threads do it, of which the caller is
/// one; the others have ended when this returns.
pub(super) fn populate(memory: &Memory, pages: Pages, threads: usize) -> Result<(), MapError> {
    let error = match populate_in_pieces(memory, limits::page_bytes(pages), threads) {
        Ok(()) => return Ok(()),
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => error,
        Err(error) => match populate_by_touch(memory, pages, error) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        },
    };
    Err(system("madvise(MADV_POPULATE_WRITE)", memory.len(), SHORT_OF_MEMORY)(error))
}

/// The threads take piece after piece until none is left or one of them fails.
fn populate_in_pieces(memory: &Memory, page: usize, threads: usize) -> io::Result<()> {
    let piece = page.max(PIECE);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            // Relaxed: each piece must be taken once; the number publishes nothing. Joining the
            // threads makes the pages' contents visible.
            let at = next.fetch_add(piece, Ordering::Relaxed);
            if at >= memory.len() {
                return Ok(());
            }
            let len = piece.min(memory.len() - at);
            if let Err(error) = memory.advise(at, len, libc::MADV_POPULATE_WRITE) {
                next.store(memory.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    thread::scope(|scope| {
        // If a thread cannot be started, the others do its share.
        let start = || thread::Builder::new().name("prefault".into()).spawn_scoped(scope, work);
        let helpers: std::vec::Vec<_> = (1..threads).map_while(|_| start().ok()).collect();
        let mut done = work();
        for helper in helpers {
            // Joined one by one: the scope waits for the work only, not for the end of the thread.
            let result = helper.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
            done = done.and(result);
        }
        done
    })
}

/// Obtains every page on a kernel before 5.14, which answers EINVAL to `MADV_POPULATE_WRITE`. A
/// touch that finds no page raises a signal. So the pages of a memfd are allocated first, and
/// private pages of the reserved pool, where that is impossible, are refused.
fn populate_by_touch(memory: &Memory, pages: Pages, unknown: io::Error) -> io::Result<()> {
    match memory.fd() {
        Some(fd) => {
            let len = libc::off_t::try_from(memory.len()).map_err(io::Error::other)?;
            // SAFETY: fallocate takes only numbers.
            check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, len) })?;
        }
        None if pages.is_reserved() => return Err(unknown),
        None => {}
    }
    touch(memory, limits::page_bytes(Pages::Plain));
    Ok(())
}

/// Writes to one byte of each page without changing it: a peer may already use the memory.
fn touch(memory: &Memory, page: usize) {
    let (ptr, len) = memory.range();
    for offset in (0..len).step_by(page) {
        // SAFETY: the offset is in the range, which is mapped for writing as long as `memory`
        // lives. A byte is always aligned, and no reference to it exists here.
        let byte = unsafe { AtomicU8::from_ptr(ptr.as_ptr().add(offset)) };
        byte.fetch_or(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::memfd;
    use super::*;
    use crate::Pages;

    /// How many pages of a range are in memory.
    fn resident(memory: &Memory) -> usize {
        let (ptr, len) = memory.range();
        let mut states = std::vec![0_u8; len / 4096];
        // SAFETY: the range is mapped, and there is one byte of room for each page.
        check(unsafe { libc::mincore(ptr.as_ptr().cast(), len, states.as_mut_ptr()) })
            .expect("mapped");
        states.iter().filter(|&&state| state & 1 != 0).count()
    }

    #[test]
    fn any_number_of_threads_obtains_every_page() {
        let len = 3 * PIECE + 4096;
        for threads in [1, 2, 5] {
            let memory = Memory::private(len, Pages::Plain, false).expect("map");
            populate(&memory, Pages::Plain, threads).expect("memory");
            assert_eq!(resident(&memory), len / 4096, "{threads} threads");
        }
    }

    #[test]
    fn short_ranges_start_no_thread() {
        assert_eq!(threads(4096), 1);
        assert_eq!(threads(2 * SHARE - 1), 1);
        assert!(threads(1 << 40) <= THREADS_MAX);
    }

    #[test]
    fn an_error_in_any_thread_is_returned() {
        let memory = Memory::private(4 * PIECE, Pages::Plain, false).expect("map");
        let (ptr, _) = memory.range();
        // SAFETY: makes read-only a page that only this test uses.
        let last = unsafe { ptr.as_ptr().add(4 * PIECE - 4096) };
        // SAFETY: as above.
        check(unsafe { libc::mprotect(last.cast(), 4096, libc::PROT_READ) }).expect("mprotect");
        for threads in [1, 3] {
            let error = populate_in_pieces(&memory, 4096, threads).expect_err("not writable");
            assert!(error.raw_os_error().is_some(), "{error}");
        }
    }

    #[test]
    fn touching_keeps_the_contents() {
        let fd = memfd::create(8192, Pages::Plain).expect("memfd");
        let memory = Memory::shared(fd, 8192, Pages::Plain, false).expect("map");
        let last = memory.range().0.as_ptr().wrapping_add(4096);
        // SAFETY: the second page is mapped and only this test uses it.
        unsafe { last.write(0xa5) };
        populate_by_touch(&memory, Pages::Plain, io::ErrorKind::Other.into()).expect("touch");
        // SAFETY: as above.
        assert_eq!(unsafe { last.read() }, 0xa5);
    }

    #[test]
    fn private_reserved_pages_are_refused_on_an_old_kernel() {
        let memory = Memory::private(4096, Pages::Plain, false).expect("map");
        let unknown = io::Error::from_raw_os_error(libc::EINVAL);
        let error = populate_by_touch(&memory, Pages::Huge2M, unknown).expect_err("refused");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
