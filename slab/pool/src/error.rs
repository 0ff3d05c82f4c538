//! The errors of making a pool, allocating from it, and freeing to it. All errors are returned as values, and a failed
//! call changes nothing.

use core::fmt;

/// The reason why a pool cannot be made from some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolError {
    /// The requested alignment is not a power of two.
    Align {
        /// Requested alignment, in bytes.
        align: usize,
    },
    /// The start of the memory is not aligned for the objects.
    Start {
        /// The alignment that the objects require, in bytes.
        align: usize,
    },
    /// The size of a class is not a multiple of a word, or the list of size classes is empty.
    Class {
        /// Size of the class in bytes; 0 if the list is empty.
        size: usize,
    },
    /// A free slot is too small for the link to the next free slot.
    Small {
        /// Size of a slot in bytes.
        slot: usize,
        /// Size of a link in bytes.
        least: usize,
    },
    /// The size and the alignment of an object together exceed the address space.
    Large {
        /// Size of an object in bytes.
        size: usize,
    },
    /// The memory has no room for the requested slots, or not even for one slot.
    NoRoom {
        /// Number of bytes that are available.
        bytes: usize,
        /// Number of bytes that are required.
        needed: usize,
    },
    /// There are more blocks than a 4-byte index can count, or more size classes than a 2-byte index can count.
    Many {
        /// Number of blocks or size classes, or a lower bound for it.
        blocks: usize,
        /// Maximum number of blocks or size classes.
        max: usize,
    },
    /// Some objects are in use, so the memory cannot be divided into other blocks.
    Busy {
        /// Number of objects in use.
        live: usize,
    },
    /// The system refused to provide memory or address space.
    Memory {
        /// Number of bytes that were requested from the system.
        bytes: usize,
    },
    /// The memory is too large for 32-bit positions.
    Positions {
        /// Size of the memory in bytes.
        bytes: usize,
        /// Maximum size of the memory in bytes.
        max: usize,
    },
    /// A range of sizes from one power of two to the next cannot be divided into `2^bits` size classes.
    Steps {
        /// Base-2 logarithm of the number of size classes per doubling.
        bits: u32,
    },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Align { align } => write!(f, "an alignment of {align} bytes is not a power of two"),
            Self::Start { align } => write!(f, "the memory does not begin at a multiple of {align} bytes"),
            Self::Class { size } => {
                write!(f, "the size class {size} is not a multiple of {0} bytes", super::slot::LINK_BYTES)
            }
            Self::Small { slot, least } => {
                write!(f, "a slot of {slot} bytes is too small for a link; expected at least {least} bytes")
            }
            Self::Large { size } => write!(f, "slots for {size} bytes at that alignment are too large"),
            Self::NoRoom { bytes, needed } => {
                write!(f, "{bytes} bytes of memory are too few: {needed} are needed")
            }
            Self::Many { blocks, max } => write!(f, "{blocks} blocks or sizes are too many: at most {max}"),
            Self::Busy { live } => write!(f, "{live} objects are in use; free them, or reset the pool"),
            Self::Memory { bytes } => write!(f, "the system refused {bytes} bytes"),
            Self::Positions { bytes, max } => {
                write!(f, "{bytes} bytes of memory are too many: at most {max}")
            }
            Self::Steps { bits } => write!(f, "second-level bits {bits}: expected 2 to 5"),
        }
    }
}
impl core::error::Error for PoolError {}

/// The reason why an allocation failed. The caller may free memory and try again, or use another pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// Every slot is in use.
    Full,
    /// No free block is large enough for the size and the alignment.
    NoRoom {
        /// Number of bytes that the caller requested.
        bytes: usize,
        /// Alignment in bytes that the caller requested.
        align: usize,
    },
    /// The object is larger than a slot.
    Size {
        /// Number of bytes that the caller requested.
        requested: usize,
        /// Size of the largest object in bytes.
        max: usize,
    },
    /// The object needs a stricter alignment than the slots have.
    Align {
        /// Alignment in bytes that the caller requested.
        requested: usize,
        /// Largest alignment that the slots support, in bytes.
        max: usize,
    },
    /// The pool is [strict](super::SlotLayout::strict), and serves only one size and alignment.
    Strict {
        /// Number of bytes that the caller requested.
        size: usize,
        /// Alignment in bytes that the caller requested.
        align: usize,
        /// Size and alignment that the pool serves, in bytes.
        only: (usize, usize),
    },
    /// The requested offset of the aligned byte differs from the pool's offset.
    Offset {
        /// Offset of the aligned byte in the request.
        requested: usize,
        /// Offset of the byte that the pool aligns in each slot.
        aligned: usize,
    },
    /// The system refused memory for more slots.
    Memory {
        /// Number of bytes that were requested from the system.
        bytes: usize,
    },
    /// The next free slot was overwritten, either by a write after its free or by an overrun. After it has detected the
    /// damage, the pool refuses all requests.
    Corrupt(Overrun),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("all slots of the pool are in use"),
            Self::NoRoom { bytes, align } => {
                write!(f, "no free block holds {bytes} bytes aligned to {align}")
            }
            Self::Size { requested, max } => {
                write!(f, "{requested} bytes exceed the pool's maximum of {max}")
            }
            Self::Align { requested, max } => {
                write!(f, "alignment {requested} exceeds the pool's maximum of {max}")
            }
            Self::Strict { size, align, only } => write!(
                f,
                "{size} bytes aligned to {align} are not the {} bytes aligned to {} that this strict pool serves",
                only.0, only.1
            ),
            Self::Offset { requested, aligned } => {
                write!(f, "byte {requested} of a slot is not aligned: the pool aligns byte {aligned}")
            }
            Self::Memory { bytes } => write!(f, "the system refused {bytes} bytes for more slots"),
            Self::Corrupt(overrun) => write!(f, "the next free slot was overwritten: {overrun}"),
        }
    }
}
impl core::error::Error for Refused {}

