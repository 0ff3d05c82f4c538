//! The findings of an experiment as data: tables, pictures, and claims with verdicts. Findings can be shown as text,
//! CSV, JSON or a page.
//!
//! Measured values are marked as measured, and can be [omitted](Findings::without_measured). Measured values are mostly
//! times, but also page faults and instructions; they differ between machines, builds or runs. All other values follow
//! from the seed, and are the same on every machine, byte for byte.
//!
//! | module | |
//! |---|---|
//! | [`clock`] | rounds, medians with intervals, and decisions based on intervals |
//! | [`machine`] | the machine and the compiler of a measurement |
//! | [`picture`] | curves and bars, and their axes |
//! | `show`, `csv`, `page`, `svg` | findings as text, CSV, HTML, and their pictures |

pub mod clock;
mod csv;
pub mod machine;
mod page;
pub mod picture;
mod show;
mod svg;

use clock::Spread;
use machine::Machine;
pub use picture::{Axis, Bar, Bars, Chart, Series};
use serde::{Serialize, Serializer};

/// The findings of one experiment. The serialised form is the interface of `uslab lab --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// The experiment's name on the command line.
    pub experiment: String,
    /// The question that the experiment answers.
    pub question: String,
    /// The seed of all random choices.
    pub seed: u64,
    /// `true` for a run that did less work; its verdicts may differ from the verdicts of a full run.
    pub quick: bool,
    /// The machine on which values were measured; absent if nothing was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The parts of the findings, in reading order.
    pub parts: Vec<Part>,
}

/// One part of the findings, such as a table or a picture.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Rows of values.
    Table(Table),
    /// Curves over a common axis.
    Chart(Chart),
    /// Bars to compare.
    Bars(Bars),
    /// A statement that a source makes, and the experiment's verdict on it.
    Claim(Claim),
    /// A sentence for the reader.
    Note(String),
}

/// A table: rows of values under named columns. The leading columns together name a row, and no two rows have the same
/// name.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The title of the table, which describes its contents.
    pub title: String,
    /// The table's columns.
    pub columns: Vec<Column>,
    /// The number of columns, from the left, that together name a row.
    pub named_by: usize,
    /// The rows, with one value for each column.
    pub rows: Vec<Vec<Value>>,
}

/// A column of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// The column's name, with the unit.
    pub name: String,
    /// `true` if the values of the column were measured, and therefore differ between machines, builds or runs.
    pub measured: bool,
}

/// A value in a table's cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Words, shown as they are.
    Text(String),
    /// A whole number.
    Count(u64),
    /// A ratio or another measure, together with the number of decimals to show.
    Number(f64, usize),
    /// A value that was measured in several rounds, together with the number of decimals to show.
    Spread(Spread, usize),
    /// An empty cell.
    Nothing,
}

/// A statement that a source makes, and the experiment's verdict on it.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// The statement of the source.
    pub says: String,
    /// The source's name.
    pub source: String,
    /// The result of the experiment on which its verdict is based.
    pub found: String,
    /// The verdict of the experiment on the statement.
    pub holds: Holds,
    /// `true` if the verdict depends on measurements, and therefore differs between machines, builds or runs.
    pub measured: bool,
}

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// The claim holds.
    Yes,
    /// The claim holds in some cases only, or less strongly than stated.
    Partly,
    /// The claim does not hold.
    No,
    /// The findings do not decide the claim, because the runs or seeds differ too much.
    Undecided,
}

