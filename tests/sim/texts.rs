//! Tests all textual forms in which ftrace, `perf script` and `trace-cmd report` print the same event. The reader must
//! read each form, or refuse it with a message that names the cause.
//!
//! The forms follow from the print formats of kernels 6.1 to 7.2, and from the output of a 6.18 kernel and of `perf
//! script` with each option. In this file, "by rule" marks forms that follow from the print formats but were not
//! observed.

use std::fmt::Write;
use std::io::Cursor;

use uslab_sim::trace::{Facts, Recording, Source, Tables, TraceError};

use crate::cli::{exit_and_output, refused, replay_json, uslab};
use crate::common::TraceCompression;

/// The fields that the events of a kernel have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KernelFields {
    /// Kernels that lack the field `accounted` and the cache name in `kmem_cache_free`, and print page frame numbers in
    /// decimal: by rule.
    Old,
    /// Kernels whose event `kmem_cache_free` has a cache name.
    Named,
    /// Kernels in which `kmem_cache_alloc` also has a cache name.
    Twice,
}

impl KernelFields {
    const ALL: [Self; 3] = [Self::Old, Self::Named, Self::Twice];
}

/// The form in which a tool prints values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ValueNotation {
    /// Values are printed in the format that the event defines.
    Format,
    /// With the option `fields`, values are printed as `key=0x40 (64)`, in the order of the event's structure.
    Fields,
    /// The first kernels that have the option `fields` print the fields in reverse order: by rule.
    Backwards,
    /// With the option `-R` of `trace-cmd report`, values are printed as `key=64` and `key=0xffff...`: by rule.
    Raw,
}

const OBJECT_POINTER: u64 = 0xffff_8880_0300_0000;
const SITE: u64 = 0xffff_ffff_92d1_0d97;

#[derive(Clone, Copy)]
enum EventKind {
    CacheAlloc(u64),
    CacheFree(u64),
    Kmalloc(u64),
    Kfree(u64),
    PageAlloc(u64),
    PageFree(u64),
    Mark,
}

/// Returns marks, and events about objects that one CPU allocates and another CPU frees.
fn events() -> Vec<(u32, u64, EventKind)> {
    let mut events = vec![];
    for round in 0..10 {
        let object = OBJECT_POINTER + round * 0x1000;
        let what = [
            EventKind::PageAlloc(0x3000 + round),
            EventKind::CacheAlloc(object),
            EventKind::Kmalloc(object + 0x800),
            EventKind::CacheFree(object),
            EventKind::Kfree(object + 0x800),
            EventKind::PageFree(0x3000 + round),
            EventKind::Mark,
        ];
        for (step, what) in (0..).zip(what) {
            events.push((step as u32 % 2, 100_000_010 + round * 100 + step * 10, what));
        }
    }
    events
}

