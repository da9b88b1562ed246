//! Sealing a thread: from then on its first system call ends the process.

use std::io::Error;

/// Place of the call's number in `struct seccomp_data`.
const NUMBER: u32 = 0;

/// Lets the calling thread do nothing but compute and [`leave`]. Any other system call that it
/// makes kills the process with `SIGSYS` (`man 2 seccomp`, `SECCOMP_RET_KILL_PROCESS`). Other
/// threads stay free. It needs no privilege.
pub(crate) fn seal() {
    // A death on purpose needs no core dump.
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let exit = libc::SYS_exit as u32;
    let step = |code, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, exit),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the limit and the program are valid for the calls, which copy them; `len` is the
    // number of steps. The filter holds for this thread alone.
    let done = unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none) == 0
            && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    assert!(done, "seal a thread: {}; the kernel needs seccomp filters", Error::last_os_error());
}

/// Ends the calling thread by the bare system call: the usual end frees its stack, which calls
/// the kernel for more than that. What the thread owns is not dropped.
pub(crate) fn leave() -> ! {
    // SAFETY: ends this thread alone. Nobody joins it, and nothing borrows from its stack.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("a thread that has ended");
}
