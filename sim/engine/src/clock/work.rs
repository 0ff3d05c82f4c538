//! Made workloads: what each CPU asks for next.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::str::FromStr;

/// What CPUs do. `think` are nanoseconds that each spends on something else after every operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    kind: Kind,
    think: f64,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// One object, allocated and freed again.
    Pairs,
    /// So many allocated, then all of them freed, the last one first.
    Bursts(u64),
    /// CPUs in pairs: one allocates, the other one frees, through a queue of so many.
    Handoff(u64),
    /// Pairs of which so many in a hundred are freed by another CPU.
    Remote(u64),
    /// CPU 0 makes so many tasks for each CPU, all free theirs, and wait for each other.
    ForkJoin(u64),
    /// Each CPU serves so many connections, which come and go at random.
    Server(u64),
    /// As `server`, and one in so many connections moves to another CPU before it ends.
    Migrate(u64),
}

/// A text that is no [`Workload`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadWorkload(String);

impl Workload {
    /// What can be written, with what it does.
    pub const ALL: [(&'static str, &'static str); 7] = [
        ("pairs", "one object, allocated and freed again"),
        ("bursts=N", "N objects allocated, then freed, the last one first (256)"),
        ("handoff=N", "one CPU allocates, its neighbour frees, through a queue of N (64)"),
        ("remote=N", "pairs, of which N in 100 are freed by another CPU (10)"),
        ("fork-join=N", "CPU 0 makes N tasks for each CPU, all free theirs and wait for each other (32)"),
        ("server=N", "each CPU serves N connections that come and go at random (1000)"),
        ("migrate=N", "as `server=1000`, and one connection in N ends on another CPU (100)"),
    ];
    pub(crate) fn think_ns(&self) -> f64 {
        self.think
    }
    /// With so many nanoseconds of something else after every operation.
    #[must_use]
    pub fn thinking(self, ns: f64) -> Self {
        Self { think: ns.max(0.0), ..self }
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Workload {
    type Err = BadWorkload;

    fn from_str(text: &str) -> Result<Self, BadWorkload> {
        let (name, number) = match text.split_once('=') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        };
        let n = |default: u64, most: u64| match number.map(str::parse::<u64>) {
            None => Ok(default),
            Some(Ok(n)) if (1..=most).contains(&n) => Ok(n),
            _ => Err(BadWorkload(format!("`{text}`: expected {name}=N with N from 1 to {most}"))),
        };
        const MANY: u64 = 1 << 20;
        let kind = match name {
            "pairs" if number.is_none() => Kind::Pairs,
            "bursts" => Kind::Bursts(n(256, MANY)?),
            "handoff" => Kind::Handoff(n(64, MANY)?),
            "remote" => Kind::Remote(n(10, 100)?),
            "fork-join" => Kind::ForkJoin(n(32, MANY)?),
            "server" => Kind::Server(n(1000, MANY)?),
            "migrate" => Kind::Migrate(n(100, MANY)?),
            _ => {
                let known = Self::ALL.map(|(known, _)| known).join(", ");
                return Err(BadWorkload(format!("no workload `{text}`; there are {known}")));
            }
        };
        Ok(Self { kind, think: 0.0, text: text.to_owned() })
    }
}

/// What a CPU asks for.
pub(super) enum Ask<O> {
    Alloc,
    Free(O),
    /// Nothing before then.
    Until(f64),
    /// Nothing any more.
    Done,
}

/// All CPUs, with what each holds.
pub(super) struct Team<O> {
    kind: Kind,
    cpus: Vec<Cpu<O>>,
    rng: Xoshiro256PlusPlus,
}

struct Cpu<O> {
    /// Operations that are left.
    left: u64,
    held: VecDeque<O>,
    /// From other CPUs, with the moment when each was there.
    inbox: VecDeque<(f64, O)>,
    /// Bursts and connections: whether it allocates now.
    filling: bool,
    /// Fork-join: tasks of this round.
    made: u64,
}

/// How long a CPU that has nothing to do looks away.
const IDLE_NS: f64 = 50.0;

impl<O> Team<O> {
    pub(super) fn new(workload: &Workload, cpus: u32, operations: u64, seed: u64) -> Self {
        let cpu = || Cpu {
            left: operations,
            held: VecDeque::new(),
            inbox: VecDeque::new(),
            filling: true,
            made: 0,
        };
        let cpus = (0..cpus).map(|_| cpu()).collect();
        Self { kind: workload.kind, cpus, rng: Xoshiro256PlusPlus::seed_from_u64(seed) }
    }
    /// Objects that are out.
    pub(super) fn held(&self) -> u64 {
        self.cpus.iter().map(|cpu| (cpu.held.len() + cpu.inbox.len()) as u64).sum()
    }

    pub(super) fn ask(&mut self, cpu: u32, now: f64) -> Ask<O> {
        let ask = self.next(cpu, now);
        if matches!(ask, Ask::Alloc | Ask::Free(_)) {
            let left = &mut self.cpus[cpu as usize].left;
            *left = left.saturating_sub(1);
        }
        ask
    }

