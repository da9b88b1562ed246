//! What one side does, with a worker: its [`numbers`]; on the connecting side a [`caller`] handler
//! in a [`session`]; on the serving side a [`served`] handler with its [`answers`] in a
//! [`lot`], driven by [`serve`].

pub(crate) mod answers;
pub(crate) mod caller;
pub(crate) mod lot;
pub(crate) mod numbers;
pub(crate) mod serve;
pub(crate) mod served;
pub(crate) mod session;
