//! Puts the heap of a program in slabs: one line at the top makes all allocations use uslab.
//!
//! ```console
//! $ cargo run --release -p uslab --example global_allocator
//! $ USLAB_OPTIONS=stats=1 cargo run --release -p uslab --example global_allocator    # with the table of caches
//! ```

use std::collections::BTreeMap;
use uslab::Uslab;

#[global_allocator]
static ALLOCATOR: Uslab = Uslab;

type Counts = BTreeMap<String, usize>;

/// Counts the occurrences of each word, with one thread per line.
fn count(text: &str) -> Counts {
    let mut sum = Counts::new();
    std::thread::scope(|scope| {
        let count = |line: &str| {
            line.split_whitespace().fold(Counts::new(), |mut counts, word| {
                *counts.entry(word.to_owned()).or_default() += 1;
                counts
            })
        };
        let threads: Vec<_> = text.lines().map(|line| scope.spawn(move || count(line))).collect();
        for (word, n) in threads.into_iter().filter_map(|thread| thread.join().ok()).flatten() {
            *sum.entry(word).or_default() += n;
        }
    });
    sum
}

fn main() {
    let text = "a slab is a page\na page is a frame\nand a frame is a frame\n".repeat(20);
    let counts = count(&text);
    println!("{counts:?}");
    let Some(info) = Uslab.info() else { unreachable!("the program must have allocated memory") };
    let (allocs, frees) = info.caches.iter().fold((0, 0), |(a, f), c| (a + c.allocs, f + c.frees));
    println!("{allocs} allocations and {frees} frees, by where they were served: {}", info.paths());
}
