//! The experiment on rounding to powers of two. Rounding wastes memory, but lets a buddy allocator compute the address
//! of a block's buddy.

use super::Context;
use crate::allocators::{Allocator, Buddy};
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use anyhow::{Context as _, ensure};
use clap::Args;
use core::alloc::Layout;
use uslab::{Geometry, OrderRule};

/// How much memory does a buddy allocator waste, and how much of this waste do slabs on top of it save?
///
/// The experiment requests every size up to the largest exactly once, so it needs no sampling. According to folklore, a
/// quarter of a buddy allocator's memory is wasted; Russell (1977) computed 1.44 times the requested bytes. The waste
/// and the saving depend on the distribution of sizes, and on what is averaged. The output also shows splits and merges
/// step by step, and their counts for each heap size.
#[derive(Debug, Args)]
pub struct Buddies {
    /// The largest size, in bytes, a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 65536, value_parser = largest)]
    largest: usize,
}

fn largest(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|n: &usize| n.is_power_of_two() && (1024..=1 << 22).contains(n));
    bytes.ok_or_else(|| "expected a power of two from 1024 to 4194304".to_owned())
}

/// Weighted sums from which mean ratios over all sizes are computed.
#[derive(Default)]
struct WeightedMeans {
    weight: f64,
    requested: f64,
    taken: f64,
    ratio: f64,
}

impl WeightedMeans {
    fn add(&mut self, requested: usize, allocated_bytes: f64, weight: f64) {
        let requested = requested as f64;
        self.weight += weight;
        self.requested += requested * weight;
        self.taken += allocated_bytes * weight;
        self.ratio += allocated_bytes / requested * weight;
    }
    /// Returns two ratios of taken bytes to requested bytes: the ratio of the sums over all sizes, and the mean of the
    /// ratios of the sizes.
    fn ratios(&self) -> [f64; 2] {
        [self.taken / self.requested, self.ratio / self.weight]
    }
}

fn layout(size: usize) -> anyhow::Result<Layout> {
    Layout::from_size_align(size, 1).context("a size")
}

/// Returns the bytes that a block of `size` takes up.
fn block_bytes(buddy: &mut Buddy, size: usize) -> anyhow::Result<usize> {
    let block =
        buddy.alloc(layout(size)?).with_context(|| format!("no room for {size} bytes in an empty heap"))?;
    let allocated_bytes = buddy.range(&block).len();
    buddy.free(block);
    Ok(allocated_bytes)
}

/// Returns the bytes that an object of `size` bytes takes in a slab of the kernel's geometry, including its share of
/// the slab's unused end.
fn object_bytes_in_slab(size: usize, rule: &OrderRule) -> Option<f64> {
    let geometry = Geometry::new(size, 8, rule).ok()?;
    let slab = geometry.objects() * geometry.stride() + geometry.waste();
    Some(slab as f64 / geometry.objects() as f64)
}

