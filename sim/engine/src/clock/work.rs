//! Generated workloads: the operations of each CPU, for runs in virtual time and on real threads.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::str::FromStr;

/// A generated workload: the pattern in which CPUs allocate and free. After every operation, a CPU spends `think_ns`
/// nanoseconds on other work.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    kind: Kind,
    think: f64,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Each CPU allocates an object and frees it, repeatedly.
    Pairs,
    /// Each CPU allocates this number of objects and then frees all of them, the newest object first.
    Bursts(u64),
    /// CPUs work in pairs: one CPU allocates objects, and its partner frees them. The two CPUs of a pair are connected
    /// by a queue of at most this many objects.
    Handoff(u64),
    /// Each CPU allocates an object and frees it, repeatedly; another CPU does this percentage of the frees.
    Remote(u64),
    /// CPU 0 allocates this number of tasks for each CPU; each CPU frees its tasks and waits until all CPUs have
    /// finished.
    ForkJoin(u64),
    /// Each CPU serves this number of connections, which open and close at random.
    Server(u64),
    /// Like the workload `server`, except that one in this many connections moves to another CPU before it closes.
    Migrate(u64),
}

/// The error for a text that is not a [`Workload`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadWorkload(String);

impl Workload {
    /// The accepted spellings of workloads, each with a description.
    pub const ALL: [(&'static str, &'static str); 7] = [
        ("pairs", "each CPU allocates one object and frees it, again and again"),
        ("bursts=N", "each CPU allocates N objects, then frees them, the last one first (256)"),
        ("handoff=N", "one CPU allocates, and its neighbour frees, through a queue of N objects (64)"),
        ("remote=N", "as `pairs`, and another CPU frees N in 100 objects (10)"),
        (
            "fork-join=N",
            "CPU 0 makes N tasks for each CPU; each CPU frees its tasks and waits for the others (32)",
        ),
        ("server=N", "each CPU serves N connections that open and close at random (1000)"),
        ("migrate=N", "as `server=1000`, but one connection in N ends on another CPU (100)"),
    ];
    pub(crate) fn think_ns(&self) -> f64 {
        self.think
    }
    /// Adds `ns` nanoseconds of other work after every operation.
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
        let n = |default: u64, max: u64| match number.map(str::parse::<u64>) {
            None => Ok(default),
            Some(Ok(n)) if (1..=max).contains(&n) => Ok(n),
            _ => Err(BadWorkload(format!("`{text}`: expected {name}=N with N from 1 to {max}"))),
        };
        const MAX_GROUP_SIZE: u64 = 1 << 20;
        let kind = match name {
            "pairs" if number.is_none() => Kind::Pairs,
            "bursts" => Kind::Bursts(n(256, MAX_GROUP_SIZE)?),
            "handoff" => Kind::Handoff(n(64, MAX_GROUP_SIZE)?),
            "remote" => Kind::Remote(n(10, 100)?),
            "fork-join" => Kind::ForkJoin(n(32, MAX_GROUP_SIZE)?),
            "server" => Kind::Server(n(1000, MAX_GROUP_SIZE)?),
            "migrate" => Kind::Migrate(n(100, MAX_GROUP_SIZE)?),
            _ => {
                let names = Self::ALL.map(|(names, _)| names).join(", ");
                return Err(BadWorkload(format!("unknown workload `{text}`; expected one of {names}")));
            }
        };
        Ok(Self { kind, think: 0.0, text: text.to_owned() })
    }
}

/// The next action that a script requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptAction<O> {
    /// Allocate an object, and pass it to [`allocated`](Script::allocated).
    Alloc,
    /// Free this object.
    Free(O),
    /// Wait until another CPU has acted.
    Wait,
    /// The script has ended.
    Done,
}

/// The channel through which CPUs exchange objects, in virtual time or between threads.
pub trait Exchange<O> {
    /// Takes the first object that was sent to the CPU `cpu_number`. Returns `None` if no sent object is waiting.
    fn take(&mut self, cpu_number: u32) -> Option<O>;
    /// Sends an object to a CPU.
    fn send(&mut self, receiver: u32, object: O);
    /// Returns the number of objects that were sent to a CPU and that it has not taken yet.
    fn waiting(&self, cpu: u32) -> u64;
    /// Returns `true` if a CPU has finished.
    fn is_finished(&self, cpu: u32) -> bool;
    /// Announces that CPU `cpu_number` has finished.
    fn finish(&mut self, cpu_number: u32);
}

/// The operations of one CPU under a [`Workload`].
///
/// Each CPU runs the same script in virtual time and on real threads. Each CPU has a separate random generator, so its
/// operations do not depend on the speed of other CPUs.
#[derive(Debug)]
pub struct Script<O> {
    kind: Kind,
    number: u32,
    cpus: u32,
    /// The number of operations left to run.
    remaining: u64,
    objects: VecDeque<O>,
    /// `true` while the CPU allocates the objects of a burst.
    filling: bool,
    /// The number of tasks that the current fork-join round has allocated.
    tasks_made: u64,
    rng: Xoshiro256PlusPlus,
}

