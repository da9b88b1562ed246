//! Memory shared through a memfd, and descriptors from an untrusted peer.
#![cfg(all(feature = "std", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![expect(unsafe_code, reason = "makes bad memfds by system call; writes shared bytes")]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use doorbell_alloc::{Ask, MapError, MapRequest, Mapping, MemfdError, Pages, View};

/// A memfd of `len` bytes with `seals`.
fn memfd(len: u64, seals: i32) -> OwnedFd {
    // SAFETY: the name is a C string; the call returns a new descriptor, which nothing owns yet.
    let file = unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.set_len(len).unwrap();
    // SAFETY: adding seals touches no memory.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    file.into()
}

fn shared(len: usize) -> Mapping {
    MapRequest::new(len).pages(Ask::Plain).shared(true).map().unwrap()
}

fn send(mapping: &Mapping) -> OwnedFd {
    mapping.memfd().unwrap().try_clone_to_owned().unwrap()
}

#[test]
fn two_mappings_of_one_memfd_see_the_same_bytes() {
    let ours = shared(100_000);
    // SAFETY: the last byte lies in the range, and no reference to it exists.
    unsafe { ours.as_ptr().add(99_999).write(1) };
    let theirs = Mapping::from_memfd(send(&ours), 100_000).unwrap();
    assert_ne!(ours.as_ptr(), theirs.as_ptr());
    assert_eq!(ours.len(), theirs.len());
    assert!(theirs.report().shared());
    // SAFETY: as above; mapping the memfd kept the contents.
    unsafe {
        assert_eq!(theirs.as_ptr().add(99_999).read(), 1);
        theirs.as_ptr().write(2);
        assert_eq!(ours.as_ptr().read(), 2);
    }
    drop(ours);
    // SAFETY: as above; the peer's mapping keeps the memory alive on its own.
    assert_eq!(unsafe { theirs.as_ptr().read() }, 2);
}

#[test]
fn a_part_of_a_memfd_may_be_mapped() {
    let ours = shared(100_000);
    let theirs = Mapping::from_memfd(send(&ours), 5_000).unwrap();
    assert!(theirs.len() >= 5_000 && theirs.len() < ours.len());
}

