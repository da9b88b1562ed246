//! Each parser of the store under changed messages: it refuses them, or what it reads is written as
//! it was. See `examples/tests/fuzz`.

#[path = "../../tests/fuzz/mod.rs"]
mod fuzz;

use doorbell::provider::Access;
use doorbell::remote::RemoteMemory;
use doorbell::wr::Remote;
use doorbell_kv::message::{ANSWER_HEAD, Answer, Call, Op, Status, TableInfo};
use doorbell_kv::slot::{Cover, Entry, Place, State, View, parse, put_live, put_mark};
use doorbell_kv::table::Geometry;

use fuzz::fuzz;

#[test]
fn calls() {
    let corpus = [Op::Table, Op::Get, Op::Put, Op::Delete].map(|op| {
        let mut bytes = Vec::new();
        Call { op, ttl: 7, key: b"a key", value: &[3; 40] }.write(&mut bytes);
        bytes
    });
    fuzz("calls", &corpus, |message| {
        let Some(call) = Call::read(message) else { return false };
        let mut again = Vec::new();
        call.write(&mut again);
        // Two bytes are reserved.
        again[2..4].copy_from_slice(&message[2..4]);
        assert_eq!(again, message);
        true
    });
}

#[test]
fn answers() {
    let geometry = Geometry { generation: 9, seed: 5, homes: 8, slot_bytes: 128 };
    let at = Remote { addr: 4096, rkey: 1 };
    let memory = RemoteMemory::new(at, geometry.bytes() as u64, Access::REMOTE_READ);
    let info = TableInfo { shard: (1, 3), geometry, memory };
    let answer =
        Answer { status: Status::Done, generation: 9, time: 2, expires: 3, version: 4, probe: 5 };
    let mut message = vec![0; ANSWER_HEAD];
    answer.write(&mut message);
    message.extend(info.to_bytes());
    fuzz("answers", &[message], |message| {
        let Some((answer, rest)) = Answer::read(message) else { return false };
        let mut again = [0; ANSWER_HEAD];
        answer.write(&mut again);
        assert_eq!((&again[..2], &again[8..]), (&message[..2], &message[8..ANSWER_HEAD]));
        if let Some(info) = TableInfo::read(answer.generation, rest) {
            assert!(info.geometry.bytes() as u64 <= info.memory.len(), "{info:?}");
            assert!(info.shard.0 < info.shard.1, "{info:?}");
        }
        true
    });
}

#[test]
fn slots() {
    const PLACE: Place = Place { generation: 3, slot: 17 };
    let mut corpus = vec![vec![0; 256]];
    for (key, value) in [(1, 0), (8, 7), (13, 100), (255, 9)] {
        let (key, value, mut image) = (vec![7; key], vec![9; value], Vec::new());
        let entry = Entry { version: 5, expires: 99, key: &key, value: &value };
        put_live(&mut image, entry, PLACE, Cover::All);
        corpus.push(image);
    }
    for state in [State::Deleted, State::Moved] {
        let mut image = Vec::new();
        put_mark(&mut image, state, 8, PLACE);
        corpus.push(image);
    }
    fuzz("slots", &corpus, |bytes| {
        // Without the seal anything may be in it, and still nothing breaks.
        let _ = parse(bytes, PLACE, Cover::Nothing);
        match parse(bytes, PLACE, Cover::All) {
            Ok(View::Live(entry)) => {
                let mut image = Vec::new();
                put_live(&mut image, entry, PLACE, Cover::All);
                assert!(bytes.starts_with(&image), "{entry:?}");
                true
            }
            Ok(View::Free) => {
                assert!(bytes.starts_with(&[0; 32]));
                true
            }
            other => other.is_ok(),
        }
    });
}
