//! What a cache does about its objects, beside handing them out: Linux's `slab_debug`.
//!
//! | letter | flag | at an allocation | at a free |
//! |---|---|---|---|
//! | `F` | [`CHECKS`](SlabDebug::CHECKS) | | is it an object of this cache, in use? |
//! | `Z` | [`RED_ZONE`](SlabDebug::RED_ZONE) | are the bytes around the object as they were left? | the same |
//! | `P` | [`POISON`](SlabDebug::POISON) | are the object's bytes as its free left them? | the object is overwritten |
//! | `U` | [`USERS`](SlabDebug::USERS) | who: thread, CPU, time, call stack | the same |
//! | `T` | [`TRACE`](SlabDebug::TRACE) | a line on standard error | the same |
//! | `A` | [`FAULTS`](SlabDebug::FAULTS) | may be refused on purpose, as [`faults`](crate::faults) say | |
//!
//! Each of them has `F` with it. What is found is [reported](crate::corruption), and repaired if the process goes on.
//! [`validate`](crate::KmemCache::validate) looks at all objects at once.
//!
//! Rules say it by name, in Linux's words: `FZPU` is all caches; `FZ,dentry,inode_*;U,kmalloc-64` two of them and one, `-` nothing,
//! and no letter at all `FZPU`. In `USLAB_OPTIONS`, where a comma ends the option, `:` stands for it:
//! `USLAB_OPTIONS='slab_debug=FZPU:malloc-64;U'`.

use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;

bitflags::bitflags! {
    /// What is done about the objects of a cache. See the [module](self).
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
        /// `Z`: bytes before and behind each object are watched; of kmalloc and malloc all behind what was asked for.
        const RED_ZONE = 2;
        /// `P`: free objects are filled with a pattern, and looked at when they are handed out. Not those that stay constructed, nor those
        /// of type-stable caches.
        const POISON = 4;
        /// `U`: who allocated an object, and who freed it.
        const USERS = 8;
        /// `T`: each allocation and free is told on standard error.
        const TRACE = 16;
        /// `A`: each allocation asks the fault point `slab`; without it those do that magazines do not serve.
        const FAULTS = 32;
    }
}

/// The letters, in the order of the bits.
const LETTERS: [u8; 6] = *b"FZPUTA";

impl SlabDebug {
    /// `FZPU`: all that looks for mistakes.
    pub const FULL: Self = Self::CHECKS.union(Self::RED_ZONE).union(Self::POISON).union(Self::USERS);

    /// Letters; none is [`FULL`](Self::FULL), and `-` nothing.
    fn of_letters(letters: &str) -> Option<Self> {
        match letters {
            "" => Some(Self::FULL),
            "-" => Some(Self::empty()),
            _ => letters.bytes().try_fold(Self::empty(), |flags, letter| {
                let bit = LETTERS.iter().position(|known| *known == letter.to_ascii_uppercase())?;
                Some(flags | Self::from_bits_truncate(1 << bit))
            }),
        }
    }
    /// With what each of them needs. Models have frees that are checked, and nothing else: their objects' bytes are not looked at.
    pub(crate) fn complete(self) -> Self {
        let flags = if cfg!(any(loom, shuttle)) { self & Self::CHECKS } else { self };
        if flags.is_empty() { flags } else { flags | Self::CHECKS }
    }
}

impl fmt::Display for SlabDebug {
    /// The letters; `-` for none.
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
        Self::of_letters(text).ok_or_else(|| BadDebugRules(text.to_owned()))
    }
}

/// A letter that is none of `FZPUTA`, or a name that is empty.
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
        write!(f, "`{}`: expected letters of FZPUTA and names of caches, as FZ,dentry;U,inode_*", self.0)
    }
}
impl std::error::Error for BadDebugRules {}

/// Which caches are debugged, and how: Linux's `slab_debug=`. See the [module](self). The first block that names a cache says what is
/// done about it; else the last one without names.
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
    /// The letters of each block, and its names.
    fn blocks(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
        text.split(';').map(|block| match block.split_once([',', ':']) {
            Some((letters, names)) => (letters, Some(names)),
            None => (block, None),
        })
    }
    fn is_good(text: &str) -> bool {
        Self::blocks(text).all(|(letters, names)| {
            let named = names.is_none_or(|names| !names.split([',', ':']).any(str::is_empty));
            named && SlabDebug::of_letters(letters).is_some()
        })
    }
    /// Rules that stay where they are. Allocates nothing.
    pub(crate) fn of_static(text: &'static str) -> Option<Self> {
        Self::is_good(text).then_some(Self(Some(Cow::Borrowed(text))))
    }

    /// What they say of the cache of that name.
    pub fn of(&self, cache: &str) -> SlabDebug {
        let mut all = SlabDebug::empty();
        for (letters, names) in self.0.iter().flat_map(|text| Self::blocks(text)) {
            let flags = SlabDebug::of_letters(letters).unwrap_or_default();
            match names {
                None => all = flags,
                Some(names) if names.split([',', ':']).any(|name| fits(name, cache)) => return flags,
                Some(_) => {}
            }
        }
        all
    }
}

/// Whether `name` is the cache's; `*` at its end stands for anything.
fn fits(name: &str, cache: &str) -> bool {
    name.strip_suffix('*').map_or(name == cache, |begin| cache.starts_with(begin))
}

impl From<SlabDebug> for DebugRules {
    /// For all caches.
    fn from(flags: SlabDebug) -> Self {
        Self(Some(Cow::Owned(flags.to_string())))
    }
}

impl FromStr for DebugRules {
    type Err = BadDebugRules;

    fn from_str(text: &str) -> Result<Self, BadDebugRules> {
        if Self::is_good(text) {
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
    fn letters_are_read_as_they_are_written() {
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
    fn a_cache_is_debugged_as_the_first_block_that_names_it_says() {
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
