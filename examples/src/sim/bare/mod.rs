//! Queue pairs without workers: one-sided requests, memory windows and datagrams over the wire.
//!
//! Two devices, connections between their queue pairs that come and go, and on each of them any
//! mix of requests, in both directions, some of which must be refused. What is checked: requests
//! complete in order; the bytes of a WRITE are there before a message behind it comes; a READ
//! brings what was written; each addition happens once; what is wrong ends with its status and
//! takes the queue pair along; datagrams come whole or not at all, from who sent them.
//!
//! [`plan`] draws the numbers, [`street`] is how devices find each other, [`field`] is memory,
//! [`way`] is one direction of a connection and what it owes, [`adds`] the word that all count in,
//! [`mail`] the datagrams, [`world`] all of it with the wire, [`deeds`] what is posted, and
//! [`mod@run`] from the first step to the last account.

pub mod adds;
pub mod deeds;
pub mod field;
pub mod mail;
pub mod plan;
pub mod run;
pub mod street;
pub mod way;
pub mod world;

pub use self::run::run;

/// Bytes of a request at most, and of its place.
const PIECE: usize = 8192;
/// Requests of a queue pair at a time at most.
const DEPTH: usize = 16;
/// Receives of a queue at a time at most.
const RECEIVES: usize = 16;
/// Places for WRITEs of one direction.
const SLOTS: usize = 4;
/// Where the first of them is; before it are the words.
const FIRST_SLOT: usize = 4096;
/// Bytes that go inline at most.
const INLINE: usize = 64;
/// Bytes of what may only be read.
const SHELF: usize = 16_384;
