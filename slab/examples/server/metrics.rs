//! Prometheus metrics of the server's heaps and of tokio's runtime.

use super::memory::Memory;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge};
use prometheus_client::registry::Registry;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Handle, RuntimeMetrics};
use uslab::prometheus::Heaps;

pub(crate) fn registry<M: Memory>(memory: M) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Heaps::new(move || {
        let mut heaps = memory.heaps();
        heaps.extend(uslab::process::heaps());
        heaps
    })));
    registry.register_collector(Box::new(Runtime(Handle::current().metrics())));
    registry
}

#[derive(Debug)]
struct Runtime(RuntimeMetrics);

impl Collector for Runtime {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name, help, value: usize| {
            ConstGauge::new(value as u64).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?)
        };
        gauge("tokio_workers", "Threads that run tasks", self.0.num_workers())?;
        gauge("tokio_alive_tasks", "Tasks that have not finished", self.0.num_alive_tasks())?;
        gauge("tokio_global_queue_tasks", "Tasks in the global queue", self.0.global_queue_depth())?;
        let busy: f64 =
            (0..self.0.num_workers()).map(|i| self.0.worker_total_busy_duration(i).as_secs_f64()).sum();
        let (name, help) = ("tokio_busy_seconds", "Total time that all workers spent on tasks");
        ConstCounter::new(busy).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

pub(crate) async fn serve(listener: TcpListener, registry: Registry) {
    let registry = Arc::new(registry);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => _ = tokio::spawn(answer(stream, registry.clone())),
            // If all descriptors are in use, wait for a client to disconnect.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Sends the metrics page as the response to any request. The server first reads the whole request, because closing a
/// socket with unread bytes would reset the connection.
async fn answer(mut stream: TcpStream, registry: Arc<Registry>) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if request.len() > 8192 || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let mut page = String::new();
    text::encode(&mut page, &registry).map_err(io::Error::other)?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(page.as_bytes()).await?;
    stream.shutdown().await
}