impl Holds {
    /// Returns the verdict on a claim that can be decided with certainty.
    pub fn from_certain_result(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
    /// Returns the verdict on a claim about several things; `holding` is the number of things for which the claim
    /// holds. The verdict is [`Partly`](Self::Partly) if the claim holds for some of the things.
    pub fn each(parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: Vec<Self> = parts.into_iter().collect();
        let has_verdict = |verdict| parts.contains(&verdict);
        match (has_verdict(Self::Yes), has_verdict(Self::No), has_verdict(Self::Undecided)) {
            (true, true, _) => Self::Partly,
            _ if has_verdict(Self::Partly) => Self::Partly,
            (_, _, true) => Self::Undecided,
            (true, false, _) => Self::Yes,
            _ => Self::No,
        }
    }
}

/// The line above the findings of a quick run, which warns that its results are less reliable.
pub(super) const QUICK_RUN_NOTE: &str =
    "A quick run, a fraction of the work: its figures and verdicts only show that everything runs.";

impl Findings {
    /// Creates the findings of an experiment, without any table, picture or claim.
    pub fn new(experiment: &str, question: &str, seed: u64) -> Self {
        let (experiment, question) = (experiment.to_owned(), question.to_owned());
        Self { experiment, question, seed, quick: false, machine: None, parts: Vec::new() }
    }
    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.parts.push(Part::Table(table));
    }
    /// Adds a chart.
    pub fn chart(&mut self, chart: Chart) {
        self.parts.push(Part::Chart(chart));
    }
    /// Adds a picture of bars, unless it has fewer than two bars to compare.
    pub fn bars(&mut self, bars: Bars) {
        if bars.bars.len() > 1 {
            self.parts.push(Part::Bars(bars));
        }
    }
    /// Adds a claim.
    pub fn claim(&mut self, claim: Claim) {
        self.parts.push(Part::Claim(claim));
    }
    /// Adds a sentence for the reader to the findings.
    pub fn note(&mut self, note: impl Into<String>) {
        self.parts.push(Part::Note(note.into()));
    }

    /// Removes all measured values from the findings.
    #[must_use]
    pub fn without_measured(mut self) -> Self {
        self.parts = self.parts.into_iter().filter_map(Part::without_measured).collect();
        self
    }
    /// Records the current machine if the findings contain measured values.
    #[must_use]
    pub fn with_current_machine(mut self) -> Self {
        self.machine = self.parts.iter().any(Part::is_measured).then(Machine::this);
        self
    }
}

impl Part {
    fn is_measured(&self) -> bool {
        match self {
            Self::Table(table) => table.columns.iter().any(|c| c.measured),
            Self::Chart(chart) => chart.measured,
            Self::Bars(bars) => bars.measured,
            Self::Claim(claim) => claim.measured,
            Self::Note(_) => false,
        }
    }
    fn without_measured(self) -> Option<Self> {
        match self {
            Self::Table(table) => table.without_measured().map(Self::Table),
            other => (!other.is_measured()).then_some(other),
        }
    }
}

impl Table {
    /// Creates a table without rows; the first column contains the names of the rows. If the name of a column begins
    /// with `~`, the column's values are measured.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let column = |name: &&str| match name.strip_prefix('~') {
            Some(name) => Column { name: name.to_owned(), measured: true },
            None => Column { name: (*name).to_owned(), measured: false },
        };
        Self {
            title: title.into(),
            columns: columns.iter().map(column).collect(),
            named_by: 1,
            rows: Vec::new(),
        }
    }
    /// Sets how many leading columns together name a row.
    #[must_use]
    pub fn named_by(self, columns: usize) -> Self {
        Self { named_by: columns, ..self }
    }
    /// Adds a row.
    ///
    /// # Panics
    /// Panics if the number of values differs from the number of columns.
    pub fn row(&mut self, row: Vec<Value>) {
        assert_eq!(row.len(), self.columns.len(), "{}: each column must have one value", self.title);
        self.rows.push(row);
    }
    /// Returns `true` if the column contains numbers, which are aligned to the right. The first column never counts as
    /// numeric, because it names the rows.
    pub(super) fn is_numeric(&self, column: usize) -> bool {
        let number = |value: &Value| value.is_number();
        column > 0 && self.rows.iter().any(|row| number(&row[column]))
    }
    /// Removes the measured columns; returns `None` if only columns that name rows remain.
    fn without_measured(mut self) -> Option<Self> {
        let kept_columns: Vec<bool> = self.columns.iter().map(|c| !c.measured).collect();
        for row in &mut self.rows {
            let mut column_flags = kept_columns.iter();
            row.retain(|_| *column_flags.next().unwrap_or(&true));
        }
        let names_only =
            kept_columns.iter().any(|k| !k) && kept_columns.iter().filter(|k| **k).count() == self.named_by;
        self.columns.retain(|c| !c.measured);
        (!names_only).then_some(self)
    }
}

