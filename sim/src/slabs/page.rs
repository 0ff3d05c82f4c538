//! Writes the report as an HTML page: one file without scripts that loads nothing from the network.

use super::{Report, Row, Setting, format_bounds, percent};
use crate::output::{grouped, size};
use crate::web::attribute;
use std::fmt::Write;

const STYLE: &str = "\
:root { color-scheme: light dark } body { font: 15px/1.5 sans-serif; max-width: 80em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .15em .6em; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child, td.text { text-align: left } .bar { width: 16em; padding: 0; text-align: left; white-space: nowrap }
.bar i { display: inline-block; height: .9em; vertical-align: middle } .used { background: #0072b2 } .holes { background: #e69f00 }
.waste { background: #999 } .scroll { overflow-x: auto }";

/// The width of the largest cache's bar, in em.
const WIDTH: f64 = 16.0;

impl Report {
    /// Returns the report as an HTML page, with at most `rows` caches.
    pub fn page(&self, rows: usize) -> String {
        let mut page = String::new();
        self.write_page(&mut page, rows).map_or_else(|_| String::new(), |()| page)
    }

    fn write_page(&self, f: &mut String, rows: usize) -> std::fmt::Result {
        let place = attribute(&self.place);
        writeln!(
            f,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
        )?;
        writeln!(
            f,
            "<title>Slab caches of {place}</title><style>{STYLE}</style></head><body>\n<h1>Slab caches of {place}</h1>"
        )?;
        let mut sentences = String::new();
        self.head(&mut sentences)?;
        self.sums(&mut sentences)?;
        for line in sentences.lines().filter(|line| !line.is_empty()) {
            writeln!(f, "<p>{}</p>", attribute(line))?;
        }
        writeln!(
            f,
            "<div class=\"scroll\"><table><tr><th>cache</th><th>bytes</th><th class=\"bar\"><i class=\"used\" style=\"width:1em\"></i> in use \
             <i class=\"holes\" style=\"width:1em\"></i> holes <i class=\"waste\" style=\"width:1em\"></i> waste</th><th>holes</th><th>of the cache</th>\
             <th>objects in use</th><th>bytes/object</th><th>slabs</th><th>partial slabs</th><th>shrink returns</th></tr>"
        )?;
        let most = self.caches.iter().map(|row| row.bytes).max().unwrap_or(0).max(1);
        for row in self.caches.iter().take(rows) {
            self.row(f, row, WIDTH / most as f64)?;
        }
        writeln!(f, "</table></div>")?;
        if let Some(more) = self.caches.len().checked_sub(rows).filter(|more| *more > 0) {
            writeln!(f, "<p>... and {more} more.</p>")?;
        }
        if !self.settings.is_empty() {
            writeln!(
                f,
                "<h2>Memory with other kernel options</h2><p>Computed from slab geometry, without the effect on speed.</p>"
            )?;
            writeln!(
                f,
                "<div class=\"scroll\"><table><tr><th>option</th><th>now</th><th>with the option</th><th>change</th><th>counted memory</th><th>other changes</th></tr>"
            )?;
            for setting in &self.settings {
                let Setting { now, then, .. } = setting;
                let [name, direction, about] =
                    [&setting.setting, &setting.direction, &setting.about].map(|text| attribute(text));
                let (now, then, others) =
                    (size(*now), format_bounds(*then), attribute(&setting.describe_other_changes()));
                writeln!(
                    f,
                    "<tr><td>{name}</td><td>{now}</td><td>{then}</td><td class=\"text\">{direction}</td><td class=\"text\">{about}</td>\
                     <td class=\"text\">{others}</td></tr>"
                )?;
            }
            writeln!(f, "</table></div>")?;
        }
        writeln!(f, "</body></html>")
    }

    fn row(&self, f: &mut String, row: &Row, em: f64) -> std::fmt::Result {
        let used = (row.in_use * row.object_size).min(row.bytes);
        let holes = row.hole_bytes.min(row.bytes - used);
        let parts = [("used", used), ("holes", holes), ("waste", row.bytes - used - holes)];
        let bars = parts.into_iter().filter(|(_, bytes)| *bytes > 0).fold(
            String::new(),
            |mut bars, (class, bytes)| {
                // Writing to a string cannot fail.
                let _ = write!(bars, "<i class=\"{class}\" style=\"width:{:.2}em\"></i>", bytes as f64 * em);
                bars
            },
        );
        writeln!(
            f,
            "<tr title=\"{}\"><td>{}</td><td>{}</td><td class=\"bar\">{bars}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td></tr>",
            attribute(&row.sentence),
            attribute(&row.name),
            size(row.bytes),
            size(row.hole_bytes),
            percent(row.hole_bytes, row.bytes),
            grouped(row.in_use),
            row.object_size,
            grouped(row.slabs),
            row.partial.map_or("?".to_owned(), grouped),
            format_bounds(row.shrink),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Report, Snapshot, Sort};

    /// Regression test: the web page showed only five caches, and only their rates, after the words "a second:".
    #[test]
    fn cache_rates_are_shown_next_to_totals_since_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let table = folder.path().join("slabinfo");
        let report = |dentries: u64, files: u64| {
            let row = |name, objects: u64| {
                let slabs = objects.div_ceil(21);
                format!(
                    "{name} {objects} {} 192 21 1 : tunables 0 0 0 : slabdata {slabs} {slabs} 0\n",
                    slabs * 21
                )
            };
            let text = format!("slabinfo - version: 2.1\n{}{}", row("dentry", dentries), row("filp", files));
            std::fs::write(&table, text).expect("a file");
            Report::new(&Snapshot::open(&table).expect("a table"), Some(2), Sort::Bytes, &[]).expect("counts")
        };
        let [first, before, now] = [(21, 21), (42, 63), (84, 63)].map(|(a, b)| report(a, b));
        let rates = |rows| {
            let [two, ten] = [2, 10].map(std::time::Duration::from_secs);
            now.rates((&before, two), (&first, ten), rows)
        };
        let rows: Vec<Vec<String>> = rates(9)
            .lines()
            .filter(|line| line.contains("dentry") || line.contains("filp"))
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect();
        assert_eq!(rows, [["dentry", "+21", "+1.0", "+63", "+3"], ["filp", "+0", "+0.0", "+42", "+2"]]);
        assert!(
            rates(9).contains("objects per second") && rates(9).contains("slabs since the start, 10 s ago")
        );
        assert!(!rates(1).contains("filp"), "{}", rates(1));
    }

    #[test]
    fn slab_report_web_page_is_complete_and_escapes_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let table = folder.path().join("slabinfo");
        let text = "slabinfo - version: 2.1\n<b>\"x\" 10 40 100 40 1 : tunables 0 0 0 : slabdata 1 1 0\n\
                    dentry 21 42 192 21 1 : tunables 0 0 0 : slabdata 2 2 0\n";
        std::fs::write(&table, text).expect("a file");
        let report = Report::new(&Snapshot::open(&table).expect("a table"), Some(2), Sort::Bytes, &[])
            .expect("counts");
        let page = report.page(1);
        crate::web::check(&page);
        assert!(page.contains("<td>dentry</td>") && page.contains("... and 1 more."), "{page}");
        // Of 8,192 bytes, 4,032 are in use, and as many are holes.
        assert_eq!(page.matches("width:7.88em").count(), 2, "{page}");
        let page = report.page(usize::MAX);
        assert!(page.contains("<td>&lt;b>&quot;x&quot;</td>"), "{page}");
    }
}
