//! Each parser of the disk under changed messages: it refuses them, or what it reads is written as
//! it was. See `examples/tests/fuzz`.

#[path = "../../tests/fuzz/mod.rs"]
mod fuzz;

use doorbell_nvmf::nbd::wire as nbd;
use doorbell_nvmf::wire::cm::{QueueRequest, Reject};
use doorbell_nvmf::wire::command::{Command, opcode};
use doorbell_nvmf::wire::connect::{Connect, ConnectData, Property};
use doorbell_nvmf::wire::discovery::{self, Entry};
use doorbell_nvmf::wire::identify;
use doorbell_nvmf::wire::log::GetLog;
use doorbell_nvmf::wire::response::Response;
use doorbell_nvmf::wire::sgl::{self, Data, Keyed};
use doorbell_nvmf::wire::status::Status;
use doorbell_nvmf::wire::{COMMAND_BYTES, PAGE_BYTES};

use fuzz::fuzz;

/// Bytes behind the command in a capsule of these tests.
const EXTRA: usize = 128;

#[test]
fn connection_requests() {
    let request = |queue, depth| QueueRequest { queue, receives: 32, depth, controller: 7 };
    let corpus = [request(0, 32), request(1, 128), request(9, 2)].map(|one| one.bytes().to_vec());
    fuzz("connection requests", &corpus, |message| {
        let _ = Reject::read(message);
        let Ok(request) = QueueRequest::read(message) else { return false };
        // The rest is reserved.
        assert_eq!(request.bytes()[..10], message[..10]);
        assert!((2..=128).contains(&request.depth) && request.receives > 0, "{request:?}");
        true
    });
}

fn capsules() -> Vec<Vec<u8>> {
    let keyed = Data::Keyed(Keyed { addr: 4096, len: 4096, key: 5, invalidate: true });
    let inside = Data::InCapsule { offset: 8, len: 100 };
    let commands = [
        Command::blocks(opcode::READ, 1, 3, 8).data(keyed),
        Command::blocks(opcode::WRITE, 1, 3, 8).forced().data(inside),
        Command::new(opcode::DATASET_MANAGEMENT, 1).with(11, 4).data(inside),
        Command::new(opcode::IDENTIFY, 0).with(10, 1).data(keyed),
        Connect { queue: 1, depth: 16, keep_alive_ms: 500 }.command().data(inside),
        Property::Cc.set(0x0046_0001).data(inside),
        Property::Cap.get().data(inside),
        GetLog { page: 2, offset: 64, len: 512 }.command().data(keyed),
    ];
    commands.iter().map(|command| [&command.bytes()[..], &[7; EXTRA]].concat()).collect()
}

#[test]
fn command_capsules() {
    fuzz("command capsules", &capsules(), |capsule| {
        let Some(command) = Command::read(capsule) else {
            assert!(capsule.len() < COMMAND_BYTES);
            return false;
        };
        let _ = (command.range(), command.is_forced(), command.id(), command.namespace());
        let Ok(data) = command.place() else { return false };
        let again = command.data(data);
        assert_eq!(again.place(), Ok(data));
        if let Data::InCapsule { offset, len } = data {
            let extra = &capsule[COMMAND_BYTES..];
            let whole = offset.checked_add(len.into()).is_some_and(|end| end <= extra.len() as u64);
            let found = sgl::in_capsule(extra, offset, len);
            assert_eq!(found.map(<[u8]>::len).ok(), whole.then_some(len as usize));
        }
        true
    });
}

/// The commands whose fields have parsers of their own.
#[test]
fn fields_of_commands() {
    fuzz("fields of commands", &capsules(), |capsule| {
        let Some(command) = Command::read(capsule) else { return false };
        if let Ok(connect) = Connect::read(&command) {
            let again = connect.command();
            assert_eq!((again.word(42), again.word(44)), (command.word(42), command.word(44)));
            assert_eq!(again.dword(12), command.dword(12));
        }
        if let Ok(property) = Property::read(&command) {
            assert_eq!(property.get().dword(11), command.dword(11));
        }
        if let Ok(log) = GetLog::read(&command) {
            let dwords = u64::from(command.word(42)) | u64::from(command.word(44)) << 16;
            assert_eq!((log.offset, log.len), (command.long(12), (dwords + 1) * 4));
            assert_eq!(log.page, command.bytes()[40]);
            if let Ok(page) = log.cut(&[9; 100], 4096) {
                assert!(page.len() <= 4096 && log.offset <= 100, "{log:?}");
            }
        }
        true
    });
}

