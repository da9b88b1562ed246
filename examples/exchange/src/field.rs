//! Fields of the exchange's messages: big-endian integers, and text padded with spaces.

/// Reads fields one after the other. Each method returns `None` if the message is too short.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn text<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.text::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.text().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.text().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.text().map(u64::from_be_bytes)
    }

    pub(crate) fn u48(&mut self) -> Option<u64> {
        let [a, b, c, d, e, f] = self.text()?;
        Some(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    /// Nothing may follow.
    pub(crate) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Writes fields one after the other.
pub(crate) trait Write {
    fn text(&mut self, field: &[u8]) -> &mut Self;
    fn u8(&mut self, value: u8) -> &mut Self {
        self.text(&[value])
    }
    fn u16(&mut self, value: u16) -> &mut Self {
        self.text(&value.to_be_bytes())
    }
    fn u32(&mut self, value: u32) -> &mut Self {
        self.text(&value.to_be_bytes())
    }
    fn u64(&mut self, value: u64) -> &mut Self {
        self.text(&value.to_be_bytes())
    }
    /// The lower 48 bits.
    fn u48(&mut self, value: u64) -> &mut Self {
        self.text(&value.to_be_bytes()[2..])
    }
}

impl Write for Vec<u8> {
    fn text(&mut self, field: &[u8]) -> &mut Vec<u8> {
        self.extend_from_slice(field);
        self
    }
}

/// The name of a security: up to eight letters, padded with spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(pub [u8; 8]);

impl Symbol {
    /// The symbol with that name; only its first eight bytes count.
    pub fn new(name: &str) -> Symbol {
        let mut bytes = [b' '; 8];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        Symbol(bytes)
    }
}

/// Buy or sell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Buy.
    Buy,
    /// Sell, short or not.
    Sell,
}
