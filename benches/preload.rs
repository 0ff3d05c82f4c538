//! Mallocs that the benches can preload.

use crate::subject::Kind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A malloc and the library that contains it.
#[derive(Clone, Debug)]
pub struct PreloadedMalloc {
    /// Name of the malloc in tables.
    pub name: String,
    /// Kind of the malloc; determines the mallocs with which it is compared.
    pub kind: Kind,
    /// Path of the library; `None` selects the malloc of the C library.
    pub library: Option<PathBuf>,
}

/// Names of the other mallocs, each with its library: a library that `benches/peers` builds, or a library from Debian.
const OTHER_MALLOCS: [(&str, &str); 6] = [
    ("mimalloc2", "libmimalloc.so.2"),
    ("mimalloc3", "libmimalloc.so.3"),
    ("jemalloc", "libjemalloc.so.2"),
    ("rpmalloc", "librpmalloc.so"),
    ("snmalloc", "libsnmallocshim.so"),
    ("gperftools", "libtcmalloc_minimal.so.4"),
];

/// Returns the files that may be the library of a malloc; each is a name that the dynamic linker can find. Libraries
/// that `benches/peers` built come first, because they are newer.
pub(crate) fn files(peer: &str) -> impl Iterator<Item = PathBuf> {
    let built_library = target().join(format!("peers/lib{peer}.so"));
    let installed = OTHER_MALLOCS.iter().find(|(name, _)| *name == peer).map(|(_, file)| PathBuf::from(file));
    [Some(built_library), installed].into_iter().flatten()
}

/// Returns the C library's malloc and the other mallocs that are available. Mallocs that are missing are named on
/// standard error.
pub fn peers() -> Vec<PreloadedMalloc> {
    let linker_cache =
        Command::new("ldconfig").arg("-p").output().map(|output| output.stdout).unwrap_or_default();
    let linker_cache = String::from_utf8_lossy(&linker_cache);
    let installed = |file: &Path| {
        linker_cache.lines().any(|line| line.split_whitespace().next().map(Path::new) == Some(file))
    };
    let mut all = vec![PreloadedMalloc { name: "system".into(), kind: Kind::General, library: None }];
    for (name, _) in OTHER_MALLOCS {
        let library = files(name).find(|file| file.is_file() || installed(file));
        if library.is_none() {
            eprintln!(
                "{name} preloaded is skipped: its library is neither installed nor built by benches/peers"
            );
            continue;
        }
        all.push(PreloadedMalloc { name: name.into(), kind: Kind::General, library });
    }
    all
}

/// Target directory of the workspace.
pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")
}
