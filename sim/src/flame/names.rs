//! Names of functions, from the symbols and debug information of the files that a profile names.

use super::code::Code;
use std::collections::BTreeMap;

/// The position of an instruction in a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum CodePosition {
    /// Offset of the instruction from the start of the file, in bytes.
    InFile(u64),
    /// Offset of the instruction from the start of the first mapped segment, in bytes.
    Mapped(u64),
}

/// The executables and libraries that were opened so far.
#[derive(Default)]
pub(super) struct Names {
    files: BTreeMap<(String, String), anyhow::Result<Code>>,
}

impl Names {
    /// Returns the functions at a code position, innermost first; if the file has no function names, returns
    /// a text that names the position.
    pub(super) fn resolve_functions(
        &mut self,
        file: &str,
        build_id: &str,
        place: CodePosition,
    ) -> Vec<String> {
        let key = (file.to_owned(), build_id.to_owned());
        let code = self.files.entry(key).or_insert_with(|| Code::open(file, build_id));
        let names = code.as_ref().map_or_else(|_| vec![], |code| code.functions(place));
        let (CodePosition::InFile(at) | CodePosition::Mapped(at)) = place;
        if names.is_empty() { vec![format!("{file}+{at:#x}")] } else { names }
    }

    /// Returns the functions of a frame of a folded stack. A frame such as `/usr/bin/app+0x52a0` is looked up in the
    /// file; other frames are returned unchanged.
    pub(super) fn functions_of_frame(&mut self, frame: &str) -> Vec<String> {
        let place = frame.rsplit_once("+0x").filter(|(file, _)| file.starts_with('/'));
        let place = place.and_then(|(file, digits)| Some((file, u64::from_str_radix(digits, 16).ok()?)));
        place.map_or_else(
            || vec![frame.to_owned()],
            |(file, at)| self.resolve_functions(file, "", CodePosition::Mapped(at)),
        )
    }

    /// Returns the files that could not be used, each with the reason.
    pub(super) fn unused(self) -> Vec<String> {
        let failed = self.files.into_iter().filter_map(|((file, _), code)| Some((file, code.err()?)));
        failed.map(|(file, error)| format!("no function names from `{file}`: {error:#}")).collect()
    }
}

/// The largest number of frames that are kept for one stack. Deeper frames are omitted, so that the same code at
/// different call depths gives one stack.
const MAX_STACK_FRAMES: usize = 24;

/// Returns the frames of a stack outside the allocator, innermost function first. Functions of the Rust and C
/// libraries are omitted if they call the allocator.
pub(super) fn frames_outside_allocator(stack: &[String]) -> &[String] {
    let inner = stack.iter().take_while(|name| FunctionOwner::owner_of(name) != FunctionOwner::Others);
    let own = inner
        .enumerate()
        .filter(|(_, name)| FunctionOwner::owner_of(name) == FunctionOwner::Allocator)
        .last();
    match own.map_or(0, |(at, _)| at + 1) {
        own if 0 < own && own < stack.len() => &stack[own..stack.len().min(own + MAX_STACK_FRAMES)],
        _ => stack,
    }
}

/// The part of a program to which a function of a call stack belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FunctionOwner {
    /// The function belongs to the allocator, or to a part of Rust's library that only allocates.
    Allocator,
    /// The function belongs to Rust's library; in builds without inlining, such a frame can be between two
    /// frames of the allocator.
    Library,
    Others,
}

