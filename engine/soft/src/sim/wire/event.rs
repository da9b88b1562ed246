//! What happens on the wire, for those who watch it.

/// Events on the wire. Sides are 0 and 1; a packet is named by its connection, its sending side and
/// its number. Responses are numbered apart from all other records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A packet set out, for the first time or again.
    Sent {
        /// Connection.
        conn: usize,
        /// Sending side.
        from: usize,
        /// Packet sequence number.
        psn: u32,
        /// Copies that will arrive.
        copies: u8,
    },
    /// A packet arrived.
    Arrived {
        /// Connection.
        conn: usize,
        /// Sending side.
        from: usize,
        /// Packet sequence number.
        psn: u32,
        /// It was the next in order, and was kept.
        new: bool,
    },
    /// The receiving domain took a packet.
    Taken {
        /// Connection.
        conn: usize,
        /// Sending side.
        from: usize,
        /// Packet sequence number.
        psn: u32,
    },
    /// The receiving domain refused a packet with that status (`enum ibv_wc_status`).
    Refused {
        /// Connection.
        conn: usize,
        /// Sending side.
        from: usize,
        /// Packet sequence number.
        psn: u32,
        /// Status the sender will see.
        status: u8,
    },
    /// No acknowledgement came in time, and packets are sent again.
    TimedOut {
        /// Connection.
        conn: usize,
        /// Sending side.
        from: usize,
    },
    /// All retries failed: the sending queue pair fails, and so does a request of the other side
    /// that waits for a response.
    Exhausted {
        /// Connection.
        conn: usize,
        /// Sending side.
        from: usize,
    },
    /// A datagram set out to a queue pair.
    Datagram {
        /// The relay that carries it, see [`Wire::relay`](super::Wire::relay).
        relay: usize,
        /// The sending queue pair.
        from: u32,
        /// Bytes.
        length: u32,
        /// Copies that will arrive.
        copies: u8,
    },
}
