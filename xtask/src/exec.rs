//! Runs programs: captured or streamed, with a time limit, leaving none behind.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;

/// The output and the end of a program.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Standard output and standard error, as they came.
    pub(crate) text: String,
    /// True if it ended by itself with exit code 0.
    pub(crate) ok: bool,
}

/// How long a captured program may print nothing: about ten times the longest silence of a build or
/// a test.
const SILENT: Duration = Duration::from_secs(1800);

/// Runs a program to its end and keeps its output. One that is silent for [`SILENT`] is ended with
/// the descendants that it has then, and has failed. So has one that left a descendant which holds
/// its output for as long. An error means it could not be started.
pub(crate) fn capture(command: &mut Command) -> Outcome<Captured> {
    capture_within(command, SILENT)
}

fn capture_within(command: &mut Command, silent: Duration) -> Outcome<Captured> {
    let failed = |cause, command: &Command| format!("cannot start {}: {cause}", name(command));
    let (mut reader, writer) = io::pipe().map_err(|cause| failed(cause, command))?;
    let second = writer.try_clone().map_err(|cause| failed(cause, command))?;
    let spawned = command.stdin(Stdio::null()).stdout(writer).stderr(second).spawn();
    // The command still holds our ends of the pipe, and reading would wait for them.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = spawned.map_err(|cause| failed(cause, command))?;
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut chunk = [0; 4096];
        // A failed read ends the output as its end does.
        while let Ok(count @ 1..) = reader.read(&mut chunk) {
            if tell.send(chunk[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    let (mut bytes, mut fell_silent) = (Vec::new(), false);
    loop {
        match told.recv_timeout(silent) {
            Ok(chunk) => bytes.extend(chunk),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                end(&mut child);
                fell_silent = true;
                let why = Limit::Silent(silent);
                bytes.extend(format!("\n{} was ended: {why}\n", name(command)).bytes());
                break;
            }
        }
    }
    let status = child.wait().map_err(|cause| format!("lost {}: {cause}", name(command)))?;
    let ok = status.success() && !fell_silent;
    Ok(Captured { text: String::from_utf8_lossy(&bytes).into_owned(), ok })
}

/// Runs a program that must succeed; shows its output only if it fails.
pub(crate) fn must(command: &mut Command) -> Outcome<String> {
    let done = capture(command)?;
    if done.ok {
        return Ok(done.text);
    }
    Err(format!("`{}` failed:\n{}", line(command), done.text.trim_end()))
}

/// The exit code as a shell would give it: 128 and the signal's number for a killed program.
pub(crate) fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// Where a streamed program's lines go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sink<'a> {
    /// To our own output as it comes.
    Through,
    /// To our own output, each line after this prefix.
    Prefixed(&'a str),
    /// Kept, and handed back at the end.
    Kept,
    /// To our own output as each line comes, and kept.
    Shown,
}

/// How a streamed program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` if it was ended at the limit.
    pub(crate) status: Option<ExitStatus>,
    /// What a [`Sink::Kept`] or a [`Sink::Shown`] kept: standard output, then standard error.
    pub(crate) text: String,
}

/// The time limits of a streamed program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// In total.
    Total(Duration),
    /// Without output. A busy machine makes a program slow, but not silent.
    Silent(Duration),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Total(time) => {
                write!(f, "the limit is {} s, --limit changes it", time.as_secs())
            }
            Limit::Silent(time) => write!(f, "it printed nothing for {} s", time.as_secs()),
        }
    }
}

/// Runs a program and passes its output to `sink` as it comes. Ends it with all its descendants
/// when it exceeds its limit or `stop` is set.
///
/// Both streams always go through a pipe: QEMU opens its outputs by path, which would overwrite the
/// earlier contents of a plain file.
pub(crate) fn stream(
    command: &mut Command,
    sink: Sink<'_>,
    limit: Limit,
    stop: &dyn Fn() -> bool,
) -> Outcome<Ended> {
    let (mut since, mut seen) = (Instant::now(), 0);
    let printed = &AtomicU64::new(0);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|cause| format!("cannot start {}: {cause}", name(command)))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let out = scope.spawn(move || out.map(|pipe| pump(pipe, sink, printed, io::stdout())));
        let err = scope.spawn(move || err.map(|pipe| pump(pipe, sink, printed, io::stderr())));
        let mut status = None;
        while !stop() {
            // Relaxed: the number only grows and carries nothing else.
            let (time, now) = match limit {
                Limit::Total(time) => (time, seen),
                Limit::Silent(time) => (time, printed.load(Ordering::Relaxed)),
            };
            if now != seen {
                (since, seen) = (Instant::now(), now);
            }
            if since.elapsed() >= time {
                break;
            }
            status =
                child.try_wait().map_err(|cause| format!("lost {}: {cause}", name(command)))?;
            if status.is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        if status.is_none() {
            end(&mut child);
        }
        let mut text = out.join().ok().flatten().unwrap_or_default();
        text.push_str(&err.join().ok().flatten().unwrap_or_default());
        Ok(Ended { status, text })
    })
}

