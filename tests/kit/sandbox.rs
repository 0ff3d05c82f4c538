//! A sandbox that a running process can enter; the kernel then refuses system calls that it granted before.

use nix::libc;

/// Makes the kernel refuse `membarrier` to the calling thread, and to all threads and programs that it starts.
pub(crate) fn refuse_membarrier() -> std::io::Result<()> {
    let step = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0), // the system call's number
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_membarrier as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the filter, which lives until the call returns.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
