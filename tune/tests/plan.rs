//! Plans for recorded machines, and programs that run under a plan on this one.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod machines;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use doorbell_tune::{Ids, Machine, MakeError, Memory, Plan, Request};
use machines::Recorded;

fn ids(text: &str) -> Ids {
    text.parse().unwrap()
}

fn request(workers: usize, device: Option<&str>) -> Request {
    Request {
        workers,
        device: device.map(str::to_owned),
        housekeeping: 1,
        siblings: false,
        memory_bytes: 64 << 20,
        memory: Memory::Bind,
    }
}

fn make(recorded: &Recorded, request: &Request) -> Result<Plan, MakeError> {
    Plan::make(&Machine::read(&recorded.root()).unwrap(), request)
}

/// Asserts what must be true for every plan.
fn check(recorded: &Recorded, plan: &Plan) {
    let machine = Machine::read(&recorded.root()).unwrap();
    let cpus = plan.cpus();
    assert_eq!(cpus.len(), plan.workers.len(), "each worker has a CPU of its own");
    assert!(
        cpus.without(&machine.cpus.usable).is_empty() && cpus.and(&plan.housekeeping).is_empty()
    );
    for worker in &plan.workers {
        let core = machine.cores.iter().find(|core| core.cpus.contains(worker.cpu)).unwrap();
        assert_eq!(core.node, worker.node);
        assert_eq!(core.cpus.and(&cpus).len(), 1, "each worker has a core of its own");
        assert!(
            core.cpus.and(&plan.housekeeping).is_empty(),
            "no worker on a core for housekeeping"
        );
        assert!(machine.memory_nodes.contains(worker.memory_node));
        let group: Vec<_> = plan.workers.iter().filter(|other| other.srq == worker.srq).collect();
        assert!(group.len() <= 2 && group.iter().all(|other| other.node == worker.node));
    }
    let groups: Ids = plan.workers.iter().map(|worker| worker.srq).collect();
    let nodes: Ids = plan.workers.iter().map(|worker| worker.node).collect();
    let alone = 2 * groups.len() - plan.workers.len();
    assert!(alone <= nodes.len(), "at most one worker of a node shares no queue: {plan:?}");
}

#[test]
fn workers_are_on_isolated_cores_of_the_devices_socket() {
    let recorded = machines::two_sockets();
    for (device, cpus, node) in [("mlx5_0", "8-15", 0), ("eth1", "24-30,63", 1)] {
        let plan = make(&recorded, &request(8, Some(device))).unwrap();
        check(&recorded, &plan);
        assert_eq!(plan.cpus(), ids(cpus), "{device}");
        assert_eq!(
            (plan.device_node, plan.memory_nodes()),
            (Some(node), [node].into_iter().collect())
        );
        assert_eq!(plan.housekeeping, ids("0,32"));
    }
}

#[test]
fn housekeeping_stays_off_isolated_cores() {
    let recorded = machines::two_sockets();
    recorded.write("/sys/devices/system/cpu/isolated", "0-15,32-47");
    let plan = make(&recorded, &request(16, Some("mlx5_0"))).unwrap();
    check(&recorded, &plan);
    assert_eq!((plan.cpus(), plan.housekeeping.clone()), (ids("0-15"), ids("16,48")));
    let two = Request { housekeeping: 2, ..request(1, Some("mlx5_0")) };
    assert_eq!(make(&recorded, &two).unwrap().housekeeping, ids("16-17,48-49"));
}

#[test]
fn near_cores_come_first_and_far_ones_are_noted() {
    let recorded = machines::two_sockets();
    // Fifteen cores are near: one of sixteen is for housekeeping.
    let plan = make(&recorded, &request(20, Some("mlx5_0"))).unwrap();
    check(&recorded, &plan);
    assert_eq!(plan.cpus(), ids("1-15,24-28"));
    let note = "CPUs 24-28 are of another node than mlx5_0: no nearer core is left";
    assert!(plan.notes.iter().any(|found| found == note), "{:?}", plan.notes);
    assert!(plan.notes.iter().any(|note| note == "CPUs switched off: 31"), "{:?}", plan.notes);
    let near = make(&recorded, &request(4, Some("mlx5_0"))).unwrap();
    assert!(!near.notes.iter().any(|note| note.contains("another node")), "{:?}", near.notes);
}

