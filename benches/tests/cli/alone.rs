//! The device alone: its transports, with and without a shared receive queue.

use serde_json::Value;

use crate::{bench, check_latency, figures, positive, refuses, two_cores};

#[test]
fn latency_of_the_device_alone() {
    if two_cores() {
        // Inline, and longer than that.
        let document = figures(&mut bench("latency --bare --duration 0.02 --size 8,1000"));
        check_latency(&document, &[8, 1000]);
        assert_eq!(document["results"][1]["bare"], true);
        let document = figures(&mut bench("latency --bare --threads --duration 0.02 --size 200"));
        check_latency(&document, &[200]);
    }
}

#[test]
fn bandwidth_of_each_operation_beside_memcpy() {
    if two_cores() {
        let line = "bandwidth --op write,read,send --duration 0.02 --size 13,70000";
        for (line, batch) in [(line.to_owned(), 16), (format!("{line} --threads --batch 1"), 1)] {
            let document = figures(&mut bench(&line));
            let results = document["results"].as_array().unwrap();
            let of = |record: &Value| {
                let op = record["op"].as_str().unwrap().to_owned();
                (record["size"].as_u64().unwrap(), op)
            };
            let found: Vec<(u64, String)> = results.iter().map(of).collect();
            let wanted = [13, 70000].into_iter().flat_map(|size| {
                ["write", "read", "send"].into_iter().map(move |op| (size, op.to_owned()))
            });
            assert_eq!(found, wanted.collect::<Vec<_>>());
            for record in results {
                assert_eq!(record["test"], "bandwidth");
                assert_eq!((&record["lost"], &record["batch"]), (&0.into(), &batch.into()));
                assert_eq!(record["allocations_per_message"], 0.0, "{record:#}");
                for path in ["/bytes_per_second", "/memcpy_bytes_per_second", "/times_memcpy"] {
                    positive(record, path);
                }
                assert!(record.get("half_rtt_ns").is_none());
            }
        }
    }
}

#[test]
fn the_device_alone_has_every_transport_with_and_without_a_shared_queue() {
    if !two_cores() {
        return;
    }
    for (transport, sizes) in [("rc", "8,5000"), ("uc", "8,5000"), ("ud", "8,4096")] {
        for (options, no_srq) in [("", false), (" --no-srq --threads", true)] {
            let line = format!("latency --bare --transport {transport}{options} --size {sizes}");
            let document = figures(&mut bench(&format!("{line} --duration 0.02")));
            let sizes: Vec<u64> = sizes.split(',').map(|size| size.parse().unwrap()).collect();
            check_latency(&document, &sizes);
            let record = &document["results"][1];
            let named = record.get("transport").and_then(Value::as_str).unwrap_or("rc");
            assert_eq!((named, record.get("no_srq").is_some()), (transport, no_srq));
        }
    }
    let line = "bandwidth --op write --transport uc --duration 0.02 --size 4K";
    let document = figures(&mut bench(line));
    let record = &document["results"][0];
    assert_eq!((&record["transport"], &record["lost"]), (&"uc".into(), &0.into()));
    positive(record, "/bytes_per_second");
}

#[test]
fn what_a_transport_cannot_do_is_refused_with_what_can() {
    for line in ["latency --transport uc", "latency --transport ud", "latency --no-srq"] {
        refuses(&mut bench(line), 1, &["--bare", "a worker counts on"]);
    }
    for line in ["--transport ud", "--transport uc --op read", "--transport uc --op write,send"] {
        refuses(&mut bench(&format!("bandwidth {line}")), 1, &["--op write", "latency --bare"]);
    }
    if two_cores() {
        let line = "latency --bare --transport ud --size 8K --duration 0.02 --device soft0";
        refuses(&mut bench(line), 1, &["a datagram is one packet", "--size"]);
    }
}
