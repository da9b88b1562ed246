//! Interrupts: which cores they go to, and who moves them.

use super::Check;
use super::host::{Host, Unread};
use super::mend::{Mend, Rule, Setting, Step};
use super::report::{Verdict, words, write};

const AFFINITY: Setting =
    Setting { files: "/proc/irq/[0-9]*/smp_affinity_list", value: "$HOUSEKEEPING", rule: Rule::Is };

/// The family: where interrupts go, then who would send them elsewhere again.
pub const CHECKS: &[Check] = &[
    Check {
        name: "irq_affinity",
        should: "no interrupt goes to a worker's core",
        why: "an interrupt stops the worker, and its handler takes the worker's cache lines",
        cost: "about 2 to 10 us each, with the softirq behind it (kernel: \
               core-api/irq/irq-affinity; measure with osnoise or hwlatdetect)",
        judge: affinity,
        mends: &[Mend::Write(AFFINITY), Mend::Kernel("irqaffinity=$HOUSEKEEPING")],
    },
    Check {
        name: "irqbalance",
        should: "irqbalance does not run, or knows the workers' cores as isolated",
        why: "it spreads interrupts over all cores again, whatever was set before",
        cost: "that of irq_affinity, anew every 10 s (irqbalance(1))",
        judge: irqbalance,
        mends: &[Mend::Service("irqbalance")],
    },
];

fn affinity(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    if !host.apart {
        return Ok(Verdict::absent("no core is set apart for workers (see isolcpus)"));
    }
    if host.housekeeping().is_empty() {
        return Ok(Verdict::absent("workers have every core, so interrupts have no other place"));
    }
    let (mut reached, mut first, mut total) = (Vec::new(), None, 0);
    for file in host.files(AFFINITY.files) {
        let name = file.trim_end_matches("/smp_affinity_list");
        let number = name.trim_start_matches("/proc/irq/");
        let handlers = host.text(&format!("/sys/kernel/irq/{number}/actions"))?;
        // One without a handler never comes.
        if handlers.as_deref() == Some("") {
            continue;
        }
        let Some(allowed) = host.ids(&file)? else { continue };
        total += 1;
        // Of the cores that it may ask, the kernel chooses one; a new choice may wait for the next
        // interrupt.
        let used = file.replace("smp_affinity_list", "effective_affinity_list");
        let used = host.ids(&used)?.filter(|ids| !ids.is_empty());
        let used = used.unwrap_or_else(|| allowed.clone()).and(&allowed);
        if !used.and(&host.workers).is_empty() {
            let whose = handlers.map(|whose| format!(" ({whose})")).unwrap_or_default();
            first.get_or_insert_with(|| format!("{name}{whose} goes to {used}"));
            reached.push(file);
        }
    }
    let Some(first) = first else {
        return Ok(Verdict::fine(format!("{total} interrupts stay on {}", host.housekeeping())));
    };
    let is = format!("{} of {total} interrupts go to workers: {first}", reached.len());
    let mut steps: Vec<Step> = reached.iter().map(|file| write(host, &AFFINITY, file)).collect();
    steps.extend(words(host, check));
    Ok(Verdict::bad(is, steps))
}

fn irqbalance(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let runs = host.files("/proc/[0-9]*/comm").into_iter().find(|file| {
        // A process may end between being listed and being asked.
        host.root.text(file).as_deref() == Some("irqbalance")
    });
    let Some(file) = runs else { return Ok(Verdict::fine("it does not run")) };
    let process = file.trim_start_matches("/proc/").trim_end_matches("/comm");
    let is = format!("it runs, as process {process}");
    if host.apart && host.workers.without(&host.cpus.isolated).is_empty() {
        let is = format!("{is}, and leaves isolated cores alone unless it was told otherwise");
        return Ok(Verdict::note(is, words(host, check)));
    }
    Ok(Verdict::bad(is, words(host, check)))
}
