//! Runs a case on the device under test, within a time limit.

use std::any::Any;
use std::net::IpAddr;
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use doorbell_cm::{Device, Fabric, Program};

use crate::toy;

/// A case hangs if nothing has moved in this process for this long, longer than the longest wait.
/// The total time of a case depends on the machine.
const STILL: Duration = Duration::from_secs(420);

/// The variable that puts the toy wire below the soft device.
pub(crate) const TOY: &str = "DOORBELL_TEST_TOY";

/// Printed after a case that has passed and has sent something over the toy wire.
pub(crate) const CARRIED: &str = "carried by the toy wire";

/// Grows with each message and event of any case.
static MOVES: AtomicU64 = AtomicU64::new(0);

/// The address under test.
pub(crate) fn address() -> IpAddr {
    let given = std::env::var("DOORBELL_ADDR").ok();
    let usual = if on_soft() { "127.0.0.1" } else { "192.168.77.1" };
    given.as_deref().unwrap_or(usual).parse().expect("DOORBELL_ADDR is an IP address")
}

/// True if the device under test is the soft device.
pub(crate) fn on_soft() -> bool {
    std::env::var("DOORBELL_DEVICE").map_or(true, |name| name.is_empty() || name == "soft0")
}

/// A case has progressed: gives it more time.
pub(crate) fn moves() {
    // Relaxed: only its growth matters.
    MOVES.fetch_add(1, Ordering::Relaxed);
}

/// Runs `program` on the device under test; a hang is a failure.
pub(crate) fn run<P: Program<Output = ()> + Send + 'static>(program: P) {
    let (done, ended) = mpsc::channel();
    let case = thread::spawn(move || {
        let result = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            on_device(program);
        }));
        done.send(()).expect("the test waits");
        result
    });
    let mut seen = MOVES.load(Ordering::Relaxed);
    while ended.recv_timeout(STILL).is_err() {
        let now = MOVES.load(Ordering::Relaxed);
        // A hung thread stays behind; the process ends with the last test.
        assert_ne!(now, seen, "the case hangs: nothing has moved for {STILL:?}");
        seen = now;
    }
    if let Ok(Err(cause)) | Err(cause) = case.join() {
        panic::resume_unwind(cause);
    }
}

/// True if the connections of the soft device use the toy wire.
pub(crate) fn on_toy() -> bool {
    std::env::var_os(TOY).is_some()
}

/// Runs a case on a device of its own.
fn on_device<P: Program<Output = ()>>(program: P) {
    if !on_toy() {
        return Device::choose(None, None).expect("the device under test").run(program);
    }
    let (device, carried) = toy::open().expect("a device over the toy wire");
    program.run(device);
    if carried.load(Ordering::Relaxed) > 0 {
        println!("{CARRIED}");
    }
}

/// A second device of the same kind, whose queues and memory are foreign to the first.
pub(crate) fn another<F: Fabric>() -> Option<F> {
    if on_soft() {
        return open("soft0");
    }
    let tested = std::env::var("DOORBELL_DEVICE").unwrap_or_default();
    rdma_devices().iter().filter(|name| **name != tested).find_map(|name| open(name))
}

#[cfg(feature = "verbs")]
fn rdma_devices() -> Vec<String> {
    doorbell_verbs::Verbs::devices()
}

#[cfg(not(feature = "verbs"))]
fn rdma_devices() -> Vec<String> {
    Vec::new()
}

/// The device of that name, if it exists and is of that kind.
pub(crate) fn open<F: Fabric>(name: &str) -> Option<F> {
    struct Take;
    impl Program for Take {
        type Output = Box<dyn Any>;
        fn run<G: Fabric>(self, fabric: G) -> Box<dyn Any> {
            Box::new(fabric)
        }
    }
    let device = Device::named(name).ok()?;
    device.run(Take).downcast().ok().map(|device| *device)
}

/// Prints why a case does not apply. Every case applies to the soft device, on any machine.
pub(crate) fn skip(reason: &str) {
    assert!(
        !on_soft() || on_toy(),
        "every case is for the soft device, and this one is skipped: {reason}"
    );
    println!("skipped: {reason}");
}

/// Makes a test of each named function, which gets a [`crate::bed::Bed`] on the device under test.
/// A macro, because a function that is generic over the device cannot be passed as a value.
macro_rules! cases {
    ($($name:ident)*) => {
        mod cases {
            $(
                #[test]
                fn $name() {
                    struct Case;
                    impl doorbell_cm::Program for Case {
                        type Output = ();
                        fn run<F: doorbell_cm::Fabric>(self, fabric: F) {
                            super::$name(&crate::bed::Bed::new(fabric));
                        }
                    }
                    crate::harness::run(Case);
                }
            )*
        }
    };
}
