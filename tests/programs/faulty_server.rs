//! Tests memory mistakes in the example server (`faulty_server/`); each run of the server makes one mistake. Each
//! mistake must end the server. The report must name the mistake, the object's cache, and the functions that allocated
//! and freed the object.

use crate::server::{Client, Server};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use uslab_tests::faulty_server;

/// The requests that a client sends after a mistake, until the server ends.
#[derive(Clone, Copy, Debug)]
enum FollowingRequests {
    /// Sends no request, because the server notices the mistake immediately.
    AtOnce,
    /// Deletes the key.
    Delete,
    /// Sends other commands, and then deletes the key.
    DeleteLater,
    /// Sets more keys, with values of the same size as the first value.
    Set,
    /// Sets and deletes more keys, with values of the same size as the first value.
    Renew,
    /// Makes the same mistake again, with another value.
    Again,
    /// Requests a value that is larger than the connection's buffer.
    GetLarge,
}
use FollowingRequests::*;

impl FollowingRequests {
    /// Sends the requests; returns `true` if the server has ended.
    fn ends(self, client: &mut Client) -> bool {
        let value = "v".repeat(100);
        let mut replies: Box<dyn Iterator<Item = String>> = match self {
            AtOnce => Box::new(std::iter::empty()),
            Delete => Box::new(["DEL key".to_owned()].into_iter()),
            DeleteLater => {
                Box::new(["SET other 1", "PING", "DEL other", "DEL key"].map(str::to_owned).into_iter())
            }
            Set => Box::new((0..1000).map(move |n| format!("SET other{n} {value}"))),
            Renew => Box::new(
                (0..1000).flat_map(move |n| [format!("SET other{n} {value}"), format!("DEL other{n}")]),
            ),
            Again => {
                let repeated_mistake =
                    move |_| [format!("SET key {value}"), "MISTAKE read_after_free".to_owned()];
                Box::new((0..200).flat_map(repeated_mistake))
            }
            GetLarge => Box::new(["GET large".to_owned()].into_iter()),
        };
        replies.any(|request| !client.is_answered(&request))
    }
}

/// Makes a mistake, and returns the messages that the server writes until it ends.
fn server_messages(mistake: &str, options: &[&str], following: FollowingRequests) -> String {
    let mut server = Server::start_server_command(
        Command::new(faulty_server()).args(options).env("USLAB_OPTIONS", "check=1").stderr(Stdio::piped()),
    );
    let mut client = server.client();
    let value = "v".repeat(100);
    let set = format!("SET key {value}");
    // The value's memory gets a previous owner.
    for request in
        [&format!("SET large {}", "l".repeat(40_000)), &set, "MISTAKE none_but_guard", "DEL key", &set]
    {
        assert!(client.is_answered(request), "{mistake}: {request}");
    }
    let has_ended = !client.is_answered(&format!("MISTAKE {mistake}")) || following.ends(&mut client);
    assert!(has_ended, "{mistake} was not detected");
    let mut text = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(server.process.wait().unwrap().signal(), Some(6), "{mistake}: {text}");
    text
}

/// Returns the line that begins with `begin`, and the indented lines of the call stack after it.
fn part<'t>(text: &'t str, begin: &str) -> Option<&'t str> {
    let start = text.find(&format!("\n{begin}"))? + 1;
    let part = &text[start..];
    let end = part.match_indices('\n').find(|(position, _)| !part[position + 1..].starts_with("  "));
    Some(&part[..end.map_or(part.len(), |(position, _)| position)])
}

