//! The web page of a replay: one file, which contains the engine as WebAssembly and the replay's stream, and
//! loads nothing else.

use crate::web;
use anyhow::{Context, bail, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use std::io::Write;
use uslab_engine::{Engine, MAX_MACHINE_MEMORY, Machine, Shipping, Stream};

/// The template of the replay page, built from `sim/web` by `.ci/web --write`.
const TEMPLATE: &str = include_str!("../../web/built/replay.html");
/// The template of the web page that shows demos.
const FRONT: &str = include_str!("../../web/built/index.html");
/// The simulation engine, compiled to WebAssembly by `.ci/page --write`.
static ENGINE: &[u8] = include_bytes!("../../web/engine.wasm");

/// Runs the stream on the engine in this process, and then returns the web page as HTML. `command` is the command line
/// that produces this page's stream.
///
/// # Errors
/// Fails if the stream needs more memory than the simulated machine of the page, or if it breaks a conservation
/// invariant.
pub fn page(stream: &Stream, command: &str) -> anyhow::Result<String> {
    let most = MAX_MACHINE_MEMORY >> 20;
    let machine = Machine::new(stream).context("--html: the page's machine cannot start")?;
    let mut engine = Engine::new(Shipping::on(&machine), stream);
    engine.run(stream.operations).context("--html: the page's machine")?;
    ensure!(
        engine.failed() == 0,
        "--html: {} allocations of the trace fail: a page's machine has {most} MiB; expected a trace that needs less",
        engine.failed()
    );
    if let Err(violation) = engine.check() {
        bail!("--html: the page's simulated machine violates a conservation invariant: {violation}");
    }
    let command = web::attribute(command);
    let (engine, stream) = (packed(ENGINE)?, packed(&stream.write())?);
    Ok(web::page(TEMPLATE, &[("{engine}", &engine), ("{stream}", &stream), ("{command}", &command)]))
}

/// Returns the web page of demos, which needs no stream. `latency` is the output of `uslab lab latency`.
///
/// # Errors
/// Fails if the engine's WebAssembly cannot be compressed, which is not expected to happen.
pub fn front(latency: &impl Serialize) -> anyhow::Result<String> {
    Ok(web::page(FRONT, &[("{engine}", &packed(ENGINE)?), ("{latency}", &web::json(latency)?)]))
}

/// Compresses bytes with gzip, which browsers can unpack, and encodes the result in base 85.
fn packed(bytes: &[u8]) -> anyhow::Result<String> {
    let mut to = GzEncoder::new(Vec::new(), Compression::best());
    to.write_all(bytes)?;
    Ok(encode_base85(&to.finish()?))
}

/// Encodes four bytes as five printable ASCII characters; characters with a special meaning in HTML, strings
/// or templates are not used. An incomplete group at the end gives fewer characters.
fn encode_base85(bytes: &[u8]) -> String {
    let digits: Vec<u8> = (b'!'..=b'~').filter(|digit| !b"\"&'<>\\`{}".contains(digit)).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(4) * 5);
    for four in bytes.chunks(4) {
        let word = (0..4).fold(0, |word, i| word << 8 | u32::from(four.get(i).copied().unwrap_or(0)));
        for power in (0..5).rev().take(four.len() + 1) {
            text.push(digits[(word / 85_u32.pow(power) % 85) as usize].into());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use uslab_engine::Writer;
    use uslab_engine::stream::Kind;

    #[test]
    fn base85_has_five_digits_for_four_bytes() {
        let pairs: [(&[u8], &str); 5] = [
            (b"", ""),
            (&[0], "!!"),
            (&[0; 4], "!!!!!"),
            (&[0, 0, 0, 85, 1], "!!!#!!A"),
            (&[255; 4], "z;]0!"),
        ];
        for (bytes, text) in pairs {
            assert_eq!(encode_base85(bytes), text, "{bytes:?}");
        }
    }

    #[test]
    fn replay_web_page_is_self_contained() {
        let mut writer = Writer::new("a trace".to_owned(), 1);
        writer.begin(0);
        writer.cache("dentry".to_owned(), Kind::Named, 192);
        writer.alloc(0, 0, 8, 192);
        let page = page(&writer.finish(), "uslab replay 'a \"<b>\".txt'").unwrap();
        web::check(&page);
        for place in ["{engine}", "{stream}", "{command}"] {
            assert!(!page.contains(place), "the page must contain {place}");
        }
        assert!(page.contains("\"uslab replay 'a &quot;&lt;b>&quot;.txt'\""));
    }

    #[test]
    fn trace_too_large_for_a_web_page_is_refused() {
        let mut writer = Writer::new("a trace".to_owned(), 1);
        for block in 0..300 {
            writer.begin(0);
            writer.alloc_pages(0, block << 10, 10, 0);
        }
        let error = page(&writer.finish(), "uslab replay").unwrap_err().to_string();
        assert!(error.contains("a page's machine has 1024 MiB"), "{error}");
    }
}
