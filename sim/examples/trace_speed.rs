//! How fast a trace is read: parsing alone, then parsing and interpretation, in events a second.

use std::path::PathBuf;
use std::time::Instant;

use uslab_sim::trace::{Parser, Recording, Source, Tables, TraceError};

fn main() -> Result<(), TraceError> {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let tables = Tables::beside(&path)?;
        for _ in 0..3 {
            let start = Instant::now();
            let mut source = Source::open(&path)?;
            let mut bytes = 0;
            while let Some(chunk) = source.next_chunk()? {
                bytes += chunk.text.len();
            }
            let read = start.elapsed();

            let start = Instant::now();
            let mut source = Source::open(&path)?;
            let mut parser = Parser::new();
            let mut understood = 0_u64;
            while let Some(chunk) = source.next_chunk()? {
                let mut start = 0;
                for end in memchr::memchr_iter(b'\n', chunk.text) {
                    understood += u64::from(parser.parse(&chunk.text[start..end]).is_ok());
                    start = end + 1;
                }
            }
            let parse = start.elapsed();

            let start = Instant::now();
            let recording = Recording::open(&path)?;
            let events = recording.counts().events;
            let pass1 = start.elapsed();
            let mut ops = recording.resolve(tables.latest_slabinfo())?;
            let mut operations = 0_u64;
            while ops.next_op()?.is_some() {
                operations += 1;
            }
            let both = start.elapsed();
            let ns = |time: std::time::Duration| time.as_nanos() as f64 / events as f64;
            println!(
                "{}: {events} events, {bytes} bytes, {understood} lines, {operations} operations; ns/event: read {:.0}, \
                 + parse {:.0}, first pass {:.0}, both passes {:.0} ({:.2} M events/s)",
                path.display(),
                ns(read),
                ns(parse),
                ns(pass1),
                ns(both),
                1e3 / ns(both)
            );
        }
    }
    Ok(())
}
