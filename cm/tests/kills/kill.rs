//! Which process is killed and when, and how long its peer takes to notice.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{Dice, SOON};

/// The variable with the part to play, the number of messages to send, and an address.
pub(crate) const PART: &str = "DOORBELL_KILLS_PART";

/// Printed before the address that a peer listens on.
const LISTENING: &str = "listening on ";

/// A number of messages that means to talk without end.
pub(crate) const FOR_EVER: u32 = u32::MAX;

/// Starts a peer, which prints the address that it listens on.
pub(crate) fn peer(part: &str, messages: u32, addr: SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(PART, format!("{part} {messages} {addr}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Prints the address that this process listens on, for the process that started it.
pub(crate) fn say_address(addr: SocketAddr) {
    println!("{LISTENING}{addr}");
}

/// The address that a peer listens on; `None` if it dies before it listens.
pub(crate) fn address_in(said: Option<ChildStdout>) -> Option<SocketAddr> {
    let mut lines = BufReader::new(said?).lines().map_while(Result::ok);
    // The harness prints the name of the test on the same line.
    lines.find_map(|line| line.split_once(LISTENING)?.1.parse().ok())
}

/// How far a peer has come, as seen by the survivor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Its process was started.
    Started,
    /// It listens, or has asked for a connection.
    Met,
    /// It has sent something.
    Heard,
}

/// When a peer is killed: this long after this stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doom {
    stage: Stage,
    then: Duration,
}

impl Doom {
    /// One of four peers dies while it starts or connects, one while it connects, and two while
    /// they talk.
    pub(crate) fn roll(dice: &mut Dice) -> Doom {
        let (stage, then) = match dice.below(4) {
            0 => (Stage::Started, dice.micros_below(15_000)),
            1 => (Stage::Met, dice.micros_below(1000)),
            _ => (Stage::Heard, dice.micros_below(10_000)),
        };
        Doom { stage, then }
    }

    /// It dies while it talks.
    pub(crate) fn late() -> Doom {
        Doom { stage: Stage::Heard, then: Duration::from_millis(10) }
    }
}

/// When a peer was killed: between these two times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Killed {
    before: Instant,
    /// Nothing is left of its process.
    dead: Heard,
    /// How much later than requested a thread woke that slept a millisecond at a time, from then
    /// until the survivor noticed the end: the machine's own delay.
    overslept: Duration,
}

/// When a survivor noticed something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    at: Instant,
    /// The processor time that this process had used by then.
    cpu: Duration,
}

impl Heard {
    pub(crate) fn now() -> Heard {
        let at = Instant::now();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        // utime and stime, in hundredths of a second: proc(5).
        let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
        Heard { at, cpu: Duration::from_millis(10 * ticks) }
    }
}

/// Kills a peer at its time.
pub(crate) struct Killer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Killed>>,
}

#[derive(Default)]
struct Shared {
    stage: AtomicU8,
    dead: AtomicBool,
    /// The survivor has heard of the end.
    heard: AtomicBool,
}

impl Killer {
    pub(crate) fn of(child: Child, doom: Doom) -> Killer {
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        let thread = Some(thread::spawn(move || kill(child, doom, &seen)));
        Killer { shared, thread }
    }

