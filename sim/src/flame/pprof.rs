//! Reads heap profiles in pprof's format, as `uslab` and other programs write them.

use super::names::{CodePosition, Names};
use super::{Flame, Stack};
use anyhow::{Context, ensure};
use flate2::read::MultiGzDecoder;
use prost::Message;
use std::collections::HashMap;
use std::io::Read;

/// The largest accepted size of an unpacked profile in bytes.
const MAX_UNPACKED_BYTES: u64 = 1 << 30;

// The struct has only the fields that are read.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}
#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
}
#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}
#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}
#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
}
#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}
#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}
#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

impl Profile {
    fn text(&self, at: i64) -> anyhow::Result<&str> {
        let text = usize::try_from(at).ok().and_then(|at| self.string_table.get(at));
        text.map(String::as_str).with_context(|| format!("the profile lacks string {at}"))
    }

    /// Returns the index of the sample value to show: the profile's default value, or else the last one.
    fn shown(&self) -> anyhow::Result<usize> {
        let default = self.sample_type.iter().position(|of| of.r#type == self.default_sample_type);
        default.or(self.sample_type.len().checked_sub(1)).context("the profile's samples have no values")
    }

    /// Returns the functions of a location, innermost first.
    fn functions(&self, location: &Location, names: &mut Names) -> anyhow::Result<Vec<String>> {
        if !location.line.is_empty() {
            let name = |line: &Line| {
                let function = self.function.iter().find(|function| function.id == line.function_id);
                let function =
                    function.with_context(|| format!("the profile lacks function {}", line.function_id))?;
                Ok(self.text(function.name)?.to_owned())
            };
            return location.line.iter().map(name).collect();
        }
        let Some(mapping) = self.mapping.iter().find(|mapping| mapping.id == location.mapping_id) else {
            return Ok(vec![format!("{:#x}", location.address)]);
        };
        let place = CodePosition::InFile(
            location.address.wrapping_sub(mapping.memory_start).wrapping_add(mapping.file_offset),
        );
        Ok(names.resolve_functions(self.text(mapping.filename)?, self.text(mapping.build_id)?, place))
    }
}

/// Parses a compressed profile.
pub(super) fn read(title: &str, packed: &[u8], names: &mut Names) -> anyhow::Result<Flame> {
    let mut message = vec![];
    MultiGzDecoder::new(packed)
        .take(MAX_UNPACKED_BYTES + 1)
        .read_to_end(&mut message)
        .context("the profile cannot be unpacked")?;
    ensure!(
        message.len() as u64 <= MAX_UNPACKED_BYTES,
        "the profile unpacks to more than {MAX_UNPACKED_BYTES} bytes"
    );
    let profile = Profile::decode(&message[..]).context("the profile is not a message of profile.proto")?;
    let shown = profile.shown()?;
    let mut functions = HashMap::new();
    for location in &profile.location {
        functions.insert(location.id, profile.functions(location, names)?);
    }
    let mut stacks = vec![];
    for sample in &profile.sample {
        let value = *sample.value.get(shown).context("a sample of the profile lacks a value")?;
        let bytes = u64::try_from(value).with_context(|| {
            format!("sample value {value}: expected at least 0; profile differences are not supported")
        })?;
        let mut cache = profile.text(profile.sample_type[shown].r#type)?;
        for label in &sample.label {
            if profile.text(label.key)? == "cache" {
                cache = profile.text(label.str)?;
            }
        }
        let mut frames = vec![];
        for id in &sample.location_id {
            frames.extend_from_slice(
                functions.get(id).with_context(|| format!("the profile lacks location {id}"))?,
            );
        }
        frames.push(cache.to_owned());
        frames.reverse();
        if bytes > 0 {
            stacks.push(Stack { frames, bytes });
        }
    }
    Flame::new(title, stacks)
}
