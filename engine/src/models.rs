//! The worker's models, with each memory order weakened in turn:
//! `RUSTFLAGS="--cfg loom" cargo test -p doorbell-engine --release --lib models`.

use doorbell_base::models::Weakened;

use crate::worker;

#[test]
fn models_fail_where_an_order_is_weakened() {
    Weakened {
        package: env!("CARGO_MANIFEST_DIR"),
        models: worker::MODELS.to_vec(),
        spared: &[("shared_state.rs has_work 1", TAKEN), ("watch.rs take 1", TAKEN)],
        either: &[],
        unseen: &[],
    }
    .check();
}

const TAKEN: &str = "the exchange that lowers the flag acquires, before the last look";
