//! Programs as processes, with their output.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A program that prints nothing for this long hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A program on the soft device.
pub(crate) fn program(path: &str) -> Command {
    let mut command = Command::new(path);
    command.env("DOORBELL_DEVICE", "soft0");
    command
}

/// A process. It is killed if the test ends before it.
pub(crate) struct Running {
    child: Child,
    out: Option<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let out = child.stdout.take().map(BufReader::new);
        Running { child, out }
    }

    /// Waits for a line that begins so.
    pub(crate) fn says(&mut self, words: &str) -> String {
        let mut line = String::new();
        let out = self.out.as_mut().expect("its output is piped");
        while !line.starts_with(words) {
            line.clear();
            assert!(out.read_line(&mut line).expect("a line") > 0, "it does not say `{words}`");
        }
        line
    }

    /// Waits for the address that a server prints; the words for its client.
    pub(crate) fn port(&mut self) -> [String; 2] {
        let line = self.says("listening on ");
        let port = line.trim_end().rsplit(':').next().expect("a port");
        ["--port".to_owned(), port.to_owned()]
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let line = format!("kill -{name} {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &line]).status().expect("sh runs");
        assert!(sent.success(), "{line}");
    }

    /// Waits for its end. Asserts its exit code and that it has printed these words.
    pub(crate) fn ends_with(self, code: i32, words: &str) {
        self.ends_with_all(code, &[words]);
    }

    /// As [`Running::ends_with`], with several words; returns its output.
    pub(crate) fn ends_with_all(mut self, code: i32, all: &[&str]) -> String {
        let (tell, told) = mpsc::channel();
        let mut out = self.out.take().expect("its output is piped");
        let mut errors = self.child.stderr.take().expect("its errors are piped");
        thread::spawn(move || {
            let mut text = String::new();
            let read = out.read_to_string(&mut text);
            let read = read.and_then(|_| errors.read_to_string(&mut text));
            let _ = tell.send(read.map(|_| text));
        });
        let said = told.recv_timeout(LIMIT).expect("it hangs").expect("its output is text");
        let status = self.child.wait().expect("it has ended");
        assert_eq!(status.code(), Some(code), "{status}: {said}");
        for words in all {
            assert!(said.contains(words), "`{words}` is missing: {said}");
        }
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
