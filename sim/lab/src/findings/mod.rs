//! What an experiment found, as data: tables, pictures, claims that hold or do not. Text, CSV, JSON and pages come of it.
//!
//! What was measured is marked, and can be [left out](Findings::without_measured): times mostly, but also page faults and
//! instructions, which another machine, build or run finds different. The rest follows from the seed, byte for byte, on any
//! machine.
//!
//! | module | |
//! |---|---|
//! | [`clock`] | rounds, medians and their intervals, and what these decide |
//! | [`machine`] | where something was measured, and with what |
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

/// What an experiment found. Its serialised form is the interface of `uslab lab --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// The experiment's name, as on the command line.
    pub experiment: String,
    /// What it asks.
    pub question: String,
    /// What is random in it follows from this.
    pub seed: u64,
    /// Whether it was run small and short, so that its verdicts are none of a full run.
    pub quick: bool,
    /// Where it ran; absent where nothing was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// What it found, in the order of reading.
    pub parts: Vec<Part>,
}

/// One thing found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Rows of values.
    Table(Table),
    /// Curves over an axis.
    Chart(Chart),
    /// A bar for each of some things.
    Bars(Bars),
    /// What somebody said, and what was found here.
    Claim(Claim),
    /// A sentence.
    Note(String),
}

/// Rows of values under named columns, of which the first ones name the row: no two rows have the same name.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// How many columns, from the first one on, name a row together.
    pub named_by: usize,
    /// Its rows, each with a value a column.
    pub rows: Vec<Vec<Value>>,
}

/// A column of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// Its name, with the unit.
    pub name: String,
    /// Whether its values were measured, and so differ by machine, build or run: times, page faults, instructions.
    pub measured: bool,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Words.
    Text(String),
    /// Things counted.
    Count(u64),
    /// A ratio or a measure, and with how many decimals it is shown.
    Number(f64, usize),
    /// What was measured in several rounds, and with how many decimals it is shown.
    Spread(Spread, usize),
    /// There is none.
    Nothing,
}

/// What a source says, and what was found here.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// What is said.
    pub says: String,
    /// By whom.
    pub source: String,
    /// What was found.
    pub found: String,
    /// Whether it holds here.
    pub holds: Holds,
    /// Whether that was measured, and so differs by machine, build or run.
    pub measured: bool,
}

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// It does.
    Yes,
    /// In a part of the cases, or of the amount.
    Partly,
    /// It does not.
    No,
    /// What was found does not tell: runs or seeds differ by more than it takes to decide.
    Undecided,
}

impl Holds {
    /// Whether something that is certain is so.
    pub fn if_so(so: bool) -> Self {
        if so { Self::Yes } else { Self::No }
    }
    /// What is said of several, if each of them holds: in part, where it is said of some and not of others.
    pub fn each(parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: Vec<Self> = parts.into_iter().collect();
        let any = |wanted| parts.contains(&wanted);
        match (any(Self::Yes), any(Self::No), any(Self::Undecided)) {
            (true, true, _) => Self::Partly,
            _ if any(Self::Partly) => Self::Partly,
            (_, _, true) => Self::Undecided,
            (true, false, _) => Self::Yes,
            _ => Self::No,
        }
    }
}

/// What is said above the findings of a quick run.
pub(super) const QUICK: &str =
    "A quick run, a fraction of the work: its figures and verdicts only show that everything runs.";

impl Findings {
    /// Nothing yet.
    pub fn new(experiment: &str, question: &str, seed: u64) -> Self {
        let (experiment, question) = (experiment.to_owned(), question.to_owned());
        Self { experiment, question, seed, quick: false, machine: None, parts: Vec::new() }
    }
    /// One more table.
    pub fn table(&mut self, table: Table) {
        self.parts.push(Part::Table(table));
    }
    /// One more chart.
    pub fn chart(&mut self, chart: Chart) {
        self.parts.push(Part::Chart(chart));
    }
    /// One more picture of bars, unless it has fewer than two to compare.
    pub fn bars(&mut self, bars: Bars) {
        if bars.bars.len() > 1 {
            self.parts.push(Part::Bars(bars));
        }
    }
    /// One more claim.
    pub fn claim(&mut self, claim: Claim) {
        self.parts.push(Part::Claim(claim));
    }
    /// One more sentence.
    pub fn note(&mut self, note: impl Into<String>) {
        self.parts.push(Part::Note(note.into()));
    }