#[test]
fn a_node_without_memory_takes_it_from_the_nearest() {
    let recorded = machines::amd();
    // Nodes 5, 4, 6 and 7, in that order: the distance is 12 to each, and 32 to the other socket.
    let plan = make(&recorded, &request(24, Some("mlx5_0"))).unwrap();
    check(&recorded, &plan);
    assert_eq!(plan.cpus(), ids("32-55"));
    let of_six: Vec<_> = plan.workers.iter().filter(|worker| worker.node == 6).collect();
    assert_eq!(of_six.len(), 8);
    assert!(of_six.iter().all(|worker| worker.memory_node == 4), "{of_six:?}");
    for note in ["nodes without memory: 6", "CPUs 48-55 have their memory on another node"] {
        assert!(plan.notes.iter().any(|found| found.starts_with(note)), "{note}: {:?}", plan.notes);
    }
    // Sixteen workers of 64 MiB are on node 4, in pages of 2 MiB.
    assert_eq!(plan.memory_by_node()[&4], 16 * (64 << 20));
    // Not a value for nr_hugepages: it would give back pages that other programs wait for.
    let note = "memory of node 4: 512 huge pages of 2 MiB; `tune check --plan FILE --only \
                hugepages --apply` reserves them if fewer are there";
    assert!(plan.notes.iter().any(|found| found == note), "{:?}", plan.notes);
}

#[test]
fn fast_cores_come_first() {
    let recorded = machines::laptop();
    let plan = make(&recorded, &request(3, None)).unwrap();
    check(&recorded, &plan);
    assert_eq!((plan.cpus(), plan.housekeeping.clone()), (ids("2,4,6"), ids("0-1")));
    let plan = make(&recorded, &request(5, Some("soft0"))).unwrap();
    check(&recorded, &plan);
    assert_eq!(plan.cpus(), ids("2,4,6,8-9"));
    let note = "CPUs 8-9 are of the slower kind: no other core is left";
    assert!(plan.notes.iter().any(|found| found == note), "{:?}", plan.notes);
}

