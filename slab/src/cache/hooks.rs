//! What users run on the objects of a cache, and what they say of them.

use std::fmt;
use std::ptr::NonNull;
use uslab_magazine::sync::Contained;

/// Runs on an object.
pub(crate) type Hook<R> = Contained<Box<dyn Fn(NonNull<u8>) -> R + Send + Sync>>;

/// What runs on an object when it begins, ends, and comes back.
pub(crate) struct Hooks {
    /// Whether it could be constructed.
    pub(crate) construct: Hook<bool>,
    pub(crate) destruct: Option<Hook<()>>,
    /// Runs on an object that its user gives back.
    pub(crate) reset: Option<Hook<()>>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").field("destruct", &self.destruct.is_some()).finish_non_exhaustive()
    }
}

/// What is known of the bytes that a constructed object holds.
#[derive(Default)]
pub(crate) enum Holds {
    /// Nothing.
    #[default]
    Unknown,
    /// Each holds so many.
    Declared(usize),
    /// An object says how many it holds now.
    Weighed(Hook<usize>),
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("Unknown"),
            Self::Declared(bytes) => f.debug_tuple("Declared").field(bytes).finish(),
            Self::Weighed(_) => f.write_str("Weighed"),
        }
    }
}

impl Holds {
    /// Bytes of one, where they are declared.
    pub(crate) fn declared(&self) -> usize {
        if let Self::Declared(bytes) = self { *bytes } else { 0 }
    }
}
