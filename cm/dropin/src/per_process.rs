//! Values that each process makes for itself. A child of fork has its parent's memory, but neither
//! its threads nor its connections: it must not take over what its parent made.

use std::sync::Mutex;

use crate::border::{Errno, lock};

/// A value that is made at its first use in a process, and stays.
pub(crate) struct PerProcess<T: 'static>(Mutex<Option<(u32, &'static T)>>);

impl<T: Sync> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess(Mutex::new(None))
    }

    /// The value of this process, made if there is none.
    pub(crate) fn get_or_make(
        &self,
        make: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<&'static T, Errno> {
        let (own, mut made) = (std::process::id(), lock(&self.0));
        if let Some((of, value)) = *made
            && of == own
        {
            return Ok(value);
        }
        let value: &'static T = Box::leak(Box::new(make()?));
        *made = Some((own, value));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_and_a_failure_not_kept() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        assert_eq!(VALUE.get_or_make(|| Err(Errno(5))), Err(Errno(5)));
        let first = VALUE.get_or_make(|| Ok(1)).unwrap();
        let second = VALUE.get_or_make(|| Ok(2)).unwrap();
        assert!(std::ptr::eq(first, second));
    }

    #[test]
    fn a_value_of_another_process_does_not_count() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        let parents: &u32 = Box::leak(Box::new(1));
        *lock(&VALUE.0) = Some((std::process::id() ^ 1, parents));
        assert_eq!(VALUE.get_or_make(|| Ok(2)), Ok(&2));
    }
}
