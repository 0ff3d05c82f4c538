//! Recognises texts that are not traces, and traces that lack data for a replay, and gives advice for each kind.

use super::event::{is_kmem_event, is_name};
use super::fields;

/// A kind of text that cannot be read as a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// A description of texts of this kind.
    pub is: &'static str,
    /// How texts of this kind are made.
    pub made: &'static str,
    /// The advice for the text, with `FILE` for the name of the file.
    pub instead: &'static str,
}

const fn foreign(is: &'static str, made: &'static str, instead: &'static str) -> Option<Foreign> {
    Some(Foreign { is, made, instead })
}

impl Foreign {
    /// Determines the kind of a text from its first lines.
    #[must_use]
    pub fn of(lines: &[&str]) -> Option<Self> {
        let first = lines.iter().find(|line| !line.trim().is_empty())?;
        table(first).or_else(|| operations(lines)).or_else(|| recognise_other_tool(lines)).or_else(|| {
            let incomplete = lines.iter().find_map(|line| incomplete(line.trim_end()));
            incomplete.or_else(|| log(first))
        })
    }

    /// Returns the advice for `file`.
    #[must_use]
    pub fn advice(&self, file: &str) -> String {
        self.instead.replace("FILE", file)
    }
}

/// Recognises a table of the kernel.
fn table(first: &str) -> Option<Foreign> {
    const SLABS_COMMAND_HINT: &str = "`uslab slabs FOLDER` reads it beside a slabinfo";
    if first.starts_with("slabinfo - version") {
        return foreign("a kernel's slabinfo", "cat /proc/slabinfo", "uslab slabs FILE");
    }
    if first.starts_with("name\t") && first.contains("slab_size") {
        return foreign("a table of the files in /sys/kernel/slab", "uslab record", "uslab slabs FILE");
    }
    if first.starts_with("MemTotal:") {
        return foreign("a kernel's meminfo", "cat /proc/meminfo", SLABS_COMMAND_HINT);
    }
    if first.starts_with("Page block order:") {
        return foreign("a kernel's pagetypeinfo", "cat /proc/pagetypeinfo", SLABS_COMMAND_HINT);
    }
    if first.starts_with("nr_free_pages ") {
        return foreign("a kernel's vmstat", "cat /proc/vmstat", SLABS_COMMAND_HINT);
    }
    let zone = first.strip_prefix("Node ").and_then(|rest| rest.split_once(", zone"));
    zone.and_then(|(_, counts)| {
        if counts.split_whitespace().count() > 1 {
            foreign("a kernel's buddyinfo", "cat /proc/buddyinfo", SLABS_COMMAND_HINT)
        } else {
            foreign("a kernel's zoneinfo", "cat /proc/zoneinfo", SLABS_COMMAND_HINT)
        }
    })
}

/// Recognises a list of a program's allocator calls, which only `uslab lab` reads.
fn operations(lines: &[&str]) -> Option<Foreign> {
    const LAB: &str = "cargo lab race --trace FILE";
    let is_number = |line: &&str| line.trim().parse::<u64>().is_ok();
    if let [head @ .., last] = &lines[..lines.len().min(5)]
        && head.len() == 4
        && head.iter().all(is_number)
        && matches!(last.as_bytes(), [b'a' | b'r' | b'f', b' ', ..])
    {
        return foreign("a malloc lab trace", "the malloc lab of Bryant and O'Hallaron", LAB);
    }
    let is_csv = |line: &str| {
        let mut fields = line.split(',');
        let is_op = matches!(fields.next(), Some("op" | "a" | "r" | "f" | "alloc" | "resize" | "free"));
        is_op && fields.next().is_some_and(|id| id == "id" || id.trim().parse::<u64>().is_ok())
    };
    if lines.first().is_some_and(|line| is_csv(line)) {
        return foreign("operations of a program as CSV", "a program's own log: `op,id,size[,align]`", LAB);
    }
    None
}

