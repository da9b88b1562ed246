//! The verbs device.
