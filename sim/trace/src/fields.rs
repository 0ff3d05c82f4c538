//! Parses the `key=value` part of a line, and numbers in this part.

use memchr::memmem;

/// The value of a pointer field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pointer {
    Address(u64),
    /// The text `(____ptrval____)` of a pointer that the kernel could not hash yet.
    Placeholder,
}

/// A reader for the fields of one event. If callers request the fields in the order in which the kernel
/// prints them, each request is a single comparison. If a field is elsewhere, as in some kernel versions, the reader
/// searches the line for it.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    all: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { all: text, rest: text }
    }

    /// Returns the value after `key`, a text that ends with `=`.
    #[inline]
    pub(super) fn get<const N: usize>(&mut self, key: &[u8; N]) -> Option<&'a [u8]> {
        self.find(key)?;
        Some(self.value())
    }

    /// Returns the decimal number after `key`, a text that ends with `=`.
    #[inline]
    pub(super) fn number<const N: usize>(&mut self, key: &[u8; N]) -> Option<u64> {
        self.find(key)?;
        let (value, rest) = number(self.rest)?;
        if let [b'x', ..] = rest {
            return parse_prefixed_hex(self.value());
        }
        self.rest = rest;
        matches!(rest, [] | [b' ', ..]).then_some(value)
    }

    /// Returns the pointer after `key`, a text that ends with `=`.
    #[inline]
    pub(super) fn pointer<const N: usize>(&mut self, key: &[u8; N]) -> Option<Pointer> {
        self.find(key)?;
        // Nearly all pointers have 16 digits.
        if let Some((digits, rest @ ([] | [b' ', ..]))) = self.rest.split_first_chunk::<16>()
            && let Some(address) = hex(digits)
        {
            self.rest = rest;
            return Some(Pointer::Address(address));
        }
        pointer(self.value())
    }

    /// Returns `true` if `text` comes next in the line, after blanks.
    pub(super) fn starts_with(&self, text: &[u8]) -> bool {
        skip_spaces(self.rest).starts_with(text)
    }

    /// Returns the value after `key` if `key` is the next field; meant for fields that some kernels lack.
    #[inline]
    pub(super) fn next_if<const N: usize>(&mut self, key: &[u8; N]) -> Option<&'a [u8]> {
        self.skip(key)?;
        Some(self.value())
    }

    /// Returns the name after `key` if the event has this field. The name is the next field in the line, except with
    /// ftrace's option `fields`. The option `fields` prints each number twice, or prints the fields in reverse order.
    /// Example: `ptr=0xffff888003000000 (-131391589187584) call_site=...`.
    #[inline]
    pub(super) fn optional<const N: usize>(&mut self, key: &[u8; N]) -> Option<&'a [u8]> {
        if self.skip(key).is_none() {
            if self.has_print_format() {
                return None;
            }
            self.search(key)?;
        }
        Some(self.name())
    }

    /// Returns a value that may contain blanks, for example the name of a cache. The value ends at the next key, or at
    /// text that `perf script` appends: an address, or with `-F cgroup` a control group. A cache's name contains no
    /// slash, because it is also the name of a folder.
    #[inline]
    fn name(&mut self) -> &'a [u8] {
        let text = self.rest;
        let mut end = find_byte(b' ', text);
        while let [b' ', after @ ..] = &text[end..] {
            let word = &after[..find_byte(b' ', after)];
            let is_appended = word.starts_with(b"/") || word.len() == 16 && hex(word).is_some();
            if word.is_empty() || word.contains(&b'=') || is_appended {
                break;
            }
            end += 1 + word.len();
        }
        self.rest = &text[end..];
        &text[..end]
    }

    /// Returns the name after `key` if `key` is the next field.
    #[inline]
    pub(super) fn next_name<const N: usize>(&mut self, key: &[u8; N]) -> Option<&'a [u8]> {
        self.skip(key)?;
        Some(self.name())
    }

    /// Returns `true` if the line has the event's print format, `false` if it has the format of the option `fields`.
    #[inline]
    fn has_print_format(&self) -> bool {
        self.all.starts_with(b"call_site=") && !matches!(self.rest, [b' ', b'(', ..])
    }

    #[inline]
    fn find<const N: usize>(&mut self, key: &[u8; N]) -> Option<()> {
        self.skip(key).or_else(|| self.search(key))
    }

    #[inline]
    fn skip<const N: usize>(&mut self, key: &[u8; N]) -> Option<()> {
        let (start, value) = skip_spaces(self.rest).split_first_chunk::<N>()?;
        if start != key {
            return None;
        }
        self.rest = value;
        Some(())
    }

    #[inline]
    fn value(&mut self) -> &'a [u8] {
        let (value, rest) = self.rest.split_at(find_byte(b' ', self.rest));
        self.rest = rest;
        value
    }

    #[cold]
    fn search<const N: usize>(&mut self, key: &[u8; N]) -> Option<()> {
        let mut from = 0;
        loop {
            let at = from + memmem::find(&self.all[from..], key)?;
            if at == 0 || matches!(self.all[at - 1], b' ' | b'\t') {
                self.rest = &self.all[at..];
                return self.skip(key);
            }
            from = at + 1;
        }
    }
}

