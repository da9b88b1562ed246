//! The same set-up at every start of the machine: files for systemd, sysctl, limits and the boot
//! loader, written from the table. They are kept in the folder `boot` of this package.

use super::mend::{Mend, Rule, Setting, quoted};
use super::report::wrapped;
use super::script::{PRELUDE, push};
use super::{Check, Host, Wants, checks};

/// A file for a machine's start.
#[derive(Debug)]
pub struct BootFile {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub text: String,
}

const FUNCTIONS: &str = include_str!("boot.sh");
const WRITTEN: &str = "# Written by `tune check --boot`; a change here is lost with the next.\n";
const SYSCTL: &str = "/proc/sys/";
const ETC: &str = "/etc/";

/// Every file, in the order in which a person would put them in place: with the values of `host`,
/// or, without one, for any machine, whose values a person has to fill in.
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

/// Every setting of the table, with its check.
fn settings() -> impl Iterator<Item = (&'static Check, Setting)> {
    checks().flat_map(|check| {
        check.mends.iter().filter_map(move |mend| match mend {
            Mend::Write(setting) => Some((check, *setting)),
            _ => None,
        })
    })
}

/// The check and why, as comments.
fn reason(check: &Check) -> String {
    let text = format!("{}: {}", check.should, check.why);
    wrapped(&format!("# {}: ", check.name), &text, "#   ")
}

fn cmdline(host: Option<&Host<'_>>) -> String {
    let mut text = String::from(WRITTEN);
    text.push_str(
        "# Advice for the kernel's command line: what only a restart can bring. Take what you\n",
    );
    match host {
        Some(_) => text.push_str("# want into"),
        None => text.push_str(
            "# want, with lists of CPUs for WORKERS and HOUSEKEEPING (`tune plan` chooses them,\n\
             # and `tune check --plan FILE --boot FOLDER` writes them), into",
        ),
    }
    text.push_str(" GRUB_CMDLINE_LINUX of\n# /etc/default/grub; then update-grub, and restart.\n");
    for check in checks() {
        for mend in check.mends {
            let Mend::Kernel(parameter) = mend else { continue };
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
    text.push_str("# To be /etc/sysctl.d/60-doorbell.conf (sysctl.d(5)).\n");
    for (check, setting) in settings() {
        if let Some(key) = setting.files.strip_prefix(SYSCTL) {
            // A leading minus: a kernel without it is no fault.
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
            push(&mut text, format_args!("# To be {} (limits.conf(5)).\n", setting.files));
            push(&mut text, format_args!("{}{}", reason(check), setting.value));
        }
    }
    text
}

fn variables(host: Option<&Host<'_>>) -> String {
    let pages = host.map_or(Wants::default().hugepages, |host| host.hugepages);
    let housekeeping = host.map(|host| host.housekeeping().to_string()).unwrap_or_default();
    format!(
        "{WRITTEN}# To be /etc/doorbell/doorbell-tune.env, with this machine's values.\n\n\
         # Pages of 2 MiB on each node.\nHUGEPAGES={pages}\n\n\
         # CPUs that take the interrupts, such as 0-1. Empty: interrupts stay where they are.\n\
         HOUSEKEEPING={housekeeping}\n"
    )
}

fn shell() -> String {
    // A restart is what takes this back.
    let mut text = format!("#!/bin/sh\n{WRITTEN}ROOT=${{ROOT:-}}\nSTATE=\n{PRELUDE}{FUNCTIONS}\n");
    push(&mut text, format_args!("HUGEPAGES=${{HUGEPAGES:-{}}}", Wants::default().hugepages));
    text.push_str("HOUSEKEEPING=${HOUSEKEEPING:-}\n");
    for check in checks() {
        let lines: Vec<String> = check.mends.iter().filter_map(line).collect();
        if !lines.is_empty() {
            push(&mut text, format_args!("\n{}{}", reason(check), lines.join("\n")));
        }
    }
    text.push_str("\nexit $failed\n");
    text
}

/// What the script does about a mend; nothing if another file does it.
fn line(mend: &Mend) -> Option<String> {
    let setting = match mend {
        Mend::Write(setting) => setting,
        Mend::Service(name) => return Some(format!("stop {}", quoted(name))),
        Mend::Kernel(_) | Mend::Advice(_) => return None,
    };
    if setting.files.starts_with(SYSCTL) || setting.files.starts_with(ETC) {
        return None;
    }
    // The shell fills in its variables itself.
    let value = format!("\"{}\"", setting.value);
    let files = quoted(setting.files);
    Some(match setting.rule {
        Rule::Is => format!("each {files} {value}"),
        Rule::AtLeast => format!("at_least {files} {value}"),
        Rule::Above { beside, above } => format!("each {files} {value} {beside} {above}"),
    })
}

fn service() -> String {
    format!(
        "{WRITTEN}# To be /etc/systemd/system/doorbell-tune.service, with doorbell-tune.sh in\n\
         # /usr/local/sbin; then\n\
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
