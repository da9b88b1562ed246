//! The lines between the ranks: one TCP connection from each to rank 0, which says what it knows
//! when all have come to the same point ([`Net::gather`]). A rank that ends is noticed at once, one
//! that is silent or makes no progress after a while; then all of them end with one error.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Failure;

/// Longest line, in bytes: the figures of all ranks.
const LINE_MAX: u64 = 64 << 20;

/// How often a rank looks at its own threads, unless [`Net::set_pace`] says otherwise.
const PACE: Duration = Duration::from_millis(20);

/// How often a rank says that it is alive.
pub(crate) const BEAT: Duration = Duration::from_millis(500);

/// The least time that a rank may be silent, however short the patience.
const SILENCE_MIN: Duration = Duration::from_secs(2);

/// How long rank 0 looks for a better reason after the first bad news: a rank that has died leaves
/// others with broken connections.
const GRACE: Duration = Duration::from_millis(500);

/// How long a rank that has failed waits until rank 0 has printed why.
const PARTING: Duration = Duration::from_secs(5);

/// How long a line may take to be written.
pub(crate) const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A message between ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Say {
    /// The first line of a rank.
    Hello(Hello),
    /// It is alive.
    Beat,
    /// The sender's part of the data that rank 0 gathers.
    Part(Value),
    /// The parts of all ranks.
    All(Vec<Value>),
    /// It failed, or rank 0 ends the run, for this reason.
    Failed(String),
    /// Rank 0 is of another run, which it goes on with.
    Refused(String),
}

/// What a rank says of itself first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) job: String,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// What it was asked to measure.
    pub(crate) asked: String,
    /// Its host, for people.
    pub(crate) host: String,
    pub(crate) process: u32,
}

/// News from a rank: a line, or `None` when its connection has ended.
pub(crate) type News = (u32, Option<Say>);

/// Reads the lines of a rank on a thread of its own, until its connection ends.
pub(crate) fn read_on(rank: u32, mut from: BufReader<TcpStream>, to: Sender<News>) {
    // Detached: it ends with the connection.
    thread::spawn(move || {
        while let Some(said) = read(&mut from) {
            if to.send((rank, Some(said))).is_err() {
                return;
            }
        }
        let _ = to.send((rank, None));
    });
}