/// Recognises output of other tools that contains no events, or lacks data for a replay.
fn recognise_other_tool(lines: &[&str]) -> Option<Foreign> {
    const RECORD: &str =
        "record events: `uslab record --out FOLDER`, or `perf record -a -e 'kmem:*'` and `perf script`";
    let any = |is: &dyn Fn(&str) -> bool| lines.iter().any(|line| is(line.trim()));
    if any(&|line| KMEM_EVENT_NAMES.iter().any(|event| line.contains(&format!("kmem:{event}(")))) {
        return foreign("the output of `perf trace`, which has no CPUs", "perf trace -e 'kmem:*'", RECORD);
    }
    if any(&|line| line.starts_with('[') && line.contains("{ cpu_id = ")) {
        return foreign(
            "the text of babeltrace without events of kmem",
            "babeltrace FOLDER",
            "record these events, too: `lttng enable-event --kernel 'kmem_*'`",
        );
    }
    if any(&|line| line.starts_with("Attaching ") && line.contains("probe") || line.starts_with("@[")) {
        return foreign("the output of bpftrace, which each script writes as it likes", "bpftrace", RECORD);
    }
    if any(&|line| line.starts_with("SUMMARY (SLAB allocator)") || line.contains("Total_alloc/Per")) {
        return foreign(
            "a summary of `perf kmem stat`, without events",
            "perf kmem stat",
            "give the events: `perf script -i perf.data`",
        );
    }
    if any(&|line| line.starts_with("CACHE ") && line.contains(" SSIZE")) {
        return foreign(
            "the slab caches of a kernel's dump",
            "kmem -s of crash, slabinfo of drgn-tools",
            "uslab slabs FILE",
        );
    }
    if any(&|line| line.starts_with("Active / Total Objects")) {
        return foreign("a screen of slabtop", "slabtop -o", "uslab slabs reads /proc/slabinfo itself");
    }
    if any(&|line| line == "= Start") {
        return foreign(
            "a log of mtrace, without threads",
            "mtrace() and MALLOC_TRACE",
            "record the program: `LD_PRELOAD=libuslab.so USLAB_OPTIONS=record=FILE program`",
        );
    }
    None
}

fn log(first: &str) -> Option<Foreign> {
    let inside = first.strip_prefix('[')?.split_once(']')?.0;
    inside.trim().parse::<f64>().ok().filter(|_| inside.contains('.'))?;
    foreign("a kernel's log", "dmesg", "record events: `uslab record --out FOLDER`")
}

/// The event names to search for in a text.
const KMEM_EVENT_NAMES: [&str; 4] = ["kmalloc", "kmem_cache_alloc", "kfree", "kmem_cache_free"];

/// Recognises a trace line that lacks a necessary field.
fn incomplete(line: &str) -> Option<Foreign> {
    const FTRACE: &str = "ftrace";
    const PERF_COMMAND: &str = "perf script -F";
    let words: Vec<&str> = line.split_whitespace().collect();
    // A line of only numbers, such as `1234 0 100000010000 type: 311`.
    if let [numbers @ .., "type:", id] = &words[..]
        && id.parse::<u32>().is_ok()
        && numbers.iter().all(|word| fields::hex(word.as_bytes()).is_some())
    {
        return foreign(
            "the text of ftrace with its option raw or hex, which has no fields of kmem events",
            FTRACE,
            "record again after `echo 0 > options/raw; echo 0 > options/hex` in the folder of tracefs",
        );
    }
    let first = words.first()?;
    if first.strip_suffix(':').is_some_and(|name| is_name(name.as_bytes()) && is_kmem_event(name.as_bytes()))
    {
        return foreign(
            "the text of ftrace without its option context-info: no CPU and no time",
            FTRACE,
            "record again after `echo 1 > options/context-info` in the folder of tracefs",
        );
    }
    let is_cpu = |word: &&&str| {
        word.strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .is_some_and(|cpu| cpu.parse::<u32>().is_ok())
    };
    let has_cpu = words.iter().any(|word| is_cpu(&word));
    let is_time = |word: &&str| word.strip_suffix(':').is_some_and(|time| time.parse::<f64>().is_ok());
    let has_time = words.iter().any(is_time);
    let event = words.iter().position(|word| {
        let name = word.strip_suffix(':').and_then(|word| word.rsplit_once(':'));
        name.is_some_and(|(_, name)| is_kmem_event(name.as_bytes()))
    });
    match event {
        Some(_) if !has_cpu => foreign(
            "the text of `perf script` without CPUs",
            PERF_COMMAND,
            "print it again with `perf script -F +cpu`",
        ),
        Some(_) if !has_time => foreign(
            "the text of `perf script` without times",
            PERF_COMMAND,
            "print it again with `perf script -F +time`",
        ),
        Some(at) if !words[at + 1..].iter().any(|word| word.contains('=')) => foreign(
            "the text of `perf script` without what the events hold",
            PERF_COMMAND,
            "print it again with `perf script -F +trace`",
        ),
        None if has_cpu
            && has_time
            && words.iter().any(|word| word.starts_with("call_site="))
            && !words.iter().any(|word| is_kmem_event_word(word)) =>
        {
            foreign(
                "the text of `perf script` without the names of events",
                PERF_COMMAND,
                "print it again with `perf script -F +event`",
            )
        }
        _ => None,
    }
}

