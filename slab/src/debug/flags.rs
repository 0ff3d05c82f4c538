//! Debug checks of a cache's objects: Linux's `slab_debug`.
//!
//! | letter | flag | at an allocation | at a free |
//! |---|---|---|---|
//! | `F` | [`CHECKS`](SlabDebug::CHECKS) | | checks that it is an object of this cache, in use |
//! | `Z` | [`RED_ZONE`](SlabDebug::RED_ZONE) | checks that the bytes around the object are unchanged | the same |
//! | `P` | [`POISON`](SlabDebug::POISON) | checks that the object's bytes are unchanged since its free | overwrites the object |
//! | `U` | [`USERS`](SlabDebug::USERS) | records thread, CPU, time and call stack | the same |
//! | `T` | [`TRACE`](SlabDebug::TRACE) | prints a line to standard error | the same |
//! | `A` | [`FAULTS`](SlabDebug::FAULTS) | may be refused by [`faults`](crate::faults) | |
//!
//! Each debug flag implies `F`. Damage is [reported](crate::corruption), and repaired if the process continues.
//! [`validate`](crate::KmemCache::validate) checks all objects of a cache in one call.
//!
//! Rules select caches by name, in Linux's syntax. `FZPU` without a cache name applies to all caches. For example,
//! `FZ,dentry,inode_*;U,kmalloc-64` sets `FZ` for the caches that match two patterns, and `U` for one cache. The text
//! `-` sets no flag, and an empty list of letters means `FZPU`. In `USLAB_OPTIONS` a comma ends an option, so a `:`
//! separates the flags from the names: `USLAB_OPTIONS='slab_debug=FZPU:malloc-64;U'`.

use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;

bitflags::bitflags! {
    /// Debug flags of a cache. The [module](self) describes the syntax and the costs.
    ///
    /// ```
    /// use uslab::debug::flags::SlabDebug;
    ///
    /// assert_eq!("ZP".parse(), Ok(SlabDebug::RED_ZONE | SlabDebug::POISON));
    /// assert_eq!(SlabDebug::FULL.to_string(), "FZPU");
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SlabDebug: u8 {
        /// `F`: frees are checked, as with [`check_frees`](crate::KmemCacheBuilder::check_frees).
        const CHECKS = 1;
        /// `Z`: the bytes before and after each object are checked; in kmalloc and malloc, all bytes after the
        /// requested size are checked.
        const RED_ZONE = 2;
        /// `P`: a free fills the object with a pattern, which the next allocation checks. Objects that stay constructed
        /// or belong to type-stable caches are not filled.
        const POISON = 4;
        /// `U`: the last allocation and free of each object are recorded.
        const USERS = 8;
        /// `T`: each allocation and free is printed to standard error.
        const TRACE = 16;
        /// `A`: each allocation reaches the fault point `slab`. Without `A`, allocations that magazines serve do not
        /// reach the fault point `slab`.
        const FAULTS = 32;
    }
}

/// Letters of the flags, in the order of their bits.
const LETTERS: [u8; 6] = *b"FZPUTA";

impl SlabDebug {
    /// `FZPU`, the four flags that check objects and record their users.
    pub const FULL: Self = Self::CHECKS.union(Self::RED_ZONE).union(Self::POISON).union(Self::USERS);

    /// Parses flag letters. An empty string means [`FULL`](Self::FULL), and `-` means no flag.
    fn from_letters(letters: &str) -> Option<Self> {
        match letters {
            "" => Some(Self::FULL),
            "-" => Some(Self::empty()),
            _ => letters.bytes().try_fold(Self::empty(), |flags, letter| {
                let bit = LETTERS.iter().position(|known| *known == letter.to_ascii_uppercase())?;
                Some(flags | Self::from_bits_truncate(1 << bit))
            }),
        }
    }
    /// Adds the flags that the set flags imply. In models, only checked frees remain, and the bytes of objects
    /// are not checked.
    pub(crate) fn completed(self) -> Self {
        let flags = if cfg!(any(loom, shuttle)) { self & Self::CHECKS } else { self };
        if flags.is_empty() { flags } else { flags | Self::CHECKS }
    }
}

impl fmt::Display for SlabDebug {
    /// Writes the flags' letters, or `-` if no flag is set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = self.iter().map(|flag| char::from(LETTERS[flag.bits().trailing_zeros() as usize]));
        if self.is_empty() {
            f.write_str("-")
        } else {
            letters.into_iter().try_for_each(|letter| write!(f, "{letter}"))
        }
    }
}

impl FromStr for SlabDebug {
    type Err = BadDebugRules;

    fn from_str(text: &str) -> Result<Self, BadDebugRules> {
        Self::from_letters(text).ok_or_else(|| BadDebugRules(text.to_owned()))
    }
}

/// Error of parsing debug rules: an unknown letter (not one of `FZPUTA`), or an empty name.
///
/// ```
/// use uslab::debug::flags::DebugRules;
///
/// let bad = "FX".parse::<DebugRules>().unwrap_err();
/// assert!(bad.to_string().starts_with("`FX`: expected letters of FZPUTA"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadDebugRules(String);

