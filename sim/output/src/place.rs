//! The destination of a report: a file that is written completely or not at all, a stream, or standard output.

use anyhow::{Context, bail};
use serde::Serialize;
use std::fs::{File, Metadata, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON that contains one object or one list.
    Json,
    /// CSV: one line of column names, then one line for each value.
    Csv,
    /// CSV with a line for each point of a curve.
    Curves,
    /// CSV with a line for each number of a snapshot of the simulator.
    Series,
    /// CSV with a line for each run of a sweep.
    Rows,
    /// A self-contained web page.
    Html,
    /// A picture (SVG).
    Svg,
    /// The operations of a trace, stored column by column.
    Operations,
}

impl Form {
    /// Returns the name of the option that requests the format.
    fn option(self) -> &'static str {
        match self {
            Self::Json => "--json",
            Self::Csv | Self::Curves | Self::Rows => "--csv",
            Self::Series => "--series",
            Self::Html => "--html",
            Self::Svg => "--svg",
            Self::Operations => "OUT",
        }
    }
    /// Returns the first bytes that a report of this format can have, and a description for files that begin
    /// with other bytes.
    fn marks(self) -> (&'static [&'static str], &'static str) {
        match self {
            // A bracket alone does not identify JSON, because option files and logs may begin with a bracket.
            Self::Json => (&["{", "[\n", "[]"], "not JSON"),
            Self::Csv => (&["part,"], "not a table of the lab"),
            Self::Curves => (&["workload,"], "not a table of `uslab scale`"),
            Self::Series => (&["operation,"], "not a series of a replay"),
            Self::Rows => (&["item,"], "not a table of a sweep"),
            Self::Html => (&["<!DOCTYPE html>"], "not a web page"),
            Self::Svg => (&["<svg"], "not a picture"),
            Self::Operations => (&["uslabops"], "not a converted trace"),
        }
    }
}

/// The destination of a report.
#[derive(Debug)]
pub struct Place {
    form: Form,
    target: Target,
    /// The device and inode number of the file, if it exists.
    id: Option<(u64, u64)>,
}

#[derive(Debug)]
enum Target {
    Stdout,
    /// A device or a pipe; the report is written to it directly.
    Stream(PathBuf),
    /// A file, with its permissions if the file exists.
    File(PathBuf, Option<Permissions>),
}

