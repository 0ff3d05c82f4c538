//! Where a report goes: a file that is there wholly or not at all, a stream, or standard output.

use anyhow::{Context, bail};
use serde::Serialize;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What a report is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An object.
    Json,
    /// A line a value, names of the columns first.
    Csv,
    /// A page that needs nothing beside it.
    Html,
}

impl Form {
    /// The option that asks for it.
    fn option(self) -> &'static str {
        match self {
            Self::Json => "--json",
            Self::Csv => "--csv",
            Self::Html => "--html",
        }
    }
    /// What every report of that form begins with, and what to call a file that does not.
    fn mark(self) -> (&'static [u8], &'static str) {
        match self {
            Self::Json => (b"{", "no JSON object"),
            Self::Csv => (b"part,", "no table of the lab"),
            Self::Html => (b"<!DOCTYPE html>", "no page"),
        }
    }
}

/// Where a report goes.
#[derive(Debug)]
pub struct Place {
    form: Form,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Stdout,
    /// A device or a pipe: written to as it is.
    Stream(PathBuf),
    /// A file, with the permissions that it has, if it is there already.
    File(PathBuf, Option<Permissions>),
}

impl Place {
    /// Looks at the place before any work is done.
    ///
    /// # Errors
    /// The folder does not exist, the path is a folder, or a file lies there that is no report of that form: it would
    /// be overwritten by mistake (a trace, say).
    pub fn open(form: Form, path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { form, target: Target::Stdout });
        }
        let shown = format!("{} {}", form.option(), path.display());
        let Ok(meta) = path.metadata() else {
            let folder = folder_of(path);
            if !folder.is_dir() {
                bail!("{shown}: there is no directory {}", folder.display());
            }
            return Ok(Self { form, target: Target::File(path.to_owned(), None) });
        };
        if meta.is_dir() {
            bail!("{shown}: is a directory, expected a file name");
        }
        if !meta.is_file() {
            return Ok(Self { form, target: Target::Stream(path.to_owned()) });
        }
        if let Ok(file) = File::open(path) {
            let (mark, other) = form.mark();
            let mut first = Vec::new();
            file.take(mark.len() as u64).read_to_end(&mut first).with_context(|| shown.clone())?;
            if !first.is_empty() && first != mark {
                bail!("{shown}: the file exists and holds {other}; it is not overwritten");
            }
        }
        // What a link names is replaced, not the link.
        let path = path.canonicalize().with_context(|| shown)?;
        Ok(Self { form, target: Target::File(path, Some(meta.permissions())) })
    }

    /// Whether the report goes to standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self.target, Target::Stdout)
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn json(self, report: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(report)?;
        text.push('\n');
        self.write(&text)
    }

    /// Writes the report: to a file by way of a temporary one beside it, so that it is there wholly or not at all.
    ///
    /// # Errors
    /// The place cannot be written.
    pub fn write(self, text: &str) -> anyhow::Result<()> {
        let text = text.as_bytes();
        let shown = |path: &Path| format!("{} {}", self.form.option(), path.display());
        match self.target {
            Target::Stdout => std::io::stdout().lock().write_all(text).context("standard output"),
            Target::Stream(path) => {
                let file = File::options().write(true).open(&path);
                file.and_then(|mut file| file.write_all(text)).with_context(|| shown(&path))
            }
            Target::File(path, permissions) => {
                let replace = || -> std::io::Result<()> {
                    // What a new file may: the umask takes its part.
                    let new = Permissions::from_mode(0o666);
                    let mut file = tempfile::Builder::new().permissions(new).tempfile_in(folder_of(&path))?;
                    if let Some(permissions) = permissions {
                        file.as_file().set_permissions(permissions)?;
                    }
                    file.write_all(text)?;
                    file.persist(&path)?;
                    Ok(())
                };
                replace().with_context(|| shown(&path))
            }
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_never_overwrites_what_is_no_report() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.txt");
        std::fs::write(&trace, "# tracer: nop\n").unwrap();
        assert!(Place::open(Form::Json, &trace).unwrap_err().to_string().contains("holds no JSON object"));
        assert!(Place::open(Form::Json, folder.path()).unwrap_err().to_string().contains("is a directory"));
        let report = folder.path().join("report.json");
        for seed in [1, 2] {
            Place::open(Form::Json, &report).unwrap().json(&serde_json::json!({ "seed": seed })).unwrap();
        }
        assert!(std::fs::read_to_string(&report).unwrap().contains("\"seed\": 2"));
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(&report, &link).unwrap();
        std::fs::set_permissions(&report, Permissions::from_mode(0o640)).unwrap();
        Place::open(Form::Json, &link).unwrap().json(&serde_json::json!({ "seed": 3 })).unwrap();
        assert!(link.is_symlink(), "the link stays, what it names is replaced");
        assert!(std::fs::read_to_string(&report).unwrap().contains("\"seed\": 3"));
        assert_eq!(report.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        let page = folder.path().join("page.html");
        Place::open(Form::Html, &page).unwrap().write("<!DOCTYPE html>").unwrap();
        Place::open(Form::Html, &page).unwrap();
        let other = Place::open(Form::Csv, &page).unwrap_err().to_string();
        assert!(other.contains("--csv") && other.contains("holds no table of the lab"), "{other}");
        let nowhere = folder.path().join("no/report.json");
        assert!(Place::open(Form::Json, &nowhere).unwrap_err().to_string().contains("there is no directory"));
    }
}
