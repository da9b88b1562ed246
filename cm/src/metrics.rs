//! The counters of listeners and dialers.

use doorbell_engine::metrics::Metrics;
use doorbell_engine::worker::RefusalReason;
use doorbell_fabric::Fabric;

use crate::dialer::Dialer;
use crate::listener::Listener;

impl<F: Fabric> Listener<F> {
    /// Adds its counters, under a name of your choice. For those of its workers see
    /// [`Metrics::worker`].
    pub fn report(&self, listener: &str, metrics: &mut Metrics) {
        let labels = &[("listener", listener)];
        let (name, help) = ("doorbell_listener_connections", "Connections now.");
        metrics.gauge(name, help, labels, self.connections() as u64);
        let (name, help) = ("doorbell_listener_ended_total", "Connections that have ended.");
        metrics.counter(name, help, labels, self.ended());
        let (name, help) = ("doorbell_listener_refused_total", "Requests refused, by reason.");
        for reason in RefusalReason::ALL {
            let why = format!("{reason:?}");
            let labels = &[("listener", listener), ("reason", &why)];
            metrics.counter(name, help, labels, self.refused_for(reason));
        }
    }
}

impl<F: Fabric> Dialer<F> {
    /// Adds its counters, under a name of your choice.
    pub fn report(&self, dialer: &str, metrics: &mut Metrics) {
        let labels = &[("dialer", dialer)];
        let (name, help) = ("doorbell_dialer_connections", "Connections now.");
        metrics.gauge(name, help, labels, self.connections() as u64);
        let (name, help) = ("doorbell_dialer_given_up", "Kept connections that were given up.");
        metrics.gauge(name, help, labels, self.given_up().count() as u64);
    }
}
