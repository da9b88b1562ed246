//! Whether the second of two runs was faster or slower: each figure, then all of them in one line.

use std::path::Path;

use serde_json::Value;

use crate::error::Failure;
use crate::measure::run::SWITCHES_MOST;
use crate::tell::csv;
use crate::tell::grid::Grid;
use crate::versus::figure::Figure;
use crate::versus::interval::Interval;
use crate::versus::origin;

/// Exit code of a comparison in which a figure is slower.
pub(crate) const SLOWER: u8 = 4;

/// What is said of a figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Slower,
    Faster,
    Same,
    /// The two cannot be compared, and why.
    Nothing(String),
}

/// One figure of both runs.
pub(crate) struct Row {
    pub(crate) before: Figure,
    pub(crate) after: Figure,
    pub(crate) interval: Option<Interval>,
    pub(crate) said: Said,
}

/// Two runs, figure by figure.
pub(crate) struct Verdict {
    pub(crate) rows: Vec<Row>,
    /// Figures that only one of the runs has.
    pub(crate) alone: usize,
    pub(crate) origins: [String; 2],
    /// What else it rests on, in lines.
    pub(crate) notes: String,
}

const HEAD: [&str; 8] = ["figure", "unit", "before", "after", "times", "from", "to", "verdict"];

impl Verdict {
    /// Compares two runs. Differences of less than `least`, a part of the time, count as none.
    pub(crate) fn of(before: &Value, after: &Value, least: f64) -> Verdict {
        let (mut left, mut rows, mut alone) = (Figure::all(before), Vec::new(), 0);
        for after in Figure::all(after) {
            match left.iter().position(|before| before.is_like(&after)) {
                Some(place) => rows.push(Row::of(left.remove(place), after, least)),
                None => alone += 1,
            }
        }
        alone += left.len();
        let (origins, notes) = ([origin(before), origin(after)], String::new());
        Verdict { rows, alone, origins, notes }
    }

    fn count(&self, is: impl Fn(&Said) -> bool) -> usize {
        self.rows.iter().filter(|row| is(&row.said)).count()
    }

    /// A table, what it rests on, and the verdict in the last line.
    pub(crate) fn text(&self) -> String {
        let mut grid = Grid::new(&HEAD);
        self.rows.iter().for_each(|row| grid.push(row.cells()));
        let [before, after] = &self.origins;
        format!(
            "{}before: {before}\nafter: {after}\ntimes: how many times as long a message takes \
             after as before, and the interval that has it in 999 of 1000 cases\n{}{}\n",
            grid.text(),
            self.notes,
            self.last_line()
        )
    }

    /// The verdict over all figures.
    fn last_line(&self) -> String {
        let slower = self.count(|said| *said == Said::Slower);
        let faster = self.count(|said| *said == Said::Faster);
        let unknown = self.count(|said| matches!(said, Said::Nothing(_)));
        let compared = self.rows.len() - unknown;
        let mut line = match (slower, faster, compared) {
            (1.., _, _) => format!("slower: {slower} of {compared} figures"),
            (0, 1.., _) => format!("faster: {faster} of {compared} figures"),
            (0, 0, 1..) => format!("no difference: {compared} figures"),
            (0, 0, 0) => "undecided: no figure could be compared".to_owned(),
        };
        if unknown > 0 && compared > 0 {
            line.push_str(&format!("; {unknown} could not be compared"));
        }
        if self.alone > 0 {
            line.push_str(&format!("; {} are of one run only", self.alone));
        }
        line
    }

    /// The table as CSV.
    pub(crate) fn write_csv(&self, file: &Path) -> Result<(), Failure> {
        csv::write(file, &HEAD, self.rows.iter().map(Row::cells))
    }

    /// # Errors
    /// A figure is slower, or none could be compared. The text has said so.
    pub(crate) fn exit(&self) -> Result<(), Failure> {
        if self.count(|said| *said == Said::Slower) > 0 {
            return Err(Failure::said(SLOWER));
        }
        match self.count(|said| matches!(said, Said::Same | Said::Faster)) {
            0 => Err(Failure::said(crate::error::UNDECIDED)),
            _ => Ok(()),
        }
    }
}

impl Row {
    fn of(before: Figure, after: Figure, least: f64) -> Row {
        let interval = Interval::of(&before.values, &after.values);
        let said = judge(&before, &after, interval, least);
        Row { before, after, interval, said }
    }

