//! `compare A B -- COMMAND`: two builds of this program measure the same in turn, round by round.
//! Each run is a process of its own, whose memory lies elsewhere each time: parts of one run share
//! that, and so differ less from each other than from those of the next run. What another program
//! or the hypervisor does to the machine for a while, it does to both builds.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::error::{self, Failure};
use crate::machine::floor::Floor;
use crate::machine::interrupt;
use crate::traffic::random::Random;
use crate::versus::figure::Figure;
use crate::versus::interval::Interval;
use crate::versus::system;
use crate::versus::verdict::{Row, Said, Verdict, beyond};

/// While a figure is not decided, up to this many times the asked rounds are measured.
const TIMES_MOST: u32 = 4;

/// Time of each figure of a run, in seconds, unless the command says.
const DURATION: &str = "0.2";

/// What to measure.
pub(crate) struct Turns<'a> {
    /// Both builds.
    pub(crate) programs: [&'a Path; 2],
    /// A test and its options.
    pub(crate) command: &'a [String],
    /// The rounds that count before a figure is judged.
    pub(crate) rounds: u32,
    /// Differences of less than this, a part of the time, count as none.
    pub(crate) least: f64,
}

impl Turns<'_> {
    /// Measures until each figure is decided, and prints a line for each round.
    ///
    /// # Errors
    /// A build cannot be started, or fails.
    pub(crate) fn run(&self) -> Result<(Verdict, Value), Failure> {
        self.check()?;
        interrupt::watch()?;
        let mut contest = Contest::default();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let random = &mut Random::new(now.as_secs(), u64::from(now.subsec_nanos()));
        for round in 0..self.rounds * TIMES_MOST {
            if round > 0 && round % self.rounds == 0 && contest.is_decided(self.least) {
                break;
            }
            // By chance, so that nothing that comes and goes can favour one of them.
            let first = random.below(2) as usize;
            let mut runs = [Value::Null, Value::Null];
            for n in [first, 1 - first] {
                runs[n] = self.measure(n)?;
            }
            if interrupt::is_asked() {
                break;
            }
            error::say(&contest.add(round + 1, &runs))?;
            contest.origins = [0, 1].map(|n| self.origin(n, &runs[n]));
        }
        if contest.lines.is_empty() {
            interrupt::check(0, "rounds")?;
        }
        let rounds = contest.json(self);
        Ok((contest.verdict(self.least), rounds))
    }

    /// # Errors
    /// The command cannot be measured in turn.
    fn check(&self) -> Result<(), Failure> {
        let taken = ["--json", "--csv", "--baseline", "--listen", "--connect"];
        let is = |word: &&String| taken.iter().any(|name| word.split('=').next() == Some(name));
        match self.command.iter().find(is) {
            Some(word) => Err(Failure::new(format!(
                "{word}: both builds are started again and again, and their figures are read here; \
                 leave it out, and give compare --csv or --json before the --"
            ))),
            None => Ok(()),
        }
    }

    /// Which build, and where it ran. The commit that a run names is that of the folder, and so the
    /// same for both.
    fn origin(&self, n: usize, run: &Value) -> String {
        format!("{}, {}", self.programs[n].display(), system(run))
    }

    /// A run of one build.
    fn measure(&self, n: usize) -> Result<Value, Failure> {
        let program = self.programs[n];
        let mut command = Command::new(program);
        command.args(self.command).args(["--json", "-"]);
        let says_time =
            |word: &String| word.starts_with("--duration") || word.starts_with("--quick");
        if !self.command.iter().any(says_time) {
            command.args(["--duration", DURATION]);
        }
        let asked = || format!("run {}", program.display());
        let output = command.stdin(Stdio::null()).output().map_err(|error| {
            Failure::system(asked(), &error, "before a -- compare takes two builds of this program")
        })?;
        if !output.status.success() && !interrupt::is_asked() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or("it said nothing").to_owned();
            return Err(Failure::new(format!("{}: {last}", asked())));
        }
        let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        match document["results"].is_array() || interrupt::is_asked() {
            true => Ok(document),
            false => Err(Failure::new(format!(
                "{}: its output has no results; name a test that takes --json, such as latency",
                asked()
            ))),
        }
    }
}

