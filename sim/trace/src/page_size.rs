//! The page size of the traced machine, which is the unit of all page numbers in a trace.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use uslab::SlabInfo;

/// A page size, which is the unit of page frame numbers, orders and slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageSize {
    /// 4 KiB: x86-64, and most arm64 machines.
    Kib4,
    /// 16 KiB: arm64.
    Kib16,
    /// 64 KiB: arm64.
    Kib64,
}

/// How the page size was determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageSizeSource {
    /// The user specified the size.
    Given,
    /// The size was computed from the objects per slab in the kernel's slabinfo.
    Slabinfo,
    /// Only with this size do object addresses agree with page numbers.
    Addresses,
    /// The size was assumed, because the trace and its tables do not reveal it.
    Assumed,
}

impl PageSize {
    /// All page sizes, beginning with the smallest.
    pub const ALL: [Self; 3] = [Self::Kib4, Self::Kib16, Self::Kib64];

    /// Returns the binary logarithm of the size in bytes.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::Kib4 => 12,
            Self::Kib16 => 14,
            Self::Kib64 => 16,
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// Returns the order of the page allocator's largest block, which has `2^max_order` pages.
    #[must_use]
    pub const fn max_order(self) -> u8 {
        match self {
            Self::Kib4 => 10,
            Self::Kib16 => 11,
            Self::Kib64 => 13,
        }
    }

    /// Returns the size in bytes of kmalloc's largest object, a block of the highest order.
    #[must_use]
    pub const fn max_kmalloc_object_bytes(self) -> u64 {
        self.bytes() << self.max_order()
    }

    /// Returns the size in bytes of kmalloc's largest size class. Larger objects are not in slabs: kmalloc takes their
    /// pages directly from the page allocator.
    #[must_use]
    pub const fn max_kmalloc_class_bytes(self) -> u64 {
        self.bytes() * 2
    }

    /// Infers a kernel's page size from its slabinfo, because a slab holds as many objects as fit on its
    /// pages. Returns `None` if slabinfo has no cache, or if no page size explains all caches.
    #[must_use]
    pub fn from_slabinfo(slabinfo: &SlabInfo) -> Option<Self> {
        // Rows of caches that share another cache's slabs reveal nothing.
        let rows = slabinfo.rows.iter().filter(|row| row.objects_per_slab > 0 && row.object_size > 0);
        let rows: Vec<_> = rows.collect();
        let fits = |size: &Self| {
            rows.iter().all(|row| {
                let slab = row.pages_per_slab.checked_mul(size.bytes());
                slab.and_then(|slab| slab.checked_div(row.object_size)) == Some(row.objects_per_slab)
            })
        };
        Self::ALL.into_iter().find(fits).filter(|_| !rows.is_empty())
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB", self.bytes() >> 10)
    }
}

impl FromStr for PageSize {
    type Err = String;

    /// Parses a page size: `4k`, `16k` or `64k`, in upper or lower case, or a number of bytes.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.to_ascii_lowercase();
        let named =
            |size: &Self| text == format!("{}k", size.bytes() >> 10) || text == size.bytes().to_string();
        Self::ALL.into_iter().find(named).ok_or_else(|| "expected 4k, 16k or 64k".to_owned())
    }
}

impl Serialize for PageSize {
    /// Writes the size as a number of bytes.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_written_as_in_kernel_configurations() {
        for (text, size) in [
            ("4k", PageSize::Kib4),
            ("16K", PageSize::Kib16),
            ("64k", PageSize::Kib64),
            ("65536", PageSize::Kib64),
        ] {
            assert_eq!(text.parse(), Ok(size), "{text}");
        }
        for wrong in ["", "4", "8k", "64 KiB", "2M"] {
            assert_eq!(wrong.parse::<PageSize>(), Err("expected 4k, 16k or 64k".to_owned()), "{wrong}");
        }
        assert_eq!(PageSize::Kib64.to_string(), "64 KiB");
        assert_eq!(PageSize::Kib64.max_kmalloc_object_bytes(), 512 << 20);
    }

    #[test]
    fn page_size_is_found_from_slabinfo() {
        let table = |rows: &[(u64, u64, u64)]| -> SlabInfo {
            let rows = rows.iter().enumerate().map(|(n, (size, objects, pages))| {
                format!("c{n} 1 1 {size} {objects} {pages} : tunables 0 0 0 : slabdata 1 1 0\n")
            });
            format!("slabinfo - version: 2.1\n{}", rows.collect::<String>()).parse().unwrap()
        };
        for (page, size) in [(4096, PageSize::Kib4), (16_384, PageSize::Kib16), (65_536, PageSize::Kib64)] {
            let rows = [(192, 1), (704, 2), (8, 1), (1_088, 4)]
                .map(|(size, pages)| (size, pages * page / size, pages));
            assert_eq!(PageSize::from_slabinfo(&table(&rows)), Some(size));
            let mut wrong = rows;
            wrong[2].1 -= 1;
            assert_eq!(PageSize::from_slabinfo(&table(&wrong)), None, "one cache follows another rule");
        }
        assert_eq!(PageSize::from_slabinfo(&table(&[])), None);
        assert_eq!(PageSize::from_slabinfo(&table(&[(0, 0, 1)])), None, "the size must not be zero");
    }
}
