//! Pages move under a program that goes on, and forks.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::*;
use crate::maps::UNREADABLE;
use crate::pages::can_hold;

/// Fresh memory of a program.
struct Memory(Pages);

impl Memory {
    /// Not beside the stack of this thread, where pages do not move.
    fn new(pages: usize) -> Memory {
        let (how, length) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, pages * PAGE);
        let here = ptr::from_ref(&length).addr();
        let mut beside = Vec::new();
        loop {
            let pages = Pages::new(how, -1, length).unwrap();
            let start = pages.at.addr();
            if start + length + 2 * STACK < here || here + 2 * STACK < start {
                return Memory(pages);
            }
            beside.push(pages);
        }
    }

    /// The same memory, longer.
    fn grown(self, pages: usize) -> Memory {
        let (before, length) = (self.0.length, pages * PAGE);
        // SAFETY: nobody else uses these pages.
        let at = unsafe { libc::mremap(self.0.at, before, length, libc::MREMAP_MAYMOVE) };
        assert_ne!(at, libc::MAP_FAILED);
        std::mem::forget(self);
        Memory(Pages { at, length })
    }

    fn start(&self) -> usize {
        self.0.at.addr()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: mapped and aligned; nobody uses it otherwise.
        unsafe { AtomicU64::from_ptr(self.0.at.cast::<u64>().wrapping_add(at)) }
    }

    /// What the kernel says about the page of that number.
    fn area(&self, page: usize) -> Area {
        let at = self.start() + page * PAGE;
        areas(at, at + 1).unwrap()[0]
    }
}

/// Waits until no other of these tests is under way: they leave places to which new memory of
/// another may come. `None`: this system does not let pages move, which is said.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if !can_hold() {
        println!("skipped: userfaultfd is not allowed here");
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Writes what a peer would write.
fn write_as_peer(share: &Share, skip: u64, value: u64) {
    // SAFETY: the descriptor is open as long as the share.
    let fd = unsafe { libc::dup(share.fd) };
    // SAFETY: new.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all_at(&value.to_ne_bytes(), share.offset + skip).unwrap();
}

#[test]
fn a_peer_reaches_the_bytes_of_a_region_until_it_goes() {
    let Some(_alone) = alone() else { return };
    let memory = Memory::new(4);
    memory.word(512).store(5, Ordering::Relaxed);
    // From the second page on, and not from its beginning.
    let share = share(memory.start() + PAGE + 8, PAGE).unwrap();
    assert_eq!(memory.word(512).load(Ordering::Relaxed), 5);
    write_as_peer(&share, 16, 7);
    assert_eq!(memory.word(512 + 1 + 2).load(Ordering::Relaxed), 7);
    let whose = [0, 1, 2, 3].map(|page| memory.area(page).is_private);
    assert_eq!(whose, [true, false, false, true], "two pages have moved");
    // A second region in the same pages.
    let inner = super::share(memory.start() + 2 * PAGE, 8).unwrap();
    drop(share);
    write_as_peer(&inner, 0, 9);
    assert_eq!(memory.word(1024).load(Ordering::Relaxed), 9);
    // SAFETY: open.
    let late = File::from(unsafe { OwnedFd::from_raw_fd(libc::dup(inner.fd)) });
    drop(inner);
    assert!(memory.area(1).is_private && memory.area(2).is_private);
    late.write_all_at(&1_u64.to_ne_bytes(), PAGE as u64).unwrap();
    assert_eq!(memory.word(1024).load(Ordering::Relaxed), 9, "written after the region went");
}

#[test]
fn what_other_threads_write_while_pages_move_is_not_lost() {
    let Some(_alone) = alone() else { return };
    let (memory, ends) = (Memory::new(64), AtomicBool::new(false));
    let words = [0, 40 * 512 + 3, 63 * 512];
    thread::scope(|scope| {
        for word in words.map(|at| memory.word(at)) {
            let ends = &ends;
            scope.spawn(move || {
                let mut own = 0;
                while !ends.load(Ordering::Relaxed) {
                    assert_eq!(word.load(Ordering::Relaxed), own, "a write was lost");
                    own += 1;
                    word.store(own, Ordering::Relaxed);
                }
            });
        }
        let moved = (0..300).filter(|_| share(memory.start(), 64 * PAGE).is_some()).count();
        ends.store(true, Ordering::Relaxed);
        assert_eq!(moved, 300);
    });
}

