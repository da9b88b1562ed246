//! Tests of ends whose peer leaves before the program asks for events.

use doorbell_fabric::{ConnParam, EventKind};
use doorbell_seam::provider::{Poller, Provider, Qp};
use doorbell_seam::wc::{Status, Wc};

use super::tests::{Liar, listener, next, post_receive, request, with_qp};
use super::wire::Message;
use super::*;

/// A device that notices without events that a peer has left.
fn device() -> SoftDevice {
    let device = SoftDevice::open().unwrap();
    device.connect_by_number().unwrap();
    device
}

fn memory(device: &SoftDevice) -> SoftRegion {
    device.register(Mapping::plain(4096).unwrap(), Access::LOCAL_WRITE).unwrap()
}

/// A peer that was up and has said goodbye leaves the queue pair here alone (QP-22), even if the
/// program has not read that it was up. One that has said no goodbye has crashed.
#[test]
fn an_orderly_end_is_seen_behind_the_message_that_the_peer_is_up() {
    for goodbye in [true, false] {
        let device = device();
        let channel = device.open_channel().unwrap();
        let (_listener, name) = listener(&device, &channel);
        let liar = Liar::connect(&name);
        liar.say(&request());
        let mut id = next(&channel).request.unwrap();
        let (mut qp, mut poller) = with_qp(&device, &mut id);
        let region = memory(&device);
        post_receive(&mut qp, &region);
        id.accept(&ConnParam::default()).unwrap();
        assert!(matches!(liar.receive(), Some(Message::Reply(_))));
        liar.say(&Message::Ready);
        if goodbye {
            liar.say(&Message::Bye);
        }
        drop(liar);
        assert_eq!(device.rendezvous_step(), [qp.num()]);
        let mut out = [Wc::default(); 4];
        let flushed = poller.poll(&mut out);
        assert_eq!(flushed, usize::from(!goodbye));
        assert!(out[..flushed].iter().all(|wc| wc.status == Status::Flushed));
        let events = [next(&channel), next(&channel)].map(|event| (event.kind, event.status));
        let end = if goodbye { 0 } else { -104 };
        assert_eq!(events, [(EventKind::Established, 0), (EventKind::Disconnected, end)]);
        drop(qp);
    }
}
