//! The system calls of the control plane: Unix sockets of whole messages in the abstract namespace,
//! epoll, eventfd, random bytes, memfds and their seals. Every descriptor is closed on exec, and
//! those of sockets and events never block.
#![expect(unsafe_code, reason = "SEQPACKET sockets, SCM_RIGHTS and epoll have no safe form in std")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_fabric::Credentials;

use super::forks;

#[cfg(test)]
mod tests;

/// The most bytes of an abstract name: `sun_path` without its leading zero.
const NAME_MAX: usize = 107;

fn answer(value: libc::c_int) -> io::Result<libc::c_int> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Takes ownership of a descriptor that a system call just returned.
pub(super) fn own(value: libc::c_int) -> io::Result<OwnedFd> {
    let fd = answer(value)?;
    // SAFETY: the call answered a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The user this process acts as.
pub(super) fn user() -> u32 {
    // SAFETY: takes nothing, touches no memory, cannot fail.
    unsafe { libc::geteuid() }
}

/// True if there is no such process. A process that this one cannot see has the number 0, and never
/// counts as gone.
pub(super) fn is_gone(process: i32) -> bool {
    // SAFETY: signal 0 sends nothing; the call takes numbers and touches no memory.
    let answer = unsafe { libc::kill(process.max(0), 0) };
    answer != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Fills `bytes` with random ones.
pub(super) fn random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: `rest` is writable for the length given.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(some) => filled += some,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// As long as it lives, a C program cannot cancel this thread. For steps that make calls which are
/// cancellation points: there the C library would unwind the stack of a cancelled thread, and abort
/// when it meets a catch.
pub struct Uncancelled {
    before: libc::c_int,
}

impl Uncancelled {
    /// From now on.
    #[expect(clippy::new_without_default, reason = "it changes the thread")]
    pub fn new() -> Uncancelled {
        const DISABLE: libc::c_int = 1;
        let mut before = 0;
        // SAFETY: room for a number.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: a state that the C library gave.
        unsafe { pthread_setcancelstate(self.before, &raw mut self.before) };
    }
}

/// Writes bytes to a descriptor; how many it took. By number: `write` of the C library is a
/// cancellation point, and the posts and polls of C programs come here.
pub(super) fn write(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is readable for the length given.
    let took = unsafe { libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) };
    usize::try_from(took).map_err(|_| io::Error::last_os_error())
}

/// Reads bytes of a descriptor; how many there were. By number, as in [`write()`].
pub(super) fn read(fd: RawFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is writable for the length given.
    let got = unsafe { libc::syscall(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len()) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// A new memfd. `flags` are added to `MFD_CLOEXEC`.
pub(super) fn memfd(name: &CStr, flags: libc::c_uint) -> io::Result<File> {
    // SAFETY: the name ends with a zero.
    own(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags) }).map(File::from)
}

/// The seals of a memfd; `None` of any other file.
pub(super) fn seals(file: &File) -> Option<i32> {
    // SAFETY: reading the seals takes numbers and touches no memory of ours.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    (seals >= 0).then_some(seals)
}

/// Adds seals to a memfd.
pub(super) fn seal(file: &File, seals: i32) -> io::Result<()> {
    // SAFETY: adding seals takes numbers and touches no memory of ours.
    answer(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(())
}

/// The inode of an open file.
pub(super) fn inode(fd: RawFd) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fstat writes one stat through the pointer; one of zeros is valid too.
    let (answer, stat) = unsafe { (libc::fstat(fd, stat.as_mut_ptr()), stat.assume_init()) };
    (answer == 0).then_some(stat.st_ino)
}

/// True unless the file is known not to consist of reserved huge pages.
pub(super) fn may_be_huge(file: &File) -> bool {
    let mut found = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: fstatfs writes one statfs through the pointer; one of zeros is valid too.
    let (answer, found) =
        unsafe { (libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()), found.assume_init()) };
    answer != 0 || found.f_type == libc::HUGETLBFS_MAGIC
}

/// A socket of whole messages.
#[derive(Debug)]
pub(super) struct Socket {
    fd: ManuallyDrop<OwnedFd>,
    /// Children of fork must not keep its file: see [`forks`].
    is_named: AtomicBool,
}

/// What a receive found.
pub(super) enum Received {
    /// A message of that many bytes, and the files that came with it.
    Message(usize, Vec<OwnedFd>),
    /// The same, but this process had no descriptors left for all of its files.
    Short(usize, Vec<OwnedFd>),
    /// Nothing there yet.
    Nothing,
    /// The peer has closed its end; all it sent before has been read.
    Closed,
}

