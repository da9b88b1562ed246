//! The numbers and the memory of a worker: the same on both sides of a run.

use doorbell::alloc::Mapping;
use doorbell::message_memory;
use doorbell::provider::{Caps, Provider};
use doorbell::worker::Config;

use crate::ask::request::{Request, Test};
use crate::error::Failure;
use crate::meet::tally::Tally;
use crate::meet::wire;

/// Largest message, in bytes, on a device that has no smaller limit.
const SIZE_MAX: u32 = 16 << 20;

/// Memory for one kind of blocks, in bytes, where [`BLOCKS_EACH`] need no more. Blocks are used in
/// turn, so all of this is touched again and again, and has to stay in the caches that both cores
/// share: with 4 MiB, half a round trip of 64 KiB takes 1.2 of the time, and with 1 MiB as much.
const BLOCKS_CACHED: u32 = 2 << 20;

/// The most memory for one kind of blocks, in bytes, unless [`BLOCKS_EACH`] need more.
const BLOCKS_BYTES: u32 = 64 << 20;

/// The fewest blocks for a busy connection.
const BLOCKS_EACH: u32 = 4;

/// Entries of a completion queue that a worker needs for requests at least.
const REQUESTS: u32 = 256;

/// Sends outstanding if many round trips are in flight.
const SEND_QUEUE_DEEP: u32 = 1024;

/// Largest message on a device, in bytes.
pub(crate) fn size_max(caps: &Caps) -> u32 {
    SIZE_MAX.min(caps.message_max)
}

/// The configuration of a worker with that many connections. Blocks are as small as the message
/// allows, so that they share cache lines well, and there are enough for every send in flight.
pub(crate) fn config(request: &Request, peers: u32, caps: &Caps) -> Result<Config, Failure> {
    let (size, limit) = (request.size, size_max(caps));
    if size == 0 || size > limit {
        return Err(Failure::new(format!(
            "--size {size}: a message has 1 to {limit} bytes on {}",
            caps.device
        )));
    }
    let block_bytes = size.max(wire::WORD_BYTES as u32).next_multiple_of(64);
    let busy = request.qps.saturating_mul(BLOCKS_EACH);
    let most = (BLOCKS_CACHED / block_bytes).max(busy).min(BLOCKS_BYTES / block_bytes);
    // Twice what the windows need, so that each is as long as it may be.
    let (send_queue, window, times) = match request.test {
        Test::Load | Test::Sweep => (SEND_QUEUE_DEEP, SEND_QUEUE_DEEP, 4),
        // A wide window, because each half of one costs a doorbell for a word of credit.
        Test::Rate => (Config::DEFAULT.send_queue, 4 * Config::DEFAULT.window, 8),
        _ => (Config::DEFAULT.send_queue, Config::DEFAULT.window, 2),
    };
    let streams = request.qps.saturating_mul(times).saturating_mul(send_queue);
    // The completion queue has room for all of them, beside requests and peers.
    let completions = caps.cqe_max.saturating_sub(peers.saturating_add(REQUESTS));
    let recv_blocks = match request.receives {
        0 => streams.min(most).min(caps.srq_wr_max).min(completions).max(BLOCKS_EACH),
        asked => asked,
    };
    let refill = Config::DEFAULT.refill.min(recv_blocks / 4);
    // All windows are as long from the first message on, where there are receives for that.
    let each = (recv_blocks - refill) / peers.max(1);
    // The busy ones have no more in flight than there are receives, however many are idle.
    let busy = (recv_blocks - refill) / request.qps.max(1);
    let window = window.min(busy.max(Config::DEFAULT.window_min));
    let window_min = each.min(window).max(Config::DEFAULT.window_min);
    Ok(Config {
        peers,
        send_queue,
        block_bytes,
        recv_blocks,
        send_blocks: Config::DEFAULT.send_blocks.min(most).max(BLOCKS_EACH),
        signal_every: request.signal_every,
        refill,
        window,
        window_min,
        // Thousands of idle connections are promised receives that they never use. Of the largest
        // messages there may be fewer receives than connections.
        overcommit: match request.idle_qps {
            0 => peers.saturating_mul(window_min).div_ceil(recv_blocks - refill).max(1),
            _ => 1 + (peers.saturating_mul(window) / recv_blocks).min(1 << 15),
        },
        ..Config::DEFAULT
    })
}

/// Maps memory for messages, and notes in `tally` which pages it got.
pub(crate) fn memory<P: Provider>(
    nic: &P,
    bytes: usize,
    tally: &mut Tally,
) -> Result<Mapping, Failure> {
    let memory = message_memory(nic, bytes)?;
    let notes = memory.report().notes().iter().map(ToString::to_string).collect();
    tally.add(Tally { pages: memory.pages().to_string(), notes, ..Tally::default() });
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(size: u32, qps: u32) -> Request {
        Request { qps, ..Request::new(Test::Rate, size) }
    }

    #[test]
    fn every_size_and_number_of_connections_gives_a_valid_configuration() {
        let device = doorbell::soft::SoftDevice::open().unwrap();
        let caps = doorbell::provider::Provider::caps(&device);
        for size in [1, 8, 64, 65, 200, 4096, 1 << 20, SIZE_MAX] {
            for qps in [1, 2, 1000] {
                let config = config(&request(size, qps), qps, caps).unwrap();
                assert_eq!(config.check(), Ok(()), "{size} {qps}");
                assert!(config.block_bytes >= size);
            }
        }
        for size in [0, SIZE_MAX + 1] {
            let text = config(&request(size, 1), 1, caps).unwrap_err().to_string();
            assert!(text.contains("1 to 16777216 bytes"), "{text}");
        }
    }
}
