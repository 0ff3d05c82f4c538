use super::*;

/// The size of a header in bytes, and the unit of block sizes.
const HEADER: usize = 4;
const UNIT: usize = 16;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 1).unwrap()
}

/// Returns a heap, together with its used blocks. The used blocks separate free blocks of the given sizes, headers
/// included; the rest of the heap is free.
fn heap_with_free_blocks(
    bytes: usize,
    sli: u32,
    search: Search,
    sizes: &[usize],
) -> (Tlsf, Vec<MemoryPiece>) {
    let mut tlsf = Tlsf::new(bytes, sli, search).unwrap();
    let mut used_blocks = vec![];
    let mut freed = vec![];
    for size in sizes {
        freed.push(tlsf.alloc(layout(size - HEADER)).unwrap());
        used_blocks.push(tlsf.alloc(layout(12)).unwrap());
    }
    freed.into_iter().for_each(|block| tlsf.free(block));
    assert_eq!(tlsf.check(), Ok(()));
    (tlsf, used_blocks)
}

#[test]
fn tlsf_demo_shows_both_bitmap_scans() {
    // Each doubling has four classes (`sli` is 2), and the smallest block has 16 bytes. The free blocks have 48 bytes
    // (fl 1, sl 2), 96 bytes (fl 2, sl 2), and the rest of the 1024 bytes.
    let (mut tlsf, _used_blocks) = heap_with_free_blocks(1024, 2, Search::Bitmaps, &[48, 96]);
    let rest_class = tlsf.classes().of(1024 - 16 - 48 - 96 - 32);
    assert_eq!(rest_class, Class { fl: 5, sl: 2 });
    let (fl_bitmap, sl_bitmaps) = tlsf.blocks.bitmaps();
    assert_eq!((fl_bitmap, sl_bitmaps[1], sl_bitmaps[2]), (0b10_0110, 0b100, 0b100));
    // A request for 44 bytes needs 48 bytes with its header. One scan finds the free block in the class of 48 bytes.
    assert_eq!(tlsf.blocks.find(tlsf.blocks.first_class(48, 1).unwrap()), (Some(Class { fl: 1, sl: 2 }), 1));
    // A request for 60 bytes needs 64 bytes with its header. The search begins at doubling 2; one scan finds step 2.
    assert_eq!(tlsf.blocks.find(tlsf.blocks.first_class(64, 1).unwrap()), (Some(Class { fl: 2, sl: 2 }), 1));
    // A search from doubling 3, step 0 scans the second level, the first level, and the second level again.
    assert_eq!(tlsf.blocks.find(Class { fl: 3, sl: 0 }), (Some(rest_class), 3));
    assert_eq!(tlsf.blocks.find(Class { fl: 5, sl: 3 }), (None, 2));
    assert_eq!(tlsf.blocks.find(Class { fl: 9, sl: 0 }), (None, 0));
    let block = tlsf.alloc(layout(44)).unwrap();
    let (fl_bitmap, sl_bitmaps) = tlsf.blocks.bitmaps();
    assert_eq!((block.at(), sl_bitmaps[1], fl_bitmap), (16, 0, 0b10_0100), "the list was popped");
}

#[test]
fn tlsf_skips_a_fitting_block_in_the_lower_class() {
    let (mut tlsf, mut used_blocks) = heap_with_free_blocks(512, 2, Search::Bitmaps, &[144]);
    while tlsf.holes().count > 1 {
        used_blocks.push(tlsf.alloc(layout(300)).or_else(|| tlsf.alloc(layout(12))).unwrap());
    }
    // The only free block has 144 bytes and is in class 128..159. A search for 144 bytes begins at class 160.
    assert_eq!(tlsf.holes().largest, 140);
    assert!(tlsf.alloc(layout(140)).is_none());
    assert!(tlsf.alloc(layout(124)).is_some(), "128 begins a class");
}

