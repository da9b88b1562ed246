//! Reading a command line: options with or without a value, then the rest.

use std::str::FromStr;

use crate::Outcome;

/// The words of a command line that are still unread.
#[derive(Debug)]
pub(crate) struct Args<'a> {
    words: &'a [String],
}

impl<'a> Args<'a> {
    /// Starts at the first word.
    pub(crate) fn new(words: &'a [String]) -> Self {
        Self { words }
    }

    /// The next option, `None` at the end. `--` ends the options and is dropped; any other word
    /// without dashes is refused.
    pub(crate) fn option(&mut self) -> Outcome<Option<&'a str>> {
        let Some((first, rest)) = self.words.split_first() else { return Ok(None) };
        self.words = rest;
        match first.as_str() {
            "--" => Ok(None),
            word if word.starts_with('-') => Ok(Some(word)),
            word => Err(format!("`{word}` is not an option; what shall run comes after `--`")),
        }
    }

    /// The value of the current option.
    pub(crate) fn value<T: FromStr>(&mut self, option: &str) -> Outcome<T> {
        let Some((first, rest)) = self.words.split_first() else {
            return Err(format!("{option} needs a value"));
        };
        self.words = rest;
        first.parse().map_err(|_| format!("{option} cannot be `{first}`"))
    }

    /// The unread rest.
    pub(crate) fn rest(self) -> &'a [String] {
        self.words
    }
}

/// Names the word that was probably meant, and all there are.
pub(crate) fn meant(word: &str, known: &[&str]) -> String {
    let nearest = known.iter().min_by_key(|other| edits(word, other));
    let near = nearest.filter(|other| edits(word, other) * 3 <= other.len().max(word.len()));
    let guess = near.map(|other| format!("did you mean `{other}`? ")).unwrap_or_default();
    format!("{guess}there are: {}", known.join(", "))
}

/// How many letters must be put in, taken out, replaced, or swapped with their neighbour to turn
/// one word into the other.
fn edits(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut table = vec![vec![0; to.len() + 1]; from.len() + 1];
    for i in 0..=from.len() {
        for j in 0..=to.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = table[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
                let swapped =
                    i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
                let swap = if swapped { table[i - 2][j - 2] + 1 } else { usize::MAX };
                replaced.min(swap).min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
            };
        }
    }
    table[from.len()][to.len()]
}

/// One line of shell that runs `words` exactly as given. A single word that contains spaces or
/// shell signs is a shell line already.
pub(crate) fn shell_line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        _ => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

/// A word in quotes that a POSIX shell removes again.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_end_at_two_dashes() {
        let line = words("--cpus 4 -- --not-mine 1");
        let mut args = Args::new(&line);
        assert_eq!(args.option(), Ok(Some("--cpus")));
        assert_eq!(args.value::<u32>("--cpus"), Ok(4));
        assert_eq!(args.option(), Ok(None));
        assert_eq!(args.rest(), &words("--not-mine 1")[..]);
    }

    #[test]
    fn wrong_words_are_named() {
        let line = words("ls");
        assert!(Args::new(&line).option().is_err_and(|message| message.contains("`ls`")));
        let line = words("--cpus many");
        let mut args = Args::new(&line);
        assert_eq!(args.option(), Ok(Some("--cpus")));
        assert!(args.value::<u32>("--cpus").is_err_and(|message| message.contains("many")));
    }

    #[test]
    fn a_word_that_is_nearly_right_is_suggested() {
        let known = ["test", "bench", "clippy", "tests-verbs"];
        for (word, meant_by_it) in
            [("tset", "test"), ("clipy", "clippy"), ("tests-verb", "tests-verbs")]
        {
            assert!(
                meant(word, &known).starts_with(&format!("did you mean `{meant_by_it}`? there"))
            );
        }
        for word in ["", "nope", "x"] {
            assert_eq!(meant(word, &known), "there are: test, bench, clippy, tests-verbs");
        }
    }

    #[test]
    fn a_shell_gets_the_words_it_was_given() {
        let line = [String::from("sh"), String::from("-c"), String::from("echo 'a b' $HOME")];
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("set -- {}; printf '%s|' \"$@\"", shell_line(&line)))
            .output()
            .expect("sh runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "sh|-c|echo 'a b' $HOME|");
        assert_eq!(shell_line(&[String::from("exit 7")]), "exit 7");
    }
}
