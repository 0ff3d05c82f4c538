//! The state of a cache that traces of failed executions display.

use super::Round;
use super::depot::Stock;
use super::magazine::{CpuCache, Magazine};
use uslab_magazine::sync::story::Watched;

fn show<T: Round>(magazine: &Magazine<T>) -> String {
    if magazine.size == 0 { "none".into() } else { format!("{:?} of {}", magazine.rounds, magazine.size) }
}

impl<T: Round> CpuCache<T> {
    pub(super) fn watched(&self) -> Watched {
        let parts = [("loaded", &self.loaded), ("previous", &self.previous)];
        let parts = parts.map(|(name, magazine)| (name.to_owned(), show(magazine)));
        Watched { id: core::ptr::from_ref(self).addr(), parts: parts.into() }
    }
}

impl<T: Round> Stock<T> {
    pub(super) fn watched(&self) -> Watched {
        let list = |list: &[Magazine<T>]| list.iter().map(show).collect::<Vec<_>>().join(", ");
        let parts = [
            ("full", format!("({})", list(&self.full.magazines))),
            ("empty", format!("({})", list(&self.empty.magazines))),
            ("size", self.size.to_string()),
        ];
        let parts = parts.map(|(name, value)| (name.to_owned(), value));
        Watched { id: core::ptr::from_ref(self).addr(), parts: parts.into() }
    }
}
