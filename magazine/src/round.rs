//! What magazines hold.

use core::ptr::NonNull;

/// What magazines hold: anything that fits a pointer.
///
/// Rounds travel: whoever runs on a CPU is handed what another thread has left there. So they must be `Send`, and layers may
/// be shared by threads whatever their rounds are.
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
    /// The round as a pointer (a number may use `NonNull::without_provenance`).
    fn into_raw(self) -> NonNull<u8>;
    /// The round again.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Round::into_raw) of the same type.
    unsafe fn from_raw(raw: NonNull<u8>) -> Self;
}
