//! Parses the text that babeltrace prints for an LTTng trace. A line has the form `[time] (+delta) host event: { cpu_id
//! = 1 }, { field = value, ... }`.
//!
//! The parser follows LTTng's documents; it was not tested with a real trace. A time is a time of day, or,
//! with `--clock-seconds`, a time since the epoch. The name of a kmem event starts with its group:
//! `kmem_kmalloc`. If the event's name already starts with the group, it is unchanged: `kmem_cache_alloc`. The parser
//! knows the command of an event only if the process contexts were recorded.

use super::event::is_kmem_event;
use super::fields;

/// Converts an event to the text that `perf script` would print.
pub(super) fn convert_to_perf_script(line: &[u8]) -> Option<Vec<u8>> {
    let line = str::from_utf8(line).ok()?;
    let (time, rest) = line.strip_prefix('[')?.split_once(']')?;
    let time = seconds(time)?;
    let (head, body) = rest.split_once(": {")?;
    let event = head.split_whitespace().next_back()?;
    let event = Some(event)
        .filter(|event| is_kmem_event(event.as_bytes()))
        .or_else(|| event.strip_prefix("kmem_"))?;
    let (mut cpu, mut command, mut pid, mut fields) = (None, "", "-1", String::new());
    for (name, value) in Pairs(body) {
        match name {
            "cpu_id" => cpu = fields::decimal(value.as_bytes()),
            "procname" => command = value.trim_matches('"'),
            "pid" | "tid" | "vpid" | "vtid" => pid = value,
            _ => fields += &format!(" {name}={}", value.trim_matches('"')),
        }
    }
    let (seconds, nanoseconds) = (time / 1_000_000_000, time % 1_000_000_000);
    Some(format!("{command} {pid} [{}] {seconds}.{nanoseconds:09}: kmem:{event}:{fields}", cpu?).into_bytes())
}

/// Parses `10:00:01.000000001` or `1700000000.000000001` to nanoseconds.
fn seconds(text: &str) -> Option<u64> {
    let (mut time, mut units) = (0_u64, text.split(':').rev());
    let (nanoseconds, rest) = fields::time(units.next()?.trim().as_bytes())?;
    for (unit, factor) in units.zip([60, 3600]) {
        time += unit.trim().parse::<u64>().ok().filter(|unit| *unit < 60)? * factor * 1_000_000_000;
    }
    rest.is_empty().then(|| nanoseconds.checked_add(time)).flatten()
}

/// Iterates over the `name = value` pairs in braces. The input looks like `cpu_id = 1 }, { name = "dm raid",
/// ptr = 0xFFFF }`.
struct Pairs<'t>(&'t str);

impl<'t> Iterator for Pairs<'t> {
    type Item = (&'t str, &'t str);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.split_once(" = ")?;
        let name = name.trim_start_matches([' ', ',', '{', '}']);
        let end = match rest.strip_prefix('"') {
            Some(inside) => inside.find('"')? + 2,
            None => rest.find([',', ' ']).unwrap_or(rest.len()),
        };
        self.0 = &rest[end..];
        Some((name, &rest[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn babeltrace_events_are_parsed_like_perf_events() {
        let text =
            |line: &str| convert_to_perf_script(line.as_bytes()).map(|text| String::from_utf8(text).unwrap());
        assert_eq!(
            text(
                "[01:00:02.000000003] (+0.000000120) host kmem_kmalloc: { cpu_id = 1 }, { procname = \"a b\", pid = 7 }, \
                 { call_site = 0xFFFFFFFF92D10D97, ptr = 0xFFFF888003000000, bytes_req = 60, bytes_alloc = 64, gfp_flags = 3520 }"
            )
            .as_deref(),
            Some(
                "a b 7 [1] 3602.000000003: kmem:kmalloc: call_site=0xFFFFFFFF92D10D97 ptr=0xFFFF888003000000 bytes_req=60 \
                 bytes_alloc=64 gfp_flags=3520"
            )
        );
        assert_eq!(
            text("[17.5] (+?) host kmem_cache_free: { cpu_id = 0 }, { ptr = 0x1, name = \"dm raid1 read\" }")
                .as_deref(),
            Some(" -1 [0] 17.500000000: kmem:kmem_cache_free: ptr=0x1 name=dm raid1 read")
        );
        for other in [
            "[1.5] (+?) host sched_switch: { cpu_id = 0 }, { }",
            "[    0.5] Linux version",
            "[1.5] h kmem_kfree: { ptr = 0x1 }",
        ] {
            assert_eq!(text(other), None, "{other}");
        }
    }
}