#[test]
fn a_container_stays_in_its_cpuset() {
    let recorded = machines::container();
    let plan = make(&recorded, &request(3, Some("mlx5_1"))).unwrap();
    check(&recorded, &plan);
    assert_eq!((plan.cpus(), plan.housekeeping.clone()), (ids("20-22"), ids("4,36")));
    let error = make(&recorded, &request(8, Some("mlx5_1"))).unwrap_err().to_string();
    for part in ["8 workers", "CPUs for only 7", "4-7,20-23,36-39,52-55", "--siblings"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let recorded_memory = recorded.root().read("/proc/self/status").unwrap();
    recorded.write("/proc/self/status", recorded_memory.replace("list:\t0-1", "list:\t0"));
    let plan = make(&recorded, &request(3, Some("mlx5_1"))).unwrap();
    assert_eq!(plan.memory_nodes(), ids("0"), "node 1 is not in its cpuset");
}

#[test]
fn cores_are_shared_only_if_allowed() {
    let recorded = machines::container();
    let asked = Request { siblings: true, housekeeping: 0, ..request(16, Some("mlx5_0")) };
    let plan = make(&recorded, &asked).unwrap();
    assert_eq!(plan.cpus(), ids("4-7,20-23,36-39,52-55"));
    // First one thread of each core, near and far, then the second threads.
    let first: Ids = plan.workers[..8].iter().map(|worker| worker.cpu).collect();
    assert_eq!(first, ids("4-7,20-23"));
    assert!(plan.notes.iter().any(|note| note.contains("share a core")), "{:?}", plan.notes);
    let error = make(&recorded, &Request { workers: 17, ..asked }).unwrap_err();
    assert!(matches!(error, MakeError::TooMany { room: 16, .. }), "{error:?}");
}

#[test]
fn plans_can_be_made_for_eight_nodes_and_1536_cpus() {
    let recorded = machines::eight_nodes();
    let plan = make(&recorded, &request(64, Some("mlx5_0"))).unwrap();
    check(&recorded, &plan);
    assert_eq!(plan.cpus(), ids("128-159,224-255"), "node 7, then 4, the first of its socket");
    let recorded = machines::many();
    let plan = make(&recorded, &request(767, Some("mlx5_0"))).unwrap();
    check(&recorded, &plan);
    assert!(plan.cpus().contains(1199) && plan.cpus().contains(1024), "{:?}", plan.cpus());
    assert_eq!(plan.workers[0].cpu, 1152, "isolated, and near: the second threads of 384 to 431");
    let error = make(&recorded, &request(768, Some("mlx5_0"))).unwrap_err();
    assert!(matches!(error, MakeError::TooMany { room: 767, .. }), "{error:?}");
}

#[test]
fn a_missing_device_is_an_error_that_lists_the_others() {
    let recorded = machines::two_sockets();
    let error = make(&recorded, &request(1, Some("mlx5_7"))).unwrap_err().to_string();
    assert!(error.contains("`mlx5_7`") && error.contains("mlx5_0, mlx5_1, soft0"), "{error}");
    assert_eq!(make(&recorded, &request(0, None)), Err(MakeError::NoWorker));
}

fn tune(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tune")).args(words).output().unwrap()
}

/// A plan for one worker on this machine, in a file; with a core for housekeeping if there are two.
fn plan_here(name: &str) -> (PathBuf, Plan) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
    let cores = Machine::read(&doorbell_tune::Root::system()).unwrap().cores.len();
    let housekeeping = if cores > 1 { "1" } else { "0" };
    let path = file.to_str().unwrap();
    let words = ["plan", "--workers", "1", "--housekeeping", housekeeping, "--out", path];
    let output = tune(&words);
    assert!(output.status.success(), "{output:?}");
    let plan = Plan::load(&file).unwrap();
    (file, plan)
}

#[test]
fn a_program_runs_where_the_plan_says_and_its_exit_code_is_passed_on() {
    let (file, plan) = plan_here("runs");
    let path = file.to_str().unwrap();
    let script = "grep Cpus_allowed_list /proc/self/status; echo $DOORBELL_PLAN; exit 7";
    let output = tune(&["run", "--plan", path, "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("Cpus_allowed_list:\t{}\n{path}\n", plan.cpus()));
    let words = ["run", "--plan", path, "--with-housekeeping", "--", "sh", "-c", script];
    let text = String::from_utf8(tune(&words).stdout).unwrap();
    let both = plan.cpus().or(&plan.housekeeping);
    assert!(text.starts_with(&format!("Cpus_allowed_list:\t{both}\n")), "{text}");
}

#[test]
fn each_failure_to_run_has_its_exit_code() {
    let (file, plan) = plan_here("errors");
    let path = file.to_str().unwrap();
    let run = |path: &str, program: &str| {
        let output = tune(&["run", "--plan", path, "--", program]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run(path, "none-such-program").0, Some(127));
    assert_eq!(run(path, "/").0, Some(126));
    let (code, text) = run("/none-such.toml", "true");
    assert!(code == Some(125) && text.contains("/none-such.toml"), "{text}");
    // A plan of another machine, with CPUs beyond the usual mask.
    let text = std::fs::read_to_string(&file).unwrap();
    let other = file.with_file_name("other.toml");
    std::fs::write(&other, text.replace(&format!("cpu = {}", plan.workers[0].cpu), "cpu = 5000"))
        .unwrap();
    let (code, text) = run(other.to_str().unwrap(), "true");
    assert!(code == Some(125) && text.contains("5000") && text.contains("tune plan"), "{text}");
}

#[test]
fn the_command_fails_with_a_fix() {
    let recorded = machines::container();
    let root = recorded.folder().to_str().unwrap();
    let output = tune(&["plan", "--workers", "8", "--root", root]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("ask for fewer"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}
