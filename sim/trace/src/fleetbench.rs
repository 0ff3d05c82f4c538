//! Parses Fleetbench's distributions, which describe how often programs of a fleet request each size from
//! malloc.
//!
//! A line is `SIZE, RATE, LIVE`: a size in bytes, how often the size is requested, and the number of live
//! blocks of the size. `RATE` and `LIVE` may have any unit. A distribution is not a trace. The parser
//! therefore generates a trace from the distribution, always the same one. The generated trace begins with allocations
//! in proportion to the column `LIVE`, until one million blocks or 64 MiB are live. After the first allocations, a
//! million allocations and frees follow. Each size is requested at random times, at its rate. If a block lives for
//! `LIVE / RATE` on average, the number of live blocks of its size stays constant (Little's law); lifetimes are
//! exponentially distributed. The sizes, rates and numbers of blocks are taken from a real program, but the order of
//! the frees is random.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::fields;
use super::program::Call;

/// The total size of the blocks that are allocated at the start, in bytes.
const HEAP: f64 = (64 << 20) as f64;

/// The largest number of blocks that are allocated at the start.
const MAX_INITIAL_BLOCKS: f64 = 1e6;

/// The number of allocations and frees that follow the initial blocks.
const OPERATIONS: u64 = 1_000_000;

/// A line of Fleetbench's distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Row {
    bytes: u64,
    rate: f64,
    live: f64,
}

impl Row {
    /// Parses a line; returns `None` if the line has another form.
    pub(super) fn of(line: &[u8]) -> Option<Self> {
        let mut parts = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let bytes = fields::decimal(parts.next()?)?;
        let mut number = || -> Option<f64> {
            let number: f64 = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
            (0.0..1e15).contains(&number).then_some(number)
        };
        let row = Self { bytes, rate: number()?, live: number()? };
        parts.next().is_none().then_some(row)
    }
}

/// Generates the calls of a program whose allocations follow the distribution.
pub(super) fn calls<E>(rows: &[Row], each: impl FnMut(Call) -> Result<(), E>) -> Result<(), E> {
    generate_heap_calls(HEAP, OPERATIONS, rows, each)
}

fn generate_heap_calls<E>(
    heap: f64,
    operations: u64,
    rows: &[Row],
    each: impl FnMut(Call) -> Result<(), E>,
) -> Result<(), E> {
    let asked = WeightedChoice::new(rows, |row| row.rate);
    let there = WeightedChoice::new(rows, |row| row.live);
    let bytes: f64 = rows.iter().map(|row| row.bytes as f64 * row.live).sum();
    // The distribution has no requests, or its blocks take no memory.
    if !(asked.sum > 0.0 && bytes > 0.0) {
        return Ok(());
    }
    let scale = (heap / bytes).min(MAX_INITIAL_BLOCKS / there.sum);
    let mut program = Program { each, scale, block: 0, frees: BinaryHeap::new(), random: Random(0) };
    for _ in 0..(there.sum * scale) as u64 {
        let row = there.pick(&mut program.random);
        program.alloc(&rows[row], 0.0)?;
    }
    let mut next = program.random.exponential(1.0 / asked.sum);
    for _ in 0..operations {
        if !program.free_earliest_block(next)? {
            let row = asked.pick(&mut program.random);
            program.alloc(&rows[row], next)?;
            next += program.random.exponential(1.0 / asked.sum);
        }
    }
    Ok(())
}

struct Program<F> {
    each: F,
    /// The number of live blocks that one unit of the column `LIVE` represents.
    scale: f64,
    block: u64,
    /// The free time of each live block. Times are positive, so their bit patterns have the same order as the times.
    frees: BinaryHeap<Reverse<(u64, u64, bool)>>,
    random: Random,
}

impl<E, F: FnMut(Call) -> Result<(), E>> Program<F> {
    fn alloc(&mut self, row: &Row, now: f64) -> Result<(), E> {
        self.block += 1;
        let call = Call::alloc(self.block, row.bytes, 1);
        let mean = row.live * self.scale / row.rate;
        // A block that is never requested again is never freed.
        if mean.is_finite() {
            let at = now + self.random.exponential(mean);
            self.frees.push(Reverse((at.to_bits(), self.block, call == Call::TooLarge)));
        }
        (self.each)(call)
    }

    /// Frees the block with the earliest free time, if this time is before `then`.
    fn free_earliest_block(&mut self, then: f64) -> Result<bool, E> {
        let Some(&Reverse((at, block, too_large))) = self.frees.peek() else { return Ok(false) };
        if f64::from_bits(at) > then {
            return Ok(false);
        }
        self.frees.pop();
        (self.each)(if too_large { Call::FreeOfTooLarge } else { Call::Free { block } })?;
        Ok(true)
    }
}