impl Value {
    /// Returns `true` if the value is aligned to the right.
    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Count(_) | Self::Number(..) | Self::Spread(..))
    }
    /// Formats the value: a number gets its decimals, and a count gets separators if `grouped` is set.
    pub fn shown(&self, grouped: bool) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(n) if grouped => uslab_output::grouped(*n),
            Self::Count(n) => n.to_string(),
            Self::Number(x, decimals) => format!("{x:.decimals$}"),
            Self::Spread(spread, decimals) => spread.shown(*decimals),
            Self::Nothing => String::new(),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Count(n) => serializer.serialize_u64(*n),
            Self::Number(x, _) => serializer.serialize_f64(*x),
            Self::Spread(spread, _) => spread.serialize(serializer),
            Self::Nothing => serializer.serialize_none(),
        }
    }
}
impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}
impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Count(n)
    }
}
impl From<usize> for Value {
    fn from(n: usize) -> Self {
        Self::Count(n as u64)
    }
}
/// Creates a number that is shown with two decimals.
impl From<f64> for Value {
    fn from(x: f64) -> Self {
        Self::Number(x, 2)
    }
}
/// Creates a measured value with its interval, shown with two decimals.
impl From<Spread> for Value {
    fn from(spread: Spread) -> Self {
        Self::Spread(spread, 2)
    }
}
impl<V: Into<Value>> From<Option<V>> for Value {
    fn from(value: Option<V>) -> Self {
        value.map_or(Self::Nothing, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_findings_omit_measured_values() {
        let mut findings = Findings::new("example", "why?", 7);
        let mut table = Table::new("both", &["allocator", "holes", "~ns"]);
        table.row(vec!["first fit".into(), 3u64.into(), 12.5.into()]);
        findings.table(table);
        let mut times = Table::new("times", &["allocator", "~ns"]);
        times.row(vec!["first fit".into(), 12.5.into()]);
        findings.table(times);
        findings.note("a note");
        assert!(findings.clone().with_current_machine().machine.is_some());
        let exact_findings = findings.without_measured().with_current_machine();
        let [Part::Table(table), Part::Note(_)] = &exact_findings.parts[..] else {
            panic!("{exact_findings:?}")
        };
        assert_eq!(table.rows, [[Value::from("first fit"), Value::Count(3)]]);
        assert!(exact_findings.machine.is_none());
    }

    #[test]
    fn json_contains_plain_values() {
        let row: Vec<Value> = vec!["a".into(), 1u64.into(), 0.5.into(), Value::Nothing];
        assert_eq!(serde_json::to_string(&row).unwrap(), r#"["a",1,0.5,null]"#);
        let spread = Value::from(Spread::of(vec![1.0, 2.0, 4.0]));
        let json = r#"{"median":2.0,"low":1.0,"high":4.0,"rounds":3}"#;
        assert_eq!(serde_json::to_string(&spread).unwrap(), json);
    }

    #[test]
    fn compound_claim_is_decided_if_each_part_is_decided() {
        use Holds::{No, Partly, Undecided, Yes};
        assert_eq!(Holds::each([Yes, Yes]), Yes);
        assert_eq!(Holds::each([No, No]), No);
        assert_eq!(Holds::each([Yes, No]), Partly);
        assert_eq!(Holds::each([Yes, Undecided]), Undecided);
        assert_eq!(Holds::each([No, Undecided]), Undecided);
        assert_eq!(
            Holds::each([Yes, No, Undecided]),
            Partly,
            "the verdict is neither, for any third verdict"
        );
    }
}
