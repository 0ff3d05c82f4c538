//! Copies the files of a workspace.

use anyhow::Context;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Makes the contents of `folder` equal to the given files. A file that already has the right contents is not
/// rewritten, so cargo does not rebuild it.
///
/// # Errors
/// Fails if a file cannot be read, written or removed.
pub fn mirror(folder: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) -> anyhow::Result<()> {
    for (name, text) in files {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|old| old == *text) {
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(&inner).with_context(|| inner.display().to_string())? {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            if kind.is_dir() {
                folders.push(path);
            } else if !path.strip_prefix(folder).is_ok_and(|name| files.contains_key(name)) {
                fs::remove_file(&path).with_context(|| path.display().to_string())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_removed_from_a_workspace_disappear_from_the_copy() {
        let folder = tempfile::tempdir().unwrap();
        let files = |names: &[&str]| -> BTreeMap<PathBuf, Vec<u8>> {
            names.iter().map(|name| (PathBuf::from(name), name.as_bytes().to_vec())).collect()
        };
        mirror(folder.path(), &files(&["bin/a.rs", "b.rs"])).unwrap();
        mirror(folder.path(), &files(&["bin/a/main.rs", "b.rs"])).unwrap();
        assert!(!folder.path().join("bin/a.rs").exists());
        assert_eq!(fs::read_to_string(folder.path().join("bin/a/main.rs")).unwrap(), "bin/a/main.rs");
        assert_eq!(fs::read_to_string(folder.path().join("b.rs")).unwrap(), "b.rs");
    }
}