/// Chooses a row at random, with a probability in proportion to the row's weight.
struct WeightedChoice {
    /// For each row, the sum of the weights up to this row.
    sums: Vec<f64>,
    sum: f64,
}

impl WeightedChoice {
    fn new(rows: &[Row], weight: impl Fn(&Row) -> f64) -> Self {
        let mut sum = 0.0;
        let add = |row| {
            sum += weight(row);
            sum
        };
        let sums = rows.iter().map(add).collect();
        Self { sums, sum }
    }

    fn pick(&self, random: &mut Random) -> usize {
        let at = random.part() * self.sum;
        self.sums.partition_point(|sum| *sum <= at).min(self.sums.len() - 1)
    }
}

/// The random number generator SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a random number that is at least 0 and less than 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.part())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn generate_calls(heap: f64, operations: u64, rows: &[Row]) -> Vec<Call> {
        let mut calls = vec![];
        let made = generate_heap_calls(heap, operations, rows, |call| -> Result<(), Infallible> {
            calls.push(call);
            Ok(())
        });
        let Ok(()) = made;
        calls
    }

    #[test]
    fn fleetbench_line_has_three_numbers() {
        let row = |line: &str| Row::of(line.as_bytes());
        assert_eq!(
            row("16, 101940.77, 1974305.1"),
            Some(Row { bytes: 16, rate: 101_940.77, live: 1_974_305.1 })
        );
        assert_eq!(row("0,1,2e3\r"), Some(Row { bytes: 0, rate: 1.0, live: 2000.0 }));
        for wrong in [
            "",
            "16, 1",
            "16, 1, 2, 3",
            "-16, 1, 2",
            "a, 1, 2",
            "16, -1, 2",
            "16, NaN, 2",
            "16, 1, inf",
            "16, , 2",
        ] {
            assert_eq!(row(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn generated_calls_follow_the_distribution() {
        let row = |bytes, rate, live| Row { bytes, rate, live };
        let rows = [row(16, 3.0, 10.0), row(64, 1.0, 30.0), row(8 << 20, 0.04, 0.001)];
        // The heap has 100 times the live blocks.
        let heap = 100.0 * (16.0 * 10.0 + 64.0 * 30.0 + (8 << 20) as f64 * 0.001);
        let calls = generate_calls(heap, 40_000, &rows);
        assert_eq!(calls, generate_calls(heap, 40_000, &rows), "the operations are equal in each run");
        let near =
            |found: usize, expected: f64, part: f64| (found as f64 - expected).abs() <= expected * part;
        let allocs = |calls: &[Call], bytes: u32| {
            calls.iter().filter(|call| matches!(call, Call::Alloc { bytes: b, .. } if *b == bytes)).count()
        };
        let (start, then) = calls.split_at(4000);
        assert!(near(allocs(start, 16), 1000.0, 0.1) && near(allocs(start, 64), 3000.0, 0.05));
        assert!(!start.iter().any(|call| matches!(call, Call::Free { .. })));
        let (small, large) = (allocs(then, 16), allocs(then, 64));
        assert!(near(small, 3.0 * large as f64, 0.05), "{small} and {large}");
        // Half of the calls are frees of live blocks, and the number of blocks stays constant.
        let mut live = std::collections::HashMap::new();
        for call in &calls {
            match call {
                Call::Alloc { block, bytes, .. } => assert_eq!(live.insert(block, *bytes), None),
                Call::Free { block } => assert!(live.remove(block).is_some()),
                Call::TooLarge | Call::FreeOfTooLarge => {}
                other => panic!("the stream must not end or fail: {other:?}"),
            }
        }
        let left = |bytes| live.values().filter(|b| **b == bytes).count();
        assert!(near(left(16), 1000.0, 0.15) && near(left(64), 3000.0, 0.1), "{} and {}", left(16), left(64));
        assert!(calls.contains(&Call::TooLarge), "blocks with their own mapping are counted");
    }

    #[test]
    fn empty_and_tiny_distributions_are_handled() {
        let row = |bytes, rate, live| Row { bytes, rate, live };
        for rows in [&[][..], &[row(0, 1.0, 1.0)], &[row(8, 0.0, 1.0)], &[row(8, 1.0, 0.0)]] {
            assert_eq!(generate_calls(1e6, 10, rows), [], "{rows:?}");
        }
        // Blocks that are never requested again stay; the number of small blocks is limited.
        let calls = generate_calls(f64::MAX, 10, &[row(1, 0.0, 1.0), row(1, 1e-9, 1e-9)]);
        assert_eq!(calls.len(), 1_000_010);
    }
}
