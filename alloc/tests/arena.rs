//! The arena, compared with a map of bytes.

use doorbell_alloc::{
    Arena, ArenaError, BlockPool, CACHE_LINE, Piece, SharedPool, SizeError, WrongArena,
};

/// xorshift64: the same seed gives the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Marks the bytes of a piece as taken or free; before, all must have been the opposite.
fn mark(bytes: &mut [bool], piece: &Piece, taken: bool) {
    for byte in &mut bytes[piece.range()] {
        assert_ne!(*byte, taken, "{piece:?} overlaps another");
        *byte = taken;
    }
}

#[test]
fn pieces_never_overlap_and_everything_can_be_given_back() {
    for seed in 1..=100_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let len = CACHE_LINE + random.below(100 * CACHE_LINE);
        let mut arena = Arena::new(len).unwrap();
        let whole = arena.len();
        assert!(whole <= len && whole.is_multiple_of(CACHE_LINE) && whole + CACHE_LINE > len);
        let mut bytes = vec![false; len];
        let mut held: Vec<Piece> = Vec::new();
        for _ in 0..400 {
            match random.below(5) {
                0 | 1 => {
                    let asked = 1 + random.below(6 * CACHE_LINE);
                    let align = 1 << random.below(10);
                    match arena.take_aligned(asked, align) {
                        Ok(piece) => {
                            assert!(piece.len() >= asked && piece.len() < asked + CACHE_LINE);
                            assert!(piece.offset().is_multiple_of(align.max(CACHE_LINE)));
                            mark(&mut bytes, &piece, true);
                            held.push(piece);
                        }
                        Err(error) => assert!(refusal_is_true(&bytes[..whole], error), "{error}"),
                    }
                }
                2 if !held.is_empty() => {
                    let piece = held.swap_remove(random.below(held.len()));
                    let at = random.below(piece.len() + CACHE_LINE);
                    let lines = at.is_multiple_of(CACHE_LINE) && at > 0 && at < piece.len();
                    match piece.split_at(at) {
                        Ok((one, two)) => {
                            assert!(lines && one.len() == at && one.range().end == two.offset());
                            held.extend([one, two]);
                        }
                        Err(piece) => {
                            assert!(!lines);
                            held.push(piece);
                        }
                    }
                }
                _ if !held.is_empty() => {
                    let piece = held.swap_remove(random.below(held.len()));
                    mark(&mut bytes, &piece, false);
                    arena.give(piece).unwrap();
                }
                _ => {}
            }
            let taken = bytes.iter().filter(|&&byte| byte).count();
            assert_eq!(arena.taken(), taken, "seed {seed}");
        }
        held.into_iter().for_each(|piece| arena.give(piece).unwrap());
        // Everything is one free range again.
        assert_eq!(arena.taken(), 0);
        assert_eq!(arena.take(whole).unwrap().range(), 0..whole, "seed {seed}");
    }
}

/// Whether the arena was right to refuse.
fn refusal_is_true(bytes: &[bool], error: ArenaError) -> bool {
    let ArenaError::Full { asked, align, longest, .. } = error else { return false };
    let runs = bytes.split(|&taken| taken).map(<[bool]>::len).max().unwrap_or_default();
    let fits = (0..bytes.len()).step_by(align).any(|start| {
        bytes.get(start..start + asked).is_some_and(|part| part.iter().all(|&taken| !taken))
    });
    longest == runs && !fits
}

#[test]
fn impossible_requests_are_typed_errors() {
    let mut arena = Arena::new(1 << 12).unwrap();
    assert_eq!(arena.take(0).unwrap_err(), SizeError::Zero.into());
    assert_eq!(arena.take_aligned(1, 3).unwrap_err(), SizeError::NotAPage { page: 3 }.into());
    assert_eq!(arena.take_aligned(1, 0).unwrap_err(), SizeError::NotAPage { page: 0 }.into());
    for len in [usize::MAX, isize::MAX as usize] {
        let error = arena.take(len).unwrap_err();
        assert!(matches!(error, ArenaError::Size(SizeError::Overflow { .. })), "{error}");
    }
    let full =
        ArenaError::Full { asked: 4096 + CACHE_LINE, align: CACHE_LINE, longest: 4096, len: 4096 };
    assert_eq!(arena.take(4097).unwrap_err(), full);
    let vast = arena.take_aligned(64, 1 << 63).unwrap();
    assert_eq!(vast.offset(), 0);
    assert!(arena.take_aligned(64, 1 << 63).is_err());
    let none = SizeError::NoBlockFits { len: 63, size: CACHE_LINE };
    assert_eq!(Arena::new(63).unwrap_err(), none);
}

#[test]
fn a_piece_of_another_arena_comes_back_to_the_caller() {
    let (mut one, mut two) = (Arena::new(4096).unwrap(), Arena::new(4096).unwrap());
    let piece = one.take(100).unwrap();
    let Err(WrongArena(piece)) = two.give(piece) else { panic!("the wrong arena took it") };
    assert_eq!(two.taken(), 0);
    one.give(piece).unwrap();
    assert_eq!(one.taken(), 0);
}

#[test]
fn pools_of_two_pieces_share_no_byte_of_the_region() {
    let mut arena = Arena::new(1 << 16).unwrap();
    let (first, second) = (arena.take(10_000).unwrap(), arena.take(20_000).unwrap());
    let ranges = [first.range(), second.range()];
    let mut one = BlockPool::within(first, 768).unwrap();
    let shared = SharedPool::within(second, 768).unwrap();
    let mut two = shared.cache(0, 8);
    let mut bytes = vec![false; 1 << 16];
    for (pool, range) in [(&mut one, &ranges[0]), (&mut two, &ranges[1])] {
        let mut count = 0;
        while let Some(block) = pool.take() {
            let offset = pool.offset(block).unwrap();
            assert!(offset >= range.start && offset + 768 <= range.end);
            assert_eq!(pool.index_of(offset), Some(block));
            assert!(bytes[offset..offset + 768].iter().all(|&taken| !taken));
            bytes[offset..offset + 768].fill(true);
            count += 1;
        }
        assert_eq!(count, range.len() / 768);
        assert_eq!(pool.index_of(range.start.wrapping_sub(768)), None);
        (0..pool.count()).for_each(|block| pool.put(block));
    }
    drop(two);
    arena.give(one.close().unwrap().unwrap()).unwrap();
    arena.give(shared.close().unwrap().unwrap()).unwrap();
    assert_eq!(arena.taken(), 0);
}
