//! Where results go: JSON files that are never half-written, tables, and a progress bar on a terminal.

use anyhow::{Context, bail};
use comfy_table::{CellAlignment, Table, TableStyle};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fs::{File, Permissions};
use std::io::{IsTerminal, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where a JSON report goes.
#[derive(Debug)]
pub struct Json {
    place: Place,
}

#[derive(Debug)]
enum Place {
    Stdout,
    /// A device or a pipe: written to as it is.
    Stream(PathBuf),
    /// A file, with the permissions that it has, if it is there already.
    File(PathBuf, Option<Permissions>),
}

impl Json {
    /// Looks at the place before any work is done.
    ///
    /// # Errors
    /// The folder does not exist, the path is a folder, or a file lies there that is no JSON object: it would be
    /// overwritten by mistake (a trace, say).
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { place: Place::Stdout });
        }
        let shown = path.display();
        let Ok(meta) = path.metadata() else {
            let folder = folder_of(path);
            if !folder.is_dir() {
                bail!("--json {shown}: there is no directory {}", folder.display());
            }
            return Ok(Self { place: Place::File(path.to_owned(), None) });
        };
        if meta.is_dir() {
            bail!("--json {shown}: is a directory, expected a file name");
        }
        if !meta.is_file() {
            return Ok(Self { place: Place::Stream(path.to_owned()) });
        }
        if let Ok(mut file) = File::open(path) {
            let mut first = [0];
            let read = file.read(&mut first).with_context(|| format!("--json {shown}"))?;
            if read == 1 && first != *b"{" {
                bail!("--json {shown}: the file exists and holds no JSON object; it is not overwritten");
            }
        }
        // What a link names is replaced, not the link.
        let path = path.canonicalize().with_context(|| format!("--json {shown}"))?;
        Ok(Self { place: Place::File(path, Some(meta.permissions())) })
    }

    /// Whether the report goes to standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self.place, Place::Stdout)
    }

    /// Writes the report: to a file by way of a temporary one beside it, so that it is there wholly or not at all.
    ///
    /// # Errors
    /// The place cannot be written.
    pub fn write(self, report: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(report)?;
        text.push(b'\n');
        let shown = |path: &Path| format!("--json {}", path.display());
        match self.place {
            Place::Stdout => std::io::stdout().lock().write_all(&text).context("standard output"),
            Place::Stream(path) => {
                let file = File::options().write(true).open(&path);
                file.and_then(|mut file| file.write_all(&text)).with_context(|| shown(&path))
            }
            Place::File(path, permissions) => {
                let replace = || -> std::io::Result<()> {
                    // What a new file may: the umask takes its part.
                    let new = Permissions::from_mode(0o666);
                    let mut file = tempfile::Builder::new().permissions(new).tempfile_in(folder_of(&path))?;
                    if let Some(permissions) = permissions {
                        file.as_file().set_permissions(permissions)?;
                    }
                    file.write_all(&text)?;
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

/// A table with one row a thing; the first column is text, the others numbers.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_header(header);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table's text without blanks at the ends of lines.
pub fn text(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// `1234567` as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A signed difference, as `+3` or `-3`.
pub fn signed(n: i64) -> String {
    format!("{n:+}")
}

/// Bytes with a unit that leaves three digits or so.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=10_239_999 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// A progress bar on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Hidden until [`stage`](Self::stage), and always where standard error is no terminal.
    pub fn new() -> Self {
        Self { bar: ProgressBar::hidden() }
    }
    /// Begins a stage of `length` steps (0: unknown).
    pub fn stage(&self, name: &'static str, length: u64) -> Stage {
        if !std::io::stderr().is_terminal() {
            return Stage(self.bar.clone());
        }
        let bar = if length == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(length) };
        // The template is a constant; were it wrong, the plain bar would do.
        if let Ok(style) = ProgressStyle::with_template("{msg:12} {wide_bar} {percent:>3} %  {eta:>4} left") {
            bar.set_style(style);
        }
        bar.set_message(name);
        Stage(bar)
    }
}

/// One stage of a [`Progress`]; its bar goes when it is dropped.
#[derive(Debug)]
pub struct Stage(ProgressBar);

impl Stage {
    /// How far the stage is.
    pub fn at(&self, position: u64) {
        self.0.set_position(position);
    }
    /// What stands before the bar from now on.
    pub fn say(&self, text: String) {
        self.0.set_message(text);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1, -1, 0].map(signed), ["+1", "-1", "+0"]);
    }

    #[test]
    fn a_report_never_overwrites_what_is_no_report() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.txt");
        std::fs::write(&trace, "# tracer: nop\n").unwrap();
        assert!(Json::open(&trace).unwrap_err().to_string().contains("holds no JSON object"));
        assert!(Json::open(folder.path()).unwrap_err().to_string().contains("is a directory"));
        let report = folder.path().join("report.json");
        for seed in [1, 2] {
            Json::open(&report).unwrap().write(&serde_json::json!({ "seed": seed })).unwrap();
        }
        assert!(std::fs::read_to_string(&report).unwrap().contains("\"seed\": 2"));
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(&report, &link).unwrap();
        std::fs::set_permissions(&report, Permissions::from_mode(0o640)).unwrap();
        Json::open(&link).unwrap().write(&serde_json::json!({ "seed": 3 })).unwrap();
        assert!(link.is_symlink(), "the link stays, what it names is replaced");
        assert!(std::fs::read_to_string(&report).unwrap().contains("\"seed\": 3"));
        assert_eq!(report.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        let nowhere = folder.path().join("no/report.json");
        assert!(Json::open(&nowhere).unwrap_err().to_string().contains("there is no directory"));
    }
}
