//! The C library's functions on an allocator that is linked in.

pub(crate) use core::ffi::{c_int, c_void};

/// Exports functions, each of which calls another one with the same arguments.
macro_rules! exports {
    ($( $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $own:ident; )*) => {
        use shim::{c_int, c_void};
        unsafe extern "C" {
            $( fn $own($($argument: $type),*) -> $result; )*
        }
        $(
            /// # Safety
            /// As the C library's function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: passed on.
                unsafe { $own($($argument),*) }
            }
        )*
    };
}
pub(crate) use exports;
