//! Buffers and exposed memory over memory that the program provides.

use std::ops::Range;

use doorbell_alloc::{MapRequest, Mapping};
use doorbell_cm::{Buffer, Exposed, Runtime, Stop};
use doorbell_engine::worker::{
    Config, Handler, Message, Outbox, PeerId, SharedRecv, Verdict, Worker,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, Provider};
use doorbell_soft::SoftDevice;

#[test]
fn buffers_hold_what_the_memory_held() {
    let device = SoftDevice::open().unwrap();
    let mut memory = Mapping::plain(4096).unwrap();
    let bytes = memory.as_mut_slice().unwrap();
    (bytes[0], bytes[128], bytes[128 + 69]) = (1, 2, 3);
    let buffers = Buffer::over(&device, memory, 2, 70).unwrap();
    assert_eq!((buffers[0][0], buffers[1][0], buffers[1][69]), (1, 2, 3));
    assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [70, 70]);
    let whole = Buffer::over(&device, Mapping::plain(4096).unwrap(), 1, 4096).unwrap();
    assert_eq!(whole[0].len(), 4096);
}

/// A slice of memory that another process may write to would be unsound.
#[test]
fn no_buffer_lies_in_memory_that_others_may_map() {
    let device = SoftDevice::open().unwrap();
    let shared = MapRequest::new(4096).shared(true).map().unwrap();
    let refused = Buffer::over(&device, shared, 1, 64).map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::Invalid);
    assert!(refused.to_string().contains("other processes"), "{refused}");
}

#[test]
fn memory_that_is_too_short_is_refused() {
    let device = SoftDevice::open().unwrap();
    let memory = || Mapping::plain(4096).unwrap();
    assert!(Buffer::over(&device, memory(), 64, 64).is_ok());
    let refused = Buffer::over(&device, memory(), 65, 64).map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::Invalid);
    let refused = Exposed::over(&device, memory(), 4097, Access::REMOTE_READ).map(drop);
    assert_eq!(refused.unwrap_err().code(), Code::Invalid);
    let exposed = Exposed::over(&device, memory(), 4096, Access::REMOTE_READ).unwrap();
    assert_eq!(exposed.len(), 4096);
}

const CONFIG: Config = Config { peers: 4, recv_blocks: 128, ..Config::DEFAULT };

/// Greets each peer, and notes where the first message lies.
struct Where {
    stop: Stop,
    lay: Option<Range<usize>>,
}

impl<P: Provider> Handler<P> for Where {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        assert_eq!(out.send(peer, b"hello"), Ok(()));
    }

    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        let bytes = message.bytes().as_ptr_range();
        self.lay = Some(bytes.start as usize..bytes.end as usize);
        assert_eq!(message.bytes(), b"hello");
        self.stop.stop();
        Verdict::Done
    }
}

#[test]
fn messages_arrive_in_the_programs_memory() {
    let device = SoftDevice::open().unwrap();
    let bytes = vec![0; CONFIG.recv_bytes()].leak();
    let range = bytes.as_ptr_range();
    let (start, end) = (range.start as usize, range.end as usize);
    let mut runtime = Runtime::new(&device, &CONFIG);
    runtime.receive_into(Mapping::from_static(bytes)).unwrap();
    let handler = Where { stop: runtime.stopper(), lay: None };
    runtime.add(handler).unwrap();
    let addr = runtime.listen("127.0.0.1:0").unwrap();
    runtime.dial(addr).unwrap(); // it greets itself
    runtime.run().unwrap();
    let lay = runtime.workers()[0].handler().lay.clone().expect("the greeting");
    assert!(start <= lay.start && lay.end <= end, "{lay:?} is not in {start}..{end}");
}

/// A message is lent as a slice, and a slice that another process may write to would be unsound.
#[test]
fn workers_use_no_memory_that_others_may_map() {
    let device = SoftDevice::open().unwrap();
    let shared = |len| MapRequest::new(len).shared(true).map().unwrap();
    let refused = SharedRecv::new(&device, shared(CONFIG.recv_bytes()), &CONFIG).map(drop);
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::Invalid);
    assert!(refused.to_string().contains("other processes"), "{refused}");

    let private = Mapping::plain(CONFIG.recv_bytes()).unwrap();
    let receives = SharedRecv::new(&device, private, &CONFIG).unwrap();
    let handler = Where { stop: Stop::default(), lay: None };
    let memory = shared(CONFIG.send_bytes());
    let refused = Worker::new(&device, &receives, memory, handler, &CONFIG).map(drop);
    assert_eq!(refused.unwrap_err().code(), Code::Invalid);
}