/// One figure of both builds.
struct Line {
    before: Figure,
    after: Figure,
    /// The times of each round that counts, and where the cores were.
    pairs: Vec<(f64, f64, Option<String>)>,
    /// Rounds that do not count.
    left_out: u32,
}

impl Line {
    fn count(&self) -> usize {
        self.pairs.len()
    }

    fn interval(&self) -> Option<Interval> {
        let ratios: Vec<f64> = self.pairs.iter().map(|(before, after, _)| after / before).collect();
        Interval::of_rounds(&ratios)
    }

    fn said(&self, least: f64) -> Said {
        match self.interval() {
            Some(interval) => beyond(interval, least.ln_1p()),
            None => Said::Nothing(format!(
                "{} rounds of {} count: the cores moved, or more rounds are needed",
                self.count(),
                self.count() + self.left_out as usize
            )),
        }
    }

    /// True if the verdict stands: a difference, or no room for one that counts.
    fn is_decided(&self, least: f64) -> bool {
        let leaves_no_room = |of: Interval| of.low > 1.0 / (1.0 + least) && of.high < 1.0 + least;
        match self.said(least) {
            Said::Slower | Said::Faster => true,
            Said::Same => self.interval().is_some_and(leaves_no_room),
            Said::Nothing(_) => false,
        }
    }

    /// Takes a round. Returns the ratio if it counts.
    fn add(&mut self, before: &Figure, after: &Figure) -> Option<f64> {
        let were_still = before.mode == after.mode && before.mode.as_deref() != Some(Floor::MIX);
        let times = before.calm_time().zip(after.calm_time()).filter(|_| were_still);
        match times {
            Some((one, two)) => self.pairs.push((one, two, before.mode.clone())),
            None => self.left_out += 1,
        }
        times.map(|(one, two)| two / one)
    }
}

/// The rounds so far.
#[derive(Default)]
struct Contest {
    lines: Vec<Line>,
    /// Figures that only one of the builds has.
    alone: usize,
    origins: [String; 2],
}

impl Contest {
    /// Takes a round of both builds. Returns a line that tells of it.
    fn add(&mut self, round: u32, runs: &[Value; 2]) -> String {
        let [mut before, after] = [Figure::all(&runs[0]), Figure::all(&runs[1])];
        let (mut told, mut alone) = (format!("round {round}:"), 0);
        for after in after {
            let Some(place) = before.iter().position(|before| before.is_like(&after)) else {
                alone += 1;
                continue;
            };
            let before = before.remove(place);
            let line = self.lines.iter().position(|line| line.before.is_like(&before));
            let line = line.unwrap_or_else(|| {
                let (before, after) = (before.clone(), after.clone());
                self.lines.push(Line { before, after, pairs: Vec::new(), left_out: 0 });
                self.lines.len() - 1
            });
            told.push_str(&match self.lines[line].add(&before, &after) {
                Some(ratio) => format!(" {ratio:.3}"),
                None => " moved".to_owned(),
            });
        }
        self.alone = alone + before.len();
        told.push('\n');
        told
    }

    fn is_decided(&self, least: f64) -> bool {
        self.lines.iter().all(|line| line.is_decided(least))
    }

    fn verdict(self, least: f64) -> Verdict {
        let near = |of: &Option<String>| of.as_deref() == Some(Floor::NEAR);
        let all = || self.lines.iter().flat_map(|line| &line.pairs);
        let (count, near) = (all().count(), all().filter(|(_, _, mode)| near(mode)).count());
        let left_out: u32 = self.lines.iter().map(|line| line.left_out).sum();
        let mut notes = format!(
            "in turn: {count} pairs of figures count, {near} of them with near cores; {left_out} \
             do not, because the cores moved\n"
        );
        let open = self.lines.iter().filter(|line| !line.is_decided(least)).count();
        if open > 0 {
            notes.push_str(&format!(
                "the noise leaves room for {:.0} % in {open} figures: try more --rounds, or a \
                 longer --duration\n",
                100.0 * least
            ));
        }
        let row = |line: Line| {
            let (interval, said) = (line.interval(), line.said(least));
            let Line { mut before, mut after, pairs, .. } = line;
            (before.values, after.values) =
                pairs.into_iter().map(|(one, two, _)| (one, two)).unzip();
            Row { before, after, interval, said }
        };
        let rows = self.lines.into_iter().map(row).collect();
        Verdict { rows, alone: self.alone, origins: self.origins, notes }
    }