#[test]
fn data_of_connect() {
    let data = |subsystem: &str| ConnectData {
        host_id: [7; 16],
        controller: 0xffff,
        subsystem: subsystem.to_owned(),
        host: "nqn.host".to_owned(),
    };
    let corpus = [data("nqn.disk"), data(&"n".repeat(223))].map(|data| data.bytes().to_vec());
    fuzz("data of connect", &corpus, |message| {
        let Ok(data) = ConnectData::read(message) else { return false };
        assert!(message.starts_with(&data.host_id));
        assert_eq!(data.controller.to_le_bytes(), message[16..18]);
        for (at, name) in [(256, &data.subsystem), (512, &data.host)] {
            let is_name = message[at..].starts_with(name.as_bytes());
            assert!(is_name && message[at + name.len()] == 0, "{data:?}");
        }
        true
    });
}

#[test]
fn response_capsules() {
    let response = Response { result: 9, head: 1, queue: 2, id: 3, status: Status::SGL_TYPE };
    fuzz("response capsules", &[response.bytes().to_vec()], |message| {
        let Some(response) = Response::read(message) else { return false };
        assert_eq!(response.bytes()[..14], message[..14]);
        assert_eq!(response.status.field(), u16::from_le_bytes([message[14], message[15]]) & !1);
        assert_eq!(response.status.is_ok(), response.status.code() == 0);
        true
    });
}

/// What an initiator reads of a target.
#[test]
fn pages() {
    let subsystem = "nqn.disk".to_owned();
    let addr = |addr: &str| addr.parse().expect("an address");
    let entries = ["192.0.2.1:4420", "[2001:db8::1]:4420"]
        .map(|at| Entry { subsystem: subsystem.clone(), addr: addr(at) });
    assert_eq!(discovery::read(&discovery::page(&entries)), entries);
    fuzz("discovery pages", &[discovery::page(&entries), discovery::page(&[])], |page| {
        let entries = discovery::read(page);
        assert!(entries.len() <= page.len() / discovery::ENTRY_BYTES);
        let again = discovery::page(&entries);
        assert_eq!(discovery::read(&again), entries);
        true
    });
    let namespace = identify::Namespace { blocks: 2048, guid: [3; 16] };
    let corpus = [namespace.page().to_vec(), identify::active(0, 900).to_vec()];
    fuzz("identify pages", &corpus, |bytes| {
        let Ok(page) = <&[u8; PAGE_BYTES]>::try_from(bytes) else { return false };
        let shown = identify::Controller::read(page);
        assert_eq!(identify::Controller::read(&shown.page()).id, shown.id);
        let limits = identify::Limits::read(page);
        assert!(limits.transfer.is_none_or(|bytes| bytes >= PAGE_BYTES), "{limits:?}");
        let _ = identify::Namespace::read(page);
        assert!(identify::read_active(page).len() <= PAGE_BYTES / 4);
        true
    });
}

/// What a program that speaks NBD sends to the gateway.
#[test]
fn nbd_requests() {
    let request = |kind, len| nbd::Request { kind, flags: 1, cookie: 5, at: 4096, len };
    let corpus = [
        request(nbd::Kind::Read, 4096),
        request(nbd::Kind::Write, 512),
        request(nbd::Kind::Trim, 1 << 20),
        request(nbd::Kind::Flush, 0),
    ];
    fuzz("NBD requests", &corpus.map(|one| one.bytes().to_vec()), |message| {
        let _ = nbd::is_info(message);
        if let Some(head) = message.first_chunk() {
            let is_option = nbd::OptionHeader::read(head).is_some();
            assert_eq!(is_option, head.starts_with(b"IHAVEOPT"));
        }
        let Some(request) = message.first_chunk().and_then(nbd::Request::read) else {
            return false;
        };
        if request.kind != nbd::Kind::Other {
            assert_eq!(request.bytes(), message[..nbd::REQUEST_BYTES]);
        }
        let moves = matches!(request.kind, nbd::Kind::Read | nbd::Kind::Write);
        if moves && request.check(1 << 20, 512) == 0 {
            assert!(request.at + u64::from(request.len) <= 1 << 20, "{request:?}");
        }
        true
    });
    let options = [vec![0, 0, 0, 1, b'a', 0, 1, 0, 3], vec![0; 6]];
    fuzz("NBD options", &options, |data| {
        let whole = nbd::is_info(data);
        // A name with its length in front, and numbers of two bytes with their count in front.
        let name = data.first_chunk().map(|head| u32::from_be_bytes(*head) as usize);
        let behind = name.and_then(|name| data.get(4..)?.get(name..));
        let count = behind.and_then(|rest| Some(u16::from_be_bytes(*rest.first_chunk()?)));
        let should =
            behind.zip(count).is_some_and(|(rest, count)| rest.len() == 2 + 2 * usize::from(count));
        assert_eq!(whole, should);
        whole
    });
}
