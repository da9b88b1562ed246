//! The rules of the Prometheus text format, and the conventions that `promtool check metrics`
//! checks. It is stricter than a server, which accepts some violations.

use std::collections::{BTreeMap, BTreeSet};

/// Endings that belong to parts of a histogram or a summary, or that name a unit which is not a
/// base unit.
const WRONG_ENDINGS: &[&str] = &[
    "_count",
    "_sum",
    "_bucket",
    "_ms",
    "_us",
    "_ns",
    "_milliseconds",
    "_microseconds",
    "_nanoseconds",
    "_minutes",
    "_hours",
    "_kilobytes",
    "_kib",
    "_bits",
    "_percent",
    "_info_total",
];

struct Family {
    kind: String,
    /// Label sets without `le`, with the parts of each histogram.
    series: BTreeMap<String, Histogram>,
}

#[derive(Default)]
struct Histogram {
    buckets: Vec<(f64, f64)>,
    sum: Option<f64>,
    count: Option<f64>,
}

/// The first mistake in the text.
pub(crate) fn check(text: &str) -> Result<(), String> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line does not end".into());
    }
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut helped: BTreeSet<String> = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        let wrong = |what: &str| Err(format!("{what}: {line}"));
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let Some((name, help)) = rest.split_once(' ') else { return wrong("no help") };
            if help.trim().is_empty() || !is_name(name) {
                return wrong("empty help, or no name");
            }
            if !helped.insert(name.into()) {
                return wrong("a second HELP");
            }
            current = name.into();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else { return wrong("no type") };
            if name != current || families.contains_key(name) {
                return wrong("TYPE without HELP before it, or a second one");
            }
            check_family(name, kind).map_err(|what| format!("{what}: {line}"))?;
            families.insert(name.into(), Family { kind: kind.into(), series: BTreeMap::new() });
        } else if line.starts_with('#') || line.is_empty() {
            return wrong("a line that nobody needs");
        } else {
            let Some((series, value)) = line.rsplit_once(' ') else { return wrong("no value") };
            let Ok(value) = value.parse::<f64>() else { return wrong("no number") };
            let Some(family) = families.get_mut(&current) else { return wrong("no TYPE") };
            if !seen.insert(series.to_string()) {
                return wrong("the same series twice");
            }
            check_sample(&current, family, series, value)
                .map_err(|what| format!("{what}: {line}"))?;
        }
    }
    families.iter().try_for_each(|(name, family)| check_whole(name, family))
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !name.is_empty() && name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit())
}

fn check_family(name: &str, kind: &str) -> Result<(), String> {
    if WRONG_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
        return Err("an ending that is reserved, or no base unit".into());
    }
    if name.contains(':') || name.chars().any(|c| c.is_ascii_uppercase()) {
        return Err("colons are for rules, and capitals for nothing".into());
    }
    match kind {
        "counter" if !name.ends_with("_total") => Err("a counter without _total".into()),
        "gauge" | "histogram" if name.ends_with("_total") => Err("_total, and no counter".into()),
        "counter" | "gauge" | "histogram" => Ok(()),
        _ => Err("an unknown type".into()),
    }
}

fn check_sample(
    name: &str,
    family: &mut Family,
    series: &str,
    value: f64,
) -> Result<(), &'static str> {
    let (sample, labels) = match series.split_once('{') {
        Some((sample, labels)) => (sample, labels.strip_suffix('}').ok_or("no closing brace")?),
        None => (series, ""),
    };
    let mut labels = parse_labels(labels)?;
    let ending = sample.strip_prefix(name).ok_or("a sample of another family")?;
    if family.kind == "counter" && value < 0.0 {
        return Err("a negative counter");
    }
    let le = labels.remove("le");
    let key = format!("{labels:?}");
    let of = family.series.entry(key).or_default();
    match (family.kind.as_str(), ending, le) {
        ("counter" | "gauge", "", None) => {}
        ("histogram", "_bucket", Some(le)) => {
            let le = if le == "+Inf" { f64::INFINITY } else { le.parse().map_err(|_| "le")? };
            of.buckets.push((le, value));
        }
        ("histogram", "_sum", None) => of.sum = Some(value),
        ("histogram", "_count", None) => of.count = Some(value),
        _ => return Err("a sample that its type does not have"),
    }
    Ok(())
}

/// Labels in order of their names, each once.
fn parse_labels(text: &str) -> Result<BTreeMap<String, String>, &'static str> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name) || name.contains(':') || name.starts_with("__") {
            return Err("a label name that may not be");
        }
        let (mut value, mut end) = (String::new(), None);
        let mut chars = after.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    end = Some(at);
                    break;
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => value.push(c),
                    _ => return Err("an escape that is none"),
                },
                c => value.push(c),
            }
        }
        let end = end.ok_or("a value that does not end")?;
        if labels.insert(name.to_string(), value).is_some() {
            return Err("a label twice");
        }
        rest = match &after[end + 1..] {
            "" => "",
            more => more.strip_prefix(',').filter(|more| !more.is_empty()).ok_or("no comma")?,
        };
    }
    Ok(labels)
}

fn check_whole(name: &str, family: &Family) -> Result<(), String> {
    if family.kind != "histogram" {
        return Ok(());
    }
    for (labels, Histogram { buckets, sum, count }) in &family.series {
        let wrong = |what: &str| Err(format!("{name}{labels}: {what}"));
        let rises = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        if !buckets.windows(2).all(rises) {
            return wrong("buckets that do not rise");
        }
        let Some((le, most)) = buckets.last() else { return wrong("no buckets") };
        if *le != f64::INFINITY || sum.is_none() || *count != Some(*most) {
            return wrong("no +Inf, no sum, or another count");
        }
    }
    Ok(())
}
