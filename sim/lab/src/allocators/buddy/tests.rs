use super::*;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 1).unwrap()
}

#[test]
fn buddy_rounds_requests_up_to_powers_of_two() {
    let table = [(0, 1), (1, 1), (2, 2), (3, 4), (63, 64), (64, 64), (65, 128), (1 << 40, 1 << 40)];
    for (n, rounded) in table {
        assert_eq!(round_up_pow2(n), Some(rounded), "{n}");
    }
    for k in 1..63 {
        assert_eq!(round_up_pow2((1 << k) + 1), Some(1 << (k + 1)));
        assert_eq!(round_up_pow2(1 << k), Some(1 << k));
    }
    assert_eq!(round_up_pow2(usize::MAX), None);
}

#[test]
fn buddy_offset_is_offset_xor_size() {
    for order in 0..8 {
        let size = UNIT << order;
        for offset in (0..UNIT << 8).step_by(size) {
            let buddy = buddy_offset(offset, size);
            assert_eq!(buddy_offset(buddy, size), offset);
            assert_eq!(buddy.abs_diff(offset), size);
            assert_eq!(merged_block_offset(offset, size), offset.min(buddy));
            assert!(merged_block_offset(offset, size).is_multiple_of(2 * size));
        }
    }
}

#[test]
fn sixty_five_bytes_take_a_block_of_128() {
    let mut buddy = Buddy::new(128).unwrap();
    let block = buddy.alloc(layout(65)).unwrap();
    assert_eq!(buddy.range(&block).len() - block.bytes(), 63);
    assert_eq!(63 * 1000 / 128, 492, "49.2 % of the block");
    assert!(buddy.alloc(layout(1)).is_none(), "63 bytes are free, but one byte is refused");
    buddy.free(block);
    assert!(buddy.alloc(layout(1)).is_some());
}

#[test]
fn splits_and_merges_are_counted() {
    let mut buddy = Buddy::new(1024).unwrap();
    assert_eq!(buddy.free_blocks(), [0, 0, 0, 0, 0, 0, 1]);
    let small = buddy.alloc(layout(16)).unwrap();
    assert_eq!((buddy.free_blocks(), buddy.work().splits), (vec![1, 1, 1, 1, 1, 1, 0], 6));
    let second_block = buddy.alloc(layout(16)).unwrap();
    assert_eq!(
        (second_block.at(), buddy.work().splits),
        (16, 6),
        "the buddy must be allocated without a split"
    );
    buddy.free(small);
    assert_eq!((buddy.free_blocks(), buddy.work().merges), (vec![1, 1, 1, 1, 1, 1, 0], 0));
    buddy.free(second_block);
    assert_eq!((buddy.free_blocks(), buddy.work().merges), (vec![0, 0, 0, 0, 0, 0, 1], 6));
    assert_eq!(buddy.work().longest, Some(7), "an operation must inspect each order at most once");
}

#[test]
fn split_buddy_is_not_merged() {
    let mut buddy = Buddy::new(64).unwrap();
    let sibling = buddy.alloc(layout(32)).unwrap();
    let lower_block = buddy.alloc(layout(16)).unwrap();
    buddy.free(sibling);
    assert_eq!((buddy.free_blocks(), buddy.check()), (vec![1, 1, 0], Ok(())));
    buddy.free(lower_block);
    assert_eq!(buddy.free_blocks(), [0, 0, 1]);
}

#[test]
fn buddy_memory_of_112_bytes_starts_as_three_blocks() {
    let mut buddy = Buddy::new(112).unwrap();
    assert_eq!(buddy.free_blocks(), [1, 1, 1]);
    let blocks: Vec<_> = core::iter::from_fn(|| buddy.alloc(layout(1))).collect();
    assert_eq!(blocks.len(), 7);
    blocks.into_iter().for_each(|block| buddy.free(block));
    assert_eq!((buddy.free_blocks(), buddy.check()), (vec![1, 1, 1], Ok(())));
    assert!(Buddy::new(0).is_err() && Buddy::new(24).is_err());
    assert!(buddy.alloc(layout(65)).is_none());
    assert!(buddy.alloc(layout(isize::MAX as usize)).is_none());
    assert!(buddy.alloc(Layout::from_size_align(1, 8192).unwrap()).is_none());
}

/// The free function from the listing of the tutorial "Memory Allocators from Scratch". The tutorial's function
/// computes the merged block in local variables, but writes neither its size nor its free flag to the header.
#[test]
fn free_without_a_header_update_misses_later_merges() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct ListedBlocks {
        size: usize,
        is_free: bool,
    }
    let free = |blocks: &mut std::collections::BTreeMap<usize, ListedBlocks>, mut at: usize, whole: usize| {
        let mut size = blocks[&at].size;
        let mut merges = 0;
        while size < whole {
            match blocks.get(&buddy_offset(at, size)) {
                Some(other) if other.is_free && other.size == size => {}
                _ => break,
            }
            at = merged_block_offset(at, size);
            size *= 2;
            merges += 1;
        }
        merges
    };
    // The memory has 64 bytes, split into two blocks of 16 and a free block of 32.
    let allocated_block = |size| ListedBlocks { size, is_free: false };
    let mut blocks =
        [(0, allocated_block(16)), (16, allocated_block(16)), (32, ListedBlocks { size: 32, is_free: true })]
            .into_iter()
            .collect();
    assert_eq!(free(&mut blocks, 0, 64), 0);
    assert_eq!(blocks[&0], allocated_block(16), "the block is in a free list, but is not marked free");
    assert_eq!(
        free(&mut blocks, 16, 64),
        0,
        "the buddy does not merge with the block, although both are free"
    );

    let mut lab_buddy = Buddy::new(64).unwrap();
    let [first, second] = [16, 16].map(|size| lab_buddy.alloc(layout(size)).unwrap());
    lab_buddy.free(first);
    lab_buddy.free(second);
    assert_eq!((lab_buddy.free_blocks(), lab_buddy.work().merges), (vec![0, 0, 1], 2));
    assert_eq!(lab_buddy.table[0], FREE | 2, "the merged block must have its size and flag");
}

#[test]
fn rounding_cost_depends_on_the_size_distribution() {
    let close = |value: f64, expected: f64| assert!((value - expected).abs() < 0.002, "{value} {expected}");
    let up = |n: u64| round_up_pow2(n as usize).unwrap() as f64;
    let sum = |value_of: &dyn Fn(u64) -> f64| ((1 << 10) + 1..=1_u64 << 20).map(value_of).sum::<f64>();

    // If all sizes are equally likely, blocks occupy 4/3 times the requested bytes, so a quarter of the occupied bytes
    // is waste. The mean, over all sizes, of the ratio of occupied to requested bytes is larger: 2 ln 2.
    close(sum(&up) / sum(&|n| n as f64), 4.0 / 3.0);
    close(1.0 - sum(&|n| n as f64) / sum(&up), 0.25);
    close(sum(&|n| up(n) / n as f64) / sum(&|_| 1.0), 2.0 * core::f64::consts::LN_2);
    // If all octaves are equally likely, size n has weight 1/n. The mean ratio of occupied to requested bytes is 1 / ln
    // 2, the often quoted 1.44.
    let weights = sum(&|n| 1.0 / n as f64);
    close(sum(&|n| up(n) / (n * n) as f64) / weights, core::f64::consts::LOG2_E);
}
