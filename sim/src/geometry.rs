//! `uslab geometry`: the layout of any size, and a comparison with a kernel row by row.

use crate::output;
use anyhow::{Context, bail};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use uslab::{Geometry, OrderRule, SizeClass, SlabInfo};

/// The layout of some sizes.
#[derive(Debug, Serialize)]
pub struct Layouts {
    /// Present CPUs, an input of the rule.
    pub cpus: u32,
    /// One row a size.
    pub rows: Vec<Layout>,
}

/// The layout of objects of one size.
#[derive(Debug, Serialize)]
pub struct Layout {
    /// Bytes asked for.
    pub size: usize,
    /// Bytes from one object to the next.
    pub slab_size: usize,
    /// A slab has `2^order` pages.
    pub order: u8,
    /// Objects in a slab.
    pub objs_per_slab: usize,
    /// Bytes of a slab between objects, which alignment costs.
    pub padding: usize,
    /// Bytes of a slab that no object uses: the padding, and what remains behind the last object.
    pub waste: usize,
    /// The same in percent of the slab.
    pub waste_percent: f64,
}

/// The layouts of `sizes` (none: kmalloc's classes).
///
/// # Errors
/// A size or alignment that no slab can have.
pub fn table(sizes: &[usize], align: usize, cpus: u32) -> anyhow::Result<Layouts> {
    let classes: Vec<usize> = SizeClass::all().map(SizeClass::size).collect();
    let sizes = if sizes.is_empty() { &classes } else { sizes };
    let rows = sizes.iter().map(|&size| {
        let geometry = Geometry::new(size, align, &OrderRule::for_cpus(cpus))
            .with_context(|| format!("size {size}, --align {align}"))?;
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
    Ok(Layouts { cpus, rows: rows.collect::<anyhow::Result<_>>()? })
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
            "Slabs on a machine with {} CPUs, sizes in bytes; waste is what no object of a slab uses:\n",
            self.cpus
        )?;
        f.write_str(&output::text(&table))
    }
}

/// What a kernel says of one cache.
struct KernelRow {
    name: String,
    stride: usize,
    order: u8,
    objects: usize,
}

/// A comparison with a kernel.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// Where the kernel's rows come from.
    pub source: String,
    /// Present CPUs, as we were told.
    pub cpus: u32,
    /// Caches compared.
    pub rows: usize,
    /// Of these, with the same order and objects per slab.
    pub matched: usize,
    /// The others.
    pub mismatches: Vec<Mismatch>,
}

/// A cache whose layout differs.
#[derive(Debug, Serialize)]
pub struct Mismatch {
    /// The cache.
    pub name: String,
    /// Bytes from one object to the next.
    pub slab_size: usize,
    /// Order: the kernel's, ours.
    pub order: [u8; 2],
    /// Objects per slab: the kernel's, ours.
    pub objs_per_slab: [usize; 2],
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} of {} caches have the same order and objects per slab as the rule gives for {} CPUs",
            self.source, self.matched, self.rows, self.cpus
        )?;
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
        writeln!(f, "The CPU count is an input of the rule: is --cpus {} that kernel's?", self.cpus)
    }
}

fn compare(source: String, rows: Vec<KernelRow>, cpus: u32) -> anyhow::Result<Comparison> {
    if rows.is_empty() {
        bail!("{source}: no cache in it");
    }
    let mut comparison = Comparison { source, cpus, rows: rows.len(), matched: 0, mismatches: vec![] };
    for row in rows {
        let ours = Geometry::new(row.stride, 0, &OrderRule::for_cpus(cpus))
            .with_context(|| format!("{}: cache {}", comparison.source, row.name))?;
        if (ours.order().get(), ours.objects()) == (row.order, row.objects) {
            comparison.matched += 1;
        } else {
            comparison.mismatches.push(Mismatch {
                name: row.name,
                slab_size: row.stride,
                order: [row.order, ours.order().get()],
                objs_per_slab: [row.objects, ours.objects()],
            });
        }
    }
    Ok(comparison)
}

