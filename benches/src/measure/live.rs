//! What is known of the current figure while it is being measured: the percentiles or the rate of
//! its last part. Progress on a terminal shows it; elsewhere long runs print plain lines.

use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::error;

/// Time between two drawings. Each one takes a core for a moment.
const DRAW_EVERY: Duration = Duration::from_millis(250);

/// Runs that take longer print lines where there is no terminal.
const LONG: Duration = Duration::from_secs(10);

/// The bits of the figures of the last part; 0 if there is none.
struct Live {
    p50_ns: AtomicU64,
    p99_ns: AtomicU64,
    per_second: AtomicU64,
}

static LIVE: Live =
    Live { p50_ns: AtomicU64::new(0), p99_ns: AtomicU64::new(0), per_second: AtomicU64::new(0) };

static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| std::io::stderr().is_terminal());

/// True if anybody looks. Otherwise nothing is worked out while a figure is measured.
pub(crate) fn is_seen() -> bool {
    *IS_TERMINAL
}

// Relaxed, here and below: each figure stands for itself, and nothing follows from it.

/// The times of the last part.
pub(crate) fn times(p50_ns: f64, p99_ns: f64) {
    LIVE.p50_ns.store(p50_ns.to_bits(), Ordering::Relaxed);
    LIVE.p99_ns.store(p99_ns.to_bits(), Ordering::Relaxed);
}

/// Messages a second in the last part.
pub(crate) fn rate(per_second: f64) {
    LIVE.per_second.store(per_second.to_bits(), Ordering::Relaxed);
}

fn forget() {
    for figure in [&LIVE.p50_ns, &LIVE.p99_ns, &LIVE.per_second] {
        figure.store(0, Ordering::Relaxed);
    }
}

/// The figures of the last part, for the end of a line.
fn write(out: &mut dyn Write) {
    let of = |figure: &AtomicU64| f64::from_bits(figure.load(Ordering::Relaxed));
    let (p50, p99, rate) = (of(&LIVE.p50_ns), of(&LIVE.p99_ns), of(&LIVE.per_second));
    // There is nothing to do about a terminal that cannot be written to.
    if p50 > 0.0 {
        let _ = write!(out, "p50 {p50:.0} ns  p99 {p99:.0} ns");
    }
    if rate > 0.0 {
        let _ = write!(out, "{:.2} M/s", rate / 1e6);
    }
}

/// The progress of a run through its figures, on standard error.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Figures that are done, and all.
    count: (usize, usize),
    /// True if lines are printed.
    lines: bool,
}

impl Progress {
    /// A bar on a terminal; elsewhere lines, if the run is long.
    pub(crate) fn new(figures: usize, time: Duration) -> Progress {
        let (count, lines) = ((0, figures), !is_seen() && time > LONG);
        if !is_seen() {
            return Progress { bar: ProgressBar::hidden(), count, lines };
        }
        let bar = ProgressBar::new(figures as u64);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}  {live}");
        if let Ok(style) = style {
            let live = |_: &ProgressState, out: &mut dyn Write| write(out);
            bar.set_style(style.with_key("live", live));
        }
        bar.enable_steady_tick(DRAW_EVERY);
        Progress { bar, count, lines }
    }

    /// A figure begins.
    pub(crate) fn begin(&self, name: String) {
        forget();
        self.bar.set_message(name);
        self.bar.tick();
    }

    /// A figure is done.
    pub(crate) fn done(&mut self) {
        self.count.0 += 1;
        self.bar.inc(1);
        if self.lines {
            let ((done, all), name) = (self.count, self.bar.message());
            error::complain(&format_args!("{done} of {all} done: {name}"));
        }
    }

    /// All figures are done, or no more are wanted.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_stands_at_the_end_of_the_line() {
        let text = || {
            let mut text = String::new();
            write(&mut text);
            text
        };
        forget();
        assert_eq!(text(), "");
        times(61.7, 90.2);
        assert_eq!(text(), "p50 62 ns  p99 90 ns");
        forget();
        rate(2.5e6);
        assert_eq!(text(), "2.50 M/s");
        forget();
    }
}
