//! The device's models, with each memory order weakened in turn:
//! `RUSTFLAGS="--cfg loom" cargo test -p doorbell-soft --no-default-features --release --lib
//! models`.

use doorbell_base::models::Weakened;

use crate::model::biased;
use crate::models;
use crate::shm::inbox;
use crate::steps::domain;

/// Sites whose order may be weakened without a failing model, and why.
const SPARED: &[(&str, &str)] = &[
    ("peer_waker.rs ring 1", WHICH_WAKES),
    ("inbox.rs wake 1", WHICH_WAKES),
    ("local_waker.rs wake 2", WHICH_WAKES),
    ("inbox.rs set_asleep 1", FENCED),
    ("link_shared.rs set_asleep 1", FENCED),
    ("local_waker.rs set 1", FENCED),
    ("domain.rs alone 1", LOCKED),
    ("domain.rs attend 1", LOCKED),
    ("domain.rs call 1", LOCKED),
    ("inbox.rs claim 1", "the exchange behind it acquires, too"),
    ("inbox.rs claim 2", "the load before it has acquired"),
    ("inbox.rs exchange 1", "an exchange passes on what the state before it released"),
    ("biased.rs enter 2", "the same: in a model, a store to a flag is an exchange"),
];
const WHICH_WAKES: &str = "decides only which thread wakes; the woken side looks for itself";
const FENCED: &str = "there is a fence behind it, `before_last_look`";
const LOCKED: &str = "the lock of the commands orders what the flag says";

/// Listed sites of which at least one is needed.
const EITHER: &[&[&str]] = &[&["inbox.rs claim 1", "inbox.rs claim 2"]];

/// Functions with such sites that no model runs, and why.
const UNSEEN: &[(&str, &str)] = &[
    ("inbox.rs drop", "a sender that sees that the owner is gone does nothing"),
    ("inbox.rs owner", "as `is_for`, for the simulation"),
    ("poll.rs spin", "affects speed alone"),
];

#[test]
fn models_fail_where_an_order_is_weakened() {
    Weakened {
        package: env!("CARGO_MANIFEST_DIR"),
        models: [
            models::SMALL_MODELS,
            domain::models::MODELS,
            inbox::models::MODELS,
            biased::models::MODELS,
        ]
        .concat(),
        spared: SPARED,
        either: EITHER,
        unseen: UNSEEN,
    }
    .check();
}
