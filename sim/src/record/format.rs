//! Prints a trace record as text from the `format` file of its event, with the values that ftrace prints, in the same
//! order.

use rustc_hash::FxHashMap;
use std::io::Write;

/// The way in which a field of a record is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unsigned,
    Signed,
    Bool,
    Pointer,
    Site,
    Flags,
    Frame,
    /// A text whose offset and length are stored in the field.
    Text,
    /// A text that begins at the field and fills the rest of the record.
    Rest,
}

#[derive(Clone, Debug)]
struct FormatField {
    name: String,
    offset: usize,
    size: usize,
    kind: Kind,
}

/// The name of the kernel's event for marks.
const MARK: &str = "print";

#[derive(Clone, Debug)]
pub(super) struct Format {
    id: u16,
    name: String,
    fields: Vec<FormatField>,
    /// `true` if the event's print format contains a computed value in addition to the event's fields. Before 5.19, the
    /// computed value was `true` if pages of order 0 were for a per-CPU list.
    refill_by_order: bool,
    /// The names of the allocation flags, in the order in which the printer tests them.
    flags: Vec<(u64, String)>,
}

impl Format {
    /// Parses the file `format` of an event.
    pub(super) fn of(text: &str) -> Option<Self> {
        let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let name = line("name: ")?.trim().to_owned();
        let id = line("ID: ")?.trim().parse().ok()?;
        let print = line("print fmt: ").unwrap_or_default();
        let quoted = print.split('"').nth(1).unwrap_or_default();
        let mut fields: Vec<FormatField> = text
            .lines()
            .filter_map(|line| field(line.trim().strip_prefix("field:")?))
            .filter(|field| !field.name.starts_with("common_"))
            // The address of a mark's writer is omitted.
            .filter(|field| name != MARK || field.kind == Kind::Rest)
            .collect();
        // Readers expect fields in the order of the text.
        let place = |field: &FormatField| quoted.find(&format!("{}=", field.name)).unwrap_or(usize::MAX);
        fields.sort_by_key(place);
        let refill_by_order =
            quoted.contains("percpu_refill=") && !fields.iter().any(|field| field.name == "percpu_refill");
        Some(Self { id, name, fields, refill_by_order, flags: flags(print) })
    }

    fn write(&self, record: &[u8], strings: &mut Strings, out: &mut Vec<u8>) -> Option<()> {
        let mut separator = ": ";
        for field in &self.fields {
            let raw = number(record, field.offset, field.size);
            out.extend(separator.as_bytes());
            separator = " ";
            if field.kind == Kind::Rest {
                out.extend(text(record.get(field.offset..)?).trim_ascii_end());
                continue;
            }
            out.extend(field.name.as_bytes());
            out.push(b'=');
            // Writing to a vector cannot fail.
            let _ = match field.kind {
                Kind::Unsigned => write!(out, "{}", raw?),
                Kind::Signed => write!(out, "{}", signed(raw?, field.size)),
                Kind::Bool => write!(out, "{}", raw? > 0),
                Kind::Pointer => write!(out, "{:016x}", raw?),
                // The number of no page is printed as 0.
                Kind::Frame => write!(out, "0x{:x}", Some(raw?).filter(|pfn| *pfn != u64::MAX).unwrap_or(0)),
                Kind::Site => out.write_all(strings.site(raw?).as_bytes()),
                Kind::Flags => out.write_all(strings.flags(raw?, &self.flags).as_bytes()),
                Kind::Text => {
                    let (from, length) = ((raw? & 0xffff) as usize, (raw? >> 16) as usize);
                    out.write_all(text(record.get(from..from + length)?))
                }
                Kind::Rest => Ok(()),
            };
        }
        if self.refill_by_order {
            let order = self.fields.iter().find(|field| field.name == "order")?;
            let refill = number(record, order.offset, order.size)? == 0;
            let _ = write!(out, " percpu_refill={}", u8::from(refill));
        }
        Some(())
    }
}

fn field(text: &str) -> Option<FormatField> {
    let mut parts = text.split(';').map(str::trim);
    let declared = parts.next()?;
    let (kind, name) = declared.rsplit_once(' ')?;
    let mut value = |key: &str| parts.next()?.strip_prefix(key);
    let (offset, size) = (value("offset:")?.parse().ok()?, value("size:")?.parse().ok()?);
    let is_signed = value("signed:") == Some("1");
    let name = name.trim_start_matches('*');
    let kind = match name {
        "buf[]" => Kind::Rest,
        _ if kind.starts_with("__data_loc") => Kind::Text,
        "call_site" => Kind::Site,
        "gfp_flags" => Kind::Flags,
        "pfn" => Kind::Frame,
        _ if kind.contains('*') || declared.contains('*') => Kind::Pointer,
        _ if kind == "bool" => Kind::Bool,
        _ if is_signed => Kind::Signed,
        _ => Kind::Unsigned,
    };
    Some(FormatField { name: name.to_owned(), offset, size, kind })
}