impl<O> Script<O> {
    /// Creates the script of CPU `number` on a machine with `cpus` CPUs; the script has the given number of operations.
    pub fn new(workload: &Workload, number: u32, cpus: u32, operations: u64, seed: u64) -> Self {
        let cpu_seed = seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            kind: workload.kind,
            number,
            cpus,
            remaining: operations,
            objects: VecDeque::new(),
            filling: true,
            tasks_made: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(cpu_seed),
        }
    }
    /// Returns the number of objects that the script's CPU holds.
    pub fn held(&self) -> usize {
        self.objects.len()
    }

    /// Returns the script's next action.
    #[inline]
    pub fn next_action(&mut self, exchange: &mut impl Exchange<O>) -> ScriptAction<O> {
        if self.remaining == 0 {
            exchange.finish(self.number);
        }
        let action = self.next(exchange);
        if matches!(action, ScriptAction::Alloc | ScriptAction::Free(_)) {
            self.remaining = self.remaining.saturating_sub(1);
        }
        action
    }

    /// Requests an allocation; the following call requests the free of the allocated object.
    fn next_pair_action(&mut self) -> ScriptAction<O> {
        match self.objects.pop_back() {
            Some(object) => ScriptAction::Free(object),
            None if self.remaining == 0 => ScriptAction::Done,
            None => ScriptAction::Alloc,
        }
    }

    #[inline]
    fn next(&mut self, exchange: &mut impl Exchange<O>) -> ScriptAction<O> {
        match self.kind {
            Kind::Pairs => self.next_pair_action(),
            Kind::Bursts(n) => {
                self.filling =
                    if self.filling { (self.objects.len() as u64) < n } else { self.objects.is_empty() };
                match () {
                    () if self.filling && self.remaining > 0 => ScriptAction::Alloc,
                    () => self.objects.pop_back().map_or(ScriptAction::Done, ScriptAction::Free),
                }
            }
            // If the number of CPUs is odd, the last CPU has no partner, so it both allocates and frees.
            Kind::Handoff(_) if self.number == self.cpus - 1 && self.cpus % 2 == 1 => self.next_pair_action(),
            Kind::Handoff(n) if self.number.is_multiple_of(2) => match self.remaining {
                0 => ScriptAction::Done,
                _ if exchange.waiting(self.number + 1) >= n => ScriptAction::Wait,
                _ => ScriptAction::Alloc,
            },
            Kind::Handoff(_) => self.request_free_of_received(exchange, self.number - 1),
            Kind::Remote(_) => match self.objects.pop_back().or_else(|| exchange.take(self.number)) {
                Some(object) => ScriptAction::Free(object),
                None if self.remaining > 0 => ScriptAction::Alloc,
                None if exchange.waiting(self.number) > 0 => ScriptAction::Wait,
                None => ScriptAction::Done,
            },
            Kind::ForkJoin(n) => self.fork_join(exchange, n),
            Kind::Server(n) => self.serve_connections(exchange, n, None),
            Kind::Migrate(migration_period) => self.serve_connections(exchange, 1000, Some(migration_period)),
        }
    }

    /// Requests frees of the objects that the CPU `maker` sends, until `maker` has finished.
    fn request_free_of_received(&self, exchange: &mut impl Exchange<O>, maker: u32) -> ScriptAction<O> {
        // The code reads `finished` first, so that objects sent before the end are visible.
        let finished = exchange.is_finished(maker);
        match exchange.take(self.number) {
            Some(object) => ScriptAction::Free(object),
            None if finished && exchange.waiting(self.number) == 0 => ScriptAction::Done,
            None => ScriptAction::Wait,
        }
    }

    fn fork_join(&mut self, exchange: &mut impl Exchange<O>, n: u64) -> ScriptAction<O> {
        if self.number != 0 {
            return self.request_free_of_received(exchange, 0);
        }
        let tasks = n * u64::from(self.cpus);
        if self.tasks_made == tasks {
            if let Some(object) = exchange.take(0) {
                return ScriptAction::Free(object);
            }
            if (0..self.cpus).any(|cpu| exchange.waiting(cpu) > 0) {
                return ScriptAction::Wait;
            }
            self.tasks_made = 0;
        }
        match self.remaining {
            0 => exchange.take(0).map_or(ScriptAction::Done, ScriptAction::Free),
            _ => ScriptAction::Alloc,
        }
    }

    fn serve_connections(
        &mut self,
        exchange: &mut impl Exchange<O>,
        n: u64,
        migration_period: Option<u64>,
    ) -> ScriptAction<O> {
        if let Some(object) = exchange.take(self.number) {
            return ScriptAction::Free(object);
        }
        while self.remaining > 0 {
            let count = self.objects.len() as u64;
            // The number of connections varies around half of the maximum.
            if count == 0 || self.rng.random_range(0..n) >= count {
                return ScriptAction::Alloc;
            }
            let index = self.rng.random_range(0..count) as usize;
            let Some(object) = self.objects.swap_remove_back(index) else { break };
            match migration_period {
                Some(migration_period)
                    if self.cpus > 1 && self.rng.random_range(0..migration_period) == 0 =>
                {
                    let other = self.random_other_cpu();
                    exchange.send(other, object);
                }
                _ => return ScriptAction::Free(object),
            }
        }
        ScriptAction::Done
    }

    /// Picks a random CPU other than the script's own.
    fn random_other_cpu(&mut self) -> u32 {
        (self.number + 1 + self.rng.random_range(0..self.cpus - 1)) % self.cpus
    }

    /// Receives the object of the last allocation.
    #[inline]
    pub fn allocated(&mut self, object: O, exchange: &mut impl Exchange<O>) {
        let receiver = match self.kind {
            Kind::Handoff(_) if self.number.is_multiple_of(2) && self.number + 1 < self.cpus => {
                Some(self.number + 1)
            }
            Kind::Remote(percent) if self.cpus > 1 && self.rng.random_range(0..100) < percent => {
                Some(self.random_other_cpu())
            }
            Kind::ForkJoin(_) => {
                self.tasks_made += 1;
                Some(((self.tasks_made - 1) % u64::from(self.cpus)) as u32)
            }
            _ => None,
        };
        match receiver {
            Some(receiver) => exchange.send(receiver, object),
            None => self.objects.push_back(object),
        }
    }
}
