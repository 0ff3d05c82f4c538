//! The command `uslab diff`: lists the numbers that differ between two reports.

use crate::output::{table, text};
use serde::Serialize;
use serde_json::Value;

/// The differences between two reports.
#[derive(Debug, Serialize)]
pub struct Diff {
    /// The number of values (numbers and texts) that both reports have.
    pub compared: u64,
    /// The values that differ, largest relative change first.
    pub differ: Vec<Difference>,
    /// Paths of values that only the first report has.
    pub only_a: Vec<String>,
    /// Paths of values that only the second report has.
    pub only_b: Vec<String>,
}

/// A number or text that differs between the two reports.
#[derive(Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The path of the value in the report.
    pub at: String,
    /// The value in the first report.
    pub a: Value,
    /// The value in the second report.
    pub b: Value,
    /// The change in percent of the first report's value, if both values are numbers and the first value is
    /// not 0.
    pub percent: Option<f64>,
}

/// Fields that can name a row of a report's list; the most specific field comes first. Some rows are identified only by
/// several fields together, such as a sweep's best options for a workload, or a zone's free blocks by order.
const NAMES: [&str; 8] = ["name", "cache", "call_site", "knob", "design", "workload", "cpus", "moment"];
const WORK_KEYS: [&str; 2] = ["work", "cpus"];
const ZONE_KEYS: [&str; 3] = ["moment", "zone", "order"];
const SETTING_KEYS: [&str; 1] = ["setting"];

impl Diff {
    /// Compares two reports, omitting values that differ by at most `above` percent.
    pub fn new(a: &Value, b: &Value, above: f64) -> Self {
        let mut diff = Self { compared: 0, differ: vec![], only_a: vec![], only_b: vec![] };
        diff.compare(String::new(), a, b);
        // With `above == 0`, differences too small for `f64` stay, as between large integers.
        diff.differ.retain(|d| above == 0.0 || d.percent.is_none_or(|percent| percent.abs() > above));
        // Differences without a percentage come first: the first value is 0, or the values are texts.
        let rank = |d: &Difference| d.percent.map_or(f64::INFINITY, f64::abs);
        diff.differ
            .sort_by(|one, other| rank(other).total_cmp(&rank(one)).then_with(|| one.at.cmp(&other.at)));
        diff
    }

    fn compare(&mut self, at: String, a: &Value, b: &Value) {
        let below = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        match (a, b) {
            (Value::Object(a), Value::Object(b)) => {
                for (name, value) in a {
                    match b.get(name) {
                        Some(other) => self.compare(below(name), value, other),
                        None => self.only_a.push(below(name)),
                    }
                }
                self.only_b.extend(b.keys().filter(|name| !a.contains_key(*name)).map(|name| below(name)));
            }
            (Value::Array(a), Value::Array(b)) => {
                // Rows with equal names match first, then the rest in order, because they may belong to another design
                // or other options.
                let mut others: Vec<Option<&Value>> = b.iter().map(Some).collect();
                let mut left = vec![];
                for (place, row) in a.iter().enumerate() {
                    let same = |other: &&mut Option<&Value>| {
                        name(row).is_some() && other.and_then(name) == name(row)
                    };
                    match others.iter_mut().find(same).and_then(Option::take) {
                        Some(other) => self.compare(below(&label(row, place)), row, other),
                        None => left.push((place, row)),
                    }
                }
                let mut others =
                    others.into_iter().enumerate().filter_map(|(place, row)| Some((place, row?)));
                for (place, row) in left {
                    match others.next() {
                        Some((_, other)) => self.compare(below(&label(row, place)), row, other),
                        None => self.only_a.push(below(&label(row, place))),
                    }
                }
                self.only_b.extend(others.map(|(place, row)| below(&label(row, place))));
            }
            _ => {
                self.compared += 1;
                // Other programs write `3.0` as `3`.
                let same_number = a.is_f64() != b.is_f64() && a.as_f64() == b.as_f64();
                if a != b && !same_number {
                    let change = a.as_f64().zip(b.as_f64()).filter(|(a, _)| *a != 0.0);
                    let percent = change.map(|(a, b)| 100.0 * (b - a) / a.abs());
                    self.differ.push(Difference { at, a: a.clone(), b: b.clone(), percent });
                }
            }
        }
    }

    /// Formats the result as text with at most `most` differences.
    pub fn text(&self, most: usize) -> String {
        let Self { compared, differ, only_a, only_b } = self;
        let mut out = format!("{} of {compared} values differ\n", differ.len());
        let mut rows = table(&["value", "A", "B", "change"]);
        for Difference { at, a, b, percent } in differ.iter().take(most) {
            let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            let change = percent.map_or_else(String::new, |percent| format!("{percent:+.1} %"));
            rows.add_row([at.clone(), shown(a), shown(b), change]);
        }
        if !differ.is_empty() {
            out += &format!("\n{}", text(&rows));
        }
        if differ.len() > most {
            out += &format!("... and {} more differences: `--all` shows them\n", differ.len() - most);
        }
        for (which, only) in [("A", only_a), ("B", only_b)] {
            if let Some(first) = only.first() {
                out += &format!("\n{} values are only in {which}, for example {first}\n", only.len());
            }
        }
        out
    }
}

