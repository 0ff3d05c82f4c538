//! A profile as `pprof` reads it: the message of pprof's `profile.proto`, compressed.

use super::{Profile, Sample};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use std::collections::HashMap;
use std::io::Write;
use std::time::SystemTime;

/// The numbers of a sample, in their order, and their units.
const VALUES: [(&str, &str); 4] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
];

// Fields that are not used here are left out; their numbers are not used for others.
#[derive(Clone, PartialEq, Message)]
struct Proto {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<ProtoSample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}
#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}
#[derive(Clone, PartialEq, Message)]
struct ProtoSample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}
#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}
#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}
#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}
#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The message as it is made: what there is once, by what it says.
#[derive(Default)]
struct Making {
    proto: Proto,
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<(u64, u64, i64), u64>,
    samples: HashMap<(Vec<u64>, i64), usize>,
}

impl Making {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        let at = self.proto.string_table.len() as i64;
        self.proto.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), at);
        at
    }
    fn value_type(&mut self, (name, unit): (&str, &str)) -> ValueType {
        ValueType { r#type: self.string(name), unit: self.string(unit) }
    }
    fn function(&mut self, name: &str, file: &str) -> u64 {
        let (name, filename) = (self.string(name), self.string(file));
        let made = &mut self.proto.function;
        *self.functions.entry((name, filename)).or_insert_with(|| {
            let id = made.len() as u64 + 1;
            made.push(Function { id, name, system_name: name, filename });
            id
        })
    }
    fn location(&mut self, address: u64, function_id: u64, line: i64) -> u64 {
        let made = &mut self.proto.location;
        *self.locations.entry((address, function_id, line)).or_insert_with(|| {
            let id = made.len() as u64 + 1;
            made.push(Location { id, address, line: vec![Line { function_id, line }] });
            id
        })
    }
    fn sample(&mut self, sample: &Sample) {
        let mut location_id = vec![];
        sample.each_function(|function| {
            let name = function.name.map_or_else(|| function.to_string(), str::to_owned);
            let (file, line) = function.file.unwrap_or_default();
            let id = self.function(&name, file);
            location_id.push(self.location(function.at as u64, id, line.into()));
        });
        let value =
            [sample.allocated.objects, sample.allocated.bytes, sample.live.objects, sample.live.bytes];
        let cache = self.string(&sample.cache);
        let label = vec![Label { key: self.string("cache"), str: cache }];
        let made = &mut self.proto.sample;
        // Stacks that differ in what the allocator called inside are one.
        let at = *self.samples.entry((location_id.clone(), cache)).or_insert_with(|| {
            made.push(ProtoSample { location_id, value: vec![0; VALUES.len()], label });
            made.len() - 1
        });
        made[at].value.iter_mut().zip(value).for_each(|(sum, value)| *sum += value as i64);
    }
}

impl Profile {
    /// The profile as `pprof` reads it: a compressed `profile.proto`, by convention in a file that ends in `.pb.gz`. Each sample has four
    /// numbers (`alloc_objects`, `alloc_space`, `inuse_objects`, `inuse_space`; the last is shown unless another is asked for) and the label
    /// `cache`. Functions have their names. The difference of two profiles is `pprof -base FIRST.pb.gz SECOND.pb.gz`.
    ///
    /// Allocates, and looks for names, for which it reads the program's debug information: milliseconds at first.
    ///
    /// ```
    /// use uslab::{Config, Gfp, KmemCache, Subsystem};
    ///
    /// let subsystem = Subsystem::new(Config::default())?;
    /// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
    /// subsystem.start_profile(1)?;
    /// let _block = inodes.alloc_block(Gfp::KERNEL)?;
    /// let file = subsystem.profile().pprof();
    /// assert_eq!(file[..2], [0x1f, 0x8b]); // gzip's
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pprof(&self) -> Vec<u8> {
        let mut made = Making::default();
        // The first one is to be empty.
        made.string("");
        made.proto.sample_type = VALUES.iter().map(|value| made.value_type(*value)).collect();
        made.proto.period_type = Some(made.value_type(("space", "bytes")));
        made.proto.period = self.rate as i64;
        made.proto.default_sample_type = made.string("inuse_space");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        made.proto.time_nanos = now.as_nanos() as i64;
        self.samples.iter().for_each(|sample| made.sample(sample));
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        // A vector takes whatever is written to it.
        let _ = gzip.write_all(&made.proto.encode_to_vec());
        gzip.finish().unwrap_or_default()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::{Config, Gfp, KmemCache, Subsystem};
    use flate2::read::GzDecoder;
    use std::io::Read;

    #[inline(never)]
    fn the_one_who_holds(cache: &KmemCache) -> crate::Block<'_> {
        core::hint::black_box(cache.alloc_block(Gfp::KERNEL).unwrap())
    }

    /// What pprof reads: places of strings, functions and locations that there are, and the numbers of each stack.
    #[test]
    fn the_message_says_what_the_profile_does_by_names_that_there_are() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("inode", 600).build_in(&subsystem).unwrap();
        subsystem.start_profile(1).unwrap();
        // One place in the code, which no unrolling makes several.
        let held: Vec<_> = (0..core::hint::black_box(7)).map(|_| the_one_who_holds(&cache)).collect();
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let profile = subsystem.profile();
        let mut bytes = vec![];
        GzDecoder::new(&profile.pprof()[..]).read_to_end(&mut bytes).unwrap();
        let proto = Proto::decode(&bytes[..]).unwrap();
        let text = |at: i64| proto.string_table[at as usize].as_str();
        assert_eq!(text(0), "");
        let types: Vec<_> = proto.sample_type.iter().map(|of| (text(of.r#type), text(of.unit))).collect();
        assert_eq!(types, VALUES);
        assert_eq!((proto.period, text(proto.default_sample_type)), (1, "inuse_space"));
        let sums = |i: usize| proto.sample.iter().map(|sample| sample.value[i]).sum::<i64>();
        assert_eq!([0, 1, 2, 3].map(sums), [8, 4800, 7, 4200]);
        for (at, location) in (1..).zip(&proto.location) {
            assert_eq!(location.id, at);
            assert!(proto.function.get(location.line[0].function_id as usize - 1).is_some());
        }
        let most = &proto.sample[0];
        assert_eq!((text(most.label[0].key), text(most.label[0].str)), ("cache", "inode"));
        assert_eq!(most.value, [7, 4200, 7, 4200]);
        if cfg!(feature = "stacks") {
            let first = &proto.location[most.location_id[0] as usize - 1];
            let function = &proto.function[first.line[0].function_id as usize - 1];
            assert!(text(function.name).contains("the_one_who_holds"), "{}", text(function.name));
        }
        drop(held);
    }
}
