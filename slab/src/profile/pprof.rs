//! Writes a profile in `pprof`'s format: the message of `profile.proto`, compressed while it is written.

use super::Profile;
use super::mappings::{mappings, position};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Result, Write};
use std::time::SystemTime;

/// Names of a sample's four values, in the order of the values. Values whose names end in `objects` are counts, and
/// values whose names end in `space` are bytes.
const SAMPLE_VALUE_NAMES: [&str; 4] = ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"];

/// Pattern of functions that `pprof` drops together with their callees: functions of the allocator, and library
/// functions of Rust and C that call only the allocator.
const DROPPED_FUNCTIONS: &str = r"[<&]*(uslab(_magazine|_buddy|_pool|_sync)?|alloc::(alloc|raw_vec)|std::alloc|__rustc(\[[0-9a-f]+\])?)::.*|__r(ust|dl|g)_.*alloc.*|(m|c|re|v|pv|aligned_)alloc|reallocarray|(posix_)?memalign|operator new(\[\])?";

fn write_varint(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}
/// Encodes pairs of field number and value as a protobuf message.
fn encode(numbers: impl IntoIterator<Item = (u64, u64)>) -> Vec<u8> {
    let mut message = vec![];
    for (field, number) in numbers {
        write_varint(field << 3, &mut message);
        write_varint(number, &mut message);
    }
    message
}
fn bytes(field: u64, bytes: &[u8], into: &mut Vec<u8>) {
    write_varint(field << 3 | 2, into);
    write_varint(bytes.len() as u64, into);
    into.extend(bytes);
}

struct PprofWriter<W: Write> {
    into: GzEncoder<W>,
    /// Index of each string in the message's string table.
    strings: BTreeMap<String, u64>,
}

impl<W: Write> PprofWriter<W> {
    fn bytes(&mut self, field: u64, content: &[u8]) -> Result<()> {
        let mut made = vec![];
        bytes(field, content, &mut made);
        self.into.write_all(&made)
    }
    /// Returns the index of a string, and writes the string first if it is new.
    fn intern(&mut self, text: &str) -> Result<u64> {
        if let Some(known) = self.strings.get(text) {
            return Ok(*known);
        }
        let at = self.strings.len() as u64;
        self.strings.insert(text.to_owned(), at);
        self.bytes(6, text.as_bytes())?;
        Ok(at)
    }
    fn write_value_type(&mut self, field: u64, name: &str) -> Result<()> {
        let unit = if name.ends_with("objects") { "count" } else { "bytes" };
        let message = encode([(1, self.intern(name)?), (2, self.intern(unit)?)]);
        self.bytes(field, &message)
    }
}

