//! The load of the simulated day: the number of clients at each time, and the requests of each client.

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::f64::consts::PI;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep_until};
use uslab_magazine::sync::Counter;

/// Number of clients that each server has at the peak.
const CLIENTS: usize = 200;
/// A client opens a new connection after this number of requests.
const REQUESTS: usize = 400;
const KEYS: u64 = 100_000;
/// Smallest and largest size of a value in bytes; the logarithms of the sizes are uniformly distributed. A larger reply
/// would not fit in the server's 8 KiB buffer: without `TCP_NODELAY` it would be sent in parts, and network timers
/// would determine its time.
const SIZES: (f64, f64) = (64.0, 8000.0);
/// Mean lifetimes of values in days: the first applies to most values, the second to one value in ten.
const MEAN_LIFETIMES: (f64, f64) = (1.0 / 20.0, 1.0 / 5.0);

/// The load curve over the day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Curve {
    day: Duration,
    /// Number of requests that one client sends per second.
    rate: f64,
}

impl Curve {
    /// Makes the load curve of a day of this length, with `peak` requests per second at its peak.
    pub(crate) fn new(day: Duration, peak: f64) -> Self {
        Self { day, rate: peak / CLIENTS as f64 }
    }
    pub(crate) fn day(self) -> Duration {
        self.day
    }
    /// Returns the load as a fraction of the peak; `time` is a fraction of the day.
    pub(crate) fn load(time_of_day: f64) -> f64 {
        const NIGHT_LOAD: f64 = 0.05;
        let slope = |x: f64| NIGHT_LOAD + (1.0 - NIGHT_LOAD) * (1.0 - (PI * x).cos()) / 2.0;
        match time_of_day {
            ..0.3 => slope(time_of_day / 0.3),
            0.3..0.6 => 1.0,
            0.6..0.7 => slope((0.7 - time_of_day) / 0.1),
            _ => NIGHT_LOAD,
        }
    }
    fn part(self, elapsed: Duration) -> f64 {
        elapsed.as_secs_f64() / self.day.as_secs_f64()
    }
}

/// Measurements of one server over the simulated day.
#[derive(Debug)]
pub(crate) struct ServerMeasurements {
    intervals: Vec<Mutex<Histogram<u64>>>,
    /// For each key, the size of its value in bytes, and the time of day at which the value expires.
    values: Mutex<HashMap<u64, (usize, Duration)>>,
    errors: Counter,
}

impl ServerMeasurements {
    pub(crate) fn new(intervals: usize) -> Self {
        // The histogram has times of up to a minute, in microseconds.
        let empty = || Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds");
        let intervals = (0..intervals).map(|_| Mutex::new(empty())).collect();
        Self { intervals, values: Mutex::default(), errors: Counter::new(0) }
    }
    /// Returns the total size in bytes of the values that have not expired at the given time.
    pub(crate) fn live(&self, time_of_day: Duration) -> usize {
        let mut values = self.values.lock();
        values.retain(|_, (_, expiry)| *expiry > time_of_day);
        values.values().map(|(size, _)| size).sum()
    }
    pub(crate) fn intervals(&self) -> Vec<Histogram<u64>> {
        self.intervals.iter().map(|interval| interval.lock().clone()).collect()
    }
    pub(crate) fn errors(&self) -> u64 {
        self.errors.get()
    }
}

/// Starts the clients of one server; they run until the end of the day. `seed` must differ between servers.
pub(crate) fn start(
    runtime: &Runtime,
    address: SocketAddr,
    seed: u64,
    curve: Curve,
    start: Instant,
    server_measurements: &Arc<ServerMeasurements>,
) {
    for place in 0..CLIENTS {
        let client = Client {
            address,
            curve,
            start,
            needed_load: (place as f64 + 0.5) / CLIENTS as f64,
            // The clients of all servers send the same requests, at different times.
            request_rng: SmallRng::seed_from_u64(place as u64),
            arrival_rng: SmallRng::seed_from_u64(seed << 32 | place as u64),
            server_measurements: server_measurements.clone(),
        };
        runtime.spawn(client.run());
    }
}