#[test]
fn our_memfd_can_be_neither_resized_nor_unsealed() {
    let ours = shared(100_000);
    let file = File::from(send(&ours));
    assert_eq!(file.metadata().unwrap().len(), ours.len() as u64);
    for len in [0, ours.len() as u64 + 4096] {
        assert_eq!(file.set_len(len).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
    // SAFETY: adding seals touches no memory.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_GROW) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((answer, errno), (-1, Some(libc::EPERM)), "the seals themselves must be sealed");
}

/// Others may read readable memory. Nobody may map it for writing any more, nor punch holes in it.
#[test]
fn readable_memory_is_read_and_not_written_by_others() {
    for ask in [Ask::Best, Ask::Huge2M, Ask::Plain] {
        let mut ours = MapRequest::new(100_000).pages(ask).readable(true).map().unwrap();
        assert!(ours.report().readable() && !ours.report().shared());
        ours.as_mut_slice().unwrap()[99_999] = 7;
        let file = File::from(send(&ours));
        let mut last = [0];
        file.read_exact_at(&mut last, 99_999).unwrap();
        assert_eq!(last, [7]);
        let errno = |error: std::io::Error| error.raw_os_error();
        // Files of reserved huge pages know no write at all.
        let refusal = match ours.pages() {
            Pages::Huge1G | Pages::Huge2M => libc::EINVAL,
            Pages::Transparent | Pages::Plain => libc::EPERM,
        };
        assert_eq!(errno(file.write_all_at(&[8], 0).unwrap_err()), Some(refusal));
        assert!(Mapping::from_memfd(send(&ours), 100_000).is_err(), "mapped for writing");
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let len = libc::off_t::try_from(ours.len()).unwrap();
        // SAFETY: the seal makes the call fail; without it the bytes would become zero.
        let answer = unsafe { libc::fallocate(file.as_raw_fd(), hole, 0, len) };
        assert_eq!(answer, -1, "a hole was punched");
        assert_eq!(ours.as_mut_slice().unwrap()[99_999], 7);
    }
}

#[test]
fn a_memfd_that_may_shrink_is_refused() {
    for seals in [0, libc::F_SEAL_GROW] {
        let error = Mapping::from_memfd(memfd(8192, seals), 8192).unwrap_err();
        assert!(matches!(error, MemfdError::MayShrink { seals: s } if s == seals), "{error:?}");
    }
    Mapping::from_memfd(memfd(8192, libc::F_SEAL_SHRINK), 8192).unwrap();
}

#[test]
fn a_memfd_shorter_than_claimed_is_refused() {
    for claimed in [8193, 1 << 40, usize::MAX] {
        let error = Mapping::from_memfd(memfd(8192, libc::F_SEAL_SHRINK), claimed).unwrap_err();
        let short = matches!(error, MemfdError::Short { size: 8192, claimed: c } if c == claimed);
        assert!(short, "{error:?}");
    }
}

#[test]
fn a_length_of_0_is_refused() {
    let error = Mapping::from_memfd(memfd(8192, libc::F_SEAL_SHRINK), 0).unwrap_err();
    assert!(matches!(error, MemfdError::Map(MapError::Size { len: 0, .. })), "{error:?}");
}

#[test]
fn other_files_are_refused() {
    for path in ["/dev/zero", "/proc/self/exe"] {
        let fd = OwnedFd::from(File::open(path).unwrap());
        let error = Mapping::from_memfd(fd, 4096).unwrap_err();
        let refused = matches!(error, MemfdError::NotMemfd(_) | MemfdError::MayShrink { .. });
        assert!(refused, "{path}: {error:?}");
    }
}

#[test]
fn a_read_only_memfd_is_an_error() {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE;
    let error = Mapping::from_memfd(memfd(8192, seals), 8192).unwrap_err();
    let MemfdError::Map(MapError::System { call: "mmap", source, .. }) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(source.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_view_sees_the_bytes_of_a_memfd_that_cannot_shrink() {
    let ours = shared(100_000);
    let view = View::of_memfd(&File::from(send(&ours)), 50_000).unwrap();
    assert_eq!((view.len(), view.is_empty()), (50_000, false));
    // SAFETY: the byte lies in both, and no reference to it exists.
    unsafe {
        ours.as_ptr().add(49_999).write_volatile(7);
        assert_eq!(view.as_ptr().add(49_999).read_volatile(), 7);
    }
    drop(ours);
    // SAFETY: as above; the view keeps the memory.
    assert_eq!(unsafe { view.as_ptr().add(49_999).read_volatile() }, 7);
}

#[test]
fn a_view_of_another_file_is_refused() {
    let of = |fd: OwnedFd, len| View::of_memfd(&File::from(fd), len).unwrap_err();
    let error = of(memfd(8192, libc::F_SEAL_GROW), 8192);
    assert!(matches!(error, MemfdError::MayShrink { .. }), "{error:?}");
    let error = of(memfd(8192, libc::F_SEAL_SHRINK), 8193);
    assert!(matches!(error, MemfdError::Short { size: 8192, claimed: 8193 }), "{error:?}");
    let error = of(memfd(8192, libc::F_SEAL_SHRINK), 0);
    assert!(matches!(error, MemfdError::Map(MapError::Size { len: 0, .. })), "{error:?}");
    let error = of(File::open("/proc/self/exe").unwrap().into(), 4096);
    assert!(matches!(error, MemfdError::NotMemfd(_)), "{error:?}");
    // It need not be writable.
    let sealed = memfd(8192, libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE);
    View::of_memfd(&File::from(sealed), 8192).unwrap();
}
