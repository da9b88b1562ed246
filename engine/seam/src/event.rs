//! Asynchronous events: what happens to a device, a queue or a queue pair apart from completions.

/// An asynchronous event (`struct ibv_async_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncKind,
    /// What it happened to.
    pub object: Object,
}

/// What an event happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Object {
    /// The device as a whole.
    Device,
    /// A port of the device, counted from 1.
    Port(u8),
    /// A queue pair, by its number.
    Qp(u32),
    /// A completion queue, by [`crate::provider::AsyncEvents::cq_id`].
    Cq(u64),
    /// A shared receive queue, by [`crate::provider::SrqLimits::id`].
    Srq(u64),
}

/// Kinds of events (`enum ibv_event_type`, numbers as there; AE-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum AsyncKind {
    /// A completion queue was overrun, and is dead (CP-5).
    CqError = 0,
    /// A queue pair went to ERR for a reason that no completion reports.
    QpFatal = 1,
    /// The peer sent a request that its queue pair may not send (CK-1).
    QpRequestError = 2,
    /// The peer's request named memory that it may not use (CK-1).
    QpAccessError = 3,
    /// The first message came before the connection was up (SM-4).
    CommEstablished = 4,
    /// The send queue of a queue pair in SQD is empty.
    SqDrained = 5,
    /// The path has migrated.
    PathMigrated = 6,
    /// The path could not migrate.
    PathMigrationError = 7,
    /// The device failed.
    DeviceFatal = 8,
    /// A port came up.
    PortActive = 9,
    /// A port went down.
    PortError = 10,
    /// The port's local identifier changed.
    LidChange = 11,
    /// The partition table changed.
    PkeyChange = 12,
    /// The subnet manager changed.
    SmChange = 13,
    /// A shared receive queue failed.
    SrqError = 14,
    /// Fewer receives are left in a shared queue than its limit (SRQ-14).
    SrqLimitReached = 15,
    /// A queue pair in ERR will take no more receives from its shared receive queue (SRQ-16).
    LastWqeReached = 16,
    /// The subnet manager asks clients to register again.
    ClientReregister = 17,
    /// The GID table changed.
    GidChange = 18,
    /// A work queue failed.
    WqFatal = 19,
    /// The device's speed changed.
    SpeedChange = 20,
}

impl AsyncKind {
    /// The kind for a number from a device; `None` for a number newer than this list.
    pub fn from_raw(raw: u32) -> Option<AsyncKind> {
        use AsyncKind::*;
        const ALL: [AsyncKind; 21] = [
            CqError,
            QpFatal,
            QpRequestError,
            QpAccessError,
            CommEstablished,
            SqDrained,
            PathMigrated,
            PathMigrationError,
            DeviceFatal,
            PortActive,
            PortError,
            LidChange,
            PkeyChange,
            SmChange,
            SrqError,
            SrqLimitReached,
            LastWqeReached,
            ClientReregister,
            GidChange,
            WqFatal,
            SpeedChange,
        ];
        ALL.get(raw as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_headers() {
        for raw in 0..21 {
            assert_eq!(AsyncKind::from_raw(raw).map(|kind| kind as u32), Some(raw));
        }
        assert_eq!(AsyncKind::from_raw(21), None);
    }
}
