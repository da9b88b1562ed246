//! Many ranks: a table with a row for each, and charts with a place for each.

use std::fmt::Write;

use crate::ask::request::Test;
use crate::measure::record::{Group, HalfRtt, Record, Row};
use crate::tell::chart::{COLOURS, Chart, Look, Series};
use crate::tell::grid::Grid;

/// The ranks of a record: who called whom, and a row for each. Empty for records of two sides.
pub(crate) fn table(record: &Record) -> String {
    let Some(group) = &record.group else { return String::new() };
    let mut text = format!("  {}\n", sentence(record, group));
    if group.shared_cores {
        text.push_str(
            "  workers share cores, and take turns there: such times say little; use more cores \
             or fewer ranks\n",
        );
    }
    let is_rate = record.test == Test::Rate;
    let head: &[&str] = match is_rate {
        true => &["rank", "host", "cores", "calls", "called by", "received", "M msg/s", "MB/s"],
        false => &["rank", "host", "cores", "calls", "called by", "received", "p50", "p99", "max"],
    };
    let mut grid = Grid::new(&[head, &["switches/s", "lost"]].concat());
    for row in &group.per_rank {
        let cores: Vec<String> = row.cores.iter().map(usize::to_string).collect();
        let mut cells = vec![row.rank.to_string(), row.host.clone(), cores.join(",")];
        cells.extend([row.targets, row.callers].map(|count| count.to_string()));
        cells.push(row.received.to_string());
        let cell = |figure: Option<f64>, digits: usize| {
            figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        if is_rate {
            let millions = |figure: Option<f64>| cell(figure.map(|figure| figure / 1e6), 2);
            cells.extend([row.messages_per_second, row.bytes_per_second].map(millions));
        } else {
            let of = |pick: fn(&HalfRtt) -> f64| cell(row.half_rtt_ns.as_ref().map(pick), 0);
            cells.extend([of(|half| half.p50), of(|half| half.p99), of(|half| half.max)]);
        }
        cells.extend([cell(row.switches_per_second, 0), row.lost.to_string()]);
        grid.push(cells);
    }
    text.push_str(&grid.text());
    text
}

/// Who called whom, in a sentence.
fn sentence(record: &Record, group: &Group) -> String {
    let Group { pattern, ranks, launcher, sizes, weights, idle_links, .. } = group;
    let mut text = format!(
        "{} bytes, {pattern}: {ranks} ranks started by {launcher}, {} busy link(s)",
        record.size, record.qps
    );
    if !sizes.is_empty() {
        let list = |numbers: &[u32], between: &str| {
            numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(between)
        };
        let (sizes, weights) = (list(sizes, ", "), list(weights, " to "));
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "; sizes {sizes} mixed as {weights}");
    }
    if *idle_links > 0 {
        let _ = write!(text, "; {idle_links} idle links beside them from each worker that calls");
    }
    text
}

/// Moves each series a little to the side, so that none hides another. All dots stay nearer to
/// their rank than to the next.
fn side_by_side(series: &mut [Series]) {
    let middle = series.len().saturating_sub(1) as f64 / 2.0;
    for (n, series) in series.iter_mut().enumerate() {
        let aside = (n as f64 - middle) * ASIDE;
        series.points.iter_mut().for_each(|(x, _)| *x += aside);
    }
}

/// How far two series are apart, where two ranks are 1 apart.
const ASIDE: f64 = 0.08;

/// The figures of each rank: half round trips, or messages a second. Empty without ranks.
pub(crate) fn chart(records: &[Record], test: Test) -> Chart {
    let records = records.iter().filter(|record| record.test == test);
    let grouped: Vec<(&Record, &Group)> =
        records.filter_map(|record| Some((record, record.group.as_ref()?))).collect();
    let mut series = Vec::new();
    // More dots than colours would be no help.
    let shown = if test == Test::Rate { COLOURS } else { COLOURS / 2 };
    for (record, group) in grouped.iter().take(shown) {
        let points = |pick: &dyn Fn(&Row) -> Option<f64>| {
            let rows = group.per_rank.iter();
            rows.filter_map(|row| Some((f64::from(row.rank), pick(row)?))).collect::<Vec<_>>()
        };
        let size = if group.sizes.is_empty() { format!("{} B", record.size) } else { "mix".into() };
        let mut add = |name: String, points| series.push(Series::new(name, Look::Dots, points));
        if test == Test::Rate {
            let batch = record.batch.unwrap_or(1);
            add(format!("{size}, batches of {batch}"), points(&|row| row.messages_per_second));
        } else {
            add(format!("{size} p50"), points(&|row| Some(row.half_rtt_ns?.p50)));
            add(format!("{size} p99"), points(&|row| Some(row.half_rtt_ns?.p99)));
        }
    }
    side_by_side(&mut series);
    let rest = match grouped.len() > shown {
        true => " The table below has the other sizes.",
        false => "",
    };
    let ranks = grouped.iter().map(|(_, group)| group.ranks).max().unwrap_or(0);
    let pattern = grouped.first().map_or("", |(_, group)| group.pattern);
    let (title, y) = match test {
        Test::Rate => ("Rate by rank", "messages a second"),
        _ => ("Half round trip by rank", "half round trip, ns"),
    };
    Chart {
        title: title.to_owned(),
        caption: format!(
            "Pattern {pattern}: each rank that sends has its figure; those that only answer have \
             none.{rest}"
        ),
        x: "rank".to_owned(),
        places: (0..ranks).map(|rank| rank.to_string()).collect(),
        y: y.to_owned(),
        is_log: test != Test::Rate,
        series,
        ..Chart::default()
    }
}