    fn next(&mut self, number: u32, now: f64) -> Ask<O> {
        let others = self.cpus.len() as u64;
        let cpu = &mut self.cpus[number as usize];
        match self.kind {
            Kind::Pairs => match cpu.held.pop_back() {
                Some(object) => Ask::Free(object),
                None if cpu.left == 0 => Ask::Done,
                None => Ask::Alloc,
            },
            Kind::Bursts(n) => {
                cpu.filling = if cpu.filling { (cpu.held.len() as u64) < n } else { cpu.held.is_empty() };
                match () {
                    () if cpu.left == 0 && cpu.held.is_empty() => Ask::Done,
                    () if cpu.filling && cpu.left > 0 => Ask::Alloc,
                    () => cpu.held.pop_back().map_or(Ask::Done, Ask::Free),
                }
            }
            Kind::Handoff(n) => {
                // Alone, or the last of an odd number: both roles.
                if u64::from(number) == others - 1 && others % 2 == 1 {
                    return match cpu.held.pop_back() {
                        Some(object) => Ask::Free(object),
                        None if cpu.left == 0 => Ask::Done,
                        None => Ask::Alloc,
                    };
                }
                if number.is_multiple_of(2) {
                    let full = self.cpus[number as usize + 1].inbox.len() as u64 >= n;
                    return match self.cpus[number as usize].left {
                        0 => Ask::Done,
                        _ if full => Ask::Until(now + IDLE_NS),
                        _ => Ask::Alloc,
                    };
                }
                let more = self.cpus[number as usize - 1].left > 0;
                take(&mut self.cpus[number as usize].inbox, now, more)
            }
            Kind::Remote(_) => match cpu.held.pop_back() {
                Some(object) => Ask::Free(object),
                None => match cpu.inbox.front() {
                    Some((then, _)) if *then <= now => {
                        cpu.inbox.pop_front().map_or(Ask::Done, |(_, o)| Ask::Free(o))
                    }
                    _ if cpu.left > 0 => Ask::Alloc,
                    Some((then, _)) => Ask::Until(*then),
                    None => Ask::Done,
                },
            },
            Kind::ForkJoin(n) => self.fork_join(number, now, n),
            Kind::Server(_) | Kind::Migrate(_) => {
                let n = if let Kind::Server(n) = self.kind { n } else { 1000 };
                if let Some((then, _)) = cpu.inbox.front()
                    && *then <= now
                {
                    return cpu.inbox.pop_front().map_or(Ask::Done, |(_, object)| Ask::Free(object));
                }
                if cpu.left == 0 {
                    return Ask::Done;
                }
                // As many come as go, around half of the connections.
                if cpu.held.is_empty() || self.rng.random_range(0..n) >= cpu.held.len() as u64 {
                    return Ask::Alloc;
                }
                let which = self.rng.random_range(0..cpu.held.len() as u64) as usize;
                let Some(object) = cpu.held.swap_remove_back(which) else { return Ask::Alloc };
                if let Kind::Migrate(one_in) = self.kind
                    && others > 1
                    && self.rng.random_range(0..one_in) == 0
                {
                    let other = (u64::from(number) + 1 + self.rng.random_range(0..others - 1)) % others;
                    self.cpus[other as usize].inbox.push_back((now, object));
                    return Ask::Until(now + 1.0);
                }
                Ask::Free(object)
            }
        }
    }

    fn fork_join(&mut self, number: u32, now: f64, n: u64) -> Ask<O> {
        let cpus = self.cpus.len() as u64;
        let left = self.cpus[0].left > 0;
        let cpu = &mut self.cpus[number as usize];
        if number == 0 && left && cpu.made < n * cpus {
            cpu.made += 1;
            return Ask::Alloc;
        }
        if let Some((then, _)) = cpu.inbox.front() {
            return match *then <= now {
                true => cpu.inbox.pop_front().map_or(Ask::Done, |(_, object)| Ask::Free(object)),
                false => Ask::Until(*then),
            };
        }
        if number == 0 {
            let done = self.cpus.iter().all(|cpu| cpu.inbox.is_empty());
            return match (done, left) {
                (true, true) => {
                    self.cpus[0].made = 0;
                    self.fork_join(0, now, n)
                }
                (true, false) => Ask::Done,
                (false, _) => Ask::Until(now + IDLE_NS),
            };
        }
        if left { Ask::Until(now + IDLE_NS) } else { Ask::Done }
    }

    /// An allocation has brought an object.
    pub(super) fn got(&mut self, number: u32, now: f64, object: O) {
        let cpus = self.cpus.len() as u64;
        let to = match self.kind {
            Kind::Handoff(_) if number.is_multiple_of(2) && u64::from(number) + 1 < cpus => Some(number + 1),
            Kind::Remote(percent) if cpus > 1 && self.rng.random_range(0..100) < percent => {
                Some(((u64::from(number) + 1 + self.rng.random_range(0..cpus - 1)) % cpus) as u32)
            }
            Kind::ForkJoin(_) => Some(((self.cpus[0].made - 1) % cpus) as u32),
            _ => None,
        };
        match to {
            Some(to) => self.cpus[to as usize].inbox.push_back((now, object)),
            None => self.cpus[number as usize].held.push_back(object),
        }
    }
}

/// What came, or when to look again.
fn take<O>(inbox: &mut VecDeque<(f64, O)>, now: f64, more: bool) -> Ask<O> {
    match inbox.front() {
        Some((then, _)) if *then > now => Ask::Until(*then),
        Some(_) => inbox.pop_front().map_or(Ask::Done, |(_, object)| Ask::Free(object)),
        None if more => Ask::Until(now + IDLE_NS),
        None => Ask::Done,
    }
}
