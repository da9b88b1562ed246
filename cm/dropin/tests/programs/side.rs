//! One process of a program over the drop-in.

use std::env;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may take that does not end by itself.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

/// The library, which cargo builds with the tests and puts beside them.
pub(crate) fn library() -> PathBuf {
    let own = env::current_exe().unwrap();
    own.with_file_name("libdoorbell_dropin.so")
}

/// `doorbell run -- PROGRAM ARGS…`; `None` if the program is not installed, which is said.
pub(crate) fn command<S: AsRef<str>>(args: &[S]) -> Option<Command> {
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    let program = args.first().unwrap();
    let folders = env::var_os("PATH").unwrap_or_default();
    // A path of its own counts as it is.
    if !env::split_paths(&folders).any(|folder| folder.join(program).is_file()) {
        println!("skipped: {program} is not installed");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    command.env("DOORBELL_DROPIN", library()).env("DOORBELL_EXPLAIN", "1");
    command.args(["run", "--"]).args(args).stdin(Stdio::null());
    // A program that ends badly may leave a file where it runs.
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    Some(command)
}

/// True if a program that another one starts is installed; if not, that is said.
pub(crate) fn has(program: &str) -> bool {
    command(&[program]).is_some()
}

/// A C program that a test brings along, built against the headers of rdma-core; `None` if they are
/// not installed, which is said.
pub(crate) fn built(name: &str, source: &str, links: &[&str]) -> Option<PathBuf> {
    for header in ["infiniband/verbs.h", "rdma/rdma_verbs.h"] {
        if !Path::new("/usr/include").join(header).exists() {
            println!("skipped: the header {header} is not installed");
            return None;
        }
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    let done = cc.arg("-Wall").arg(&file).arg("-o").arg(&program).args(links).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(program)
}

/// The begin of a program in C: `CHECK`, and a function that connects a queue pair to another one
/// of this device, perhaps to itself. Retries for a receive that is missing are 164 ms apart.
pub(crate) const CONNECTS: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>
#define CHECK(x) do { if (x) { printf("line %d: %s: %m\n", __LINE__, #x); exit(1); } } while (0)
static void connects(struct ibv_qp *qp, struct ibv_qp *peer, int retries) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
        IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR, attr.path_mtu = IBV_MTU_1024, attr.dest_qp_num = peer->qp_num;
    attr.min_rnr_timer = 28, attr.rnr_retry = retries, attr.retry_cnt = 7, attr.timeout = 14;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1;
    attr.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1};
    CHECK(ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid));
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
        IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}
"#;

/// A process, and the threads that read what it prints.
pub(crate) struct Side {
    child: Mutex<Child>,
    readers: Vec<thread::JoinHandle<String>>,
    pub(crate) name: String,
}

impl Side {
    pub(crate) fn start(mut command: Command) -> Side {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let mut child = command.spawn().unwrap();
        let pipes: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        let readers = pipes
            .into_iter()
            .map(|mut pipe| {
                thread::spawn(move || {
                    let mut bytes = Vec::new();
                    pipe.read_to_end(&mut bytes).unwrap();
                    String::from_utf8_lossy(&bytes).into_owned()
                })
            })
            .collect();
        Side { child: Mutex::new(child), readers, name }
    }

    /// Its number. `doorbell run` becomes the program.
    pub(crate) fn id(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// How it has ended, if it has.
    pub(crate) fn has_ended(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().unwrap()
    }

    /// Waits until something is so.
    pub(crate) fn wait_for(&self, what: impl Fn() -> bool) {
        let until = Instant::now() + LIMIT;
        while !what() {
            let ended = self.has_ended();
            assert!(ended.is_none(), "{} ended at once: {ended:?}", self.name);
            assert!(Instant::now() < until, "{} does not get there", self.name);
            thread::sleep(PAUSE);
        }
    }

    /// Ends it.
    pub(crate) fn stop(&self) {
        let _ = self.child.lock().unwrap().kill();
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> End {
        let until = Instant::now() + LIMIT;
        let status = loop {
            match self.has_ended() {
                None if Instant::now() < until => thread::sleep(PAUSE),
                status => break status,
            }
        };
        if status.is_none() {
            self.child.lock().unwrap().kill().unwrap();
        }
        let text: String = self.readers.drain(..).map(|reader| reader.join().unwrap()).collect();
        End { status, text, name: self.name.clone() }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// How a program ended.
pub(crate) struct End {
    /// `None`: it was still running at the limit.
    status: Option<ExitStatus>,
    /// What it printed.
    pub(crate) text: String,
    name: String,
}

impl End {
    /// It ended before the limit.
    pub(crate) fn by_itself(&self) -> bool {
        self.status.is_some()
    }

    /// It succeeded, as far as rping says so when it has.
    pub(crate) fn is_ok(&self) -> bool {
        self.status.is_some_and(|status| status.success()) || self.outran_itself()
    }

    /// It is rping, the connection has ended well, and then its main thread has destroyed the
    /// event channel before its other thread asked for a further event. rping before rdma-core 59
    /// does not wait for that thread, whose error ends the process if it comes first. With the
    /// threads held as `LATE` in `threads` holds them, rping prints the same over librdmacm and
    /// rxe0.
    fn outran_itself(&self) -> bool {
        self.status.and_then(|status| status.code()) == Some(255)
            && self.name.contains("\"rping\"")
            && self.text.contains("DISCONNECT EVENT...\n")
            && self.text.ends_with("\nrdma_get_cm_event: Bad file descriptor\n")
            && !self.text.contains("failed")
    }

    /// It crashed.
    pub(crate) fn crashed(&self) -> bool {
        self.status.and_then(|status| status.signal()).is_some_and(|signal| signal != libc::SIGKILL)
    }

    /// What it printed; it must have succeeded.
    pub(crate) fn success(self) -> String {
        assert!(self.is_ok(), "{} {:?}: {}", self.name, self.status, self.text);
        self.text
    }
}