impl FunctionOwner {
    fn owner_of(name: &str) -> Self {
        const ALLOCATOR: [&str; 8] = [
            "uslab",
            "uslab_magazine",
            "uslab_buddy",
            "uslab_pool",
            "uslab_sync",
            "alloc",
            "std::alloc",
            "__rustc",
        ];
        const C: [&str; 11] = [
            "malloc",
            "calloc",
            "realloc",
            "reallocarray",
            "memalign",
            "posix_memalign",
            "aligned_alloc",
            "valloc",
            "pvalloc",
            "operator new",
            "operator new[]",
        ];
        let path = name.trim_start_matches(['<', '&']);
        let is_of = |of: &str| path.strip_prefix(of).is_some_and(|rest| rest.starts_with("::"));
        // A blanket implementation such as `<T as alloc::string::ToString>::to_string` counts, but an implementation in
        // a program does not.
        let blanket = path.split_once(" as ").filter(|(of, _)| !of.contains("::"));
        let function = name.split_once('(').map_or(name, |(function, _)| function);
        let file = name.rsplit_once("+0x").and_then(|(file, _)| file.rsplit('/').next());
        match () {
            () if path.contains("::tests::") => Self::Others,
            () if ALLOCATOR.into_iter().any(is_of) || C.contains(&function) => Self::Allocator,
            () if blanket.is_some_and(|(_, of)| of.starts_with("alloc::")) => Self::Allocator,
            () if name.starts_with("__rust_") || name.starts_with("__rdl_") || name.starts_with("__rg_") => {
                Self::Allocator
            }
            () if file.is_some_and(|file| file.starts_with("libuslab.so")) => Self::Allocator,
            () if ["core", "std"].into_iter().any(is_of) => Self::Library,
            () => Self::Others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_innermost_allocator_frames_are_removed() {
        use FunctionOwner::{Allocator, Library, Others};
        for (name, whose) in [
            ("uslab::process::global_alloc::Uslab::alloc", Allocator),
            ("<uslab::objects::typed::ObjectCache<T>>::alloc", Allocator),
            ("malloc", Allocator),
            ("operator new(unsigned long)", Allocator),
            ("__rustc::__rust_alloc", Allocator),
            ("__rust_realloc", Allocator),
            ("alloc::raw_vec::RawVecInner<A>::finish_grow", Allocator),
            ("<alloc::vec::Vec<T>>::push", Allocator),
            ("<T as alloc::string::ToString>::to_string", Allocator),
            ("/usr/lib/libuslab.so.0+0x520", Allocator),
            ("core::iter::Iterator::collect", Library),
            ("std::thread::spawn", Library),
            ("<server::Text as alloc::borrow::ToOwned>::to_owned", Others),
            ("uslab_server::serve", Others),
            ("uslab::report::tests::holder", Others),
            ("allocate", Others),
            ("main", Others),
            ("/usr/bin/app+0x520", Others),
        ] {
            assert_eq!(FunctionOwner::owner_of(name), whose, "{name}");
        }
        let cut = |stack: &[&str]| {
            let stack: Vec<_> = stack.iter().map(|&name| name.to_owned()).collect();
            stack.len() - frames_outside_allocator(&stack).len()
        };
        assert_eq!(cut(&["uslab::alloc", "core::ops", "malloc", "grow", "main", "malloc"]), 3);
        assert_eq!(cut(&["malloc", "alloc::vec", "std::fs::read", "main"]), 2);
        assert_eq!(
            [cut(&["main", "malloc"]), cut(&["malloc"]), cut(&[]), cut(&["core::ops", "main"])],
            [0; 4]
        );
        assert_eq!((cut(&[&["malloc"][..], &["f"; 40]].concat()), cut(&["f"; 40])), (17, 0));
    }

    #[test]
    fn unresolvable_frame_keeps_its_text() {
        let mut names = Names::default();
        for frame in ["main", "f+0x10", "/app+0x", "/app+0xzz", "/app", "0x10"] {
            assert_eq!(names.functions_of_frame(frame), [frame]);
        }
        assert!(names.files.is_empty());
        assert_eq!(names.functions_of_frame("/nowhere/a+0x/b+0x10"), ["/nowhere/a+0x/b+0x10"]);
        assert_eq!(names.resolve_functions("/dev/zero", "", CodePosition::InFile(16)), ["/dev/zero+0x10"]);
        let unused = names.unused();
        assert_eq!(unused.len(), 2, "{unused:?}");
        assert_eq!(unused[0], "no function names from `/dev/zero`: not a file");
        assert!(
            unused[1].starts_with("no function names from `/nowhere/a+0x/b`: No such file"),
            "{unused:?}"
        );
    }

    #[test]
    fn file_of_another_build_resolves_no_name() {
        let own = std::env::current_exe().unwrap().into_os_string().into_string().unwrap();
        let mut names = Names::default();
        assert_eq!(names.resolve_functions(&own, "00ff", CodePosition::InFile(16)), [format!("{own}+0x10")]);
        assert_eq!(
            names.unused(),
            [format!("no function names from `{own}`: the file is from another build than the profile")]
        );
    }
}
