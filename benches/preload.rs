//! Mallocs that can be preloaded.

use crate::subject::Kind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A malloc and its library.
#[derive(Clone, Debug)]
pub struct Preload {
    /// Name of the malloc in tables.
    pub name: String,
    /// Kind of the malloc, for comparisons.
    pub kind: Kind,
    /// Path of the library; `None` for the C library's own malloc.
    pub library: Option<PathBuf>,
}

/// Peers by the names of their subjects, with the library that `benches/peers` builds, or Debian's library.
const PEERS: [(&str, &str); 6] = [
    ("mimalloc2", "libmimalloc.so.2"),
    ("mimalloc3", "libmimalloc.so.3"),
    ("jemalloc", "libjemalloc.so.2"),
    ("rpmalloc", "librpmalloc.so"),
    ("snmalloc", "libsnmallocshim.so"),
    ("gperftools", "libtcmalloc_minimal.so.4"),
];

/// Files that may be a peer's library, for the dynamic linker. A built library comes first, because it is newer.
pub(crate) fn files(peer: &str) -> impl Iterator<Item = PathBuf> {
    let built_library = target().join(format!("peers/lib{peer}.so"));
    let installed = PEERS.iter().find(|(name, _)| *name == peer).map(|(_, file)| PathBuf::from(file));
    [Some(built_library), installed].into_iter().flatten()
}

/// The C library's malloc and its peers. Missing peers are named on standard error.
pub fn peers() -> Vec<Preload> {
    let linker_cache =
        Command::new("ldconfig").arg("-p").output().map(|output| output.stdout).unwrap_or_default();
    let linker_cache = String::from_utf8_lossy(&linker_cache);
    let installed = |file: &Path| {
        linker_cache.lines().any(|line| line.split_whitespace().next().map(Path::new) == Some(file))
    };
    let mut all = vec![Preload { name: "system".into(), kind: Kind::General, library: None }];
    for (name, _) in PEERS {
        let library = files(name).find(|file| file.is_file() || installed(file));
        if library.is_none() {
            eprintln!(
                "{name} preloaded is skipped: its library is neither installed nor built by benches/peers"
            );
            continue;
        }
        all.push(Preload { name: name.into(), kind: Kind::General, library });
    }
    all
}

/// Target directory of the workspace.
pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")
}
