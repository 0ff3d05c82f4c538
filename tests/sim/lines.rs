//! Compares two counts of cache line transfers: from the simulator's clock, and from a MESI protocol under the shipping
//! code.

use serde::Deserialize;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc::channel;
use uslab::{Config, Gfp, KmemCache, Subsystem};
use uslab_engine::Pages;
use uslab_engine::clock::{Outcome, Profile, Workload, run};
use uslab_engine::models::uslab::{Knobs, Uslab};
use uslab_engine::policy::{CacheInfo, Cpus, Geometry, Held, Lines, NoMemory, Object, Op, Policy};
use uslab_magazine::on_cpu;

/// The workloads to compare, each with the size of its objects in bytes.
const WORKLOADS: [(&str, u32); 5] = [
    ("handoff=64", 4096),
    ("handoff=64", 64),
    ("bursts=1500", 4096),
    ("server=1000", 4096),
    ("fork-join=32", 4096),
];
/// The largest accepted difference between the clock and the MESI protocol, in percent. A debug build stores a rank in
/// each lock, so the depot's lock takes one more cache line.
const MAX_CLOCK_DIFFERENCE: f64 = if cfg!(debug_assertions) { 20.0 } else { 10.0 };
/// The environment variable that gives the tape's file to the program under valgrind.
const TAPE_VARIABLE: &str = "USLAB_LINES_TAPE";
const ALLOC: u8 = b'a';
const FREE: u8 = b'f';

/// The model, and a tape that records the model's operations in the order of the clock.
#[derive(Debug)]
struct TapedModel {
    model: Uslab,
    tape: AccessRecording,
}
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AccessRecording {
    #[serde(skip)]
    told: Rc<RefCell<PrintedLines>>,
}
#[derive(Debug, Default)]
struct PrintedLines {
    bytes: Vec<u8>,
    allocs: usize,
    /// For each live object, the index of its allocation.
    out: HashMap<Object, usize>,
}
impl PrintedLines {
    fn tell(&mut self, what: u8, cpu: u32, number: usize) {
        self.bytes.extend((cpu << 8 | u32::from(what)).to_le_bytes());
        self.bytes.extend((number as u32).to_le_bytes());
    }
}

impl Policy for TapedModel {
    const NAME: &'static str = "taped";
    const DESCRIPTION: &'static str = "";
    type Knobs = AccessRecording;
    const LISTS: &'static [&'static str] = Uslab::LISTS;
    const LINES: Lines = Uslab::LINES;

    fn new(info: &CacheInfo, cpus: Cpus, geometry: &Geometry, tape: &AccessRecording) -> Self {
        Self { model: Uslab::new(info, cpus, geometry, &Knobs::default()), tape: tape.clone() }
    }
    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let object = self.model.alloc(op)?;
        let told = &mut *self.tape.told.borrow_mut();
        told.out.insert(object, told.allocs);
        told.allocs += 1;
        told.tell(ALLOC, op.cpu, 0);
        Ok(object)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        self.model.free(op, object);
        let told = &mut *self.tape.told.borrow_mut();
        let number = told.out.remove(&object).unwrap();
        told.tell(FREE, op.cpu, number);
    }
    /// Does nothing, because the tape does not record reaps.
    fn tick(&mut self, _: &mut Op<'_>) {}
    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        self.model.shrink(op)
    }
    fn container(&self) -> u32 {
        self.model.container()
    }
    fn shared(&self) -> u32 {
        self.model.shared()
    }
    fn held(&self) -> Vec<Held> {
        self.model.held()
    }
}

/// Returns the result of the simulator's clock, and the tape of operations.
fn clock(case: &Case) -> (Outcome, Vec<u8>) {
    let (profile, pages, tape) =
        (Profile::built_in().next().unwrap(), Pages::new(case.cpus).unwrap(), AccessRecording::default());
    let workload: Workload = case.workload.parse().unwrap();
    let outcome =
        run::<TapedModel>(&pages, tape.clone(), &workload, &profile, case.size, case.operations, 1).unwrap();
    (outcome, tape.told.take().bytes)
}

struct Case {
    workload: &'static str,
    /// The object size in bytes.
    size: u32,
    cpus: u32,
    /// The number of operations that each CPU does.
    operations: u64,
    /// The number of times that the allocator is created; each time, it begins at a different offset in a cache line.
    places: u32,
}