impl Profile {
    /// Writes the profile in `pprof`'s format: a compressed `profile.proto`, whose file name ends in `.pb.gz` by
    /// convention.
    ///
    /// Each sample has the label `cache` and four values: `alloc_objects`, `alloc_space`, `inuse_objects` and
    /// `inuse_space`, which is the default. Functions have addresses instead of names; `pprof` and `uslab flame` look
    /// up the names in the mapped files. The command `pprof -base FIRST.pb.gz SECOND.pb.gz` shows the difference
    /// between two profiles.
    ///
    /// The call allocates some 16 bytes for each code address, plus 400 KiB for the compression.
    ///
    /// # Errors
    /// Returns the write errors of `into`.
    ///
    /// ```
    /// use uslab::{Config, Gfp, KmemCache, Subsystem};
    ///
    /// let subsystem = Subsystem::new(Config::default())?;
    /// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
    /// subsystem.start_profile(1)?;
    /// let _block = inodes.alloc_block(Gfp::KERNEL)?;
    /// let mut file = vec![];
    /// subsystem.profile().pprof(&mut file)?;
    /// assert_eq!(file[..2], [0x1f, 0x8b]); // gzip's
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pprof(&self, into: impl Write) -> Result<()> {
        let mut writer =
            PprofWriter { into: GzEncoder::new(into, Compression::new(6)), strings: BTreeMap::new() };
        // The numbers are fields of pprof's `profile.proto`. The format requires an empty first string.
        writer.intern("")?;
        SAMPLE_VALUE_NAMES.into_iter().try_for_each(|value| writer.write_value_type(1, value))?;
        writer.write_value_type(11, "space")?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let numbers = encode([
            (7, writer.intern(DROPPED_FUNCTIONS)?),
            (9, now.as_nanos() as u64),
            (12, self.rate as u64),
            (14, writer.intern("inuse_space")?),
        ]);
        writer.into.write_all(&numbers)?;
        let mappings = mappings();
        for (id, of) in (1..).zip(&mappings) {
            let (file, build_id) = (writer.intern(&of.file)?, writer.intern(&of.build_id)?);
            let numbers = [id, of.start as u64, of.end as u64, of.offset as u64, file, build_id];
            writer.bytes(3, &encode((1..).zip(numbers)))?;
        }
        // This code does not use `collect`, which would first make a list of all frames.
        let mut frames = BTreeSet::<usize>::new();
        self.samples.iter().for_each(|sample| frames.extend(sample.stack.frames()));
        for at in frames {
            // The address must be inside the call instruction, so it is one less than the return address,
            // which is the location's id.
            let mapping = position(&mappings, at - 1).map_or(0, |nth| nth as u64 + 1);
            writer.bytes(4, &encode([(1, at as u64), (2, mapping), (3, at as u64 - 1)]))?;
        }
        for sample in &self.samples {
            let frames = sample.stack.frames().iter().map(|at| (1, *at as u64));
            let [all, live] = [sample.allocated, sample.live];
            let values = [all.objects, all.bytes, live.objects, live.bytes].map(|value| (2, value));
            let mut location = encode(frames.chain(values));
            bytes(
                3,
                &encode([(1, writer.intern("cache")?), (2, writer.intern(&sample.cache)?)]),
                &mut location,
            );
            writer.bytes(2, &location)?;
        }
        writer.into.finish()?.flush()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Gfp, KmemCache, Subsystem};
    use flate2::read::GzDecoder;
    use std::io::Read;

    /// The fields of [pprof's message](https://github.com/google/pprof/blob/main/proto/profile.proto) that this test
    /// reads.
    mod field {
        pub(super) const SAMPLE_TYPE_FIELD: u64 = 1;
        pub(super) const SAMPLE_FIELD: u64 = 2;
        pub(super) const MAPPING_FIELD: u64 = 3;
        pub(super) const LOCATION_FIELD: u64 = 4;
        pub(super) const STRING_FIELD: u64 = 6;
        pub(super) const DROP_FRAMES_FIELD: u64 = 7;
        pub(super) const PERIOD_FIELD: u64 = 12;
        pub(super) const DEFAULT_SAMPLE_TYPE_FIELD: u64 = 14;
    }

