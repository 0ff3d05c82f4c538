//! Generated workloads: the operations of each CPU, for runs in virtual time and on threads.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::str::FromStr;

/// A generated workload: the pattern in which CPUs allocate and free. After every operation, a CPU spends `think`
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
    /// Each CPU allocates this many objects, then frees them all, last allocated first.
    Bursts(u64),
    /// CPUs work in pairs: one CPU allocates objects, and its partner frees them. A queue with this number of places
    /// connects the two CPUs of a pair.
    Handoff(u64),
    /// Each CPU allocates an object and frees it, repeatedly, but another CPU does this percentage of the frees.
    Remote(u64),
    /// CPU 0 allocates this number of tasks for each CPU; each CPU frees its tasks, then waits until all other CPUs
    /// have done so.
    ForkJoin(u64),
    /// Each CPU serves this number of connections, which open and close at random.
    Server(u64),
    /// The workload `server`, in which one of this number of connections moves to another CPU before it closes.
    Migrate(u64),
}

/// The error of a text that is not a [`Workload`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadWorkload(String);

impl Workload {
    /// The accepted forms of a workload's text, with descriptions.
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
        let n = |default: u64, most: u64| match number.map(str::parse::<u64>) {
            None => Ok(default),
            Some(Ok(n)) if (1..=most).contains(&n) => Ok(n),
            _ => Err(BadWorkload(format!("`{text}`: expected {name}=N with N from 1 to {most}"))),
        };
        const MAX_WITHOUT_TIME: u64 = 1 << 20;
        let kind = match name {
            "pairs" if number.is_none() => Kind::Pairs,
            "bursts" => Kind::Bursts(n(256, MAX_WITHOUT_TIME)?),
            "handoff" => Kind::Handoff(n(64, MAX_WITHOUT_TIME)?),
            "remote" => Kind::Remote(n(10, 100)?),
            "fork-join" => Kind::ForkJoin(n(32, MAX_WITHOUT_TIME)?),
            "server" => Kind::Server(n(1000, MAX_WITHOUT_TIME)?),
            "migrate" => Kind::Migrate(n(100, MAX_WITHOUT_TIME)?),
            _ => {
                let known = Self::ALL.map(|(known, _)| known).join(", ");
                return Err(BadWorkload(format!("unknown workload `{text}`; expected one of {known}")));
            }
        };
        Ok(Self { kind, think: 0.0, text: text.to_owned() })
    }
}

/// The next action that a script requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<O> {
    /// Allocate an object, and pass it to [`got`](Script::got).
    Alloc,
    /// Free this object.
    Free(O),
    /// Wait until another CPU has acted.
    Wait,
    /// The script has ended.
    Done,
}

/// The channel through which CPUs exchange objects, in virtual time or between threads.
pub trait Others<O> {
    /// Takes the first object that was sent to the CPU `own`. `None` if the queue is empty.
    fn take(&mut self, own: u32) -> Option<O>;
    /// Sends an object to a CPU.
    fn send(&mut self, to: u32, object: O);
    /// Returns the number of objects that were sent to a CPU and that the CPU has not taken yet.
    fn waiting(&self, cpu: u32) -> u64;
    /// Returns `true` if a CPU has finished.
    fn is_finished(&self, cpu: u32) -> bool;
    /// Announces that CPU `own` has finished.
    fn finish(&mut self, own: u32);
}

/// The operations of one CPU under a [`Workload`].
///
/// Runs in virtual time and on real threads use equal scripts. Each CPU has its own random numbers, so its operations
/// do not depend on the speed of other CPUs.
#[derive(Debug)]
pub struct Script<O> {
    kind: Kind,
    number: u32,
    cpus: u32,
    /// The number of operations left to run.
    left: u64,
    held: VecDeque<O>,
    /// `true` while a burst allocates.
    filling: bool,
    /// The number of tasks made in the current fork-join round.
    made: u64,
    rng: Xoshiro256PlusPlus,
}

