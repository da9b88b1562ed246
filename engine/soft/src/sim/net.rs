//! The network between two ports: it loses, doubles, delays and reorders, in virtual time.

use std_alloc::collections::BTreeMap;

use super::prng::Prng;

/// What the network does to packets: odds in 1024, times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// A packet does not arrive.
    pub loss: u32,
    /// A packet arrives twice.
    pub double: u32,
    /// A packet takes up to eight times the longest delay, so that later ones overtake it.
    pub reorder: u32,
    /// Shortest delay, in nanoseconds.
    pub delay_ns_min: u64,
    /// Longest delay of a packet that is not reordered, in nanoseconds.
    pub delay_ns_max: u64,
}

/// The fate of a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lost,
    Once,
    Twice,
}

impl Fate {
    /// The number of copies that will arrive.
    pub(super) fn copies(self) -> u8 {
        match self {
            Fate::Lost => 0,
            Fate::Once => 1,
            Fate::Twice => 2,
        }
    }
}

/// Packets on their way, ordered by time of arrival, then by time of sending.
pub(super) struct Net<T> {
    weather: Weather,
    prng: Prng,
    sent: u64,
    flying: BTreeMap<(u64, u64), T>,
}

impl<T: Clone> Net<T> {
    pub(super) fn new(weather: Weather, prng: Prng) -> Net<T> {
        Net { weather, prng, sent: 0, flying: BTreeMap::new() }
    }

    pub(super) fn weather(&mut self) -> &mut Weather {
        &mut self.weather
    }

    /// Sends a packet at that time.
    pub(super) fn send(&mut self, now: u64, packet: T) -> Fate {
        if self.prng.chance(self.weather.loss) {
            return Fate::Lost;
        }
        if self.prng.chance(self.weather.double) {
            self.fly(now, packet.clone());
            self.fly(now, packet);
            return Fate::Twice;
        }
        self.fly(now, packet);
        Fate::Once
    }

    fn fly(&mut self, now: u64, packet: T) {
        let Weather { reorder, delay_ns_min, delay_ns_max, .. } = self.weather;
        let longest = if self.prng.chance(reorder) { delay_ns_max * 8 } else { delay_ns_max };
        // At least 1: nothing arrives at the moment that caused it.
        let delay = self.prng.range(delay_ns_min, longest).max(1);
        self.sent += 1;
        self.flying.insert((now + delay, self.sent), packet);
    }

    /// When the next packet arrives.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.flying.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next packet to arrive.
    pub(super) fn take(&mut self) -> Option<T> {
        self.flying.pop_first().map(|(_, packet)| packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn cross(weather: Weather, count: u32) -> Vec<u32> {
        let mut net = Net::new(weather, Prng::new(7));
        for n in 0..count {
            net.send(u64::from(n), n);
        }
        let mut last = 0;
        core::iter::from_fn(|| {
            let at = net.next_at()?;
            assert!(at >= last, "time goes backwards");
            last = at;
            net.take()
        })
        .collect()
    }

    #[test]
    fn fair_weather_keeps_everything_in_order() {
        let weather = Weather { delay_ns_min: 5, delay_ns_max: 5, ..Weather::default() };
        assert_eq!(cross(weather, 100), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn each_kind_of_weather_does_what_it_says() {
        let fair = Weather { delay_ns_min: 5, delay_ns_max: 5, ..Weather::default() };
        assert!(cross(Weather { loss: 1024, ..fair }, 100).is_empty());
        let half = cross(Weather { loss: 512, ..fair }, 1000).len();
        assert!((400..600).contains(&half), "{half}");
        assert_eq!(cross(Weather { double: 1024, ..fair }, 100).len(), 200);
        let mixed = cross(Weather { reorder: 300, delay_ns_max: 50, ..fair }, 100);
        assert_eq!(mixed.len(), 100);
        assert!(!mixed.is_sorted());
    }
}
