//! Interrupts: which cores they go to, and whether irqbalance moves them.

use super::condition::{Check, Verdict};
use super::fix::{Fix, Rule, Setting, Step};
use super::host::{Host, Unread};
use super::judge::{other_steps, write};

const AFFINITY: Setting =
    Setting { files: "/proc/irq/[0-9]*/smp_affinity_list", value: "$HOUSEKEEPING", rule: Rule::Is };

/// The family: where interrupts go, then what would move them again.
pub const CHECKS: &[Check] = &[
    Check {
        name: "irq_affinity",
        should: "no interrupt goes to a worker's core",
        why: "an interrupt stops the worker, and its handler evicts the worker's cache lines",
        cost: "about 2 to 10 us each, with the softirq behind it (kernel: \
               core-api/irq/irq-affinity; measure with osnoise or hwlatdetect)",
        judge: affinity,
        fixes: &[Fix::Write(AFFINITY), Fix::Kernel("irqaffinity=$HOUSEKEEPING")],
    },
    Check {
        name: "irqbalance",
        should: "irqbalance does not run, or the workers' cores are isolated",
        why: "it spreads interrupts over all cores again, whatever was configured",
        cost: "the cost of irq_affinity, again every 10 s (irqbalance(1))",
        judge: irqbalance,
        fixes: &[Fix::Service("irqbalance")],
    },
];

fn affinity(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    if !host.reserved {
        return Ok(Verdict::absent("no core is reserved for workers (see isolcpus)"));
    }
    if host.housekeeping().is_empty() {
        return Ok(Verdict::absent(
            "workers use every core, so interrupts have nowhere else to go",
        ));
    }
    let (mut reached, mut first, mut total) = (Vec::new(), None, 0);
    for file in host.files(AFFINITY.files) {
        let name = file.trim_end_matches("/smp_affinity_list");
        let number = name.trim_start_matches("/proc/irq/");
        let handlers = host.text(&format!("/sys/kernel/irq/{number}/actions"))?;
        // An interrupt without a handler never fires.
        if handlers.as_deref() == Some("") {
            continue;
        }
        let Some(allowed) = host.ids(&file)? else { continue };
        total += 1;
        // The kernel chooses one of the allowed cores. A new choice may take effect only with the
        // next interrupt.
        let used = file.replace("smp_affinity_list", "effective_affinity_list");
        let used = host.ids(&used)?.filter(|ids| !ids.is_empty());
        let used = used.unwrap_or_else(|| allowed.clone()).and(&allowed);
        if !used.and(&host.workers).is_empty() {
            let names = handlers.map(|names| format!(" ({names})")).unwrap_or_default();
            first.get_or_insert_with(|| format!("{name}{names} goes to {used}"));
            reached.push(file);
        }
    }
    let Some(first) = first else {
        return Ok(Verdict::fine(format!("{total} interrupts stay on {}", host.housekeeping())));
    };
    let is = format!("{} of {total} interrupts go to workers' cores: {first}", reached.len());
    let mut steps: Vec<Step> = reached.iter().map(|file| write(host, &AFFINITY, file)).collect();
    steps.extend(other_steps(host, check));
    Ok(Verdict::bad(is, steps))
}

fn irqbalance(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let runs = host.files("/proc/[0-9]*/comm").into_iter().find(|file| {
        // A process may have ended since it was listed.
        host.root.text(file).as_deref() == Some("irqbalance")
    });
    let Some(file) = runs else { return Ok(Verdict::fine("it does not run")) };
    let process = file.trim_start_matches("/proc/").trim_end_matches("/comm");
    let is = format!("it runs as process {process}");
    if host.reserved && host.workers.without(&host.cpus.isolated).is_empty() {
        let is = format!("{is}, and leaves isolated cores alone unless it is configured otherwise");
        return Ok(Verdict::note(is, other_steps(host, check)));
    }
    Ok(Verdict::bad(is, other_steps(host, check)))
}
