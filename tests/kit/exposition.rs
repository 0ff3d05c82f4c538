//! A strict reader of Prometheus' text format 0.0.4. The reader rejects text in which the format's linter would find a
//! problem.

use std::collections::BTreeMap;

/// Returns the value of each series in a Prometheus text; a series is a name with its labels, as written in the text.
///
/// # Errors
/// Fails at the first invalid line.
pub(crate) fn read(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let mut series = BTreeMap::new();
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    // The metric whose lines follow: `helped` after its HELP line, `typed` after its TYPE line.
    let (mut helped, mut typed) = (String::new(), String::new());
    if !text.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    for line in text.lines() {
        let wrong = |what: &str| Err(format!("{what}: {line}"));
        if let Some(help) = line.strip_prefix("# HELP ") {
            let Some((name, help)) = help.split_once(' ') else { return wrong("expected a metric's help") };
            if help.trim() != help || help.is_empty() || help.contains('\\') {
                return wrong("help");
            }
            helped = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = kind.split_once(' ') else { return wrong("expected a metric's type") };
            if name != helped || types.insert(name.to_owned(), kind.to_owned()).is_some() {
                return wrong("expected one type after each help");
            }
            if (kind == "counter") != name.ends_with("_total") || !matches!(kind, "counter" | "gauge") {
                return wrong("type");
            }
            typed = name.to_owned();
        } else {
            let Some((key, value)) = line.rsplit_once(' ') else { return wrong("expected a sample's value") };
            let (name, labels) = key.split_at(key.find('{').unwrap_or(key.len()));
            if name != typed || !is_name(name) {
                return wrong("expected a sample after its type");
            }
            if !labels.is_empty() && read_labels(labels).is_none() {
                return wrong("labels");
            }
            let Ok(value) = value.parse::<f64>() else { return wrong("value") };
            if series.insert(key.to_owned(), value).is_some() {
                return wrong("twice");
            }
        }
    }
    match types.keys().find(|name| !series.keys().any(|key| key.split('{').next() == Some(name))) {
        Some(name) => Err(format!("no sample: {name}")),
        None => Ok(series),
    }
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Parses labels such as `{a="b",c="d"}`. Each label name may occur only once in the text.
pub(crate) fn read_labels(text: &str) -> Option<BTreeMap<String, String>> {
    let mut rest = text.strip_prefix('{')?;
    let mut labels = BTreeMap::new();
    loop {
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\n') => return None,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    escaped @ ('\\' | '"') => escaped,
                    _ => return None,
                }),
                (_, other) => value.push(other),
            }
        };
        if !is_name(name) || labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        match &quoted[end + 1..] {
            "}" => return Some(labels),
            more => rest = more.strip_prefix(',')?,
        }
    }
}
