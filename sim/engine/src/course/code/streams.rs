//! Generates the streams on which policies run, from a seed.

use crate::course::questions::ask::{Random, random};
use crate::stream::{Kind, Stream, Writer};

/// The number of nanoseconds between two operations of a stream.
const OPERATION_INTERVAL_NS: u64 = 1000;

/// A stream under construction, and its live objects, oldest first.
struct Script {
    writer: Writer,
    random: Random,
    time: u64,
    births: u64,
    live: Vec<u64>,
}

impl Script {
    fn new(lab: &str, seed: u32, cpus: u32, size: u32) -> Self {
        let mut writer = Writer::new(lab.to_owned(), cpus);
        writer.cache("dentry".to_owned(), Kind::Named, size);
        // These random numbers differ from the random numbers of the questions.
        let random = random(seed, &format!("stream of {lab}"));
        Self { writer, random, time: 0, births: 0, live: vec![] }
    }
    fn begin(&mut self) {
        self.time += OPERATION_INTERVAL_NS;
        self.writer.begin(self.time);
    }
    fn alloc(&mut self, cpu: u32, n: u64) {
        for _ in 0..n {
            self.begin();
            self.writer.alloc(cpu, 0, self.births, 0);
            self.live.push(self.births);
            self.births += 1;
        }
    }
    fn free_object_at(&mut self, cpu: u32, index: usize) {
        self.begin();
        let object = self.live.remove(index);
        self.writer.free(cpu, object);
    }
    fn free(&mut self, cpu: u32, n: u64) {
        for _ in 0..n.min(self.live.len() as u64) {
            self.free_object_at(cpu, self.live.len() - 1);
        }
    }
    fn free_random_objects(&mut self, cpu: u32, n: u64) {
        for _ in 0..n.min(self.live.len() as u64) {
            let index = self.random.of(0, self.live.len() as u64 - 1) as usize;
            self.free_object_at(cpu, index);
        }
    }
    /// Frees all objects and shrinks all caches.
    fn end(mut self, cpus: u32) -> Stream {
        while !self.live.is_empty() {
            let cpu = self.live.len() as u32 % cpus;
            self.free_object_at(cpu, 0);
        }
        self.begin();
        self.writer.shrink(0, None);
        self.writer.finish()
    }
}

/// Generates a cache that repeatedly grows, loses a random part of its objects, and is then used for some time.
pub(super) fn growing_and_shrinking_cache(lab: &str, seed: u32) -> Stream {
    let mut script = Script::new(lab, seed, 1, 256);
    for _ in 0..8 {
        let allocs = script.random.of(500, 900);
        script.alloc(0, allocs);
        let frees = script.live.len() as u64 * script.random.of(50, 80) / 100;
        script.free_random_objects(0, frees);
        for _ in 0..script.random.of(150, 250) {
            let n = script.random.of(1, 8);
            script.alloc(0, n);
            script.free_random_objects(0, n);
        }
    }
    script.end(1)
}

/// Generates operations of four CPUs: loops that cross a magazine boundary, bursts, and frees of objects that other
/// CPUs allocated.
pub(super) fn exchanges(lab: &str, seed: u32) -> Stream {
    let mut script = Script::new(lab, seed, 4, 128);
    for _ in 0..60 {
        let cpu = script.random.of(0, 3) as u32;
        match script.random.of(0, 2) {
            0 => {
                let n = script.random.of(1, 3);
                script.alloc(cpu, 4);
                for _ in 0..script.random.of(10, 40) {
                    script.free(cpu, n);
                    script.alloc(cpu, n);
                }
            }
            1 => {
                let n = script.random.of(6, 40);
                script.alloc(cpu, n);
                script.free(cpu, n);
            }
            _ => {
                let n = script.random.of(6, 40);
                script.alloc(cpu, n);
                script.free_random_objects((cpu + 1) % 4, n);
            }
        }
    }
    script.end(4)
}

/// Generates a load that rises and falls as over a day, with bursts in each interval of 15 seconds.
pub(super) fn generate_days(lab: &str, seed: u32, interval: u64) -> Stream {
    let mut script = Script::new(lab, seed, 2, 128);
    for _ in 0..10 {
        let level = [2, 6, 14, 30][script.random.of(0, 3) as usize];
        for _ in 0..script.random.of(4, 9) {
            for _ in 0..2 {
                let n = 8 * script.random.of(level - 1, level + 1);
                let cpu = script.random.of(0, 1) as u32;
                script.alloc(cpu, n);
                script.free(cpu, n);
                script.time += interval / 3;
            }
            script.time += interval / 3;
        }
    }
    script.end(2)
}