impl<O> Script<O> {
    /// Creates the script of CPU number `number` on a machine with `cpus` CPUs; the script has the given number of
    /// operations.
    pub fn new(workload: &Workload, number: u32, cpus: u32, operations: u64, seed: u64) -> Self {
        let own = seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            kind: workload.kind,
            number,
            cpus,
            left: operations,
            held: VecDeque::new(),
            filling: true,
            made: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(own),
        }
    }
    /// Returns the number of objects that the script's CPU holds.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the script's next action.
    #[inline]
    pub fn ask(&mut self, others: &mut impl Others<O>) -> Ask<O> {
        if self.left == 0 {
            others.finish(self.number);
        }
        let ask = self.next(others);
        if matches!(ask, Ask::Alloc | Ask::Free(_)) {
            self.left = self.left.saturating_sub(1);
        }
        ask
    }

    /// Requests an allocation; the next call requests the free of the allocated object.
    fn pair(&mut self) -> Ask<O> {
        match self.held.pop_back() {
            Some(object) => Ask::Free(object),
            None if self.left == 0 => Ask::Done,
            None => Ask::Alloc,
        }
    }

    #[inline]
    fn next(&mut self, others: &mut impl Others<O>) -> Ask<O> {
        match self.kind {
            Kind::Pairs => self.pair(),
            Kind::Bursts(n) => {
                self.filling = if self.filling { (self.held.len() as u64) < n } else { self.held.is_empty() };
                match () {
                    () if self.filling && self.left > 0 => Ask::Alloc,
                    () => self.held.pop_back().map_or(Ask::Done, Ask::Free),
                }
            }
            // The last CPU of an odd number has no partner, so it both allocates and frees.
            Kind::Handoff(_) if self.number == self.cpus - 1 && self.cpus % 2 == 1 => self.pair(),
            Kind::Handoff(n) if self.number.is_multiple_of(2) => match self.left {
                0 => Ask::Done,
                _ if others.waiting(self.number + 1) >= n => Ask::Wait,
                _ => Ask::Alloc,
            },
            Kind::Handoff(_) => self.served(others, self.number - 1),
            Kind::Remote(_) => match self.held.pop_back().or_else(|| others.take(self.number)) {
                Some(object) => Ask::Free(object),
                None if self.left > 0 => Ask::Alloc,
                None if others.waiting(self.number) > 0 => Ask::Wait,
                None => Ask::Done,
            },
            Kind::ForkJoin(n) => self.fork_join(others, n),
            Kind::Server(n) => self.serve(others, n, None),
            Kind::Migrate(one_in) => self.serve(others, 1000, Some(one_in)),
        }
    }

    /// Requests frees of the objects that the CPU `maker` sends, until `maker` has finished.
    fn served(&self, others: &mut impl Others<O>, maker: u32) -> Ask<O> {
        // Read `finished` first: objects sent before the end are then visible.
        let finished = others.is_finished(maker);
        match others.take(self.number) {
            Some(object) => Ask::Free(object),
            None if finished && others.waiting(self.number) == 0 => Ask::Done,
            None => Ask::Wait,
        }
    }

    fn fork_join(&mut self, others: &mut impl Others<O>, n: u64) -> Ask<O> {
        if self.number != 0 {
            return self.served(others, 0);
        }
        let tasks = n * u64::from(self.cpus);
        if self.made == tasks {
            if let Some(object) = others.take(0) {
                return Ask::Free(object);
            }
            if (0..self.cpus).any(|cpu| others.waiting(cpu) > 0) {
                return Ask::Wait;
            }
            self.made = 0;
        }
        match self.left {
            0 => others.take(0).map_or(Ask::Done, Ask::Free),
            _ => Ask::Alloc,
        }
    }

    fn serve(&mut self, others: &mut impl Others<O>, n: u64, one_in: Option<u64>) -> Ask<O> {
        if let Some(object) = others.take(self.number) {
            return Ask::Free(object);
        }
        while self.left > 0 {
            let held = self.held.len() as u64;
            // The number of connections varies around half of the maximum.
            if held == 0 || self.rng.random_range(0..n) >= held {
                return Ask::Alloc;
            }
            let which = self.rng.random_range(0..held) as usize;
            let Some(object) = self.held.swap_remove_back(which) else { break };
            match one_in {
                Some(one_in) if self.cpus > 1 && self.rng.random_range(0..one_in) == 0 => {
                    let other = self.another();
                    others.send(other, object);
                }
                _ => return Ask::Free(object),
            }
        }
        Ask::Done
    }

    /// Picks a random CPU other than the script's own.
    fn another(&mut self) -> u32 {
        (self.number + 1 + self.rng.random_range(0..self.cpus - 1)) % self.cpus
    }

    /// Receives the object of the last allocation.
    #[inline]
    pub fn got(&mut self, object: O, others: &mut impl Others<O>) {
        let to = match self.kind {
            Kind::Handoff(_) if self.number.is_multiple_of(2) && self.number + 1 < self.cpus => {
                Some(self.number + 1)
            }
            Kind::Remote(percent) if self.cpus > 1 && self.rng.random_range(0..100) < percent => {
                Some(self.another())
            }
            Kind::ForkJoin(_) => {
                self.made += 1;
                Some(((self.made - 1) % u64::from(self.cpus)) as u32)
            }
            _ => None,
        };
        match to {
            Some(to) => others.send(to, object),
            None => self.held.push_back(object),
        }
    }
}
