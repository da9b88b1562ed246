//! Who is killed, when, and how late that is heard of.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{Dice, SOON};

/// The variable that names the part to play, how many messages to send in it, and an address.
pub(crate) const PART: &str = "DOORBELL_KILLS_PART";

/// What is said in front of the address that a peer listens on.
const LISTENING: &str = "listening on ";

/// Who sends so many messages talks for ever.
pub(crate) const FOR_EVER: u32 = u32::MAX;

/// Starts a peer, which says on its standard output where it listens.
pub(crate) fn peer(part: &str, messages: u32, addr: SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(PART, format!("{part} {messages} {addr}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Tells the process that started this one where it listens.
pub(crate) fn say_address(addr: SocketAddr) {
    println!("{LISTENING}{addr}");
}

/// Where a peer listens; none if it is dead before it does.
pub(crate) fn address_in(said: Option<ChildStdout>) -> Option<SocketAddr> {
    let mut lines = BufReader::new(said?).lines().map_while(Result::ok);
    // On the same line the test is named.
    lines.find_map(|line| line.split_once(LISTENING)?.1.parse().ok())
}

/// How far a peer has come, as its survivor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Its process was started.
    Started,
    /// It listens, or has asked for a connection.
    Met,
    /// It has said something.
    Heard,
}

/// When a peer is killed: so long after that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doom {
    stage: Stage,
    then: Duration,
}

impl Doom {
    /// Of four, one dies while it starts or connects, one while it connects, two as they talk.
    pub(crate) fn roll(dice: &mut Dice) -> Doom {
        let (stage, then) = match dice.below(4) {
            0 => (Stage::Started, dice.micros_below(15_000)),
            1 => (Stage::Met, dice.micros_below(1000)),
            _ => (Stage::Heard, dice.micros_below(10_000)),
        };
        Doom { stage, then }
    }

    /// It dies as it talks.
    pub(crate) fn late() -> Doom {
        Doom { stage: Stage::Heard, then: Duration::from_millis(10) }
    }
}

/// When a peer was killed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Killed {
    before: Instant,
    /// The call has returned.
    after: Instant,
}

/// Kills a peer when its time has come.
pub(crate) struct Killer {
    stage: Arc<AtomicU8>,
    thread: Option<JoinHandle<Killed>>,
}

impl Killer {
    pub(crate) fn of(child: Child, doom: Doom) -> Killer {
        let stage = Arc::new(AtomicU8::new(Stage::Started as u8));
        let seen = stage.clone();
        let thread = Some(thread::spawn(move || kill(child, doom, &seen)));
        Killer { stage, thread }
    }

    /// The peer has come so far.
    pub(crate) fn note(&self, stage: Stage) {
        let news = self.stage.fetch_max(stage as u8, Ordering::Relaxed) < stage as u8;
        if let (true, Some(thread)) = (news, &self.thread) {
            thread.thread().unpark();
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the peer is dead.
    pub(crate) fn wait(mut self) -> Killed {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Killer {
    /// A test that fails leaves no peer behind.
    fn drop(&mut self) {
        self.note(Stage::Heard);
        // It has said why already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn kill(mut child: Child, doom: Doom, stage: &AtomicU8) -> Killed {
    let start = Instant::now();
    let comes = loop {
        if stage.load(Ordering::Relaxed) >= doom.stage as u8 {
            break true;
        }
        match SOON.checked_sub(start.elapsed()) {
            Some(left) => thread::park_timeout(left),
            None => break false,
        }
    };
    thread::sleep(doom.then);
    let before = Instant::now();
    child.kill().unwrap();
    let after = Instant::now();
    let status = child.wait().unwrap();
    assert!(comes, "a peer is not served: {doom:?} does not come");
    assert_eq!(status.signal(), Some(9), "it had died by itself");
    Killed { before, after }
}

/// How one peer is survived.
pub(crate) struct Round {
    pub(crate) doom: Doom,
    /// The survivor sleeps.
    pub(crate) asleep: bool,
    /// So many requests or questions there are: then both rest.
    pub(crate) requests: u32,
}

impl Round {
    /// The next one, with `least` requests if they end at all.
    pub(crate) fn roll(number: u32, least: u32, dice: &mut Dice) -> Round {
        let requests = match number % 4 {
            0 | 1 => FOR_EVER,
            _ => least + dice.below(20) as u32,
        };
        Round { doom: Doom::roll(dice), asleep: number % 2 == 1, requests }
    }
}

/// How late the ends of peers were heard of.
#[derive(Default)]
pub(crate) struct Ends(Vec<Duration>);

impl Ends {
    /// How long the end of a peer takes to be heard of, and what has come home by then.
    const BOUND: Duration = Duration::from_millis(100);
    /// A machine with other things to do may leave the survivor without a core for longer, but
    /// seldom: of so many ends one may be late, and this late.
    const OFTEN: usize = 100;
    const LATEST: Duration = Duration::from_secs(2);

    pub(crate) fn note(&mut self, killed: Killed, heard: Instant) {
        assert!(heard >= killed.before, "an end is heard of before there is one");
        let late = heard.saturating_duration_since(killed.after);
        if late > Ends::BOUND {
            eprintln!("end {} was heard of {late:?} after the kill", self.0.len());
        }
        assert!(late <= Ends::LATEST, "an end was heard of {late:?} after the kill");
        self.0.push(late);
    }

    /// Every end was heard of in time, and there were so many at least.
    pub(crate) fn check(mut self, least: u32) {
        self.0.sort_unstable();
        let ends = self.0.len();
        assert!(ends >= least as usize, "{ends} ends only, and there should be {least}");
        let late = ends - self.0.partition_point(|late| *late <= Ends::BOUND);
        let of = |place: usize| self.0.get(place).copied().unwrap_or_default();
        let (middle, last) = (of(ends / 2), of(ends.saturating_sub(1)));
        eprintln!("{ends} ends, {middle:?} late by the median, {last:?} at most, {late} too late");
        assert!(late <= ends.div_ceil(Ends::OFTEN), "{late} of {ends} ends were heard of late");
    }
}
