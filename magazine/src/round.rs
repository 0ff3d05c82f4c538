//! The objects in magazines (*rounds*).

use core::ptr::NonNull;

/// An object in a magazine (a *round*): any value that fits a pointer.
///
/// Two threads may share a CPU: one thread may allocate an object that the other thread has freed. Objects
/// must be `Send`, and threads may share any layer.
///
/// ```compile_fail,E0277
/// use core::{cell::Cell, ptr::NonNull};
/// #[derive(Clone, Copy)]
/// struct RoundsThatCannotBeSentAreRefused<'a>(&'a Cell<u64>);
/// impl uslab_magazine::Round for RoundsThatCannotBeSentAreRefused<'_> {
///     fn into_raw(self) -> NonNull<u8> {
///         NonNull::from(self.0).cast()
///     }
///     unsafe fn from_raw(raw: NonNull<u8>) -> Self {
///         Self(unsafe { raw.cast().as_ref() })
///     }
/// }
/// ```
pub trait Round: Copy + Send {
    /// Converts the object to a pointer. Numbers are converted with `NonNull::without_provenance`.
    fn into_raw(self) -> NonNull<u8>;
    /// Converts a pointer back to the object.
    ///
    /// # Safety
    /// `raw` must come from [`into_raw`](Round::into_raw) of the same type.
    unsafe fn from_raw(raw: NonNull<u8>) -> Self;
}
