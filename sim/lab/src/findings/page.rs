//! Writes findings as one HTML file, which contains all pictures and loads nothing from the network.

use super::{Findings, Part, QUICK_RUN_NOTE, Table};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = "\
:root { color-scheme: light dark; --text: #1a1a1a; --faint: #666; --rule: #ddd; --ground: #fff }
@media (prefers-color-scheme: dark) { :root { --text: #e4e4e4; --faint: #999; --rule: #444; --ground: #181818 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: var(--text);
background: var(--ground) }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } caption, figcaption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--rule); text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } .measured::after { content: ' ≈'; color: var(--faint) }
svg { max-width: 100%; height: auto } figure { margin: 1.5rem 0 } .claim { margin: .3rem 0 } .claim b { margin-right: .5rem }
.meta { color: var(--faint) }";

impl Findings {
    /// Returns a web page that shows all findings.
    ///
    /// # Errors
    /// Fails if a picture cannot be drawn.
    pub fn page(&self) -> anyhow::Result<String> {
        let parts =
            self.parts.iter().map(|part| part.markup(self.quick)).collect::<anyhow::Result<Vec<_>>>()?;
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { "uslab lab " (self.experiment) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (self.experiment) ": " (self.question) }
                    p.meta {
                        "uslab " (env!("CARGO_PKG_VERSION")) ", seed " (self.seed)
                        @if let Some(machine) = &self.machine { ", on " (machine.to_string()) ". ≈ marks measured values: another machine, build or run finds other numbers." }
                    }
                    @if self.quick { p { strong { (QUICK_RUN_NOTE) } } }
                    @for part in &parts { (part) }
                }
            }
        };
        Ok(page.into_string())
    }
}

impl Part {
    fn markup(&self, quick: bool) -> anyhow::Result<Markup> {
        Ok(match self {
            Self::Table(table) => table.markup(),
            Self::Chart(chart) => figure(&chart.title, chart.measured, &chart.svg()?),
            Self::Bars(bars) => figure(&bars.title, bars.measured, &bars.svg()?),
            Self::Claim(claim) => html! {
                p.claim.measured[claim.measured] { b { (claim.holds.shown()) @if quick { ", quick" } } (claim.says) " (" (claim.source) "); found: " (claim.found) }
            },
            Self::Note(note) => html! { p { (note) } },
        })
    }
}

fn figure(title: &str, measured: bool, svg: &str) -> Markup {
    html! {
        figure {
            figcaption.measured[measured] { (title) }
            (PreEscaped(svg))
        }
    }
}

impl Table {
    fn markup(&self) -> Markup {
        html! {
            table {
                caption { (self.title) }
                thead { tr {
                    @for (i, column) in self.columns.iter().enumerate() {
                        th.n[self.is_numeric(i)].measured[column.measured] { (column.name) }
                    }
                } }
                tbody {
                    @for row in &self.rows {
                        tr { @for value in row { td.n[value.is_number()] { (value.shown(true)) } } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::findings::show::tests::example;

    #[test]
    fn quick_run_verdicts_are_marked_on_the_web_page() {
        let mut findings = example();
        assert!(!findings.page().unwrap().contains("quick"));
        findings.quick = true;
        let page = findings.page().unwrap();
        assert!(page.contains(super::QUICK_RUN_NOTE) && page.contains("<b>holds, quick</b>"), "{page}");
    }

    #[test]
    fn findings_web_page_is_self_contained_and_escaped() {
        let page = example().page().unwrap();
        assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
        assert!(page.contains("first, &quot;best&quot; fit") && page.contains("&lt;first fit&gt;"), "{page}");
        assert!(!page.contains("<first fit>"));
        assert_eq!(page.matches("<svg").count(), 2);
        for reference in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(reference), "{reference}");
        }
        assert_eq!(page, example().page().unwrap(), "equal findings must give equal bytes");
    }
}
