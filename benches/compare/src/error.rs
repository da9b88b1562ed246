//! The error that ends a comparison: one line.

use std::fmt;

use doorbell_tune::{ChooseError, PinError};

/// Why there are no figures.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure(text.into())
    }

    /// A function for `map_err` that makes the text `asked: error`.
    pub(crate) fn at<E: fmt::Display>(asked: impl fmt::Display) -> impl FnOnce(E) -> Failure {
        move |answer| Failure(format!("{asked}: {answer}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<PinError> for Failure {
    fn from(error: PinError) -> Failure {
        Failure(error.to_string())
    }
}

impl From<ChooseError> for Failure {
    fn from(error: ChooseError) -> Failure {
        Failure(error.to_string())
    }
}
