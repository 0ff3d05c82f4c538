//! What one allocation and its free cost, hot: the same object over and over, its first word written.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use uslab::{Gfp, KmemCache, Magazines, ObjectCache, Subsystem};

fn pair(c: &mut Criterion) {
    let mut group = c.benchmark_group("pair");
    for size in [16, 64, 256, 1024] {
        let cache = KmemCache::builder(format!("pair-{size}"), size).build().expect("a cache");
        group.bench_function(format!("kmem_cache/{size}"), |b| {
            b.iter(|| {
                let object = cache.alloc(Gfp::KERNEL).expect("an object");
                // SAFETY: allocated above from this cache with at least 16 bytes, freed once.
                unsafe {
                    object.cast::<u64>().write(1);
                    cache.free(black_box(object));
                }
            });
        });
        group.bench_function(format!("system/{size}"), |b| {
            b.iter(|| {
                let mut bytes = Vec::<u8>::with_capacity(size);
                bytes.push(1);
                black_box(bytes);
            });
        });
    }
    let plain = KmemCache::builder("no-magazines", 64).magazines(Magazines::Off).build().expect("a cache");
    group.bench_function("kmem_cache_without_magazines/64", |b| {
        b.iter(|| {
            let object = plain.alloc(Gfp::KERNEL).expect("an object");
            // SAFETY: as above.
            unsafe {
                object.cast::<u64>().write(1);
                plain.free(black_box(object));
            }
        });
    });
    let typed = ObjectCache::<[u64; 8]>::builder("typed").ctor(|| [0; 8]).build().expect("a cache");
    group.bench_function("object_cache/64", |b| {
        b.iter(|| {
            let mut object = typed.alloc().expect("an object");
            object[0] = 1;
            black_box(object);
        });
    });
    let kmalloc = Subsystem::global().expect("the global subsystem").kmalloc();
    group.bench_function("kmalloc/64", |b| {
        b.iter(|| {
            let memory = kmalloc.alloc(black_box(64), Gfp::KERNEL).expect("memory");
            // SAFETY: allocated above from this kmalloc with 64 bytes, freed once.
            unsafe {
                memory.cast::<u64>().write(1);
                kmalloc.free(black_box(memory));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, pair);
criterion_main!(benches);
