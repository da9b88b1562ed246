//! Draws the figures as heat maps.

use doorbell_tune::{Ids, Measured};

use crate::commands::svg::{LETTER, Svg};

/// Sizes of a cell with a number, of a cell without, and of a line of text.
const WIDE: f64 = 44.0;
const NARROW: f64 = 9.0;
const LINE: f64 = 18.0;

/// With more cells than this in a row, numbers are only in the tooltips.
const NUMBERS_MAX: usize = 24;

/// Colours from good to bad: light to dark, which also works when printed in grey.
const GOOD: [f64; 3] = [253.0, 246.0, 214.0];
const BAD: [f64; 3] = [140.0, 20.0, 60.0];

/// A matrix with names for rows and columns.
struct Map {
    title: String,
    rows: Vec<usize>,
    columns: Vec<usize>,
    /// What a row and a column are called.
    names: (&'static str, &'static str),
    cells: Vec<Vec<Option<f64>>>,
    /// Unit of the numbers.
    unit: &'static str,
    /// True if more is better.
    more: bool,
}

pub(super) fn svg(measured: &Measured) -> String {
    let mut svg = Svg::new();
    let latency = Map {
        title: "half a round trip between two CPUs, ns".to_owned(),
        rows: measured.cpus.clone(),
        columns: measured.cpus.clone(),
        names: ("CPU", "CPU"),
        cells: measured.latency_ns.clone(),
        unit: "ns",
        more: false,
    };
    let bottom = latency.draw(&mut svg, LINE);
    bandwidth(measured).draw(&mut svg, bottom + LINE);
    svg.finish()
}

fn bandwidth(measured: &Measured) -> Map {
    let rows: Ids = measured.bandwidth.iter().map(|one| one.node).collect();
    let columns: Ids = measured.bandwidth.iter().map(|one| one.memory_node).collect();
    let cell = |row: usize, column: usize| {
        let mut all = measured.bandwidth.iter();
        let one = all.find(|one| one.node == row && one.memory_node == column);
        one.map(|one| one.bytes_per_second / 1e9)
    };
    Map {
        title: "all cores of a node reading the memory of a node, GB/s".to_owned(),
        cells: rows
            .iter()
            .map(|row| columns.iter().map(|column| cell(row, column)).collect())
            .collect(),
        rows: rows.iter().collect(),
        columns: columns.iter().collect(),
        names: ("node", "memory of"),
        unit: "GB/s",
        more: true,
    }
}

impl Map {
    /// Draws the map below `top`; returns where it ends.
    fn draw(&self, svg: &mut Svg, top: f64) -> f64 {
        let known = || self.cells.iter().flatten().flatten().copied();
        let (low, high) =
            (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
        if !low.is_finite() {
            return top;
        }
        let unit = self.unit;
        svg.text((10.0, top), &format!("{}: {low:.0} to {high:.0} {unit}", self.title));
        let numbers = self.columns.len() <= NUMBERS_MAX;
        let size = if numbers { (WIDE, LINE) } else { (NARROW, NARROW) };
        let left = 10.0 + 5.0 * LETTER;
        let first = top + 1.5 * LINE;
        // Narrow cells have room for every eighth name only.
        let every = if numbers { 1 } else { 8 };
        for (n, column) in self.columns.iter().enumerate().step_by(every) {
            svg.text((left + n as f64 * size.0 + 2.0, first - 4.0), &column.to_string());
        }
        for (n, (row, cells)) in self.rows.iter().zip(&self.cells).enumerate() {
            let y = first + n as f64 * size.1;
            if n % every == 0 {
                svg.text((10.0, y + size.1.min(13.0)), &row.to_string());
            }
            for (m, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
                let x = left + m as f64 * size.0;
                let Some(value) = cell else { continue };
                let (one, other) = self.names;
                let tip = format!("{one} {row}, {other} {column}: {value:.1} {unit}");
                let part = part(*value, low, high);
                let part = if self.more { 1.0 - part } else { part };
                svg.area((x, y), size, &colour(part), &tip);
                if numbers {
                    let ink = if part > 0.6 { "#fff" } else { "#000" };
                    svg.ink((x + 4.0, y + 13.0), &format!("{value:.0}"), ink);
                }
            }
        }
        first + self.rows.len() as f64 * size.1 + LINE
    }
}

/// Where a value is between the lowest and the highest, from 0 to 1 on a logarithmic scale, so that
/// small and large ratios both show.
fn part(value: f64, low: f64, high: f64) -> f64 {
    if high > low && low > 0.0 { (value / low).ln() / (high / low).ln() } else { 0.0 }
}

fn colour(part: f64) -> String {
    let mix = |n: usize| (GOOD[n] + (BAD[n] - GOOD[n]) * part.clamp(0.0, 1.0)).round();
    format!("rgb({},{},{})", mix(0), mix(1), mix(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_tune::Bandwidth;

    fn measured(cpus: usize) -> Measured {
        let half = |from: usize, to: usize| (from != to).then_some(50.0 + (from + to) as f64);
        let one = |memory_node, bytes_per_second| Bandwidth {
            node: 0,
            cores: 2,
            memory_node,
            bytes_per_second,
        };
        Measured {
            cpus: (0..cpus).collect(),
            latency_ns: (0..cpus)
                .map(|from| (0..cpus).map(|to| half(from, to)).collect())
                .collect(),
            bandwidth: vec![one(0, 20e9), one(1, 10e9)],
        }
    }

    #[test]
    fn every_pair_has_a_cell_and_the_worst_is_the_darkest() {
        let svg = svg(&measured(3));
        assert_eq!(svg.matches("<title>CPU ").count(), 6);
        let cell = |tip: &str| svg.lines().find(|line| line.contains(tip)).unwrap().to_owned();
        assert!(cell("CPU 1, CPU 2: 53.0 ns").contains("rgb(140,20,60)"), "{svg}");
        assert!(cell("CPU 0, CPU 1: 51.0 ns").contains("rgb(253,246,214)"), "{svg}");
        assert!(cell("node 0, memory of 1: 10.0 GB/s").contains("rgb(140,20,60)"), "{svg}");
        assert!(svg.contains(">53</text>"), "{svg}");
    }

    #[test]
    fn many_cores_have_cells_without_numbers() {
        let svg = svg(&measured(64));
        assert_eq!(svg.matches("<title>CPU ").count(), 64 * 63);
        assert!(!svg.contains(">53</text>"));
    }

    #[test]
    fn one_core_alone_makes_no_map() {
        let alone = Measured { bandwidth: Vec::new(), ..measured(1) };
        assert!(!svg(&alone).contains("<title>"));
    }
}
