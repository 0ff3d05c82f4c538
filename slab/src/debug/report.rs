//! What is known of an object that somebody damaged or freed wrongly, in SLUB's shape.

use super::stacks::CallStack;
use super::tracks::Track;
use super::watch::Damage;
use core::fmt::{self, Write as _};

/// Bytes of an object that are shown, and of a red zone.
const SHOWN: usize = 256;
const SHOWN_ZONE: usize = 64;

/// An object that something is wrong with.
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
/// It is shown as SLUB does: where and what, who allocated and who freed it, the bytes around, who
/// noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectReport<'a> {
    /// What was overwritten; it is repaired afterwards.
    pub damage: Option<Damage>,
    /// Where the slab begins,
    pub slab: usize,
    /// how many bytes it has,
    pub slab_bytes: usize,
    /// and how many objects.
    pub objects: usize,
    /// Where the object begins; 0 if it is none's.
    pub object: usize,
    /// Its left red zone,
    pub left: &'a [u8],
    /// the object,
    pub bytes: &'a [u8],
    /// and its right red zone.
    pub right: &'a [u8],
    /// Who allocated it last.
    pub allocated: Option<Track>,
    /// Who freed it last.
    pub freed: Option<Track>,
    /// Who was there when it was noticed.
    pub noticed: CallStack,
}

impl ObjectReport<'_> {
    /// The report, of cache `cache` and with what is wrong in a word.
    pub(crate) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        cache: &str,
        kind: &dyn fmt::Display,
    ) -> fmt::Result {
        write!(f, "{:=<78}\nBUG {cache}: ", "")?;
        match self.damage {
            Some(Damage { part, at, bytes, expected, found }) => write!(
                f,
                "{part} overwritten\n{:-<78}\n{at:#x}-{:#x} @offset={}. First byte {found:#x} instead of {expected:#x}\n",
                "",
                at + bytes - 1,
                at.wrapping_sub(self.slab)
            )?,
            None => write!(f, "{kind}\n{:-<78}\n", "")?,
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
            let left = self.left.len();
            let begin = left.saturating_sub(SHOWN_ZONE);
            dump(f, "Redzone", self.object - left + begin, &self.left[begin..])?;
            dump(f, "Object", self.object, &self.bytes[..self.bytes.len().min(SHOWN)])?;
            let right = &self.right[..self.right.len().min(SHOWN_ZONE)];
            dump(f, "Redzone", self.object + self.bytes.len(), right)?;
        }
        write!(f, "Noticed by thread={}:\n{}", super::tracks::this_thread(), self.noticed)?;
        if let Some(Damage { part, at, bytes, expected, .. }) = self.damage {
            writeln!(f, "FIX {cache}: Restoring {part} {at:#x}-{:#x}={expected:#x}", at + bytes - 1)?;
        }
        Ok(())
    }
}

/// 16 bytes a line, in hexadecimal and as text.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debug::watch::Part;

    struct Shown<'a>(ObjectReport<'a>);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f, "inode", &"double free")
        }
    }

    #[test]
    fn a_report_has_the_damage_the_bytes_around_and_the_repair() {
        let damage = Damage { part: Part::RightRedZone, at: 0x1058, bytes: 2, expected: 0xcc, found: 0x12 };
        let report = ObjectReport {
            damage: Some(damage),
            slab: 0x1000,
            slab_bytes: 4096,
            objects: 32,
            object: 0x1040,
            left: &[0xcc; 8],
            bytes: b"hello, object\0\0\0\0\0\0\0\0\0\0\0",
            right: &[0x12, 0x34, 0xcc],
            allocated: None,
            freed: None,
            noticed: CallStack::NONE,
        };
        let text = Shown(report).to_string();
        let lines: Vec<_> = text.lines().collect();
        let rule = ["=".repeat(78), "-".repeat(78)];
        assert_eq!(lines[0], rule[0]);
        assert_eq!(lines[1], "BUG inode: Right Redzone overwritten");
        assert_eq!(lines[2], rule[1]);
        let rest = [
            "0x1058-0x1059 @offset=88. First byte 0x12 instead of 0xcc",
            "Slab 0x1000 bytes=4096 objects=32",
            "Object 0x1040 @offset=64",
            "Redzone  1038: cc cc cc cc cc cc cc cc                          ........",
            "Object   1040: 68 65 6c 6c 6f 2c 20 6f 62 6a 65 63 74 00 00 00  hello,.object...",
            "Object   1050: 00 00 00 00 00 00 00 00                          ........",
            "Redzone  1058: 12 34 cc                                         .4.",
        ];
        assert_eq!(lines[3..10], rest);
        assert!(lines[10].starts_with("Noticed by thread="), "{text}");
        assert_eq!(lines[11..], ["  (no stack)", "FIX inode: Restoring Right Redzone 0x1058-0x1059=0xcc"]);
        let double = Shown(ObjectReport { damage: None, ..report }).to_string();
        assert!(double.contains("BUG inode: double free\n") && !double.contains("FIX"), "{double}");
    }
}