#[test]
fn a_child_has_memory_of_its_own() {
    let Some(_alone) = alone() else { return };
    let memory = Memory::new(5);
    let share = share(memory.start(), 5 * PAGE).unwrap();
    memory.word(0).store(1, Ordering::Relaxed);
    // Both ends of each page.
    let ends = [1, 511, 513, 1023, 1024, 2047, 2048, 2559];
    ends.iter().for_each(|at| memory.word(*at).store(7, Ordering::Relaxed));
    // SAFETY: the child makes system calls and atomic accesses, no more.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let word = memory.word(512);
        word.store(3, Ordering::Relaxed);
        // The parent writes meanwhile.
        for _ in 0..50 {
            // SAFETY: takes numbers only.
            unsafe { libc::usleep(1000) };
        }
        let is = |at, value| memory.word(at).load(Ordering::Relaxed) == value;
        let fine = is(0, 1) && is(512, 3) && ends.iter().all(|at| is(*at, 7));
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    memory.word(0).store(2, Ordering::Relaxed);
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw what its parent wrote later");
    assert_eq!(memory.word(512).load(Ordering::Relaxed), 0, "the parent sees what its child wrote");
    write_as_peer(&share, 0, 4);
    assert_eq!(memory.word(0).load(Ordering::Relaxed), 4, "the parent's is still shared");
}

/// The same holds after the last region of the range has gone.
#[test]
fn a_child_has_memory_of_its_own_where_a_range_has_grown() {
    let Some(_alone) = alone() else { return };
    let words = [1, 512, 7 * 512];
    for stays in [true, false] {
        let memory = Memory::new(2);
        let share = share(memory.start(), 2 * PAGE).unwrap();
        memory.word(512).store(5, Ordering::Relaxed);
        let memory = memory.grown(8);
        memory.word(7 * 512).store(7, Ordering::Relaxed);
        let share = Some(share).filter(|_| stays);
        let check = |at: usize, value| memory.word(at).load(Ordering::Relaxed) == value;
        // SAFETY: the child makes system calls and atomic accesses, no more.
        let child = unsafe { libc::fork() };
        if child == 0 {
            words.iter().for_each(|at| memory.word(at + 1).store(3, Ordering::Relaxed));
            // The parent writes meanwhile.
            for _ in 0..50 {
                // SAFETY: takes numbers only.
                unsafe { libc::usleep(1000) };
            }
            let fine = check(1, 0) && check(512, 5) && check(7 * 512, 7);
            // SAFETY: ends the child without the parent's handlers.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) };
        }
        words.iter().for_each(|at| memory.word(*at).store(9, Ordering::Relaxed));
        let mut status = 0;
        // SAFETY: room for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw what its parent wrote later");
        let ours = words.iter().all(|at| check(at + 1, 0));
        assert!(ours, "the parent sees what its child wrote");
        drop(share);
    }
}

/// A region may end, and the program may fork, while the map cannot be read.
#[test]
fn a_child_has_memory_of_its_own_where_the_map_cannot_be_read() {
    let Some(_alone) = alone() else { return };
    for ends in [true, false] {
        let memory = Memory::new(2);
        let share = share(memory.start(), 2 * PAGE).unwrap();
        UNREADABLE.set(true);
        let share = Some(share).filter(|_| !ends);
        // The map tells where memory is that has no region.
        UNREADABLE.set(!ends);
        // SAFETY: the child makes system calls and atomic accesses, no more.
        let child = unsafe { libc::fork() };
        if child == 0 {
            memory.word(512).store(3, Ordering::Relaxed);
            // SAFETY: ends the child without the parent's handlers.
            unsafe { libc::_exit(0) };
        }
        UNREADABLE.set(false);
        let mut status = 0;
        // SAFETY: room for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        let found = memory.word(512).load(Ordering::Relaxed);
        assert_eq!(found, 0, "the parent sees what its child wrote ({ends})");
        drop(share);
    }
}