fn number(record: &[u8], offset: usize, size: usize) -> Option<u64> {
    let bytes = record.get(offset..offset.checked_add(size)?)?;
    Some(match size {
        1 => bytes[0].into(),
        2 => u16::from_ne_bytes(*bytes.first_chunk()?).into(),
        4 => u32::from_ne_bytes(*bytes.first_chunk()?).into(),
        8 => u64::from_ne_bytes(*bytes.first_chunk()?),
        _ => return None,
    })
}

fn signed(value: u64, size: usize) -> i64 {
    let unused = 64 - 8 * size as u32;
    (value << unused) as i64 >> unused
}

/// Returns the text up to the first NUL byte.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Parses the table of `__print_flags`, which pairs values with names. `{EXPRESSION, "NAME"}, ...`. Entries
/// whose value is not a number are omitted.
fn flags(print: &str) -> Vec<(u64, String)> {
    let Some((_, table)) = print.split_once("__print_flags(REC->gfp_flags, \"|\",") else { return vec![] };
    let mut flags = vec![];
    for entry in table.split('{').skip(1) {
        let Some((entry, _)) = entry.split_once('}') else { break };
        let Some((mask, name)) = entry.rsplit_once(',') else { break };
        if let Some(mask) = Expression::value(mask) {
            flags.push((mask, name.trim().trim_matches('"').to_owned()));
        }
    }
    flags
}

/// Evaluates a C expression of numbers, `|`, `&`, `~`, `<<`, parentheses and casts.
struct Expression<'t> {
    rest: &'t str,
}

impl<'t> Expression<'t> {
    fn value(text: &'t str) -> Option<u64> {
        let mut expression = Self { rest: text };
        let value = expression.or()?;
        expression.rest.trim().is_empty().then_some(value)
    }

    fn skip(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(token);
        rest.inspect(|rest| self.rest = rest).is_some()
    }

    fn or(&mut self) -> Option<u64> {
        let mut value = self.and()?;
        while self.skip("|") {
            value |= self.and()?;
        }
        Some(value)
    }

    fn and(&mut self) -> Option<u64> {
        let mut value = self.shift()?;
        while self.skip("&") {
            value &= self.shift()?;
        }
        Some(value)
    }

    fn shift(&mut self) -> Option<u64> {
        let mut value = self.parse_unary()?;
        while self.skip("<<") {
            value = value.checked_shl(self.parse_unary()?.try_into().ok()?)?;
        }
        Some(value)
    }

    fn parse_unary(&mut self) -> Option<u64> {
        if self.skip("~") {
            return self.parse_unary().map(|value| !value);
        }
        if self.skip("(") {
            let is_cast = |inside: &str| {
                let inside = inside.trim();
                inside.starts_with(|c: char| c.is_ascii_alphabetic())
                    && inside.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ' '))
            };
            return match self.rest.split_once(')') {
                Some((inside, rest)) if is_cast(inside) => {
                    self.rest = rest;
                    self.parse_unary()
                }
                _ => {
                    let value = self.or()?;
                    self.skip(")").then_some(value)
                }
            };
        }
        let text = self.rest.trim_start();
        let end = text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len());
        let digits = text[..end].trim_end_matches(['u', 'U', 'l', 'L']);
        self.rest = &text[end..];
        match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        }
    }
}

/// A cache of formatted addresses and flags.
#[derive(Debug, Default)]
struct Strings {
    /// The kernel's symbols by address; if several symbols have one address, the last one is used.
    symbols: Vec<(u64, String)>,
    sites: FxHashMap<u64, String>,
    flags: FxHashMap<u64, String>,
}