impl Case {
    /// Returns the number of cache lines that move per operation: by the clock, and by a MESI protocol under the
    /// shipping code.
    fn lines(&self) -> [f64; 2] {
        let (outcome, tape) = clock(self);
        let file = tempfile::NamedTempFile::new().unwrap();
        let head = [self.cpus, self.size, self.places].map(u32::to_le_bytes).concat();
        std::fs::write(file.path(), [&head, &tape[..]].concat()).unwrap();
        let mut program = Command::new("valgrind")
            .args(["--tool=lackey", "--trace-mem=yes"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "lines::child_replays_recorded_memory_accesses", "--nocapture"])
            .env(TAPE_VARIABLE, file.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, output) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
        let mut trace = BufReader::with_capacity(1 << 20, program.stderr.take().unwrap());
        let (send, places) = channel();
        // The program prints its addresses and waits for an answer, so they are known before the first operation is
        // traced.
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            for line in BufReader::new(output).lines() {
                let line = line.unwrap();
                if let Some((_, places)) = line.split_once("PLACES ") {
                    let places: Vec<u64> =
                        places.split(' ').map(|at| u64::from_str_radix(at, 16).unwrap()).collect();
                    send.send(places).unwrap();
                    input.write_all(b"\n").unwrap();
                }
                said = said + &line + "\n";
            }
            said
        });
        let (mut line, mut seen) = (Vec::new(), None);
        while trace.read_until(b'\n', &mut line).unwrap() > 0 {
            if seen.is_none() {
                seen = places.try_recv().ok().map(|at| MesiProtocol::new(&at, self.cpus));
            }
            if let Some(seen) = &mut seen {
                seen.line(&line);
            }
            line.clear();
        }
        let (said, status) = (said.join().unwrap(), program.wait().unwrap());
        assert!(status.success(), "{status}: {said}");
        let seen = seen.unwrap();
        assert_eq!(seen.operations, outcome.operations * u64::from(self.places), "{said}");
        assert!(said.contains(&format!("SLABS {}\n", outcome.slabs)), "{outcome:?}: {said}");
        [outcome.lines_per_operation, seen.travelled as f64 / seen.operations as f64]
    }
}

/// A MESI protocol: it records which CPUs hold each cache line.
struct MesiProtocol {
    /// A write to these addresses marks the start of a CPU's operation, and a write to the following addresses marks
    /// its end.
    marks: Range<u64>,
    /// The memory of the thread that plays the role of all CPUs. Accesses to this memory are not counted, because real
    /// threads would each have separate memory of this kind.
    own: Range<u64>,
    cpu: Option<u32>,
    lines: HashMap<u64, Line>,
    operations: u64,
    travelled: u64,
}
#[derive(Default)]
struct Line {
    written: bool,
    cpus: Vec<u32>,
    /// The operation in which the cache line moved most recently.
    travelled: u64,
}

impl MesiProtocol {
    fn new(places: &[u64], cpus: u32) -> Self {
        let [marks, start, end] = places else { panic!("{places:?}") };
        Self {
            marks: *marks..marks + 8 * (u64::from(cpus) + 1),
            own: *start..*end,
            cpu: None,
            lines: HashMap::new(),
            operations: 0,
            travelled: 0,
        }
    }
    /// Processes one line of valgrind's trace: ` L address,bytes`, ` S` or ` M`; other lines are instructions and are
    /// ignored.
    fn line(&mut self, line: &[u8]) {
        let [b' ', what @ (b'L' | b'S' | b'M'), b' ', access @ ..] = line else { return };
        let (at, bytes) = std::str::from_utf8(access).unwrap().trim_end().split_once(',').unwrap();
        let (at, bytes) = (u64::from_str_radix(at, 16).unwrap(), bytes.parse::<u64>().unwrap());
        if self.marks.contains(&at) {
            if *what != b'L' {
                let cpu = (at - self.marks.start) / 8;
                self.cpu = (at < self.marks.end - 8).then_some(cpu as u32);
                self.operations += u64::from(self.cpu.is_some());
            }
            return;
        }
        let Some(cpu) = self.cpu.filter(|_| !self.own.contains(&at)) else { return };
        for at in at / 64..=(at + bytes - 1) / 64 {
            self.access(cpu, at, *what != b'L');
        }
    }
    /// A cache line moves if a CPU reads it after another CPU has written it, or if a CPU writes it while other CPUs
    /// hold it. If one operation reads and then writes a line, this counts as one move, because the price of a move was
    /// measured in the same way.
    fn access(&mut self, cpu: u32, at: u64, write: bool) {
        let line = self.lines.entry(at).or_default();
        let here = line.cpus.contains(&cpu);
        let misses = match write {
            true => line.cpus.iter().any(|other| *other != cpu),
            false => !here && line.written,
        };
        if misses && line.travelled != self.operations {
            line.travelled = self.operations;
            self.travelled += 1;
        }
        if write {
            line.cpus.clear();
            line.written = true;
        }
        if write || !here {
            line.cpus.push(cpu);
        }
    }
}

