//! Sockets, their messages and files, and wakers.

use super::*;
use std::os::fd::AsFd;

fn pair() -> (Socket, Socket) {
    let mut bytes = [0; 8];
    random(&mut bytes).unwrap();
    let name = format!("doorbell-test/{:x}", u64::from_ne_bytes(bytes));
    let listener = Socket::new().unwrap();
    listener.bind(&name).unwrap();
    listener.listen(1).unwrap();
    let client = Socket::new().unwrap();
    client.connect(&name).unwrap();
    let server = listener.accept().unwrap().unwrap();
    (client, server)
}

/// Length of the next message, and the number of files that came with it.
fn next(socket: &Socket, bytes: &mut [u8]) -> Option<(usize, usize)> {
    match socket.receive(bytes).unwrap() {
        Received::Message(length, files) | Received::Short(length, files) => {
            Some((length, files.len()))
        }
        Received::Closed => None,
        Received::Nothing => panic!("nothing there"),
    }
}

#[test]
fn messages_stay_whole_and_carry_a_file() {
    let (client, server) = pair();
    let file = std::fs::File::open("/proc/self/stat").unwrap();
    client.send(b"one", &[]).unwrap();
    client.send(b"with file", &[file.as_fd().as_raw_fd()]).unwrap();
    drop(client);
    let mut bytes = [0; 16];
    assert_eq!(next(&server, &mut bytes), Some((3, 0)));
    assert_eq!(next(&server, &mut bytes), Some((9, 1)));
    assert_eq!(next(&server, &mut bytes), None);
}

#[test]
fn a_message_that_does_not_fit_is_seen_to_be_longer() {
    let (client, server) = pair();
    client.send(&[7; 20], &[]).unwrap();
    let mut bytes = [0; 16];
    assert_eq!(next(&server, &mut bytes), Some((17, 0)));
}

#[test]
fn messages_before_a_reset_are_read_before_the_end() {
    let (client, server) = pair();
    server.send(b"never read", &[]).unwrap();
    client.send(b"goodbye", &[]).unwrap();
    drop(client);
    let mut bytes = [0; 16];
    assert_eq!(next(&server, &mut bytes), Some((7, 0)));
    assert_eq!(next(&server, &mut bytes), None);
}

/// A peek finds each message in turn, whatever was read between, and takes none.
#[test]
fn a_peek_looks_past_messages() {
    let (client, server) = pair();
    let mut bytes = [0; 16];
    assert_eq!(server.peek(0, &mut bytes), None, "nothing there");
    server.send(b"never read", &[]).unwrap();
    client.send(b"one", &[]).unwrap();
    client.send(b"three", &[]).unwrap();
    drop(client);
    for _ in 0..2 {
        assert_eq!((server.peek(0, &mut bytes), &bytes[..3]), (Some(3), &b"one"[..]));
        assert_eq!((server.peek(3, &mut bytes), &bytes[..5]), (Some(5), &b"three"[..]));
        assert_eq!(server.peek(8, &mut bytes), None);
    }
    assert_eq!(next(&server, &mut bytes), Some((3, 0)));
    assert_eq!((server.peek(0, &mut bytes), &bytes[..5]), (Some(5), &b"three"[..]));
    assert_eq!(next(&server, &mut bytes), Some((5, 0)));
    assert_eq!(next(&server, &mut bytes), None);
}

#[test]
fn the_other_end_is_this_process_and_this_user() {
    let (client, server) = pair();
    for end in [&client, &server] {
        let creds = end.peer().unwrap();
        assert_eq!(creds.pid, i32::try_from(std::process::id()).unwrap());
        assert_eq!(creds.uid, user());
    }
}

#[test]
fn a_waker_wakes_until_cleared() {
    let (epoll, waker) = (Epoll::new().unwrap(), Waker::new().unwrap());
    epoll.add(waker.fd(), 9).unwrap();
    let mut keys = [0; READY_MAX];
    assert!(epoll.wait(Some(Duration::ZERO), &mut keys).unwrap().is_empty());
    waker.wake();
    assert_eq!(epoll.wait(None, &mut keys).unwrap(), [9]);
    waker.clear();
    assert!(epoll.wait(Some(Duration::ZERO), &mut keys).unwrap().is_empty());
}

/// A socket without a name is closed while a fork is under way; one with a name is not.
#[test]
fn only_sockets_with_a_name_wait_for_a_fork() {
    let [plain, named] = [(); 2].map(|()| Socket::new().unwrap());
    named.bind(&format!("doorbell-test/{}/waits", std::process::id())).unwrap();
    let locked = forks::lock();
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| drop(plain));
        let second = scope.spawn(|| drop(named));
        let end = Instant::now() + Duration::from_secs(30);
        while !first.is_finished() && Instant::now() < end {
            std::thread::yield_now();
        }
        let ended = (first.is_finished(), second.is_finished());
        drop(locked);
        ended
    });
    assert!(first && !second);
}
