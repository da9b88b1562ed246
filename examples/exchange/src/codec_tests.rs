//! The layouts by their offsets, and readers that survive any bytes.
#![cfg(test)]

use doorbell::prng::Prng;

use crate::field::{Side, Symbol};
use crate::itch::{self, Said};
use crate::mold::{self, Head, Packet};
use crate::ouch::{Accepted, Answer, Enter, Flags, Reason, Replace, Request, TimeInForce, Told};

const ENTER: Enter = Enter {
    user_ref: 0x0102_0304,
    side: b'B',
    quantity: 100,
    symbol: Symbol(*b"DOOR    "),
    price: 1_500_000,
    time_in_force: TimeInForce::Day,
    flags: Flags::VISIBLE,
    cl_ord_id: *b"customer 1    ",
};

fn requests() -> [Request; 3] {
    let replace = Replace {
        old_user_ref: 1,
        user_ref: 2,
        quantity: 3,
        price: 4,
        time_in_force: TimeInForce::Ioc,
        display: b'Y',
        sweep: b'N',
        cl_ord_id: [b'x'; 14],
    };
    [Request::Enter(ENTER), Request::Replace(replace), Request::Cancel { user_ref: 9, quantity: 0 }]
}

fn answers() -> [Answer; 6] {
    let accepted = Accepted { order: ENTER, order_ref: 77 };
    let told = [
        Told::System(b'S'),
        Told::Accepted(accepted),
        Told::Replaced { old_user_ref: 1, new: accepted },
        Told::Canceled { user_ref: 2, quantity: 3, reason: b'U' },
        Told::Executed { user_ref: 1, quantity: 2, price: 3, liquidity: b'A', match_number: 4 },
        Told::Rejected { user_ref: 1, reason: Reason::InvalidPrice, cl_ord_id: [b'y'; 14] },
    ];
    told.map(|told| Answer { time: 5, told })
}

fn messages() -> [itch::Message; 7] {
    let symbol = Symbol::new("DOOR");
    let said = [
        Said::System(b'O'),
        Said::Directory(symbol),
        Said::Add { order_ref: 1, side: Side::Sell, shares: 2, symbol, price: 3 },
        Said::Executed { order_ref: 1, shares: 2, match_number: 3 },
        Said::Cancel { order_ref: 1, shares: 2 },
        Said::Delete { order_ref: 1 },
        Said::Replace { old_ref: 1, order_ref: 2, shares: 3, price: 4 },
    ];
    said.map(|said| itch::Message { locate: 6, time: (1 << 48) - 1, said })
}

fn bytes(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

#[test]
fn what_is_written_is_read() {
    for request in requests() {
        assert_eq!(Request::read(&bytes(|to| request.write(to))), Some(request));
    }
    for answer in answers() {
        assert_eq!(Answer::read(&bytes(|to| answer.write(to))), Some(answer));
    }
    for message in messages() {
        assert_eq!(itch::Message::read(&bytes(|to| message.write(to))), Some(message));
    }
}

/// The lengths that the specifications give, and some offsets.
#[test]
fn the_layouts_are_those_of_the_protocols() {
    let lengths = requests().map(|request| bytes(|to| request.write(to)).len());
    assert_eq!(lengths, [47, 40, 9]);
    let lengths = answers().map(|answer| bytes(|to| answer.write(to)).len());
    assert_eq!(lengths, [10, 64, 68, 18, 36, 29]);
    let lengths = messages().map(|message| bytes(|to| message.write(to)).len());
    assert_eq!(lengths, [12, 39, 36, 31, 23, 19, 35]);
    let enter = bytes(|to| requests()[0].write(to));
    assert_eq!(enter[..6], [b'O', 1, 2, 3, 4, b'B']);
    assert_eq!(enter[10..18], *b"DOOR    ");
    assert_eq!(enter[18..26], 1_500_000_u64.to_be_bytes());
    let add = bytes(|to| messages()[2].write(to));
    assert_eq!((add[1..3] == [0, 6], add[19], &add[24..32]), (true, b'S', &b"DOOR    "[..]));
}

#[test]
fn an_appendage_must_have_its_form() {
    let mut enter = bytes(|to| requests()[0].write(to));
    // Two fields: a length, a tag and a value each.
    enter.extend([3, 1, 0, 0, 2, 4, b'N']);
    let length = enter.len() - 7;
    enter[length - 1] = 7;
    assert_eq!(Request::read(&enter), Some(requests()[0]));
    for (at, wrong) in [(length - 1, 6), (length - 1, 8), (length, 0), (length, 4), (length + 4, 3)]
    {
        let mut damaged = enter.clone();
        damaged[at] = wrong;
        assert_eq!(Request::read(&damaged), None, "byte {at} is {wrong}");
    }
}

#[test]
fn packets_carry_messages_whole() {
    let head = Head { session: *b"20260102 1", sequence: 8, count: 2 };
    let mut packet = bytes(|to| head.write(to));
    mold::put(&mut packet, b"one");
    mold::put(&mut packet, b"");
    let read = Packet::read(&packet).expect("a packet");
    assert_eq!((read.head, read.messages().collect::<Vec<_>>()), (head, vec![&b"one"[..], b""]));
    packet.pop();
    assert_eq!(Packet::read(&packet), None);
    assert_eq!(Head::read_request(&bytes(|to| head.write(to))), Some(head));
}

/// Random and damaged bytes: a reader refuses them, or what it reads is written as it was.
#[test]
fn no_bytes_break_a_reader() {
    let mut prng = Prng::new(6);
    let mut good: Vec<Vec<u8>> = requests().map(|one| bytes(|to| one.write(to))).into();
    good.extend(answers().map(|one| bytes(|to| one.write(to))));
    good.extend(messages().map(|one| bytes(|to| one.write(to))));
    let (mut read, mut refused) = (0, 0);
    for _ in 0..100_000 {
        let mut some = good[prng.below(good.len() as u64) as usize].clone();
        for _ in 0..prng.below(4) {
            let at = prng.below(some.len() as u64) as usize;
            some[at] = prng.word() as u8;
        }
        if prng.chance(200) {
            some.truncate(prng.below(some.len() as u64 + 1) as usize);
        }
        if prng.chance(100) {
            some.push(prng.word() as u8);
        }
        let found = [
            Request::read(&some).map(|one| bytes(|to| one.write(to)).len()),
            Answer::read(&some).map(|one| bytes(|to| one.write(to)).len()),
            itch::Message::read(&some).map(|one| bytes(|to| one.write(to)).len()),
        ];
        read += found.iter().flatten().count();
        refused += usize::from(found == [None; 3]);
        assert!(found.iter().flatten().all(|length| *length <= some.len()));
        let _ = Packet::read(&some);
    }
    assert!(read > 10_000 && refused > 10_000, "{read} were read, {refused} refused");
}
