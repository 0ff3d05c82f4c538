//! Tests that make each kind of error on purpose, and check that it is detected and named correctly.

use super::super::area::HeapArea;
use super::*;

const OBJECT: Layout = Layout::new::<[u8; 30]>();

fn pool(objects: usize) -> GuardedPool<HeapArea> {
    GuardedPool::new(HeapArea::new(objects * 44, 64).unwrap(), OBJECT).unwrap()
}

fn write_out_of_bounds(target: NonNull<u8>, offset: isize) {
    // SAFETY: the tests write only within the pool's memory, which belongs to them.
    unsafe { target.offset(offset).write(0x11) };
}

#[test]
fn pool_check_detects_broken_guards_on_both_sides() {
    for (offset, side) in
        [(-1, Side::Before), (-4, Side::Before), (-8, Side::Before), (30, Side::After), (33, Side::After)]
    {
        let mut pool = pool(3);
        let objects = [pool.alloc().unwrap(), pool.alloc().unwrap(), pool.alloc().unwrap()];
        assert_eq!(pool.check_all().count(), 0);
        write_out_of_bounds(objects[1], offset);
        let Err(BadFree::Overrun(found)) = pool.check(objects[1]) else {
            panic!("the overwritten byte at {offset} must be detected")
        };
        assert_eq!((found.address, found.side), (objects[1].addr().get(), side));
        assert_eq!(pool.check_all().collect::<Vec<_>>(), [found]);
        assert_eq!((pool.check(objects[0]), pool.check(objects[2])), (Ok(()), Ok(())));
        // SAFETY: the object is not used.
        assert_eq!(unsafe { pool.free(objects[1]) }, Err(BadFree::Overrun(found)));
        assert_eq!(pool.pool().live(), 3, "the slot must stay allocated");
    }
}

#[test]
fn writing_each_byte_of_a_guarded_object_is_valid() {
    let mut pool = pool(2);
    let object = pool.alloc().unwrap();
    // SAFETY: the 30 bytes belong to the test.
    unsafe { object.write_bytes(0xFF, 30) };
    // 8 + 30 + 4 bytes are rounded up to 44, so two bytes are padding.
    write_out_of_bounds(object, 34);
    // SAFETY: the object was allocated above and is no longer used.
    assert_eq!(unsafe { pool.free(object) }, Ok(()));
}

#[test]
fn each_kind_of_invalid_free_returns_its_error() {
    let mut pool = pool(2);
    let object = pool.alloc().unwrap();
    let address = object.addr().get();
    // SAFETY: the objects are not used, and invalid frees are refused.
    unsafe {
        let interior_address = object.add(1);
        assert_eq!(pool.free(interior_address), Err(BadFree::Interior { address: address + 1, slot: 0 }));
        let foreign = object.map_addr(|address| address.checked_add(88).unwrap());
        assert_eq!(pool.free(foreign), Err(BadFree::Foreign { address: address + 88 }));
        let invalid = NonNull::without_provenance(4.try_into().unwrap());
        assert_eq!(pool.free(invalid), Err(BadFree::Foreign { address: 4 }));
        assert_eq!(
            pool.free(object.add(44)),
            Err(BadFree::Double { slot: 1 }),
            "a slot that was never allocated must be refused"
        );
        assert_eq!(pool.free(object), Ok(()));
        assert_eq!(pool.free(object), Err(BadFree::Double { slot: 0 }));
    }
}

#[test]
fn write_to_a_free_object_is_detected_at_reuse() {
    for (offset, side) in
        [(0, Side::Inside), (29, Side::Inside), (-1, Side::Before), (-8, Side::Before), (30, Side::After)]
    {
        let mut pool = pool(3);
        let [a, b] = [pool.alloc().unwrap(), pool.alloc().unwrap()];
        // SAFETY: the object was allocated above and is freed once.
        unsafe {
            pool.free(b).unwrap();
            pool.free(a).unwrap();
        }
        assert_eq!(pool.check_all().count(), 0);
        write_out_of_bounds(a, offset);
        let found = pool.check_all().next().unwrap();
        assert_eq!((found.address, found.side), (a.addr().get(), side), "{offset}");
        // Offset -8 is the link, which the pool does not follow.
        assert_eq!(pool.alloc(), Err(Refused::Corrupt(found)));
        assert_eq!(pool.alloc(), Err(Refused::Corrupt(found)), "the slot must stay damaged");
    }
}

#[test]
fn guarded_pool_overwrites_freed_objects() {
    let mut pool = pool(1);
    let object = pool.alloc().unwrap();
    // SAFETY: the object belongs to the test. After the object's free, the bytes are read as memory of the pool's area,
    // which the test owns.
    unsafe {
        object.write_bytes(0x77, 30);
        pool.free(object).unwrap();
        assert_eq!(core::slice::from_raw_parts(object.as_ptr(), 30), [POISON; 30]);
    }
}

#[test]
fn guarded_pool_reports_leaks_with_file_and_line() {
    let mut pool = pool(4);
    let (first, line) = (pool.alloc().unwrap(), line!());
    let others: Vec<_> = (0..2).map(|_| pool.alloc().unwrap()).collect();
    // SAFETY: the object was allocated above.
    unsafe { pool.free(others[0]) }.unwrap();
    let leaks: Vec<_> = pool.leaks().collect();
    let lines: Vec<_> = leaks.iter().map(|leak| (leak.slot, leak.site.unwrap().line())).collect();
    assert_eq!(lines, [(0, line), (2, line + 1)]);
    let message = leaks[0].to_string();
    assert!(
        message.starts_with("slot 0, 30 bytes at 0x") && message.ends_with(&format!("tests.rs:{line}")),
        "{message}"
    );
    let mut pool = pool.destroy().unwrap_err();
    // The test destroys the four bytes of a source location, which is reported.
    (0..4).for_each(|byte| write_out_of_bounds(first, byte - 8));
    assert_eq!(pool.leaks().next().unwrap().site, None);
    // SAFETY: the object was allocated above.
    unsafe { pool.free(others[1]) }.unwrap();
    assert_eq!(pool.leaks().count(), 1);
}

#[test]
fn guarded_pool_refuses_unaligned_memory() {
    let layout = Layout::from_size_align(5, 32).unwrap();
    let mut pool = GuardedPool::new(HeapArea::new(256, 32).unwrap(), layout).unwrap();
    assert_eq!((pool.pool().blocks(), pool.pool().size()), (4, 64));
    let object = pool.alloc().unwrap();
    assert_eq!(object.addr().get() % 32, 0);
    write_out_of_bounds(object, 5);
    assert!(matches!(pool.check(object), Err(BadFree::Overrun(Overrun { side: Side::After, .. }))));

    let mut memory = super::super::area::StackArea::<256>::new();
    let layout = Layout::from_size_align(5, 4096).unwrap();
    if !memory.lend().memory().cast::<u8>().addr().get().is_multiple_of(4096) {
        assert_eq!(GuardedPool::new(memory.lend(), layout).err(), Some(PoolError::Start { align: 4096 }));
    }
}

#[test]
fn each_source_location_is_stored_once() {
    let mut pool = pool(6);
    let order = [2, 0, 1, 0, 2, 1];
    for place in order {
        match place {
            0 => pool.alloc().unwrap(),
            1 => pool.alloc().unwrap(),
            _ => pool.alloc().unwrap(),
        };
    }
    let lines: Vec<_> = pool.leaks().map(|leak| leak.site.unwrap().line()).collect();
    let first = lines[1];
    assert_eq!(lines, order.map(|place| first + place));
    assert_eq!(pool.sites.len(), 3);
}
