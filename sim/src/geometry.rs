//! The command `uslab geometry`: computes the slab geometry of any object size, and compares the kernel's
//! caches with the rule, row by row.

use crate::output;
use crate::slabs::Snapshot;
use anyhow::{Context, bail};
use serde::Serialize;
use std::fmt;
use uslab::info::Row;
use uslab::{Geometry, OrderRule, SizeClass};

/// The slab geometry of several object sizes.
#[derive(Debug, Serialize)]
pub struct Layouts {
    /// The number of present CPUs, which determines slab orders.
    pub cpus: u32,
    /// One row for each size.
    pub rows: Vec<Layout>,
}

/// The slab geometry of one object size.
#[derive(Debug, Serialize)]
pub struct Layout {
    /// The requested object size in bytes.
    pub size: usize,
    /// The distance from one object to the next, in bytes.
    pub slab_size: usize,
    /// The order of a slab, which has `2^order` pages.
    pub order: u8,
    /// The number of objects in a slab.
    pub objs_per_slab: usize,
    /// The padding that alignment adds between the objects of a slab, in bytes.
    pub padding: usize,
    /// The bytes of a slab that belong to no object: the padding between objects, and the space after the last object.
    pub waste: usize,
    /// The percentage of a slab's bytes that belong to no object.
    pub waste_percent: f64,
}

/// Returns the geometry for `sizes`, or for kmalloc's classes if `sizes` is empty.
///
/// # Errors
/// Fails if a slab cannot hold objects of a given size or alignment.
pub fn table(sizes: &[usize], align: usize, rule: &OrderRule) -> anyhow::Result<Layouts> {
    let classes: Vec<usize> = SizeClass::all().map(SizeClass::size).collect();
    let sizes = if sizes.is_empty() { &classes } else { sizes };
    let rows = sizes.iter().map(|&size| {
        let geometry =
            Geometry::new(size, align, rule).with_context(|| format!("size {size}, --align {align}"))?;
        let slab = geometry.order().bytes();
        let padding = geometry.objects() * (geometry.stride() - size);
        let waste = padding + geometry.waste();
        Ok(Layout {
            size,
            slab_size: geometry.stride(),
            order: geometry.order().get(),
            objs_per_slab: geometry.objects(),
            padding,
            waste,
            waste_percent: 100.0 * waste as f64 / slab as f64,
        })
    });
    Ok(Layouts { cpus: rule.present_cpus, rows: rows.collect::<anyhow::Result<_>>()? })
}

impl fmt::Display for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table =
            output::table(&["object", "stride", "order", "pages", "objects/slab", "waste", "waste %"]);
        for row in &self.rows {
            table.add_row([
                row.size.to_string(),
                row.slab_size.to_string(),
                row.order.to_string(),
                (1u32 << row.order).to_string(),
                row.objs_per_slab.to_string(),
                row.waste.to_string(),
                format!("{:.2}", row.waste_percent),
            ]);
        }
        writeln!(
            f,
            "Slabs on a machine with {} CPUs, sizes in bytes; waste is the bytes of a slab that no object uses:\n",
            self.cpus
        )?;
        f.write_str(&output::text(&table))
    }
}

/// A comparison of Linux's geometry rule with a kernel.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The source of the kernel's table, for example a file name.
    pub source: String,
    /// The number of present CPUs.
    pub cpus: u32,
    /// `true` if no table names the number of CPUs. If no table names the number of CPUs, `cpus` is the largest number
    /// for which the rule gives the slab orders in the table.
    pub cpus_guessed: bool,
    /// The number of caches compared.
    pub rows: usize,
    /// The number of caches whose order and number of objects per slab match the rule.
    pub matched: usize,
    /// The caches that differ.
    pub mismatches: Vec<GeometryMismatch>,
    /// Kernel options under which more caches would match the rule.
    pub explanation: Option<Explanation>,
    /// The number of rows that cannot be compared, because they are unreadable, or lack an object size or objects.
    pub left_out: Vec<String>,
    /// The reason why the kernel does not use Linux's usual geometry rule, if the reason is known.
    pub other_rule: Option<String>,
}

/// A cache whose slab geometry differs from the rule.
#[derive(Debug, Serialize)]
pub struct GeometryMismatch {
    /// The cache's name.
    pub name: String,
    /// The distance from one object to the next, in bytes.
    pub slab_size: u64,
    /// The slab order in the kernel, and the slab order by Linux's rule.
    pub order: [u8; 2],
    /// The number of objects per slab in the kernel, and by Linux's rule.
    pub objs_per_slab: [u64; 2],
}

/// Kernel options that explain differences from the geometry rule.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The options in the form of the kernel's command line, and the equivalent options of `uslab geometry`.
    pub settings: String,
    /// The number of caches that match the rule with these options.
    pub matched: usize,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} of {} caches have the same order and objects per slab as the rule gives for {} CPUs",
            self.source, self.matched, self.rows, self.cpus
        )?;
        if self.cpus_guessed {
            writeln!(
                f,
                "No table names the number of CPUs. {} CPUs are assumed, the most that agree with the orders. `--cpus N` sets the number.",
                self.cpus
            )?;
        }
        for left_out in &self.left_out {
            writeln!(f, "Left out: {left_out}")?;
        }
        if self.mismatches.is_empty() {
            return Ok(());
        }
        let mut table =
            output::table(&["cache", "stride", "order there", "here", "objects/slab there", "here"]);
        for m in &self.mismatches {
            table.add_row([
                m.name.clone(),
                m.slab_size.to_string(),
                m.order[0].to_string(),
                m.order[1].to_string(),
                m.objs_per_slab[0].to_string(),
                m.objs_per_slab[1].to_string(),
            ]);
        }
        writeln!(f, "\n{}", output::text(&table))?;
        match (&self.other_rule, &self.explanation) {
            (Some(cause), _) => writeln!(f, "{cause}"),
            (None, Some(Explanation { settings, matched })) => {
                writeln!(f, "With the options {settings}, {matched} of {} caches match the rule.", self.rows)
            }
            (None, None) => writeln!(
                f,
                "Neither another number of CPUs nor slab_min_order, slab_max_order or slab_min_objects explains more of these differences."
            ),
        }
    }
}

