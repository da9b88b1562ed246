//! CPUs: which are reserved for workers, how fast they are, and what else runs on them.

use super::condition::{Check, Verdict};
use super::fix::{Fix, Rule, Setting, Step};
use super::host::{Host, Unread, cpu_of};
use super::judge::{other_steps, settings, settings_noted, write};
use crate::Ids;

/// Exit latency above which a sleep state is too deep, microseconds.
const DEEP_US: u64 = 10;

const CSTATES: Setting = Setting {
    files: "/sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*/disable",
    value: "1",
    rule: Rule::Above { beside: "latency", above: DEEP_US },
};

/// The family: cores reserved for workers, then their speed, then what disturbs them.
pub const CHECKS: &[Check] = &[
    Check {
        name: "isolcpus",
        should: "the workers' cores are kept free of other programs",
        why: "a polling worker never sleeps, so another program that is scheduled on its core \
              takes whole time slices from it",
        cost: "about 3 ms each time (one time slice; kernel: base_slice_ns, 2.8 ms on 8 and more \
               cores) and 1 to 5 us for the switch",
        judge: isolcpus,
        fixes: &[Fix::Kernel("isolcpus=managed_irq,domain,$WORKERS")],
    },
    Check {
        name: "nohz_full",
        should: "the workers' cores have no timer ticks",
        why: "the tick interrupts a core even if only one program runs there",
        cost: "about 1 to 5 us, 250 times a second on Debian (CONFIG_HZ; kernel: timers/no_hz)",
        judge: nohz_full,
        fixes: &[Fix::Kernel("nohz_full=$WORKERS")],
    },
    Check {
        name: "rcu_nocbs",
        should: "RCU callbacks of the workers' cores run elsewhere",
        why: "otherwise the kernel frees memory in batches on the core that asked for it",
        cost: "about 1 to 100 us a batch (kernel: admin-guide/kernel-per-CPU-kthreads)",
        judge: rcu_nocbs,
        fixes: &[Fix::Kernel("rcu_nocbs=$WORKERS")],
    },
    Check {
        name: "governor",
        should: "the CPU frequency governor is performance",
        why: "others lower the clock when a core seems idle, and raise it late when load comes",
        cost: "about half to a third of the speed for the first milliseconds of a burst (lowest to \
               highest clock; kernel: admin-guide/pm/cpufreq)",
        judge: settings,
        fixes: &[Fix::Write(Setting {
            files: "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor",
            value: "performance",
            rule: Rule::Is,
        })],
    },
    Check {
        name: "cstates",
        should: "no sleep state takes more than 10 us to leave",
        why: "a worker that waits for an event also waits until its core has left the sleep state",
        cost: "about 1 us to leave C1, 30 to 200 us to leave C6 and deeper (the driver's own \
               figures: cpuidle/state*/latency)",
        judge: cstates,
        fixes: &[
            Fix::Write(CSTATES),
            Fix::Advice(
                "or write 0 to /dev/cpu_dma_latency and keep it open while the program runs",
            ),
        ],
    },
    Check {
        name: "smt",
        should: "no two workers share a core, and no other program runs beside one",
        why: "hardware threads of one core share its caches and execution units",
        cost: "about a third of the rate: two busy threads get 65 % of a core each at best (Marr \
               and others, Intel Technology Journal 2002: up to 30 % more for both)",
        judge: smt,
        fixes: &[Fix::Kernel("nosmt")],
    },
    Check {
        name: "watchdog",
        should: "kernel.nmi_watchdog is 0",
        why: "it interrupts each core by a performance counter, which profilers then cannot use",
        cost: "about 1 to 2 us every 10 s of work a core, and one counter (kernel: \
               admin-guide/lockup-watchdogs)",
        judge: settings_noted,
        fixes: &[Fix::Write(Setting {
            files: "/proc/sys/kernel/nmi_watchdog",
            value: "0",
            rule: Rule::Is,
        })],
    },
    Check {
        name: "stat_interval",
        should: "vm.stat_interval is 10 or more",
        why: "a kernel task on each core sums up that core's memory statistics",
        cost: "about 1 to 5 us a second a core (kernel: admin-guide/sysctl/vm)",
        judge: settings_noted,
        fixes: &[Fix::Write(Setting {
            files: "/proc/sys/vm/stat_interval",
            value: "10",
            rule: Rule::AtLeast,
        })],
    },
];

/// A machine with fewer CPUs cannot reserve any for workers.
const CPUS_TO_SPARE: usize = 4;