impl Buddies {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "how much does a buddy allocator waste, and how much do slabs on top of it save?";
        let mut findings = Findings::new("buddy", question, context.seed);
        self.waste(&mut findings)?;
        steps(&mut findings)?;
        walk(&mut findings)?;
        Ok(findings)
    }

    fn waste(&self, findings: &mut Findings) -> anyhow::Result<()> {
        let mut buddy = Buddy::new(self.largest)?;
        let rule = OrderRule::for_cpus(4);
        // A separate cache for a size is worthwhile for objects up to a page.
        let slabs_to = 4096.min(self.largest);
        let [mut even_sizes, mut octaves, mut small_sizes, mut slab_sizes] =
            [(); 4].map(|()| WeightedMeans::default());
        let mut curve = Vec::new();
        // Sizes below the smallest block reveal nothing about powers of two.
        for size in 16..=self.largest {
            let bytes = block_bytes(&mut buddy, size)?;
            even_sizes.add(size, bytes as f64, 1.0);
            octaves.add(size, bytes as f64, 1.0 / size as f64);
            if size <= slabs_to {
                small_sizes.add(size, bytes as f64, 1.0);
                slab_sizes.add(
                    size,
                    object_bytes_in_slab(size, &rule).context("a geometry for each size up to a page")?,
                    1.0,
                );
            }
            if size <= 1024 && size.is_multiple_of(4) {
                curve.push((size as f64, bytes as f64 / size as f64));
            }
        }
        let mut table = Table::new(
            "Memory used, divided by the requested bytes",
            &["sizes", "all taken of all asked", "mean of each size's own", "wasted, % of what is taken"],
        );
        let range = format!("16 to {}", self.largest);
        let page = format!("16 to {slabs_to}");
        let rows = [
            (format!("{range}, uniform"), even_sizes.ratios()),
            (format!("{range}, uniform in each doubling"), octaves.ratios()),
            (format!("{page}, uniform"), small_sizes.ratios()),
            (format!("{page}, with slabs for each size"), slab_sizes.ratios()),
        ];
        for (name, [all, largest_only]) in &rows {
            let wasted = Value::Number((1.0 - 1.0 / all) * 100.0, 1);
            table.row(vec![
                name.as_str().into(),
                Value::Number(*all, 3),
                Value::Number(*largest_only, 3),
                wasted,
            ]);
        }
        findings.table(table);
        let ([even_all, _], [_, octaves_own]) = (rows[0].1, rows[1].1);
        findings.claim(Claim {
            says: "a buddy allocator takes about 1.44 times the requested bytes".into(),
            source: "Russell 1977, as the tutorial Memory Allocators from Scratch cites it".into(),
            found: format!(
                "if all doublings of sizes are equally frequent, blocks occupy {octaves_own:.3} times the requested bytes; if all sizes are equally frequent, they occupy {even_all:.3} times these bytes"
            ),
            holds: if (octaves_own - 1.44).abs() < 0.01 { Holds::Partly } else { Holds::No },
            measured: false,
        });
        let wasted = (1.0 - 1.0 / even_all) * 100.0;
        findings.claim(Claim {
            says: "a buddy allocator wastes a quarter of its memory".into(),
            source: "folklore".into(),
            found: format!(
                "{wasted:.1} % of the used memory is wasted if all sizes are equally frequent: in this case the folklore is exact"
            ),
            holds: if (wasted - 25.0).abs() < 1.0 { Holds::Partly } else { Holds::No },
            measured: false,
        });
        let block_of_65 = block_bytes(&mut buddy, 65)?;
        let waste_percent = (block_of_65 - 65) as f64 * 100.0 / block_of_65 as f64;
        findings.claim(Claim {
            says: "65 bytes use a block of 128, of which 49 % are waste".into(),
            source: "Memory Allocators from Scratch".into(),
            found: format!(
                "the block has {block_of_65} bytes, of which {waste_percent:.1} % are wasted and cannot be used while the block is allocated"
            ),
            holds: if block_of_65 == 128 { Holds::Yes } else { Holds::No },
            measured: false,
        });
        findings.claim(Claim {
            says: "put slabs over the buddy rather than hand it raw sizes".into(),
            source: "Memory Allocators from Scratch".into(),
            found: format!(
                "{:.3} times the requested bytes are used with slabs, and {:.3} times without slabs",
                rows[3].1[0], rows[2].1[0]
            ),
            holds: if rows[3].1[0] < rows[2].1[0] { Holds::Yes } else { Holds::No },
            measured: false,
        });
        findings.chart(Chart {
            title: "Memory taken by a size".into(),
            x: Axis::linear("requested bytes"),
            y: Axis::linear("times the requested bytes"),
            series: vec![Series { name: "buddy".into(), points: curve }],
            measured: false,
        });
        Ok(())
    }
}

/// Counts the splits and merges if one small block is allocated and freed in an empty heap.
fn steps(findings: &mut Findings) -> anyhow::Result<()> {
    let mut table = Table::new(
        "Allocating the smallest block from an empty heap, and freeing it",
        &["heap, bytes", "splits", "merges", "log2 of the heap's smallest blocks"],
    );
    let mut logarithmic = true;
    for shift in [8, 12, 16, 20, 24] {
        let mut buddy = Buddy::new(1 << shift)?;
        let block = buddy.alloc(layout(16)?).context("room in an empty heap")?;
        let splits = buddy.work().splits;
        buddy.free(block);
        let merges = buddy.work().merges;
        logarithmic &= splits == shift - 4 && merges == shift - 4;
        table.row(vec![(1_u64 << shift).into(), splits.into(), merges.into(), (shift - 4).into()]);
    }
    findings.table(table);
    findings.claim(Claim {
        says: "an allocation and a free cost the logarithm of the heap at most".into(),
        source: "Knowlton 1965".into(),
        found: "as many splits and merges as the heap has orders, from end to end".into(),
        holds: if logarithmic { Holds::Yes } else { Holds::No },
        measured: false,
    });
    Ok(())
}

/// Shows the states of a heap of 1024 bytes, step by step; the free lists are shown in the form of `/proc/buddyinfo`.
fn walk(findings: &mut Findings) -> anyhow::Result<()> {
    let mut buddy = Buddy::new(1024)?;
    let orders = ["16", "32", "64", "128", "256", "512", "1024"];
    let columns = [&["step", "block"], &orders[..]].concat();
    let mut table = Table::new("1024 bytes: free blocks of each size", &columns);
    let mut blocks = Vec::new();
    let mut row = |buddy: &Buddy, step: String, block: String| {
        let free = buddy.free_blocks();
        table.row([vec![step.into(), block.into()], free.into_iter().map(Value::from).collect()].concat());
    };
    row(&buddy, "begin".into(), String::new());
    for size in [65, 200, 30, 100] {
        let block = buddy.alloc(layout(size)?).context("room")?;
        let range = buddy.range(&block);
        row(&buddy, format!("allocate {size}"), format!("{}..{}", range.start, range.end));
        blocks.push((size, block));
    }
    // The first and the last block are buddies: they merge when both are free.
    for i in [1, 0, 1, 0] {
        ensure!(i < blocks.len(), "the workload has more frees than allocations");
        let (size, block) = blocks.remove(i);
        let range = buddy.range(&block);
        buddy.free(block);
        row(&buddy, format!("free {size}"), format!("{}..{}", range.start, range.end));
    }
    findings.table(table);
    Ok(())
}
