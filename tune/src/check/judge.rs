//! Judges that several checks share: those of settings, and the steps that fix them.

use super::condition::{Check, Severity, Verdict};
use super::fix::{Fix, Setting, Step};
use super::host::{Host, Unread};

/// Judges checks that consist of settings alone: bad if a file differs.
pub(super) fn settings(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let (mut total, mut wrong, mut steps) = (0, Vec::new(), Vec::new());
    let mut held = String::new();
    for fix in check.fixes {
        if let Fix::Write(setting) = fix {
            let matched = host.matched(setting)?;
            total += matched.total;
            held = matched.last;
            steps.extend(matched.wrong.iter().map(|(file, _)| write(host, setting, file)));
            wrong.extend(matched.wrong);
        }
    }
    let Some((file, now)) = wrong.first() else {
        return Ok(match total {
            0 => Verdict::absent("this machine has no such setting"),
            1 => Verdict::fine(held),
            _ => Verdict::fine(format!("{held}, {total} times")),
        });
    };
    let others = match total {
        1 => String::new(),
        _ => format!(" ({} of {total} differ)", wrong.len()),
    };
    steps.extend(other_steps(host, check));
    Ok(Verdict::bad(format!("{file} contains `{now}`{others}"), steps))
}

/// The same, but a difference is only worth a note.
pub(super) fn settings_noted(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let verdict = settings(host, check)?;
    Ok(match verdict.severity {
        Severity::Bad => Verdict { severity: Severity::Note, ..verdict },
        _ => verdict,
    })
}

/// The step that writes a setting to one file.
pub(super) fn write(host: &Host<'_>, setting: &Setting, file: &str) -> Step {
    Step::Write { file: file.to_owned(), value: host.filled(setting.value) }
}

/// The fixes of a check that write no file: services, kernel parameters, advice.
pub(super) fn other_steps(host: &Host<'_>, check: &Check) -> Vec<Step> {
    let step = |fix: &Fix| match *fix {
        Fix::Write(_) => None,
        Fix::Service(name) => Some(Step::Stop(name.to_owned())),
        Fix::Kernel(text) => Some(Step::Kernel(host.filled(text))),
        Fix::Advice(text) => Some(Step::Advice(host.filled(text))),
    };
    check.fixes.iter().filter_map(step).collect()
}
