//! Interned byte strings: call sites, cache names, flags, event names.
//!
//! A trace repeats about a thousand different strings a million times. Looking up a known string allocates no
//! memory.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

/// The number of an interned string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(pub(super) u32);

/// A set of strings; strings are numbered in the order of their first appearance.
#[derive(Debug, Default)]
pub struct Symbols {
    numbers: FxHashMap<Box<[u8]>, Symbol>,
    strings: Vec<Box<[u8]>>,
}

impl Symbols {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of `string`; a new string gets a new number.
    pub fn intern(&mut self, string: &[u8]) -> Symbol {
        if let Some(&symbol) = self.numbers.get(string) {
            return symbol;
        }
        // More than four thousand million different strings would not fit into memory with the input.
        let symbol = Symbol(u32::try_from(self.strings.len()).unwrap_or(u32::MAX));
        self.numbers.insert(string.into(), symbol);
        self.strings.push(string.into());
        symbol
    }

    /// Returns the number of `string`, if the set contains it.
    #[must_use]
    pub fn find(&self, string: &[u8]) -> Option<Symbol> {
        self.numbers.get(string).copied()
    }

    /// Returns the bytes of an interned string.
    #[must_use]
    pub fn bytes(&self, symbol: Symbol) -> &[u8] {
        self.strings.get(symbol.0 as usize).map_or(b"", |s| s)
    }

    /// Returns an interned string as text; invalid UTF-8 is replaced.
    #[must_use]
    pub fn text(&self, symbol: Symbol) -> Cow<'_, str> {
        String::from_utf8_lossy(self.bytes(symbol))
    }

    /// Returns the number of strings in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.strings.len()
    }

    /// Returns `true` if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }
}
