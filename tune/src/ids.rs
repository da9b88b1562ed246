//! [`Ids`]: a set of CPUs or nodes.

use std::fmt;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::list::{self, CoreList};

/// A set of CPU numbers or node numbers, in ascending order. Its text, in TOML and JSON too, is the
/// kernel's list format (cpuset(7)): `0-3,8`.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Ids(Vec<usize>);

/// A text that is not a list of numbers.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a list of numbers such as 0-3,8")]
pub struct IdsError(String);

impl fmt::Debug for IdsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Ids {
    /// The numbers, ascending.
    #[must_use]
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// Iterates over the numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// How many numbers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest number.
    #[must_use]
    pub fn first(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// True if `id` is in the set.
    #[must_use]
    pub fn contains(&self, id: usize) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    /// The numbers that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Ids) -> Ids {
        Ids(self.iter().filter(|id| other.contains(*id)).collect())
    }

    /// The numbers that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Ids) -> Ids {
        Ids(self.iter().filter(|id| !other.contains(*id)).collect())
    }

    /// The numbers that are in one set or the other.
    #[must_use]
    pub fn or(&self, other: &Ids) -> Ids {
        self.iter().chain(other.iter()).collect()
    }
}

impl FromIterator<usize> for Ids {
    fn from_iter<I: IntoIterator<Item = usize>>(ids: I) -> Ids {
        let mut ids: Vec<usize> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        Ids(ids)
    }
}

impl FromStr for Ids {
    type Err = IdsError;

    fn from_str(text: &str) -> Result<Ids, IdsError> {
        let ids = list::parse(text).ok_or_else(|| IdsError(text.to_owned()))?;
        Ok(ids.into_iter().collect())
    }
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        CoreList(&self.0).fmt(f)
    }
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ids({self})")
    }
}

impl Serialize for Ids {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ids, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Ids {
        text.parse().unwrap()
    }

    #[test]
    fn sets_are_ascending_without_duplicates() {
        assert_eq!(ids("8,0-3,2").to_string(), "0-3,8");
        assert_eq!(ids("0-3").and(&ids("2-5")), ids("2-3"));
        assert_eq!(ids("0-3").or(&ids("2-5")), ids("0-5"));
        assert_eq!(ids("0-3").without(&ids("2-5")), ids("0-1"));
        assert!(ids("1024-2047").contains(1500) && !ids("1024-2047").contains(2048));
        assert!(ids("").is_empty());
    }

    #[test]
    fn a_text_that_is_not_a_list_is_an_error() {
        let error = "0-x".parse::<Ids>().unwrap_err();
        assert_eq!(error.to_string(), "`0-x` is not a list of numbers such as 0-3,8");
    }

    #[test]
    fn a_set_is_a_string_in_json() {
        assert_eq!(serde_json::to_string(&ids("0-3,8")).unwrap(), "\"0-3,8\"");
        assert_eq!(serde_json::from_str::<Ids>("\"4-5\"").unwrap(), ids("4-5"));
        assert!(serde_json::from_str::<Ids>("\"x\"").is_err());
    }
}
