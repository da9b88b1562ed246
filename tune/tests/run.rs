//! A program with workers under `tune run`: where they run and where their memory is, as the kernel
//! reports it. Nodes are tested on a machine with two of them (`cargo xtask vm run --numa`).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Barrier, mpsc};
use std::thread;

use doorbell_tune::{Ids, Machine, Memory, Plan, Request, Root, pin};
use memmap2::MmapMut;

/// Memory of a worker, bytes.
const BYTES: usize = 8 << 20;

/// Set for the child process that runs `program`.
const ROLE: &str = "TUNE_TEST_WORKERS";

/// The program, which is not a test: for each worker of its plan it starts a pinned thread with
/// memory of its own, prints where they are, and runs until its standard input is closed.
#[test]
fn program() {
    if std::env::var_os(ROLE).is_none() {
        println!("skipped: other tests run this one, in a process of its own");
        return;
    }
    let plan = Plan::from_env().unwrap().unwrap();
    let stays = &Barrier::new(plan.workers.len() + 1);
    thread::scope(|scope| {
        let (say, said) = mpsc::channel();
        for worker in &plan.workers {
            let say = say.clone();
            scope.spawn(move || {
                pin(worker.cpu).unwrap();
                let mut memory = MmapMut::map_anon(BYTES).unwrap();
                memory.fill(1);
                // The link's target ends with the thread's number.
                let own = fs::read_link("/proc/thread-self").unwrap();
                let thread = own.file_name().unwrap().to_str().unwrap().to_owned();
                say.send((worker.cpu, thread, memory.as_ptr() as usize)).unwrap();
                stays.wait();
            });
        }
        for _ in &plan.workers {
            let (cpu, thread, address) = said.recv().unwrap();
            // On a line of its own, because the harness has started one.
            println!("\nworker {cpu} {thread} {address:x}");
        }
        std::io::stdout().flush().unwrap();
        std::io::stdin().lines().for_each(drop);
        stays.wait();
    });
}

/// The program under a plan, running until it is dropped.
struct Running {
    child: Child,
    /// Kept open until the program has ended, because the harness prints at the end.
    output: BufReader<ChildStdout>,
    /// CPU, thread and memory of each worker.
    workers: Vec<(usize, String, String)>,
}

fn start(plan: &Plan, file: &Path, more: &[&str]) -> Running {
    fs::write(file, plan.to_toml().unwrap()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tune"))
        .args(["run", "--plan", file.to_str().unwrap()])
        .args(more)
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "program", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let workers = read_workers(&mut output, plan.workers.len());
    Running { child, output, workers }
}

fn read_workers(from: &mut impl BufRead, number: usize) -> Vec<(usize, String, String)> {
    let lines = from.lines().map(Result::unwrap);
    let worker = |line: String| {
        let mut words = line.strip_prefix("worker ")?.split(' ').map(str::to_owned);
        let cpu = words.next()?.parse().ok()?;
        Some((cpu, words.next()?, words.next()?))
    };
    let mut workers: Vec<_> = lines.filter_map(worker).take(number).collect();
    assert_eq!(workers.len(), number, "the program ended early");
    workers.sort();
    workers
}

impl Running {
    fn field(&self, thread: &str, name: &str) -> String {
        let file = format!("/proc/{}/task/{thread}/status", self.child.id());
        Root::system().field(&file, name).unwrap()
    }

    /// The CPU that a thread last ran on: field 39 of stat, the 37th after the name.
    fn processor(&self, thread: &str) -> usize {
        let file = format!("/proc/{}/task/{thread}/stat", self.child.id());
        let text = fs::read_to_string(file).unwrap();
        let (_, behind) = text.rsplit_once(") ").unwrap();
        behind.split(' ').nth(36).unwrap().parse().unwrap()
    }

    /// The kernel's line about the memory at an address.
    fn numa_maps(&self, address: &str) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/numa_maps", self.child.id())).ok()?;
        let begin = |line: &&str| {
            let from = line.split(' ').next().and_then(|at| usize::from_str_radix(at, 16).ok());
            from <= usize::from_str_radix(address, 16).ok()
        };
        // The last line that starts at or below it, because adjacent mappings may be joined.
        text.lines().rfind(begin).map(str::to_owned)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Closes its standard input, which ends the program.
        drop(self.child.stdin.take());
        std::io::copy(&mut self.output, &mut std::io::sink()).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success() || thread::panicking(), "{status}");
    }
}

