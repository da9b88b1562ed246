//! Models of a command for a domain that falls asleep.
#![expect(unsafe_code, reason = "the one thread that enters")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "the owner's thread alone enters")]

use core::cell::Cell;

use doorbell_base::models::{Model, check};
use loom::thread;

use super::*;
use crate::provider::wake::Notifier;

pub(crate) const MODELS: &[Model] = &[
    ("a command for a domain that falls asleep", for_a_sleeper),
    ("three commands", one_after_the_other),
];

std::thread_local! {
    /// How often the notifier was rung. All threads of a model run on one.
    static RINGS: Cell<u32> = const { Cell::new(0) };
}

fn notifier() -> Option<Notifier> {
    let ring = |_| RINGS.set(RINGS.get() + 1);
    Some(Notifier::new(0, Arc::new(()), ring, |_| ()))
}

fn nic() -> Arc<Nic> {
    Arc::new(Nic::new("soft0", Host { notifier, ..Host::alone(|| 0) }, None))
}

fn domain(nic: &Arc<Nic>) -> Arc<Domain> {
    RINGS.set(0);
    Arc::new(Domain::new(nic, Sharing::Exclusive))
}

/// The parts of a host that the model does not use.
const COMMAND: Command = Command::Resume { num: 2 };

impl Domain {
    fn has_commands(&self) -> bool {
        !self.commands.lock().list.is_empty()
    }

    /// As the owner's poll does.
    fn poll(&self) {
        unsafe { self.enter(|_| ()) };
    }
}

/// CP-6: the last look sees the command, or the command wakes the domain.
fn for_a_sleeper() {
    let nic = nic();
    check(move || {
        let domain = domain(&nic);
        let theirs = domain.clone();
        let control = thread::spawn(move || theirs.command(COMMAND));
        unsafe { domain.enter(DomainState::fall_asleep) };
        domain.poll();
        control.join().expect("the control plane");
        assert!(!domain.has_commands() || RINGS.get() > 0, "asleep for good");
    });
}

/// The thread that clears the flag leaves no command behind.
fn one_after_the_other() {
    let nic = nic();
    check(move || {
        let domain = domain(&nic);
        domain.command(COMMAND);
        let theirs = domain.clone();
        let control = thread::spawn(move || {
            theirs.command(COMMAND);
            theirs.command(COMMAND);
        });
        domain.poll();
        domain.poll();
        control.join().expect("the control plane");
        domain.poll();
        assert!(!domain.has_commands(), "a command nobody knows of");
    });
}

#[test]
fn models_commands_reach_a_sleeping_domain() {
    MODELS.iter().for_each(|(_, model)| model());
}
