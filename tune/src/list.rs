//! Lists and masks of cores as the kernel writes them: `0-3,8`, `0000010f`.

use std::fmt;

/// Displays ascending numbers of cores in the kernel's list format (cpuset(7)), such as `0-3,8`.
pub struct CoreList<'a>(pub &'a [usize]);

impl fmt::Display for CoreList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(&first) = rest.first() {
            let run = (0..).zip(rest).take_while(|(n, core)| **core == first + n).count();
            if rest.len() < self.0.len() {
                f.write_str(",")?;
            }
            match run {
                1 => write!(f, "{first}")?,
                _ => write!(f, "{first}-{}", first + run - 1)?,
            }
            rest = &rest[run..];
        }
        Ok(())
    }
}

/// Higher numbers are refused: no kernel has that many CPUs, and the list would use up the memory.
const NUMBER_MAX: usize = 1 << 20;

/// Reads the kernel's list format; `None` for any other text.
pub(crate) fn parse(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse().ok()?);
        if last > NUMBER_MAX {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// Reads the kernel's mask format: words of 32 bits in hexadecimal, the highest first, such as
/// `00000001,0000000f`; `None` for any other text.
pub(crate) fn parse_mask(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    if text.len() > NUMBER_MAX {
        return None;
    }
    let mut cores = Vec::new();
    for (word, digits) in text.rsplit(',').enumerate() {
        let bits = u32::from_str_radix(digits, 16).ok()?;
        cores.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| 32 * word + bit));
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_written_and_read_back() {
        for (cores, text) in [
            (vec![], ""),
            (vec![5], "5"),
            (vec![0, 1], "0-1"),
            (vec![0, 1, 2, 3, 8], "0-3,8"),
            (vec![1, 3, 5, 6, 1024], "1,3,5-6,1024"),
        ] {
            assert_eq!(CoreList(&cores).to_string(), text);
            assert_eq!(parse(text), Some(cores));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        assert_eq!(parse("0-"), None);
        assert_eq!(parse("a"), None);
        assert_eq!(parse("0-99999999999"), None);
        assert_eq!(parse("1,,2"), Some(vec![1, 2]));
    }

    #[test]
    fn masks_are_read_from_the_last_word_on() {
        assert_eq!(parse_mask("f"), Some(vec![0, 1, 2, 3]));
        assert_eq!(parse_mask("0004,80000001,00000000\n"), Some(vec![32, 63, 66]));
        assert_eq!(parse_mask("00000000"), Some(vec![]));
        for text in ["", "0-3", "g", "1,,2", "fffffffff"] {
            assert_eq!(parse_mask(text), None, "{text}");
        }
    }
}
