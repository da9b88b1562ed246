//! Calls of the data path as values: what a wrapper around a device sees.
#![expect(unsafe_code, reason = "passes posts on")]

use super::{Doorbell, InlineSend, Polled, Poller, Qp};
use crate::wc::Wc;
use crate::wr::{PostError, SendFlags, SendWr};

/// A path through the seam: the method that a message goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lane {
    /// [`Qp::post`] with one request.
    Post,
    /// [`Qp::post`] with several.
    PostList,
    /// [`Qp::post_inline`] with [`Doorbell::Now`].
    InlineNow,
    /// [`Qp::post_inline`] with [`Doorbell::Later`].
    InlineLater,
    /// [`Qp::post_inline_list`].
    InlineList,
    /// [`Qp::ring_doorbell`].
    Doorbell,
    /// [`Poller::poll_one`] that gave a completion.
    PollOne,
    /// [`Poller::poll_more`].
    PollMore,
    /// [`Poller::poll`].
    Poll,
    /// [`PollerEx::next`](super::PollerEx::next).
    Next,
    /// [`Window::bind`](super::Window::bind).
    Bind,
}

impl Lane {
    /// All lanes, in the order of their numbers.
    pub const ALL: [Lane; 11] = [
        Lane::Post,
        Lane::PostList,
        Lane::InlineNow,
        Lane::InlineLater,
        Lane::InlineList,
        Lane::Doorbell,
        Lane::PollOne,
        Lane::PollMore,
        Lane::Poll,
        Lane::Next,
        Lane::Bind,
    ];
}

/// A call of the control plane that changes an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// [`Multicast::attach_mcast`](super::Multicast::attach_mcast).
    AttachMcast,
    /// [`Multicast::detach_mcast`](super::Multicast::detach_mcast).
    DetachMcast,
    /// [`ResizeCq::resize_cq`](super::ResizeCq::resize_cq).
    ResizeCq,
    /// [`SrqLimits::resize`](super::SrqLimits::resize).
    ResizeSrq,
    /// [`SrqLimits::set_limit`](super::SrqLimits::set_limit).
    SetSrqLimit,
    /// [`Reregister::reregister`](super::Reregister::reregister).
    Reregister,
}

/// One call that sends.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// [`Qp::post`].
    Post(&'a [SendWr<'a>]),
    /// [`Qp::post_inline`].
    Inline(InlineSend, Doorbell),
    /// [`Qp::post_inline_list`].
    InlineList(u64, &'a [&'a [u8]]),
    /// [`Qp::ring_doorbell`].
    Doorbell,
}

impl Call<'_> {
    /// The lane of this call.
    pub fn lane(self) -> Lane {
        match self {
            Call::Post([_]) => Lane::Post,
            Call::Post(_) => Lane::PostList,
            Call::Inline(_, Doorbell::Now) => Lane::InlineNow,
            Call::Inline(_, Doorbell::Later) => Lane::InlineLater,
            Call::InlineList(..) => Lane::InlineList,
            Call::Doorbell => Lane::Doorbell,
        }
    }

    /// Number of requests in this call.
    pub fn len(self) -> usize {
        match self {
            Call::Post(list) => list.len(),
            Call::Inline(..) => 1,
            Call::InlineList(_, list) => list.len(),
            Call::Doorbell => 0,
        }
    }

    /// True for a doorbell, and for an empty list.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The same call with only its first `count` requests.
    #[must_use]
    pub fn first(self, count: usize) -> Self {
        match self {
            Call::Post(list) => Call::Post(list.get(..count).unwrap_or(list)),
            Call::InlineList(first, list) => {
                Call::InlineList(first, list.get(..count).unwrap_or(list))
            }
            Call::Inline(..) if count == 0 => Call::Post(&[]),
            Call::Inline(..) | Call::Doorbell => self,
        }
    }

    /// The numbers of those among the first `count` requests that ask for a completion.
    pub fn signaled(self, count: usize) -> impl Iterator<Item = u64> {
        let (list, inline) = match self {
            Call::Post(list) => (list, None),
            Call::Inline(send, _) => (&[][..], Some(send)),
            Call::InlineList(..) | Call::Doorbell => (&[][..], None),
        };
        let asks = |wr: &&SendWr<'_>| wr.flags.contains(SendFlags::SIGNALED);
        let inline = inline.filter(|send| send.signaled).map(|send| send.wr_id);
        let listed = list.iter().take(count).filter(asks).map(|wr| wr.wr_id);
        listed.chain(inline.into_iter().take(count))
    }

    /// Makes the call. Returns how many requests the device took.
    ///
    /// # Errors
    /// Those of [`Qp::post`].
    ///
    /// # Safety
    /// As for the method of that name.
    pub unsafe fn make<Q: Qp>(self, qp: &mut Q) -> Result<usize, PostError> {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self {
                Call::Post(list) => qp.post(list).map(|()| list.len()),
                Call::Inline(send, doorbell) => Ok(qp.post_inline(send, doorbell).into()),
                Call::InlineList(first, list) => Ok(qp.post_inline_list(first, list)),
                Call::Doorbell => {
                    qp.ring_doorbell();
                    Ok(0)
                }
            }
        }
    }
}

/// One call that polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// [`Poller::poll_one`]; the output has room for one completion.
    One,
    /// [`Poller::poll_more`].
    More,
    /// [`Poller::poll`].
    List,
}

impl Look {
    /// The lane of this call.
    pub fn lane(self) -> Lane {
        match self {
            Look::One => Lane::PollOne,
            Look::More => Lane::PollMore,
            Look::List => Lane::Poll,
        }
    }

    /// Makes the call. Returns how many completions are in `out`; `None` stands for
    /// [`Polled::More`].
    pub fn make<Q: Poller>(self, poller: &mut Q, out: &mut [Wc]) -> Option<usize> {
        match self {
            Look::More => Some(poller.poll_more(out)),
            Look::List => Some(poller.poll(out)),
            Look::One => match (poller.poll_one(), out.first_mut()) {
                (Polled::Nothing, _) => Some(0),
                (Polled::One(wc), Some(place)) => {
                    *place = wc;
                    Some(1)
                }
                _ => None,
            },
        }
    }
}
