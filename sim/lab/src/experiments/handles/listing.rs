//! Reuses a slot until its generations are used up: in the tutorial's listing, in a table that follows the tutorial's
//! text, and in this crate's tables.
//!
//! The listing of "Memory Allocators from Scratch" counts a slot's generation in 32 bits, but packs only 8 of these
//! bits into a handle. The article's text claims that a stale handle becomes valid again after 256 frees. The article's
//! claim would be true if the slot counted its generation in only 8 bits. In the listing, however, a slot's generation
//! reaches 256 while its new handle gets generation 0. From that point on, the table rejects each new handle
//! immediately.

use crate::findings::{Claim, Findings, Holds, Table, Value};
use anyhow::Context as _;
use uslab::handle::{Generations, Handle, HandleTable, WrapPolicy};

/// A slot that the experiment reuses repeatedly, in any kind of table.
trait ReusedSlot {
    /// Allocates the slot and returns the bits of the handle, or `None` if the slot has been retired.
    fn spawn(&mut self) -> Option<u32>;
    fn is_valid(&self, handle: u32) -> bool;
    /// Frees the slot, and returns `true` if the handle was valid.
    fn free(&mut self, handle: u32) -> bool;
}

/// Slot 0 of the tutorial's listing, with a generation of `bits` bits.
struct GenerationSlot {
    bits: u32,
    generation: u32,
    alive: bool,
}

impl GenerationSlot {
    fn with_handle_bits(bits: u32) -> Self {
        Self { bits, generation: 0, alive: false }
    }
}

impl ReusedSlot for GenerationSlot {
    fn spawn(&mut self) -> Option<u32> {
        if self.alive {
            // The slot is in use, and its only handle is stale. The listing, which has more slots, would use another
            // slot.
            return None;
        }
        self.alive = true;
        // The low 24 bits of the handle are the index, 0; the high 8 bits are the low bits of the generation.
        Some(self.generation << 24)
    }
    fn is_valid(&self, handle: u32) -> bool {
        self.alive && self.generation == handle >> 24
    }
    fn free(&mut self, handle: u32) -> bool {
        let is_valid_handle = self.is_valid(handle);
        if is_valid_handle {
            self.alive = false;
            self.generation = (self.generation + 1) & (u32::MAX >> (32 - self.bits));
        }
        is_valid_handle
    }
}

/// A table with handles of 24 + 8 bits, in which only slot 0 is used.
struct TableSlot(HandleTable<(), u32, 8>);

impl ReusedSlot for TableSlot {
    fn spawn(&mut self) -> Option<u32> {
        let handle = self.0.alloc(()).ok()?;
        // The table used another slot, because the first one is retired.
        (handle.index() == 0).then(|| handle.to_bits())
    }
    fn is_valid(&self, handle: u32) -> bool {
        Handle::from_bits(handle).is_some_and(|handle| self.0.is_valid(handle))
    }
    fn free(&mut self, handle: u32) -> bool {
        Handle::from_bits(handle).is_some_and(|handle| self.0.free(handle).is_some())
    }
}

/// The results of reusing one slot many times.
struct SlotReuseResults {
    /// The number of frees after which the slot's first handle was valid again.
    revived: Option<u64>,
    /// The number of frees after which a new handle was immediately invalid.
    born_stale: Option<u64>,
    /// The number of frees after which the slot was retired.
    retired: Option<u64>,
}

const USES_PER_SLOT: u64 = 1000;

fn reuse_outcome(slot: &mut impl ReusedSlot) -> anyhow::Result<SlotReuseResults> {
    let mut fate = SlotReuseResults { revived: None, born_stale: None, retired: None };
    let first = slot.spawn().context("a slot must be free")?;
    slot.free(first);
    for frees in 1..USES_PER_SLOT {
        let Some(handle) = slot.spawn() else {
            fate.retired = Some(frees);
            break;
        };
        if slot.is_valid(first) && fate.revived.is_none() {
            fate.revived = Some(frees);
        }
        if !slot.is_valid(handle) {
            fate.born_stale = Some(frees);
            break;
        }
        slot.free(handle);
    }
    Ok(fate)
}

