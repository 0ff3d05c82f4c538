//! Parses litmus tests from a text format. A litmus test is a small concurrent program, together with its published
//! outcomes:
//!
//! ```text
//! MP+ra                                                 a name in the first column
//!   x=1 rlx; y=1 rel | r0=y acq; r1=x rlx               threads, and their statements
//!   final x                                             places with their last value in the outcome
//!   forbids r0=1 r1=0 -- Batty 2011                     a published outcome, and its source
//!   limit name                                          why loom differs
//! ```
//!
//! All memory locations are initially 0. `x=1 rlx` is a relaxed store to location `x`, and `r0=x rlx` is a relaxed load
//! into register `r0`. `x:=1` and `r0:=x` are non-atomic accesses, which may be a data race. `r0=add(x,1) rlx` is a
//! read-modify-write, which stores the old value in `r0`. The other read-modify-writes are `sub`, `and`, `or`, `xor`,
//! `max`, `min` and `swap`. `r0=cas(x,0,1) acqrel/rlx` is a compare-exchange, with the orderings for success and
//! failure. With `weak` in place of `cas`, the statement is a weak compare-exchange. `F sc` is a sequentially
//! consistent fence. The prefix `r0==1?` means that the statement runs only if register `r0` has the value 1. In an
//! outcome, `-` means that the register was never assigned. The value `0!` means that a weak exchange failed
//! spuriously.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The memory ordering of an access or a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    Plain,
    Rlx,
    Acq,
    Rel,
    AcqRel,
    Sc,
}

impl Order {
    fn parse(word: &str) -> Self {
        match word {
            "rlx" => Self::Rlx,
            "acq" => Self::Acq,
            "rel" => Self::Rel,
            "acqrel" => Self::AcqRel,
            "sc" => Self::Sc,
            _ => panic!("{word:?}: expected rlx, acq, rel, acqrel or sc"),
        }
    }
    pub fn acquires(self) -> bool {
        matches!(self, Self::Acq | Self::AcqRel | Self::Sc)
    }
    pub fn releases(self) -> bool {
        matches!(self, Self::Rel | Self::AcqRel | Self::Sc)
    }
}

/// The value that a statement stores.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    Number(u64),
    Register(usize),
}

#[derive(Clone, Copy, Debug)]
pub enum Change {
    Add,
    Sub,
    And,
    Or,
    Xor,
    Max,
    Min,
    Swap,
}