/// The program that runs under valgrind; it has the form of a test, but tests nothing.
#[test]
fn child_replays_recorded_memory_accesses() {
    let Some(tape) = std::env::var_os(TAPE_VARIABLE) else { return };
    let tape = std::fs::read(tape).unwrap();
    let own = std::thread::Builder::new().stack_size(STACK);
    own.spawn(move || play(&tape)).unwrap().join().unwrap();
    std::process::exit(0);
}

/// The size in bytes of the stack of the thread that plays the role of all CPUs.
const STACK: usize = 1 << 20;

fn play(tape: &[u8]) {
    let (head, tape) = tape.split_at(12);
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let [cpus, size, places] = [0, 4, 8].map(|at| word(head, at));
    let marks = Vec::leak(vec![0_u64; cpus as usize + 1]);
    let here = (&raw const cpus).addr();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let stack = maps.lines().find_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        (start..end).contains(&here).then_some(start)
    });
    let stack = stack.unwrap();
    // The C library keeps a thread's variables at the upper end of its stack.
    println!("\nPLACES {:x} {stack:x} {:x}", marks.as_ptr().addr(), stack + STACK);
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let mut mark = |at: u32, n: usize| {
        marks[at as usize] = n as u64;
        black_box(&mut *marks);
    };
    let mut moved = vec![];
    for place in 0..places {
        moved.push(Vec::<u8>::with_capacity(16 * place as usize + 24));
        let pages = uslab_buddy::PageConfig::default_for(Cpus::simulated(cpus, 1).unwrap()).limit(1 << 30);
        let subsystem = Subsystem::new(Config { check_frees: false, ..Config::new(pages) }).unwrap();
        let cache = KmemCache::builder("object", size as usize).build_in(&subsystem).unwrap();
        let mut held = Vec::with_capacity(tape.len() / 8);
        for (n, told) in tape.chunks_exact(8).enumerate() {
            let (cpu, number) = (word(told, 0) >> 8, word(told, 4) as usize);
            on_cpu(cpu);
            if told[0] == ALLOC {
                mark(cpu, n);
                let block = black_box(cache.alloc_block(Gfp::KERNEL).unwrap());
                mark(cpus, n);
                held.push(Some(block));
            } else {
                let block = held[number].take();
                mark(cpu, n);
                drop(black_box(block));
                mark(cpus, n);
            }
        }
        println!("SLABS {}", cache.info().slabs);
    }
}

/// In one shard of `.ci/full`, the test runs all workloads on up to 8 CPUs; elsewhere, it runs one workload on 2 CPUs.
#[test]
fn simulated_line_transfers_match_the_shipping_code() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIPPED: valgrind is not installed (Debian: apt-get install valgrind)");
        return;
    }
    let full = std::env::var_os("USLAB_LINES").is_some_and(|lines| lines == "full");
    let (workloads, cpus, operations, places) =
        if full { (&WORKLOADS[..], &[2, 4, 8][..], 3000, 2) } else { (&WORKLOADS[..1], &[2][..], 2000, 1) };
    let mut wrong = vec![];
    println!("{:>12} {:>6} {:>4} {:>8} {:>8} {:>7}", "workload", "bytes", "CPUs", "clock", "MESI", "off");
    for (workload, size) in workloads {
        for cpus in cpus {
            let case = Case { workload, size: *size, cpus: *cpus, operations, places };
            let [clock, mesi] = case.lines();
            let off = 100.0 * (clock / mesi - 1.0);
            let row = format!("{workload:>12} {size:>6} {cpus:>4} {clock:>8.4} {mesi:>8.4} {off:>+6.1} %");
            println!("{row}");
            if off.abs() > MAX_CLOCK_DIFFERENCE {
                wrong.push(row);
            }
        }
    }
    assert!(wrong.is_empty(), "lines for each operation:\n{}", wrong.join("\n"));
}
