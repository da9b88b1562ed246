//! Prints a machine as text.

use std::fmt::Write;

use doorbell_tune::{Device, Ids, Machine};

use super::layout::{
    NodeBox, devices_apart, is_closed, is_isolated, memory, name, nodes_apart, packages, size,
};

/// Packages with nodes, caches, cores and devices; then the special CPUs and nodes.
pub(super) fn text(machine: &Machine) -> String {
    // Writing to a string cannot fail, here and below.
    let mut text = format!(
        "{}: {}, {}, {}, {}\n",
        machine.processor.as_deref().unwrap_or("unknown processor"),
        count(machine.packages.len(), "package"),
        count(machine.nodes.len(), "node"),
        count(machine.cores.len(), "core"),
        count(machine.cpus.online.len(), "CPU"),
    );
    for package in packages(machine) {
        let _ = writeln!(text, "package {}", package.id);
        package.nodes.iter().for_each(|node| write_node(&mut text, machine, node));
    }
    for node in nodes_apart(machine) {
        let _ = writeln!(text, "node {}: {}, no CPU", node.id, size(node.memory_bytes));
    }
    for device in devices_apart(machine) {
        let _ = writeln!(text, "{}; on no known node", device_line(device));
    }
    write_special(&mut text, machine);
    text
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn write_node(text: &mut String, machine: &Machine, node: &NodeBox<'_>) {
    let memory = memory(machine, node);
    let cores = node.groups.iter().flat_map(|(_, cores)| cores);
    let cpus: Ids = cores.flat_map(|core| core.cpus.iter()).collect();
    let _ = writeln!(text, "  node {}: {memory}, CPUs {cpus}", node.node.id);
    for (cache, cores) in &node.groups {
        let shared = cache.map(|cache| format!("L{} {}, ", cache.level, size(cache.bytes)));
        let cores: Vec<String> = cores.iter().map(|core| sign(machine, core)).collect();
        let _ = writeln!(text, "    {}cores {}", shared.unwrap_or_default(), cores.join(" "));
    }
    for device in &node.devices {
        let _ = writeln!(text, "    {}", device_line(device));
    }
}

/// A core by its threads, with a letter for each thing that is special about it.
fn sign(machine: &Machine, core: &doorbell_tune::Core) -> String {
    let mut sign = name(core);
    for (holds, letter) in
        [(is_isolated(machine, core), 'i'), (core.slow, 's'), (is_closed(machine, core), 'x')]
    {
        if holds {
            sign.push(letter);
        }
    }
    sign
}

fn device_line(device: &Device) -> String {
    let mut line = device.name.clone();
    match (&device.pci, &device.interface) {
        (Some(pci), Some(interface)) => {
            let _ = write!(line, ": {pci}, under {interface}");
        }
        (Some(pci), None) => {
            let _ = write!(line, ": {pci}");
        }
        (None, Some(interface)) => {
            let _ = write!(line, ": software, over {interface}");
        }
        (None, None) => line.push_str(": software"),
    }
    if let Some(link) = device.link {
        let _ = write!(line, ", {link}");
    }
    line
}

fn write_special(text: &mut String, machine: &Machine) {
    let slow: Ids =
        machine.cores.iter().filter(|core| core.slow).flat_map(|core| core.cpus.iter()).collect();
    let full = machine.nodes.iter().filter(|node| node.memory_bytes > 0).map(|node| node.id);
    let barred = full.collect::<Ids>().without(&machine.memory_nodes);
    let closed = machine.cpus.online.without(&machine.cpus.usable);
    for (what, ids) in [
        ("CPUs switched off", &machine.cpus.offline),
        ("CPUs isolated (i)", &machine.cpus.isolated),
        ("CPUs without timer ticks", &machine.cpus.tickless),
        ("CPUs of the slower kind (s)", &slow),
        ("CPUs that this program may not use (x)", &closed),
        ("nodes without memory", &machine.empty_nodes()),
        ("nodes whose memory this program may not take", &barred),
    ] {
        if !ids.is_empty() {
            let _ = writeln!(text, "{what}: {ids}");
        }
    }
    for note in &machine.notes {
        let _ = writeln!(text, "note: {note}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(size(67_108_864 * 1024), "64 GiB");
        assert_eq!(size(1_310_720), "1.3 MiB");
        assert_eq!(size(49_152), "48 KiB");
    }
}