    #[inline(never)]
    fn leaking_function(cache: &KmemCache) -> crate::Block<'_> {
        core::hint::black_box(cache.alloc_block(Gfp::KERNEL).unwrap())
    }

    fn number(from: &mut &[u8]) -> u64 {
        let len = from.iter().position(|byte| *byte < 0x80).unwrap() + 1;
        let bytes = from.split_off(..len).unwrap();
        bytes.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
    }
    /// Reads the fields of a message. The bytes of a field are empty if the field is a number.
    fn fields(mut message: &[u8]) -> Vec<(u64, u64, &[u8])> {
        let mut found = vec![];
        while !message.is_empty() {
            let key = number(&mut message);
            let value = number(&mut message);
            let bytes = if key & 7 == 2 { message.split_off(..value as usize).unwrap() } else { &[] };
            assert!(matches!(key & 7, 0 | 2), "{key}");
            found.push((key >> 3, value, bytes));
        }
        found
    }
    fn numbers(message: &[u8], field: u64) -> Vec<u64> {
        fields(message).into_iter().filter(|of| of.0 == field).map(|of| of.1).collect()
    }

    #[test]
    fn pprof_varints_encode_seven_bits_per_byte() {
        assert_eq!(encode([(1, 0), (2, 300), (16, u64::MAX)])[..7], [8, 0, 16, 0xac, 2, 0x80, 1]);
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX] {
            assert_eq!(numbers(&encode([(3, value)]), 3), [value]);
        }
    }

    /// The test reads the message as pprof does. The indices of strings, mappings and locations must be valid, and each
    /// stack must have its numbers.
    #[test]
    fn pprof_message_contains_the_counts_of_the_profile() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("inode", 600).build_in(&subsystem).unwrap();
        subsystem.start_profile(1).unwrap();
        // All allocations come from one call site, because `black_box` prevents loop unrolling.
        let held: Vec<_> = (0..core::hint::black_box(7)).map(|_| leaking_function(&cache)).collect();
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let profile = subsystem.profile();
        let (mut file, mut written) = (vec![], vec![]);
        profile.pprof(&mut file).unwrap();
        GzDecoder::new(&file[..]).read_to_end(&mut written).unwrap();
        let all = |field| fields(&written).into_iter().filter(move |of| of.0 == field);
        let strings: Vec<_> = all(field::STRING_FIELD).map(|of| std::str::from_utf8(of.2).unwrap()).collect();
        let text = |at: u64| strings[at as usize];
        assert_eq!(text(0), "");
        let types =
            all(field::SAMPLE_TYPE_FIELD).map(|of| (text(numbers(of.2, 1)[0]), text(numbers(of.2, 2)[0])));
        let units = ["count", "bytes", "count", "bytes"];
        assert!(types.eq(SAMPLE_VALUE_NAMES.into_iter().zip(units)));
        let single = |field| all(field).next().unwrap().1;
        assert_eq!(
            (single(field::PERIOD_FIELD), text(single(field::DEFAULT_SAMPLE_TYPE_FIELD))),
            (1, "inuse_space")
        );
        assert_eq!(text(single(field::DROP_FRAMES_FIELD)), DROPPED_FUNCTIONS);
        let sums = |i: usize| all(field::SAMPLE_FIELD).map(|of| numbers(of.2, 2)[i]).sum::<u64>();
        assert_eq!([0, 1, 2, 3].map(sums), [8, 4800, 7, 4200]);
        let largest_sample = all(field::SAMPLE_FIELD).next().unwrap().2;
        let label = fields(largest_sample).into_iter().find(|of| of.0 == 3).unwrap().2;
        assert_eq!([1, 2].map(|field| text(numbers(label, field)[0])), ["cache", "inode"]);
        let mappings: Vec<_> =
            all(field::MAPPING_FIELD).map(|of| [1, 2, 3, 5].map(|i| numbers(of.2, i)[0])).collect();
        let locations: BTreeMap<_, _> = all(field::LOCATION_FIELD)
            .map(|of| (numbers(of.2, 1)[0], [2, 3].map(|i| numbers(of.2, i)[0])))
            .collect();
        assert!(
            all(field::SAMPLE_FIELD).flat_map(|of| numbers(of.2, 1)).all(|id| locations.contains_key(&id))
        );
        if cfg!(all(feature = "stacks", target_os = "linux")) {
            assert!(!locations.is_empty());
            for (id, [mapping, address]) in &locations {
                let [_, start, end, _] = mappings.iter().find(|of| of[0] == *mapping).unwrap();
                assert!(*id == address + 1 && (start..end).contains(&address), "{address:#x}");
            }
            let program = std::env::current_exe().unwrap();
            assert_eq!(text(mappings[0][3]), program.to_string_lossy());
            // Stacks that differ only in the allocator's inner calls are separate samples.
            let mut holder = BTreeSet::new();
            profile.samples[0].stack.each_function(|function| {
                holder.extend(
                    function
                        .name
                        .filter(|name| name.contains("leaking_function"))
                        .map(|_| function.at as u64),
                );
            });
            let is_held = |of: &(u64, u64, &[u8])| numbers(of.2, 1).iter().any(|id| holder.contains(id));
            let sum = |i: usize| {
                all(field::SAMPLE_FIELD).filter(is_held).map(|of| numbers(of.2, 2)[i]).sum::<u64>()
            };
            assert_eq!([0, 1, 2, 3].map(sum), [7, 4200, 7, 4200], "{holder:x?}");
        }
        drop(held);
    }

    #[test]
    fn failed_pprof_write_returns_the_file_error() {
        let mut small = [0_u8; 20];
        let error = Profile::default().pprof(&mut small[..]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WriteZero);
    }
}
