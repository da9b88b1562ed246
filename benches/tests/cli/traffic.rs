//! `traffic`: its rows, its JSON, and what it refuses.

use serde_json::Value;

use crate::{bench, figures, positive, refuses, two_cores};

/// The rows of a run with few messages, by name.
fn rows(options: &str, names: &[&str]) -> Value {
    let line = format!("traffic --rounds 2 --duration 0.01 {options}");
    let document = figures(&mut bench(&line));
    let results = document["results"].as_array().unwrap();
    let found: Vec<&str> = results.iter().map(|row| row["row"].as_str().unwrap()).collect();
    assert_eq!(found, names);
    for path in ["/machine/cpu", "/machine/pages", "/command", "/cache_counters"] {
        assert!(document.pointer(path).is_some_and(Value::is_string), "{path}");
    }
    document
}

fn check_row(row: &Value, half: bool) {
    assert_eq!((&row["schema"], &row["test"]), (&1.into(), &"traffic".into()));
    assert_eq!((&row["provider"], &row["device"]), (&"soft".into(), &"soft0".into()));
    assert_eq!(row["wrong"], 0, "{row:#}");
    let (ours, naive, others) = match half {
        true => ("half_rtt_ns", "naive_half_rtt_ns", ["latency_ns", "naive_latency_ns"]),
        false => ("latency_ns", "naive_latency_ns", ["half_rtt_ns", "naive_half_rtt_ns"]),
    };
    assert!(others.iter().all(|name| row.get(name).is_none()), "{row:#}");
    for of in [ours, naive] {
        let [p50, p90, p99] =
            ["p50", "p90", "p99"].map(|part| row[of][part].as_f64().unwrap_or_default());
        assert!(0.0 < p50 && p50 <= p90 && p90 <= p99, "{of} in {row:#}");
    }
    for path in
        ["/size", "/peers", "/messages", "/times_naive", "/times_naive_p99", "/placement/floor_ns"]
    {
        positive(row, path);
    }
    assert!(["NEAR", "FAR", "MIX"].contains(&row["placement"]["mode"].as_str().unwrap()));
    let rounds = row["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        for path in ["/floor_ns/0", "/floor_ns/1", "/messages", "/naive_messages"] {
            positive(round, path);
        }
        positive(round, "/doorbell/p50");
        positive(round, "/naive/p50");
    }
    // The floor is measured between rounds: the end of one is the begin of the next.
    assert_eq!(rounds[0]["floor_ns"][1], rounds[1]["floor_ns"][0]);
}

#[test]
fn ping_pong_sizes_and_handler_times_between_processes() {
    if two_cores() {
        let names = ["ping-8", "size-4088", "size-1M", "handler-0.4us-random"];
        let document = rows("--rows ping-8,size-4088,size-1M,0.4us-random --seed 7", &names);
        assert_eq!(document["seed"], 7);
        let results = document["results"].as_array().unwrap();
        results.iter().for_each(|row| check_row(row, true));
        assert_eq!(results[0]["placement"]["sides"], "processes");
        assert_eq!((&results[2]["size"], &results[1]["peers"]), (&(1 << 20).into(), &1.into()));
        assert_eq!(results[3]["handler_ns"], 400);
        assert_eq!(results[3]["handler_random"], true);
    }
}

#[test]
fn arrivals_and_mixes_are_offered_below_both_peaks() {
    if two_cores() {
        let names = ["poisson-10", "mix-trade", "mix-storage"];
        let document = rows("--rows poisson-10,mix --threads", &names);
        for (row, part) in document["results"].as_array().unwrap().iter().zip([0.1, 0.2, 0.5]) {
            check_row(row, false);
            assert_eq!(row["placement"]["sides"], "threads");
            let of = |name: &str| row[name].as_f64().unwrap();
            let peak = of("peak_per_second").min(of("naive_peak_per_second"));
            let offered = of("offered_per_second") / peak;
            assert!((offered / part - 1.0).abs() < 0.01, "{row:#}");
        }
    }
}

#[test]
fn many_peers_take_turns() {
    if two_cores() {
        let names = [
            "peers-8-turn",
            "peers-8-random",
            "peers-8-once",
            "peers-8-busy",
            "peers-8-rested",
            "peers-64-once",
        ];
        let document = rows("--rows peers-8-,peers-64-once", &names);
        for row in document["results"].as_array().unwrap() {
            check_row(row, !row["row"].as_str().unwrap().ends_with("once"));
        }
        assert_eq!(document["results"][5]["peers"], 64);
    }
}

/// One byte of one message of each contestant is spoiled; it is noticed on both sides.
#[test]
fn a_planted_byte_is_counted_and_ends_in_an_error() {
    if two_cores() {
        let line = "traffic --device soft0 --rounds 1 --duration 0.01 --rows ping-200 --spoil 3";
        let output = bench(line).args(["--json", "-"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = crate::stderr(&output);
        assert!(text.contains("4 messages were lost or wrong"), "{text}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["results"][0]["wrong"], 4);
    }
}

#[test]
fn a_table_names_the_rows_and_the_seed() {
    if two_cores() {
        let line = "traffic --device soft0 --rounds 1 --duration 0.01 --rows ping-8";
        let output = bench(line).output().unwrap();
        assert!(output.status.success(), "{}", crate::stderr(&output));
        let table = String::from_utf8(output.stdout).unwrap();
        for word in ["naive p50", "ping-8", "seed 1", "cache counters: ", "commit"] {
            assert!(table.contains(word), "{word} is not in {table}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    refuses(&mut bench("traffic --rows pong"), 1, &["--rows pong", "ping-8", "mix-storage"]);
    refuses(&mut bench("traffic --size 8"), 1, &["--size", "--rows"]);
    refuses(&mut bench("traffic --connect 127.0.0.1"), 1, &["shared memory", "--connect"]);
    refuses(&mut bench("traffic --rounds 0"), 2, &["--rounds"]);
}
