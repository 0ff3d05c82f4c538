//! Fills in the web page templates in `sim/web/built`, which are compiled into the command.

use serde::Serialize;

/// Returns the template with each placeholder replaced by its text. Only the first occurrence of a
/// placeholder is replaced. If a text contains the name of another placeholder, the template must have that placeholder
/// before the text.
pub(crate) fn page(template: &str, parts: &[(&str, &str)]) -> String {
    parts.iter().fold(template.to_owned(), |page, (place, text)| page.replacen(place, text, 1))
}

/// Returns JSON for an element `<script type="application/json">`; no part of the JSON ends the element or begins
/// another one.
///
/// # Errors
/// Fails if a key is not a string.
pub(crate) fn json(data: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string(data)?.replace('<', "\\u003c"))
}

/// Escapes a text for an attribute in double quotes.
pub(crate) fn attribute(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}

/// Checks that a web page is complete and loads nothing.
#[cfg(test)]
pub(crate) fn check(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    // The namespace of SVG is only a name: no request is made to it.
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for request in ["http://", "https://", "src=", "href=", "@import", "fetch(", "XMLHttpRequest", "import("]
    {
        assert!(!page.contains(request), "the page must not contain `{request}`");
    }
}
