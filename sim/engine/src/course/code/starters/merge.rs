//! Buddy merging: how small free blocks become large blocks again.
//!
//! The memory is one block of `2^lists.order()` pages at first. `alloc` is complete: it takes the smallest block that
//! is large enough and splits it. The buddy of a block of order n at page p is the block of order n at page p ^ (1 <<
//! n). The code below never merges blocks. Write `free`. The lists of free blocks are the only state, and the judge
//! counts accesses to them.
//!
//! Available calls. Each of the following calls, except `lists.order()`, counts as one list access:
//!
//! - `lists.pop(order)`: takes the lowest free block of an order, or returns `None` if the list of this order is empty.
//! - `lists.push(page, order)`: adds a free block of this order that begins at `page`.
//! - `lists.remove(page, order)`: takes the free block of exactly this order that begins at `page`; returns `false` if
//!   there is no such block.
//! - `lists.order()`: returns the order of the largest block.

use uslab_engine::course::{Buddy, FreeLists};

#[derive(Debug)]
pub struct Exercise;

impl Buddy for Exercise {
    fn alloc(lists: &mut FreeLists, order: u8) -> Option<u32> {
        let mut from = order;
        let page = loop {
            if let Some(page) = lists.pop(from) {
                break page;
            }
            if from == lists.order() {
                return None;
            }
            from += 1;
        };
        while from > order {
            from -= 1;
            lists.push(page + (1 << from), from);
        }
        Some(page)
    }

    fn free(lists: &mut FreeLists, page: u32, order: u8) {
        // To be written.
        lists.push(page, order);
    }
}