    /// Records that the peer has reached this stage.
    pub(crate) fn note(&self, stage: Stage) {
        let news = self.shared.stage.fetch_max(stage as u8, Ordering::Relaxed) < stage as u8;
        if let (true, Some(thread)) = (news, &self.thread) {
            thread.thread().unpark();
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        // Acquire: what the peer has done is seen after that.
        self.shared.dead.load(Ordering::Acquire)
    }

    /// The survivor has heard of the end. Waits until the peer is dead.
    pub(crate) fn wait(mut self) -> Killed {
        self.shared.heard.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Killer {
    /// A failed test leaves no peer behind.
    fn drop(&mut self) {
        self.note(Stage::Heard);
        self.shared.heard.store(true, Ordering::Relaxed);
        // It has reported the reason already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn kill(mut child: Child, doom: Doom, shared: &Shared) -> Killed {
    let start = Instant::now();
    let comes = loop {
        if shared.stage.load(Ordering::Relaxed) >= doom.stage as u8 {
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
    let status = child.wait().unwrap();
    let dead = Heard::now();
    shared.dead.store(true, Ordering::Release);
    assert!(comes, "a peer is not served: {doom:?} does not come");
    assert_eq!(status.signal(), Some(9), "it had died by itself");
    let mut overslept = Duration::ZERO;
    while !shared.heard.load(Ordering::Relaxed) {
        const NAP: Duration = Duration::from_millis(1);
        let start = Instant::now();
        thread::sleep(NAP);
        // A nap is a little longer on any machine.
        overslept += start.elapsed().saturating_sub(2 * NAP);
    }
    Killed { before, dead, overslept }
}

impl Killed {
    /// How late the end was noticed, without the time for which the machine was busy with others.
    /// For a survivor that sleeps, that time is how much a sleeping thread overslept. A survivor
    /// that spins uses all the time it gets, so for it that time is what it did not get.
    fn late(&self, heard: Heard, spins: bool) -> Duration {
        let passed = heard.at.saturating_duration_since(self.dead.at);
        let late = passed.saturating_sub(self.overslept);
        match spins {
            true => late.min(heard.cpu.saturating_sub(self.dead.cpu)),
            false => late,
        }
    }
}

/// What happens to one peer, and what the survivor does.
pub(crate) struct Round {
    pub(crate) doom: Doom,
    /// True if the survivor sleeps.
    pub(crate) asleep: bool,
    /// Number of requests or questions; after that both sides are idle.
    pub(crate) requests: u32,
}

impl Round {
    /// The next round. It has at least `least` requests, unless they go on without end.
    pub(crate) fn roll(number: u32, least: u32, dice: &mut Dice) -> Round {
        let requests = match number % 4 {
            0 | 1 => FOR_EVER,
            _ => least + dice.below(20) as u32,
        };
        Round { doom: Doom::roll(dice), asleep: number % 2 == 1, requests }
    }
}

/// How late the ends of peers were noticed, without the machine's own delay.
#[derive(Default)]
pub(crate) struct Ends(Vec<Duration>);

impl Ends {
    /// The longest time until the survivor has noticed and everything has completed: five times
    /// what two sleeps take at most. A survivor that is not told would wait for [`SOON`].
    const BOUND: Duration = Duration::from_secs(1);
    /// A busy machine may leave the survivor without a core for longer, but seldom: one of this
    /// many ends may be late, by at most this much.
    const OFTEN: usize = 100;
    const LATEST: Duration = Duration::from_secs(20);

    /// Records the end of a peer, noticed by a survivor that spins or sleeps.
    pub(crate) fn note(&mut self, killed: Killed, heard: Heard, spins: bool) {
        assert!(heard.at >= killed.before, "the end was noticed before it happened");
        let late = killed.late(heard, spins);
        if late > Ends::BOUND {
            eprintln!("end {} was heard of {late:?} after the kill", self.0.len());
        }
        assert!(late <= Ends::LATEST, "the end was noticed {late:?} after the kill");
        self.0.push(late);
    }

    /// Asserts that there were at least `least` ends, and that all were noticed in time.
    pub(crate) fn check(mut self, least: u32) {
        self.0.sort_unstable();
        let ends = self.0.len();
        assert!(ends >= least as usize, "{ends} ends only, and there should be {least}");
        let late = ends - self.0.partition_point(|late| *late <= Ends::BOUND);
        let of = |place: usize| self.0.get(place).copied().unwrap_or_default();
        let (middle, last) = (of(ends / 2), of(ends.saturating_sub(1)));
        eprintln!("{ends} ends, {middle:?} late by the median, {last:?} at most, {late} too late");
        assert!(late <= ends.div_ceil(Ends::OFTEN), "{late} of {ends} ends were noticed late");
    }
}

#[test]
fn a_late_end_is_late_unless_the_machine_is() {
    let start = Heard::now();
    let after = |wall, cpu| Heard {
        at: start.at + Duration::from_millis(wall),
        cpu: start.cpu + Duration::from_millis(cpu),
    };
    let killed = |overslept| Killed {
        before: start.at,
        dead: start,
        overslept: Duration::from_millis(overslept),
    };
    let late =
        |wall, cpu, overslept, spins| killed(overslept).late(after(wall, cpu), spins) > Ends::BOUND;
    assert!(late(1500, 1600, 0, true) && late(1500, 0, 0, false), "a quiet machine");
    assert!(!late(1500, 500, 0, true), "it had the processor for a third of that");
    assert!(
        !late(1500, 0, 1000, false) && late(3500, 0, 1000, false),
        "a sleeping survivor's oversleep counts as the machine's"
    );
}
