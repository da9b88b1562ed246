//! The figures of a run that can be compared: one for each record, with its value in each part of
//! the time or in each round.

use serde_json::Value;

/// What must be equal in two records for their figures to be compared.
const SETTINGS: [&str; 22] = [
    "test",
    "device",
    "transport",
    "no_srq",
    "row",
    "size",
    "op",
    "batch",
    "bare",
    "qps",
    "workers",
    "idle_qps",
    "signal_every",
    "depth",
    "batching",
    "offered_per_second",
    "arrivals",
    "pattern",
    "ranks",
    "sizes",
    "weights",
    "idle_links",
];

/// The value of a setting. What a row of traffic offers is a part of the measured peak, so it is
/// no setting: two runs never agree on it.
fn setting<'a>(record: &'a Value, name: &str) -> &'a Value {
    match name == "offered_per_second" && record["test"] == "traffic" {
        true => &Value::Null,
        false => &record[name],
    }
}

/// One figure of a run.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// The settings of its record.
    settings: Vec<Value>,
    /// The same for people.
    pub(crate) name: String,
    /// What it is: a mean, a percentile or a rate, with its unit.
    pub(crate) unit: &'static str,
    /// Its values, in order. Of a rate the times: one over it.
    pub(crate) values: Vec<f64>,
    /// True for a rate.
    is_rate: bool,
    /// NEAR, FAR or MIX, if both sides were on one machine.
    pub(crate) mode: Option<String>,
    pub(crate) floor_ns: Option<f64>,
    /// How often other programs took the core of the connecting side, a second.
    pub(crate) switches: f64,
}

impl Figure {
    /// All figures of a run.
    pub(crate) fn all(document: &Value) -> Vec<Figure> {
        let records = document["results"].as_array().map_or(&[][..], Vec::as_slice);
        records.iter().filter_map(Figure::of).collect()
    }

    fn of(record: &Value) -> Option<Figure> {
        let (unit, values) = values(record)?;
        let is_rate = unit == RATE;
        let values = values.into_iter().map(|of| if is_rate { 1.0 / of } else { of });
        Some(Figure {
            settings: SETTINGS.iter().map(|name| setting(record, name).clone()).collect(),
            name: name(record),
            unit,
            values: values.collect(),
            is_rate,
            mode: record["placement"]["mode"].as_str().map(str::to_owned),
            floor_ns: record["placement"]["floor_ns"].as_f64(),
            switches: record["placement"]["switches_per_second"].as_f64().unwrap_or(0.0),
        })
    }

    /// True if both were measured with the same settings.
    pub(crate) fn is_like(&self, other: &Figure) -> bool {
        self.settings == other.settings && self.unit == other.unit
    }

    /// The middle of the times, of a rate too.
    pub(crate) fn time(&self) -> Option<f64> {
        crate::measure::piece::median(self.values.iter().copied())
    }

    /// The time that a quarter of the parts stay below. What other programs and the hypervisor do
    /// to a part only makes it longer, so on a busy machine this is steadier than the middle.
    pub(crate) fn calm_time(&self) -> Option<f64> {
        let mut times = self.values.clone();
        times.sort_unstable_by(f64::total_cmp);
        times.get(times.len() / 4).copied()
    }

    /// The middle value, in the unit that people expect.
    pub(crate) fn middle(&self) -> Option<f64> {
        let middle = self.time()?;
        Some(if self.is_rate { 1e-6 / middle } else { middle })
    }
}

const RATE: &str = "M/s";

/// The values that count, and what they are. A mean is steadier than a percentile, but an open loop
/// is about its tail; and rows of traffic are held against a naive ring that ran in turn with them.
fn values(record: &Value) -> Option<(&'static str, Vec<f64>)> {
    if record["test"] == "traffic" {
        let rounds = record["rounds"].as_array()?.iter();
        let times =
            |of: &Value| Some(of["doorbell"]["p50"].as_f64()? / of["naive"]["p50"].as_f64()?);
        return Some(("p50/naive", rounds.map(times).collect::<Option<_>>()?));
    }
    let parts = record["parts"].as_array()?;
    let of = |name: &str| parts.iter().map(|part| part[name].as_f64()).collect::<Option<Vec<_>>>();
    let (unit, name) = match record["test"].as_str()? {
        "latency" => ("mean ns", "mean_ns"),
        "load" => ("p99 ns", "p99_ns"),
        // A lone message of a sweep has no rate.
        _ if of("messages_per_second").is_some() => (RATE, "messages_per_second"),
        _ => ("mean ns", "mean_ns"),
    };
    of(name).filter(|values| !values.is_empty()).map(|values| (unit, values))
}

/// The settings that tell the records of a run apart, in words.
fn name(record: &Value) -> String {
    let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
    let mut name = text("test");
    for word in [text("row"), text("op")] {
        if !word.is_empty() {
            name.push_str(&format!(" {word}"));
        }
    }
    if let Some(size) = record["size"].as_u64().filter(|_| record["row"].is_null()) {
        name.push_str(&format!(" {size} B"));
    }
    for (of, words) in [
        ("batch", "batch"),
        ("idle_qps", "idle"),
        ("depth", "in flight"),
        ("offered_per_second", "due/s"),
    ] {
        let value = setting(record, of);
        if !value.is_null() {
            name.push_str(&format!(", {value} {words}"));
        }
    }
    for (setting, words) in [("bare", "bare"), ("batching", "batching")] {
        if record[setting] == true {
            name.push_str(&format!(", {words}"));
        }
    }
    name
}