fn pump(pipe: impl Read, sink: Sink<'_>, printed: &AtomicU64, mut own: impl Write) -> String {
    let mut kept = Vec::new();
    let mut reader = BufReader::new(pipe);
    let mut chunk = Vec::new();
    loop {
        chunk.clear();
        // By lines, because two programs share our output. A direct stream passes bytes at once, so
        // that a prompt without a line end is visible.
        let read = match sink {
            Sink::Through => reader.fill_buf().map(|bytes| chunk.extend_from_slice(bytes)),
            Sink::Kept | Sink::Shown | Sink::Prefixed(_) => {
                reader.read_until(b'\n', &mut chunk).map(drop)
            }
        };
        if let Sink::Through = sink {
            reader.consume(chunk.len());
        }
        // A failed read ends the stream as its end does.
        if read.is_err() || chunk.is_empty() {
            break;
        }
        // Relaxed: only its movement matters.
        printed.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        let written = match sink {
            Sink::Kept => {
                kept.append(&mut chunk);
                continue;
            }
            Sink::Shown => {
                kept.extend_from_slice(&chunk);
                own.write_all(&chunk)
            }
            Sink::Through => own.write_all(&chunk),
            Sink::Prefixed(prefix) => {
                let line = chunk.strip_suffix(b"\n").unwrap_or(&chunk);
                own.write_all(format!("{prefix}{}\n", String::from_utf8_lossy(line)).as_bytes())
            }
        };
        if written.and_then(|()| own.flush()).is_err() {
            break;
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Kills a program and all its descendants. Its process group stays ours, so that a keyboard
/// interrupt reaches all of them without our help.
fn end(child: &mut Child) {
    let mut family = vec![child.id()];
    let mut index = 0;
    while index < family.len() {
        family.extend(children(family[index]));
        index += 1;
    }
    let list = family.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let killed = Command::new("sh").arg("-c").arg(format!("kill -KILL {list}")).output();
    if killed.is_err() {
        child.kill().unwrap_or_default();
    }
    child.wait().map(drop).unwrap_or_default();
}

/// The children of a process, by the parent that each process names in `/proc/PID/stat`.
fn children(parent: u32) -> Vec<u32> {
    let processes = crate::place::entries(std::path::Path::new("/proc"));
    let ids = processes.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    ids.filter(|id| parent_of(*id) == Some(parent)).collect()
}

fn parent_of(id: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The program's name comes second, in brackets, and may itself contain brackets and spaces.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// A command as a person would type it, for messages.
pub(crate) fn line(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    std::iter::once(name(command)).chain(words).collect::<Vec<_>>().join(" ")
}

fn name(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    const LONG: Limit = Limit::Total(Duration::from_secs(600));

    #[test]
    fn what_is_shown_is_kept_as_well() {
        let (mut own, printed) = (Vec::new(), AtomicU64::new(0));
        let kept = pump(&b"a\nb"[..], Sink::Shown, &printed, &mut own);
        assert_eq!((kept.as_str(), own.as_slice()), ("a\nb", &b"a\nb"[..]));
    }

    #[test]
    fn output_and_code_come_back() {
        let ended = stream(&mut sh("echo a; echo b >&2; exit 7"), Sink::Kept, LONG, &|| false)
            .expect("sh starts");
        assert_eq!(ended.text, "a\nb\n");
        assert_eq!(ended.status.map(code), Some(7));
    }

    #[test]
    fn a_killed_program_has_a_shell_code() {
        let ended =
            stream(&mut sh("kill -TERM $$"), Sink::Kept, LONG, &|| false).expect("sh starts");
        assert_eq!(ended.status.map(code), Some(143));
    }

    #[test]
    fn an_ended_program_takes_its_children_along() {
        // The grandchild holds the pipe: if it lived on, reading would last as long.
        let flag = std::env::temp_dir().join(format!("xtask-exec-{}", std::process::id()));
        let script = format!("sleep 1000 & touch '{}'; wait", flag.display());
        let ended = stream(&mut sh(&script), Sink::Kept, LONG, &|| flag.exists());
        std::fs::remove_file(&flag).expect("the script made it");
        assert!(ended.expect("sh starts").status.is_none());
    }

    #[test]
    fn a_program_past_its_limit_is_ended() {
        for limit in [Limit::Total(Duration::ZERO), Limit::Silent(Duration::ZERO)] {
            let ended = stream(&mut sh("exec sleep 1000"), Sink::Kept, limit, &|| false);
            assert!(ended.expect("sh starts").status.is_none(), "{limit:?}");
        }
    }

    #[test]
    fn a_program_that_prints_may_take_longer_than_one_that_is_silent() {
        let silent = Limit::Silent(Duration::from_secs(2));
        let mut talks = sh("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done");
        let ended = stream(&mut talks, Sink::Kept, silent, &|| false).expect("sh starts");
        assert_eq!(ended.status.map(code), Some(0), "{}", ended.text);
        let mut stops = sh("echo 1; exec sleep 1000");
        let ended = stream(&mut stops, Sink::Kept, silent, &|| false).expect("sh starts");
        assert!(ended.status.is_none() && ended.text == "1\n");
    }

    #[test]
    fn a_captured_program_that_falls_silent_is_ended_and_has_failed() {
        // In both, a child holds the pipe as well; the second one outlives its parent.
        for script in ["echo first; sleep 1000 & exec sleep 1000", "echo first; sleep 30 & exit 0"]
        {
            let done = capture_within(&mut sh(script), Duration::from_secs(10));
            let Captured { ok, text } = done.expect("sh starts");
            assert!(!ok && text.starts_with("first\n"), "{text}");
            assert!(text.contains("sh was ended: it printed nothing for 10 s"), "{text}");
        }
        let done = capture(&mut sh("echo a; echo b >&2")).expect("sh starts");
        assert!(done.ok && done.text == "a\nb\n", "{}", done.text);
    }

    #[test]
    fn a_failure_shows_the_line_and_its_output() {
        let message = must(&mut sh("echo because; exit 1")).expect_err("it fails");
        assert!(message.contains("sh -c echo because") && message.contains("\nbecause"));
        assert!(must(&mut Command::new("no-such-program")).is_err());
    }
}