    fn cells(&self) -> Vec<String> {
        let number = |figure: Option<f64>, digits: usize| {
            figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        let of = |pick: fn(Interval) -> f64| number(self.interval.map(pick), 3);
        let digits = if self.before.unit.contains("ns") { 1 } else { 3 };
        vec![
            self.before.name.clone(),
            self.before.unit.to_owned(),
            number(self.before.middle(), digits),
            number(self.after.middle(), digits),
            of(|of| of.ratio),
            of(|of| of.low),
            of(|of| of.high),
            match &self.said {
                Said::Slower => "slower".to_owned(),
                Said::Faster => "faster".to_owned(),
                Said::Same => "no difference".to_owned(),
                Said::Nothing(why) => why.clone(),
            },
        ]
    }
}

/// A figure is slower if the interval is above 1 and the ratio is above what counts as none. Cores
/// that moved between the runs make the figures of both different, too.
fn judge(before: &Figure, after: &Figure, interval: Option<Interval>, least: f64) -> Said {
    if before.mode != after.mode {
        let mode = |of: &Figure| of.mode.clone().unwrap_or_else(|| "unknown".to_owned());
        return Said::Nothing(format!("cores {} and {}", mode(before), mode(after)));
    }
    let Some(interval) = interval else {
        return Said::Nothing("too few parts: measure for longer".to_owned());
    };
    let moved = before.floor_ns.zip(after.floor_ns);
    let moved = moved.map_or(0.0, |(before, after)| (after / before).ln().abs());
    match beyond(interval, least.ln_1p().max(moved)) {
        Said::Same => Said::Same,
        said => match before.switches.max(after.switches) {
            SWITCHES_MOST.. => {
                Said::Nothing("differs, but other programs ran on the core".to_owned())
            }
            _ => said,
        },
    }
}

/// Whether a ratio differs from 1, and by more than counts as none. `none` is a logarithm.
pub(crate) fn beyond(interval: Interval, none: f64) -> Said {
    match interval.ratio.ln() {
        times if interval.low > 1.0 && times > none => Said::Slower,
        times if interval.high < 1.0 && times < -none => Said::Faster,
        _ => Said::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::random::Random;
    use serde_json::json;

    /// How far a time is from the usual one, evenly within `noise` on both sides.
    fn shaken(random: &mut Random, noise: f64) -> f64 {
        1.0 + noise * (random.below(2001) as f64 / 1000.0 - 1.0)
    }

    /// A recorded run: latencies and rates whose parts scatter by `noise`. Every time is `times` as
    /// long as usual, and the floor is `floor`.
    fn run(seed: u64, (times, noise): (f64, f64), (floor, mode): (f64, &str)) -> Value {
        let random = &mut Random::new(seed, 7);
        let mut record = |size: u64, usual: f64, is_rate: bool| {
            let mut part = |_| {
                let time = usual * times * shaken(random, noise);
                match is_rate {
                    true => json!({"messages_per_second": 1e9 / time}),
                    false => json!({"p50_ns": 60.0, "mean_ns": time}),
                }
            };
            json!({
                "test": if is_rate { "rate" } else { "latency" }, "size": size,
                "placement": {"mode": mode, "floor_ns": floor},
                "parts": (0..20).map(&mut part).collect::<Vec<_>>(),
            })
        };
        let results: Vec<Value> = (0..6)
            .flat_map(|n| [record(8 << n, 60.0, false), record(8 << n, 20.0, true)])
            .collect();
        json!({"commit": "x", "results": results})
    }

    const NEAR: (f64, &str) = (50.0, "NEAR");

    fn last_line(before: &Value, after: &Value) -> (String, Option<u8>) {
        let verdict = Verdict::of(before, after, 0.05);
        let text = verdict.text();
        (text.lines().last().unwrap().to_owned(), verdict.exit().err().map(|of| of.code))
    }

    #[test]
    fn a_run_with_itself_and_one_of_the_same_build_show_no_difference() {
        for seed in 0..10 {
            let one = run(seed, (1.0, 0.1), NEAR);
            let expected = ("no difference: 12 figures".to_owned(), None);
            assert_eq!(last_line(&one, &one), expected);
            assert_eq!(last_line(&one, &run(seed + 100, (1.0, 0.1), NEAR)), expected);
        }
    }

    #[test]
    fn a_build_that_is_a_tenth_slower_is_called_slower() {
        for seed in 0..10 {
            let (one, two) = (run(seed, (1.0, 0.05), NEAR), run(seed + 100, (1.1, 0.05), NEAR));
            assert_eq!(last_line(&one, &two), ("slower: 12 of 12 figures".to_owned(), Some(4)));
            assert_eq!(last_line(&two, &one), ("faster: 12 of 12 figures".to_owned(), None));
            // As much noise as difference hides it in some figures, but not in all.
            let (one, two) = (run(seed, (1.0, 0.1), NEAR), run(seed + 100, (1.1, 0.1), NEAR));
            let (line, code) = last_line(&one, &two);
            assert!(line.starts_with("slower: ") && code == Some(SLOWER), "{line}");
        }
    }

    #[test]
    fn a_small_difference_counts_as_none_however_sure_it_is() {
        let (one, two) = (run(1, (1.0, 0.001), NEAR), run(2, (1.04, 0.001), NEAR));
        assert_eq!(last_line(&one, &two).0, "no difference: 12 figures");
        assert_eq!(Verdict::of(&one, &two, 0.03).exit().unwrap_err().code, SLOWER);
    }

    #[test]
    fn what_the_machine_did_is_not_blamed_on_the_build() {
        let (one, slow) = (run(1, (1.0, 0.01), NEAR), run(2, (1.1, 0.01), (56.0, "NEAR")));
        assert_eq!(last_line(&one, &slow).0, "no difference: 12 figures");
        let far = run(2, (3.0, 0.01), (200.0, "FAR"));
        let expected = "undecided: no figure could be compared".to_owned();
        assert_eq!(last_line(&one, &far), (expected, Some(3)));
        assert!(Verdict::of(&one, &far, 0.05).text().contains("cores NEAR and FAR"));
    }

    #[test]
    fn what_other_programs_did_is_not_blamed_on_the_build() {
        let busy = |mut run: Value| {
            for record in run["results"].as_array_mut().unwrap() {
                record["placement"]["switches_per_second"] = 100.into();
            }
            run
        };
        let (one, two) = (run(1, (1.0, 0.01), NEAR), busy(run(2, (1.2, 0.01), NEAR)));
        let expected = "undecided: no figure could be compared".to_owned();
        assert_eq!(last_line(&one, &two), (expected, Some(3)));
        assert_eq!(last_line(&two, &two).0, "no difference: 12 figures");
    }

    #[test]
    fn figures_of_one_run_only_are_counted() {
        let (one, mut two) = (run(1, (1.0, 0.01), NEAR), run(2, (1.0, 0.01), NEAR));
        two["results"][0]["size"] = 9.into();
        let line = last_line(&one, &two).0;
        assert_eq!(line, "no difference: 11 figures; 2 are of one run only");
        two["results"][1]["parts"].as_array_mut().unwrap().truncate(4);
        let line = last_line(&one, &two).0;
        assert!(line.starts_with("no difference: 10 figures; 1 could not"), "{line}");
    }

    /// A run with one row of traffic, whose `offered` messages a second follow from its peak.
    fn traffic(row: &str, offered: u64) -> Value {
        let round = json!({"doorbell": {"p50": 60.0}, "naive": {"p50": 50.0}});
        let record = json!({
            "test": "traffic", "row": row, "offered_per_second": offered,
            "rounds": vec![round; 9],
        });
        json!({"results": [record]})
    }

    #[test]
    fn rows_of_traffic_are_compared_whatever_rate_was_measured_as_their_peak() {
        let (one, two) = (traffic("poisson-50", 1_000_000), traffic("poisson-50", 1_000_001));
        let verdict = Verdict::of(&one, &two, 0.05);
        assert_eq!(verdict.rows[0].before.name, "traffic poisson-50");
        assert_eq!(last_line(&one, &two), ("no difference: 1 figures".to_owned(), None));
    }

    #[test]
    fn figures_of_other_settings_are_not_compared() {
        let others = [
            ("transport", json!("ud")),
            ("no_srq", json!(true)),
            ("pattern", json!("ring")),
            ("ranks", json!(4)),
            ("sizes", json!([8, 64])),
            ("weights", json!([3, 1])),
            ("idle_links", json!(100)),
            ("offered_per_second", json!(5)),
        ];
        for (setting, value) in others {
            let (one, mut two) = (run(1, (1.0, 0.01), NEAR), run(2, (1.0, 0.01), NEAR));
            two["results"][0][setting] = value;
            let line = last_line(&one, &two).0;
            assert_eq!(line, "no difference: 11 figures; 2 are of one run only", "{setting}");
        }
    }
}