/// Functions that the call stacks of the allocation, of the free and of the detection must contain. An element is
/// `None` if the report lacks this stack, for example because the object was never freed.
type Stacks = [Option<&'static str>; 3];
const VALUE: Stacks = [Some("Store"), Some("Store"), Some("Store")];
const DOUBLE_FREE_STACKS: Stacks = [Some("Store"), Some("free_first"), Some("free_again")];
const ENTRY_STACKS: Stacks = [Some("alloc_entry"), None, Some("drop_object")];
const NONE: Stacks = [None; 3];

/// The mistakes; for each, the requests that follow, the object's cache, a part of the report, and the report's call
/// stacks.
const MEMORY_MISTAKES: [(&str, FollowingRequests, &str, &str, Stacks); 22] = [
    ("overflow_by_1", Delete, "malloc-112", "Right Redzone overwritten", VALUE),
    ("overflow_by_8", Delete, "malloc-112", "Right Redzone overwritten", VALUE),
    ("overflow_by_64", Delete, "malloc-112", "Right Redzone overwritten", VALUE),
    ("underflow_by_1", Delete, "malloc-112", "Left Redzone overwritten", VALUE),
    ("underflow_by_8", Delete, "malloc-112", "Left Redzone overwritten", VALUE),
    ("write_after_free", Set, "malloc-112", "Poison overwritten", VALUE),
    ("write_after_free_at_the_end", Set, "malloc-112", "Poison overwritten", VALUE),
    ("write_after_free_of_all", Set, "malloc-112", "Poison overwritten", VALUE),
    ("double_free", AtOnce, "malloc-112", "double free", DOUBLE_FREE_STACKS),
    (
        "double_free_later",
        DeleteLater,
        "malloc-112",
        "double free",
        [Some("Store"), Some("free_first"), Some("Store")],
    ),
    ("double_free_by_another_thread", AtOnce, "malloc-112", "double free", DOUBLE_FREE_STACKS),
    // The other free may not have recorded its thread yet.
    (
        "double_free_at_one_moment",
        AtOnce,
        "malloc-112",
        "double free",
        [Some("Store"), None, Some("free_first")],
    ),
    (
        "interior_free",
        AtOnce,
        "malloc-112",
        "free of an address inside an object",
        [Some("Store"), Some("Store"), Some("free_again")],
    ),
    ("foreign_free", AtOnce, "kmalloc", "free of an address that no cache owns", NONE),
    (
        "wrong_size",
        AtOnce,
        "malloc-112",
        "free with a wrong size",
        [Some("Store"), Some("Store"), Some("free_again")],
    ),
    (
        "wrong_cache",
        AtOnce,
        "entry",
        "free to the wrong cache",
        [Some("alloc_entry"), None, Some("free_again")],
    ),
    ("overflow_of_an_entry", AtOnce, "entry", "Right Redzone overwritten", ENTRY_STACKS),
    ("underflow_of_an_entry", AtOnce, "entry", "Left Redzone overwritten", ENTRY_STACKS),
    (
        "overflow_of_a_freed_entry",
        Set,
        "entry",
        "Right Redzone overwritten",
        [Some("alloc_entry"), Some("drop_object"), Some("Store")],
    ),
    (
        "double_free_of_an_entry",
        AtOnce,
        "entry",
        "double free",
        [Some("alloc_entry"), Some("drop_object"), Some("drop_again")],
    ),
    // The reply is sent before its buffer is freed.
    (
        "overflow_of_a_buffer",
        Set,
        "buffer",
        "Right Redzone overwritten",
        [Some("connection::"), None, Some("connection::")],
    ),
    (
        "overflow_of_a_buffers_bytes",
        GetLarge,
        "malloc-16384",
        "Right Redzone overwritten",
        [Some("Buffer"), None, Some("Buffer")],
    ),
];

fn is_named(mistake: &str, text: &str, cache: &str, description: &str, stacks: Stacks) {
    let begin = text.lines().next().unwrap_or_default();
    assert!(begin.starts_with("uslab: corruption: cache "), "{mistake}: {text}");
    assert!(
        format!("{begin} ").replace([',', ':'], " ").contains(&format!("cache {cache} ")),
        "{mistake}: {text}"
    );
    assert!(text.contains(&format!(": {description}")), "{mistake}: {text}");
    for (begin, function) in ["Allocated: age=", "Freed: age=", "Noticed by thread="].into_iter().zip(stacks)
    {
        if let Some(function) = function {
            let stack = part(text, begin).unwrap_or_else(|| panic!("{mistake}: expected {begin} in {text}"));
            assert!(stack.contains(function), "{mistake}: expected {function} in {stack}");
        }
    }
}

#[test]
fn server_bug_report_shows_alloc_and_free_call_stacks() {
    let work = |mistakes: &[(&str, FollowingRequests, &str, &str, Stacks)]| {
        for &(mistake, following, cache, description, stacks) in mistakes {
            let text = server_messages(mistake, &["FZPU", "0"], following);
            is_named(mistake, &text, cache, description, stacks);
            if mistake == "double_free_by_another_thread" {
                let thread = |begin| {
                    let line = part(&text, begin)?.lines().next()?;
                    Some(line.rsplit_once("thread=")?.1.trim_end_matches(':'))
                };
                assert!(thread("Freed: age=").is_some(), "{text}");
                assert_ne!(thread("Freed: age="), thread("Noticed by thread="), "{text}");
            }
        }
    };
    // Symbol lookup takes most of the time, so the runs are in two threads.
    std::thread::scope(|scope| MEMORY_MISTAKES.chunks(11).for_each(|chunk| _ = scope.spawn(|| work(chunk))));
}

/// A freed object is not reused for some time; a write during this time is reported when the object is reused.
#[test]
fn write_to_a_quarantined_object_is_reported_on_reuse() {
    let text = server_messages("write_after_free", &["FZPU", "4096"], Renew);
    is_named("write_after_free", &text, "malloc-112", "Poison overwritten", VALUE);
}

/// Regression test: if the guard sampled every second or third allocation, the server ended in the middle of its
/// report, because the signal stack of Rust's threads is small.
#[test]
fn read_after_free_of_a_sample_is_reported() {
    let text = server_messages("read_after_free", &["heap"], Again);
    assert!(text.contains("uslab: guard: use after free: 0x"), "{text}");
    assert!(text.contains(", 0 bytes after the start of an object of 100 bytes at 0x"), "{text}");
    for begin in ["allocated by thread ", "freed by thread "] {
        assert!(part(&text, begin).is_some_and(|stack| stack.contains("Store")), "{text}");
    }
}
