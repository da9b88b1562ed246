//! Little-endian fields of a byte string. Bytes beyond its end read as zero, and are not written.

/// The bytes at an offset.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    out
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Writes bytes at an offset.
pub(super) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in out.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// Writes text at an offset, padded with spaces to `len`.
pub(super) fn put_padded(out: &mut [u8], at: usize, len: usize, text: &str) {
    let padded = text.bytes().chain(std::iter::repeat(b' ')).take(len);
    for (to, from) in out.iter_mut().skip(at).zip(padded) {
        *to = from;
    }
}

/// Text that ends with a zero byte or the field; `None` if it is not UTF-8.
pub(super) fn text(bytes: &[u8], at: usize, len: usize) -> Option<&str> {
    let field = bytes.get(at..at.checked_add(len)?)?;
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(len);
    std::str::from_utf8(field.get(..end)?).ok()
}
