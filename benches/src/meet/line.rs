//! The control channel of the two sides beside the connection, over a pipe, a socket pair or TCP:
//! one [`Request`](crate::ask::request::Request) for each run and two [`Answer`]s, each a line of
//! JSON.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::meet::tally::Tally;

/// Longest line taken from the other side, in bytes.
const LINE_MAX: u64 = 64 * 1024;

/// An answer of the serving side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// It listens, at one address for each of the
    /// [lots](crate::ask::request::Request::lots).
    Ready(Vec<SocketAddr>),
    /// The run is over: a tally of its workers for each piece.
    Done(Vec<Tally>),
    /// A contestant's turn in a row of traffic is over: messages received, and how many were wrong.
    Came { received: u64, wrong: u64 },
    /// It failed, for this reason.
    Failed(String),
}

/// The way to the other side, in both directions.
pub(crate) struct Line {
    from: BufReader<Box<dyn Read + Send>>,
    to: Box<dyn Write + Send>,
}

impl Line {
    pub(crate) fn new(from: impl Read + Send + 'static, to: impl Write + Send + 'static) -> Line {
        Line { from: BufReader::new(Box::new(from)), to: Box::new(to) }
    }

    /// Sends a line. If the other side is gone, the next [`Line::hear`] reports it.
    pub(crate) fn say(&mut self, what: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_vec(what) {
            line.push(b'\n');
            let _ = self.to.write_all(&line).and_then(|()| self.to.flush());
        }
    }

    /// The next line; `None` when the other side has ended.
    ///
    /// # Errors
    /// No answer came in time, or it is not a line of this program.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        let mut line = Vec::new();
        let read = (&mut self.from).take(LINE_MAX).read_until(b'\n', &mut line);
        if let Err(error) = read {
            let asked = "wait for the other side";
            return Err(Failure::system(asked, &error, "is the program there still running?"));
        }
        if line.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).map_err(|_| {
            Failure::new(
                "the answer of the other side makes no sense; run the same version of \
                 doorbell-bench on both sides",
            )
        })
    }

    /// The next answer.
    ///
    /// # Errors
    /// As for [`Line::hear`], the other side's failure, or its end.
    pub(crate) fn answer(&mut self) -> Result<Answer, Failure> {
        match self.hear()? {
            Some(Answer::Failed(text)) => Err(Failure::new(text)),
            Some(answer) => Ok(answer),
            None => Err(Failure::new("the other side has ended; see what it printed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_and_nonsense_is_an_error() {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut far = Line::new(there.try_clone().unwrap(), there);
        let mut near = Line::new(here.try_clone().unwrap(), here.try_clone().unwrap());
        let ready = Answer::Ready(vec!["127.0.0.1:7".parse().unwrap()]);
        far.say(&ready);
        assert_eq!(near.answer().unwrap(), ready);
        far.say(&Answer::Failed("no".into()));
        assert_eq!(near.answer().unwrap_err().to_string(), "no");
        far.say(&17);
        assert!(near.answer().unwrap_err().to_string().contains("same version"));
        drop(far);
        assert!(near.answer().unwrap_err().to_string().contains("has ended"));
    }
}
