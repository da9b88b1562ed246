//! Draws a machine: packages in a row, with their nodes, with their cores and devices.

use doorbell_tune::{Core, Machine};

use super::layout::{
    NodeBox, devices_apart, is_closed, is_isolated, memory, name, nodes_apart, packages, size,
};
use crate::commands::svg::{LETTER, Svg};

/// Sizes of a core's box, of the gap between boxes, and of a line of text.
const CORE: (f64, f64) = (54.0, 20.0);
const GAP: f64 = 6.0;
const LINE: f64 = 16.0;

/// Cores in a row of a node.
const ROW: usize = 8;

/// Colours that colour-blind people can tell apart.
const USUAL: &str = "#cfe3f3";
const ISOLATED: &str = "#f3c98b";
const SLOW: &str = "#d9d2e9";
const CLOSED: &str = "#e6e6e6";
const PACKAGE: &str = "#fafafa";
const NODE: &str = "#ffffff";
const CACHE: &str = "#f1f1f1";
const DEVICE: &str = "#bfe3cf";

pub(super) fn svg(machine: &Machine) -> String {
    let mut svg = Svg::new();
    let title = machine.processor.as_deref().unwrap_or("unknown processor");
    svg.text((GAP, LINE), title);
    let mut x = GAP;
    let mut bottom = 0.0_f64;
    for package in packages(machine) {
        let (top, width) = (2.0 * LINE, node_width() + 2.0 * GAP);
        let heights: Vec<f64> = package.nodes.iter().map(node_height).collect();
        let height = LINE + GAP + heights.iter().map(|height| height + GAP).sum::<f64>();
        svg.area((x, top), (width, height), PACKAGE, &format!("package {}", package.id));
        svg.text((x + GAP, top + LINE - 3.0), &format!("package {}", package.id));
        let mut y = top + LINE + GAP;
        for (node, height) in package.nodes.iter().zip(heights) {
            draw_node(&mut svg, machine, node, (x + GAP, y), height);
            y += height + GAP;
        }
        bottom = bottom.max(top + height);
        x += width + 2.0 * GAP;
    }
    let mut y = bottom + LINE + GAP;
    for node in nodes_apart(machine) {
        let text = format!("node {}: {}, no CPU", node.id, size(node.memory_bytes));
        svg.text((GAP, y), &text);
        y += LINE;
    }
    for device in devices_apart(machine) {
        svg.text((GAP, y), &format!("{}: on no known node", device.name));
        y += LINE;
    }
    draw_legend(&mut svg, machine, y);
    svg.finish()
}

fn node_width() -> f64 {
    2.0 * GAP + 2.0 * GAP + ROW as f64 * (CORE.0 + GAP)
}

fn rows(cores: usize) -> f64 {
    cores.div_ceil(ROW) as f64
}

fn node_height(node: &NodeBox<'_>) -> f64 {
    let groups = node.groups.iter().map(|(_, cores)| group_height(cores.len()) + GAP);
    LINE + groups.sum::<f64>() + node.devices.len() as f64 * (LINE + GAP) + GAP
}

fn group_height(cores: usize) -> f64 {
    LINE + rows(cores) * (CORE.1 + GAP) + GAP
}

fn draw_node(svg: &mut Svg, machine: &Machine, node: &NodeBox<'_>, at: (f64, f64), height: f64) {
    let (x, mut y) = at;
    let title = format!("node {}: {}", node.node.id, memory(machine, node));
    svg.area(at, (node_width(), height), NODE, &title);
    svg.text((x + GAP, y + LINE - 3.0), &title);
    y += LINE;
    for (cache, cores) in &node.groups {
        let title = cache.map(|cache| format!("L{} {}", cache.level, size(cache.bytes)));
        let title = title.unwrap_or_else(|| "cores".to_owned());
        let height = group_height(cores.len());
        svg.area((x + GAP, y), (node_width() - 2.0 * GAP, height), CACHE, &title);
        svg.text((x + 2.0 * GAP, y + LINE - 4.0), &title);
        for (n, core) in cores.iter().enumerate() {
            let across = x + 2.0 * GAP + (n % ROW) as f64 * (CORE.0 + GAP);
            let down = y + LINE + (n / ROW) as f64 * (CORE.1 + GAP);
            svg.area((across, down), CORE, colour(machine, core), &format!("CPUs {}", core.cpus));
            svg.text((across + 3.0, down + 14.0), &name(core));
        }
        y += height + GAP;
    }
    for device in &node.devices {
        let link = device.link.map(|link| format!(", {link}")).unwrap_or_default();
        let text = format!("{}{link}", device.name);
        let width = text.chars().count() as f64 * LETTER + 2.0 * GAP;
        svg.area((x + GAP, y), (width, LINE), DEVICE, device.pci.as_deref().unwrap_or(""));
        svg.text((x + 2.0 * GAP, y + 12.0), &text);
        y += LINE + GAP;
    }
}

fn colour(machine: &Machine, core: &Core) -> &'static str {
    if is_closed(machine, core) {
        CLOSED
    } else if is_isolated(machine, core) {
        ISOLATED
    } else if core.slow {
        SLOW
    } else {
        USUAL
    }
}

fn draw_legend(svg: &mut Svg, machine: &Machine, y: f64) {
    let mut x = GAP;
    for (fill, text) in [
        (USUAL, "core, by its CPUs"),
        (ISOLATED, "isolated"),
        (SLOW, "slower kind"),
        (CLOSED, "not for this program"),
        (DEVICE, "device"),
    ] {
        svg.area((x, y), (LINE, LINE), fill, text);
        svg.text((x + LINE + GAP, y + 12.0), text);
        x += LINE + 3.0 * GAP + text.chars().count() as f64 * LETTER;
    }
    if !machine.cpus.offline.is_empty() {
        svg.text((GAP, y + 2.0 * LINE), &format!("switched off: CPUs {}", machine.cpus.offline));
    }
}
