//! The other libraries, from the JSON that `cargo xtask compare` wrote.

use serde_json::Value;

use crate::measure::piece::median;
use crate::tell::sections::{records, text};

/// The section of the page of results, as `cargo xtask compare` has made it: tables, aims and what
/// they hold for. `None`: an older file.
pub(crate) fn section(document: &Value) -> Option<String> {
    let section = text(document, "/section").trim();
    (!section.is_empty()).then(|| format!("\n## {TITLE}\n{COMMAND}\n\n{section}\n"))
}

/// The page with this section in place of the one with its title, or behind all others.
pub(crate) fn replace(page: &str, title: &str, section: &str) -> String {
    let (start, end) = place(page, title).unwrap_or((page.len(), page.len()));
    format!("{}{section}{}", &page[..start], &page[end..])
}

/// The section of the page with that title.
pub(crate) fn find<'a>(page: &'a str, title: &str) -> Option<&'a str> {
    place(page, title).map(|(start, end)| &page[start..end])
}

/// Where that section begins and ends in the page.
fn place(page: &str, title: &str) -> Option<(usize, usize)> {
    let start = page.find(&format!("\n## {title}\n"))?;
    let end = page[start + 1..].find("\n## ").map_or(page.len(), |end| start + 1 + end);
    Some((start, end))
}

/// The title of their section.
pub(crate) const TITLE: &str = "Other libraries";
const COMMAND: &str = "\
```sh
cargo xtask compare --results
```";

/// The rates of the other libraries, messages a second by size: medians of the figures that count.
pub(crate) fn rates(document: &Value) -> Vec<(String, Vec<(u32, f64)>)> {
    let peers = [("UCX uct am", "UCX"), ("iceoryx2", "iceoryx2")];
    let peers = peers.into_iter().map(|(peer, name)| {
        let contests = records(document).iter().filter(|outcome| outcome["test"] == "rate");
        (name.to_owned(), contests.filter_map(|outcome| rate(outcome, peer)).collect::<Vec<_>>())
    });
    peers.filter(|(_, rates)| !rates.is_empty()).collect()
}

/// A library's size and rate.
fn rate(outcome: &Value, peer: &str) -> Option<(u32, f64)> {
    let size = u32::try_from(outcome["size"].as_u64()?).ok()?;
    let entries = outcome["entries"].as_array()?;
    let place = entries.iter().position(|entry| entry["peer"] == peer)?;
    let figures = outcome["rounds"].as_array()?.iter().map(|round| &round["figures"][place]);
    let counted = figures.filter(|figure| figure["counts"] == true);
    Some((size, median(counted.filter_map(|figure| figure["messages_per_second"].as_f64()))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_are_of_the_figures_that_count() {
        let round = |(counts, ucx): (bool, f64)| {
            let theirs = json!({"counts": counts, "messages_per_second": ucx});
            json!({"figures": [null, theirs]})
        };
        let rounds = [(true, 2e7), (false, 1e6), (true, 3e7), (true, 4e7)].map(round);
        let document = json!({"results": [{
            "test": "rate", "size": 64,
            "entries": [{"peer": "doorbell", "batch": 16}, {"peer": "UCX uct am"}],
            "rounds": rounds,
        }]});
        assert_eq!(rates(&document), [("UCX".to_owned(), vec![(64, 3e7)])]);
    }

    #[test]
    fn only_that_section_is_replaced() {
        let section = |text| section(&json!({"section": text})).unwrap();
        let (old, new) = (section("old\n### Part\nof it"), section("new"));
        assert!(new.starts_with("\n## Other libraries\n") && new.ends_with("\n\nnew\n"));
        let page = |section| {
            format!("# Results\n\n## Latency\nfast\n{section}\n## An RDMA device\nslow\n")
        };
        let replaced = replace(&page(&old), TITLE, &new);
        assert_eq!(replaced, page(&new));
        assert_eq!(replace(&replaced, TITLE, &old), page(&old));
        assert_eq!(find(&replaced, TITLE), Some(&*new));
        assert_eq!(find(&replaced, "An RDMA device"), Some("\n## An RDMA device\nslow\n"));
        assert_eq!(find(&replaced, "Other"), None);
        // At the end, and where there is none yet.
        let short = "# Results\n\n## Latency\nfast\n";
        let whole = format!("{short}{old}");
        assert_eq!(replace(short, TITLE, &old), whole);
        assert_eq!(replace(&whole, TITLE, &new), format!("{short}{new}"));
        assert_eq!(super::section(&json!({"results": []})), None);
    }
}
