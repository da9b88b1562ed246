//! The sizes of functions in this program, by its table of symbols.

use std::collections::BTreeMap;
use std::io;
use std::process::Command;

use crate::error::Failure;

/// The bytes of the functions that `mangled` names, by their plain name. Instances of one generic
/// function are summed. Functions of other libraries are left out.
pub(crate) fn sizes<'a>(
    mangled: impl Iterator<Item = &'a str>,
) -> Result<BTreeMap<String, u64>, Failure> {
    let (raw, plain) = (nm(&[])?, nm(&["--demangle"])?);
    Ok(join(mangled, &raw, &plain))
}

/// Joins two lists of the same symbols by address. The first one has the mangled names, the second
/// one the plain ones.
fn join<'a>(
    mangled: impl Iterator<Item = &'a str>,
    raw: &str,
    plain: &str,
) -> BTreeMap<String, u64> {
    let by_name: BTreeMap<&str, (&str, u64)> =
        raw.lines().filter_map(symbol).map(|(at, size, name)| (name, (at, size))).collect();
    let by_address: BTreeMap<&str, &str> =
        plain.lines().filter_map(symbol).map(|(at, _, name)| (at, name)).collect();
    let mut sizes = BTreeMap::new();
    for name in mangled {
        if let Some((at, size)) = by_name.get(name) {
            let plain = without_impl(by_address.get(at).copied().unwrap_or(name));
            *sizes.entry(plain).or_default() += size;
        }
    }
    sizes
}

/// A name without the `<impl Type>::` of methods that stand in another module than their type.
fn without_impl(name: &str) -> String {
    let Some((before, rest)) = name.split_once("<impl ") else { return name.to_owned() };
    let mut depth = 1_usize;
    for (at, character) in rest.char_indices() {
        match character {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return before.to_owned() + rest[at + 1..].trim_start_matches("::");
        }
    }
    name.to_owned()
}

/// Address, size and name in a line of `nm`: numbers in hexadecimal, then the kind, which is `t` or
/// `T` for a function.
fn symbol(line: &str) -> Option<(&str, u64, &str)> {
    let mut words = line.splitn(4, ' ');
    let (at, size, kind, name) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let size = u64::from_str_radix(size, 16).ok()?;
    kind.eq_ignore_ascii_case("t").then_some((at, size, name))
}

/// The symbols of this program that have a size.
fn nm(options: &[&str]) -> Result<String, Failure> {
    let failed = |error: io::Error| {
        Failure::system("start nm", &error, "install it: apt-get install binutils")
    };
    let own = std::env::current_exe().map_err(failed)?;
    let output = Command::new("nm")
        .args(["--print-size", "--defined-only"])
        .args(options)
        .arg(own)
        .output()
        .map_err(failed)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_a_function_are_summed_and_other_symbols_left_out() {
        let raw = "0010 0020 t _turn1\n0040 0010 T _turn2\n0080 0004 d _data\n0090 0008 t _post\n\
                   00a0 t _sizeless\n";
        let plain = "0010 0020 t Worker<P>::turn\n0040 0010 T Worker<P>::turn\n\
                     0090 0008 t send::<impl Core<P>>::post\n";
        let wanted = ["_turn1", "_turn2", "_data", "_post", "_sizeless", "memcpy"];
        let expected = [("send::post", 8), ("Worker<P>::turn", 48)];
        let expected = expected.map(|(name, size)| (name.to_owned(), size));
        assert_eq!(join(wanted.into_iter(), raw, plain), expected.into_iter().collect());
    }

    #[test]
    fn this_program_has_functions_with_sizes() {
        let symbols = nm(&[]).unwrap();
        assert!(symbols.lines().filter_map(symbol).count() > 100);
    }
}