impl fmt::Display for BadDebugRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: expected letters of FZPUTA and cache names, for example FZ,dentry;U,inode_*", self.0)
    }
}
impl std::error::Error for BadDebugRules {}

/// Rules that select debug flags by cache name, like Linux's `slab_debug=`. See the [module](self).
///
/// The first block of rules that names a cache applies to that cache. If no block names the cache, the last block
/// without names applies.
///
/// ```
/// use uslab::debug::flags::{DebugRules, SlabDebug};
///
/// let rules: DebugRules = "F;ZP,dentry,inode_*".parse()?;
/// assert_eq!(rules.of("dentry"), SlabDebug::RED_ZONE | SlabDebug::POISON);
/// assert_eq!(rules.of("inode_cache"), rules.of("dentry"));
/// assert_eq!(rules.of("filp"), SlabDebug::CHECKS);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugRules(Option<Cow<'static, str>>);

impl DebugRules {
    /// Iterates over the blocks of rules; each item has the letters of a block, and its names if it has any.
    fn rule_blocks(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
        text.split(';').map(|block| match block.split_once([',', ':']) {
            Some((letters, names)) => (letters, Some(names)),
            None => (block, None),
        })
    }
    fn is_valid(text: &str) -> bool {
        Self::rule_blocks(text).all(|(letters, names)| {
            let named = names.is_none_or(|names| !names.split([',', ':']).any(str::is_empty));
            named && SlabDebug::from_letters(letters).is_some()
        })
    }
    /// Parses rules from a static text, without allocating.
    pub(crate) fn of_static(text: &'static str) -> Option<Self> {
        Self::is_valid(text).then_some(Self(Some(Cow::Borrowed(text))))
    }

    /// Returns the debug flags of the cache named `cache`.
    pub fn of(&self, cache: &str) -> SlabDebug {
        let mut all = SlabDebug::empty();
        for (letters, names) in self.0.iter().flat_map(|text| Self::rule_blocks(text)) {
            let flags = SlabDebug::from_letters(letters).unwrap_or_default();
            match names {
                None => all = flags,
                Some(names) if names.split([',', ':']).any(|name| matches_name_pattern(name, cache)) => {
                    return flags;
                }
                Some(_) => {}
            }
        }
        all
    }
}

/// Returns `true` if the pattern `name` matches `cache`; a trailing `*` matches any suffix.
fn matches_name_pattern(name: &str, cache: &str) -> bool {
    name.strip_suffix('*').map_or(name == cache, |begin| cache.starts_with(begin))
}

impl From<SlabDebug> for DebugRules {
    /// Makes rules that give all caches the same flags.
    fn from(flags: SlabDebug) -> Self {
        Self(Some(Cow::Owned(flags.to_string())))
    }
}

impl FromStr for DebugRules {
    type Err = BadDebugRules;

    fn from_str(text: &str) -> Result<Self, BadDebugRules> {
        if Self::is_valid(text) {
            Ok(Self(Some(Cow::Owned(text.to_owned()))))
        } else {
            Err(BadDebugRules(text.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_debug_flags_round_trip_through_their_letters() {
        for bits in 0..64 {
            let flags = SlabDebug::from_bits_truncate(bits);
            assert_eq!(flags.to_string().parse(), Ok(flags));
            assert_eq!(flags.to_string().to_lowercase().parse(), Ok(flags));
        }
        assert_eq!("".parse(), Ok(SlabDebug::FULL));
        for wrong in ["x", "F-", "FZ P", "--"] {
            assert_eq!(wrong.parse::<SlabDebug>(), Err(BadDebugRules(wrong.to_owned())));
        }
    }

    #[test]
    fn first_slab_debug_rule_matching_a_cache_applies() {
        let (f, z, none) = (SlabDebug::CHECKS, SlabDebug::RED_ZONE, SlabDebug::empty());
        let rows = [
            ("", "inode", SlabDebug::FULL),
            ("-", "inode", none),
            ("F", "inode", f),
            ("F;Z", "inode", z),
            ("F,inode;Z,inode", "inode", f),
            ("F,inode", "inode2", none),
            ("Z,inode*;F", "inode2", z),
            ("F;-:inode:dentry", "dentry", none),
            (",inode", "inode", SlabDebug::FULL),
            ("F,*", "anything", f),
        ];
        for (text, cache, flags) in rows {
            assert_eq!(text.parse::<DebugRules>().map(|rules| rules.of(cache)), Ok(flags), "{text} {cache}");
            assert_eq!(DebugRules::of_static(text), Some(text.parse().unwrap()));
        }
        assert_eq!(DebugRules::default().of("inode"), none);
        assert_eq!(DebugRules::from(z).of("inode"), z);
        for wrong in ["Q", "F,", "F,a,,b", "F;Q,inode"] {
            assert_eq!(wrong.parse::<DebugRules>(), Err(BadDebugRules(wrong.to_owned())));
            assert_eq!(DebugRules::of_static(wrong), None);
        }
    }
}
