//! Queue pairs without workers: one-sided requests, memory windows and datagrams over the wire.
//!
//! There are two devices. Connections between their queue pairs come and go. Each carries any mix
//! of requests in both directions, and some of these must be refused. The checks:
//!
//! - requests complete in order;
//! - the bytes of a WRITE are there before a message behind it comes;
//! - a READ returns what was written;
//! - each addition happens once;
//! - a refused request ends with its status and fails its queue pair;
//! - a datagram arrives whole or not at all, and names its sender.
//!
//! [`plan`] draws the numbers, within the limits in `sizes`. [`world`] drives the devices (`side`,
//! with completion queues in `desk`), the connections (`conn`) and the wire. [`posts`] posts
//! requests; [`direction`] knows what each direction of a connection owes, [`adds`] the word that
//! everybody adds to, [`mail`] the datagrams. [`field`] is registered memory, [`neighbours`] how
//! devices find each other. [`mod@run`] runs a seed.

pub mod adds;
mod conn;
mod desk;
pub mod direction;
pub mod field;
pub mod mail;
pub mod neighbours;
pub mod plan;
pub mod posts;
pub mod run;
mod side;
mod sizes;
pub mod world;

pub use self::run::run;