/// Returns the index of the first occurrence of `byte`, or the length of the text. For short words, `find_byte` is
/// twice as fast as `memchr`, because `memchr` is called through a pointer.
#[inline]
pub(super) fn find_byte(byte: u8, text: &[u8]) -> usize {
    const BYTE_LOW_BITS: u64 = 0x0101_0101_0101_0101;
    const BYTE_HIGH_BITS: u64 = 0x8080_8080_8080_8080;
    let mut at = 0;
    while let Some((word, _)) = text[at..].split_first_chunk::<8>() {
        // A zero byte borrows from its own high bit; the lowest such byte is exact.
        let word = u64::from_le_bytes(*word) ^ (BYTE_LOW_BITS * u64::from(byte));
        let zero = word.wrapping_sub(BYTE_LOW_BITS) & !word & BYTE_HIGH_BITS;
        if zero != 0 {
            return at + (zero.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    at + text[at..].iter().position(|&b| b == byte).unwrap_or(text.len() - at)
}

/// Returns the text without its leading blanks.
#[inline]
pub(super) fn skip_spaces(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    text
}

/// Splits the text at its first blank; the second half begins at the next character that is not blank.
#[inline]
pub(super) fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = skip_spaces(text);
    let end = find_byte(b' ', text);
    (&text[..end], skip_spaces(&text[end..]))
}

/// Parses a hexadecimal number with the prefix `0x`.
#[cold]
fn parse_prefixed_hex(text: &[u8]) -> Option<u64> {
    hex(text.strip_prefix(b"0x")?)
}

/// Parses the unsigned decimal number at the start of a text; returns the number and the rest of the text.
#[inline]
pub(super) fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut value, mut len) = (0_u64, 0);
    while let Some(digit) = text.get(len).map(|b| b.wrapping_sub(b'0'))
        && digit <= 9
    {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        len += 1;
    }
    match len {
        1..20 => Some((value, &text[len..])),
        20 => Some((long(&text[..20])?, &text[20..])),
        _ => None,
    }
}

/// Parses a number that may have more than 64 bits.
#[cold]
fn long(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses an unsigned decimal number.
#[inline]
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    number(text).filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}

/// Parses a hexadecimal number without a prefix.
#[inline]
pub(super) fn hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    let (mut value, mut all) = (0, 0);
    for &b in text {
        let digit = HEX_DIGIT_VALUES[b as usize];
        all |= digit;
        value = value << 4 | u64::from(digit);
    }
    (all < 16).then_some(value)
}

