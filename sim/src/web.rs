//! Pages that are built into the command, `sim/web/built`: what goes into their places.

use serde::Serialize;

/// The template with each text in its place. A place that also stands in an earlier text must come before that text's in the template.
pub(crate) fn page(template: &str, parts: &[(&str, &str)]) -> String {
    parts.iter().fold(template.to_owned(), |page, (place, text)| page.replacen(place, text, 1))
}

/// JSON for an element `<script type="application/json">`: nothing in it ends the element or begins another one.
///
/// # Errors
/// A key that is no text.
pub(crate) fn json(data: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string(data)?.replace('<', "\\u003c"))
}

/// A text for an attribute in double quotes.
pub(crate) fn attribute(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}

/// What every page must be: whole, and without a request.
#[cfg(test)]
pub(crate) fn check(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    // The namespace of SVG is a name, and is asked of nobody.
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for request in ["http://", "https://", "src=", "href=", "@import", "fetch(", "XMLHttpRequest", "import("]
    {
        assert!(!page.contains(request), "`{request}` in the page");
    }
}
