//! Starting programs: captured or streamed, with a limit on time, and none left behind.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;

/// What a program printed and how it ended.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Standard output and standard error, as they came.
    pub(crate) text: String,
    /// True if it ended by itself with exit code 0.
    pub(crate) ok: bool,
}

/// Runs a program to its end and keeps its output. An error means it could not be started.
pub(crate) fn capture(command: &mut Command) -> Outcome<Captured> {
    let failed = |cause, command: &Command| format!("cannot start {}: {cause}", name(command));
    let (mut reader, writer) = io::pipe().map_err(|cause| failed(cause, command))?;
    let second = writer.try_clone().map_err(|cause| failed(cause, command))?;
    let spawned = command.stdin(Stdio::null()).stdout(writer).stderr(second).spawn();
    // The command still holds our ends of the pipe, and reading would wait for them.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = spawned.map_err(|cause| failed(cause, command))?;
    let mut bytes = Vec::new();
    let read = reader.read_to_end(&mut bytes);
    let status = child.wait();
    let status = read.and(status).map_err(|cause| format!("lost {}: {cause}", name(command)))?;
    Ok(Captured { text: String::from_utf8_lossy(&bytes).into_owned(), ok: status.success() })
}

/// Runs a program that has to succeed; its output is shown only if it does not.
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
}

/// How a streamed program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` if it was ended at the limit.
    pub(crate) status: Option<ExitStatus>,
    /// What a [`Sink::Kept`] kept: standard output, then standard error.
    pub(crate) text: String,
}

/// Runs a program, sends its output to `sink` as it comes, and ends it with all its descendants
/// when `limit` has passed or `stop` says so.
///
/// Both streams always go through a pipe: QEMU opens its outputs by path, and on a plain file that
/// would overwrite what was written before.
pub(crate) fn stream(
    command: &mut Command,
    sink: Sink<'_>,
    limit: Duration,
    stop: &dyn Fn() -> bool,
) -> Outcome<Ended> {
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|cause| format!("cannot start {}: {cause}", name(command)))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let out = scope.spawn(move || out.map(|pipe| pump(pipe, sink, io::stdout())));
        let err = scope.spawn(move || err.map(|pipe| pump(pipe, sink, io::stderr())));
        let mut status = None;
        while started.elapsed() < limit && !stop() {
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

fn pump(pipe: impl Read, sink: Sink<'_>, mut own: impl Write) -> String {
    let mut kept = Vec::new();
    let mut reader = BufReader::new(pipe);
    match sink {
        Sink::Kept => {
            // A read that fails ends the stream like its end does: what came is what there is.
            reader.read_to_end(&mut kept).unwrap_or_default();
        }
        Sink::Through => loop {
            let length = match reader.fill_buf() {
                Ok([]) | Err(_) => break,
                Ok(bytes) => {
                    if own.write_all(bytes).and_then(|()| own.flush()).is_err() {
                        break;
                    }
                    bytes.len()
                }
            };
            reader.consume(length);
        },
        Sink::Prefixed(prefix) => {
            for line in reader.split(b'\n').map_while(Result::ok) {
                let line = format!("{prefix}{}\n", String::from_utf8_lossy(&line));
                if own.write_all(line.as_bytes()).and_then(|()| own.flush()).is_err() {
                    break;
                }
            }
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Kills a program and all that it started. Its process group stays ours, so that an interrupt
/// from the keyboard reaches the whole family without our help.
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

/// The children of a process, by the parent that every process names in `/proc/PID/stat`.
fn children(parent: u32) -> Vec<u32> {
    let processes = crate::place::entries(std::path::Path::new("/proc"));
    let ids = processes.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    ids.filter(|id| parent_of(*id) == Some(parent)).collect()
}

fn parent_of(id: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The program's name comes second, in brackets, and may hold brackets and spaces itself.
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

    const LONG: Duration = Duration::from_secs(600);

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
        // The grandchild holds the pipe: if it lived on, reading would last as long as it does.
        let flag = std::env::temp_dir().join(format!("xtask-exec-{}", std::process::id()));
        let script = format!("sleep 1000 & touch '{}'; wait", flag.display());
        let ended = stream(&mut sh(&script), Sink::Kept, LONG, &|| flag.exists());
        std::fs::remove_file(&flag).expect("the script made it");
        assert!(ended.expect("sh starts").status.is_none());
    }

    #[test]
    fn a_program_past_its_limit_is_ended() {
        let ended = stream(&mut sh("exec sleep 1000"), Sink::Kept, Duration::ZERO, &|| false);
        assert!(ended.expect("sh starts").status.is_none());
    }

    #[test]
    fn a_failure_shows_the_line_and_its_output() {
        let message = must(&mut sh("echo because; exit 1")).expect_err("it fails");
        assert!(message.contains("sh -c echo because") && message.contains("\nbecause"));
        assert!(must(&mut Command::new("no-such-program")).is_err());
    }
}
