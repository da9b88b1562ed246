//! `--ranks`: starts ranks on this machine, without a launcher.

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Failure;
use crate::ranks::launch::{First, JOB, Launch, RANK, RANKS_MAX, SIZE};

/// The other ranks. They end when this is dropped.
pub(crate) struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // They have nothing to save. Both calls fail if it has ended by itself, which is fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts all ranks but the first, which is this process.
///
/// # Errors
/// Fewer than two ranks, or the system refuses.
pub(crate) fn start(size: u32) -> Result<(Ranks, Launch), Failure> {
    if !(2..=RANKS_MAX).contains(&size) {
        return Err(Failure::new(format!("--ranks {size}: 2 to {RANKS_MAX}")));
    }
    let failed = |error: io::Error| Failure::system("start a rank", &error, "ulimit -u");
    // A process number comes back some day; with the time it does not.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let job = format!("{}-{now}", std::process::id());
    let program = std::env::current_exe().map_err(failed)?;
    let mut ranks = Ranks(Vec::new());
    for rank in 1..size {
        let child = Command::new(&program)
            .args(std::env::args_os().skip(1))
            .env(RANK, rank.to_string())
            .env(SIZE, size.to_string())
            .env(JOB, &job)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        ranks.0.push(child);
    }
    let by = "doorbell-bench --ranks";
    // As `Launch::look` has it for the others.
    let job = format!("{by} {job} ");
    Ok((ranks, Launch { by, rank: 0, size, job, first: First::Here }))
}