/// Returns the slab order and the number of objects per slab that the rule gives for a slabinfo row.
fn slab_layout_by_rule(row: &Row, rule: &OrderRule) -> Option<(u8, u64)> {
    let geometry = Geometry::new(row.object_size as usize, 0, rule).ok()?;
    Some((geometry.order().get(), geometry.objects() as u64))
}

fn kernel_layout(row: &Row) -> (u8, u64) {
    (row.pages_per_slab.checked_ilog2().unwrap_or(0) as u8, row.objects_per_slab)
}

/// Returns the kernel options with which the most rows match; among equally good options, the options closest to
/// `rule`.
fn explanation(rows: &[Row], rule: &OrderRule, matched: usize) -> Option<Explanation> {
    let cpus = (1..=13).map(|bits| (1_u32 << bits) - 1).chain([rule.present_cpus]);
    let mut rules = vec![];
    for cpus in cpus {
        for max_order in 0..=6 {
            for min_order in 0..=max_order {
                for min_objects in [0, 1, 2, 4, 8, 16, 32, 64, 128] {
                    rules.push(OrderRule { min_order, max_order, min_objects, ..OrderRule::for_cpus(cpus) });
                }
            }
        }
    }
    // The weight of the difference between two rules: the larger, the less likely. The rule uses only the bit length of
    // the number of CPUs.
    let changes = |other: &OrderRule| {
        let differs = [
            (other.present_cpus.ilog2() != rule.present_cpus.ilog2(), 2),
            (other.max_order != rule.max_order, 2),
            (other.min_order != rule.min_order, 2),
            (other.min_objects != rule.min_objects, 3),
        ];
        differs.into_iter().map(|(differs, weight)| if differs { weight } else { 0 }).sum::<usize>()
    };
    let fits = |other: &OrderRule| {
        rows.iter().filter(|row| slab_layout_by_rule(row, other) == Some(kernel_layout(row))).count()
    };
    let best = rules
        .iter()
        .map(|other| (fits(other), usize::MAX - changes(other), other))
        .max_by_key(|(fits, few, _)| (*fits, *few));
    let (fits, _, best) = best.filter(|(fits, ..)| *fits > matched)?;
    let mut settings = vec![];
    if best.present_cpus.ilog2() != rule.present_cpus.ilog2() {
        let (least, most) = (1 << best.present_cpus.ilog2(), best.present_cpus);
        settings.push(if least == most {
            "--cpus 1".to_owned()
        } else {
            format!("--cpus {least} to {most}")
        });
    }
    if best.max_order != rule.max_order {
        settings.push(format!("slab_max_order={0} (--max-order {0})", best.max_order));
    }
    if best.min_order != rule.min_order {
        settings.push(format!("slab_min_order={0} (--min-order {0})", best.min_order));
    }
    if best.min_objects != rule.min_objects {
        settings.push(format!("slab_min_objects={0} (--min-objects {0})", best.min_objects));
    }
    Some(Explanation { settings: settings.join(", "), matched: fits })
}

/// Compares the geometry rule with the rows of a kernel.
///
/// `cpus_guessed` is passed on to the report.
///
/// # Errors
/// Fails if no cache has objects, or if an object size does not fit into a slab.
pub fn compare(snapshot: &Snapshot, rule: &OrderRule, cpus_guessed: bool) -> anyhow::Result<Comparison> {
    let mut left_out = snapshot.faults.clone();
    let mut rows = vec![];
    for cache in &snapshot.caches {
        let row = &cache.row;
        if row.object_size == 0 || row.objects_per_slab == 0 {
            left_out.push(format!(
                "{}: not comparable: {} objects per slab, {} bytes per object",
                row.name, row.objects_per_slab, row.object_size
            ));
        } else {
            rows.push(row.clone());
        }
    }
    if rows.is_empty() {
        bail!("{}: no cache has objects in slabs", snapshot.place);
    }
    let other_rule = if snapshot.is_slab {
        Some(
            "The tunables are not 0: this kernel has SLAB, whose slab layout differs from SLUB's.".to_owned(),
        )
    } else if snapshot.page_size != uslab_buddy::PAGE_SIZE as u64 {
        Some(format!(
            "The kernel's pages have {} KiB, but the rule was applied with pages of 4 KiB.",
            snapshot.page_size >> 10
        ))
    } else {
        None
    };
    let mut mismatches = vec![];
    for row in &rows {
        let ours = Geometry::new(row.object_size as usize, 0, rule)
            .with_context(|| format!("{}: cache {}", snapshot.place, row.name))?;
        let (order, objects) = kernel_layout(row);
        if (ours.order().get(), ours.objects() as u64) != (order, objects) {
            mismatches.push(GeometryMismatch {
                name: row.name.clone(),
                slab_size: row.object_size,
                order: [order, ours.order().get()],
                objs_per_slab: [objects, ours.objects() as u64],
            });
        }
    }
    let matched = rows.len() - mismatches.len();
    let explained = !mismatches.is_empty() && other_rule.is_none();
    Ok(Comparison {
        source: snapshot.place.clone(),
        cpus: rule.present_cpus,
        cpus_guessed,
        rows: rows.len(),
        matched,
        explanation: if explained { explanation(&rows, rule, matched) } else { None },
        mismatches,
        left_out,
        other_rule,
    })
}