/// Compares with a slabinfo, a copy of /sys/kernel/slab, or a table of its attributes.
///
/// # Errors
/// The file cannot be read, or is none of these; the error names the line.
pub fn against(path: &Path, cpus: u32) -> anyhow::Result<Comparison> {
    let shown = path.display().to_string();
    let rows = if path.is_dir() {
        sysfs(path)?
    } else {
        let text = read(path).with_context(|| shown.clone())?;
        if text.starts_with("slabinfo") {
            slabinfo(&text).with_context(|| shown.clone())?
        } else if text.lines().next().is_some_and(|l| l.split('\t').any(|c| c == "objs_per_slab")) {
            attributes(&text).with_context(|| shown.clone())?
        } else {
            bail!(
                "{shown}: line 1: expected `slabinfo - version: 2.1`, or a tab-separated header with the columns \
                 slab_size, objs_per_slab and order"
            );
        }
    };
    compare(shown, rows, cpus)
}

/// No table of a kernel's caches is nearly as long; a device may never end.
const MOST_BYTES: u64 = 16 << 20;

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
    if text.len() as u64 == MOST_BYTES {
        bail!("more than {} MiB: too long for a table of caches", MOST_BYTES >> 20);
    }
    Ok(text)
}

/// Compares with the kernel that runs here: /proc/slabinfo where we may read it, else /sys/kernel/slab.
///
/// # Errors
/// Neither can be read.
pub fn against_live(cpus: u32) -> anyhow::Result<Comparison> {
    let proc = Path::new("/proc/slabinfo");
    match against(proc, cpus) {
        Ok(comparison) => Ok(comparison),
        Err(first) => against(Path::new("/sys/kernel/slab"), cpus)
            .with_context(|| format!("--against live: {first:#}; nor can sysfs be read")),
    }
}

fn slabinfo(text: &str) -> anyhow::Result<Vec<KernelRow>> {
    let table: SlabInfo = text.parse()?;
    let rows = table.rows.into_iter().map(|row| KernelRow {
        name: row.name,
        stride: row.object_size as usize,
        order: row.pages_per_slab.checked_ilog2().unwrap_or(0) as u8,
        objects: row.objects_per_slab as usize,
    });
    Ok(rows.collect())
}

fn attributes(text: &str) -> anyhow::Result<Vec<KernelRow>> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
    let column = |name: &str| {
        header.iter().position(|c| *c == name).with_context(|| format!("line 1: expected a column {name}"))
    };
    let (stride, order, objects) = (column("slab_size")?, column("order")?, column("objs_per_slab")?);
    let link = header.iter().position(|c| *c == "link");
    let mut rows = vec![];
    for (i, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| -> anyhow::Result<usize> {
            let field = fields.get(at).copied().unwrap_or_default();
            field.parse().with_context(|| {
                format!("line {}: expected a number in column {}, found {field:?}", i + 2, header[at])
            })
        };
        // Rows of aliases have no numbers of their own, or those of what they are another name of.
        let at = |column: usize| fields.get(column).copied().filter(|field| !matches!(*field, "" | "-"));
        if at(stride).is_none() || link.and_then(at).is_some() {
            continue;
        }
        rows.push(KernelRow {
            name: fields[0].to_owned(),
            stride: number(stride)?,
            order: possible_order(number(order)?).with_context(|| format!("line {}", i + 2))?,
            objects: number(objects)?,
        });
    }
    Ok(rows)
}

fn possible_order(order: usize) -> anyhow::Result<u8> {
    let most = usize::from(uslab_buddy::MAX_ORDER);
    u8::try_from(order)
        .ok()
        .filter(|_| order <= most)
        .with_context(|| format!("impossible order {order} (0 to {most} are accepted)"))
}

fn sysfs(folder: &Path) -> anyhow::Result<Vec<KernelRow>> {
    let mut rows = vec![];
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry.with_context(|| folder.display().to_string())?;
        // Aliases are links to the cache that they were merged into.
        if !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        let number = |name: &str| -> anyhow::Result<usize> {
            let path = entry.path().join(name);
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            text.trim().parse().with_context(|| format!("{}: expected a number", path.display()))
        };
        rows.push(KernelRow {
            name: entry.file_name().to_string_lossy().into_owned(),
            stride: number("slab_size")?,
            order: possible_order(number("order")?).with_context(|| entry.path().display().to_string())?,
            objects: number("objs_per_slab")?,
        });
    }
    Ok(rows)
}