impl EventKind {
    fn name(self) -> &'static str {
        match self {
            Self::CacheAlloc(_) => "kmem_cache_alloc",
            Self::CacheFree(_) => "kmem_cache_free",
            Self::Kmalloc(_) => "kmalloc",
            Self::Kfree(_) => "kfree",
            Self::PageAlloc(_) => "mm_page_alloc",
            Self::PageFree(_) => "mm_page_free",
            Self::Mark => "tracing_mark_write",
        }
    }

    /// Returns the keys and values of the event, in the order of its structure.
    fn fields(self, era: KernelFields) -> Vec<(&'static str, Value)> {
        use Value::{Address, Flags, Number, Site, Text};
        let alloc = |ptr, bytes, name: Option<&'static str>| {
            let mut fields = vec![("call_site", Site), ("ptr", Address(ptr))];
            fields.extend(name.map(|name| ("name", Text(name))));
            fields.extend([
                ("bytes_req", Number(bytes)),
                ("bytes_alloc", Number(bytes)),
                ("gfp_flags", Flags),
            ]);
            if era != KernelFields::Old {
                fields.extend([("node", Number(0)), ("accounted", Text("false"))]);
            }
            fields
        };
        match self {
            Self::CacheAlloc(ptr) => {
                alloc(ptr, 192, (era == KernelFields::Twice).then_some("dm raid1 read record"))
            }
            Self::Kmalloc(ptr) => alloc(ptr, 64, None),
            Self::CacheFree(ptr) => {
                let name = (era != KernelFields::Old).then_some(("name", Text("dm raid1 read record")));
                [("call_site", Site), ("ptr", Address(ptr))].into_iter().chain(name).collect()
            }
            Self::Kfree(ptr) => vec![("call_site", Site), ("ptr", Address(ptr))],
            Self::PageAlloc(pfn) => {
                vec![
                    ("pfn", Value::Frame(pfn)),
                    ("order", Number(0)),
                    ("migratetype", Number(1)),
                    ("gfp_flags", Flags),
                ]
            }
            Self::PageFree(pfn) => vec![("pfn", Value::Frame(pfn)), ("order", Number(0))],
            Self::Mark => vec![("ip", Value::Site), ("buf", Text("WORKLOAD begin"))],
        }
    }

    fn body(self, era: KernelFields, values: ValueNotation, perf: bool) -> String {
        if matches!((self, values), (Self::Mark, ValueNotation::Format)) {
            return "WORKLOAD begin".to_owned();
        }
        let mut fields = self.fields(era);
        if values == ValueNotation::Backwards {
            fields.reverse();
        }
        let shown = |(key, value): &(&str, Value)| format!("{key}={}", value.shown(era, values, perf));
        let text = fields.iter().map(shown).collect::<Vec<_>>().join(" ");
        match (self, values) {
            // The format derives the `page` from the frame number.
            (Self::PageAlloc(pfn) | Self::PageFree(pfn), ValueNotation::Format) => {
                format!("page=0x{pfn:x} {text}")
            }
            _ => text,
        }
    }
}

