//! Interpreters, compilers and a browser, each of which does a fixed amount of work. Each program's output is the same
//! with every malloc.

use crate::{Cost, Failure, Work};
use std::fmt::Write as _;
use std::process::Command;

/// Runs a Python script that uses dictionaries, strings, JSON, and short-lived objects.
pub(crate) fn python(work: &Work<'_>, malloc: &str) -> Result<Cost, Failure> {
    // Finds the interpreter itself, because `python3` may be a launcher.
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let python = String::from_utf8(output.expect("python3").stdout).expect("a path");
    let script = format!(
        "
import json, re, zlib
class Node:
    def __init__(self, key, left): self.key, self.left, self.tags = key, left, {{'k': str(key)}}
total = 0
for i in range({}):
    d = {{}}
    for j in range(20000):
        d.setdefault(j * 7919 % 997, []).append(str(j) * (j % 7))
    text = json.dumps(d)
    again = json.loads(text)
    words = sorted(re.findall(r'[1-9]+', text), key=lambda w: (len(w), w))
    tree = None
    for j in range(20000): tree = Node(j, tree if j % 100 else None)
    total += len(again) + len(words) + zlib.crc32(' '.join(words).encode()) % 97 + tree.key
print(total)",
        work.scale(8)
    );
    let mut command = work.command(python.trim());
    command.args(["-c", &script]).env("PYTHONMALLOC", malloc);
    work.time(command)
}

/// Compiles one large file with optimisation.
pub(crate) fn gcc(work: &Work<'_>) -> Result<Cost, Failure> {
    let mut source = String::from("#include <stdio.h>\n#include <string.h>\n");
    let functions = work.scale(200);
    for n in 0..functions {
        let _ = write!(
            source,
            "struct s{n} {{ int a[{len}]; struct s{n} *next; double d; }};
int f{n}(struct s{n} *s, int k) {{
    int sum = {n};
    for (int i = 0; i < {len}; i++) {{
        if (s->a[i] % 3 == k) sum += s->a[i] * {n};
        else if (s->a[i] > {n}) sum ^= i << (k & 7);
        switch ((sum + i) & 7) {{ case 0: sum -= k; break; case 3: sum *= 5; break; case 5: s->d += sum; break; }}
    }}
    while (s->next) {{ s = s->next; sum += (int)s->d + s->a[sum & 3]; }}
    return sum;
}}
",
            len = n % 13 + 5
        );
    }
    source.push_str("int main(void) { puts(\"done\"); return 0; }\n");
    work.file("large.c", source);
    let mut command = work.command("gcc");
    command.args(["-O2", "-S", "-o", "-", "large.c"]);
    work.time(command)
}

/// Fills, indexes, joins, and partly deletes an SQLite table of 100,000 rows.
pub(crate) fn sqlite(work: &Work<'_>) -> Result<Cost, Failure> {
    let rows = work.scale(100_000);
    let script = format!(
        "create table t(a integer primary key, b text, c real);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})
             insert into t select i, printf('%08d-%s', i * 7919 % {rows}, hex(i)), i / 3.0 from n;
         create index tb on t(b);
         select count(*), sum(a), max(b), round(avg(c), 3) from t;
         select substr(b, 1, 3) as k, count(*), length(group_concat(b, ',')) from t group by k order by k;
         delete from t where a % 3 = 0;
         update t set b = b || '-' || a where a % 2 = 0;
         select sum(length(x.b || y.b)) from t x join t y on x.a + 1 = y.a;
         vacuum; select count(*) from t;"
    );
    let mut command = work.command("sqlite3");
    command.args([":memory:", &script]);
    work.time(command)
}