/// Reports on one slot that is freed and reused many times, with 8 generation bits in a handle.
pub(super) fn reuse(findings: &mut Findings) -> anyhow::Result<()> {
    let mut table = Table::new(
        format!(
            "One slot used up to {USES_PER_SLOT} times, 8 bits of generation in a handle: after how many frees ..."
        ),
        &["by", "the first handle is valid again", "new handles are stale at birth", "the slot is retired"],
    );
    let tabled = |policy: WrapPolicy| TableSlot(HandleTable::with(policy));
    let fates = [
        (
            "the tutorial's listing: the slot counts in 32 bits",
            reuse_outcome(&mut GenerationSlot::with_handle_bits(32))?,
        ),
        (
            "as its text says: the slot counts in 8 bits",
            reuse_outcome(&mut GenerationSlot::with_handle_bits(8))?,
        ),
        ("HandleTable, Wrap", reuse_outcome(&mut tabled(WrapPolicy::Wrap))?),
        ("HandleTable, Retire", reuse_outcome(&mut tabled(WrapPolicy::Retire))?),
    ];
    for (name, fate) in &fates {
        let frees =
            [fate.revived, fate.born_stale, fate.retired].map(|n| n.map_or("never".into(), Value::Count));
        table.row([vec![(*name).into()], frees.into()].concat());
    }
    findings.table(table);
    let [(_, listing), (_, text), ..] = &fates;
    let frees_text =
        |frees: Option<u64>| frees.map_or_else(|| "never".to_owned(), |n| format!("after {n} frees"));
    findings.claim(Claim {
        says: "after 256 frees of its slot a stale handle is valid again".into(),
        source: "Memory Allocators from Scratch".into(),
        found: format!(
            "in the listing as written, a stale handle is valid again: {}; new handles are stale {}, and the slot stays in use; if \
             the slot also counts in 8 bits, a stale handle is valid again {}",
            frees_text(listing.revived),
            frees_text(listing.born_stale),
            frees_text(text.revived)
        ),
        holds: if listing.revived.is_some() { Holds::Yes } else { Holds::No },
        measured: false,
    });
    Ok(())
}

/// Returns the number of frees after which the first slot of a new table is retired, or `None` if counting would take
/// too long.
fn frees_until_retired<const G: u32>() -> anyhow::Result<Option<u64>> {
    if G > 24 {
        return Ok(None);
    }
    let mut table = HandleTable::<(), u32, G>::with(Generations::default());
    let mut frees = 0;
    loop {
        let handle = table.alloc(())?;
        if handle.index() > 0 {
            return Ok(Some(frees));
        }
        table.free(handle);
        frees += 1;
    }
}

/// Returns the number of frees after which the first handle is valid again, in a table whose generations wrap.
fn frees_until_wrapped<const G: u32>() -> anyhow::Result<Option<u64>> {
    if G > 24 {
        return Ok(None);
    }
    let mut table = HandleTable::<(), u32, G>::with(WrapPolicy::Wrap);
    let first = table.alloc(())?;
    table.free(first);
    let mut frees = 1;
    loop {
        let handle = table.alloc(())?;
        if handle == first {
            return Ok(Some(frees));
        }
        table.free(handle);
        frees += 1;
    }
}

