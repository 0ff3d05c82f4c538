//! Errors of allocations that return handles.

use core::convert::Infallible;
use core::fmt;

/// The reason why an allocation that returns a handle failed. After a failed allocation, the container is unchanged.
/// The caller may free an object and try again.
///
/// If handles name objects of a cache, `E` says why the cache supplied no object. Tables and maps store their values
/// themselves, so `E` is never used.
///
/// ```
/// use uslab_handle::{HandleError, HandleTable};
///
/// let mut entities = HandleTable::<u8, u32, 31>::new(); // 1 bit of index
/// entities.alloc(0)?;
/// entities.alloc(1)?;
/// assert_eq!(entities.alloc(2), Err(HandleError::Full { slots: 2, retired: 0 }));
/// # Ok::<(), HandleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandleError<E = Infallible> {
    /// Every index is in use, or is retired because its slot has used up its generations.
    Full {
        /// Number of different indexes that a handle can have.
        slots: u64,
        /// Number of retired slots, which `slots` includes.
        retired: u64,
    },
    /// There is not enough memory for a larger table.
    Memory,
    /// The cache has no object for the handle.
    Object(E),
}

impl<E: fmt::Display> fmt::Display for HandleError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { slots, retired } => write!(
                f,
                "all {slots} indices are in use or retired ({retired} retired); use handles with more index bits"
            ),
            Self::Memory => f.write_str("no memory for a larger table of handles"),
            Self::Object(error) => write!(f, "no object for a handle: {error}"),
        }
    }
}
impl<E: fmt::Debug + fmt::Display> core::error::Error for HandleError<E> {}

impl<E> From<E> for HandleError<E> {
    fn from(error: E) -> Self {
        Self::Object(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handle_error_names_the_missing_resource() {
        let message = |error: HandleError<&str>| error.to_string();
        let full = message(HandleError::Full { slots: 256, retired: 7 });
        assert!(full.contains("all 256 indices are in use or retired (7 retired)"), "{full}");
        assert!(message(HandleError::Memory).contains("larger table"));
        let object = message("the cache is at its limit of 3 slabs".into());
        assert_eq!(object, "no object for a handle: the cache is at its limit of 3 slabs");
    }
}