/// Runs a Perl script that uses hashes of growing strings, lists, and substitutions.
pub(crate) fn perl(work: &Work<'_>) -> Result<Cost, Failure> {
    let script = format!(
        "my $sum = 0;
         for my $round (1..{}) {{
             my %h; $h{{$_ % 4999}} .= \"$_,\" for 1..100000;
             my @parts = map {{ [split /,/, $h{{$_}}] }} sort keys %h;
             my $s = join ' ', map {{ scalar(@$_) . \":$_->[0]\" }} @parts;
             $s =~ s/(\\d+):(\\d+)/$2-$1/g;
             $sum += length $s;
         }}
         print \"$sum\\n\";",
        work.scale(20)
    );
    let mut command = work.command("perl");
    command.args(["-e", &script]);
    work.time(command)
}

/// Runs a PHP script that uses arrays of strings, JSON, substitutions, and objects.
pub(crate) fn php(work: &Work<'_>) -> Result<Cost, Failure> {
    // With PHP's own memory manager, almost no allocation would reach malloc.
    let script = format!(
        "$sum = 0;
         for ($round = 0; $round < {}; $round++) {{
             $a = [];
             for ($i = 0; $i < 50000; $i++) $a[$i * 7919 % 4999][] = str_repeat((string)$i, $i % 7);
             $text = json_encode($a);
             $again = json_decode($text);
             $words = preg_split('/[^1-9]+/', $text);
             $objects = array_map(fn($w) => (object)['w' => $w, 'n' => strlen($w)], $words);
             foreach ($objects as $o) $sum += $o->n;
             $sum += count((array)$again);
         }}
         echo $sum, PHP_EOL;",
        work.scale(10)
    );
    let mut command = work.command("php");
    command.args(["-n", "-d", "memory_limit=-1", "-r", &script]).env("USE_ZEND_ALLOC", "0");
    work.time(command)
}

/// Runs a Ruby script that uses hashes, strings, symbols, and objects, under Ruby's garbage collector.
pub(crate) fn ruby(work: &Work<'_>) -> Result<Cost, Failure> {
    let script = format!(
        "sum = 0
         {}.times do
             h = Hash.new {{ |hash, key| hash[key] = [] }}
             60000.times {{ |i| h[i * 7919 % 4999] << (i.to_s * (i % 7)) }}
             s = h.sort.map {{ |k, v| k.to_s + ':' + v.join(',') }}.join(' ')
             sum += s.gsub(/([0-9]+):([0-9]+)/) {{ $2 + '-' + $1 }}.length
             sum += s.scan(/[1-9]+/).map(&:length).sum
         end
         puts sum",
        work.scale(10)
    );
    let mut command = work.command("ruby");
    command.args(["--disable-gems", "-e", &script]);
    work.time(command)
}

/// Runs a Node.js script; its objects and strings are in V8's heap, but its buffers and its compression use malloc.
pub(crate) fn node(work: &Work<'_>) -> Result<Cost, Failure> {
    let script = format!(
        "const zlib = require('zlib'), crypto = require('crypto');
         let sum = 0;
         for (let round = 0; round < {}; round++) {{
             const parts = [];
             for (let i = 0; i < 3000; i++) parts.push(Buffer.alloc(64 + i * 7919 % 9000, String(i)));
             const packed = parts.map((part) => zlib.deflateSync(part));
             sum += packed.reduce((all, part) => all + zlib.inflateSync(part).length, 0);
             const text = JSON.stringify(parts.map((part, i) => ({{ i, text: part.toString('hex', 0, 40) }})));
             sum += JSON.parse(text).length + crypto.createHash('sha1').update(text).digest()[0];
         }}
         console.log(sum);",
        work.scale(10)
    );
    let mut command = work.command("node");
    command.args(["-e", &script]);
    work.time(command)
}

/// Runs a Java program; its direct buffers, compression and compiler threads use malloc, but the Java heap does not.
pub(crate) fn java(work: &Work<'_>) -> Result<Cost, Failure> {
    let source = format!(
        "import java.nio.ByteBuffer;
         import java.util.*;
         import java.util.zip.*;
         public class Work {{
             public static void main(String[] arguments) throws Exception {{
                 long sum = 0;
                 Map<Integer, List<String>> map = new TreeMap<>();
                 for (int round = 0; round < {}; round++) {{
                     map.clear();
                     for (int i = 0; i < 50000; i++)
                         map.computeIfAbsent(i * 7919 % 4999, key -> new ArrayList<>()).add(\"x\".repeat(i % 7) + i);
                     byte[] text = map.toString().getBytes();
                     for (int i = 0; i < 200; i++) {{
                         Deflater deflater = new Deflater();
                         deflater.setInput(text, i * 97, 5000);
                         deflater.finish();
                         ByteBuffer buffer = ByteBuffer.allocateDirect(8000);
                         sum += deflater.deflate(buffer);
                         deflater.end();
                     }}
                     sum += text.length;
                 }}
                 System.out.println(sum);
             }}
         }}",
        work.scale(20)
    );
    work.file("Work.java", source);
    let mut command = work.command("java");
    command.args(["-Xmx256m", "Work.java"]);
    work.time(command)
}

/// Runs a Go program whose goroutines call malloc through cgo. Before the run, gcc builds the program; gcc also uses
/// the measured malloc.
pub(crate) fn go(work: &Work<'_>) -> Result<Cost, Failure> {
    let source = format!(
        "package main
// #include <stdlib.h>
// #include <string.h>
import \"C\"
import (\"fmt\"; \"sync\"; \"unsafe\")
func main() {{
    var all sync.WaitGroup
    sums := make([]int, 8)
    for n := range sums {{
        all.Add(1)
        go func(n int) {{
            defer all.Done()
            held := make([]unsafe.Pointer, 512)
            for i := 0; i < {}; i++ {{
                at, size := (i*7919+n)%512, C.size_t(8+i%1000)
                if held[at] != nil {{ sums[n] += int(*(*byte)(held[at])); C.free(held[at]) }}
                held[at] = C.malloc(size)
                C.memset(held[at], C.int(i%251), size)
            }}
            for _, block := range held {{ C.free(block) }}
        }}(n)
    }}
    all.Wait()
    total := 0
    for _, sum := range sums {{ total += sum }}
    fmt.Println(total)
}}
",
        work.scale(200_000)
    );
    work.file("work.go", source);
    let mut command = work.command("go");
    command.args(["run", "work.go"]).env("GOCACHE", work.dir.join("cache")).env("GOFLAGS", "-mod=mod");
    command.env("HOME", work.dir).env("CGO_ENABLED", "1");
    work.time(command)
}

/// Compiles Rust generics and closures with optimisation.
pub(crate) fn rustc(work: &Work<'_>) -> Result<Cost, Failure> {
    let mut source = String::from("#![crate_type = \"lib\"]\nuse std::collections::BTreeMap;\n");
    for n in 0..work.scale(100) {
        let _ = write!(
            source,
            "pub struct S{n}<T> {{ pub map: BTreeMap<u32, Vec<T>>, pub name: String }}
impl<T: Clone + Ord> S{n}<T> {{
    pub fn add(&mut self, key: u32, value: T) {{ self.map.entry(key % {m}).or_default().push(value); }}
    pub fn all(&self) -> Vec<T> {{
        let mut all: Vec<T> = self.map.values().flatten().cloned().collect();
        all.sort();
        all.dedup();
        all
    }}
}}
pub fn f{n}(words: &[&str]) -> usize {{
    let mut s = S{n} {{ map: BTreeMap::new(), name: format!(\"{n}-{{}}\", words.len()) }};
    for (i, word) in words.iter().enumerate() {{ s.add(i as u32, word.to_string()); }}
    s.all().iter().map(|word| word.len()).filter(|len| len % {m} != 1).sum::<usize>() + s.name.len()
}}
",
            m = n % 13 + 2
        );
    }
    work.file("large.rs", source);
    let mut command = work.command("rustc");
    command.args(["--edition", "2021", "-C", "opt-level=2", "--emit=asm", "-o", "-", "large.rs"]);
    work.time(command)
}

/// Runs a browser on a web page whose script creates and removes 40,000 elements; the browser prints the resulting
/// document.
pub(crate) fn chromium(work: &Work<'_>) -> Result<Cost, Failure> {
    let page = format!(
        "<!doctype html><title>work</title><body><script>
let sum = 0;
for (let round = 0; round < {}; round++) {{
    const list = document.createElement('ul');
    document.body.append(list);
    for (let i = 0; i < 2000; i++) {{
        const item = document.createElement('li');
        item.textContent = 'item ' + i + ' ' + 'x'.repeat(i % 50);
        list.append(item);
    }}
    sum += list.getBoundingClientRect().height > 0 ? list.children.length : 0;
    list.remove();
}}
document.body.textContent = sum;
</script>",
        work.scale(20)
    );
    let page = work.file("page.html", page);
    let mut command = work.command("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.arg(format!("--user-data-dir={}", work.dir.join("user").display())).arg("--dump-dom");
    command.arg(format!("file://{}", page.display())).stderr(std::process::Stdio::null());
    work.time(command)
}
