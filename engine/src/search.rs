//! A search for one entry after another that resumes where it stopped.

/// Finds the next entry that `fits`, from `next` on and around the end, and sets `next` behind it.
/// To find all entries one by one takes two passes over the list, not one for each.
pub(crate) fn resume<T>(
    list: &[T],
    next: &mut usize,
    mut fits: impl FnMut(&T) -> bool,
) -> Option<usize> {
    let (before, rest) = list.split_at_checked(*next).unwrap_or((&[], list));
    let behind = rest.iter().position(&mut fits).map(|at| before.len() + at);
    let at = behind.or_else(|| before.iter().position(fits))?;
    *next = at + 1;
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Every entry that fits is found, wherever the search begins, in two passes in total.
    #[test]
    fn all_entries_are_found_in_two_passes() {
        for start in [0, 1, 499, 1000, 2000] {
            let mut list: Vec<bool> = (0..1000).map(|n| n % 3 != 0).collect();
            let (mut next, mut visits, mut found) = (start, 0, 0);
            loop {
                let fits = |entry: &bool| {
                    visits += 1;
                    *entry
                };
                let Some(at) = resume(&list, &mut next, fits) else { break };
                list[at] = false;
                found += 1;
            }
            assert_eq!(found, 666, "from {start}");
            assert!(visits <= 2 * list.len() + 1, "{visits} visits from {start}");
        }
    }
}
