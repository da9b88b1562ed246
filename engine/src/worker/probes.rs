//! Static probes (USDT) at the points that a message passes, for bpftrace, perf, SystemTap and gdb.
//! With the feature `probes` each is a `nop` in the code, with its arguments in registers, and an
//! ELF note that says where. All of them together cost a message 4 to 12 instructions
//! (`doorbell-bench overhead`), so the feature is off by default; then there is nothing.

/// Defines the probes: a function that becomes a probe of the same name, or nothing. A function
/// cannot do this, because the name is part of the ELF note.
macro_rules! probes {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*);)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(super) fn $name($($arg: impl Into<u64>),*) {
            #[cfg(feature = "probes")]
            {
                $(let $arg: u64 = $arg.into();)*
                probe::probe!(doorbell, $name, $($arg),*);
            }
            #[cfg(not(feature = "probes"))]
            let _ = ($($arg,)*);
        }
    )*};
}

probes! {
    /// A message goes to the handler: the peer's slot, bytes.
    message(slot, length);
    /// A handler sends a copy: the peer's slot, bytes.
    send(slot, length);
    /// A handler replies in the received block: the peer's slot, bytes.
    reply(slot, length);
    /// A handler posts a request: the peer's slot, its token.
    request(slot, token);
    /// A request has ended: the peer's slot, its token, 1 if it failed.
    request_done(slot, token, failed);
    /// A doorbell rings for messages that waited for it, or for a list: the peer's slot, requests.
    /// Not for a message that rings at once.
    doorbell(slot, requests);
    /// A message found no credit: the peer's slot.
    credit_stall(slot);
    /// A peer is up: its slot.
    peer_up(slot);
    /// A peer is down: its slot.
    peer_down(slot);
}
