//! Buddy merging: how small free blocks become large blocks again.
//!
//! The memory is one block of `2^lists.order()` pages at first. `alloc` is complete: it takes the smallest block that
//! is large enough and splits it. A block of order n that begins at page p has one buddy, which begins at page p ^ (1
//! << n). The code below never merges. Write `free`. The lists of free blocks are the only state; accesses to the lists
//! are counted.
//!
//! Available calls. Each call except the last counts as one list access:
//!
//! - `lists.pop(order)`: takes the lowest free block of an order; returns `None` if the list is empty.
//! - `lists.push(page, order)`: adds a free block.
//! - `lists.remove(page, order)`: takes the block that begins at that page, if it is free and has exactly
//!   this order; returns `true` if it took the block.
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