impl Change {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "add" => Self::Add,
            "sub" => Self::Sub,
            "and" => Self::And,
            "or" => Self::Or,
            "xor" => Self::Xor,
            "max" => Self::Max,
            "min" => Self::Min,
            "swap" => Self::Swap,
            _ => return None,
        })
    }
    pub fn apply(self, before: u64, value: u64) -> u64 {
        match self {
            Self::Add => before.wrapping_add(value),
            Self::Sub => before.wrapping_sub(value),
            Self::And => before & value,
            Self::Or => before | value,
            Self::Xor => before ^ value,
            Self::Max => before.max(value),
            Self::Min => before.min(value),
            Self::Swap => value,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Op {
    Fence(Order),
    Store { place: usize, value: Value, order: Order },
    Load { register: usize, place: usize, order: Order },
    Change { register: usize, place: usize, change: Change, value: u64, order: Order },
    Exchange { register: usize, place: usize, expected: u64, new: u64, orders: [Order; 2], weak: bool },
}

#[derive(Clone, Debug)]
pub struct Statement {
    /// A register and a value: the statement runs only if the register has this value.
    pub guard: Option<(usize, u64)>,
    pub op: Op,
}

/// The final value of a register in one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalRegister {
    pub value: u64,
    /// True if a weak exchange failed spuriously, although it found the expected value.
    pub spurious: bool,
}

pub type Registers = Vec<Option<FinalRegister>>;

impl Statement {
    pub fn is_executed(&self, registers: &Registers) -> bool {
        self.guard
            .is_none_or(|(register, value)| registers[register].is_some_and(|found| found.value == value))
    }
}

/// A published claim that a litmus test can or cannot have a certain outcome.
#[derive(Clone, Debug)]
pub struct PublishedOutcome {
    pub allowed: bool,
    /// The outcome: `race`, or the values of some registers and memory locations.
    pub outcome: Vec<String>,
    pub source: String,
}

#[derive(Clone, Debug, Default)]
pub struct Shape {
    pub name: String,
    pub threads: Vec<Vec<Statement>>,
    pub places: Vec<String>,
    pub registers: Vec<String>,
    /// The memory locations that have non-atomic accesses.
    pub plain: Vec<usize>,
    /// The memory locations whose final value is part of the outcome.
    pub finals: Vec<usize>,
    pub published: Vec<PublishedOutcome>,
    /// The limitations in `limits.txt` that explain why loom differs from RC11 for this program.
    pub limits: Vec<String>,
}

/// The name of the outcome of a program that has a data race.
pub const RACE: &str = "race";

impl Shape {
    /// Parses all litmus tests in a text.
    pub fn parse_all(text: &str) -> Vec<Self> {
        let mut shapes: Vec<Self> = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            if !line.starts_with(' ') {
                shapes.push(Self { name: line.trim().to_owned(), ..Self::default() });
                continue;
            }
            let shape = shapes.last_mut().expect("a name must come first");
            let line = line.trim();
            match line.split_once(' ').unwrap_or((line, "")) {
                ("final", places) => {
                    shape.finals = places.split(' ').map(|place| shape.location_index(place)).collect();
                }
                (word @ ("allows" | "forbids"), rest) => {
                    let (outcome, source) = rest.split_once(" -- ").expect("a source must follow ` -- `");
                    let outcome = outcome.split(' ').map(str::to_owned).collect();
                    let source = source.to_owned();
                    shape.published.push(PublishedOutcome { allowed: word == "allows", outcome, source });
                }
                ("limit", name) => shape.limits.push(name.to_owned()),
                _ => {
                    shape.threads = line
                        .split('|')
                        .map(|thread| thread.split(';').map(|text| shape.statement(text.trim())).collect())
                        .collect();
                }
            }
        }
        shapes
    }

    fn index(names: &mut Vec<String>, name: &str) -> usize {
        names.iter().position(|known| known == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        })
    }
    fn location_index(&mut self, name: &str) -> usize {
        Self::index(&mut self.places, name)
    }
    fn register_index(&mut self, name: &str) -> usize {
        assert!(is_register(name), "{}: {name:?} is not a register", self.name);
        Self::index(&mut self.registers, name)
    }

    fn statement(&mut self, text: &str) -> Statement {
        let (guard, text) = match text.split_once("? ") {
            Some((guard, rest)) => {
                let (register, value) = guard.split_once("==").expect("r0==1? ...");
                (Some((self.register_index(register), number(value))), rest)
            }
            None => (None, text),
        };
        Statement { guard, op: self.op(text) }
    }
    fn op(&mut self, text: &str) -> Op {
        if let Some(order) = text.strip_prefix("F ") {
            return Op::Fence(Order::parse(order));
        }
        let (left, right, order) = match text.split_once(":=") {
            Some((left, right)) => (left, right, "plain"),
            None => {
                let (left, right) = text.split_once('=').unwrap_or_else(|| panic!("{}: {text:?}", self.name));
                let (right, order) =
                    right.rsplit_once(' ').unwrap_or_else(|| panic!("{}: {text:?}", self.name));
                (left, right, order)
            }
        };
        let access = |order| if order == "plain" { Order::Plain } else { Order::parse(order) };
        if !is_register(left) {
            let place = self.location_index(left);
            let value = if is_register(right) {
                Value::Register(self.register_index(right))
            } else {
                Value::Number(number(right))
            };
            let order = access(order);
            self.record_plain_access(place, order);
            return Op::Store { place, value, order };
        }
        let register = self.register_index(left);
        let Some((operation, arguments)) = right.split_once('(') else {
            let (place, order) = (self.location_index(right), access(order));
            self.record_plain_access(place, order);
            return Op::Load { register, place, order };
        };
        let arguments: Vec<&str> = arguments.trim_end_matches(')').split(',').collect();
        let place = self.location_index(arguments[0]);
        match Change::parse(operation) {
            Some(change) => Op::Change {
                register,
                place,
                change,
                value: number(arguments[1]),
                order: Order::parse(order),
            },
            None => {
                assert!(matches!(operation, "cas" | "weak"), "{}: {operation:?}", self.name);
                let (success, failure) = order.split_once('/').expect("success/failure");
                let orders = [success, failure].map(Order::parse);
                let (expected, new) = (number(arguments[1]), number(arguments[2]));
                Op::Exchange { register, place, expected, new, orders, weak: operation == "weak" }
            }
        }
    }
    fn record_plain_access(&mut self, place: usize, order: Order) {
        if order == Order::Plain && !self.plain.contains(&place) {
            self.plain.push(place);
        }
    }

    /// Formats an outcome as text, in the notation of the published outcomes.
    pub fn outcome(&self, registers: &Registers, last: impl Fn(usize) -> u64) -> String {
        let mut named = BTreeMap::new();
        for (name, found) in self.registers.iter().zip(registers) {
            let mut text = String::new();
            match found {
                None => text.push('-'),
                Some(found) => _ = write!(text, "{}{}", found.value, if found.spurious { "!" } else { "" }),
            }
            named.insert(name.clone(), text);
        }
        let mut parts: Vec<String> =
            named.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        parts.extend(self.finals.iter().map(|&place| format!("{}={}", self.places[place], last(place))));
        parts.join(" ")
    }

    /// Returns the number of weak exchanges in the program.
    #[cfg(loom)]
    pub fn weak_exchanges(&self) -> u32 {
        let weak = |statement: &&Statement| matches!(statement.op, Op::Exchange { weak: true, .. });
        self.threads.iter().flatten().filter(weak).count() as u32
    }
}

fn is_register(name: &str) -> bool {
    name.strip_prefix('r')
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}
fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?}: expected a number"))
}
