//! Tables as CSV.

use std::path::Path;

use serde_json::Value;

use crate::error::Failure;

/// Writes a table.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(
    file: &Path,
    head: &[impl AsRef<str>],
    rows: impl Iterator<Item = Vec<String>>,
) -> Result<(), Failure> {
    let failed = |error: csv::Error| {
        let cure = "name a file in a folder that exists and that you may write to";
        Failure::new(format!("write {}: {error}; {cure}", file.display()))
    };
    let mut writer = csv::WriterBuilder::new().flexible(true).from_path(file).map_err(failed)?;
    writer.write_record(head.iter().map(AsRef::as_ref)).map_err(failed)?;
    for row in rows {
        writer.write_record(row).map_err(failed)?;
    }
    writer.flush().map_err(|error| failed(error.into()))
}

/// Writes the records of a run: a line each, and a column for each figure that one of them has.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn records(file: &Path, document: &Value) -> Result<(), Failure> {
    let records = document["results"].as_array().map_or(&[][..], Vec::as_slice);
    let flat: Vec<Vec<(String, String)>> = records.iter().map(|of| flat("", of)).collect();
    let mut head: Vec<&str> = Vec::new();
    for (name, _) in flat.iter().flatten() {
        if !head.contains(&name.as_str()) {
            head.push(name);
        }
    }
    let row = |record: &Vec<(String, String)>| {
        let cell = |name: &&str| {
            let found = record.iter().find(|(known, _)| known == name);
            found.map_or_else(String::new, |(_, value)| value.clone())
        };
        head.iter().map(cell).collect()
    };
    write(file, &head, flat.iter().map(row))
}

/// The figures of a record with the names of the objects around them, such as `half_rtt_ns.p50`.
/// Parts and rounds have lists of their own in the JSON, and are left out.
fn flat(around: &str, value: &Value) -> Vec<(String, String)> {
    let Some(object) = value.as_object() else {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        return vec![(around.to_owned(), text)];
    };
    let figures = object.iter().filter(|(_, value)| {
        !value.as_array().is_some_and(|list| list.iter().any(Value::is_object))
    });
    let dot = if around.is_empty() { "" } else { "." };
    figures.flat_map(|(name, value)| flat(&format!("{around}{dot}{name}"), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn records_with_different_figures_share_a_table() {
        let file = std::env::temp_dir().join(format!("doorbell-csv-{}", std::process::id()));
        let document = json!({"results": [
            {"test": "latency", "half_rtt_ns": {"p50": 45.5}, "parts": [{"mean_ns": 1}]},
            {"test": "a, b", "cores": [0, 1], "messages_per_second": 3},
        ]});
        records(&file, &document).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        let head = lines.remove(0).split(',').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(head.len(), 4, "{text}");
        assert!(head.contains(&"half_rtt_ns.p50".to_owned()), "{text}");
        assert!(lines[0].contains("45.5") && lines[0].contains("latency"), "{text}");
        assert!(lines[1].contains("\"a, b\"") && lines[1].contains("\"[0,1]\""), "{text}");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = write(Path::new("/none-such/x.csv"), &["a"], std::iter::empty()).unwrap_err();
        assert!(error.to_string().contains("/none-such/x.csv"), "{error}");
    }
}
