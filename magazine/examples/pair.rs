//! Benchmarks pairs of one allocation and one free on four kinds of stack. Two kinds are per-CPU stacks: one with
//! restartable sequences, and one that a compare-and-exchange claims. The two other kinds are a thread-local `Vec` and
//! a thread-local magazine. A thread-local magazine consists of an array and a length, and is the cheapest possible
//! stack. The benchmark alternates between the four kinds of stack and reports medians.
//!
//! Run `cargo run --release --package uslab-magazine --example pair [rounds]`. To see the machine code, run
//! `objdump -d -M intel --disassemble=pair_rseq target/release/examples/pair`.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Instant;
use uslab_magazine::sync::Arc;
use uslab_magazine::{Config, Cpus, Heap, Layer, Operation, Path, Round, Supplier, Table};

#[derive(Clone, Copy)]
struct Block(NonNull<u8>);
// SAFETY: a `Block` owns its memory, whichever thread holds the `Block`.
unsafe impl Send for Block {}
impl Round for Block {
    fn into_raw(self) -> NonNull<u8> {
        self.0
    }
    unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Self(raw)
    }
}

/// A supplier of 64-byte blocks that are never freed.
struct Blocks;
impl Supplier<Block> for Blocks {
    fn fill(&self, op: &Operation, _: u32, max: usize, mut put: impl FnMut(Block)) -> usize {
        op.did(Path::Slab);
        for _ in 0..max {
            put(Block(NonNull::from(Box::leak(Box::new([0u64; 8]))).cast()));
        }
        max
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = Block>) {
        op.did(Path::Slab);
        rounds.for_each(drop);
    }
}

const PAIRS: u32 = 2_000_000;

/// Writes the first word of the block, as the user of a block would do.
fn touch(block: Block) -> Block {
    // SAFETY: a block has 64 bytes, is aligned to 8, and belongs to the caller.
    unsafe { block.0.cast::<u64>().write(1) };
    black_box(block)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn pair_rseq(layer: &Layer<Block>) {
    for _ in 0..PAIRS {
        if let Some(block) = layer.alloc(&Blocks) {
            layer.free(&Blocks, touch(block));
        }
    }
}

thread_local! {
    static FREE_BLOCKS: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

#[inline(never)]
fn bench_vec_pair() {
    for _ in 0..PAIRS {
        if let Some(block) = FREE_BLOCKS.with(|free| free.borrow_mut().pop()) {
            let block = touch(block);
            FREE_BLOCKS.with(|free| free.borrow_mut().push(block));
        }
    }
}

struct Magazine {
    len: Cell<usize>,
    rounds: [Cell<Option<Block>>; 126],
}
thread_local! {
    static MAGAZINE: Magazine = const { Magazine { len: Cell::new(0), rounds: [const { Cell::new(None) }; 126] } };
}
fn put(block: Block) {
    MAGAZINE.with(|m| {
        if let Some(cell) = m.rounds.get(m.len.get()) {
            cell.set(Some(block));
            m.len.set(m.len.get() + 1);
        }
    });
}

#[inline(never)]
#[unsafe(no_mangle)]
fn pair_magazine() {
    for _ in 0..PAIRS {
        let block = MAGAZINE.with(|m| {
            let last = m.len.get().checked_sub(1)?;
            m.len.set(last);
            m.rounds.get(last)?.get()
        });
        if let Some(block) = block {
            put(touch(block));
        }
    }
}

fn layer(cpus: Cpus) -> Layer<Block> {
    let region = Table::<Heap>::region_bytes(&cpus, false);
    let memory = Heap::new(Table::<Heap>::footprint(&cpus, region)).expect("addresses");
    let table =
        Arc::new(Table::new(cpus, region, memory).expect("the memory must have the size of the footprint"));
    Layer::new(&table, Config::new(64, 17, 16)).expect("the table must have room for a layer")
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(21);
    let (chosen, claimed) = (layer(Cpus::os()), layer(Cpus::os().claimed()));
    FREE_BLOCKS.with(|free| Blocks.fill(&Operation::new(), 0, 64, |block| free.borrow_mut().push(block)));
    Blocks.fill(&Operation::new(), 0, 64, put);
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        for (i, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            match i {
                0 => pair_rseq(&chosen),
                1 => pair_rseq(&claimed),
                2 => bench_vec_pair(),
                _ => pair_magazine(),
            }
            times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS));
        }
    }
    let median = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        (t[t.len() / 2], t[t.len() / 10])
    });
    let name = chosen.mechanism().to_string();
    let names = [name.as_str(), "claimed slot", "thread-local Vec", "thread-local magazine"];
    println!("{:21}  median    p10  ratio to the last row", "ns a pair");
    for (name, (middle, low)) in names.into_iter().zip(median) {
        println!("{name:21} {middle:7.2} {low:6.2} {:8.2} {:.2}", middle / median[3].0, low / median[3].1);
    }
    let stats = chosen.stats();
    println!("{}: {}; {} aborts", stats.mechanism, stats.paths, stats.aborts);
}
