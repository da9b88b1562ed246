//! Words that no honest sender writes: every read stays inside the data.

use std::time::{Duration, Instant};

use super::*;

/// Both ends in the first lap, with everything before read.
fn start_at(tx: &mut Tx, rx: &mut Rx, offset: u32) {
    (tx.at, tx.published) = (offset.into(), offset.into());
    (rx.at, rx.tail) = (offset.into(), offset.into());
}

/// A receiver does not follow a jump that no honest sender makes.
#[test]
fn a_jump_is_near_the_end_of_a_segment() {
    for (offset, follows) in [
        (0, false),
        (SEGMENT / 4, false),
        (SEGMENT - RECORD_MAX - 8, true),
        (SEGMENT - 8, true),
        (SEGMENT, false),
        (AREA - SEGMENT, false),
        (AREA - 8, true),
    ] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        start_at(&mut tx, &mut rx, offset);
        tx.jump();
        tx.publish(0);
        assert!(rx.look() && rx.advance());
        assert!(rx.header() == Some(Header::JUMP));
        assert_eq!(rx.jump(), follows, "at {offset}");
        assert!(!follows || (rx.caught_up() && tx.place(tx.at) == 0));
    }
}

/// Nothing is read behind the end from a sender that should have jumped: neither a record that
/// begins there nor one that crosses it, nor after single messages in the slot.
#[test]
fn nothing_behind_the_end_is_read() {
    for (before, length) in [(16, 8), (8, 1), (8, 2000), (RECORD_MAX, FRAGMENT)] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        start_at(&mut tx, &mut rx, AREA - before);
        // No honest sender goes on at the end.
        tx.limit = u64::MAX;
        let end = rx.dir.data_from(0).at(AREA.into());
        put(&mut tx, &vec![1; length as usize]);
        put(&mut tx, &[2; 8]);
        tx.publish(0);
        assert!(rx.look() && rx.advance());
        while let Some(header) = rx.header() {
            rx.consume(header);
            assert!(rx.data.at(rx.at) <= end, "{before} {length}");
        }
        assert!(!rx.caught_up(), "{before} {length}");
    }
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let mut into = [0; 4096];
    start_at(&mut tx, &mut rx, AREA - 16);
    tx.limit = u64::MAX;
    for n in 0..3 {
        put_lone(&mut tx, &[n; 32]);
        assert_eq!(get(&mut rx, &mut into), Some(32));
    }
    put(&mut tx, &[0; 8]);
    put(&mut tx, &[0; 8]);
    tx.publish(0);
    assert!(rx.look() && rx.advance() && rx.header().is_none());
}

/// Whatever words a peer writes, every read stays inside the data.
#[test]
fn every_read_stays_inside_the_data() {
    let mut memory = memory();
    let (tx, mut rx) = ends(&mut memory);
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let (start, end) = (rx.dir.data_from(0).at(0), rx.dir.data_from(0).at(AREA.into()));
    let (mut records, mut jumps, mut laps) = (0, 0, 0);
    for _ in 0..if cfg!(miri) { 20 } else { 3000 } {
        let words = rx.dir.data_from(0).at(0).cast::<u64>();
        for n in 0..AREA as usize / 8 {
            let kind = if random.next_u32() % 4 == 0 { Header::JUMP.0 } else { 0x1_0000 };
            let length = u64::from(random.next_u32() % (RECORD_MAX + 16));
            let more = u64::from(random.next_u32() % 2) << 24;
            unsafe {
                words.add(n).write(if kind == Header::JUMP.0 { kind } else { kind | length | more })
            };
        }
        for _ in 0..20 {
            let news = u64::from(random.next_u32() % (AREA / 8 + 1)) * 8;
            rx.word = tail_word(rx.at, 0);
            tx.dir.tail().store(tail_word(rx.at + news, 0), Ordering::Release);
            if !rx.look() || !rx.advance() {
                continue;
            }
            let mut left = 10_000;
            while let Some(header) = rx.header()
                && left > 0
            {
                left -= 1;
                let at = rx.data.at(rx.at);
                assert!(at >= start && at.wrapping_add(header.record() as usize) <= end);
                records += 1;
                if header == Header::JUMP {
                    if !rx.jump() {
                        break;
                    }
                    jumps += 1;
                    continue;
                }
                rx.consume(header);
            }
            // Single messages advance without the ring.
            if random.next_u32() % 16 == 0 {
                rx.at = rx.end + 64 - u64::from(random.next_u32() % 32) * 8;
                rx.tail = rx.at;
                laps += u64::from(rx.at > rx.end);
            }
        }
        let at = rx.at;
        (rx.tail, rx.data, rx.end) = (at, rx.dir.data_from(at), at + u64::from(AREA));
    }
    assert!(records > 1000 || cfg!(miri));
    assert!((jumps > 100 && laps > 10) || cfg!(miri), "{records} {jumps} {laps}");
}

/// A header may change while it is checked: the checked value is the one used.
#[test]
fn a_hostile_header_is_read_once() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    put(&mut tx, &[7; 8]);
    put(&mut tx, &[7; 4000]);
    tx.publish(0);
    assert!(rx.look() && rx.advance());
    let at = rx.dir.data_from(0).at(0).expose_provenance();
    let word = move || unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(at)) };
    let stop = AtomicBool::new(false);
    let mut short = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for length in [8, 4000] {
                    word().store(header(length).0, Ordering::Relaxed);
                    (0..20).for_each(|_| core::hint::spin_loop());
                }
            }
        });
        let (rounds, began) = (if cfg!(miri) { 50 } else { 200_000 }, Instant::now());
        for n in 0.. {
            // On a busy machine the other thread may not have run yet.
            if n >= rounds && (short > 0 || began.elapsed() > Duration::from_secs(60)) {
                break;
            }
            let mut into = [0xee; 64];
            if n % 2 == 0 {
                let header = rx.header().expect("it is one of the two");
                if header.length() == 8 {
                    rx.fetch_into(header, &mut into[..8]);
                    short += 1;
                }
            } else {
                let mut plain = rx.burst().plain(header(0));
                if let Some(next) = plain.next(Target::of(&mut into[..40])) {
                    assert_eq!(next.length(), 8);
                    plain.take(next);
                    short += 1;
                }
            }
            if into[8..] != [0xee; 56] {
                stop.store(true, Ordering::Relaxed);
                panic!("more than was checked");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(short > 0);
}