impl Strings {
    /// Parses /proc/kallsyms; the result is empty if the kernel hides addresses.
    fn new(kallsyms: &str) -> Self {
        let symbol = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address > 0)?;
            let (_, name) = (words.next()?, words.next()?);
            let module = words.next().map(|module| format!(" {module}")).unwrap_or_default();
            Some((address, format!("{name}|{module}")))
        };
        let mut symbols: Vec<_> = kallsyms.lines().filter_map(symbol).collect();
        // The kernel prints the first of several names.
        symbols.sort_by_key(|(address, _)| *address);
        symbols.dedup_by_key(|(address, _)| *address);
        Self { symbols, ..Self::default() }
    }

    /// Returns a call site such as `function+0x1b/0x40`.
    fn site(&mut self, address: u64) -> &str {
        let symbols = &self.symbols;
        self.sites.entry(address).or_insert_with(|| {
            let next = symbols.partition_point(|(begin, _)| *begin <= address);
            let Some((begin, name)) = next.checked_sub(1).map(|at| &symbols[at]) else {
                return format!("0x{address:x}");
            };
            let (name, module) = name.split_once('|').unwrap_or((name, ""));
            let size = symbols.get(next).map_or(0, |(end, _)| end - begin);
            format!("{name}+0x{:x}/0x{size:x}{module}", address - begin)
        })
    }

    fn flags(&mut self, flags: u64, names: &[(u64, String)]) -> &str {
        self.flags.entry(flags).or_insert_with(|| {
            let mut rest = flags;
            let mut words: Vec<String> = vec![];
            for (mask, name) in names {
                if rest != 0 && rest & mask == *mask {
                    words.push(name.clone());
                    rest &= !mask;
                }
            }
            if rest != 0 {
                words.push(format!("0x{rest:x}"));
            }
            if words.is_empty() { "none".to_owned() } else { words.join("|") }
        })
    }
}

/// Converts records to text.
#[derive(Debug)]
pub(super) struct Printer {
    formats: FxHashMap<u16, Format>,
    strings: Strings,
    commands: FxHashMap<i32, String>,
}

/// The length of the fields with which every record begins: type, flags, preemption, process.
const COMMON_FIELDS_BYTES: usize = 8;

impl Printer {
    pub(super) fn new(formats: Vec<Format>, kallsyms: &str, commands: FxHashMap<i32, String>) -> Self {
        let formats = formats.into_iter().map(|format| (format.id, format)).collect();
        Self { formats, strings: Strings::new(kallsyms), commands }
    }

    /// Appends the printed line of a record. Returns `false` if the record's event is unknown, or the record
    /// is truncated.
    pub(super) fn line(&mut self, cpu: usize, time: u64, record: &[u8], out: &mut Vec<u8>) -> bool {
        let known = number(record, 0, 2).and_then(|id| self.formats.get(&(id as u16)));
        let (Some(format), Some(pid)) =
            (known, number(record, 4, 4).filter(|_| record.len() >= COMMON_FIELDS_BYTES))
        else {
            return false;
        };
        let begun = out.len();
        let pid = pid as u32 as i32;
        let command = match pid {
            0 => "<idle>",
            pid => self.commands.get(&pid).map_or("<...>", |name| name),
        };
        let name = if format.name == MARK { "tracing_mark_write" } else { &format.name };
        let (seconds, nanoseconds) = (time / 1_000_000_000, time % 1_000_000_000);
        let flags = context(record[2], record[3]);
        let _ =
            write!(out, "{command:>16}-{pid:<7} [{cpu:03}] {flags} {seconds:>5}.{nanoseconds:09}: {name}");
        if format.write(record, &mut self.strings, out).is_none() {
            out.truncate(begun);
            return false;
        }
        out.push(b'\n');
        true
    }
}

