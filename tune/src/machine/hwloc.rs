//! Reads a machine with hwloc, which also reads recorded XML.

use std::fs;
use std::path::Path;

use hwlocality::Topology;
use hwlocality::bitmap::Bitmap;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::{OSDeviceType, ObjectType};
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};

use super::cpus::Cpus;
use super::devices::{self, Device, DeviceKind};
use super::error::{HwlocError, MachineError};
use super::model::{Cache, Machine, Node};
use super::{join, nodes, sysfs};
use crate::ids::Ids;
use crate::root::Root;

pub(super) fn system() -> Result<Machine, MachineError> {
    let load = |error: &dyn std::fmt::Display| HwlocError::Load(error.to_string());
    let topology =
        complete(Topology::builder()).and_then(|builder| builder.build().map_err(|e| load(&e)));
    let root = Root::system();
    let topology = topology?;
    let cpus = Cpus::read(&root)?;
    let slow = sysfs::slow(&root, &cpus.online);
    let machine = model(&topology, cpus, &slow, sysfs::processor(&root), &root);
    // hwloc lists devices on a PCI bus; only the kernel's files list software devices.
    let ids: Vec<usize> = machine.nodes.iter().map(|node| node.id).collect();
    let mut devices = devices::read(&root, &ids);
    for device in &mut devices {
        if let Some(seen) = machine.device(&device.name) {
            device.node = seen.node;
        }
    }
    let memory_nodes = nodes::memory_nodes(&root, &machine.nodes);
    // What the kernel's files lack, hwloc does not know either.
    let notes = sysfs::read(&root)?.notes;
    Ok(Machine { devices, memory_nodes, notes, ..machine })
}

pub(super) fn xml(path: &Path) -> Result<Machine, HwlocError> {
    let file = |error: &dyn std::fmt::Display| HwlocError::File {
        path: path.to_owned(),
        answer: error.to_string(),
    };
    // Not with `from_xml_file`, which panics if there is no such file.
    let text = fs::read_to_string(path).map_err(|error| file(&error))?;
    let builder = Topology::builder().from_xml(&text).map_err(|error| file(&error))?;
    let topology = complete(builder)?.build().map_err(|error| file(&error))?;
    let online = ids(&topology.cpuset());
    let cpus = Cpus {
        offline: ids(&topology.complete_cpuset()).without(&online),
        usable: ids(&topology.allowed_cpuset()),
        online,
        ..Cpus::default()
    };
    let kinds: Vec<Ids> = topology.cpu_kinds().map_or_else(
        |_| Vec::new(),
        |kinds| {
            kinds.filter(|kind| kind.efficiency.is_some()).map(|kind| ids(&kind.cpuset)).collect()
        },
    );
    let slow = if kinds.len() > 1 { kinds[0].clone() } else { Ids::default() };
    let packages = topology.objects_with_type(ObjectType::Package);
    let name = packages.filter_map(|package| package.info("CPUModel")).next();
    let processor = name.map(|name| name.to_string_lossy().into_owned());
    // An empty root: files of this machine say nothing about the recorded one.
    Ok(model(&topology, cpus, &slow, processor, &Root::at("/proc/none")))
}

/// Includes disallowed objects and important devices. By default hwloc lists no devices.
fn complete(builder: TopologyBuilder) -> Result<TopologyBuilder, HwlocError> {
    let load = |error: &dyn std::fmt::Display| HwlocError::Load(error.to_string());
    builder
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(|error| load(&error))?
        .with_io_type_filter(TypeFilter::KeepImportant)
        .map_err(|error| load(&error))
}

fn model(
    topology: &Topology,
    cpus: Cpus,
    slow: &Ids,
    processor: Option<String>,
    root: &Root,
) -> Machine {
    let mut notes = Vec::new();
    let nodes = join::without_empty(nodes(topology), &mut notes);
    let node_ids: Vec<usize> = nodes.iter().map(|node| node.id).collect();
    let mut devices: Vec<Device> =
        topology.os_devices().filter_map(|object| device(object, &node_ids, root)).collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices::name_interfaces(&mut devices);
    let packages = join::packages(packages(topology), &cpus.online, &mut notes);
    let sets = cores(topology, &cpus.online, &mut notes);
    Machine {
        memory_nodes: join::with_memory(&nodes).and(&ids(&topology.allowed_nodeset())),
        processor,
        cores: join::cores(sets, &packages, &nodes, slow, &mut notes),
        packages,
        caches: caches(topology),
        cpus,
        nodes,
        devices,
        notes,
    }
}