/// The reason why a slot or block was not freed. A failed free leaves the pool and the slot unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadFree {
    /// The address is outside the slots of the pool, or outside the memory of the allocator.
    Foreign {
        /// The freed address.
        address: usize,
    },
    /// The address is inside a slot, but not at its start.
    Interior {
        /// The freed address.
        address: usize,
        /// Index of the slot, from 0.
        slot: usize,
    },
    /// The slot is already free, or was never in use.
    Double {
        /// Index of the slot, from 0.
        slot: usize,
    },
    /// No block that is in use begins at the address.
    NotAllocated {
        /// The freed address.
        address: usize,
    },
    /// Bytes before or after the object were overwritten, or the object was overwritten while free.
    Overrun(Overrun),
}

/// Describes a damaged guard of an object, or damage to a free object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// Address of the object.
    pub address: usize,
    /// Where the damaged bytes are, relative to the object.
    pub side: Side,
    /// Value of the damaged bytes.
    pub found: u32,
    /// Value that the damaged bytes should have.
    pub written: u32,
}

/// Where damaged bytes are, relative to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The damaged bytes are the guard before the object.
    Before,
    /// The damaged bytes are in the object, which was overwritten while it was free.
    Inside,
    /// The damaged bytes are the guard after the object.
    After,
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Before => "the guard in front of",
            Side::Inside => "a word of",
            Side::After => "the guard behind",
        };
        let Self { address, found, written, .. } = self;
        write!(f, "{side} the object at {address:#x} is {found:#010x}, not {written:#010x}")
    }
}

impl fmt::Display for BadFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign { address } => write!(f, "free of {address:#x}, which is outside the pool"),
            Self::Interior { address, slot } => {
                write!(f, "free of {address:#x}, which is inside slot {slot}, not at its start")
            }
            Self::Double { slot } => write!(f, "free of slot {slot}, which is free"),
            Self::NotAllocated { address } => {
                write!(f, "free of {address:#x}, which is not the start of a block in use")
            }
            Self::Overrun(overrun) => overrun.fmt(f),
        }
    }
}
impl core::error::Error for BadFree {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_error_messages_contain_their_numbers() {
        let pool = |error: PoolError| error.to_string();
        assert_eq!(pool(PoolError::Align { align: 3 }), "an alignment of 3 bytes is not a power of two");
        assert_eq!(
            pool(PoolError::Start { align: 64 }),
            "the memory does not begin at a multiple of 64 bytes"
        );
        assert_eq!(pool(PoolError::Class { size: 12 }), "the size class 12 is not a multiple of 8 bytes");
        assert_eq!(
            pool(PoolError::Small { slot: 4, least: 8 }),
            "a slot of 4 bytes is too small for a link; expected at least 8 bytes"
        );
        assert_eq!(
            pool(PoolError::NoRoom { bytes: 31, needed: 32 }),
            "31 bytes of memory are too few: 32 are needed"
        );
        assert_eq!(pool(PoolError::Busy { live: 2 }), "2 objects are in use; free them, or reset the pool");
        assert_eq!(
            pool(PoolError::Positions { bytes: 1 << 32, max: 1 << 31 }),
            "4294967296 bytes of memory are too many: at most 2147483648"
        );
        assert_eq!(pool(PoolError::Steps { bits: 6 }), "second-level bits 6: expected 2 to 5");
        let refused = Refused::NoRoom { bytes: 9, align: 8 };
        assert_eq!(refused.to_string(), "no free block holds 9 bytes aligned to 8");
        let refused = Refused::Offset { requested: 4, aligned: 0 };
        assert_eq!(refused.to_string(), "byte 4 of a slot is not aligned: the pool aligns byte 0");
        let overrun = Overrun { address: 0x40, side: Side::After, found: 1, written: 0xFACE_B0B5 };
        assert_eq!(
            BadFree::Overrun(overrun).to_string(),
            "the guard behind the object at 0x40 is 0x00000001, not 0xfaceb0b5"
        );
        assert_eq!(
            BadFree::Interior { address: 0x41, slot: 2 }.to_string(),
            "free of 0x41, which is inside slot 2, not at its start"
        );
        assert_eq!(
            BadFree::NotAllocated { address: 0x40 }.to_string(),
            "free of 0x40, which is not the start of a block in use"
        );
        assert_eq!(BadFree::Double { slot: 3 }.to_string(), "free of slot 3, which is free");
    }
}
