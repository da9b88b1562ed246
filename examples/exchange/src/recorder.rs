//! Records the feed: a handler that writes each datagram of both lines to a capture.

use std::io;

use doorbell::prelude::*;
use doorbell::worker::Datagram;

use crate::capture::{Kind, Writer};
use crate::clock::since_epoch;

/// See the module.
pub struct Recorder {
    writer: Writer,
    failed: Option<io::Error>,
    stop: Stop,
}

impl Recorder {
    /// One that writes there, and calls `stop` if that fails.
    pub fn new(writer: Writer, stop: Stop) -> Recorder {
        Recorder { writer, failed: None, stop }
    }

    /// Ends the file. Returns the number of datagrams.
    ///
    /// # Errors
    /// Those of the file system, now or before.
    pub fn finish(&mut self) -> io::Result<u64> {
        match self.failed.take() {
            Some(failed) => Err(failed),
            None => self.writer.finish(),
        }
    }
}

impl<P: Provider> Handler<P> for Recorder {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }

    fn on_datagram(&mut self, datagram: Datagram<'_>, _: &mut Outbox<'_, P>) {
        // The exchange puts the number of the line into the immediate.
        let line = datagram.imm().and_then(|imm| u16::try_from(imm).ok()).unwrap_or(0);
        let written = self.writer.write(since_epoch(), Kind::Feed(line), datagram.bytes());
        if let Err(failed) = written {
            self.failed.get_or_insert(failed);
            self.stop.stop();
        }
    }
}
