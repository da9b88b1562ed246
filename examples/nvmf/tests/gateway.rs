//! Programs of others, through the gateway, on the soft device.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../tests/process/folder.rs"]
mod folder;
mod process;

use std::time::{Duration, Instant};

use folder::Folder;
use process::{LIMIT, Running, fill, have, port, run};

/// Seconds for which the gateway tries to connect again. On a busy machine a target may be killed
/// several times before the gateway has reached it.
const PATIENCE: &str = "250";

/// A target and a gateway, and the address of the gateway.
struct Bed {
    target: Option<Running>,
    _gateway: Running,
    uri: String,
    port: String,
    folder: Folder,
}

impl Bed {
    fn new(name: &str, store: &[&str]) -> Bed {
        let folder = Folder::new(name);
        let socket = folder.file("nbd.sock");
        let (target, line) = Running::nvmf(&[&["target", "--port", "0"], store].concat());
        let port = port(&line);
        let words = ["gateway", "--port", &port, "--unix", &socket, "--patience", PATIENCE];
        let (gateway, _) = Running::nvmf(&words);
        let uri = format!("nbd+unix:///?socket={socket}");
        Bed { target: Some(target), _gateway: gateway, uri, port, folder }
    }
}

/// The words of fio for writes that are all read again and checked.
fn verified(uri: &str, rest: &[&str]) -> Vec<String> {
    let uri = format!("--uri={uri}");
    let words = ["--name=verify", "--ioengine=nbd", &uri, "--verify=crc32c", "--do_verify=1"];
    let more = ["--verify_fatal=1", "--verify_state_save=0", "--group_reporting"];
    words.iter().chain(&more).chain(rest).map(|word| (*word).to_owned()).collect()
}

fn fio(uri: &str, rest: &[&str]) {
    let words = verified(uri, rest);
    let text = run("fio", &words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(text.contains("err= 0"), "{text}");
}

#[test]
fn an_image_is_copied_there_and_back() {
    if !have(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"]) {
        return;
    }
    let bed = Bed::new("copy", &["--memory", "32M"]);
    let info = run("nbdinfo", &[&bed.uri]);
    assert!(info.contains("export-size: 33554432") && info.contains("can_fua: true"), "{info}");
    let (image, back) = (bed.folder.file("image"), bed.folder.file("back"));
    fill(&image, 32 << 20);
    run("nbdcopy", &["--requests=64", &image, &bed.uri]);
    run("nbdcopy", &[&bed.uri, &back]);
    assert!(std::fs::read(&image).unwrap() == std::fs::read(&back).unwrap());
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &bed.uri]);
    let zeroed = "write -z 64k 1M; discard 4M 64k; write -P 0xab -f 8M 4k; flush";
    let seen = "read -P 0 64k 1M; read -P 0 4M 64k; read -P 0xab 8M 4k";
    for line in [zeroed, seen] {
        let words: Vec<&str> = line.split("; ").flat_map(|word| ["-c", word]).collect();
        let text = run("qemu-io", &[&["-f", "raw", &bed.uri], &words[..]].concat());
        assert!(!text.contains("failed"), "{text}");
    }
}

#[test]
fn fio_finds_what_it_wrote() {
    if !have(&["fio"]) {
        return;
    }
    let bed = Bed::new("fio", &["--memory", "64M"]);
    for rest in [
        &["--rw=randwrite", "--bsrange=512-128k", "--iodepth=32", "--size=12M"][..],
        &["--rw=write", "--bs=128k", "--iodepth=64", "--size=32M"],
        &["--rw=randwrite", "--bs=512", "--iodepth=1", "--size=128k"],
        &[
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=16",
            "--size=2M",
            "--numjobs=2",
            "--offset_increment=16M",
        ],
    ] {
        fio(&bed.uri, rest);
    }
}

/// Minutes for which the target is killed again and again, instead of five times: for a long run
/// by hand.
const MINUTES: &str = "DOORBELL_NVMF_MINUTES";

/// Nothing that was acknowledged is lost, because a file keeps it, and what was not is sent again.
#[test]
fn a_killed_target_loses_nothing_on_a_file() {
    if !have(&["fio"]) {
        return;
    }
    let folder = Folder::new("disk");
    let file = folder.file("disk");
    let mut bed = Bed::new("killed", &["--file", &file, "--size", "64M"]);
    let minutes: u64 = std::env::var(MINUTES).map_or(0, |text| text.parse().unwrap());
    let begun = Instant::now();
    let mut kills = (0, 0);
    loop {
        kills.0 += one_run_with_kills(&mut bed, &file, minutes > 0);
        kills.1 += 1;
        if begun.elapsed() >= Duration::from_secs(minutes * 60) {
            break;
        }
    }
    println!("{} kills in {} runs of fio, {:?}", kills.0, kills.1, begun.elapsed());
}

/// Verified writes while the target is killed five times, or all the time; returns how often.
fn one_run_with_kills(bed: &mut Bed, file: &str, always: bool) -> usize {
    let rest = ["--rw=randwrite", "--bsrange=512-64k", "--iodepth=16", "--size=64M"];
    let words = verified(&bed.uri, &[&rest[..], &["--fsync=32"]].concat());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let out = bed.folder.file("fio.out");
    let mut fio = Running::other("fio", &words, &out);
    let mut kills = 0;
    let end = Instant::now() + if always { LIMIT * 4 } else { LIMIT };
    while fio.runs() {
        assert!(Instant::now() < end, "fio waits for a reply after {kills} kills");
        let kill = always || kills < 5;
        let pause = if always { 2000 } else { 300 };
        std::thread::sleep(Duration::from_millis(if kill { pause } else { 50 }));
        if !kill || !fio.runs() {
            continue;
        }
        bed.target.take().unwrap().kill();
        let again = ["target", "--port", &bed.port, "--file", file];
        bed.target = Some(Running::nvmf(&again).0);
        kills += 1;
    }
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(fio.ends_well() && text.contains("err= 0"), "after {kills} kills: {text}");
    assert!(kills > 0, "fio was done before the first kill");
    kills
}
