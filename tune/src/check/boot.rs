//! The same set-up at every start of the machine: files for systemd, sysctl, limits and the boot
//! loader, written from the table. The folder `boot` of this package has a copy.

use super::condition::Check;
use super::fix::{Fix, Rule, Setting, quoted};
use super::host::{Host, Wants};
use super::memory::POOL;
use super::report::wrapped;
use super::script::{PRELUDE, push};
use super::table::checks;

/// A file that sets up the machine at its start.
#[derive(Debug)]
pub struct BootFile {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub text: String,
}

const FUNCTIONS: &str = include_str!("boot.sh");
const WRITTEN: &str = "# Written by `tune check --boot`; it will overwrite changes.\n";
const SYSCTL: &str = "/proc/sys/";
const ETC: &str = "/etc/";

/// Every file, in the order in which to install them. They contain the values of `host`; without
/// one they are for any machine, and a person has to fill in the values.
#[must_use]
pub fn files(host: Option<&Host<'_>>) -> Vec<BootFile> {
    vec![
        BootFile { name: "cmdline.txt", text: cmdline(host) },
        BootFile { name: "60-doorbell-sysctl.conf", text: sysctl() },
        BootFile { name: "60-doorbell-limits.conf", text: limits() },
        BootFile { name: "doorbell-tune.env", text: variables(host) },
        BootFile { name: "doorbell-tune.sh", text: shell() },
        BootFile { name: "doorbell-tune.service", text: service() },
    ]
}

/// Every setting in the table, with its check.
fn settings() -> impl Iterator<Item = (&'static Check, Setting)> {
    checks().flat_map(|check| {
        check.fixes.iter().filter_map(move |fix| match fix {
            Fix::Write(setting) => Some((check, *setting)),
            _ => None,
        })
    })
}

/// A comment with the check and its reason.
fn reason(check: &Check) -> String {
    let text = format!("{}. Why: {}", check.should, check.why);
    wrapped(&format!("# {}: ", check.name), &text, "#   ")
}

fn cmdline(host: Option<&Host<'_>>) -> String {
    let mut text = String::from(WRITTEN);
    text.push_str(
        "# Parameters for the kernel's command line, which take effect at a restart. Put those\n\
         # you want into GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub, and restart.\n",
    );
    if host.is_none() {
        text.push_str(
            "# WORKERS and HOUSEKEEPING stand for lists of CPUs: `tune plan` chooses them, and\n\
             # `tune check --plan FILE --boot FOLDER` writes them here.\n",
        );
    }
    for check in checks() {
        for fix in check.fixes {
            let Fix::Kernel(parameter) = fix else { continue };
            let parameter = match host {
                Some(host) => host.filled(parameter),
                None => parameter.replace('$', ""),
            };
            push(&mut text, format_args!("\n{}{parameter}", reason(check)));
        }
    }
    text
}

fn sysctl() -> String {
    let mut text = String::from(WRITTEN);
    text.push_str("# Install as /etc/sysctl.d/60-doorbell.conf (sysctl.d(5)).\n");
    for (check, setting) in settings() {
        if let Some(key) = setting.files.strip_prefix(SYSCTL) {
            // The leading minus: a kernel without this setting is not an error.
            let line = format!("-{} = {}", key.replace('/', "."), setting.value);
            push(&mut text, format_args!("\n{}{line}", reason(check)));
        }
    }
    text
}

fn limits() -> String {
    let mut text = String::from(WRITTEN);
    for (check, setting) in settings() {
        if setting.files.starts_with(ETC) {
            push(&mut text, format_args!("# Install as {} (limits.conf(5)).\n", setting.files));
            push(&mut text, format_args!("{}{}", reason(check), setting.value));
        }
    }
    text
}

fn variables(host: Option<&Host<'_>>) -> String {
    let pages = host.map_or(Wants::default().hugepages, |host| host.hugepages);
    let nodes = host.and_then(|host| host.nodes.as_ref());
    let nodes: Vec<String> =
        nodes.iter().flat_map(|ids| ids.iter()).map(|id| id.to_string()).collect();
    let nodes = nodes.join(" ");
    let housekeeping = host.map(|host| host.housekeeping().to_string()).unwrap_or_default();
    format!(
        "{WRITTEN}# Install as /etc/doorbell/doorbell-tune.env, with this machine's values.\n\n\
         # Pages of 2 MiB on each of the nodes below.\nHUGEPAGES={pages}\n\n\
         # The nodes that workers take memory from, such as \"0 1\". Empty: all nodes.\n\
         MEMORY_NODES=\"{nodes}\"\n\n\
         # CPUs for interrupts, such as 0-1. Empty: interrupts stay where they are.\n\
         HOUSEKEEPING={housekeeping}\n"
    )
}

fn shell() -> String {
    // No state file: a restart reverts these settings.
    let mut text = format!("#!/bin/sh\n{WRITTEN}ROOT=${{ROOT:-}}\nSTATE=\n{PRELUDE}{FUNCTIONS}\n");
    push(&mut text, format_args!("HUGEPAGES=${{HUGEPAGES:-{}}}", Wants::default().hugepages));
    text.push_str("MEMORY_NODES=${MEMORY_NODES:-}\nHOUSEKEEPING=${HOUSEKEEPING:-}\n");
    for check in checks() {
        let lines: Vec<String> = check.fixes.iter().filter_map(line).collect();
        if !lines.is_empty() {
            push(&mut text, format_args!("\n{}{}", reason(check), lines.join("\n")));
        }
    }
    text.push_str("\nexit $failed\n");
    text
}

/// The line of the script for a fix; `None` if another file has it.
fn line(fix: &Fix) -> Option<String> {
    let setting = match fix {
        Fix::Write(setting) => setting,
        Fix::Service(name) => return Some(format!("stop {}", quoted(name))),
        Fix::Kernel(_) | Fix::Advice(_) => return None,
    };
    if setting.files.starts_with(SYSCTL) || setting.files.starts_with(ETC) {
        return None;
    }
    // The shell expands the variables.
    let value = format!("\"{}\"", setting.value);
    let files = quoted(setting.files);
    Some(match setting.rule {
        Rule::Is => format!("each {files} {value}"),
        // Of the settings that come here, only huge pages have this rule.
        Rule::AtLeast => format!("at_least {files} {value} {POOL}/nr_hugepages"),
        Rule::Above { beside, above } => format!("each {files} {value} {beside} {above}"),
    })
}

fn service() -> String {
    format!(
        "{WRITTEN}# Install as /etc/systemd/system/doorbell-tune.service, and doorbell-tune.sh in\n\
         # /usr/local/sbin; then run\n\
         # systemctl enable doorbell-tune\n\
         [Unit]\n\
         Description=Memory, cores and interrupts for doorbell\n\
         After=irqbalance.service network.target\n\n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         EnvironmentFile=-/etc/doorbell/doorbell-tune.env\n\
         ExecStart=/bin/sh /usr/local/sbin/doorbell-tune.sh\n\n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}
