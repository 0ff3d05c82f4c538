//! What an allocation and its free cost at the level of a layer: restartable sequences, the claimed slot and a
//! thread-local `Vec`, in turns, medians of many rounds.
//!
//! `cargo run --release --package uslab-magazine --example pair [rounds]`; its machine code:
//! `objdump -d -M intel --disassemble=pair_rseq target/release/examples/pair`.

use std::cell::RefCell;
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Instant;
use uslab_magazine::{Config, Cpus, Heap, Layer, Round, Supplier};

#[derive(Clone, Copy)]
struct Block(NonNull<u8>);
impl Round for Block {
    fn into_raw(self) -> NonNull<u8> {
        self.0
    }
    unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Self(raw)
    }
}

/// Blocks of 64 bytes, never given back.
struct Blocks;
impl Supplier<Block> for Blocks {
    fn fill(&self, _: u32, max: usize, mut put: impl FnMut(Block)) -> usize {
        for _ in 0..max {
            put(Block(NonNull::from(Box::leak(Box::new([0u64; 8]))).cast()));
        }
        max
    }
    fn flush(&self, rounds: impl Iterator<Item = Block>) {
        rounds.for_each(drop);
    }
}

const PAIRS: u32 = 2_000_000;

/// Writes the first word, as whoever allocates does.
fn touch(block: Block) -> Block {
    // SAFETY: a block is 64 bytes long, aligned to 8, and belongs to whoever took it.
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
    static FREE: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

#[inline(never)]
fn pair_vec() {
    for _ in 0..PAIRS {
        if let Some(block) = FREE.with(|free| free.borrow_mut().pop()) {
            let block = touch(block);
            FREE.with(|free| free.borrow_mut().push(block));
        }
    }
}

fn layer(cpus: Cpus) -> Layer<Block> {
    let config = Config::new(&cpus, 126, 8, 16);
    let memory = Heap::new(Layer::<Block>::footprint(&cpus, &config)).expect("some KiB");
    Layer::new(cpus, config, memory).expect("the footprint suffices")
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(21);
    let (chosen, claimed) = (layer(Cpus::os()), layer(Cpus::os().claimed()));
    FREE.with(|free| Blocks.fill(0, 64, |block| free.borrow_mut().push(block)));
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        for (i, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            match i {
                0 => pair_rseq(&chosen),
                1 => pair_rseq(&claimed),
                _ => pair_vec(),
            }
            times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS));
        }
    }
    let median = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        (t[t.len() / 2], t[t.len() / 10])
    });
    let name = chosen.mechanism().to_string();
    for (name, (median_ns, low)) in
        [name.as_str(), "claimed slot", "thread-local Vec"].into_iter().zip(median)
    {
        println!(
            "{name:17} {median_ns:6.2} ns a pair (tenth {low:.2}), {:.2} of the Vec",
            median_ns / median[2].0
        );
    }
    let stats = chosen.stats();
    println!(
        "{}: {} of {} by magazines, {} aborts",
        stats.mechanism, stats.fast_allocs, stats.allocs, stats.aborts
    );
}
