//! Memory mistakes with three kinds of the server's memory: the 100-byte value of `key`, an entry of the table, and a
//! connection's buffer.

use super::buffer::Buffer;
use super::memory::Memory;
use super::store::{Entry, Store};
use allocator_api2_02::alloc::Allocator;
use nix::sched::CpuSet;
use std::alloc::Layout;
use std::hint::black_box;
use std::ptr::{NonNull, read};
use std::sync::Barrier;

const KEY: &[u8] = b"key";

/// Makes the mistake called `name`; returns `false` if no mistake has this name.
#[inline(never)]
pub(crate) fn make<M: Memory>(store: &Store<M>, name: &[u8], buffer: &mut Buffer<M::Bytes>) -> bool {
    let memory = store.memory();
    let value = || store.get(KEY, |value| NonNull::from(value.expect("a value")));
    match name {
        b"overflow_by_1" => write(value(), 100, 1),
        b"overflow_by_8" => write(value(), 100, 8),
        b"overflow_by_64" => write(value(), 100, 64),
        b"underflow_by_1" => write(value(), -1, 1),
        b"underflow_by_8" => write(value(), -8, 8),
        b"write_after_free" => write(removed(store), 0, 1),
        b"write_after_free_at_the_end" => write(removed(store), 99, 1),
        b"write_after_free_of_all" => write(removed(store), 0, 100),
        b"read_after_free" => _ = black_box(first_byte(removed(store))),
        b"double_free" => {
            let value = value();
            free_first(memory, value);
            free_again(memory, value, value.len());
        }
        b"double_free_later" => free_first(memory, value()),
        b"double_free_by_another_thread" => {
            let value = SharedMemory(value());
            free_first(memory, value.0);
            std::thread::scope(|scope| {
                scope.spawn(|| free_again(memory, value.get(), value.get().len()));
            });
        }
        b"double_free_at_one_moment" => {
            let (value, barrier) = (SharedMemory(value()), Barrier::new(2));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        super::restrict_to_cpus(0..CpuSet::count())
                            .expect("the thread must be able to run on any CPU");
                        barrier.wait();
                        free_first(memory, value.get());
                    });
                }
            });
        }
        b"interior_free" => {
            let value = value();
            // SAFETY: the address is inside the value.
            let interior = unsafe { value.cast::<u8>().add(16) };
            free_again(memory, NonNull::slice_from_raw_parts(interior, 84), 100);
        }
        b"foreign_free" => {
            let foreign = NonNull::from(Box::leak(vec![0_u8; 100].into_boxed_slice()));
            free_again(memory, foreign, 100);
        }
        b"wrong_size" => free_again(memory, value(), 3000),
        b"wrong_cache" => {
            let entry = alloc_entry(memory);
            let bytes = NonNull::from(&*entry).cast();
            let size = size_of::<Entry<M::Bytes>>();
            free_again(memory, NonNull::slice_from_raw_parts(bytes, size), size);
        }
        b"overflow_of_an_entry" => {
            let entry = alloc_entry(memory);
            write(object_bytes(&*entry), size_of_val(&*entry).cast_signed(), 1);
            drop_object(entry);
        }
        b"underflow_of_an_entry" => {
            let entry = alloc_entry(memory);
            write(object_bytes(&*entry), -1, 1);
            drop_object(entry);
        }
        b"overflow_of_a_freed_entry" => {
            let entry = alloc_entry(memory);
            let (bytes, size) = (object_bytes(&*entry), size_of_val(&*entry));
            drop_object(entry);
            write(bytes, size.cast_signed(), 1);
        }
        b"double_free_of_an_entry" => {
            let entry = alloc_entry(memory);
            // SAFETY: unsound on purpose: the second copy is the mistake.
            let copy = unsafe { read(&raw const entry) };
            drop_object(entry);
            drop_again(copy);
        }
        b"overflow_of_a_buffer" => write(object_bytes(buffer), size_of_val(buffer).cast_signed(), 1),
        b"overflow_of_a_buffers_bytes" => {
            // The first byte makes the buffer allocate 16 KiB.
            buffer.push(b"?").expect("memory");
            write(NonNull::from(buffer.bytes()), 16 << 10, 1);
            buffer.consume(1);
        }
        // Each later allocation of the heap gets separate guarded pages.
        b"none_but_guard" => uslab::Uslab.guard_every(1),
        b"leak" => (0..50).for_each(|_| leak_entry(memory)),
        _ => return false,
    }
    true
}

/// Memory that two threads share by mistake.
struct SharedMemory(NonNull<[u8]>);
// SAFETY: the memory is never read.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    fn get(&self) -> NonNull<[u8]> {
        self.0
    }
}

fn object_bytes<T>(object: &T) -> NonNull<[u8]> {
    NonNull::slice_from_raw_parts(NonNull::from(object).cast(), size_of::<T>())
}
/// Removes `key`, and returns the memory of its former value.
fn removed<M: Memory>(store: &Store<M>) -> NonNull<[u8]> {
    let value = store.get(KEY, |value| NonNull::from(value.expect("a value")));
    store.remove(KEY);
    value
}
fn write(memory: NonNull<[u8]>, offset: isize, bytes: usize) {
    // SAFETY: unsound on purpose: the memory is mapped, and the write is the mistake.
    unsafe { black_box(memory.cast::<u8>().offset(offset)).write_bytes(0x77, bytes) };
}
fn first_byte(memory: NonNull<[u8]>) -> u8 {
    // SAFETY: unsound on purpose: the memory is mapped, and the read is the mistake.
    unsafe { memory.cast::<u8>().read_volatile() }
}

#[inline(never)]
fn free_first<M: Memory>(memory: M, value: NonNull<[u8]>) {
    // SAFETY: unsound on purpose: the value stays in the table, which is the mistake.
    unsafe {
        memory.byte_allocator().deallocate(value.cast(), Layout::array::<u8>(value.len()).expect("a size"))
    };
    black_box(value);
}
#[inline(never)]
fn free_again<M: Memory>(memory: M, value: NonNull<[u8]>, size: usize) {
    // SAFETY: unsound on purpose: the free is the mistake.
    unsafe { memory.byte_allocator().deallocate(value.cast(), Layout::array::<u8>(size).expect("a size")) };
    black_box(value);
}
#[inline(never)]
fn alloc_entry<M: Memory>(memory: M) -> M::Object<Entry<M::Bytes>> {
    black_box(memory.alloc_entry().expect("memory"))
}
#[inline(never)]
fn drop_object<T>(object: T) {
    drop(black_box(object));
    black_box(());
}
#[inline(never)]
fn drop_again<T>(object: T) {
    drop(black_box(object));
    black_box((1, 2));
}
#[inline(never)]
fn leak_entry<M: Memory>(memory: M) {
    _ = black_box(memory.byte_allocator().allocate(Layout::new::<[u64; 30]>()));
}