/// Formats the flags as `d.s2.`: interrupts, need to reschedule, kind of context, preemption depth, migration depth.
fn context(flags: u8, preempt: u8) -> String {
    let has = |bit: u8| flags & bit != 0;
    let interrupts = match (has(0x01), has(0x80)) {
        (true, true) => 'D',
        (true, false) => 'd',
        (false, true) => 'b',
        (false, false) => '.',
    };
    let reschedule = match (has(0x04), has(0x20)) {
        (true, true) => 'N',
        (true, false) => 'n',
        (false, true) => 'p',
        (false, false) => '.',
    };
    let kind = match (has(0x40), has(0x08), has(0x10)) {
        (true, true, _) => 'Z',
        (true, false, _) => 'z',
        (_, true, true) => 'H',
        (_, true, false) => 'h',
        (_, false, true) => 's',
        _ => '.',
    };
    let depth = |depth: u8| if depth == 0 { '.' } else { char::from_digit(depth.into(), 16).unwrap_or('.') };
    [interrupts, reschedule, kind, depth(preempt & 15), depth(preempt >> 4)].iter().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const COMMON_FIELDS: &str = "\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
";

    /// Builds a test record with the given head and body.
    pub(in super::super) fn record(id: u16, pid: i32, body: &[&[u8]]) -> Vec<u8> {
        let mut record = [&id.to_ne_bytes()[..], &[0x10, 0x21], &pid.to_ne_bytes()].concat();
        body.iter().for_each(|part| record.extend(*part));
        record
    }

    pub(in super::super) fn kfree() -> Format {
        let text = format!(
            "name: kfree\nID: 657\nformat:\n{COMMON_FIELDS}\n\
             \tfield:unsigned long call_site;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:const void * ptr;\toffset:16;\tsize:8;\tsigned:0;\n\n\
             print fmt: \"call_site=%pS ptr=%p\", (void *)REC->call_site, REC->ptr\n"
        );
        Format::of(&text).expect("a format")
    }

    #[test]
    fn records_are_printed_as_ftrace_prints_them() {
        let alloc = format!(
            "name: mm_page_alloc\nID: 653\nformat:\n{COMMON_FIELDS}\n\
             \tfield:unsigned long pfn;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:unsigned int order;\toffset:16;\tsize:4;\tsigned:0;\n\
             \tfield:unsigned long gfp_flags;\toffset:24;\tsize:8;\tsigned:0;\n\
             \tfield:int migratetype;\toffset:32;\tsize:4;\tsigned:1;\n\n\
             print fmt: \"page=%p pfn=0x%lx order=%d migratetype=%d gfp_flags=%s\", REC->pfn, (REC->gfp_flags) ? \
             __print_flags(REC->gfp_flags, \"|\", {{( unsigned long)((( gfp_t)(((((1UL))) << (10))|((((1UL))) << (11)))) | \
             (( gfp_t)0x40u) & ~(( gfp_t)0)), \"GFP_NOFS\"}}, {{( unsigned long)(( gfp_t)((((1UL))) << (8))), \"__GFP_ZERO\"}}, \
             {{( unsigned long)(( gfp_t)((((1UL))) << (___GFP_X_BIT))), \"__GFP_X\"}}) : \"none\"\n"
        );
        let mark = format!(
            "name: print\nID: 5\nformat:\n{COMMON_FIELDS}\n\
             \tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n\n\
             print fmt: \"%ps: %s\", (void *)REC->ip, REC->buf\n"
        );
        let free = format!(
            "name: kmem_cache_free\nID: 656\nformat:\n{COMMON_FIELDS}\n\
             \tfield:const void * ptr;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:__data_loc char[] name;\toffset:16;\tsize:4;\tsigned:0;\n\
             \tfield:bool accounted;\toffset:20;\tsize:1;\tsigned:0;\n\n\
             print fmt: \"ptr=%p name=%s accounted=%s\", REC->ptr\n"
        );
        let formats = [&alloc, &mark, &free].map(|text| Format::of(text).expect("a format"));
        let formats = formats.into_iter().chain([kfree()]).collect();
        let kallsyms =
            "ffffffff81000100 T second\t[ext4]\nffffffff81000000 T first\nffffffff81000000 T alias\n";
        let commands = FxHashMap::from_iter([(7, "kworker/0:1".to_owned())]);
        let mut printer = Printer::new(formats, kallsyms, commands);
        let mut text = vec![];
        let mut line = |record: &[u8]| printer.line(3, 1_000_000_005, record, &mut text);
        let (site, ptr) = (0xffff_ffff_8100_0010_u64.to_ne_bytes(), 0xffff_8880_0000_1000_u64.to_ne_bytes());
        assert!(line(&record(657, 7, &[&site, &ptr])));
        let far = 0xffff_ffff_8100_0180_u64.to_ne_bytes();
        assert!(line(&record(657, 8, &[&far, &ptr])));
        let page = |pfn: u64, gfp: u64| [pfn, 3, gfp, 1].map(u64::to_ne_bytes).concat();
        assert!(line(&record(653, 0, &[&page(0x1000, 0xd40 | 1 << 40)])));
        assert!(line(&record(653, 0, &[&page(u64::MAX, 0)])));
        assert!(line(&record(5, 7, &[&site, b"SNAP before begin\n\0"])));
        let name = (24_u32 | 8 << 16).to_ne_bytes();
        assert!(line(&record(656, 7, &[&ptr, &name, &[1, 0, 0, 0], b"dm raid\0"])));
        assert!(!line(&record(999, 7, &[&ptr])), "the event's format is unknown");
        assert!(!line(&record(657, 7, &[&site])), "the record is truncated");
        let text = String::from_utf8(text).expect("text");
        let expected = "     kworker/0:1-7       [003] ..s12     1.000000005: kfree: call_site=first+0x10/0x100 ptr=ffff888000001000
           <...>-8       [003] ..s12     1.000000005: kfree: call_site=second+0x80/0x0 [ext4] ptr=ffff888000001000
          <idle>-0       [003] ..s12     1.000000005: mm_page_alloc: pfn=0x1000 order=3 migratetype=1 gfp_flags=GFP_NOFS|__GFP_ZERO|0x10000000000
          <idle>-0       [003] ..s12     1.000000005: mm_page_alloc: pfn=0x0 order=3 migratetype=1 gfp_flags=none
     kworker/0:1-7       [003] ..s12     1.000000005: tracing_mark_write: SNAP before begin
     kworker/0:1-7       [003] ..s12     1.000000005: kmem_cache_free: ptr=ffff888000001000 name=dm raid accounted=true
";
        assert_eq!(text, expected);
    }
}
