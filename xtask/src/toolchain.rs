//! The compiler that the checks run with.

use crate::exec::capture;
use crate::place::{program, root};

/// The compiler that cargo would run.
pub(crate) fn rustc() -> std::process::Command {
    program(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// Prints the compiler's version. If `rust-toolchain.toml` names another, explains the
/// consequences.
pub(crate) fn tell() {
    let version = capture(rustc().arg("--version")).map(|done| done.text).unwrap_or_default();
    println!("compiler: {}", version.trim());
    let file = std::fs::read_to_string(root().join("rust-toolchain.toml")).unwrap_or_default();
    if let Some(channel) = channel(&file)
        && !is_of(&version, channel)
    {
        println!("note: rust-toolchain.toml names {channel}: other versions may warn of more");
    }
}

fn channel(file: &str) -> Option<&str> {
    file.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'))
}

/// True if `rustc 1.95.0 (…)` is of the channel `1.95.0`.
fn is_of(version: &str, channel: &str) -> bool {
    version.split(' ').nth(1) == Some(channel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channel_is_compared_with_the_version() {
        assert_eq!(channel("# why\n[toolchain]\nchannel = \"1.95.0\"\n"), Some("1.95.0"));
        assert!(is_of("rustc 1.95.0 (59807616e 2026-04-14)\n", "1.95.0"));
        assert!(!is_of("rustc 1.96.0 (1 2026-05-28)\n", "1.95.0") && !is_of("", "1.95.0"));
    }
}