struct Client {
    address: SocketAddr,
    curve: Curve,
    start: Instant,
    /// The client sends requests only when the load, as a fraction of the peak, is at least this high.
    needed_load: f64,
    request_rng: SmallRng,
    arrival_rng: SmallRng,
    server_measurements: Arc<ServerMeasurements>,
}

/// Draws a random number from an exponential distribution.
fn exponential(rng: &mut SmallRng, mean: f64) -> f64 {
    -mean * (1.0 - rng.random::<f64>()).ln()
}

impl Client {
    async fn run(mut self) {
        let mut due_time = Duration::ZERO;
        while due_time < self.curve.day {
            if Curve::load(self.curve.part(due_time)) < self.needed_load {
                due_time += self.curve.day / 400;
                sleep_until(self.start + due_time).await;
            } else if let Err(error) = self.connection(&mut due_time).await {
                eprintln!("{}: {error}", self.address);
                // Relaxed: the count publishes no other data.
                self.server_measurements.errors.add(1);
                due_time += Duration::from_millis(100);
            }
        }
    }

    /// Sends the requests of one connection, each at its scheduled time.
    async fn connection(&mut self, due_time: &mut Duration) -> Result<(), Error> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        let mut request = Vec::new();
        for _ in 0..REQUESTS {
            *due_time += Duration::from_secs_f64(exponential(&mut self.arrival_rng, 1.0 / self.curve.rate));
            let part = self.curve.part(*due_time);
            if part >= 1.0 || Curve::load(part) < self.needed_load {
                break;
            }
            request.clear();
            self.draw(*due_time, &mut request);
            sleep_until(self.start + *due_time).await;
            stream.write_all(&request).await?;
            receive(&mut stream).await?;
            let micros = (self.start + *due_time).elapsed().as_micros() as u64;
            let interval = (part * self.server_measurements.intervals.len() as f64) as usize;
            self.server_measurements.intervals[interval].lock().saturating_record(micros.max(1));
        }
        Ok(())
    }

    fn draw(&mut self, now: Duration, request: &mut Vec<u8>) {
        let key = self.request_rng.random_range(0..KEYS);
        let mut words = vec![b"GET".to_vec(), format!("key:{key}").into_bytes()];
        if self.request_rng.random_bool(0.5) {
            let (min, max) = SIZES;
            let size = (min * (max / min).powf(self.request_rng.random())) as usize;
            let mean = if self.request_rng.random_bool(0.1) { MEAN_LIFETIMES.1 } else { MEAN_LIFETIMES.0 };
            let days = exponential(&mut self.request_rng, mean);
            let life = self.curve.day.mul_f64(days).max(Duration::from_millis(1));
            words[0] = b"SET".to_vec();
            words.extend([vec![b'v'; size], b"PX".to_vec(), life.as_millis().to_string().into_bytes()]);
            self.server_measurements.values.lock().insert(key, (size, now + life));
        }
        request.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend(word);
            request.extend(b"\r\n");
        }
    }
}

/// Reads one complete reply: a status, a value, or the reply for a missing value.
async fn receive(stream: &mut BufReader<TcpStream>) -> Result<(), Error> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let unexpected_reply =
        || Error::new(ErrorKind::InvalidData, format!("unexpected reply of the server: {line:?}"));
    match line.trim_end().split_at_checked(1) {
        Some(("+", _)) => Ok(()),
        Some(("$", "-1")) => Ok(()),
        Some(("$", length)) => {
            let mut value = vec![0; length.parse::<usize>().map_err(|_| unexpected_reply())? + 2];
            stream.read_exact(&mut value).await?;
            value.ends_with(b"\r\n").then_some(()).ok_or_else(unexpected_reply)
        }
        _ => Err(unexpected_reply()),
    }
}
