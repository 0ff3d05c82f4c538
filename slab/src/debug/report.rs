//! Report on a damaged or wrongly freed object, in SLUB's format.

use super::corruption::Corruption;
use super::stacks::CallStack;
use super::tracks::Track;
use super::watch::Damage;
use core::fmt::{self, Write as _};
use core::ptr::NonNull;

/// Number of bytes of an object that are copied for the report. The report uses a copy, because the symbol lookup
/// allocates memory and may reuse the described object.
const COPIED_OBJECT_BYTES: usize = 256;
const COPIED_RED_ZONE_BYTES: usize = 64;

/// Bytes of an object and its red zones, copied when the damage was detected.
#[derive(Debug)]
pub(crate) struct Bytes {
    left: ([u8; COPIED_RED_ZONE_BYTES], usize),
    object: ([u8; COPIED_OBJECT_BYTES], usize),
    right: ([u8; COPIED_RED_ZONE_BYTES], usize),
}

impl Bytes {
    pub(crate) const NONE: Self = Self {
        left: ([0; COPIED_RED_ZONE_BYTES], 0),
        object: ([0; COPIED_OBJECT_BYTES], 0),
        right: ([0; COPIED_RED_ZONE_BYTES], 0),
    };

    /// # Safety
    /// The object must have `size` bytes, preceded by `left` and followed by `right` accessible bytes.
    pub(crate) unsafe fn of(object: NonNull<u8>, left: usize, size: usize, right: usize) -> Self {
        let mut bytes = Self::NONE;
        let (left, kept, right) = (
            left.min(COPIED_RED_ZONE_BYTES),
            size.min(COPIED_OBJECT_BYTES),
            right.min(COPIED_RED_ZONE_BYTES),
        );
        (bytes.left.1, bytes.object.1, bytes.right.1) = (left, kept, right);
        // SAFETY: by contract, the ranges are readable; they fit into the arrays.
        unsafe {
            object.sub(left).as_ptr().copy_to_nonoverlapping(bytes.left.0.as_mut_ptr(), left);
            object.as_ptr().copy_to_nonoverlapping(bytes.object.0.as_mut_ptr(), kept);
            object.add(size).as_ptr().copy_to_nonoverlapping(bytes.right.0.as_mut_ptr(), right);
        }
        bytes
    }
    pub(crate) fn left_red_zone(&self) -> &[u8] {
        &self.left.0[..self.left.1]
    }
    pub(crate) fn object(&self) -> &[u8] {
        &self.object.0[..self.object.1]
    }
    pub(crate) fn right_red_zone(&self) -> &[u8] {
        &self.right.0[..self.right.1]
    }
}

/// Report on a damaged or wrongly freed object.
///
/// ```
/// use uslab::Corruption;
///
/// let handler = |corruption: &Corruption<'_>| match corruption.report {
///     Some(report) => eprintln!("{corruption:#}\n{} objects in its slab", report.objects),
///     None => eprintln!("{corruption}"),
/// };
/// # let _ = handler;
/// ```
///
/// The report is printed in SLUB's format: error and location, last allocation and free, bytes around the error, and
/// call stack of the detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectReport<'a> {
    /// The overwritten bytes, which are repaired after the report.
    pub damage: Option<Damage>,
    /// Address of the slab.
    pub slab: usize,
    /// Size of the slab in bytes, including padding.
    pub slab_bytes: usize,
    /// Number of objects in the slab.
    pub objects: usize,
    /// Address of the object; 0 if the damage affects no object.
    pub object: usize,
    /// Size of the object in bytes.
    pub size: usize,
    /// The last bytes of the object's left red zone.
    pub left: &'a [u8],
    /// Leading bytes of the object.
    pub bytes: &'a [u8],
    /// The first bytes of the object's right red zone.
    pub right: &'a [u8],
    /// Last recorded allocation of the object.
    pub allocated: Option<Track>,
    /// Last recorded free of the object.
    pub freed: Option<Track>,
    /// Call stack at which the damage was detected.
    pub noticed: CallStack,
}

impl ObjectReport<'_> {
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, corruption: &Corruption<'_>) -> fmt::Result {
        let Corruption { cache, kind, address, owner, .. } = *corruption;
        write!(f, "{:=<78}\nBUG {cache}: ", "")?;
        match self.damage {
            Some(Damage { part, at, bytes, expected, found }) => write!(
                f,
                "{part} overwritten\n{:-<78}\n{at:#x}-{:#x} @offset={}. First byte {found:#x} instead of {expected:#x}\n",
                "",
                at + bytes - 1,
                at.wrapping_sub(self.slab)
            )?,
            None => {
                write!(f, "{kind}")?;
                if address != self.object {
                    write!(f, " {address:#x}")?;
                }
                if let Some(owner) = owner {
                    write!(f, ", which belongs to cache {owner}")?;
                }
                write!(f, "\n{:-<78}\n", "")?;
            }
        }
        if let Some(track) = self.allocated {
            write!(f, "Allocated: {track}")?;
        }
        if let Some(track) = self.freed {
            write!(f, "Freed: {track}")?;
        }
        writeln!(f, "Slab {:#x} bytes={} objects={}", self.slab, self.slab_bytes, self.objects)?;
        if self.object != 0 {
            writeln!(f, "Object {:#x} @offset={}", self.object, self.object - self.slab)?;
            dump(f, "Redzone", self.object - self.left.len(), self.left)?;
            dump(f, "Object", self.object, self.bytes)?;
            dump(f, "Redzone", self.object + self.size, self.right)?;
        }
        write!(f, "Noticed by thread={}:\n{}", super::tracks::this_thread(), self.noticed)?;
        if let Some(Damage { part, at, bytes, expected, .. }) = self.damage {
            writeln!(f, "FIX {cache}: Restoring {part} {at:#x}-{:#x}={expected:#x}", at + bytes - 1)?;
        }
        Ok(())
    }
}

