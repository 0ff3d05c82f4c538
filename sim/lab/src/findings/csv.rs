//! Writes findings as CSV, with one line for each value.

use super::{Findings, Part, Table, Value};

impl Findings {
    /// Writes tables and pictures as CSV with four columns: the part of the findings; the row, curve or bar; the column
    /// or axis position; and the value. The first three columns of a CSV line identify the value.
    ///
    /// # Errors
    /// The contents of findings never cause a failure.
    pub fn csv(&self) -> anyhow::Result<String> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["part", "row", "column", "value"])?;
        for part in &self.parts {
            match part {
                Part::Table(table) => {
                    for row in &table.rows {
                        let name = table.name(row);
                        for (column, value) in table.columns.iter().zip(row).skip(table.named_by) {
                            // A line has a single number, so the ends of an interval have separate lines.
                            let Value::Spread(spread, decimals) = value else {
                                writer.write_record([
                                    &table.title,
                                    &name,
                                    &column.name,
                                    &value.shown(false),
                                ])?;
                                continue;
                            };
                            let parts = [("", spread.median), (", from", spread.low), (", to", spread.high)];
                            for (part, x) in parts {
                                let (column, x) =
                                    (format!("{}{part}", column.name), format!("{x:.decimals$}"));
                                writer.write_record([&table.title, &name, &column, &x])?;
                            }
                        }
                    }
                }
                Part::Chart(chart) => {
                    for series in &chart.series {
                        for (x, y) in &series.points {
                            let (x, y) = (x.to_string(), y.to_string());
                            writer.write_record([&chart.title, &series.name, &x, &y])?;
                        }
                    }
                }
                Part::Bars(bars) => {
                    for bar in &bars.bars {
                        let length = bar.length.to_string();
                        writer.write_record([&bars.title, &bar.name, &bars.axis.name, &length])?;
                    }
                }
                Part::Claim(_) | Part::Note(_) => (),
            }
        }
        Ok(String::from_utf8(writer.into_inner()?)?)
    }
}

impl Table {
    /// Joins the values of the columns that together name a table row.
    fn name(&self, row: &[Value]) -> String {
        let words: Vec<_> = row.iter().take(self.named_by).map(|value| value.shown(false)).collect();
        words.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::show::tests::example;

    #[test]
    fn findings_are_written_as_csv() {
        let expected = "\
part,row,column,value
Left at the end,buddy,holes,3
Left at the end,buddy,\"largest, bytes\",65536
Left at the end,\"first, \"\"best\"\" fit\",holes,120
Left at the end,\"first, \"\"best\"\" fit\",\"largest, bytes\",
Largest free block,buddy,0,65536
Largest free block,buddy,100,16384
Largest free block,<first fit>,0,65536
Largest free block,<first fit>,50,512
Steps of a search,buddy,steps,12
Steps of a search,<first fit>,steps,2000
";
        assert_eq!(example().csv().unwrap(), expected);
    }

    #[test]
    fn interval_bounds_are_separate_csv_rows() {
        let mut table = Table::new("Times", &["allocator", "~ns"]);
        table.row(vec!["buddy".into(), crate::findings::clock::Spread::of(vec![1.0, 2.0, 4.0]).into()]);
        let mut findings = Findings::new("example", "how long?", 7);
        findings.table(table);
        let expected = "part,row,column,value\nTimes,buddy,ns,2.00\nTimes,buddy,\"ns, from\",1.00\nTimes,buddy,\"ns, to\",4.00\n";
        assert_eq!(findings.csv().unwrap(), expected);
    }

    #[test]
    fn row_name_joins_all_its_name_columns() {
        let mut table = Table::new("Holes", &["policy", "sizes", "holes"]).named_by(2);
        table.row(vec!["first fit".into(), "one".into(), 3u64.into()]);
        table.row(vec!["first fit".into(), "many".into(), 7u64.into()]);
        let mut findings = Findings::new("example", "what is left?", 7);
        findings.table(table);
        let expected = "part,row,column,value\nHoles,first fit; one,holes,3\nHoles,first fit; many,holes,7\n";
        assert_eq!(findings.csv().unwrap(), expected);
    }
}
