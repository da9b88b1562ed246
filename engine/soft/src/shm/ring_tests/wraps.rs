//! Where the ring wraps: how much of it is in use, and what happens at its end.

use super::*;

/// Writes one record of that size, if there is space, and publishes it. Returns its place.
fn send(tx: &mut Tx, n: u64, bytes: usize) -> Option<u64> {
    let record = header(bytes).record();
    if !find(tx, record) {
        return None;
    }
    let at = tx.place(tx.at);
    assert!(at + u64::from(record) <= u64::from(AREA - JUMP_BYTES), "no space for a jump");
    put(tx, &vec![n as u8; bytes]);
    tx.publish(0);
    Some(at)
}

/// Reads all records, in order from record `n` on, and gives their space back; returns their
/// number.
fn read_all(rx: &mut Rx, mut n: u64) -> u64 {
    let mut into = [0; 4096];
    let first = n;
    while let Some(length) = get(rx, &mut into) {
        assert!(into[..length].iter().all(|byte| *byte == n as u8), "record {n}");
        n += 1;
    }
    let at = rx.at;
    rx.write_ack(at);
    n - first
}

/// The ring stays in its first segment while the receiver keeps up, grows to its full size while it
/// does not, and shrinks again when it has caught up.
#[test]
fn the_ring_is_as_long_as_it_has_to_be() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let (mut sent, mut read) = (0, 0);
    for round in 0..3 {
        for _ in 0..1000 {
            let at = send(&mut tx, sent, 64).expect("all was given back");
            assert!(at < u64::from(SEGMENT), "round {round}: {at}");
            sent += 1;
            // As many records in flight as leave the front free.
            if sent - read == 64 {
                read += read_all(&mut rx, read);
            }
        }
        // While it is full, each lap is a segment longer.
        let mut most = 0;
        for times in 0..10 {
            let mut full = 0;
            while let Some(at) = send(&mut tx, sent, 64) {
                most = most.max(at);
                full += 72;
                sent += 1;
            }
            assert!(
                full > u64::from(SEGMENT) * times.min(u64::from(AREA / SEGMENT) - 2),
                "round {round}, {times}: {full}"
            );
            read += read_all(&mut rx, read);
            assert_eq!(sent, read);
        }
        assert!(most > u64::from(AREA - 100), "round {round}: {most}");
        // It shrinks gradually.
        for _ in 0..64 * 1000 {
            send(&mut tx, sent, 64).expect("all was given back");
            sent += 1;
            read += read_all(&mut rx, read);
        }
    }
}

/// Messages published one by one stay in the first segment, even where laps were long before;
/// sending continues whenever all space is given back.
#[test]
fn messages_one_by_one_do_not_grow_the_ring() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let (mut sent, mut read) = (0, 0);
    for longer in [false, true] {
        while longer && tx.at < 10 * u64::from(AREA) {
            while send(&mut tx, sent, 64).is_some() {
                sent += 1;
            }
            read += read_all(&mut rx, read);
        }
        let (mut places, mut full) = (0, 0);
        while full < 50 {
            let record = header(64).record();
            tx.read_taken();
            if tx.fits(record) || tx.find(record, Traffic::Alone) {
                places = tx.place(tx.at).max(places);
                put(&mut tx, &[sent as u8; 64]);
                tx.publish(0);
                sent += 1;
            } else {
                let before = read;
                read += read_all(&mut rx, read);
                assert!(read > before && read == sent, "stuck at {}", tx.at);
                full += 1;
                // A long record ends with its lap.
                places = if full < 3 { 0 } else { places };
            }
        }
        assert!(places > 0 && places < u64::from(SEGMENT), "{longer}: {places}");
    }
}

/// A ping-pong uses the ring from end to end, so that there are few jumps.
#[test]
fn a_conversation_seldom_jumps() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let record = header(64).record();
    for n in 0..10_000 {
        tx.read_taken();
        assert!(tx.fits(record) || tx.find(record, Traffic::Alone), "all was given back");
        put(&mut tx, &[n as u8; 64]);
        tx.publish(0);
        assert_eq!(read_all(&mut rx, n), 1);
    }
    let jumps = (tx.at - 10_000 * u64::from(record)) / u64::from(JUMP_BYTES);
    assert_eq!(jumps, 10_000 / u64::from((AREA - JUMP_BYTES) / record));
}

/// Records that only one side sends stay in the first segment, whether the reader keeps up or waits
/// until there is no space.
#[test]
fn one_way_the_ring_does_not_grow() {
    for keeps_up in [true, false] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        let record = header(64).record();
        let (mut read, mut places) = (0, 0);
        for n in 0..5000 {
            tx.read_taken();
            if !(tx.fits(record) || tx.find(record, Traffic::OneWay)) {
                assert!(!keeps_up, "all was given back");
                read += read_all(&mut rx, read);
                tx.read_taken();
                assert!(tx.find(record, Traffic::OneWay), "all was given back");
            }
            put(&mut tx, &[n as u8; 64]);
            tx.publish(0);
            places = tx.place(tx.at).max(places);
            if keeps_up {
                read += read_all(&mut rx, read);
            }
        }
        assert!(places <= u64::from(SEGMENT), "{keeps_up}: {places}");
    }
}

/// A steady number of records in flight, of any size: none waits, and the ring is no longer than
/// necessary.
#[test]
fn a_steady_stream_never_waits() {
    for on_its_way in [1, 16, 64, 85, 128, 256, 512, 800] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        let mut into = [0; 4096];
        let mut most = 0;
        for n in 0..20 * on_its_way {
            most = send(&mut tx, n, 64).expect("there is space").max(most);
            if n >= on_its_way {
                assert_eq!(get(&mut rx, &mut into), Some(64));
                assert_eq!(into[0], (n - on_its_way) as u8);
                if rx.ack_is_due() {
                    let at = rx.at;
                    rx.write_ack(at);
                }
            }
        }
        // Acknowledgements are up to a quarter segment late, as much is left free at the front, and
        // a lap ends with a segment.
        let need = on_its_way * 72 + 2 * u64::from(PUBLISH_EVERY) + 72;
        let segments = need.div_ceil(SEGMENT.into()).max(1);
        assert!(most < segments * u64::from(SEGMENT), "{on_its_way}: up to {most}");
    }
}

/// Whatever the sizes, and however far the receiver is behind, each record arrives once, in order
/// and whole, and none lies outside the data.
#[test]
fn laps_of_any_length_lose_nothing() {
    let rounds = if cfg!(miri) { 400 } else { 200_000u64 };
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut below = |bound: u32| random.next_u32() % bound;
    let (mut sent, mut read, mut laps, mut longest) = (0, 0, 0, 0);
    while read < rounds {
        // Sometimes the receiver stops for long.
        let batch = if below(8) == 0 { 2000 } else { below(60) };
        let large = [24, 200, FRAGMENT + 1][below(3) as usize];
        for _ in 0..batch {
            let Some(at) = send(&mut tx, sent, below(large) as usize) else { break };
            laps += u64::from(at == 0);
            longest = longest.max(at);
            sent += 1;
        }
        read += read_all(&mut rx, read);
        assert_eq!(read, sent);
    }
    assert!(laps > 10 && longest > u64::from(AREA - SEGMENT), "{laps} laps, up to {longest}");
}
