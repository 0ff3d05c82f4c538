//! Hooks: user functions that run on the objects of a cache.

use std::fmt;
use std::ptr::NonNull;
use uslab_magazine::sync::ContainedValue;

/// A user function that runs on an object, and whose panics are contained.
pub(crate) type Hook<R> = ContainedValue<Box<dyn Fn(NonNull<u8>) -> R + Send + Sync>>;

/// Functions that run when an object is constructed, destructed or freed.
pub(crate) struct Hooks {
    /// Constructs the object; returns `false` on failure.
    pub(crate) construct: Hook<bool>,
    pub(crate) destruct: Option<Hook<()>>,
    /// Resets an object when its user frees it.
    pub(crate) reset: Option<Hook<()>>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").field("destruct", &self.destruct.is_some()).finish_non_exhaustive()
    }
}

/// How the cache knows the number of bytes that a constructed object owns in addition to its slot.
#[derive(Default)]
pub(crate) enum HeldBytes {
    /// The number of owned bytes is unknown.
    #[default]
    Unknown,
    /// Each object owns the same number of bytes, which the builder declared.
    Declared(usize),
    /// A function measures the bytes that each object owns.
    Weighed(Hook<usize>),
}

impl fmt::Debug for HeldBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("Unknown"),
            Self::Declared(bytes) => f.debug_tuple("Declared").field(bytes).finish(),
            Self::Weighed(_) => f.write_str("Weighed"),
        }
    }
}

impl HeldBytes {
    /// Declared number of bytes that an object owns, or 0 if the builder declared none.
    pub(crate) fn declared_bytes(&self) -> usize {
        if let Self::Declared(bytes) = self { *bytes } else { 0 }
    }
}
