//! Models of what threads and processes do to memory they share, in every order that the rules of
//! memory allow, over [`crate::sync`]:
//! `RUSTFLAGS="--cfg loom" cargo test -p doorbell-engine --release --lib models`.
//!
//! That each order asked for is needed is checked too: the small ones among them are run with each
//! site in turn asking for none, and one must fail. (`--nocapture` shows which.)

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::borrow::ToOwned;
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::fs;
use std::path::Path;
use std::string::String;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use crate::provider::soft;
use crate::sync::{Site, begin_run, passed, weaken};
use crate::worker;

/// A model, and its name.
pub(crate) type Model = (&'static str, fn());

/// The models that are run with each site weakened, cheap and likely ones first.
fn small() -> Vec<Model> {
    [soft::SMALL_MODELS, soft::DOMAIN_MODELS, soft::INBOX_MODELS, worker::MODELS].concat()
}

/// Sites that may ask for nothing without a model failing, and why. By file, function, and which of
/// the function's.
const SPARED: &[(&str, &str)] = &[
    ("alarm.rs ring 1", WHO_RINGS),
    ("inbox.rs wake 1", WHO_RINGS),
    ("sleep.rs wake 2", WHO_RINGS),
    ("inbox.rs set_asleep 1", FENCED),
    ("link.rs set_asleep 1", FENCED),
    ("sleep.rs set 1", FENCED),
    ("domain.rs alone 1", LOCKED),
    ("domain.rs attend 1", LOCKED),
    ("domain.rs call 1", LOCKED),
    ("handle.rs has_work 1", TAKEN),
    ("mailbox.rs has_mail 1", TAKEN),
    ("mailbox.rs next_closing 1", TAKEN),
    ("inbox.rs claim 1", "the exchange behind it acquires, too"),
    ("inbox.rs claim 2", "the load before it has acquired"),
    ("inbox.rs exchange 1", "an exchange passes on what the state before it released"),
];
const WHO_RINGS: &str = "says only who rings; who was rung looks for itself";
const FENCED: &str = "there is a fence behind it, `before_last_look`";
const LOCKED: &str = "the lock of the commands orders what the flag says";
const TAKEN: &str = "the exchange that lowers the flag acquires, before the last look";

/// Spared sites one of which is needed.
const EITHER: &[&[&str]] = &[&["inbox.rs claim 1", "inbox.rs claim 2"]];

/// Functions with such sites that no model goes through, and why.
const UNSEEN: &[(&str, &str)] = &[
    ("domain.rs connect", DIRECTORY),
    ("domain.rs take_out", DIRECTORY),
    ("inbox.rs drop", "who sees that the owner is gone does nothing"),
    ("inbox.rs owner", "as `is_for`, for the simulation"),
    ("lone.rs give_time", "a matter of time alone"),
    ("sleep.rs is_asleep", "for the tests"),
];
const DIRECTORY: &str = "a word of the directory, which is no part of these models";

std::thread_local! {
    static GOAL: Cell<Goal> = const { Cell::new(Goal::Holds) };
}

/// What a thread's models are run for: to see that they hold, which sites they pass, or whether
/// they fail.
#[derive(Clone, Copy)]
enum Goal {
    Holds,
    Sites,
    Fails,
}

impl Goal {
    /// If all take turns, and how many switches there are at most that are nobody's wish. More show
    /// nothing new in reasonable time.
    fn ways(self) -> &'static [(bool, usize)] {
        match self {
            Goal::Holds => &[(false, 3), (true, 2)],
            Goal::Sites => &[(false, 2)],
            Goal::Fails => &[(true, 2)],
        }
    }
}

/// Runs a model in every order.
pub(crate) fn check(run: impl Fn() + Sync + Send + 'static) {
    let run = Arc::new(run);
    for (turns, switches) in GOAL.get().ways().iter().copied() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(switches);
        let run = run.clone();
        builder.check(move || {
            begin_run(turns);
            run();
        });
    }
}

/// Runs it on a thread of its own, which loom may leave as it likes, with those sites weakened: the
/// sites it passed, or what failed.
fn run(model: Model, weak: Vec<Site>) -> Result<BTreeSet<Site>, String> {
    let ran = thread::spawn(move || {
        GOAL.set(if weak.is_empty() { Goal::Sites } else { Goal::Fails });
        weaken(&weak);
        model.1();
        passed()
    });
    ran.join().map_err(|what| match what.downcast::<String>() {
        Ok(what) => *what,
        Err(what) => what.downcast_ref::<&str>().map_or("?", |what| what).to_owned(),
    })
}

/// The function that a line is in, by its name.
fn function_of(lines: &[&str], line: usize) -> String {
    let named = |line: &&str| {
        let (before, name) = line.trim_start().split_once("fn ")?;
        let begins = before.split_whitespace().all(|word| {
            word.starts_with("pub") || ["const", "unsafe", "super)", "in"].contains(&word)
        });
        let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
        (begins && end > 0).then(|| name[..end].to_owned())
    };
    lines[..line].iter().rev().find_map(named).unwrap_or_default()
}

