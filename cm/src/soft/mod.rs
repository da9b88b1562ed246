//! The soft device's connection manager.