/// Returns a label for a row of a list: the row's name, or its position if it has no name.
fn label(row: &Value, place: usize) -> String {
    name(row).unwrap_or_else(|| place.to_string())
}

/// Returns the name of a list's row, if the row has a name.
fn name(row: &Value) -> Option<String> {
    let keys: &[&str] = match row {
        Value::Object(row) if row.get("work").is_some_and(Value::is_string) => &WORK_KEYS,
        Value::Object(row) if row.get("zone").is_some_and(Value::is_string) => &ZONE_KEYS,
        Value::Object(row) if NAMES.iter().any(|key| row.contains_key(*key)) => &NAMES,
        _ => &SETTING_KEYS,
    };
    let names = keys.iter().filter_map(|key| match row.get(key)? {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn largest_report_change_is_listed_first() {
        let a = json!({ "seed": 1, "caches": [{ "name": "dentry", "slabs": 10 }, { "name": "inode", "slabs": 4, "new": 0 }] });
        let b = json!({ "seed": 1, "caches": [{ "name": "inode", "slabs": 2, "new": 7 }, { "name": "dentry", "slabs": 11 }] });
        let diff = Diff::new(&a, &b, 0.0);
        let found: Vec<_> = diff.differ.iter().map(|d| (d.at.as_str(), d.percent)).collect();
        assert_eq!(
            found,
            [
                ("caches.inode.new", None),
                ("caches.inode.slabs", Some(-50.0)),
                ("caches.dentry.slabs", Some(10.0))
            ]
        );
        assert_eq!((diff.compared, diff.only_a.len()), (6, 0));
        assert_eq!(Diff::new(&a, &b, 20.0).differ.len(), 2);
        assert_eq!(Diff::new(&a, &a, 0.0).differ, []);
    }

    /// The test compares two seeds that round to the same `f64`.
    #[test]
    fn large_adjacent_seeds_are_unequal() {
        let [a, b] = [1_u64 << 53, (1 << 53) + 1].map(|seed| json!({ "seed": seed }));
        assert_eq!(Diff::new(&a, &b, 0.0).differ.len(), 1);
        assert_eq!(Diff::new(&a, &b, 1.0).differ, []);
        assert_eq!(Diff::new(&json!([3.0, 0]), &json!([3, 0.0]), 0.0).differ, []);
    }

    /// Regression test: row names contained the block order, and rows of sweeps and call sites had no names.
    #[test]
    fn report_rows_are_matched_by_name_columns_only() {
        let rows = |rows: [Value; 2]| [json!(rows), json!([rows[1], rows[0]])];
        for [a, b] in [
            rows([json!({ "setting": "m=1", "score": 3 }), json!({ "setting": "m=2", "score": 2 })]),
            rows([
                json!({ "work": "bursts", "cpus": 4, "setting": "m=1" }),
                json!({ "work": "pairs", "cpus": 4, "setting": "m=2" }),
            ]),
            rows([
                json!({ "zone": "Normal", "order": 3, "free": 1 }),
                json!({ "zone": "Normal", "order": 4, "free": 2 }),
            ]),
            rows([json!({ "cache": "dentry", "n": 1 }), json!({ "cache": "inode", "n": 2 })]),
            rows([
                json!({ "cpus": 2, "zone": { "contended": 1 } }),
                json!({ "cpus": 4, "zone": { "contended": 2 } }),
            ]),
            rows([json!({ "call_site": "a+0x1", "n": 1 }), json!({ "call_site": "b+0x1", "n": 2 })]),
        ] {
            assert_eq!(Diff::new(&a, &b, 0.0).differ, []);
        }
        let of_order = |order: u8| json!([{ "name": "x", "order": 0 }, { "name": "dentry", "order": order }]);
        let diff = Diff::new(&of_order(1), &of_order(2), 0.0);
        assert_eq!(diff.differ.iter().map(|d| d.at.as_str()).collect::<Vec<_>>(), ["dentry.order"]);
    }

    #[test]
    fn unmatched_report_rows_are_paired_in_order() {
        let a = json!({ "designs": [{ "design": "slub", "slabs": 4 }], "caches": [{ "name": "x", "n": 1 }, { "name": "y", "n": 1 }], "gone": 1 });
        let b = json!({ "designs": [{ "design": "slub:cpu_partial=0", "slabs": 5 }], "caches": [{ "name": "y", "n": 1 }] });
        let diff = Diff::new(&a, &b, 0.0);
        let found: Vec<_> = diff.differ.iter().map(|d| d.at.as_str()).collect();
        assert_eq!(found, ["designs.slub.design", "designs.slub.slabs"]);
        assert_eq!(
            (diff.only_a.clone(), diff.only_b.len()),
            (vec!["caches.x".to_owned(), "gone".to_owned()], 0)
        );
        let text = diff.text(1);
        assert!(
            text.contains("... and 1 more") && text.contains("only in A, for example caches.x"),
            "{text}"
        );
    }
}