/// Dumps bytes with 16 per line, in hexadecimal and as text.
fn dump(f: &mut fmt::Formatter<'_>, what: &str, at: usize, bytes: &[u8]) -> fmt::Result {
    for (row, bytes) in bytes.chunks(16).enumerate() {
        write!(f, "{what:<8} {:x}:", at + 16 * row)?;
        bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
        write!(f, "{:1$}", "", 2 + 3 * (16 - bytes.len()))?;
        for &byte in bytes {
            f.write_char(if byte.is_ascii_graphic() { char::from(byte) } else { '.' })?;
        }
        f.write_char('\n')?;
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::debug::corruption::CorruptionKind;
    use crate::debug::watch::Part;

    struct ReportText<'a>(ObjectReport<'a>, Corruption<'a>);
    impl fmt::Display for ReportText<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f, &self.1)
        }
    }

    /// Regression test: after a double free, the dump of the object contained bytes that the symbol lookup had
    /// written.
    #[test]
    fn corruption_report_copies_the_damaged_bytes() {
        let mut memory = [7_u8; 400];
        // SAFETY: the range is inside the array.
        let bytes = unsafe { Bytes::of(NonNull::from(&mut memory).cast().add(40), 8, 300, 16) };
        memory.fill(9);
        assert_eq!(
            (bytes.left_red_zone(), bytes.object(), bytes.right_red_zone()),
            (&[7; 8][..], &[7; COPIED_OBJECT_BYTES][..], &[7; 16][..])
        );
    }

    #[test]
    fn corruption_report_shows_the_damage_and_the_repair() {
        let damage = Damage { part: Part::RightRedZone, at: 0x1058, bytes: 2, expected: 0xcc, found: 0x12 };
        let report = ObjectReport {
            damage: Some(damage),
            slab: 0x1000,
            slab_bytes: 4096,
            objects: 32,
            object: 0x1040,
            size: 24,
            left: &[0xcc; 8],
            bytes: b"hello, object\0\0\0\0\0\0\0\0\0\0\0",
            right: &[0x12, 0x34, 0xcc],
            allocated: None,
            freed: None,
            noticed: CallStack::NONE,
        };
        let double = Corruption {
            kind: CorruptionKind::DoubleFree,
            address: 0x1040,
            cache: "inode",
            owner: None,
            index: Some(1),
            report: None,
        };
        let text = ReportText(report, double).to_string();
        let lines: Vec<_> = text.lines().collect();
        let rule = ["=".repeat(78), "-".repeat(78)];
        assert_eq!(lines[0], rule[0]);
        assert_eq!(lines[1], "BUG inode: Right Redzone overwritten");
        assert_eq!(lines[2], rule[1]);
        let expected_lines = [
            "0x1058-0x1059 @offset=88. First byte 0x12 instead of 0xcc",
            "Slab 0x1000 bytes=4096 objects=32",
            "Object 0x1040 @offset=64",
            "Redzone  1038: cc cc cc cc cc cc cc cc                          ........",
            "Object   1040: 68 65 6c 6c 6f 2c 20 6f 62 6a 65 63 74 00 00 00  hello,.object...",
            "Object   1050: 00 00 00 00 00 00 00 00                          ........",
            "Redzone  1058: 12 34 cc                                         .4.",
        ];
        assert_eq!(lines[3..10], expected_lines);
        assert!(lines[10].starts_with("Noticed by thread="), "{text}");
        assert_eq!(lines[11..], ["  (no stack)", "FIX inode: Restoring Right Redzone 0x1058-0x1059=0xcc"]);
        let report = ObjectReport { damage: None, ..report };
        let text = ReportText(report, double).to_string();
        assert!(text.contains("BUG inode: double free\n") && !text.contains("FIX"), "{text}");
        let kind = CorruptionKind::WrongCache;
        let text = ReportText(report, Corruption { kind, address: 0x1048, owner: Some("dentry"), ..double })
            .to_string();
        let line = "BUG inode: free to the wrong cache 0x1048, which belongs to cache dentry\n";
        assert!(text.contains(line), "{text}");
    }
}