/// Reports how often a slot can be used, for several numbers of generation bits.
pub(super) fn report_slot_lifetimes(findings: &mut Findings) -> anyhow::Result<()> {
    let mut table = Table::new(
        "How long a slot lasts",
        &[
            "bits of generation",
            "lives of a slot",
            "retired after frees, counted",
            "wrapped after frees, counted",
            "slots with 32 bits in all",
            "slots with 64 bits in all",
            "at a million frees a second in one slot, s",
        ],
    );
    /// Builds the table row for generations with `$g` bits. A 64-bit handle has at least 32 bits of generation, because
    /// its index has at most 32 bits.
    macro_rules! row {
        ($($g:literal, $in_64:expr;)+) => {$(
            let narrow = Handle::<u32, $g>::SLOTS;
            let lives = u64::from(Handle::<u32, $g>::LAST_GENERATION);
            let in_64: Option<u64> = $in_64;
            table.row(vec![
                Value::Count($g),
                lives.into(),
                frees_until_retired::<$g>()?.into(),
                frees_until_wrapped::<$g>()?.into(),
                narrow.into(),
                in_64.into(),
                Value::Number(lives as f64 / 1e6, 6),
            ]);
        )+};
    }
    row! {
        8, None;
        12, None;
        16, None;
        24, None;
    }
    let lives = u64::from(Handle::<u64, 32>::LAST_GENERATION);
    table.row(vec![
        Value::Count(32),
        lives.into(),
        Value::Nothing,
        Value::Nothing,
        Value::Nothing,
        Handle::<u64, 32>::SLOTS.into(),
        Value::Number(lives as f64 / 1e6, 6),
    ]);
    findings.table(table);
    findings.note(
        "A generation is never 0, so that Option<Handle> is as large as the handle: 8 bits have 255 lives. A slot that retires costs its \
         memory, one that wraps takes a handle of that many lives ago for its own.",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn article_with_8_bit_generations_revives_a_handle() {
        let listing = reuse_outcome(&mut GenerationSlot::with_handle_bits(32)).unwrap();
        assert_eq!((listing.revived, listing.born_stale, listing.retired), (None, Some(256), None));
        let text = reuse_outcome(&mut GenerationSlot::with_handle_bits(8)).unwrap();
        assert_eq!((text.revived, text.born_stale, text.retired), (Some(256), None, None));
        let wrap = reuse_outcome(&mut TableSlot(HandleTable::with(WrapPolicy::Wrap))).unwrap();
        assert_eq!((wrap.revived, wrap.born_stale, wrap.retired), (Some(255), None, None));
        let retire = reuse_outcome(&mut TableSlot(HandleTable::new())).unwrap();
        assert_eq!((retire.revived, retire.born_stale, retire.retired), (None, None, Some(255)));
    }

    /// The article's function `Free` increments the generation and loses the id, because no listing adds an id to the
    /// free ids.
    #[test]
    fn free_in_the_pool_article_leaks_the_id() {
        /// The article does not list the function `get_free_sparse_id`. The function could return the next id, or an id
        /// that `Free` had put in a list. However, the listed `Free` puts no id in a list.
        struct IdSource {
            next: u32,
            returned: Vec<u32>,
        }
        impl IdSource {
            fn take(&mut self) -> u32 {
                self.returned.pop().unwrap_or_else(|| {
                    self.next += 1;
                    self.next - 1
                })
            }
        }
        let mut listing = IdSource { next: 0, returned: Vec::new() };
        let mut map = uslab::handle::SlotMap::<u8>::new();
        for used_slots in 1..=1000 {
            // The test allocates one object at a time.
            listing.take();
            assert_eq!(listing.next, used_slots, "each object ever created must have its own id");
            let handle = map.alloc(0).unwrap();
            assert_eq!(handle.index(), 0, "the freed slot must be used again");
            map.free(handle);
        }
    }

    #[test]
    fn slot_serves_one_object_per_generation() {
        assert_eq!(
            (frees_until_retired::<8>().unwrap(), frees_until_wrapped::<8>().unwrap()),
            (Some(255), Some(255))
        );
        assert_eq!(
            (frees_until_retired::<12>().unwrap(), frees_until_wrapped::<12>().unwrap()),
            (Some(4095), Some(4095))
        );
    }
}