    /// All rounds, as they were.
    fn json(&self, turns: &Turns<'_>) -> Value {
        let pair = |(one, two, mode): &(f64, f64, Option<String>)| json!([one, two, mode]);
        let line = |line: &Line| {
            json!({
                "figure": line.before.name,
                "unit": line.before.unit,
                "rounds": line.pairs.iter().map(pair).collect::<Vec<_>>(),
                "left_out": line.left_out,
            })
        };
        json!({
            "before": turns.programs[0],
            "after": turns.programs[1],
            "command": turns.command.join(" "),
            "figures": self.lines.iter().map(line).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::random::Random;

    /// A run of one figure that takes `times` as long as usual, give or take a twentieth.
    fn run(random: &mut Random, times: f64, mode: &str) -> Value {
        let time = 60.0 * times * (0.95 + random.below(1001) as f64 / 10_000.0);
        json!({"commit": "x", "results": [{
            "test": "latency", "size": 8, "placement": {"mode": mode, "floor_ns": 50.0},
            "parts": [{"mean_ns": time}, {"mean_ns": time}],
        }]})
    }

    /// A contest of that many rounds, during which the whole machine gets slower and slower.
    fn contest(seed: u64, rounds: u32, times: f64) -> Contest {
        let (mut contest, random) = (Contest::default(), &mut Random::new(seed, 3));
        for round in 1..=rounds {
            let drift = 1.0 + f64::from(round) / 10.0;
            contest.add(round, &[run(random, drift, "NEAR"), run(random, drift * times, "NEAR")]);
        }
        contest
    }

    fn last_line(contest: Contest) -> String {
        contest.verdict(0.05).text().lines().last().unwrap().to_owned()
    }

    #[test]
    fn a_build_that_is_a_tenth_slower_is_called_so_and_itself_is_not() {
        for seed in 0..10 {
            assert_eq!(last_line(contest(seed, 24, 1.0)), "no difference: 1 figures");
            assert_eq!(last_line(contest(seed, 24, 1.1)), "slower: 1 of 1 figures");
            assert_eq!(last_line(contest(seed, 24, 1.0 / 1.1)), "faster: 1 of 1 figures");
        }
    }

    #[test]
    fn a_round_in_which_the_cores_moved_does_not_count() {
        let (mut contest, random) = (contest(1, 10, 1.1), &mut Random::new(2, 3));
        for modes in [["NEAR", "FAR"], ["MIX", "MIX"]] {
            let said = contest.add(11, &modes.map(|mode| run(random, 9.0, mode)));
            assert_eq!(said, "round 11: moved\n");
        }
        assert!(!contest.is_decided(0.05), "ten rounds are too few");
        let text = contest.verdict(0.05).text();
        assert!(text.contains("10 pairs of figures count, 10 of them with near cores; 2 do not"));
        assert!(text.contains("10 rounds of 12 count"), "{text}");
        assert!(text.ends_with("undecided: no figure could be compared\n"), "{text}");
    }

    #[test]
    fn noise_that_leaves_room_for_a_difference_is_told() {
        let (mut contest, random) = (Contest::default(), &mut Random::new(7, 3));
        for round in 1..=12 {
            let noise = if round % 2 == 0 { 1.2 } else { 0.8 };
            let runs = [run(random, 1.0, "FAR"), run(random, noise, "FAR")];
            contest.add(round, &runs);
        }
        assert!(!contest.is_decided(0.05));
        let text = contest.verdict(0.05).text();
        assert!(text.contains("the noise leaves room for 5 % in 1 figures"), "{text}");
        assert!(text.ends_with("no difference: 1 figures\n"), "{text}");
    }
}