fn is_kmem_event_word(word: &str) -> bool {
    word.strip_suffix(':').is_some_and(|name| is_kmem_event(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_foreign_text_format_is_recognised() {
        for (text, is) in [
            ("20000\n3\n6\n1\na 0 512\na 1 128", "a malloc lab trace"),
            ("slabinfo - version: 2.1\n", "a kernel's slabinfo"),
            ("Node 0, zone      DMA      0      1      3", "a kernel's buddyinfo"),
            ("Node 0, zone      DMA\n  per-node stats", "a kernel's zoneinfo"),
            ("op,id,size\nalloc,1,8", "operations of a program as CSV"),
            (
                "1234 0 100000010000 type: 311",
                "the text of ftrace with its option raw or hex, which has no fields of kmem events",
            ),
            (
                "000004d2 00000001 0000001749876fed type: 311",
                "the text of ftrace with its option raw or hex, which has no fields of kmem events",
            ),
            (
                "kfree: call_site=f+0x1/0x2 ptr=ffff888003000000",
                "the text of ftrace without its option context-info: no CPU and no time",
            ),
            ("bash 1 1.000000: kmem:kfree: call_site=f ptr=0x1", "the text of `perf script` without CPUs"),
            ("bash 1 [001] kmem:kfree: call_site=f ptr=0x1", "the text of `perf script` without times"),
            ("bash 1 [001] 1.000000: kmem:kfree:", "the text of `perf script` without what the events hold"),
            (
                "bash 1 [001] 1.000000: call_site=f ptr=0x1",
                "the text of `perf script` without the names of events",
            ),
            (
                "  0.000 bash/12 kmem:kmalloc(call_site: 0xff, ptr: 0x1)",
                "the output of `perf trace`, which has no CPUs",
            ),
            (
                "[10:00:00.1] (+?) host sched_switch: { cpu_id = 1 }, { prev_tid = 1 }",
                "the text of babeltrace without events of kmem",
            ),
            ("Attaching 1 probe...", "the output of bpftrace, which each script writes as it likes"),
            ("[    0.000000] Linux version 6.1", "a kernel's log"),
        ] {
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(Foreign::of(&lines).map(|foreign| foreign.is), Some(is), "{text}");
        }
        // Regression test: `uslab record` accepts a folder only with this option.
        assert!(
            Foreign::of(&["Attaching 1 probe..."]).unwrap().instead.contains("`uslab record --out FOLDER`")
        );
        assert_eq!(Foreign::of(&["Dear reader,"]), None);
        assert_eq!(Foreign::of(&[]), None);
        assert_eq!(
            Foreign::of(&["20000", "3", "6", "1", "a 0 512"]).unwrap().advice("plain.rep"),
            "cargo lab race --trace plain.rep"
        );
    }
}