/// The value of each hexadecimal digit; 255 for every other byte.
const HEX_DIGIT_VALUES: [u8; 256] = {
    let mut table = [255; 256];
    let mut i = 0;
    while i < 16 {
        table[b"0123456789abcdef"[i] as usize] = i as u8;
        table[b"0123456789ABCDEF"[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// Parses a pointer as ftrace prints it (`ffff888004a9a000`, hashed or not), or as perf prints it
/// (`0xffff888004a9a000`, `(nil)`).
#[inline]
pub(super) fn pointer(text: &[u8]) -> Option<Pointer> {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    if let Some(address) = hex(digits) {
        return Some(Pointer::Address(address));
    }
    match text {
        b"(nil)" | b"(null)" => Some(Pointer::Address(0)),
        b"(____ptrval____)" | b"(ptrval)" => Some(Pointer::Placeholder),
        _ => None,
    }
}

/// Parses a page frame number: hexadecimal with `0x`, and decimal without it (in kernels before 5.17).
pub(super) fn pfn(text: &[u8]) -> Option<u64> {
    match text.strip_prefix(b"0x") {
        Some(digits) => hex(digits),
        None => decimal(text),
    }
}

/// Parses the time at the start of a text, `seconds.fraction` or a bare counter; returns the time in
/// nanoseconds, and the rest of the text.
#[inline]
pub(super) fn time(text: &[u8]) -> Option<(u64, &[u8])> {
    const NANOSECONDS_BY_DIGITS: [u64; 10] =
        [1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 100_000, 10_000, 1000, 100, 10, 1];
    let (seconds, rest) = number(text)?;
    let [b'.', fraction @ ..] = rest else { return Some((seconds, rest)) };
    let (value, rest) = number(fraction)?;
    let scale = NANOSECONDS_BY_DIGITS.get(fraction.len() - rest.len())?;
    Some((seconds.checked_mul(1_000_000_000)?.checked_add(value * scale)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_signs_prefixes_or_overflow_are_refused() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"18446744073709551616"), None);
        assert_eq!(decimal(b"-1"), None);
        assert_eq!(decimal(b""), None);
        assert_eq!(hex(b"ffff888004a9a000"), Some(0xffff_8880_04a9_a000));
        assert_eq!(hex(b"0xff"), None);
        assert_eq!(hex(b"11111111111111111"), None);
    }

    #[test]
    fn hashed_null_and_placeholder_pointers_are_parsed() {
        assert_eq!(pointer(b"0xffff88800519e3b8"), Some(Pointer::Address(0xffff_8880_0519_e3b8)));
        assert_eq!(pointer(b"00000000999702f4"), Some(Pointer::Address(0x9997_02f4)));
        assert_eq!(pointer(b"(nil)"), Some(Pointer::Address(0)));
        assert_eq!(pointer(b"0000000000000000"), Some(Pointer::Address(0)));
        assert_eq!(pointer(b"(____ptrval____)"), Some(Pointer::Placeholder));
        assert_eq!(pointer(b"fffg"), None);
    }

    #[test]
    fn times_are_parsed_to_nanoseconds() {
        assert_eq!(time(b"6.254505: kfree: "), Some((6_254_505_000, &b": kfree: "[..])));
        assert_eq!(time(b"4090.245337123"), Some((4_090_245_337_123, &b""[..])));
        assert_eq!(time(b"1234"), Some((1234, &b""[..])));
        assert_eq!(time(b"d..1."), None);
        assert_eq!(time(b"1."), None);
        assert_eq!(time(b"1.2345678901"), None);
        assert_eq!(time(b"99999999999999.0"), None);
    }

    #[test]
    fn short_byte_search_agrees_with_memchr() {
        let text: Vec<u8> = (0..=255).chain(b"hello \x80\x7f world \x01\x00".iter().copied()).collect();
        for from in 0..text.len() {
            for byte in [b' ', 0, 1, 0x7f, 0x80, 0xff, b'o'] {
                let tail = &text[from..];
                let expected = memchr::memchr(byte, tail).unwrap_or(tail.len());
                assert_eq!(find_byte(byte, tail), expected, "{byte} from {from}");
            }
        }
    }

    #[test]
    fn repeated_and_reordered_fields_are_parsed() {
        let mut fields = Fields::new(
            b"call_site=0xffffffff92d10d97 (-1831793257) ptr=0xffff888003000000 (-131391589187584) name=dentry bytes_req=0x40 (64)",
        );
        assert_eq!(fields.get(b"call_site="), Some(&b"0xffffffff92d10d97"[..]));
        assert_eq!(fields.pointer(b"ptr="), Some(Pointer::Address(0xffff_8880_0300_0000)));
        assert_eq!(fields.optional(b"name="), Some(&b"dentry"[..]));
        assert_eq!(fields.number(b"bytes_req="), Some(64));
        let mut fields =
            Fields::new(b"name=dentry ptr=0xffff888003000000 (-1) call_site=0xffffffff92d10d97 (-2)");
        assert_eq!(fields.get(b"call_site="), Some(&b"0xffffffff92d10d97"[..]));
        assert_eq!(fields.pointer(b"ptr="), Some(Pointer::Address(0xffff_8880_0300_0000)));
        assert_eq!(fields.optional(b"name="), Some(&b"dentry"[..]));
        assert_eq!(Fields::new(b"bytes_req=0x").number(b"bytes_req="), None);
        for text in [
            &b"call_site=a ptr=1 name=dm raid1 read record bytes_req=3"[..],
            b"call_site=a ptr=1 name=dm raid1 read record",
            b"call_site=a ptr=1 name=dm raid1 read record ffffffff8130f9d5 kmem_cache_free+0x1 ([kernel])",
            b"call_site=a ptr=1 name=dm raid1 read record /user.slice/user-1000.slice",
            b"name=dm raid1 read record ptr=0x1 (1) call_site=a",
        ] {
            let mut fields = Fields::new(text);
            fields.get(b"ptr=").unwrap();
            assert_eq!(fields.optional(b"name="), Some(&b"dm raid1 read record"[..]));
        }
    }

    #[test]
    fn fields_are_found_in_any_order_or_reported_missing() {
        let mut fields = Fields::new(b"call_site=f+0x1/0x2 ptr=1 name=dentry bytes_req=3");
        assert_eq!(fields.get(b"call_site="), Some(&b"f+0x1/0x2"[..]));
        assert_eq!(fields.get(b"ptr="), Some(&b"1"[..]));
        assert_eq!(fields.next_if(b"bytes_req="), None);
        assert_eq!(fields.next_if(b"name="), Some(&b"dentry"[..]));
        assert_eq!(fields.get(b"bytes_req="), Some(&b"3"[..]));
        assert_eq!(fields.get(b"ptr="), Some(&b"1"[..]));
        // A key is a whole word: `name=` inside another word does not match.
        assert_eq!(Fields::new(b"xname=1 ").get(b"name="), None);
    }
}