impl Place {
    /// Checks the destination of a report before the command starts its work.
    ///
    /// # Errors
    /// Fails if the folder does not exist, or the path is a folder. Also fails if an existing file is not a
    /// report in this format, so that a wrong path cannot overwrite, for example, a trace.
    pub fn open(form: Form, path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { form, target: Target::Stdout, id: None });
        }
        let shown = format!("{} {}", form.option(), path.display());
        let Ok(meta) = path.metadata() else {
            let folder = parent_folder(path);
            if !folder.is_dir() {
                bail!("{shown}: the directory {} does not exist", folder.display());
            }
            let name = path.file_name().with_context(|| format!("{shown}: expected a file name"))?;
            let path = folder.canonicalize().with_context(|| shown.clone())?.join(name);
            return Ok(Self { form, target: Target::File(path, None), id: None });
        };
        if meta.is_dir() {
            bail!("{shown}: the path is a directory; expected a file name");
        }
        let id = Some(file_id(&meta));
        // The path may be another name of standard output, such as /dev/stdout. Replacing that file would lose the
        // printed output.
        if !meta.file_type().is_char_device() && stdout_id() == id {
            return Ok(Self { form, target: Target::Stdout, id });
        }
        if !meta.is_file() {
            return Ok(Self { form, target: Target::Stream(path.to_owned()), id });
        }
        if let Ok(file) = File::open(path) {
            let (marks, other) = form.marks();
            let (mut first, most) = (Vec::new(), marks.iter().map(|mark| mark.len()).max().unwrap_or(0));
            file.take(most as u64).read_to_end(&mut first).with_context(|| shown.clone())?;
            if !first.is_empty() && !marks.iter().any(|mark| first.starts_with(mark.as_bytes())) {
                bail!("{shown}: the file exists, but is {other}; it is not overwritten");
            }
        }
        // A link's target is replaced, not the link.
        let path = path.canonicalize().with_context(|| shown)?;
        Ok(Self { form, target: Target::File(path, Some(meta.permissions())), id })
    }

    /// Returns `true` if the report goes to standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self.target, Target::Stdout)
    }

    /// Returns `true` if both destinations are the same file, even if it has two names.
    pub fn is_same_as(&self, other: &Self) -> bool {
        match (&self.target, &other.target) {
            (Target::Stdout, Target::Stdout) => true,
            (Target::File(path, _), Target::File(other, _)) if path == other => true,
            _ => self.id.is_some() && self.id == other.id,
        }
    }

    /// Checks that all given destinations are different files.
    ///
    /// # Errors
    /// Fails if two destinations are the same file.
    pub fn check_distinct<'p>(places: impl IntoIterator<Item = &'p Option<Self>>) -> anyhow::Result<()> {
        let mut earlier: Vec<&Self> = vec![];
        for place in places.into_iter().flatten() {
            if let Some(other) = earlier.iter().find(|other| place.is_same_as(other)) {
                bail!("{} and {} are the same file; expected different files", other.shown(), place.shown());
            }
            earlier.push(place);
        }
        Ok(())
    }

    /// Returns the option with its argument, for error messages.
    pub fn shown(&self) -> String {
        let path = match &self.target {
            Target::Stdout => Path::new("-"),
            Target::Stream(path) | Target::File(path, _) => path,
        };
        format!("{} {}", self.form.option(), path.display())
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// Fails in the same cases as [`write_all`].
    pub fn json(self, report: &impl Serialize) -> anyhow::Result<()> {
        write_all([(self, json_text(report)?)])
    }

    /// Writes a report to a temporary file in the folder of its destination.
    fn stage(path: &Path, permissions: Option<Permissions>, text: &[u8]) -> std::io::Result<NamedTempFile> {
        // The permissions of a new file, before the umask applies.
        let new = Permissions::from_mode(0o666);
        let mut file = tempfile::Builder::new().permissions(new).tempfile_in(parent_folder(path))?;
        if let Some(permissions) = permissions {
            file.as_file().set_permissions(permissions)?;
        }
        file.write_all(text)?;
        Ok(file)
    }
}

/// Returns a report as JSON.
///
/// # Errors
/// Fails if a key is not text.
pub fn json_text(report: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// Writes text to standard output.
///
/// # Errors
/// Fails if standard output cannot be written, for example because the reader of a pipe has closed it.
pub fn say(text: &str) -> anyhow::Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes()).context("standard output")
}

/// Writes a report as JSON to `json`, if `json` is set. Prints the report's text, unless JSON is written to
/// standard output.
///
/// # Errors
/// Fails in the same cases as [`write_all`] and [`say`].
pub fn tell(report: &impl Serialize, text: &str, json: Option<Place>) -> anyhow::Result<()> {
    let to_stdout = json.as_ref().is_some_and(Place::is_stdout);
    json.map(|json| json.json(report)).transpose()?;
    if to_stdout { Ok(()) } else { say(text) }
}

/// Writes either all reports or no report. Files are first written under temporary names in the folders of
/// their destinations. Files are renamed only after every step that can fail has succeeded. Devices and pipes are
/// written before files are renamed, because their output cannot be undone. If a pipe's reader has closed it, the error
/// is reported only after all files are written.
///
/// # Errors
/// Fails if a destination cannot be written.
pub fn write_all<T: AsRef<[u8]>>(reports: impl IntoIterator<Item = (Place, T)>) -> anyhow::Result<()> {
    let (mut staged, mut streams) = (vec![], vec![]);
    for (place, text) in reports {
        let shown = place.shown();
        match place.target {
            Target::File(path, permissions) => {
                let file = Place::stage(&path, permissions, text.as_ref()).with_context(|| shown.clone())?;
                staged.push((file, path, shown));
            }
            target => streams.push((target, text, shown)),
        }
    }
    let mut left = Ok(());
    for (target, text, shown) in streams {
        let written = match target {
            Target::Stream(path) => {
                File::options().write(true).open(path).and_then(|mut file| file.write_all(text.as_ref()))
            }
            _ => std::io::stdout().lock().write_all(text.as_ref()),
        };
        match written {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => left = Err(error).context(shown),
            written => written.context(shown)?,
        }
    }
    for (file, path, shown) in staged {
        file.persist(path).context(shown)?;
    }
    left
}

