//! Finds functions by address, from the symbols and debug information of a file.

use super::names::CodePosition;
use addr2line::{Loader, demangle_auto};
use anyhow::ensure;
use object::{Object, ObjectSegment, ReadCache};
use std::borrow::Cow;
use std::fmt::Write;
use std::fs::File;

/// A file with machine code.
pub(super) struct Code {
    loader: Loader,
    /// The file's segments: address, offset in the file, and number of bytes.
    segments: Vec<(u64, u64, u64)>,
}

impl Code {
    /// Opens the file if its build id matches `build_id`, or if `build_id` is empty.
    pub(super) fn open(file: &str, build_id: &str) -> anyhow::Result<Self> {
        // A pipe might block for ever.
        ensure!(std::fs::metadata(file)?.is_file(), "not a file");
        let content = ReadCache::new(File::open(file)?);
        let object = object::File::parse(&content)?;
        let own = object.build_id()?.unwrap_or_default().iter().fold(String::new(), |mut text, byte| {
            _ = write!(text, "{byte:02x}");
            text
        });
        ensure!(build_id.is_empty() || own == build_id, "the file is from another build than the profile");
        let segments = object.segments().map(|segment| {
            let (offset, size) = segment.file_range();
            (segment.address(), offset, size)
        });
        let segments = segments.collect();
        let loader = Loader::new(file).map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(Self { loader, segments })
    }
    /// Converts a code position to an address as used by the file's symbols.
    fn address(&self, place: CodePosition) -> Option<u64> {
        match place {
            CodePosition::InFile(at) => self.segments.iter().find_map(|(address, offset, size)| {
                let into = at.checked_sub(*offset).filter(|into| into < size)?;
                address.checked_add(into)
            }),
            CodePosition::Mapped(at) => {
                let first = self.segments.iter().map(|segment| segment.0).min()?;
                // Segments are mapped in whole pages.
                (first & !0xfff).checked_add(at)
            }
        }
    }
    /// Returns the functions at a code position, innermost first; a position in inlined code has several functions.
    pub(super) fn functions(&self, place: CodePosition) -> Vec<String> {
        let Some(address) = self.address(place) else { return vec![] };
        let mut names = vec![];
        if let Ok(mut frames) = self.loader.find_frames(address) {
            while let Ok(Some(frame)) = frames.next() {
                names.extend(frame.function.iter().filter_map(|of| of.demangle().ok()).map(Cow::into_owned));
            }
        }
        if names.is_empty() {
            let symbol = self.loader.find_symbol(address);
            names.extend(symbol.map(|name| demangle_auto(name.into(), None).into_owned()));
        }
        names
    }
}
