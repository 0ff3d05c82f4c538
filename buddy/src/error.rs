//! Error types of the page allocator.

use crate::gfp::ZoneKind;
use crate::pfn::Order;

/// The limit that refused an allocation. Later variants of `Limit` are more specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Limit {
    /// The flags require a zone that the allocator, or the node, does not have.
    Zone,
    /// The requested node does not exist.
    Node,
    /// The requested order exceeds the allocator's largest order.
    Order,
    /// Fewer pages are free than requested.
    Exhausted,
    /// Enough pages are free, but the watermark and the lowmem reserve forbid their use.
    Watermark,
    /// Enough pages are free, but no block of the requested order is free.
    Fragmented,
    /// Reserved memory was left, but the system refused to commit it.
    CommitRefused,
    /// An injected fault refused the request: see [`faults`](crate::faults).
    Injected,
}

/// Error of a failed allocation; the failed call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AllocError {
    /// The requested order.
    pub order: Order,
    /// The only allowed node, or the node that does not exist; `None` if all nodes were tried.
    pub node: Option<u32>,
    /// The most specific limit among the zones that were tried.
    pub limit: Limit,
}

impl core::fmt::Display for AllocError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "no block of order {}", self.order)?;
        if let Some(node) = self.node {
            write!(f, " on node {node}")?;
        }
        f.write_str(match self.limit {
            Limit::Zone => ": no zone serves these flags",
            Limit::Node => ": the node does not exist",
            Limit::Order => ": the order exceeds the maximum",
            Limit::Exhausted => ": out of pages",
            Limit::Watermark => ": the watermark reserves the free pages",
            Limit::Fragmented => ": enough pages are free, but not in one block",
            Limit::CommitRefused => ": the system refused to commit more memory",
            Limit::Injected => ": refused by fault injection",
        })
    }
}
impl core::error::Error for AllocError {}

/// Error of creating a page allocator: an invalid configuration, or memory that could not be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageError {
    /// The zones have no pages.
    NoPages,
    /// The zones have more pages than page numbers can count.
    TooManyPages {
        /// Number of requested pages, with zones rounded up to maximal blocks.
        pages: u64,
        /// Maximum number of pages.
        most: u64,
    },
    /// The CPUs are on more nodes than the configuration describes.
    NodesOfCpus {
        /// Number of nodes of the CPUs.
        cpus: u32,
        /// Number of nodes in the configuration.
        nodes: u32,
    },
    /// The configuration has more nodes than are supported.
    TooManyNodes {
        /// Number of nodes in the configuration.
        nodes: usize,
        /// Maximum number of nodes.
        most: u32,
    },
    /// A node has two zones of one kind.
    DuplicateZone {
        /// Index of the node, from 0.
        node: u32,
        /// The zone kind that the node has twice.
        kind: ZoneKind,
    },
    /// A pageblock would be larger than the largest block.
    PageblockOrder {
        /// The order of a pageblock.
        pageblock: Order,
        /// The largest block order.
        max: Order,
    },
    /// The distance table is not square with one row per node.
    Distances {
        /// Number of nodes in the configuration.
        nodes: u32,
    },
    /// The system refused even the smallest reservation, or the system's pages are not 4 KiB.
    Refused {
        /// Size of the last request in bytes.
        bytes: usize,
    },
}

impl core::fmt::Display for PageError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::NoPages => f.write_str("no pages: at least one page of 4096 bytes is needed"),
            Self::TooManyPages { pages, most } => write!(f, "{pages} pages: at most {most} are supported"),
            Self::NodesOfCpus { cpus, nodes } => {
                write!(f, "the CPUs are on {cpus} nodes, but zones are given for {nodes}")
            }
            Self::TooManyNodes { nodes, most } => write!(f, "{nodes} nodes: at most {most} are supported"),
            Self::DuplicateZone { node, kind } => write!(f, "node {node} has two zones {}", kind.name()),
            Self::PageblockOrder { pageblock, max } => {
                write!(f, "a pageblock of order {pageblock} is larger than the largest block, order {max}")
            }
            Self::Distances { nodes } => {
                write!(f, "the table of node distances is not {nodes} by {nodes}")
            }
            Self::Refused { bytes } => {
                write!(
                    f,
                    "the system refused to reserve even {bytes} bytes of address space, or its pages are not of 4096 bytes"
                )
            }
        }
    }
}
impl core::error::Error for PageError {}
