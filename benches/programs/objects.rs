//! Imitates a cache of objects, each of which holds a large buffer. Shows the cost of the first allocation, and the
//! memory that remains after a burst.

use crate::common::{Parameter, Parameters, Program};
use std::time::{Duration, Instant};
use uslab::ObjectCache;
use uslab_benches::resident::resident;

pub(crate) const PROGRAM: Program = Program {
    name: "objects",
    about: "allocates and frees objects that have a buffer each; the first allocation's time and the resident memory are printed to standard error",
    parameters: &[
        Parameter::new("objects", 1000, 2000, "maximum number of objects in use"),
        Parameter::new("kib", 256, 16, "KiB of each buffer"),
        Parameter::new(
            "construct",
            1,
            1,
            "objects that are constructed at a time: 1 one object, when it first leaves its slab; 2 all objects of a slab",
        ),
        Parameter::new("holds", 1, 1, "size of the buffers: 1 known to the cache; 2 unknown"),
        Parameter::new("ms", 1000, 10, "milliseconds without a call at the end"),
    ],
    run,
};

fn run(parameters: &Parameters) -> u64 {
    let (objects, bytes) = (parameters.size("objects"), parameters.size("kib") << 10);
    let baseline = resident();
    let print_mib =
        |label: &str| eprintln!("{label} {:.1} MiB", (resident() - baseline) / f64::from(1 << 20));
    let builder = ObjectCache::builder("buffers").ctor(move || vec![1_u8; bytes]);
    let builder = if parameters.get("holds") == 1 { builder.holds(bytes) } else { builder };
    let builder = if parameters.get("construct") == 1 { builder } else { builder.construct_slabs() };
    let cache = builder.build().expect("a cache");
    let start = Instant::now();
    let first = cache.alloc().expect("memory");
    eprintln!("first {} us", start.elapsed().as_micros());
    print_mib("one");
    drop(first);
    let all_objects: Result<Vec<_>, _> = (0..objects).map(|_| cache.alloc()).collect();
    let mut all_objects = all_objects.expect("memory");
    (1..)
        .zip(&mut all_objects)
        .for_each(|(number, object)| object[..8].copy_from_slice(&u64::to_ne_bytes(number)));
    let is_intact = (1_u64..).zip(&all_objects).all(|(number, object)| object[..8] == number.to_ne_bytes());
    assert!(is_intact, "corrupted: two objects have one buffer");
    drop(all_objects);
    print_mib("freed");
    std::thread::sleep(Duration::from_millis(parameters.get("ms")));
    print_mib("idle");
    objects as u64 + 1
}