    /// The same without what was measured.
    #[must_use]
    pub fn without_measured(mut self) -> Self {
        self.parts = self.parts.into_iter().filter_map(Part::without_measured).collect();
        self
    }
    /// Says where it was measured, if anything was.
    #[must_use]
    pub fn on_this_machine(mut self) -> Self {
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
    /// A table without rows, which its first column names. Columns whose name begins with `~` are measured.
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
    /// The same, its rows named by so many of the first columns together.
    #[must_use]
    pub fn named_by(self, columns: usize) -> Self {
        Self { named_by: columns, ..self }
    }
    /// One more row.
    ///
    /// # Panics
    /// It has not as many values as there are columns.
    pub fn row(&mut self, row: Vec<Value>) {
        assert_eq!(row.len(), self.columns.len(), "{}: a value a column", self.title);
        self.rows.push(row);
    }
    /// Whether a column has numbers, and so is shown flush right. The first one names rows.
    pub(super) fn is_numeric(&self, column: usize) -> bool {
        let number = |value: &Value| value.is_number();
        column > 0 && self.rows.iter().any(|row| number(&row[column]))
    }
    /// Nothing is left of a table that has only names beside its times.
    fn without_measured(mut self) -> Option<Self> {
        let keep: Vec<bool> = self.columns.iter().map(|c| !c.measured).collect();
        for row in &mut self.rows {
            let mut kept = keep.iter();
            row.retain(|_| *kept.next().unwrap_or(&true));
        }
        let names_only = keep.iter().any(|k| !k) && keep.iter().filter(|k| **k).count() == self.named_by;
        self.columns.retain(|c| !c.measured);
        (!names_only).then_some(self)
    }
}

impl Value {
    /// Whether it is shown flush right.
    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Count(_) | Self::Number(..) | Self::Spread(..))
    }
    /// The value as text: numbers with their decimals, counts grouped if a person reads it.
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
/// With two decimals.
impl From<f64> for Value {
    fn from(x: f64) -> Self {
        Self::Number(x, 2)
    }
}
/// With two decimals.
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
    fn without_what_was_measured_only_what_follows_from_the_seed_is_left() {
        let mut findings = Findings::new("example", "why?", 7);
        let mut table = Table::new("both", &["allocator", "holes", "~ns"]);
        table.row(vec!["first fit".into(), 3u64.into(), 12.5.into()]);
        findings.table(table);
        let mut times = Table::new("times", &["allocator", "~ns"]);
        times.row(vec!["first fit".into(), 12.5.into()]);
        findings.table(times);
        findings.note("a note");
        assert!(findings.clone().on_this_machine().machine.is_some());
        let exact = findings.without_measured().on_this_machine();
        let [Part::Table(table), Part::Note(_)] = &exact.parts[..] else { panic!("{exact:?}") };
        assert_eq!(table.rows, [[Value::from("first fit"), Value::Count(3)]]);
        assert!(exact.machine.is_none());
    }

    #[test]
    fn json_has_plain_values() {
        let row: Vec<Value> = vec!["a".into(), 1u64.into(), 0.5.into(), Value::Nothing];
        assert_eq!(serde_json::to_string(&row).unwrap(), r#"["a",1,0.5,null]"#);
        let spread = Value::from(Spread::of(vec![1.0, 2.0, 4.0]));
        let json = r#"{"median":2.0,"low":1.0,"high":4.0,"rounds":3}"#;
        assert_eq!(serde_json::to_string(&spread).unwrap(), json);
    }

    #[test]
    fn a_claim_of_several_things_is_decided_where_each_of_them_is() {
        use Holds::{No, Partly, Undecided, Yes};
        assert_eq!(Holds::each([Yes, Yes]), Yes);
        assert_eq!(Holds::each([No, No]), No);
        assert_eq!(Holds::each([Yes, No]), Partly);
        assert_eq!(Holds::each([Yes, Undecided]), Undecided);
        assert_eq!(Holds::each([No, Undecided]), Undecided);
        assert_eq!(Holds::each([Yes, No, Undecided]), Partly, "it is neither, whatever the third says");
    }
}