#[test]
fn tlsf_block_is_not_rounded_up_to_its_class() {
    for sli in 2..=5 {
        let mut tlsf = Tlsf::new(4 << 20, sli, Search::Bitmaps).unwrap();
        for size in (1..=1 << 20).step_by(997) {
            let block = tlsf.alloc(layout(size)).unwrap();
            let used_bytes = tlsf.range(&block).len() + HEADER;
            assert!(used_bytes - size < UNIT + HEADER, "{size} bytes take {used_bytes}");
            tlsf.free(block);
        }
    }
}

#[test]
fn search_without_bitmaps_reads_each_list_head() {
    let longest = |search| {
        let mut tlsf = Tlsf::new(64 << 10, 4, search).unwrap();
        tlsf.alloc(layout(12)).unwrap();
        tlsf.work().longest
    };
    // The heap has 12 doublings of 16 classes, from 16 bytes to 64 KiB; the free block is in doubling 11.
    assert_eq!((longest(Search::Bitmaps), longest(Search::Scan)), (Some(3), Some(12 * 16)));
}

#[test]
fn bitmap_search_and_scan_find_equal_classes() {
    let sizes: Vec<_> = (1..40).map(|i| 16 * i * i).collect();
    let (tlsf, _used_blocks) = heap_with_free_blocks(1 << 20, 4, Search::Bitmaps, &sizes);
    for fl in 0..18 {
        for sl in 0..16 {
            let class = Class { fl, sl };
            assert_eq!(tlsf.blocks.find(class).0, scan_list_heads(&tlsf.blocks, class).0, "{class:?}");
        }
    }
}

#[test]
fn tlsf_free_merges_both_neighbours() {
    let mut tlsf = Tlsf::new(1024, 4, Search::Bitmaps).unwrap();
    let initial_holes = tlsf.holes();
    assert_eq!(initial_holes, Holes { count: 1, largest: 1004, total: 1004 });
    let [a, b, c] = [100; 3].map(|size| tlsf.alloc(layout(size)).unwrap());
    tlsf.free(a);
    tlsf.free(c);
    tlsf.free(b);
    assert_eq!((tlsf.holes(), tlsf.work().merges, tlsf.check()), (initial_holes, 3, Ok(())));
}

#[test]
fn tlsf_serves_aligned_requests() {
    let mut tlsf = Tlsf::new(8192, 5, Search::Bitmaps).unwrap();
    let aligned = tlsf.alloc(Layout::from_size_align(100, 4096).unwrap()).unwrap();
    assert_eq!((aligned.at(), tlsf.check()), (4096, Ok(())));
    assert!(tlsf.alloc(Layout::from_size_align(1, 8192).unwrap()).is_none());
    assert!(tlsf.alloc(layout(isize::MAX as usize)).is_none());
    tlsf.free(aligned);
    let mut small = Tlsf::new(32, 2, Search::Bitmaps).unwrap();
    assert!(small.alloc(layout(13)).is_none());
    let all = small.alloc(layout(12)).unwrap();
    assert_eq!((small.holes(), small.check()), (Holes::default(), Ok(())));
    small.free(all);
    assert_eq!(small.holes().count, 1);
}

#[test]
fn tlsf_control_data_takes_a_few_kilobytes() {
    let control = |bytes, sli| Tlsf::new(bytes, sli, Search::Bitmaps).unwrap().control_bytes();
    // A heap of 4 MiB has 19 doublings, each with 16 list heads and a bitmap, and one bitmap of all doublings.
    assert_eq!(control(4 << 20, 4), 19 * (16 + 1) * 4 + 4);
    assert_eq!(control(4 << 20, 5), 19 * (32 + 1) * 4 + 4);
    assert_eq!(HEADER, 4);
    let error = Tlsf::new(1024, 6, Search::Scan).unwrap_err();
    assert_eq!(error.to_string(), "second-level bits 6: expected 2 to 5");
}