/// Judges whether a list of cores on the kernel's command line includes those of the workers.
fn listed(host: &Host<'_>, check: &Check, has: &Ids) -> Verdict {
    let missing = host.workers.without(has);
    if missing.is_empty() && !host.workers.is_empty() {
        return Verdict::fine(format!("cores {has}"));
    }
    if !host.reserved && host.cpus.online.len() < CPUS_TO_SPARE {
        let cpus = host.cpus.online.len();
        return Verdict::absent(format!("with {cpus} CPUs none can be reserved for workers"));
    }
    let is = match (host.reserved, has.is_empty()) {
        (true, true) => format!("none; workers run on {}", host.workers),
        (true, false) => format!("cores {has}; workers run on {missing} as well"),
        (false, _) => "no core is reserved for workers (--cores names some)".to_owned(),
    };
    Verdict::bad(is, other_steps(host, check))
}

fn isolcpus(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    Ok(listed(host, check, &host.cpus.isolated))
}

fn nohz_full(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    Ok(listed(host, check, &host.cpus.tickless))
}

fn rcu_nocbs(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let named = match host.parameter("rcu_nocbs")?.as_deref() {
        None => Ids::default(),
        // Without a list it means every core.
        Some("" | "all") => host.cpus.online.clone(),
        // An unknown form, such as 0-7:1/2, counts as none; the fix shows the form that is known.
        Some(list) => list.parse().unwrap_or_default(),
    };
    // The kernel treats cores without ticks the same way (kernel: RCU/Design, nohz_full).
    Ok(listed(host, check, &named.or(&host.cpus.tickless)))
}

fn cstates(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let matched = host.matched(&CSTATES)?;
    if matched.total == 0 {
        return Ok(Verdict::absent("no sleep states here (cpuidle)"));
    }
    // Only root may read it; for others it counts as not held.
    let held = host.bytes("/dev/cpu_dma_latency").ok().flatten();
    let held = held.and_then(|bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?)));
    if let Some(us) = held.and_then(|us| u64::try_from(us).ok()).filter(|us| *us <= DEEP_US) {
        return Ok(Verdict::fine(format!("a program holds /dev/cpu_dma_latency at {us} us")));
    }
    let ours =
        |file: &str| !host.reserved || cpu_of(file).is_some_and(|cpu| host.workers.contains(cpu));
    let off: Vec<&String> =
        matched.wrong.iter().map(|(file, _)| file).filter(|file| ours(file)).collect();
    let mut deepest = (0, String::new());
    for file in &off {
        let state = file.trim_end_matches("/disable");
        let us = host.number(&format!("{state}/latency"))?.unwrap_or(0);
        if us > deepest.0 {
            let name = host.text(&format!("{state}/name"))?.unwrap_or_default();
            deepest = (us, format!("{name} takes {us} us to leave ({state})"));
        }
    }
    if off.is_empty() {
        return Ok(Verdict::fine(format!("none takes more than {DEEP_US} us to leave")));
    }
    let mut steps: Vec<Step> = off.into_iter().map(|file| write(host, &CSTATES, file)).collect();
    steps.extend(other_steps(host, check));
    Ok(Verdict::bad(deepest.1, steps))
}

fn smt(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let mut shared = Vec::new();
    let mut beside = Ids::default();
    for cpu in host.workers.and(&host.cpus.online).iter() {
        let mut running = Vec::new();
        for sibling in host.siblings(cpu)?.and(&host.cpus.online).iter() {
            // A CPU without this file cannot be switched off.
            let file = format!("/sys/devices/system/cpu/cpu{sibling}/online");
            if host.number(&file)? != Some(0) {
                running.push(sibling);
            }
        }
        // Keep the first thread of the core that belongs to a worker.
        let running = Ids::from_iter(running);
        let keep = running.and(&host.workers).first();
        if running.len() > 1 && keep == Some(cpu) {
            beside = beside.or(&running.without(&Ids::from_iter([cpu])));
            shared.push(running.to_string());
        }
    }
    if shared.is_empty() {
        return Ok(Verdict::fine("each core has one online thread"));
    }
    let is = format!("CPUs {} share a core", shared.join(" and "));
    if !host.reserved {
        let choose = "run workers on one CPU of each core, as tune plan does".to_owned();
        return Ok(Verdict::note(is, vec![Step::Advice(choose)]));
    }
    let mut steps: Vec<Step> = beside.iter().map(switch_off).collect();
    steps.extend(other_steps(host, check));
    Ok(Verdict::bad(is, steps))
}

fn switch_off(cpu: usize) -> Step {
    Step::Write { file: format!("/sys/devices/system/cpu/cpu{cpu}/online"), value: "0".to_owned() }
}
