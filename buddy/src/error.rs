//! Error types of the page allocator.

use crate::gfp::ZoneKind;
use crate::pfn::Order;

/// The reason why an allocation failed. If zones fail for different reasons, the error reports the variant that is
/// declared last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Limit {
    /// The flags allow only zones that do not exist in the allocator, or on the required node.
    Zone,
    /// The requested node does not exist.
    Node,
    /// The requested order is above the allocator's largest order.
    Order,
    /// Fewer pages are free than the allocation requested.
    Exhausted,
    /// Enough pages are free, but the allocation would push a zone below its watermark plus lowmem reserve.
    Watermark,
    /// Enough pages are free, but they are fragmented: no block of the requested order is free.
    Fragmented,
    /// Uncommitted memory was left, but the OS refused to commit it.
    CommitRefused,
    /// Fault injection refused the allocation: see [`faults`](crate::faults).
    Injected,
}

/// The error of a failed page allocation. A failed allocation does not change the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AllocError {
    /// The requested order.
    pub order: Order,
    /// The node to which the request was restricted, or the requested node that does not exist; `None` if all nodes
    /// were tried.
    pub node: Option<u32>,
    /// The reason for the failure; if zones failed for different reasons, the variant that [`Limit`] declares last.
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

/// The error of creating a page allocator: the configuration is invalid, or the OS refused to reserve memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageError {
    /// All zones together have no pages.
    NoPages,
    /// The zones have more pages than page numbers can represent.
    TooManyPages {
        /// Number of requested pages, with each zone rounded up to whole maximal blocks.
        pages: u64,
        /// Maximum number of supported pages.
        most: u64,
    },
    /// The CPUs are spread over more nodes than the configuration has zones for.
    NodesOfCpus {
        /// Number of nodes that the CPUs are on.
        cpus: u32,
        /// Number of nodes for which the configuration lists zones.
        nodes: u32,
    },
    /// The configuration has too many nodes.
    TooManyNodes {
        /// Number of nodes for which the configuration lists zones.
        nodes: usize,
        /// Maximum number of supported nodes.
        most: u32,
    },
    /// A node has two zones of one kind.
    DuplicateZone {
        /// Index of the memory node, counted from 0.
        node: u32,
        /// The zone kind that the node has twice.
        kind: ZoneKind,
    },
    /// A pageblock would be larger than the largest block.
    PageblockOrder {
        /// The configured order of a pageblock.
        pageblock: Order,
        /// The configured order of the largest block.
        max: Order,
    },
    /// The distance table does not have one row and one column per node.
    Distances {
        /// Number of nodes for which the configuration lists zones.
        nodes: u32,
    },
    /// The OS refused even the smallest reservation, or the OS page size is not 4 KiB.
    Refused {
        /// Size in bytes of the last reservation that the OS refused.
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
