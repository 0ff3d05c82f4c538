//! Parses the text of wee_alloc's traces, which have one call of malloc or free on each line.
//!
//! The line `Alloc(552),` requests 552 bytes. The line `Free(3),` frees the block that the fourth `Alloc`
//! allocated. A line has no effect if it frees a block that is already free or was never allocated. The text contains
//! no times, CPUs or callers.

use rustc_hash::FxHashSet;

use super::fields;
use super::program::Call;

/// The live blocks of the traced program.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    allocations: u64,
    live: FxHashSet<u64>,
    too_large: FxHashSet<u64>,
}

/// Returns `true` if a line belongs to a trace by wee_alloc.
pub(super) fn is_wee_alloc_call(line: &[u8]) -> bool {
    operand(line, b"Alloc(").or_else(|| operand(line, b"Free(")).is_some()
}

/// Parses the number in a line such as `Alloc(552),`.
fn operand(line: &[u8], name: &[u8]) -> Option<u64> {
    fields::decimal(line.trim_ascii().strip_prefix(name)?.strip_suffix(b"),")?)
}

impl Blocks {
    /// Returns the call that a line describes, or `None` if the line has another form.
    pub(super) fn call(&mut self, line: &[u8]) -> Option<Call> {
        if let Some(bytes) = operand(line, b"Alloc(") {
            self.allocations += 1;
            let call = Call::alloc(self.allocations, bytes, 1);
            let place = if call == Call::TooLarge { &mut self.too_large } else { &mut self.live };
            place.insert(self.allocations);
            return Some(call);
        }
        let block = operand(line, b"Free(")?.saturating_add(1);
        Some(if self.live.remove(&block) {
            Call::Free { block }
        } else if self.too_large.remove(&block) {
            Call::FreeOfTooLarge
        } else {
            Call::FreeOfNothing
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wee_alloc_trace_line_is_parsed() {
        let mut blocks = Blocks::default();
        let mut call = |line: &str| blocks.call(line.as_bytes());
        assert_eq!(call("Alloc(552),"), Some(Call::Alloc { block: 1, bytes: 552, takes: 1024 }));
        assert_eq!(call("Alloc(0),"), Some(Call::Alloc { block: 2, bytes: 0, takes: 8 }));
        assert_eq!(call("Alloc(8193),"), Some(Call::Alloc { block: 3, bytes: 8193, takes: 16_384 }));
        assert_eq!(call("Alloc(4194305),"), Some(Call::TooLarge));
        assert_eq!(call("Alloc(96),\r"), Some(Call::Alloc { block: 5, bytes: 96, takes: 96 }));
        assert_eq!(call("Free(0),"), Some(Call::Free { block: 1 }));
        assert_eq!(call("Free(3),"), Some(Call::FreeOfTooLarge));
        for nothing in ["Free(0),", "Free(3),", "Free(5),", "Free(18446744073709551615),"] {
            assert_eq!(call(nothing), Some(Call::FreeOfNothing), "{nothing}");
        }
        for wrong in
            ["", "Alloc()", "Alloc(12)", "Alloc(-1),", "Realloc(1),", "Free(x),", "Alloc(1), Free(0),"]
        {
            assert_eq!(call(wrong), None, "{wrong}");
        }
        assert_eq!(call("Free(1),"), Some(Call::Free { block: 2 }), "an invalid line changes no state");
    }
}
