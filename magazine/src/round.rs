//! The trait of objects that magazines hold (*rounds*).

use core::ptr::NonNull;

/// An object that a magazine can hold (a *round*): any value that fits into a pointer.
///
/// An object that one thread freed may be allocated by another thread that runs on the same CPU. A round must therefore
/// be `Send`.
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
    /// Converts the object to a non-null pointer, which a stack can store. For a number, use
    /// `NonNull::without_provenance`.
    fn into_raw(self) -> NonNull<u8>;
    /// Converts a pointer from [`into_raw`](Round::into_raw) back to the object.
    ///
    /// # Safety
    /// The pointer `raw` must come from [`into_raw`](Round::into_raw) of the same type.
    unsafe fn from_raw(raw: NonNull<u8>) -> Self;
}