fn machine() -> Machine {
    Machine::read(&Root::system()).unwrap()
}

fn plan(workers: usize, housekeeping: usize, memory: Memory) -> Plan {
    let request = Request {
        workers,
        device: None,
        housekeeping,
        siblings: false,
        memory_bytes: BYTES as u64,
        memory,
    };
    Plan::make(&machine(), &request).unwrap()
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("doorbell-tune-{}-{name}.toml", std::process::id()))
}

#[test]
fn every_worker_runs_where_the_plan_says() {
    let all = machine().cores.len();
    let plan = plan(all, 0, Memory::Bind);
    let file = scratch("each");
    let running = start(&plan, &file, &[]);
    let cpus: Vec<usize> = running.workers.iter().map(|(cpu, ..)| *cpu).collect();
    assert_eq!(cpus.into_iter().collect::<Ids>(), plan.cpus());
    for (cpu, thread, _) in &running.workers {
        assert_eq!(running.field(thread, "Cpus_allowed_list"), cpu.to_string());
        assert_eq!(running.processor(thread), *cpu);
    }
    // Nobody pins the first thread.
    let first = running.child.id().to_string();
    assert_eq!(running.field(&first, "Cpus_allowed_list"), plan.cpus().to_string());
    drop(running);
    fs::remove_file(file).unwrap();
}

/// Whether this machine has memory on more than one node.
fn two_nodes() -> bool {
    let found = machine().memory_nodes.len() >= 2;
    if !found {
        println!("skipped: this machine has memory on one node alone");
    }
    found
}

#[test]
fn memory_is_on_the_plans_node_by_the_kernels_account() {
    if !two_nodes() {
        return;
    }
    // A node that is not the first: by the plan, and with another policy on the command line.
    let plan = plan(1, 1, Memory::Bind);
    let node = plan.workers[0].memory_node;
    assert_ne!(node, machine().nodes[0].id, "without housekeeping, node 0 would be chosen");
    for (more, policy) in [(&[][..], "bind"), (&["--policy", "prefer"], "prefer")] {
        let file = scratch(policy);
        let running = start(&plan, &file, more);
        let (_, _, address) = &running.workers[0];
        let line = running.numa_maps(address).unwrap();
        let other = machine().nodes[0].id;
        assert!(line.contains(&format!(" {policy}:{node} ")), "{line}");
        assert!(line.contains(&format!(" N{node}=")), "{line}");
        assert!(!line.contains(&format!(" N{other}=")), "{line}");
        drop(running);
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn memory_of_a_distant_node_is_had_if_the_plan_says_so() {
    if !two_nodes() {
        return;
    }
    let machine = machine();
    let mut plan = plan(1, 1, Memory::Bind);
    let node = machine.nodes[0].id;
    plan.workers[0].memory_node = node;
    let file = scratch("distant");
    let running = start(&plan, &file, &[]);
    let line = running.numa_maps(&running.workers[0].2).unwrap();
    let near = plan.workers[0].node;
    assert!(
        line.contains(&format!(" bind:{node} ")) && !line.contains(&format!(" N{near}=")),
        "{line}"
    );
    drop(running);
    fs::remove_file(file).unwrap();
}

#[test]
fn a_node_that_is_not_there_is_an_error_with_the_cure() {
    if !two_nodes() {
        return;
    }
    let mut plan = plan(1, 1, Memory::Bind);
    plan.workers[0].memory_node = 63;
    let file = scratch("none");
    fs::write(&file, plan.to_toml().unwrap()).unwrap();
    let words = ["run", "--plan", file.to_str().unwrap(), "--", "true"];
    let output = Command::new(env!("CARGO_BIN_EXE_tune")).args(words).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("memory of nodes 63") && text.contains("tune plan"), "{text}");
    fs::remove_file(file).unwrap();
}
