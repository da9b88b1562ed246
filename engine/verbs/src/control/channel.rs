//! [`VerbsChannel`]: an event channel of librdmacm.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use doorbell_fabric::CmError;

use super::line::Line;
use crate::Verbs;

/// An event channel of librdmacm.
pub struct VerbsChannel {
    line: Arc<Line>,
    device: Verbs,
}

impl VerbsChannel {
    pub(super) fn new(device: &Verbs) -> Result<VerbsChannel, CmError> {
        let line = Line::open().map_err(|error| CmError::from_io("an event channel", &error))?;
        Ok(VerbsChannel { line: Arc::new(line), device: device.clone() })
    }

    pub(super) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    pub(super) fn device(&self) -> &Verbs {
        &self.device
    }
}

impl AsFd for VerbsChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}
