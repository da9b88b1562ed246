//! Runs models of how threads and processes use shared memory, in every order that the memory model
//! allows, over [`crate::sync`].
//!
//! A crate's models run by themselves through [`check`]. [`Weakened`] shows that each ordering in
//! the code is needed: it weakens each site in turn to no ordering and runs the models; one must
//! fail. (`--nocapture` shows which.)
#![expect(clippy::expect_used, reason = "a model fails by panicking")]

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::borrow::ToOwned;
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::fs;
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use crate::sync::{Site, begin_run, passed, weaken};

/// The name of a model, and the model.
pub type Model = (&'static str, fn());

/// The models of a package, and what is known about the orderings that they need. A site is named
/// by file, function, and its number within the function: `ring.rs publish 1`.
pub struct Weakened {
    /// The package's folder.
    pub package: &'static str,
    /// The models, cheap and likely ones first.
    pub models: Vec<Model>,
    /// Sites that may be weakened without a model failing, and why.
    pub spared: &'static [(&'static str, &'static str)],
    /// Groups of spared sites; one of each group is needed.
    pub either: &'static [&'static [&'static str]],
    /// Functions with sites that no model reaches, and why.
    pub unseen: &'static [(&'static str, &'static str)],
}

std::thread_local! {
    static GOAL: Cell<Goal> = const { Cell::new(Goal::Holds) };
}

/// Why a thread runs its models: to see that they hold, which sites they reach, or whether they
/// fail.
#[derive(Clone, Copy)]
enum Goal {
    Holds,
    Sites,
    Fails,
}

impl Goal {
    /// Whether all threads take turns, and the maximum number of involuntary switches. More
    /// switches show nothing new in reasonable time.
    fn ways(self) -> &'static [(bool, usize)] {
        match self {
            Goal::Holds => &[(false, 3), (true, 2)],
            Goal::Sites => &[(false, 2)],
            Goal::Fails => &[(true, 2)],
        }
    }
}

/// Runs a model in every order.
pub fn check(run: impl Fn() + Sync + Send + 'static) {
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

/// Runs it with those sites weakened, on a thread of its own, which loom may leave in any state.
/// Returns the sites it reached, or what failed.
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

/// The name of the function that a line is in.
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

/// Functions of a source file that use an ordering or a fence.
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

/// True if a source file uses the atomics of models.
fn shares(text: &str) -> bool {
    ["super::sync::{", "crate::sync::{"].iter().any(|from| text.contains(from))
}

impl Weakened {
    /// The folder that sites are named from.
    fn root(&self) -> &Path {
        let mut folders = Path::new(self.package).ancestors();
        folders.find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace")
    }

    /// The folder of the package's sources, as sites name it.
    fn folder(&self) -> PathBuf {
        let package = Path::new(self.package).strip_prefix(self.root()).expect("of the workspace");
        package.join("src")
    }

    /// The source files that use the atomics of models, as the compiler names them.
    fn sources(&self) -> Vec<String> {
        let mut folders = std::vec![self.folder().to_string_lossy().into_owned()];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(self.root().join(&folder)).expect("a folder").flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let path = format!("{folder}/{name}");
                if entry.path().is_dir() {
                    folders.push(path);
                } else if !name.ends_with("models.rs") && shares(&self.source(&path)) {
                    files.push(path);
                }
            }
        }
        files
    }

    fn source(&self, file: &str) -> String {
        fs::read_to_string(self.root().join(file)).expect("a source file")
    }

    /// The names of sites, such as `ring.rs publish 1`: the file, the function, the number of the
    /// site.
    fn names(&self, sites: &BTreeSet<Site>) -> BTreeMap<Site, String> {
        let mut names = BTreeMap::new();
        let mut numbers = BTreeMap::<String, u32>::new();
        for site in sites {
            let text = self.source(site.file());
            let lines: Vec<&str> = text.lines().collect();
            let function = function_of(&lines, site.line() as usize);
            let name = format!("{} {function}", base(site.file()));
            let number = numbers.entry(name.clone()).or_default();
            *number += 1;
            names.insert(*site, format!("{name} {number}"));
        }
        names
    }

    /// Where the sites and the lists above disagree.
    fn wrong(&self, names: &BTreeMap<Site, String>, found: &[(Vec<Site>, bool)]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (sites, found) in found {
            let named: Vec<&str> = sites.iter().map(|site| names[site].as_str()).collect();
            let spared = named.len() == 1 && self.spared.iter().any(|(name, _)| *name == named[0]);
            match (found, spared) {
                (false, false) => wrong.push(format!("{named:?}: no model fails; {sites:?}")),
                (true, true) => wrong.push(format!("{named:?}: is needed, and spared")),
                _ => {}
            }
        }
        let spared = self.spared.iter().map(|(name, _)| name);
        let gone = spared.filter(|name| !names.values().any(|it| it == *name));
        wrong.extend(gone.map(|name| format!("{name}: is spared, and no model passes it")));
        wrong
    }

    /// The functions that use an ordering and are neither reached nor excused, and those that are
    /// both.
    fn unseen(&self, names: &BTreeMap<Site, String>) -> Vec<String> {
        let passes = |name: &String| {
            let mut of_it = names.values().filter_map(|site| site.strip_prefix(name.as_str()));
            of_it.any(|rest| rest.starts_with(' '))
        };
        let mut asking_all = BTreeSet::new();
        for file in self.sources() {
            let functions = asking(&self.source(&file));
            asking_all
                .extend(functions.iter().map(|function| format!("{} {function}", base(&file))));
        }
        let excused: BTreeSet<String> =
            self.unseen.iter().map(|(name, _)| (*name).to_owned()).collect();
        let unseen: BTreeSet<String> = asking_all.into_iter().filter(|it| !passes(it)).collect();
        let odd = unseen.symmetric_difference(&excused);
        odd.map(|name| format!("{name}: passed by no model, or excused and passed")).collect()
    }

    /// Runs the models with each site of the package weakened.
    ///
    /// # Panics
    /// If no model fails where one must, or the lists are wrong.
    pub fn check(&self) {
        quiet_panics();
        let ran =
            in_parallel(&self.models, |model| (*model, run(*model, Vec::new()).expect(model.0)));
        let folder = self.folder();
        let ours = |site: &Site| Path::new(site.file()).starts_with(&folder);
        let all = ran.iter().flat_map(|(_, sites)| sites.clone()).filter(ours);
        let all: BTreeSet<Site> = all.collect();
        let names = self.names(&all);
        let either = self.either.iter().map(|group| {
            let named = |(_, name): &(&Site, &String)| group.contains(&name.as_str());
            names.iter().filter(named).map(|(site, _)| *site).collect()
        });
        let weak: Vec<Vec<Site>> = all.iter().map(|site| std::vec![*site]).chain(either).collect();
        let found = in_parallel(&weak, |weak| {
            let start = Instant::now();
            let mut passing =
                ran.iter().filter(|(_, sites)| weak.iter().any(|it| sites.contains(it)));
            let found = passing.find_map(|((name, model), _)| {
                Some((name, run((name, *model), weak.clone()).err()?))
            });
            let named: Vec<&String> = weak.iter().map(|site| &names[site]).collect();
            std::println!("{named:?} weakened: {found:?}, {:?}", start.elapsed());
            (weak.clone(), found.is_some())
        });
        let wrong = [self.wrong(&names, &found), self.unseen(&names)].concat();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

fn base(file: &str) -> &str {
    file.rsplit_once('/').map_or(file, |(_, base)| base)
}

/// Calls `act` for each entry of a list, on as many threads as there are processors.
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

/// Suppresses the messages of expected panics.
fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        if !matches!(GOAL.get(), Goal::Fails) {
            usual(what);
        }
    }));
}
