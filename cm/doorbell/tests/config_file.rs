//! A worker's configuration in a file.

use doorbell::worker::{Config, Retry};

/// What is written comes back, each number by itself.
#[test]
fn a_configuration_comes_back_as_it_was() {
    let base = Config::DEFAULT;
    let retry = Retry { rnr_timer: 1, rnr_retry: 2, ack_timeout: 3, retry_count: 4 };
    let other = Config { peers: 7, recv_blocks: 300, thread_domain: false, retry, ..base };
    for config in [base, other] {
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&text).unwrap(), config, "{text}");
    }
    // Each field is in the text, and read from there.
    let text = toml::to_string(&base).unwrap();
    for line in text.lines().filter(|line| line.contains(" = ")) {
        let (name, value) = line.split_once(" = ").unwrap();
        let changed = match value {
            "true" => text.replace(line, &format!("{name} = false")),
            number => {
                let number = number.parse::<u64>().unwrap();
                text.replace(&format!("\n{line}\n"), &format!("\n{name} = {}\n", number + 1))
            }
        };
        let changed = if changed == text { text.replacen(value, "3", 1) } else { changed };
        assert_ne!(toml::from_str::<Config>(&changed).unwrap(), base, "{name}");
    }
}

/// A field that is not there has its default, also one of the inner table.
#[test]
fn what_is_missing_has_its_default() {
    assert_eq!(toml::from_str::<Config>("").unwrap(), Config::DEFAULT);
    let text = "peers = 200\nblock_bytes = 512\n[retry]\nack_timeout = 14\n";
    let retry = Retry { ack_timeout: 14, ..Retry::DEFAULT };
    let want = Config { peers: 200, block_bytes: 512, retry, ..Config::DEFAULT };
    assert_eq!(toml::from_str::<Config>(text).unwrap(), want);
}

/// A field that does not exist is an error that names it, and so is a number that does not fit.
#[test]
fn what_does_not_exist_is_an_error() {
    for (text, named) in [
        ("peer = 200", "peer"),
        ("[retry]\ntimeout = 3", "timeout"),
        ("peers = -1", "peers"),
        ("[retry]\nrnr_retry = 256", "rnr_retry"),
    ] {
        let said = toml::from_str::<Config>(text).unwrap_err().to_string();
        assert!(said.contains(named), "{text}: {said}");
    }
}
