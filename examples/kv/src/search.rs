//! What a client concludes from the slots that it has read.

use crate::slot::{Cover, Entry, View, parse};
use crate::table::Geometry;

/// Slots that a client reads for a key before it asks the server.
pub const PROBES: usize = 3;

/// What a slot says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Here it is.
    Here(Entry<'a>),
    /// It was absent at some moment of the search.
    Absent,
    /// Read the next slot.
    Next,
    /// The search began with a guess, which says nothing: begin at the key's home.
    Home,
    /// Read this slot again: it was being written.
    Again,
    /// Only the server knows.
    Ask,
}

/// Judges the bytes of a slot, which the `probe`th READ for a key has brought; probes count from 0.
///
/// A search may begin anywhere: a key that is found is the key. But a key is absent only if the
/// search has gone from the home on, slot after slot.
pub fn judge<'a>(
    bytes: &'a [u8],
    geometry: &Geometry,
    (slot, probe, guessed): (usize, usize, bool),
    key: &[u8],
    cover: Cover,
) -> Verdict<'a> {
    match parse(bytes, geometry.place(slot), cover) {
        Err(_) => Verdict::Again,
        Ok(View::Live(entry)) if entry.key == key => Verdict::Here(entry),
        Ok(_) if guessed => Verdict::Home,
        Ok(View::Free) => Verdict::Absent,
        Ok(View::Moved) => Verdict::Ask,
        Ok(View::Live(_) | View::Deleted) if probe + 1 >= PROBES => Verdict::Ask,
        Ok(View::Live(_) | View::Deleted) => Verdict::Next,
    }
}
