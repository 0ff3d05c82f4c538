//! Tests `uslab watch`, both on a terminal and without a terminal.

#[path = "../kit/terminal.rs"]
mod terminal;

use crate::cli::refused;
use std::io::Write;
use terminal::run_on_terminal;

#[test]
fn watch_restores_the_terminal_on_exit() {
    let (code, text, restored) =
        run_on_terminal(&["watch", "--design", "slub", "--cache", "dentry"], |keys| {
            keys.write_all(b"nq").unwrap();
        });
    assert_eq!((code, restored), (Some(0), true), "{text}");
    let (entered, left) = (text.find("\x1b[?1049h").unwrap(), text.rfind("\x1b[?1049l").unwrap());
    assert!(
        entered < left && !text[left..].contains("dentry"),
        "the program must enter and leave the alternate screen: {text:?}"
    );
    assert!(text.contains("slub") && text.contains("dentry"), "{text:?}");
}

#[test]
fn watch_refuses_an_unknown_cache_without_drawing() {
    for (args, part) in [
        (["watch", "--at", "99999999"], "--at 99999999: expected 0 to 672020, the number of operations in "),
        (["watch", "--cache", "none"], "--cache none: no such cache; expected one of "),
        (["watch", "--design", "slob"], "--design: unknown design `slob`; expected one of uslab, "),
    ] {
        let (code, text, restored) = run_on_terminal(&args, |_| {});
        assert_eq!((code, restored), (Some(2), true), "{text}");
        assert!(text.contains(part) && !text.contains("\x1b[?1049h"), "{text:?}");
    }
}

#[test]
fn watch_without_a_terminal_suggests_an_alternative() {
    refused(
        &["watch"],
        &["uslab: standard output is not a terminal; `uslab replay --at N --json` has the same moments\n"],
    );
    refused(
        &["watch", "--json"],
        &["uslab: --json: `uslab watch` only draws on a terminal; expected `uslab replay --at N --json`\n"],
    );
}
