//! Buddy merging: what makes large blocks of small ones again.
//!
//! Memory is one block of `2^lists.order()` pages at first. `alloc` takes the smallest block that is large enough and splits it: it is
//! there already. A block of order n that begins at page p has one buddy, which begins at page p ^ (1 << n). What is here never merges.
//! Write `free`. All that you know is in the lists of free blocks; how often they are looked at is counted.
//!
//! What there is to call. Each call but the last is a look:
//!
//! - `lists.pop(order)`: takes the lowest free block of an order; `None` if there is none.
//! - `lists.push(page, order)`: a block is free.
//! - `lists.remove(page, order)`: takes the block that begins at that page, if it is free and has exactly this order; whether it did.
//! - `lists.order()`: the order of the largest block.

use uslab_engine::course::{Buddy, FreeLists};

#[derive(Debug)]
pub struct Mine;

impl Buddy for Mine {
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
