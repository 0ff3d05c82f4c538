//! The reference solution of the exercise `merge`.

use crate::course::{Buddy, FreeLists};

#[derive(Debug)]
pub(in crate::course::code) struct Exercise;

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

    fn free(lists: &mut FreeLists, mut page: u32, mut order: u8) {
        while order < lists.order() && lists.remove(page ^ (1 << order), order) {
            page &= !(1 << order);
            order += 1;
        }
        lists.push(page, order);
    }
}
