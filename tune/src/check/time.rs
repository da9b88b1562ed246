//! Time: whether it is cheap to read, runs at one rate, and is not stolen by a hypervisor.

use super::condition::{Check, Verdict};
use super::fix::{Fix, Rule, Setting};
use super::host::{Host, Unread, garbled};
use super::judge::{other_steps, write};

const CLOCKSOURCE: Setting = Setting {
    files: "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    value: "tsc",
    rule: Rule::Is,
};

/// The family.
pub const CHECKS: &[Check] = &[
    Check {
        name: "clocksource",
        should: "the kernel reads time from the core's own counter (tsc)",
        why: "with other sources, each clock_gettime(2) is a system call or reads a device",
        cost: "about 1 us a reading from hpet or acpi_pm, 20 to 40 ns from tsc or kvm-clock (a \
               read over the device's bus against rdtsc in the vdso(7))",
        judge: clocksource,
        fixes: &[
            Fix::Write(CLOCKSOURCE),
            Fix::Advice("if tsc is not offered, see why in the kernel's log: dmesg | grep -i tsc"),
        ],
    },
    Check {
        name: "tsc",
        should: "the core's counter has one rate and does not stop (constant_tsc, nonstop_tsc)",
        why: "otherwise it drifts with the clock frequency, so latencies measured with it mean \
              nothing, and the kernel stops using it",
        cost: "about the ratio of the clock rates, up to 2 to 4 times, in every latency taken \
               from the counter (Intel SDM, volume 3, time-stamp counter)",
        judge: tsc,
        fixes: &[Fix::Advice("give this virtual machine a CPU model with invtsc")],
    },
    Check {
        name: "steal",
        should: "no time is stolen by other virtual machines",
        why: "a virtual CPU that is not running answers nothing, even if its worker polls",
        cost: "about that share of the rate, and 1 to 10 ms each time (proc(5), steal; a time \
               slice of the hypervisor)",
        judge: steal,
        fixes: &[Fix::Advice(
            "use a machine whose virtual CPUs have a core each, or a physical machine",
        )],
    },
];

fn clocksource(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let Some(now) = host.text(CLOCKSOURCE.files)? else {
        return Ok(Verdict::absent("this kernel does not name its clock source"));
    };
    // arch_sys_counter is the counterpart of tsc on aarch64.
    if matches!(now.as_str(), "tsc" | "arch_sys_counter") {
        return Ok(Verdict::fine(now));
    }
    let known = CLOCKSOURCE.files.replace("current_", "available_");
    let known = host.text(&known)?.unwrap_or_default();
    let mut steps = other_steps(host, check);
    if known.split_whitespace().any(|word| word == "tsc") {
        steps.insert(0, write(host, &CLOCKSOURCE, CLOCKSOURCE.files));
    }
    let is = format!("{now}; the kernel offers {known}");
    // Paravirtual clocks read the counter and correct it, without a system call.
    Ok(match now.as_str() {
        "kvm-clock" | "hyperv_clocksource_tsc_page" | "xen" => Verdict::note(is, steps),
        _ => Verdict::bad(is, steps),
    })
}

fn tsc(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let text = host.text("/proc/cpuinfo")?.unwrap_or_default();
    // Only x86 has this line. On others the architecture guarantees one rate.
    let Some(flags) = text.lines().find(|line| line.starts_with("flags")) else {
        return Ok(Verdict::absent("no x86 CPU"));
    };
    let has = |flag: &&str| flags.split_whitespace().any(|word| word == *flag);
    let missing: Vec<&str> =
        ["constant_tsc", "nonstop_tsc"].into_iter().filter(|flag| !has(flag)).collect();
    if missing.is_empty() {
        return Ok(Verdict::fine("constant_tsc and nonstop_tsc"));
    }
    Ok(Verdict::bad(format!("no {}", missing.join(" and no ")), other_steps(host, check)))
}

fn steal(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let file = "/proc/stat";
    let text = host.text(file)?.unwrap_or_default();
    let Some(line) = text.lines().find_map(|line| line.strip_prefix("cpu ")) else {
        return Err(garbled(file, &text, "a table with a line `cpu`"));
    };
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user already.
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [.., stolen] = ticks.get(..8).unwrap_or_default() else {
        return Err(garbled(file, line, "eight numbers or more"));
    };
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().map(|at| ticks[*at]).sum();
    let share = *stolen as f64 * 100.0 / busy.max(1) as f64;
    let is = format!("{share:.2} % of the time requested since the start");
    Ok(match share {
        _ if *stolen == 0 => Verdict::fine("none since the start"),
        share if share >= 1.0 => Verdict::bad(is, other_steps(host, check)),
        share if share >= 0.1 => Verdict::note(is, other_steps(host, check)),
        _ => Verdict::fine(is),
    })
}