/// The kernel's numbers in one of hwloc's sets.
fn ids<S: Clone + AsRef<Bitmap>>(set: &S) -> Ids {
    set.as_ref().iter_set().map(usize::from).collect()
}

fn cpus_of(object: &TopologyObject) -> Ids {
    object.cpuset().map(|set| set.iter_set().map(usize::from).collect()).unwrap_or_default()
}

fn packages(topology: &Topology) -> Vec<(Option<usize>, Ids)> {
    let packages = topology.objects_with_type(ObjectType::Package);
    packages.map(|object| (object.os_index(), cpus_of(object))).collect()
}

fn nodes(topology: &Topology) -> Vec<Node> {
    let far = topology.distances_with_name("NUMALatency").unwrap_or_default();
    let far = far.first();
    let mut objects: Vec<&TopologyObject> =
        topology.objects_with_type(ObjectType::NUMANode).collect();
    objects.sort_by_key(|object| object.os_index());
    let distances = |from: &TopologyObject| {
        let to =
            objects.iter().map(|to| far?.object_pair_distance((from, to)).map(|(there, _)| there));
        to.collect::<Option<Vec<u64>>>().unwrap_or_default()
    };
    let mut placed = Ids::default();
    // To a node without CPUs hwloc gives those next to it, which are of another node.
    let mut own = |object: &TopologyObject| {
        let cpus = cpus_of(object).without(&placed);
        placed = placed.or(&cpus);
        cpus
    };
    let node = |object: &&TopologyObject| Node {
        id: object.os_index().unwrap_or(0),
        cpus: own(object),
        memory_bytes: match object.attributes() {
            Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map_or(0, u64::from),
            _ => 0,
        },
        distances: distances(object),
    };
    objects.iter().map(node).collect()
}

/// The CPUs of each core.
fn cores(topology: &Topology, online: &Ids, notes: &mut Vec<String>) -> Vec<Ids> {
    let mut cores: Vec<Ids> = topology.objects_with_type(ObjectType::Core).map(cpus_of).collect();
    let known: Ids = cores.iter().flat_map(Ids::iter).collect();
    cores.extend(join::a_core_each(&online.without(&known), notes));
    cores
}

fn caches(topology: &Topology) -> Vec<Cache> {
    let cache = |object: &TopologyObject| match object.attributes() {
        // hwloc leaves out instruction caches by default.
        Some(ObjectAttributes::Cache(cache)) => Some(Cache {
            level: u8::try_from(cache.depth()).ok()?,
            bytes: cache.size().map_or(0, u64::from),
            cpus: cpus_of(object),
        }),
        _ => None,
    };
    let mut caches: Vec<Cache> = topology.normal_objects().filter_map(cache).collect();
    caches.sort_by_key(|cache| (cache.level, cache.cpus.first()));
    caches
}

fn device(object: &TopologyObject, nodes: &[usize], root: &Root) -> Option<Device> {
    let kind = match object.attributes()? {
        ObjectAttributes::OSDevice(device) => match device.device_type() {
            OSDeviceType::Network => DeviceKind::Net,
            OSDeviceType::OpenFabrics => DeviceKind::Rdma,
            _ => return None,
        },
        _ => return None,
    };
    let name = object.name()?.to_string_lossy().into_owned();
    let on_bus = object.ancestors().find_map(|above| match above.attributes() {
        Some(ObjectAttributes::PCIDevice(pci)) => Some(format!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            pci.domain(),
            pci.bus_id(),
            pci.bus_device(),
            pci.function()
        )),
        _ => None,
    })?;
    let near = object.first_non_io_ancestor().and_then(TopologyObject::nodeset);
    let near: Vec<usize> =
        near.map(|set| set.iter_set().map(usize::from).collect()).unwrap_or_default();
    // A device below several nodes counts as being on none.
    let node = match near[..] {
        [only] => Some(only),
        _ => None,
    };
    let device = devices::on_pci(root, name, kind, on_bus, nodes);
    Some(Device { node, ..device })
}
