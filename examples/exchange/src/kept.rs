//! A list that only grows. It grows by pieces of a fixed size, so adding an item never copies those
//! before it: that would take longer than an order may take.

/// Items of a piece.
const PIECE: usize = 4096;

/// See the module.
pub struct Kept<T>(Vec<Vec<T>>);

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept(Vec::new())
    }
}

impl<T> Kept<T> {
    /// Items.
    pub fn len(&self) -> usize {
        let last = self.0.last().map_or(0, Vec::len);
        self.0.len().saturating_sub(1) * PIECE + last
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an item.
    pub fn push(&mut self, item: T) {
        match self.0.last_mut() {
            Some(last) if last.len() < PIECE => last.push(item),
            _ => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(item);
                self.0.push(piece);
            }
        }
    }

    /// The item with that number, from 0 on.
    pub fn get(&self, number: usize) -> Option<&T> {
        self.0.get(number / PIECE)?.get(number % PIECE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_in_their_order() {
        let mut kept = Kept::default();
        assert!(kept.is_empty());
        for n in 0..3 * PIECE {
            assert_eq!(kept.len(), n);
            kept.push(n);
        }
        assert!((0..3 * PIECE).all(|n| kept.get(n) == Some(&n)) && kept.get(3 * PIECE).is_none());
    }
}
