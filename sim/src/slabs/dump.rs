//! Parses tables of caches from a kernel's dump (a vmcore), in the formats of crash's `kmem -s` and of `slabinfo` in
//! drgn-tools:
//!
//! ```text
//! CACHE             OBJSIZE  ALLOCATED     TOTAL  SLABS  SSIZE  NAME
//! ffff93fb40042500       64      13992     14848    232     4k  kmalloc-64
//! ```
//!
//! Older versions of crash print the name in the second column. Unlike slabinfo, these tables do not count
//! free objects in a CPU's slab as allocated.

use anyhow::{Context, bail};
use uslab::info::Row;

/// Returns `true` if a line is the header of a table of `kmem -s`.
pub(super) fn is_table_header(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next() == Some("CACHE") && words.any(|word| word == "SSIZE")
}

/// Parses the rows of the table. Returns the rows, and a message for each row that cannot be parsed.
///
/// # Errors
/// Fails if the text has no header or no rows.
pub(super) fn rows(text: &str, page_size: u64) -> anyhow::Result<(Vec<Row>, Vec<String>)> {
    let mut lines = (1_u64..).zip(text.lines()).skip_while(|(_, line)| !is_table_header(line));
    let head =
        lines.next().context("expected a line CACHE, OBJSIZE, ALLOCATED, TOTAL, SLABS, SSIZE, NAME")?;
    let name_is_second = head.1.split_whitespace().nth(1) == Some("NAME");
    let (mut rows, mut faults) = (vec![], vec![]);
    for (number, line) in lines {
        // A row begins with a cache's address; other lines are notes and prompts.
        let is_row = line
            .split_whitespace()
            .next()
            .is_some_and(|word| word.len() >= 8 && word.bytes().all(|b| b.is_ascii_hexdigit()));
        if !is_row {
            continue;
        }
        match row(line, name_is_second, page_size) {
            Some(row) => rows.push(row),
            None => faults.push(format!(
                "line {number}: expected an address, a name, and numbers up to 2^40 in the columns of the first line, found {line:?}"
            )),
        }
    }
    if rows.is_empty() {
        bail!("the table has no cache");
    }
    Ok((rows, faults))
}

fn row(line: &str, name_is_second: bool, page_size: u64) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (numbers, name) = if name_is_second {
        let (left, numbers) = words.split_at(words.len().checked_sub(5)?);
        (numbers, left.get(1..)?)
    } else {
        (words.get(1..6)?, &words[6..])
    };
    // A star marks that a CPU's list of free objects is damaged.
    let number =
        |text: &str| text.trim_end_matches('*').parse::<u64>().ok().filter(|number| *number <= 1 << 40);
    let [size, allocated, total, slabs] =
        [number(numbers[0])?, number(numbers[1])?, number(numbers[2])?, number(numbers[3])?];
    let slab = number(numbers[4].strip_suffix('k')?)?.checked_mul(1024).filter(|bytes| *bytes <= 1 << 26)?;
    let stride = size.next_multiple_of(8);
    if name.is_empty() || stride == 0 || slab < page_size || stride > 1 << 26 {
        return None;
    }
    // The table has the size without the bytes that debugging and alignment add.
    let per_slab = if slabs > 0 { total.div_ceil(slabs) } else { slab / stride }.clamp(1, 1 << 16);
    let stride = if slabs > 0 { stride.max((slab / per_slab) & !7).min(slab) } else { stride };
    let bytes = total.checked_mul(stride)?.max(slabs.checked_mul(slab)?);
    (bytes <= 1 << 52).then(|| Row {
        name: name.join(" "),
        active_objects: allocated.min(total),
        objects: total,
        object_size: stride,
        objects_per_slab: per_slab,
        pages_per_slab: slab / page_size,
        active_slabs: slabs,
        slabs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_table_columns_are_parsed_in_either_order() {
        let new = "crash> kmem -s\n\
                   CACHE             OBJSIZE  ALLOCATED     TOTAL  SLABS  SSIZE  NAME\n\
                   kmem: kmalloc-64: slab: fffff4adc01a4900 invalid freepointer: 7a1b527446924a20\n\
                   ffff93fb40042500       64      13992*    14848    232     4k  kmalloc-64\n\
                   ffff93fb40042600      193          0         0      0     8k  dm raid1 read\n\
                   ffff93fb40042700      193          x         0      0     8k  bad\n";
        let (rows, faults) = rows(new, 4096).unwrap();
        let first = &rows[0];
        assert_eq!(
            (&*first.name, first.active_objects, first.objects, first.slabs),
            ("kmalloc-64", 13992, 14848, 232)
        );
        assert_eq!((first.object_size, first.objects_per_slab, first.pages_per_slab), (64, 64, 1));
        assert_eq!(
            (&*rows[1].name, rows[1].object_size, rows[1].objects_per_slab),
            ("dm raid1 read", 200, 40)
        );
        assert!(faults.len() == 1 && faults[0].starts_with("line 6: "), "{faults:?}");
        let old = "CACHE            NAME                 OBJSIZE  ALLOCATED     TOTAL  SLABS  SSIZE\n\
                   ffff8808132d1ac0 request_sock_TCP         128          2        30      1     4k\n";
        let (rows, _) = super::rows(old, 4096).unwrap();
        let row = &rows[0];
        assert_eq!((&*row.name, row.objects_per_slab, row.object_size), ("request_sock_TCP", 30, 136));
        assert!(super::rows("CACHE\n", 4096).is_err());
        assert!(
            super::rows("CACHE NAME OBJSIZE SSIZE\n", 4096).unwrap_err().to_string().contains("no cache")
        );
    }
}