/// Functions of a source file that ask for an order, or have a fence.
fn asking(text: &str) -> BTreeSet<String> {
    const ASKS: [&str; 5] = [
        "Ordering::Acquire",
        "Ordering::Release",
        "Ordering::AcqRel",
        "Ordering::SeqCst",
        "half_barrier()",
    ];
    let lines: Vec<&str> = text.lines().collect();
    let code = |line: &str| !line.trim_start().starts_with("//");
    let asks = |line: &str| code(line) && ASKS.iter().any(|ask| line.contains(ask));
    (1..=lines.len()).filter(|n| asks(lines[n - 1])).map(|n| function_of(&lines, n)).collect()
}

/// The source files of this crate that use the atomics of models, as the compiler names them.
fn sources() -> Vec<String> {
    let mut folders = std::vec!["engine/src".to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{folder}/{name}");
            if entry.path().is_dir() {
                folders.push(path);
            } else if !name.ends_with("models.rs") && source(&path).contains("sync::{") {
                files.push(path);
            }
        }
    }
    files
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace")
}

fn base(file: &str) -> &str {
    file.rsplit_once('/').map_or(file, |(_, base)| base)
}

fn source(file: &str) -> String {
    fs::read_to_string(root().join(file)).expect("a source file")
}

/// `ring.rs publish 1`: the file, the function, which of its sites.
fn names(sites: &BTreeSet<Site>) -> BTreeMap<Site, String> {
    let mut names = BTreeMap::new();
    let mut numbers = BTreeMap::<String, u32>::new();
    for site in sites {
        let text = source(site.file());
        let lines: Vec<&str> = text.lines().collect();
        let function = function_of(&lines, site.line() as usize);
        let name = format!("{} {function}", base(site.file()));
        let number = numbers.entry(name.clone()).or_default();
        *number += 1;
        names.insert(*site, format!("{name} {number}"));
    }
    names
}

/// Does something for each of a list, on as many threads as there are processors.
fn in_parallel<T: Sync, R: Send>(list: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                while let Some(item) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = act(item);
                    done.lock().expect("no panic").push(result);
                }
            });
        }
    });
    done.into_inner().expect("no panic")
}

/// No message of a panic that is looked for.
fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        if !matches!(GOAL.get(), Goal::Fails) {
            usual(what);
        }
    }));
}

/// What of the sites and the lists above is not as they say.
fn wrong(names: &BTreeMap<Site, String>, found: &[(Vec<Site>, bool)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (sites, found) in found {
        let named: Vec<&str> = sites.iter().map(|site| names[site].as_str()).collect();
        let spared = named.len() == 1 && SPARED.iter().any(|(name, _)| *name == named[0]);
        match (found, spared) {
            (false, false) => wrong.push(format!("{named:?}: no model fails; {sites:?}")),
            (true, true) => wrong.push(format!("{named:?}: is needed, and spared")),
            _ => {}
        }
    }
    let spared = SPARED.iter().map(|(name, _)| name);
    let gone = spared.filter(|name| !names.values().any(|it| it == *name));
    wrong.extend(gone.map(|name| format!("{name}: is spared, and no model passes it")));
    wrong
}

/// The functions that ask for an order and are neither passed nor excused, and the other way round.
fn unseen(names: &BTreeMap<Site, String>) -> Vec<String> {
    let passes = |name: &String| {
        let mut of_it = names.values().filter_map(|site| site.strip_prefix(name.as_str()));
        of_it.any(|rest| rest.starts_with(' '))
    };
    let mut asking_all = BTreeSet::new();
    for file in sources() {
        let functions = asking(&source(&file));
        asking_all.extend(functions.iter().map(|function| format!("{} {function}", base(&file))));
    }
    let excused: BTreeSet<String> = UNSEEN.iter().map(|(name, _)| (*name).to_owned()).collect();
    let unseen: BTreeSet<String> = asking_all.into_iter().filter(|it| !passes(it)).collect();
    let odd = unseen.symmetric_difference(&excused);
    odd.map(|name| format!("{name}: passed by no model, or excused and passed")).collect()
}

#[test]
fn models_fail_where_an_order_is_weakened() {
    quiet_panics();
    let ran = in_parallel(&small(), |model| (*model, run(*model, Vec::new()).expect(model.0)));
    let all: BTreeSet<Site> = ran.iter().flat_map(|(_, sites)| sites.clone()).collect();
    let names = names(&all);
    let either = EITHER.iter().map(|group| {
        let named = |(_, name): &(&Site, &String)| group.contains(&name.as_str());
        names.iter().filter(named).map(|(site, _)| *site).collect()
    });
    let weak: Vec<Vec<Site>> = all.iter().map(|site| std::vec![*site]).chain(either).collect();
    let found = in_parallel(&weak, |weak| {
        let start = Instant::now();
        let mut passing = ran.iter().filter(|(_, sites)| weak.iter().any(|it| sites.contains(it)));
        let found = passing
            .find_map(|((name, model), _)| Some((name, run((name, *model), weak.clone()).err()?)));
        let named: Vec<&String> = weak.iter().map(|site| &names[site]).collect();
        std::println!("{named:?} weakened: {found:?}, {:?}", start.elapsed());
        (weak.clone(), found.is_some())
    });
    let wrong = [wrong(&names, &found), unseen(&names)].concat();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