fn file_id(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Returns the device and inode number of standard output, or `None` if standard output is closed.
fn stdout_id() -> Option<(u64, u64)> {
    let stdout = std::io::stdout().as_fd().try_clone_to_owned().ok()?;
    File::from(stdout).metadata().ok().as_ref().map(file_id)
}

fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_overwrites_only_earlier_reports() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.txt");
        std::fs::write(&trace, "# tracer: nop\n").unwrap();
        assert!(Place::open(Form::Json, &trace).unwrap_err().to_string().contains("is not JSON"));
        let settings = folder.path().join("settings.toml");
        std::fs::write(&settings, "[package]\n").unwrap();
        assert!(Place::open(Form::Json, &settings).unwrap_err().to_string().contains("is not JSON"));
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
        assert!(link.is_symlink(), "the link stays, and its target is replaced");
        assert!(std::fs::read_to_string(&report).unwrap().contains("\"seed\": 3"));
        assert_eq!(report.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        let page = folder.path().join("page.html");
        write_all([(Place::open(Form::Html, &page).unwrap(), "<!DOCTYPE html>".to_owned())]).unwrap();
        Place::open(Form::Html, &page).unwrap();
        let other = Place::open(Form::Csv, &page).unwrap_err().to_string();
        assert!(other.contains("--csv") && other.contains("is not a table of the lab"), "{other}");
        let nowhere = folder.path().join("no/report.json");
        assert!(Place::open(Form::Json, &nowhere).unwrap_err().to_string().contains("does not exist"));
    }

    #[test]
    fn one_file_under_two_names_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let at = |form, name: &str| Place::open(form, &folder.path().join(name)).unwrap();
        let same = |one: &str, other: &str| at(Form::Json, one).is_same_as(&at(Form::Csv, other));
        assert!(same("a.out", "a.out") && same("a.out", "./a.out") && !same("a.out", "b.out"));
        std::fs::write(folder.path().join("a.out"), "").unwrap();
        std::os::unix::fs::symlink("a.out", folder.path().join("link")).unwrap();
        std::fs::hard_link(folder.path().join("a.out"), folder.path().join("twin")).unwrap();
        assert!(same("a.out", "link") && same("link", "twin") && !same("a.out", "b.out"));
        let null = |form| Place::open(form, Path::new("/dev/null")).unwrap();
        assert!(null(Form::Json).is_same_as(&null(Form::Csv)) && !null(Form::Json).is_stdout());
    }

    #[test]
    fn failed_report_leaves_all_reports_unwritten() {
        let folder = tempfile::tempdir().unwrap();
        let (good, old) = (folder.path().join("good.csv"), folder.path().join("old.json"));
        std::fs::write(&old, "{}").unwrap();
        let report = |form, path: &Path, text: &str| (Place::open(form, path).unwrap(), text.to_owned());
        let reports = || [report(Form::Csv, &good, "part,\n"), report(Form::Json, &old, "{ }")];
        let full = report(Form::Html, Path::new("/dev/full"), "<!DOCTYPE html>");
        let error = write_all(reports().into_iter().chain([full])).unwrap_err();
        assert_eq!(error.to_string(), "--html /dev/full");
        assert!(!good.exists() && std::fs::read_to_string(&old).unwrap() == "{}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1, "no temporary file remains");
        write_all(reports()).unwrap();
        assert!(good.exists() && std::fs::read_to_string(&old).unwrap() == "{ }");
    }
}