#[derive(Clone, Copy)]
enum Value {
    Site,
    Address(u64),
    Frame(u64),
    Number(u64),
    Flags,
    Text(&'static str),
}

impl Value {
    fn shown(self, era: KernelFields, values: ValueNotation, perf: bool) -> String {
        let twice = |n: u64| format!("0x{n:x} ({})", n.cast_signed());
        let is_twice = matches!(values, ValueNotation::Fields | ValueNotation::Backwards);
        match self {
            Self::Site if is_twice => twice(SITE),
            Self::Site if values == ValueNotation::Raw => format!("0x{SITE:x}"),
            Self::Site => "__d_alloc+0x22/0x1b0".to_owned(),
            Self::Address(ptr) if is_twice => twice(ptr),
            Self::Address(ptr) if perf || values == ValueNotation::Raw => format!("0x{ptr:x}"),
            Self::Address(ptr) => format!("{ptr:016x}"),
            Self::Frame(pfn) if is_twice => twice(pfn),
            Self::Frame(pfn) if era == KernelFields::Old && values == ValueNotation::Format => {
                pfn.to_string()
            }
            Self::Frame(pfn) => format!("0x{pfn:x}"),
            Self::Number(n) if is_twice => twice(n),
            Self::Number(n) => n.to_string(),
            Self::Flags if is_twice => twice(0xcc0),
            Self::Flags if values == ValueNotation::Raw => "0xcc0".to_owned(),
            Self::Flags => "GFP_KERNEL|__GFP_ZERO".to_owned(),
            Self::Text("false") if is_twice => "(0)".to_owned(),
            Self::Text("false") if values == ValueNotation::Raw => "0".to_owned(),
            Self::Text(text) => text.to_owned(),
        }
    }
}

/// The expected result when the reader reads a text.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Read,
    /// The reader refuses the text with a message that contains this string.
    Refused(&'static str),
}

struct Form {
    name: String,
    text: String,
    outcome: Outcome,
    era: KernelFields,
}

fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// Adds all textual forms that ftrace's options produce.
fn ftrace(forms: &mut Vec<Form>) {
    for era in KernelFields::ALL {
        for values in [ValueNotation::Format, ValueNotation::Fields, ValueNotation::Backwards] {
            for bits in 0..128_u32 {
                let has = |bit: u32| bits & 1 << bit != 0;
                let (tgid, flags, latency, verbose, context, stacks) =
                    (has(0), has(1), has(2), has(3), has(4), has(5));
                let sym_addr = has(6);
                let mut text =
                    "# tracer: nop\n#\n# entries-in-buffer/entries-written: 70/70   #P:2\n#\n".to_owned();
                for (cpu, us, what) in events() {
                    let body = what.body(era, values, false);
                    let name = what.name();
                    let start = 100_000_000;
                    let prefix = match (context, latency, verbose) {
                        (false, ..) => String::new(),
                        (true, true, false) => {
                            format!(
                                "{:>8.8}-{:<7} {cpu:>3}d..1. {:>4}us{}: ",
                                "kworker/0:1",
                                1234,
                                us - start,
                                if us % 20 == 0 { '+' } else { ' ' }
                            )
                        }
                        (true, true, true) => format!(
                            "{:>16} {:>7} {cpu:>3} {} {:08x} {:08x} [{us:08x}] {}.{:03}ms (+0.010ms): ",
                            "kworker/0:1",
                            1234,
                            1,
                            2,
                            3,
                            us / 1000,
                            us % 1000
                        ),
                        _ => {
                            let mut prefix = format!("{:>16}-{:<7} ", "kworker/0:1", 1234);
                            if tgid {
                                prefix += "(-------) ";
                            }
                            write!(
                                prefix,
                                "[{cpu:03}] {}{:>12}: ",
                                if flags { "d..1. " } else { "" },
                                seconds(us)
                            )
                            .unwrap();
                            prefix
                        }
                    };
                    let is_mark = matches!(what, EventKind::Mark);
                    if is_mark && values == ValueNotation::Fields && era == KernelFields::Twice {
                        writeln!(text, "{prefix}UNKNOWN TYPE 5").unwrap();
                    } else if is_mark && sym_addr && values == ValueNotation::Format {
                        writeln!(text, "{prefix}{name} <ffffffff8149895a>: {body}").unwrap();
                    } else {
                        writeln!(text, "{prefix}{name}: {body}").unwrap();
                    }
                    if stacks {
                        writeln!(text, "{prefix}<stack trace>\n => kmem_cache_alloc\n => __d_alloc").unwrap();
                    }
                }
                let outcome =
                    if context { Outcome::Read } else { Outcome::Refused("without its option context-info") };
                let name = format!(
                    "ftrace {era:?} {values:?} tgid={tgid} irq-info={flags} latency={latency} verbose={verbose} context={context} stacks={stacks} sym-addr={sym_addr}"
                );
                forms.push(Form { name, text, outcome, era });
            }
        }
        for (option, hex) in [("raw", false), ("hex", true)] {
            let mut text = "# tracer: nop\n#\n".to_owned();
            for (cpu, us, _) in events() {
                if hex {
                    writeln!(text, "{:08x} {cpu:08x} {:016x} type: 311", 1234, us * 1000).unwrap();
                } else {
                    writeln!(text, "1234 {cpu} {} type: 311", us * 1000).unwrap();
                }
            }
            let outcome = Outcome::Refused("its option raw or hex");
            forms.push(Form { name: format!("ftrace {era:?} {option}"), text, outcome, era });
        }
        for clock in ["ns", "counter"] {
            let mut text = String::new();
            for (cpu, us, what) in events() {
                let time = if clock == "ns" { format!("{}000", seconds(us)) } else { us.to_string() };
                writeln!(
                    text,
                    "  sh-1  [{cpu:03}] d..1. {time}: {}: {}",
                    what.name(),
                    what.body(era, ValueNotation::Format, false)
                )
                .unwrap();
            }
            forms.push(Form {
                name: format!("ftrace {era:?} clock {clock}"),
                text,
                outcome: Outcome::Read,
                era,
            });
        }
    }
}

/// Adds the output of `perf script -F` for each set of fields.
fn perf(forms: &mut Vec<Form>) {
    for era in KernelFields::ALL {
        for bits in 0..512_u32 {
            let has = |bit: u32| bits & 1 << bit != 0;
            let [comm, tid, pid, cpu, time, event, trace, period, ns] =
                [has(0), has(1), has(2), has(3), has(4), has(5), has(6), has(7), has(8)];
            // This text has the form with `--show-mmap-events`.
            let mut text = "swapper     0 [000]     0.000000: PERF_RECORD_MMAP -1/0: [0xffffffff81000000(0x12090c8) @ 0]: x _text\n".to_owned();
            for (number, us, what) in
                events().into_iter().filter(|(.., what)| !matches!(what, EventKind::Mark))
            {
                if comm {
                    write!(text, "{:>16} ", "kworker/0:1").unwrap();
                }
                match (pid, tid) {
                    (true, true) => write!(text, "{:>5}/{:<5} ", 1234, 1235).unwrap(),
                    (true, false) | (false, true) => write!(text, "{:>5} ", 1234).unwrap(),
                    (false, false) => {}
                }
                if cpu {
                    write!(text, "[{number:03}] ").unwrap();
                }
                if time {
                    write!(text, "{:>12}{}: ", seconds(us), if ns { "000" } else { "" }).unwrap();
                }
                if period {
                    write!(text, "{:>10} ", 1).unwrap();
                }
                if event {
                    write!(text, "{:>28}: ", format!("kmem:{}", what.name())).unwrap();
                }
                if trace {
                    write!(text, "{}", what.body(era, ValueNotation::Format, true)).unwrap();
                }
                writeln!(text, "\n\tffffffff8130f9d5 kmem_cache_alloc+0x1d5 ([kernel.kallsyms])\n").unwrap();
            }
            let outcome = match (cpu, time, event, trace) {
                (true, true, true, true) => Outcome::Read,
                (false, _, true, _) => Outcome::Refused("without CPUs"),
                (true, false, true, _) => Outcome::Refused("without times"),
                (true, true, true, false) => Outcome::Refused("without what the events hold"),
                (true, true, false, true) => Outcome::Refused("without the names of events"),
                // The text has no field of an event.
                _ => Outcome::Refused("no event in"),
            };
            let name = format!(
                "perf {era:?} comm={comm} tid={tid} pid={pid} cpu={cpu} time={time} event={event} trace={trace} period={period} ns={ns}"
            );
            forms.push(Form { name, text, outcome, era });
        }
    }
}

/// Adds the text that babeltrace prints for an LTTng trace, with each of its clocks, and with and without contexts: by
/// rule. Adds the LTTng text with a control group after the fields, as `perf script -F +cgroup` prints it: by rule.
fn add_babeltrace_forms(forms: &mut Vec<Form>) {
    for era in KernelFields::ALL {
        for bits in 0..4_u32 {
            let [clock, context] = [bits & 1 != 0, bits & 2 != 0];
            let mut text = String::new();
            for (cpu, us, what) in events().into_iter().filter(|(.., what)| !matches!(what, EventKind::Mark))
            {
                let time = if clock {
                    format!("{}000", seconds(us))
                } else {
                    format!("00:01:{}000", &seconds(us)[1..])
                };
                let prefix = if what.name().starts_with("kmem_") { "" } else { "kmem_" };
                let context = if context { "{ pid = 1234, procname = \"a b\" }, " } else { "" };
                let field = |(key, value): &(&str, Value)| match value {
                    Value::Site => format!("{key} = 0x{SITE:X}"),
                    Value::Address(ptr) => format!("{key} = 0x{ptr:X}"),
                    Value::Frame(n) | Value::Number(n) => format!("{key} = {n}"),
                    Value::Flags => format!("{key} = 3264"),
                    Value::Text("false") => format!("{key} = 0"),
                    Value::Text(text) => format!("{key} = \"{text}\""),
                };
                let fields = what.fields(era).iter().map(field).collect::<Vec<_>>().join(", ");
                writeln!(
                    text,
                    "[{time}] (+0.000010000) host {prefix}{}: {{ cpu_id = {cpu} }}, {context}{{ {fields} }}",
                    what.name()
                )
                .unwrap();
            }
            let name = format!("babeltrace {era:?} {bits}");
            forms.push(Form { name, text, outcome: Outcome::Read, era });
        }
        let mut text = String::new();
        for (cpu, us, what) in events().into_iter().filter(|(.., what)| !matches!(what, EventKind::Mark)) {
            let body = what.body(era, ValueNotation::Format, true);
            writeln!(
                text,
                "bash  1234 [{cpu:03}] {}: kmem:{}: {body} /user.slice/a",
                seconds(us),
                what.name()
            )
            .unwrap();
        }
        forms.push(Form { name: format!("perf {era:?} cgroup"), text, outcome: Outcome::Read, era });
    }
}

/// Adds the output of `trace-cmd report` with the options -R, -l and -t, with and without its header.
fn trace_cmd(forms: &mut Vec<Form>) {
    for era in KernelFields::ALL {
        for bits in 0..32_u32 {
            let has = |bit: u32| bits & 1 << bit != 0;
            let [raw, latency, ns, header, flags] = [has(0), has(1), has(2), has(3), has(4)];
            let values = if raw { ValueNotation::Raw } else { ValueNotation::Format };
            let mut text = if header { "CPU 1 is empty\ncpus=2\n".to_owned() } else { String::new() };
            for (cpu, us, what) in events() {
                let time = format!("{}{}", seconds(us), if ns { "000" } else { "" });
                let prefix = if latency {
                    format!("{:>8.8}-{:<5} {cpu:>3}d..1. {time:>12}: ", "kworker/0:1", 1234)
                } else {
                    format!(
                        "{:>16}-{:<5} [{cpu:03}] {}{time:>12}: ",
                        "kworker/0:1",
                        1234,
                        if flags { "d..1. " } else { "" }
                    )
                };
                let is_mark = matches!(what, EventKind::Mark);
                let repeats_site = !raw
                    && matches!(
                        what,
                        EventKind::CacheAlloc(_)
                            | EventKind::Kmalloc(_)
                            | EventKind::CacheFree(_)
                            | EventKind::Kfree(_)
                    );
                let site = if repeats_site { "(__d_alloc+0x22) " } else { "" };
                let (name, writer) = match (is_mark, raw) {
                    (true, true) => ("print", ""),
                    (true, false) => ("print", "tracing_mark_write: "),
                    _ => (what.name(), ""),
                };
                writeln!(text, "{prefix}{name:<20} {site}{writer}{}", what.body(era, values, true)).unwrap();
            }
            // In this form a colon follows the event's name.
            let text = text.lines().map(add_colon_after_name).collect::<Vec<_>>().join("\n") + "\n";
            let name = format!("trace-cmd {era:?} -R={raw} -l={latency} -t={ns} cpus={header} flags={flags}");
            forms.push(Form { name, text, outcome: Outcome::Read, era });
        }
    }
}

fn add_colon_after_name(line: &str) -> String {
    let names = [
        "kmem_cache_alloc ",
        "kmem_cache_free ",
        "kmalloc ",
        "kfree ",
        "mm_page_alloc ",
        "mm_page_free ",
        "print ",
    ];
    match names.iter().find(|name| line.contains(&format!(": {name}"))) {
        Some(name) => line.replacen(&format!(": {name}"), &format!(": {}: ", name.trim()), 1),
        None => line.to_owned(),
    }
}

fn facts(text: &str) -> Result<(Facts, bool), TraceError> {
    let source = Source::from_reader("t", Box::new(Cursor::new(text.as_bytes().to_vec())), None)?;
    let mut ops = Recording::read(source, |_| {})?.resolve(None)?;
    while ops.next_op()?.is_some() {}
    let named = ops.caches().iter().any(|cache| cache.name == "dm raid1 read record");
    Ok((ops.facts(&Tables::default()), named))
}

#[test]
fn error_for_unknown_trace_text_names_the_cause() {
    let mut forms = vec![];
    ftrace(&mut forms);
    perf(&mut forms);
    trace_cmd(&mut forms);
    add_babeltrace_forms(&mut forms);
    let (mut read, mut refused, mut wrong) = (0, 0, vec![]);
    for Form { name, text, outcome, era } in &forms {
        let has_no_marks = name.starts_with("perf") || name.starts_with("babeltrace");
        match (outcome, facts(text)) {
            (Outcome::Read, Ok((facts, named))) => {
                let found = (
                    facts.objects.allocs,
                    facts.objects.frees,
                    facts.objects.matched,
                    facts.objects.remote,
                    facts.marks.len(),
                    facts.not_understood,
                );
                let pages = (
                    facts.pages.allocs_by_order.iter().sum::<u64>(),
                    facts.pages.frees_by_order.iter().sum::<u64>(),
                );
                // A 6.18 kernel does not print marks under the option `fields`.
                let is_unknown = name.contains("ftrace Twice Fields");
                let marks = if has_no_marks || is_unknown { 0 } else { 10 };
                let right = (20, 20, 20, 0, marks, if is_unknown { 10 } else { 0 });
                if found != right || pages != (10, 10) || named != (*era != KernelFields::Old) {
                    wrong.push(format!(
                        "{name}: {found:?} {pages:?} {named}\n{}",
                        text.lines().take(6).collect::<Vec<_>>().join("\n")
                    ));
                }
                read += 1;
            }
            (Outcome::Refused(cause), Err(error)) => {
                if !error.to_string().contains(cause) {
                    wrong.push(format!("{name}: expected {cause}, found {error}"));
                }
                refused += 1;
            }
            (outcome, result) => {
                let result = result.map(|(facts, _)| facts.total).map_err(|error| error.to_string());
                wrong.push(format!(
                    "{name}: expected {outcome:?}, found {result:?}\n{}",
                    text.lines().take(6).collect::<Vec<_>>().join("\n")
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} forms, the first:\n{}",
        wrong.len(),
        forms.len(),
        wrong.iter().take(5).cloned().collect::<Vec<_>>().join("\n")
    );
    println!("{} forms: {read} read, {refused} refused with their cause", forms.len());
    assert_eq!((forms.len(), read, refused), (2811, 789, 2022));
}

/// Returns the text of one CPU's trace, as in the file `per_cpu/cpu0/trace`.
fn trace_of_cpu(wanted: u32, shift: u64) -> String {
    let mine = events().into_iter().filter(|(cpu, ..)| *cpu == wanted);
    let lines = mine.map(|(cpu, us, what)| {
        let body = what.body(KernelFields::Named, ValueNotation::Format, false);
        format!(
            "            bash-{:<7} [{cpu:03}] ..... {}: {}: {body}\n",
            100 + cpu,
            seconds(us - shift),
            what.name()
        )
    });
    let lines: Vec<String> = lines.collect();
    // The header counts the events of all CPUs.
    format!("# tracer: nop\n#\n# entries-in-buffer/entries-written: 70/70   #P:2\n#\n{}", lines.concat())
}

#[test]
fn relative_timestamps_in_a_trace_are_skipped() {
    let text =
        trace_of_cpu(0, 0).replace(": mm_page_", ": (+12)   mm_page_").replace(": kmalloc", ": (+3) kmalloc");
    let (facts, _) = facts(&text).unwrap();
    assert_eq!((facts.total, facts.not_understood), (40, 0));
}

#[test]
fn trace_parser_reads_cache_names_before_the_pointer() {
    let line = "  sh-1  [000] ..... 10.000140: kmem_cache_alloc: call_site=f+0x22/0x1b0 name=dm raid1 read record ptr=ffff888003a43000 \
                bytes_req=192 bytes_alloc=192 gfp_flags=GFP_KERNEL node=-1 accounted=false\n";
    let (facts, named) = facts(line).unwrap();
    assert_eq!((facts.objects.allocs, named), (1, true));
}

/// Regression test: half of the frees were reported as frees of objects "from before the trace", without a warning.
#[test]
fn concatenated_traces_of_several_cpus_are_sorted_by_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.txt");
    std::fs::write(&path, trace_of_cpu(0, 0) + &trace_of_cpu(1, 0)).unwrap();
    let report = replay_json(&[path.to_str().unwrap()]);
    let health = &report["trace_health"];
    assert_eq!((&health["missing"], &health["not_understood"]), (&0.into(), &0.into()), "{health}");
    assert!(health.to_string().contains("sorted by time"), "{health}");
    // Both orders of concatenation are tested, because the order of CPUs is not the order of time.
    let (both, _) = facts(&(trace_of_cpu(0, 0) + &trace_of_cpu(1, 0))).unwrap();
    let (back, _) = facts(&(trace_of_cpu(1, 0) + &trace_of_cpu(0, 0))).unwrap();
    assert_eq!((both.objects.matched, both.objects.pre_trace_frees, both.objects.hidden_frees), (20, 0, 0));
    assert_eq!(both.objects, back.objects);
    // The text has two different traces.
    let two = trace_of_cpu(0, 0) + &trace_of_cpu(0, 50_000_000);
    std::fs::write(&path, &two).unwrap();
    let second = two.lines().position(|line| line.contains(" 50.0000")).unwrap() + 1;
    refused(
        &["replay", path.to_str().unwrap()],
        &[&format!("trace.txt:{second}: time goes back on CPU 0"), "split the file"],
    );
}

#[test]
fn too_many_unknown_trace_lines_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.txt");
    let good = trace_of_cpu(0, 0);
    let odd = "            bash-1  [000] ..... 200.000000: kmalloc: of a kernel that is not known\n";
    std::fs::write(&path, format!("{good}{}", odd.repeat(3))).unwrap();
    let name = path.to_str().unwrap();
    let first = good.lines().count() + 1;
    // The text has 3 of 33 lines that are not understood: marks do not count.
    refused(
        &["replay", name],
        &["trace.txt: 3 of 33 lines of kmem events", "--partial", &format!("line {first}: ")],
    );
    let (code, out, err) = exit_and_output(&uslab(&["replay", name, "--partial"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("3 lines were not understood"), "{out}");
    std::fs::write(&path, format!("{good}{odd}")).unwrap();
    assert_eq!(exit_and_output(&uslab(&["replay", name])).0, Some(0));
}

/// Regression test: the message was "no event in 10 lines; ftrace, perf script, trace-cmd report, wee_alloc and
/// Fleetbench text is understood".
#[test]
fn refused_file_error_suggests_the_correct_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plain.rep");
    std::fs::write(&path, "20000\n3\n6\n1\na 0 512\na 1 128\nr 0 640\na 2 128\nf 1\nf 0\n").unwrap();
    let name = path.to_str().unwrap();
    refused(&["replay", name], &["this is a malloc lab trace", &format!("cargo lab race --trace {name}")]);
    std::fs::write(
        &path,
        "slabinfo - version: 2.1\nkmalloc-8 1 2 8 512 1 : tunables 0 0 0 : slabdata 1 1 0\n",
    )
    .unwrap();
    refused(&["replay", name], &["a kernel's slabinfo", &format!("uslab slabs {name}")]);
}

#[test]
fn uslab_recognizes_the_kind_of_each_input_file() {
    let folder = tempfile::tempdir().unwrap();
    let what = |name: &str, content: &[u8], parts: &[&str]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let (code, out, err) = exit_and_output(&uslab(&["what", path.to_str().unwrap()]));
        assert_eq!(code, Some(0), "{name}: {err}");
        for part in parts {
            assert!(out.contains(part), "{name}: expected {part:?} in {out}");
        }
    };
    let trace = trace_of_cpu(1, 0);
    what("t", trace.as_bytes(), &["the text of ftrace", "uslab replay ", "frees name their caches"]);
    for packing in TraceCompression::ALL {
        what("packed", &packing.pack(trace.as_bytes()), &["the text of ftrace"]);
    }
    what("data", b"PERFILE2\x68\0\0", &["a perf.data file", "perf script -i "]);
    what("dat", b"\x17\x08Dtracing6\0", &["a trace.dat file"]);
    what("rep", b"20000\n3\n6\n1\na 0 512\n", &["a malloc lab trace", "cargo lab race --trace "]);
    what("wee", b"Alloc(552),\nFree(0),\n", &["wee_alloc"]);
    what("fleet", b"16, 101940.7, 1974305.1\n", &["a distribution"]);
    what("slabinfo", b"slabinfo - version: 2.1\n", &["uslab slabs "]);
    what(
        "kmem-s",
        b"crash> kmem -s\nCACHE             OBJSIZE  ALLOCATED     TOTAL  SLABS  SSIZE  NAME\n",
        &["the slab caches of a kernel's dump", "uslab slabs "],
    );
    what("buddyinfo", b"Node 0, zone DMA 0 1 3\n", &["a kernel's buddyinfo"]);
    what("folded", b"main;f 100\nmain;g 3\n", &["uslab flame "]);
    what("story.json", include_bytes!("../../sim/data/story.json"), &["uslab story "]);
    what("sweep.toml", include_bytes!("../../sim/data/sweep.toml"), &["uslab sweep "]);
    let mut archive = vec![b'a'; 257];
    archive.extend_from_slice(b"ustar  \0");
    what("sos.tar", &archive, &["an archive", "tar -xf"]);
    what("sos.tar.gz", &TraceCompression::Gzip.pack(&archive), &["an archive", "packed with gzip"]);
    std::fs::write(folder.path().join("letter"), "Dear reader,\n").unwrap();
    refused(
        &["what", folder.path().join("letter").to_str().unwrap()],
        &["no command reads this file", "Dear reader"],
    );
    refused(&["what", "/no/such/file"], &["/no/such/file"]);
    let empty = tempfile::tempdir().unwrap();
    refused(
        &["what", empty.path().to_str().unwrap()],
        &["neither a recording nor kernel tables", "expected a table of a kernel's caches"],
    );
    let mut forms = vec![];
    ftrace(&mut forms);
    for (options, form) in [
        ("latency-format", "tgid=false irq-info=false latency=true verbose=false"),
        ("record-tgid", "tgid=true irq-info=false latency=false verbose=false"),
        ("verbose, latency-format", "tgid=false irq-info=false latency=true verbose=true"),
    ] {
        let form = format!("ftrace Named Format {form} context=true stacks=false sym-addr=false");
        let form = forms.iter().find(|other| other.name == form).expect("a form must have this name");
        what("options", form.text.as_bytes(), &[&format!("printed with the options {options}")]);
    }
    let fields = forms.iter().find(|form| {
        form.name.contains("Twice Fields")
            && form.name.contains("tgid=false irq-info=true latency=false verbose=false context=true")
    });
    what(
        "fields",
        fields.expect("one").text.as_bytes(),
        &["printed with the options fields", "each allocation names"],
    );
}
