//! Ranks below `srun`, in a cluster of this machine alone that the test starts and ends.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::load::signal;
use crate::ranks::{check, line, read};
use crate::{scratch, stderr, wait_for};

/// A cluster of one node. It ends when this is dropped.
struct Cluster {
    folder: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for name in ["slurmd", "slurmctld", "munged"] {
            let file = self.folder.join(format!("{name}.pid"));
            let process = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
            if let Some(process) = process {
                signal(process, "TERM");
                wait_for(|| (!Path::new(&format!("/proc/{process}")).exists()).then_some(()));
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A port that is free now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Cluster {
    /// Starts authentication, controller and node.
    fn start() -> Cluster {
        let folder = scratch("slurm");
        fs::create_dir(&folder).unwrap();
        for name in ["state", "spool"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        // Its socket must be in a folder that everybody may enter.
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let cluster = Cluster { folder };
        let key = cluster.folder.join("munge.key");
        fs::write(&key, [7; 128]).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o400)).unwrap();
        fs::write(cluster.folder.join("slurm.conf"), cluster.conf()).unwrap();
        let at = |name: &str| cluster.folder.join(name).display().to_string();
        let options = [
            ("--key-file", "munge.key"),
            ("--socket", "munge.socket"),
            ("--pid-file", "munged.pid"),
            ("--log-file", "munged.log"),
            ("--seed-file", "munged.seed"),
        ];
        let options = options.map(|(name, file)| format!("{name}={}", at(file)));
        must(Command::new("munged").arg("--force").args(options));
        must(cluster.command("slurmctld").arg("-i"));
        must(&mut cluster.command("slurmd"));
        wait_for(|| {
            let states = cluster.command("sinfo").args(["-h", "-o", "%T"]).output().unwrap();
            String::from_utf8_lossy(&states.stdout).contains("idle").then_some(())
        });
        cluster
    }

    fn conf(&self) -> String {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let (host, at) = (host.trim(), self.folder.display());
        let (controller, node) = (port(), port());
        format!(
            "ClusterName=doorbell\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n\
             SlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket={at}/munge.socket\n\
             CredType=cred/munge\nSlurmctldPort={controller}\nSlurmdPort={node}\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool\n\
             SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.pid\n\
             SlurmctldLogFile={at}/slurmctld.log\nSlurmdLogFile={at}/slurmd.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nMpiDefault=none\n\
             ReturnToService=2\nSlurmdParameters=config_overrides\n\
             JobAcctGatherType=jobacct_gather/none\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES State=UP\n"
        )
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf")).stdin(Stdio::null());
        command
    }

    /// Runs the program as that many ranks.
    fn srun(&self, ranks: usize, line: &str) -> Output {
        let mut command = self.command("srun");
        command.args(["-n", &ranks.to_string()]);
        command.arg(env!("CARGO_BIN_EXE_doorbell-bench")).args(line.split_whitespace());
        command.env_remove("DOORBELL_DEVICE").env_remove("DOORBELL_PLAN").output().unwrap()
    }
}

fn must(command: &mut Command) {
    // A daemon keeps the standard streams of the process that started it.
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// True if a cluster can be started here.
fn can_start() -> bool {
    let missing = ["munged", "slurmctld", "slurmd", "srun"].into_iter().find(|name| {
        let path = std::env::var("PATH").unwrap_or_default();
        !path.split(':').any(|folder| Path::new(folder).join(name).exists())
    });
    // The owner of this process's folder is its user.
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|of| std::os::unix::fs::MetadataExt::uid(&of) == 0);
    match (missing, is_root) {
        (Some(name), _) => println!("skipped: there is no {name} (slurm-wlm, munge)"),
        (None, false) => println!("skipped: slurmd needs root"),
        (None, true) => return true,
    }
    false
}

#[test]
fn ranks_of_srun_take_their_place_from_the_environment() {
    if !can_start() {
        return;
    }
    let cluster = Cluster::start();
    for (ranks, pattern, test) in [
        (2, "pairs", "latency --size 8,4K"),
        (4, "all-to-all", "rate --size 64"),
        (4, "fan-in", "latency --size 8 --idle-links 3"),
    ] {
        let line = line(&format!("{test} --pattern {pattern} --json -"));
        let document = read(&cluster.srun(ranks, &line));
        check(&document, pattern, ranks);
        assert_eq!(document["results"][0]["launcher"], "Slurm");
    }
    let output = cluster.srun(3, &line("latency --pattern pairs"));
    let text = stderr(&output);
    let said: Vec<&str> = text.lines().filter(|line| line.starts_with("doorbell-bench")).collect();
    assert!(said.len() == 1 && said[0].contains("even number"), "{text}");
    assert!(!output.status.success());
}
