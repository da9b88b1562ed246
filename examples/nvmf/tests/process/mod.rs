//! The program `nvmf` as processes, and the programs of others beside it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A program that does not end in this time hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// A process. It is killed if the test ends before it.
pub(crate) struct Running(Child);

impl Running {
    /// Starts `nvmf` on the soft device, and waits for its first line.
    pub(crate) fn nvmf(words: &[&str]) -> (Running, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvmf"));
        command.env("DOORBELL_DEVICE", "soft0").args(words).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("its output is piped");
        BufReader::new(out).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it says where it serves: {words:?}");
        (Running(child), line)
    }

    /// Starts a program of others, with its output in a file.
    pub(crate) fn other(program: &str, words: &[&str], out: &str) -> Running {
        let out = File::create(out).unwrap();
        let mut command = Command::new(program);
        command.args(words).stdout(out.try_clone().unwrap()).stderr(out);
        Running(command.spawn().expect("it starts"))
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits for its end; true if it was a good one.
    pub(crate) fn ends_well(mut self) -> bool {
        let end = Instant::now() + LIMIT;
        while self.runs() {
            assert!(Instant::now() < end, "it hangs");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.0.wait().unwrap().success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The port at the end of a line.
pub(crate) fn port(line: &str) -> String {
    let digits = line.split("127.0.0.1:").nth(1).expect("an address");
    digits.chars().take_while(char::is_ascii_digit).collect()
}

/// True if all programs are installed; says what is missing otherwise.
pub(crate) fn have(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).exists());
    let missing: Vec<&str> = programs.iter().copied().filter(|name| !there(name)).collect();
    if !missing.is_empty() {
        println!("skipped: {} is not installed", missing.join(" "));
    }
    missing.is_empty()
}

/// Runs a program of others; asserts that it ends well, and returns its output.
pub(crate) fn run(program: &str, words: &[&str]) -> String {
    let Output { status, stdout, stderr } = Command::new(program).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{program} {words:?}: {status}\n{text}");
    text
}

/// Fills a file with bytes that look random.
pub(crate) fn fill(path: &str, len: usize) {
    let mut state = 9_u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend((state >> 16).to_le_bytes().iter().take(6));
    }
    bytes.truncate(len);
    std::fs::write(Path::new(path), bytes).unwrap();
}
