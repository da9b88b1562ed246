//! `tune check`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use doorbell_tune::check::{self, Host, Report, STATE, Wants, boot};
use doorbell_tune::{Ids, Plan, Root};

use crate::failure::{Failure, say, warn};

/// Find what costs latency or rate on this machine, and how to fix it
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 nothing is bad, 1 something is bad, 2 something could not be read.\n\
Fixes are for what is bad; with --only, also for what is worth knowing.\n\
Example: tune check --apply --plan plan.toml"
)]
pub(crate) struct CheckArgs {
    /// A folder with copies of a machine's files from /sys, /proc and /etc
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    /// Run only the checks with these names
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// The workers' cores, such as 2-5 [default: the isolated cores]
    #[arg(long, value_name = "LIST")]
    cores: Option<Ids>,
    /// Pages of 2 MiB that each node should have [default: those of the plan, or 64]
    #[arg(long, value_name = "N")]
    hugepages: Option<u64>,
    /// The plan of the workers: its cores, its nodes and their memory
    #[arg(long, value_name = "FILE", conflicts_with = "cores")]
    plan: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, conflicts_with_all = ["fix", "apply", "undo", "boot"])]
    json: bool,
    /// Print a script that fixes what can be fixed at run time
    #[arg(long, conflicts_with_all = ["apply", "undo", "boot"])]
    fix: bool,
    /// Print that script, run it, and check again
    #[arg(long, conflicts_with_all = ["undo", "boot"])]
    apply: bool,
    /// Restore what --apply has changed
    #[arg(long, conflicts_with = "boot")]
    undo: bool,
    /// Write files that apply the fixes at every start: for any machine, or for this one with
    /// --plan or --cores
    #[arg(long, value_name = "FOLDER")]
    boot: Option<PathBuf>,
    /// Where --apply saves the previous values [default: /var/lib/doorbell/tune.state]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

/// Exit code if something could not be read or done.
const COULD_NOT: u8 = 2;

pub(crate) fn run(args: &CheckArgs) -> Result<u8, Failure> {
    let root = Root::at(&args.root);
    if let Some(folder) = &args.boot {
        return write_boot(args, &root, folder);
    }
    if args.undo {
        let state = args.state.clone().unwrap_or_else(|| root.path(STATE));
        return undo(&root, &state);
    }
    let report = judge(args, &root)?;
    if !args.fix && !args.apply {
        let text = match args.json {
            true => format!("{}\n", serde_json::to_string_pretty(&report)?),
            false => report.to_string(),
        };
        say(&text)?;
        return Ok(report.exit_code());
    }
    let state = args.state.as_ref().map(|file| file.to_string_lossy());
    let script = check::script(&report, !args.only.is_empty(), state.as_deref());
    say(&script)?;
    if args.fix {
        return Ok(0);
    }
    let whole = check::run_script(&root, &script).map_err(could_not)?;
    let report = judge(args, &root)?;
    say(&format!("\n{report}"))?;
    Ok(if whole { report.exit_code() } else { COULD_NOT })
}

fn judge(args: &CheckArgs, root: &Root) -> Result<Report, Failure> {
    if let Some(name) = args.only.iter().find(|name| check::checks().all(|c| c.name != **name)) {
        let names: Vec<&str> = check::checks().map(|check| check.name).collect();
        return Err(could_not(format_args!(
            "no check is called {name}; choose from {}",
            names.join(", ")
        )));
    }
    let wants = wants(args)?;
    let host = Host::read(root, &wants).map_err(could_not)?;
    Ok(check::run(&host, &args.only))
}

/// What the workers need, by the plan or by the command line.
fn wants(args: &CheckArgs) -> Result<Wants, Failure> {
    let mut wants = match &args.plan {
        Some(file) => Wants::of(&Plan::load(file).map_err(could_not)?),
        None => Wants { cores: args.cores.clone(), ..Wants::default() },
    };
    wants.hugepages = args.hugepages.unwrap_or(wants.hugepages);
    Ok(wants)
}

fn could_not(text: impl std::fmt::Display) -> Failure {
    Failure { code: COULD_NOT, ..Failure::new(text) }
}

fn undo(root: &Root, state: &Path) -> Result<u8, Failure> {
    let undone = check::undo(root, state).map_err(could_not)?;
    if undone.is_nothing() {
        say("nothing to undo\n")?;
        return Ok(0);
    }
    let mut text = String::new();
    for name in &undone.restored {
        text.push_str(&format!("restored {name}\n"));
    }
    for name in &undone.gone {
        text.push_str(&format!("a restart has reset {name}\n"));
    }
    say(&text)?;
    for failed in &undone.failed {
        warn(&format_args!("not restored: {failed}"));
    }
    Ok(if undone.failed.is_empty() { 0 } else { COULD_NOT })
}

fn write_boot(args: &CheckArgs, root: &Root, folder: &Path) -> Result<u8, Failure> {
    let files = if args.plan.is_some() || args.cores.is_some() {
        boot::files(Some(&Host::read(root, &wants(args)?).map_err(could_not)?))
    } else {
        boot::files(None)
    };
    let fault = |path: &Path| {
        let path = path.display().to_string();
        move |error| could_not(format_args!("cannot write {path}: {error}"))
    };
    fs::create_dir_all(folder).map_err(fault(folder))?;
    for file in files {
        let path = folder.join(file.name);
        fs::write(&path, file.text).map_err(fault(&path))?;
        say(&format!("{}\n", path.display()))?;
    }
    Ok(0)
}