impl Socket {
    pub(super) fn new() -> io::Result<Socket> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes numbers only.
        own(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }).map(Socket::of)
    }

    fn of(fd: OwnedFd) -> Socket {
        Socket { fd: ManuallyDrop::new(fd), is_named: AtomicBool::new(false) }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// A second descriptor of its file.
    #[cfg(test)]
    pub(super) fn shared(&self) -> io::Result<Socket> {
        self.fd.try_clone().map(Socket::of)
    }

    /// Takes an abstract name; `AddrInUse` if somebody has it.
    pub(super) fn bind(&self, name: &str) -> io::Result<()> {
        let (address, length) = abstract_name(name)?;
        let mut named = forks::lock();
        // SAFETY: `address` is a sockaddr_un, and its first `length` bytes are set.
        answer(unsafe { libc::bind(self.fd(), (&raw const address).cast(), length) })?;
        named.add(self.fd());
        self.is_named.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn listen(&self, backlog: u32) -> io::Result<()> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: takes numbers only.
        answer(unsafe { libc::listen(self.fd(), backlog) })?;
        Ok(())
    }

    /// Ends a listener before it is closed. A child of fork may share its file, and then the close
    /// alone would end nothing: peers would wait there, and nobody would take them. A child that
    /// gives up the listener of its parent leaves it as it is.
    pub(super) fn stop_listening(&self) {
        // A listener's credentials are those of its maker.
        let own = i32::try_from(std::process::id());
        if self.peer().map(|maker| maker.pid).ok() != own.ok() {
            return;
        }
        // SAFETY: takes numbers only.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) };
        // Nobody else can connect now. Those that wait read the end of their socket.
        while let Ok(Some(_)) = self.accept() {}
    }

    /// The next waiting connection, if there is one.
    pub(super) fn accept(&self) -> io::Result<Option<Socket>> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let none = std::ptr::null_mut();
        // SAFETY: null pointers say that the peer's name is not wanted.
        match own(unsafe { libc::accept4(self.fd(), none, std::ptr::null_mut(), flags) }) {
            Ok(fd) => Ok(Some(Socket::of(fd))),
            Err(error) if is_transient(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Connects to an abstract name: `WouldBlock` if too many connections wait there,
    /// `ConnectionRefused` if nobody listens.
    pub(super) fn connect(&self, name: &str) -> io::Result<()> {
        let (address, length) = abstract_name(name)?;
        // SAFETY: as in `bind`.
        answer(unsafe { libc::connect(self.fd(), (&raw const address).cast(), length) })?;
        Ok(())
    }

    /// Process and user of the other end (`SO_PEERCRED`).
    pub(super) fn peer(&self) -> io::Result<Credentials> {
        let mut creds = MaybeUninit::<libc::ucred>::zeroed();
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, the size of `creds`.
        answer(unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                creds.as_mut_ptr().cast(),
                &raw mut length,
            )
        })?;
        // SAFETY: three integers, zeroed before and written by the kernel since.
        let creds = unsafe { creds.assume_init() };
        Ok(Credentials { pid: creds.pid, uid: creds.uid })
    }

    /// Sends one message, with up to [`FILES_MAX`] files, whole or not at all.
    pub(super) fn send(&self, bytes: &[u8], files: &[RawFd]) -> io::Result<()> {
        let mut piece = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
        let mut control = Control::new();
        // SAFETY: an all-zero msghdr is a valid, empty one.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        if !files.is_empty() {
            control.hold(&mut header, files);
        }
        // SAFETY: the header names `bytes` and `control`, both alive during the call, and
        // sendmsg only reads them. MSG_NOSIGNAL: a closed peer is an error, not a signal.
        let sent = unsafe { libc::sendmsg(self.fd(), &raw const header, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives one message. One that exceeds `bytes` reports a length of `bytes` plus one.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<Received> {
        let mut reset = false;
        loop {
            match self.receive_once(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The peer closed while it had unread data. What it sent before is still there.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !reset => {
                    reset = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Received::Nothing);
                }
                other => return other,
            }
        }
    }

    /// The first bytes of a message, which stays; `None` if there is none. The messages before it
    /// have `before` bytes.
    pub(super) fn peek(&self, before: usize, bytes: &mut [u8]) -> Option<usize> {
        let offset = libc::c_int::try_from(before).ok()?;
        let length = size_of_val(&offset) as libc::socklen_t;
        let (level, name, value) =
            (libc::SOL_SOCKET, libc::SO_PEEK_OFF, (&raw const offset).cast());
        // SAFETY: the kernel reads `length` bytes, the size of `offset`.
        answer(unsafe { libc::setsockopt(self.fd(), level, name, value, length) }).ok()?;
        let (at, length) = (bytes.as_mut_ptr().cast(), bytes.len());
        // After a reset, the second look finds what the peer sent before.
        let mut looks = (0..2).filter_map(|_| {
            // SAFETY: `bytes` is writable for the length given.
            usize::try_from(unsafe { libc::recv(self.fd(), at, length, libc::MSG_PEEK) }).ok()
        });
        looks.next().filter(|length| *length > 0)
    }

    fn receive_once(&self, bytes: &mut [u8]) -> io::Result<Received> {
        let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = Control::new();
        // SAFETY: an all-zero msghdr is a valid, empty one.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = size_of::<Control>() as _;
        // SAFETY: the header names `bytes` and `control`, alive and writable for the lengths
        // given.
        let got = unsafe { libc::recvmsg(self.fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        let Ok(length) = usize::try_from(got) else { return Err(io::Error::last_os_error()) };
        // SAFETY: the kernel filled the header and the control bytes it names.
        let files = unsafe { Control::take(&header) };
        if length == 0 {
            return Ok(Received::Closed);
        }
        let cut = header.msg_flags & libc::MSG_TRUNC != 0;
        let length = length + usize::from(cut);
        Ok(match header.msg_flags & libc::MSG_CTRUNC != 0 {
            true => Received::Short(length, files),
            false => Received::Message(length, files),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A thread that closes the socket of a connection waits for no fork.
        let _locked = self.is_named.get_mut().then(|| {
            let mut named = forks::lock();
            named.remove(self.fd());
            named
        });
        // SAFETY: it is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

/// The most files in one message.
const FILES_MAX: usize = 2;

/// Room for control data that carries [`FILES_MAX`] files, aligned as its header wants.
#[repr(C, align(8))]
struct Control([u8; 32]);

impl Control {
    fn new() -> Control {
        Control([0; 32])
    }

    /// Puts files in, and itself into `header`, which must not outlive `self`.
    fn hold(&mut self, header: &mut libc::msghdr, files: &[RawFd]) {
        let files = &files[..files.len().min(FILES_MAX)];
        let bytes = size_of_val(files) as u32;
        // SAFETY: only computes sizes.
        let (space, length) = unsafe { (libc::CMSG_SPACE(bytes), libc::CMSG_LEN(bytes)) };
        debug_assert!(space as usize <= self.0.len());
        header.msg_control = self.0.as_mut_ptr().cast();
        header.msg_controllen = space as _;
        // SAFETY: the control bytes have room for one header with these descriptors (`space`), so
        // the first header is not null and its data lies inside them.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const *header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = length as _;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (index, file) in files.iter().enumerate() {
                data.add(index).write_unaligned(*file);
            }
        }
    }

    /// The files in a received header.
    ///
    /// # Safety
    /// `header` was filled by recvmsg and its control bytes are alive.
    unsafe fn take(header: &libc::msghdr) -> Vec<OwnedFd> {
        let mut files = Vec::new();
        // SAFETY: the kernel wrote well-formed headers within `msg_controllen`; each SCM_RIGHTS
        // entry holds whole descriptors, new in this process and owned by nobody else.
        unsafe {
            let mut entry = libc::CMSG_FIRSTHDR(header);
            while !entry.is_null() {
                let rights = (*entry).cmsg_level == libc::SOL_SOCKET
                    && (*entry).cmsg_type == libc::SCM_RIGHTS;
                let head = libc::CMSG_LEN(0) as usize;
                let bytes = ((*entry).cmsg_len as usize).saturating_sub(head);
                let data = libc::CMSG_DATA(entry).cast::<RawFd>();
                for index in 0..if rights { bytes / size_of::<RawFd>() } else { 0 } {
                    files.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
                entry = libc::CMSG_NXTHDR(header, entry);
            }
        }
        files
    }
}

/// True if this process, or the system, has no descriptors left.
pub(super) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// A descriptor to give back when there are no others: see [`super::spare::Spare`].
pub(super) fn spare() -> Option<OwnedFd> {
    // SAFETY: takes numbers only.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }).ok()
}

/// Errors of accept that concern one peer, not the listener.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

fn abstract_name(name: &str) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: an all-zero sockaddr_un is a valid one.
    let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if name.len() > NAME_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // The first byte stays zero: the name is in no file system and vanishes with its socket.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let head = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    Ok((address, (head + 1 + name.len()) as libc::socklen_t))
}

/// Watches descriptors, each under a key.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

/// The most keys that one wait returns.
pub(super) const READY_MAX: usize = 32;

impl Epoll {
    pub(super) fn new() -> io::Result<Epoll> {
        // SAFETY: takes numbers only.
        own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Epoll)
    }

    /// Watches for data to read, or the end.
    pub(super) fn add(&self, fd: RawFd, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: key };
        // SAFETY: `event` is alive during the call.
        answer(unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
        Ok(())
    }

    /// Reports once that the peer of a socket has closed it or shut down its writes, and nothing
    /// else (EPOLLRDHUP). A later call for the same socket reports once more.
    pub(super) fn add_end(&self, fd: RawFd, key: u64) -> io::Result<()> {
        let events = (libc::EPOLLRDHUP | libc::EPOLLONESHOT) as u32;
        let mut event = libc::epoll_event { events, u64: key };
        let mut control = |how| {
            // SAFETY: `event` is alive during the call.
            answer(unsafe { libc::epoll_ctl(self.fd(), how, fd, &raw mut event) })
        };
        match control(libc::EPOLL_CTL_ADD) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                control(libc::EPOLL_CTL_MOD)?;
            }
            other => _ = other?,
        }
        Ok(())
    }

    /// Stops watching. A descriptor that was closed is gone already, unless a child process shares
    /// its file: then it stays, and can no longer be removed.
    pub(super) fn remove(&self, fd: RawFd) {
        let none = std::ptr::null_mut();
        // SAFETY: a null event is allowed for EPOLL_CTL_DEL.
        unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, none) };
    }

    /// The keys that are ready, after at most `limit` (`None`: for ever). They are written to the
    /// front of `keys`, because a worker that looks at a control plane must not allocate.
    pub(super) fn wait<'k>(
        &self,
        limit: Option<Duration>,
        keys: &'k mut [u64; READY_MAX],
    ) -> io::Result<&'k [u64]> {
        let millis = limit.map_or(-1, |limit| {
            // Rounded up: a wait must not end before its time and spin.
            let up = limit.as_nanos().div_ceil(1_000_000);
            i32::try_from(up).unwrap_or(i32::MAX)
        });
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
        let most = READY_MAX as libc::c_int;
        // SAFETY: the kernel writes at most `most` events, and there is room for them.
        let got = unsafe { libc::epoll_wait(self.fd(), events.as_mut_ptr(), most, millis) };
        let count = match answer(got) {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        let ready = &mut keys[..count];
        for (key, event) in ready.iter_mut().zip(&events) {
            *key = event.u64;
        }
        Ok(ready)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Makes an [`Epoll`] readable at a time.
#[derive(Debug)]
pub(super) struct Timer(OwnedFd);

impl Timer {
    pub(super) fn new() -> io::Result<Timer> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: takes numbers only.
        own(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) }).map(Timer)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Becomes readable at that time, and stays so until it is set again; `None`: never.
    pub(super) fn set(&self, at: Option<Instant>) {
        let left = at.map(|at| at.saturating_duration_since(Instant::now()));
        // A time of zero would mean never.
        let left = left.map_or(Duration::ZERO, |left| left.max(Duration::from_nanos(1)));
        let value = libc::timespec {
            tv_sec: left.as_secs() as libc::time_t,
            tv_nsec: left.subsec_nanos().into(),
        };
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: `spec` is alive during the call; the old setting is not requested. It fails only
        // for invalid times.
        unsafe { libc::timerfd_settime(self.fd(), 0, &raw const spec, std::ptr::null_mut()) };
    }
}

/// Wakes a thread that waits in [`Epoll::wait`].
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

impl Waker {
    pub(super) fn new() -> io::Result<Waker> {
        // SAFETY: takes numbers only.
        own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Waker)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(super) fn wake(&self) {
        // It fails only when the counter is full, and then the sleeper is awake anyway.
        let _ = write(self.fd(), &1_u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        // It fails only when there is nothing to clear.
        let _ = read(self.fd(), &mut [0; 8]);
    }
}

/// A command of `membarrier`. False: the kernel does not know it, or refuses.
pub(super) fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