#[test]
fn memory_that_is_not_the_programs_own_stays() {
    let Some(_alone) = alone() else { return };
    let on_stack = [0_u64; 8];
    assert!(share(on_stack.as_ptr().addr(), 64).is_none());
    let constant: &'static str = "constant";
    assert!(share(constant.as_ptr().addr(), 8).is_none());
    let memory = Memory::new(3);
    let kept = share(memory.start(), PAGE).unwrap();
    // It would need the first page under two names.
    assert!(share(memory.start(), 2 * PAGE).is_none());
    drop(kept);
    assert!(share(memory.start(), 2 * PAGE).is_some());
}

/// The head of a thread's arena, which the child of a fork writes to, stays private.
#[test]
fn the_head_of_an_arena_stays() {
    let Some(_alone) = alone() else { return };
    let found = thread::spawn(|| {
        let (block, other) = (vec![1_u8; 4 * PAGE], Memory::new(1));
        let head = block.as_ptr().addr() & !(ARENA - 1);
        assert_eq!(areas(head, head + 1).unwrap()[0].start, head, "no arena begins there");
        let heads = [share(head, 8), share(head + PAGE - 8, 16)];
        (share(other.start(), PAGE).is_some(), heads.map(|share| share.is_some()))
    });
    assert_eq!(found.join().unwrap(), (true, [false, false]));
}

#[test]
fn pages_that_the_program_has_replaced_are_left_alone() {
    let Some(_alone) = alone() else { return };
    let memory = Memory::new(2);
    let share = share(memory.start(), 2 * PAGE).unwrap();
    let fresh = Pages::new(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, PAGE).unwrap();
    // SAFETY: nobody uses these pages now.
    unsafe { fresh.move_to(memory.start() + PAGE) };
    memory.word(512).store(8, Ordering::Relaxed);
    memory.word(0).store(6, Ordering::Relaxed);
    drop(share);
    assert_eq!(memory.word(512).load(Ordering::Relaxed), 8);
    assert_eq!(memory.word(0).load(Ordering::Relaxed), 6);
    assert!(!memory.area(0).is_private, "they do not move back");
}

#[test]
fn new_memory_in_the_place_of_a_range_is_a_range_of_its_own() {
    let Some(_alone) = alone() else { return };
    let memory = Memory::new(2);
    let stale = share(memory.start(), 2 * PAGE).unwrap();
    let fresh = Pages::new(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 2 * PAGE).unwrap();
    // SAFETY: nobody uses these pages now.
    unsafe { fresh.move_to(memory.start()) };
    let share = share(memory.start(), 2 * PAGE).unwrap();
    write_as_peer(&stale, 0, 3);
    write_as_peer(&share, 8, 7);
    drop(stale);
    assert!(!memory.area(0).is_private, "the other region is still there");
    write_as_peer(&share, PAGE as u64, 9);
    let found = [0, 1, 512].map(|at| memory.word(at).load(Ordering::Relaxed));
    assert_eq!(found, [0, 7, 9]);
    drop(share);
    assert!(memory.area(0).is_private);
    assert_eq!(memory.word(1).load(Ordering::Relaxed), 7);
}

/// As `realloc` does with a long block.
#[test]
fn a_range_that_grows_keeps_its_bytes_and_has_more() {
    let Some(_alone) = alone() else { return };
    let memory = Memory::new(2);
    let share = share(memory.start(), 2 * PAGE).unwrap();
    memory.word(512).store(5, Ordering::Relaxed);
    let memory = memory.grown(8);
    assert_eq!(memory.word(512).load(Ordering::Relaxed), 5);
    for page in 2..8 {
        assert_eq!(memory.word(512 * page).load(Ordering::Relaxed), 0);
        memory.word(512 * page).store(7, Ordering::Relaxed);
    }
    drop(share);
    assert_eq!([1, 7].map(|page| memory.word(512 * page).load(Ordering::Relaxed)), [5, 7]);
    // Peers reach it through the link from here on.
    assert!(super::share(memory.start(), 8 * PAGE).is_none());
}
