//! Creates caches one after the other, and drops each of them before one of its objects is freed. The test runs alone
//! in a process, and measures the memory of the process.

use crate::common::{assert_all_memory_returned, subsystem, use_boxes_outliving_cache};
use crate::process::{is_alone, resident};
use uslab::ObjectCache;

#[test]
fn objects_can_outlive_their_dropped_caches() {
    if !is_alone("outlived::objects_can_outlive_their_dropped_caches") {
        return;
    }
    let subsystem = subsystem(2);
    use_boxes_outliving_cache(&subsystem, 1000);
    let (before, pages) = (resident(), subsystem.info().pages.committed_bytes());
    use_boxes_outliving_cache(&subsystem, 200_000);
    let added_bytes = resident().saturating_sub(before);
    assert!(added_bytes < 4 << 20, "the heap grew by {added_bytes} bytes");
    assert!(subsystem.info().pages.committed_bytes() <= pages + (4 << 20));
    assert!(subsystem.info().caches.iter().all(|cache| !cache.name.starts_with("outlived")));
    // The class numbers of the caches can be used again.
    let cache = ObjectCache::builder("last").ctor(|| 7_u64).build_in(&subsystem).unwrap();
    drop(cache.alloc().unwrap());
    assert!(cache.info().in_magazines > 0);
    drop(cache);
    assert_all_memory_returned(&subsystem);
}