/// The next line; `None` if there is none, or none of this program.
pub(crate) fn read(from: &mut BufReader<impl Read>) -> Option<Say> {
    let mut line = Vec::new();
    from.take(LINE_MAX).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

/// Writes a line. If the other side is gone, reading tells.
pub(crate) fn write(to: &mut TcpStream, what: &Say) {
    if let Ok(mut line) = serde_json::to_vec(what) {
        line.push(b'\n');
        let _ = to.write_all(&line);
    }
}

/// Another rank, as rank 0 knows it; or rank 0, as another rank knows it.
pub(crate) struct Member {
    pub(crate) rank: u32,
    /// Host and process, for people.
    pub(crate) is: String,
    pub(crate) line: TcpStream,
    /// When it was heard last.
    pub(crate) heard: Instant,
}

impl Member {
    fn name(&self) -> String {
        format!("rank {} ({})", self.rank, self.is)
    }
}

/// The lines of this rank.
pub(crate) struct Net {
    rank: u32,
    /// For rank 0 all other ranks, in order; for those rank 0.
    members: Vec<Member>,
    news: Receiver<News>,
    /// How long a rank may be silent, or make no progress.
    patience: Duration,
    /// For rank 0: the part of each rank that is there already.
    parts: Vec<Option<Value>>,
    /// When this rank said last that it is alive.
    beat: Instant,
    /// How long one look waits for a line.
    pace: Duration,
    /// The run has ended for all ranks.
    is_over: bool,
    /// Rank 0 is gone, or of another run, so that this rank prints its failure itself.
    is_alone: bool,
}

/// The progress of this rank.
pub(crate) type Watch<'a> = dyn FnMut() -> Result<u64, Failure> + 'a;

impl Net {
    pub(crate) fn new(
        rank: u32,
        members: Vec<Member>,
        news: Receiver<News>,
        patience: Duration,
    ) -> Net {
        let parts = vec![None; members.len() + 1];
        let (beat, pace, is_over, is_alone) = (Instant::now(), PACE, false, false);
        Net { rank, members, news, patience, parts, beat, pace, is_over, is_alone }
    }

    /// How often to look from now on: each look takes a core for a moment.
    pub(crate) fn set_pace(&mut self, pace: Duration) {
        self.pace = pace;
    }

    /// Looks once whether all is well.
    ///
    /// # Errors
    /// As for [`Net::gather`].
    pub(crate) fn look(&mut self, what: &str, watch: &mut Watch<'_>) -> Result<(), Failure> {
        match self.step(what, watch) {
            Ok(_) => Ok(()),
            Err(failure) => self.fail(failure),
        }
    }

    /// True for the rank that reports.
    pub(crate) fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Waits until every rank is here with its part. Returns all parts, in the order of the ranks.
    /// `what` names it for people.
    ///
    /// # Errors
    /// A rank has failed, has ended, or is silent.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        what: &str,
        part: &T,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<T>, Failure> {
        let nonsense = |_| Failure::new("a rank makes no sense; run the same version everywhere");
        let part = serde_json::to_value(part).map_err(nonsense)?;
        let all = match self.rank {
            0 => self.collect(what, part, watch),
            _ => self.contribute(what, part, watch),
        };
        let all = all.or_else(|failure| self.fail(failure))?;
        all.into_iter().map(|part| serde_json::from_value(part).map_err(nonsense)).collect()
    }

    /// Waits until this rank has come to a point.
    ///
    /// # Errors
    /// As for [`Net::gather`]; it makes no progress.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        watch: &mut Watch<'_>,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<(), Failure> {
        let (mut before, mut since) = (0, Instant::now());
        while !is_over() {
            let mut now = before;
            self.look(what, &mut || {
                now = watch()?;
                Ok(now)
            })?;
            if now != before {
                (before, since) = (now, Instant::now());
            }
            // A rank that is silent is the better reason, and found first.
            if since.elapsed() > self.patience + 2 * SILENCE_MIN {
                return self.fail(Failure::new(format!(
                    "nothing has moved for {} s ({what}); look at the other ranks, or give them \
                     longer with --wait",
                    self.patience.as_secs_f64()
                )));
            }
        }
        Ok(())
    }

    fn collect(
        &mut self,
        what: &str,
        own: Value,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<Value>, Failure> {
        self.parts[0] = Some(own);
        while self.parts.iter().any(Option::is_none) {
            self.step(what, watch)?;
        }
        let all: Vec<Value> = self.parts.iter_mut().filter_map(Option::take).collect();
        let said = Say::All(all.clone());
        self.members.iter_mut().for_each(|member| write(&mut member.line, &said));
        Ok(all)
    }

    fn contribute(
        &mut self,
        what: &str,
        own: Value,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<Value>, Failure> {
        let said = Say::Part(own);
        self.members.iter_mut().for_each(|first| write(&mut first.line, &said));
        loop {
            if let Some(all) = self.step(what, watch)? {
                return Ok(all);
            }
        }
    }

    /// Looks at what this rank does, and waits a moment for a line. Returns the parts of all ranks
    /// if they came.
    fn step(&mut self, what: &str, watch: &mut Watch<'_>) -> Result<Option<Vec<Value>>, Failure> {
        watch()?;
        self.say_alive();
        match self.news.recv_timeout(self.pace) {
            Ok((rank, None)) => {
                self.is_alone = !self.is_first();
                Err(lost(&self.name(rank), what))
            }
            Ok((rank, Some(said))) => {
                let member = self.members.iter_mut().find(|member| member.rank == rank);
                member.into_iter().for_each(|member| member.heard = Instant::now());
                self.take(what, rank, said)
            }
            // All that was said has been heard.
            Err(RecvTimeoutError::Timeout) => self.check_silence(what).map(|()| None),
            Err(RecvTimeoutError::Disconnected) => Err(lost("every other rank", what)),
        }
    }

    /// # Errors
    /// A rank has said nothing for too long.
    fn check_silence(&mut self, what: &str) -> Result<(), Failure> {
        let limit = self.patience.max(SILENCE_MIN);
        let silent = self.members.iter().find(|member| member.heard.elapsed() > limit);
        let Some(name) = silent.map(Member::name) else { return Ok(()) };
        self.is_alone = !self.is_first();
        Err(Failure::new(format!(
            "{name} has been silent for {} s ({what}); is it stopped, or its host down? If it is \
             only slow, give it longer with --wait",
            limit.as_secs_f64()
        )))
    }

    /// Takes a line. Returns the parts of all ranks if those are in it.
    fn take(&mut self, what: &str, rank: u32, said: Say) -> Result<Option<Vec<Value>>, Failure> {
        let is_first = self.is_first();
        match said {
            Say::Beat => Ok(None),
            Say::Failed(text) if is_first => {
                Err(Failure::new(format!("{}: {text}", self.name(rank))))
            }
            // Rank 0 has printed why.
            Say::Failed(_) => Err(Failure::said(1)),
            Say::Refused(text) if !is_first => {
                self.is_alone = true;
                Err(Failure::new(text))
            }
            Say::All(all) if !is_first => Ok(Some(all)),
            Say::Part(part) if is_first => {
                if let Some(place) = self.parts.get_mut(rank as usize) {
                    *place = Some(part);
                }
                Ok(None)
            }
            Say::Hello(_) | Say::All(_) | Say::Part(_) | Say::Refused(_) => {
                Err(Failure::new(format!(
                    "{} spoke out of turn ({what}); run the same version everywhere",
                    self.name(rank)
                )))
            }
        }
    }

    /// Now and then, tells the others that this rank is alive.
    fn say_alive(&mut self) {
        if self.beat.elapsed() >= BEAT {
            self.beat = Instant::now();
            self.members.iter_mut().for_each(|member| write(&mut member.line, &Say::Beat));
        }
    }

    fn name(&self, rank: u32) -> String {
        let member = self.members.iter().find(|member| member.rank == rank);
        member.map_or_else(|| format!("rank {rank}"), Member::name)
    }

    /// Ends the run for all ranks. Returns the failure for rank 0, which prints it; the others
    /// print nothing, unless rank 0 is gone.
    pub(crate) fn fail<T>(&mut self, failure: Failure) -> Result<T, Failure> {
        if std::mem::replace(&mut self.is_over, true) {
            return Err(failure);
        }
        let is_first = self.is_first();
        let failure = if is_first { self.better(failure) } else { failure };
        if !failure.is_said() {
            let said = Say::Failed(failure.to_string());
            self.members.iter_mut().for_each(|member| write(&mut member.line, &said));
        }
        if is_first || self.is_alone {
            return Err(failure);
        }
        // A launcher ends all ranks when one has failed, so the one that prints goes first.
        let until = Instant::now() + PARTING;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match self.news.recv_timeout(left) {
                Ok((_, Some(_))) => {}
                Ok((_, None)) | Err(_) => break,
            }
        }
        Err(Failure::said(1))
    }

    /// A rank that has ended without a reason explains the broken connections of others.
    fn better(&self, failure: Failure) -> Failure {
        if is_loss(&failure) {
            return failure;
        }
        let (until, text) = (Instant::now() + GRACE, failure.to_string());
        let mut failed = Vec::new();
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match self.news.recv_timeout(left) {
                Ok((rank, Some(Say::Failed(_)))) => failed.push(rank),
                Ok((rank, None)) => {
                    // Those have said why before they ended.
                    let has_said =
                        failed.contains(&rank) || text.starts_with(&format!("rank {rank} "));
                    if !has_said {
                        return lost(&self.name(rank), "while messages were under way");
                    }
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        failure
    }
}

/// What a failure says if another rank is gone.
const ENDED: &str = "has ended too early";

fn is_loss(failure: &Failure) -> bool {
    failure.to_string().contains(ENDED)
}

fn lost(name: &str, what: &str) -> Failure {
    Failure::new(format!("{name} {ENDED} ({what}); see what it printed, or what ended it"))
}
