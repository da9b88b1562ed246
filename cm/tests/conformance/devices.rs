//! What a device reports about itself and its ports, and what a fork leaves unchanged.
#![expect(unsafe_code, reason = "forks, and looks at what the child got")]

use std::io::{self, Write};
use std::os::fd::AsRawFd;

use doorbell_cm::{Exposed, Fabric};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, Atomics, LinkLayer, PortState};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{Bed, received, send, sent};
use crate::harness::address;

cases! {
    limits_of_the_device_are_said_and_print_as_a_table
    a_port_says_what_it_is
    a_missing_port_or_entry_is_refused
    a_fork_leaves_connections_alone_and_gives_no_buffer_away
}

/// The cases of this program use all of rdma-core that the crate uses.
#[cfg(feature = "verbs")]
#[test]
fn a_program_is_not_linked_to_rdma_core() {
    let program = std::env::current_exe().expect("this program");
    let listed = std::process::Command::new("readelf").arg("--dynamic").arg(program).output();
    let listed = String::from_utf8(listed.expect("binutils").stdout).expect("a table");
    assert!(listed.contains("libc.so"), "{listed}");
    assert!(!listed.contains("libibverbs") && !listed.contains("librdmacm"), "{listed}");
}

fn limits_of_the_device_are_said_and_print_as_a_table<F: Fabric>(bed: &Bed<F>) {
    let caps = bed.fabric.caps();
    let least = [
        (caps.ports.into(), 1),
        (caps.qp_max, 100),
        (caps.cq_max, 100),
        (caps.srq_max, 1),
        (caps.mr_max, 100),
        (caps.mw_max, 1),
        (caps.pd_max, 1),
        (caps.mcast_groups_max, 1),
        (caps.comp_vectors, 1),
        (caps.message_max, 1 << 20),
        (caps.rd_atomic_max.into(), 1),
    ];
    for (at, (said, least)) in least.into_iter().enumerate() {
        assert!(said >= least, "number {at}: {said}");
    }
    assert_ne!(caps.atomics, Atomics::None, "RC-6 holds");
    let text = caps.to_string();
    assert!(text.starts_with(&caps.device) && text.lines().count() > 15, "{text}");
}

fn a_port_says_what_it_is<F: Fabric>(bed: &Bed<F>) {
    let source = bed.fabric.source(address()).expect("its address");
    let port = bed.fabric.query_port(source.port).expect("its port");
    assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
    let packets = [256, 512, 1024, 2048, 4096];
    assert!(packets.contains(&port.active_mtu) && packets.contains(&port.max_mtu), "{port:?}");
    assert!(port.active_mtu <= port.max_mtu);
    assert!(port.message_max >= bed.fabric.caps().message_max);
    assert!(port.gids > source.index.into() && port.pkeys > 0, "{port:?}");
    assert_eq!((port.lid, port.sm_lid), (0, 0), "Ethernet has none");
    let gid = bed.fabric.query_gid(source.port, source.index.into()).expect("its GID");
    assert_eq!(gid, source.gid);
    assert_eq!(bed.fabric.query_pkey(source.port, 0).expect("a key"), 0xffff);
}

fn a_missing_port_or_entry_is_refused<F: Fabric>(bed: &Bed<F>) {
    let (device, ports) = (&bed.fabric, bed.fabric.caps().ports);
    for port in [0, ports + 1, u8::MAX] {
        let errors = [
            device.query_port(port).err(),
            device.query_gid(port, 0).err(),
            device.query_pkey(port, 0).err(),
        ];
        for error in errors {
            assert_eq!(error.expect("refused").code(), Code::Invalid);
        }
    }
    let port = device.query_port(1).expect("the first");
    for beyond in [0, 1, 1000] {
        let (gid, key) = (port.gids + beyond, port.pkeys + beyond);
        assert_eq!(device.query_gid(1, gid).expect_err("refused").code(), Code::Invalid);
        assert_eq!(device.query_pkey(1, key).expect_err("refused").code(), Code::Invalid);
    }
}

/// The child: checks whether it has the page, and waits for a byte. It makes only system calls,
/// because another thread may have held any lock.
fn child(page: *mut libc::c_void, gate: i32) -> ! {
    let mut here = 0_u8;
    // SAFETY: queries one page, and reads one byte into a local variable.
    unsafe {
        let mapped = libc::mincore(page, 1, &raw mut here) == 0;
        libc::read(gate, (&raw mut here).cast(), 1);
        libc::_exit(mapped.into())
    }
}

/// A process is forked off and lives on while messages pass.
fn a_fork_leaves_connections_alone_and_gives_no_buffer_away<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = Exposed::new(&bed.fabric, 4096, Access::REMOTE_WRITE).expect("memory");
    let buffer = bed.filled(64, 7);
    two.queues().post_recv(bed.filled(64, 0)).expect("a receive");
    let (reader, mut gate) = io::pipe().expect("a pipe");
    // A region begins at a page.
    let page = buffer.as_ptr().cast_mut().cast();
    // SAFETY: the child makes system calls only.
    let id = match unsafe { libc::fork() } {
        0 => child(page, reader.as_raw_fd()),
        id => id,
    };
    assert!(id > 0, "the system forks");
    send(&mut one, buffer);
    assert_eq!(received(&mut two).bytes(), [7; 64]);
    assert_eq!(sent(&mut one, &mut two).status, Status::Success);
    for byte in 0..10 {
        two.queues().post_recv(bed.filled(64, 0)).expect("a receive");
        send(&mut one, bed.filled(64, byte));
        assert_eq!(received(&mut two).bytes(), [byte; 64]);
        assert_eq!(sent(&mut one, &mut two).status, Status::Success);
    }
    // Exposed memory is shared: every process sees the same pages.
    let op = SendOp::Write(memory.remote(0));
    one.queues().post_send(bed.filled(64, 9), 64, op, SendFlags::SIGNALED).expect("post");
    sent(&mut one, &mut two).ok().expect("written");
    let mut bytes = [0; 64];
    memory.read(0, &mut bytes).expect("inside");
    assert_eq!(bytes, [9; 64]);
    gate.write_all(&[1]).expect("the child waits");
    let mut status = 0;
    // SAFETY: a child of this process, waited for once.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "it has it");
}
