//! What recorded machines have, according to the library and to `tune topology`.

#![expect(clippy::unwrap_used, reason = "a test")]

mod machines;

use std::process::{Command, Output};

use doorbell_tune::{DeviceKind, Ids, Machine, Root};
use machines::Recorded;

fn ids(text: &str) -> Ids {
    text.parse().unwrap()
}

fn read(recorded: &Recorded) -> Machine {
    Machine::read(&recorded.root()).unwrap()
}

fn tune(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tune")).args(words).output().unwrap()
}

fn topology(recorded: &Recorded, more: &[&str]) -> String {
    let folder = recorded.folder().to_str().unwrap();
    let output = tune(&[&["topology", "--root", folder], more].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn two_sockets_have_a_nic_each_and_a_cpu_that_is_switched_off() {
    let recorded = machines::two_sockets();
    let machine = read(&recorded);
    assert_eq!((machine.packages.len(), machine.nodes.len(), machine.cores.len()), (2, 2, 32));
    assert_eq!(machine.cpus.offline, ids("31"));
    assert_eq!(machine.cpus.isolated, ids("8-15,24-30,40-47,56-63"));
    // The mask does not include the isolated CPUs; the cpuset does.
    assert_eq!(machine.cpus.usable, ids("0-30,32-63"));
    let alone = machine.cores.iter().find(|core| core.cpus.contains(63)).unwrap();
    assert_eq!(alone.cpus, ids("63"), "its sibling is switched off");
    assert_eq!((alone.package, alone.node), (1, 1));
    let nic = machine.device("mlx5_1").unwrap();
    assert_eq!((nic.node, nic.kind), (Some(1), DeviceKind::Rdma));
    assert_eq!(
        (nic.pci.as_deref(), nic.interface.as_deref()),
        (Some("0000:af:00.0"), Some("eth1"))
    );
    let link = nic.link.unwrap();
    assert_eq!((link.width, link.width_max, link.speed_gts), (8, 16, 16.0));
    assert_eq!((machine.distance(0, 1), machine.distance(1, 1)), (21, 10));
    let l3: Vec<&Ids> =
        machine.caches.iter().filter(|cache| cache.level == 3).map(|cache| &cache.cpus).collect();
    assert_eq!(l3, [&ids("0-15,32-47"), &ids("16-30,48-63")]);
}

#[test]
fn amd_has_four_nodes_per_socket_and_one_without_memory() {
    let machine = read(&machines::amd());
    assert_eq!((machine.packages.len(), machine.nodes.len(), machine.cores.len()), (2, 8, 64));
    let memory: Vec<u64> = machine.nodes.iter().map(|node| node.memory_bytes >> 30).collect();
    assert_eq!(memory, [64, 64, 64, 64, 64, 64, 0, 64]);
    assert_eq!(machine.device("mlx5_0").unwrap().node, Some(5));
    assert_eq!([4, 5, 0].map(|to| machine.distance(5, to)), [12, 10, 32]);
    assert_eq!(machine.caches.iter().filter(|cache| cache.level == 3).count(), 16);
}

#[test]
fn a_laptop_has_two_kinds_of_cores_and_one_unnamed_node() {
    let machine = read(&machines::laptop());
    assert_eq!(machine.nodes.len(), 1);
    assert_eq!(machine.nodes[0].cpus, ids("0-15"));
    let slow: Vec<usize> =
        machine.cores.iter().filter(|core| core.slow).map(|core| core.cpus.len()).collect();
    let fast: Vec<usize> =
        machine.cores.iter().filter(|core| !core.slow).map(|core| core.cpus.len()).collect();
    assert_eq!((fast, slow), (vec![2; 4], vec![1; 8]));
    // With one node the kernel writes -1.
    assert_eq!(machine.device("wlp0s20f3").unwrap().node, Some(0));
}

#[test]
fn a_container_may_use_its_cpuset_and_sees_the_whole_machine() {
    let machine = read(&machines::container());
    assert_eq!(machine.cpus.usable, ids("4-7,20-23,36-39,52-55"));
    assert_eq!(machine.cpus.online, ids("0-30,32-63"));
}

#[test]
fn a_sibling_that_is_switched_off_does_not_count() {
    let recorded = machines::two_sockets();
    recorded.write("/sys/devices/system/cpu/cpu63/topology/core_cpus_list", "31,63");
    let machine = read(&recorded);
    assert!(machine.cores.iter().any(|core| core.cpus == ids("63")));
    assert!(!machine.cores.iter().any(|core| core.cpus.contains(31)));
}

#[test]
fn all_1536_cpus_are_read() {
    let recorded = machines::many();
    let machine = read(&recorded);
    assert_eq!(machine.cores.len(), 768);
    assert_eq!(machine.cores[767].cpus, ids("767,1535"));
    assert_eq!(machine.cpus.usable.len(), 1536);
    assert_eq!(machine.caches.iter().filter(|cache| cache.level == 3).count(), 48);
}

#[test]
fn this_machine_can_be_read() {
    let machine = Machine::read(&Root::system()).unwrap();
    let cpus: usize = machine.cores.iter().map(|core| core.cpus.len()).sum();
    assert_eq!(machine.cpus.online.len(), cpus);
    assert!(!machine.nodes.is_empty() && machine.nodes[0].memory_bytes > 0);
    assert!(doorbell_tune::cores().iter().all(|cpu| machine.cpus.usable.contains(*cpu)));
    // A virtual machine may get more memory in the meantime.
    let still = |mut machine: Machine| {
        machine.nodes.iter_mut().for_each(|node| node.memory_bytes = 0);
        machine
    };
    let by_files = Machine::from_files(&Root::system()).unwrap();
    assert_eq!(still(machine), still(by_files), "by hwloc, if the feature numa is on");
}

#[test]
fn the_tree_lists_special_cpus_and_nodes() {
    let text = topology(&machines::two_sockets(), &[]);
    for line in [
        "CPUs switched off: 31",
        "CPUs isolated (i): 8-15,24-30,40-47,56-63",
        "    mlx5_1: 0000:af:00.0, under eth1, x8 at 16 GT/s (could be x16 at 16 GT/s)",
        "  node 0: 64 GiB, CPUs 0-15,32-47",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.contains(" 8+40i ") && text.contains(" 63i\n"), "{text}");
    let text = topology(&machines::amd(), &[]);
    assert!(text.contains("nodes without memory: 6") && text.contains("  node 6: no memory"));
    let text = topology(&machines::laptop(), &[]);
    assert!(text.contains("CPUs of the slower kind (s): 8-15"), "{text}");
    let text = topology(&machines::container(), &[]);
    assert!(text.contains("may not use (x): 0-3,8-19,24-30,32-35,40-51,56-63"), "{text}");
}

#[test]
fn the_tree_has_each_core_in_its_package_even_if_a_node_spans_both() {
    let text = topology(&machines::others::nodes_overlap(), &[]);
    let tree = "package 0
  node 0: 4 GiB, CPUs 0-7
    L3 32 MiB, cores 0+1 2+3 4+5 6+7
package 1
  node 0: the same, CPUs 8-15
    L3 32 MiB, cores 8+9 10+11 12+13 14+15
";
    assert!(text.contains(tree), "{text}");
}

#[test]
fn json_has_the_same_facts() {
    let text = topology(&machines::amd(), &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["nodes"][6]["memory_bytes"], 0);
    assert_eq!(json["nodes"][5]["cpus"], "40-47,104-111");
    assert_eq!(json["cores"].as_array().unwrap().len(), 64);
    let nic = json["devices"].as_array().unwrap().iter().find(|d| d["name"] == "mlx5_0").unwrap();
    assert_eq!((&nic["node"], &nic["link"]["speed_gts"]), (&5.into(), &16.0.into()));
}

#[test]
fn the_picture_has_every_core_and_device() {
    let recorded = machines::laptop();
    let file = recorded.folder().join("machine.svg");
    topology(&recorded, &["--svg", file.to_str().unwrap()]);
    let svg = std::fs::read_to_string(file).unwrap();
    for text in [">0+1<", ">6+7<", ">8<", ">15<", ">wlp0s20f3, x1 at 5 GT/s<"] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn a_recorded_copy_is_the_same_machine() {
    for recorded in [machines::two_sockets(), machines::laptop(), machines::container()] {
        let copy = recorded.folder().join("copy");
        topology(&recorded, &["--record", copy.to_str().unwrap()]);
        assert_eq!(Machine::read(&Root::at(&copy)).unwrap(), read(&recorded));
        let output = tune(&["topology", "--record", copy.to_str().unwrap()]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains("name a new folder"), "{text}");
    }
    // This machine, with the kernel's real links.
    let place = machines::laptop();
    let copy = place.folder().join("copy");
    let output = tune(&["topology", "--record", copy.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let (here, there) = (Machine::from_files(&Root::system()), Machine::read(&Root::at(&copy)));
    assert_eq!(there.unwrap().devices, here.unwrap().devices);
}

#[test]
fn a_folder_without_a_machine_is_an_error_that_says_what_is_needed() {
    let output = tune(&["topology", "--root", "/none-such"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("/none-such/sys/devices/system/cpu/online"), "{text}");
    assert!(text.contains("a recorded machine is a folder"), "{text}");
    let output = tune(&["topology", "--xml", "/none-such"]);
    let text = String::from_utf8(output.stderr).unwrap();
    let fix = if cfg!(feature = "numa") { "lstopo FILE.xml" } else { "--features numa" };
    assert!(text.contains(fix) && output.status.code() == Some(1), "{text}");
}
