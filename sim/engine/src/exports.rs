//! The functions of the WebAssembly module that a web page calls. A WebAssembly instance has one engine. All state of
//! the instance is in linear memory, so a copy of that memory is a checkpoint.
//!
//! Texts and bytes pass through one shared buffer in both directions. [`room`] resizes the buffer, which the caller
//! then fills, and [`text`] returns the buffer's address.

use crate::clock::{ClockError, Film, Outcome, Profile, Workload, film as run_film, run_stream};
use crate::course::{self, labs};
use crate::designs::{PolicyVisitor, Spec};
use crate::hash;
use crate::model::Policy;
use crate::pages::Pages;
use crate::play::Play;
use crate::script::script;
use crate::stream::Stream;
use crate::view::About;
use core::cell::RefCell;
use uslab_lab::demos;
use uslab_magazine::sync::thread_local;

/// The state of the WebAssembly instance, which is never freed.
struct State {
    engine: Box<dyn Play>,
    sample: Vec<f64>,
}

thread_local! {
    static ENGINE_STATE: RefCell<Option<State>> = const { RefCell::new(None) };
    static SELECTED_DESIGN: RefCell<Option<Spec>> = const { RefCell::new(None) };
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn return_text(text: Vec<u8>) -> usize {
    TEXT.with_borrow_mut(|buffer| {
        *buffer = text;
        buffer.len()
    })
}

fn with_state<T: Default>(f: impl FnOnce(&mut State) -> T) -> T {
    ENGINE_STATE.with_borrow_mut(|state| state.as_mut().map(f)).unwrap_or_default()
}

/// Resizes the buffer to `bytes` bytes and returns its address; the caller then fills the buffer.
#[unsafe(no_mangle)]
extern "C" fn room(bytes: usize) -> *mut u8 {
    TEXT.with_borrow_mut(|text| {
        *text = vec![0; bytes];
        text.as_mut_ptr()
    })
}

/// Returns the address of the last result in the buffer.
#[unsafe(no_mangle)]
extern "C" fn text() -> *const u8 {
    TEXT.with_borrow(|text| text.as_ptr())
}

/// Sets the design that [`open`] uses. The input in the buffer of [`room`] is a design and its options, in the form of
/// `--design`. Returns 0, or the length of an error message if the design is unknown. The default design is the
/// shipping allocator.
#[unsafe(no_mangle)]
extern "C" fn design() -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    match String::from_utf8_lossy(&text).parse::<Spec>() {
        Ok(spec) => {
            SELECTED_DESIGN.set(Some(spec));
            0
        }
        Err(error) => return_text(error.to_string().into_bytes()),
    }
}

/// Creates the engine from the stream in the buffer of [`room`], on `cpus` CPUs; if `cpus` is 0, uses the stream's
/// number of CPUs. Returns 0, or the length of an error message.
#[unsafe(no_mangle)]
extern "C" fn open(cpus: u32) -> usize {
    begin(stream(cpus))
}

/// Parses the stream in the buffer of [`room`].
fn stream(cpus: u32) -> Result<Stream, String> {
    let bytes = TEXT.with_borrow_mut(core::mem::take);
    Stream::read(&bytes)
        .and_then(|stream| if cpus == 0 { Ok(stream) } else { stream.with_cpus(cpus) })
        .map_err(|error| error.to_string())
}

/// Creates the engine as [`open`] does, but from a [script](crate::script) in the buffer of [`room`].
#[unsafe(no_mangle)]
extern "C" fn open_script() -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    begin(script(&String::from_utf8_lossy(&text)).map_err(|error| error.to_string()))
}

fn begin(stream: Result<Stream, String>) -> usize {
    let result = stream.and_then(|stream| {
        let design = SELECTED_DESIGN.take().unwrap_or_default();
        design.play(Box::leak(Box::new(stream))).map_err(|error| error.to_string())
    });
    match result {
        Ok(engine) => {
            ENGINE_STATE.set(Some(State { engine, sample: Vec::new() }));
            0
        }
        Err(error) => return_text(error.into_bytes()),
    }
}

/// Writes the lab's demos as JSON; returns the length.
#[unsafe(no_mangle)]
extern "C" fn demos() -> usize {
    return_text(serde_json::to_vec(&demos::Name::ALL.map(demos::Name::about)).unwrap_or_default())
}

/// Runs all commands of a demo, from the first. The input in the buffer of [`room`] is the demo's name and its
/// commands, one per line. Writes the scene after each command as JSON; returns the length of the JSON. Returns 0 if
/// the demo is unknown, or if memory is exhausted. For an invalid command, the scene contains an error message.
#[unsafe(no_mangle)]
extern "C" fn demo() -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    return_text(
        demos::play(&String::from_utf8_lossy(&text))
            .and_then(|scenes| serde_json::to_vec(&scenes).ok())
            .unwrap_or_default(),
    )
}

/// Generates a random script for the demo that the buffer of [`room`] names: see [`script`](demos::Name::script).
/// Writes the commands as JSON; returns the length of the JSON. Returns 0 if the demo is unknown or memory is
/// exhausted.
#[unsafe(no_mangle)]
extern "C" fn random_script(seed: u32, commands: usize) -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    let name = demos::Name::ALL.into_iter().find(|name| name.name().as_bytes() == text);
    let script = name.and_then(|name| name.script(seed.into(), commands).ok());
    let script = script.map(|script| script.iter().map(ToString::to_string).collect::<Vec<_>>());
    return_text(script.and_then(|script| serde_json::to_vec(&script).ok()).unwrap_or_default())
}

/// Generates one sequence of random requests, and runs it on every demo that can race: see [`Race`](demos::Race).
/// Writes the result as JSON; returns the length of the JSON.
#[unsafe(no_mangle)]
extern "C" fn race(seed: u32, requests: u32) -> usize {
    let race = demos::race(seed.into(), requests as usize).ok();
    return_text(race.and_then(|race| serde_json::to_vec(&race).ok()).unwrap_or_default())
}

/// Writes the labs of the course as JSON, with numbers that depend on the seed; returns the length.
#[unsafe(no_mangle)]
extern "C" fn course(seed: u32) -> usize {
    return_text(serde_json::to_vec(&labs(seed)).unwrap_or_default())
}

/// Finds the right answer to question number `question`, counted from 0, of the lab that the buffer of [`room`] names.
/// Writes an [`Answer`](crate::course::Answer) as JSON; returns the length. Returns 0 if the lab has no question with
/// this number.
#[unsafe(no_mangle)]
extern "C" fn answer(seed: u32, question: usize) -> usize {
    let lab = TEXT.with_borrow_mut(core::mem::take);
    let answer = course::answer(seed, &String::from_utf8_lossy(&lab), question);
    return_text(answer.and_then(|answer| serde_json::to_vec(&answer).ok()).unwrap_or_default())
}

/// Grows the heap by `bytes` bytes in advance: a restored checkpoint must fit, and linear memory cannot shrink.
#[unsafe(no_mangle)]
extern "C" fn reserve(bytes: usize) {
    drop(core::hint::black_box(Vec::<u8>::with_capacity(bytes)));
}

/// Writes a description of the stream before it runs, as JSON; returns the length.
#[unsafe(no_mangle)]
extern "C" fn about() -> usize {
    let crash_text = with_state(|State { engine, .. }| {
        serde_json::to_vec(&About::from(engine.stream())).unwrap_or_default()
    });
    return_text(crash_text)
}

/// Runs the stream up to an operation. Returns 0, or the length of an error message.
#[unsafe(no_mangle)]
extern "C" fn run(operation: u32) -> usize {
    match with_state(|state| state.engine.run(operation.into()).err()) {
        None => 0,
        Some(error) => return_text(error.to_string().into_bytes()),
    }
}

/// Runs the stream up to an operation and writes the state as JSON; returns the length. The input in the buffer of
/// [`room`] contains the numbers of the caches to show, four bytes each. The state includes the steps of the last
/// operation if this call ran the operation.
#[unsafe(no_mangle)]
extern "C" fn view(operation: u32) -> usize {
    let cache_numbers = TEXT.with_borrow_mut(core::mem::take);
    let cache_numbers: Vec<u32> =
        cache_numbers.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    return_text(with_state(|State { engine, .. }| {
        engine
            .view(operation.into(), &cache_numbers)
            .ok()
            .and_then(|view| serde_json::to_vec(&view).ok())
            .unwrap_or_default()
    }))
}

/// Runs the stream until a condition is met, or until operation `end` has run. The input in the buffer of [`room`] is
/// an [`Until`](crate::until::Until) as JSON. Writes the event that [met the condition](crate::until::Found), or null,
/// as JSON; returns the length of the JSON. Returns 0 if the condition cannot be parsed or the run fails.
#[unsafe(no_mangle)]
extern "C" fn run_until(end: u32) -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    return_text(
        with_state(|State { engine, .. }| {
            let operation = serde_json::from_slice(&text).ok()?;
            serde_json::to_vec(&engine.run_until(&operation, end.into()).ok()?).ok()
        })
        .unwrap_or_default(),
    )
}

/// Writes the names of the cost profiles as JSON; returns the length.
#[unsafe(no_mangle)]
extern "C" fn profiles() -> usize {
    let names: Vec<_> = Profile::built_in().map(|profile| profile.name).collect();
    return_text(serde_json::to_vec(&names).unwrap_or_default())
}

/// Runs the stream in the buffer of [`room`] in virtual time, without the recorded idle times of the CPUs. If `cpus` is
/// 0, uses the stream's number of CPUs. `profile` is an index into the list that [`profiles`] writes. A web page calls
/// this function instead of [`open`], because a WebAssembly instance has addresses for only one machine. Writes `{"Ok":
/// ...}` with an [`Outcome`], or `{"Err": ...}` with an error message, as JSON; returns the length.
#[unsafe(no_mangle)]
extern "C" fn back_to_back(cpus: u32, profile: usize) -> usize {
    let outcome = stream(cpus).and_then(|stream| {
        let profile = Profile::built_in().nth(profile).ok_or("unknown profile")?;
        let pages = Pages::new(stream.cpus).map_err(|error| error.to_string())?;
        let run = VirtualTimeRun { pages: &pages, stream: &stream, profile: &profile };
        let outcome = SELECTED_DESIGN.take().unwrap_or_default().policy(run);
        outcome.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    });
    return_text(serde_json::to_vec(&outcome).unwrap_or_default())
}

/// Runs a stream in virtual time on any design.
struct VirtualTimeRun<'a> {
    pages: &'a Pages,
    stream: &'a Stream,
    profile: &'a Profile,
}

impl PolicyVisitor for VirtualTimeRun<'_> {
    type Out = Result<Outcome, ClockError>;

    fn visit<P: Policy>(self, knobs: P::Knobs) -> Self::Out {
        run_stream::<P>(self.pages, knobs, self.stream, self.profile)
    }
}

/// The largest number of operations in a recorded run.
const MAX_FILM_OPERATIONS: u64 = 5000;

/// A page's request to record a run in virtual time. The fields have the meaning of the options with the same names of
/// `uslab scale`.
#[derive(serde::Deserialize)]
struct FilmRequest {
    cpus: u32,
    workload: String,
    profile: String,
    size: u32,
    ops: u64,
    think: u32,
    seed: u64,
}

/// Runs a generated workload in virtual time and records each operation. The input in the buffer of [`room`] is a
/// [`FilmRequest`] as JSON. A web page calls this function instead of [`open`], because a WebAssembly instance has
/// addresses for only one machine. Writes `{"Ok": ...}` with a [`Film`], or `{"Err": ...}` with an error message, as
/// JSON; returns the length.
#[unsafe(no_mangle)]
extern "C" fn film() -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    let filmed = serde_json::from_slice(&text).map_err(|error| error.to_string()).and_then(|request| {
        let FilmRequest { cpus, workload, profile, size, ops, think, seed } = request;
        if u64::from(cpus).saturating_mul(ops) > MAX_FILM_OPERATIONS {
            return Err(format!(
                "{ops} operations on each of {cpus} CPUs: expected at most {MAX_FILM_OPERATIONS} operations on all CPUs together"
            ));
        }
        let workload =
            workload.parse::<Workload>().map_err(|error| error.to_string())?.thinking(think.into());
        let profile = Profile::built_in().find(|own| own.name == profile).ok_or("unknown profile")?;
        let pages = Pages::new(cpus).map_err(|error| error.to_string())?;
        let run = FilmRecorder { pages: &pages, workload: &workload, profile: &profile, size, ops, seed };
        let film = SELECTED_DESIGN.take().unwrap_or_default().policy(run);
        film.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    });
    return_text(serde_json::to_vec(&filmed).unwrap_or_default())
}

/// Records a generated workload in virtual time on any design.
struct FilmRecorder<'a> {
    pages: &'a Pages,
    workload: &'a Workload,
    profile: &'a Profile,
    size: u32,
    ops: u64,
    seed: u64,
}

impl PolicyVisitor for FilmRecorder<'_> {
    type Out = Result<Film, ClockError>;

    fn visit<P: Policy>(self, knobs: P::Knobs) -> Self::Out {
        let Self { pages, workload, profile, size, ops, seed } = self;
        run_film::<P>(pages, knobs, workload, profile, size, ops, seed)
    }
}

/// Returns a hash of the last result in the buffer.
#[unsafe(no_mangle)]
extern "C" fn text_hash() -> u64 {
    TEXT.with_borrow(|text| hash(text))
}

/// Writes the kind of each page of memory, one byte each; returns the number of pages.
#[unsafe(no_mangle)]
extern "C" fn map() -> usize {
    TEXT.with_borrow_mut(|text| {
        with_state(|State { engine, .. }| engine.map(text));
        text.len()
    })
}

/// Returns the values of a time line: see [`Engine::sample`].
#[unsafe(no_mangle)]
extern "C" fn sample() -> *const f64 {
    ENGINE_STATE.with_borrow_mut(|state| {
        state.as_mut().map_or(core::ptr::null(), |State { engine, sample }| {
            engine.sample(sample);
            sample.as_ptr()
        })
    })
}

/// Checks all invariants of the design. Returns 0, or the length of an error message.
#[unsafe(no_mangle)]
extern "C" fn check() -> usize {
    match with_state(|state| state.engine.check().err()) {
        None => 0,
        Some(violation) => return_text(violation.into_bytes()),
    }
}

/// Hashes `bytes` bytes of linear memory; the result is an integer below 2^53. `bytes` must be a multiple of 32. A web
/// page with checkpoints compares these hashes instead of keeping a second copy of the memory. The function writes no
/// memory, so a call does not change the hash.
///
/// # Safety
/// The caller guarantees that the hashed range is inside linear memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn page_hash(address: usize, bytes: usize) -> f64 {
    // SAFETY: the caller guarantees that the part is inside linear memory, all of which is readable; any bytes are
    // valid numbers, and no other code runs during the call.
    let words =
        unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u64>(address), bytes / 8) };
    let mut lanes =
        [0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0x2545_f491_4f6c_dd1d];
    for word_group in words.as_chunks::<4>().0 {
        for (lane, word) in lanes.iter_mut().zip(word_group) {
            *lane = (*lane ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
        }
    }
    let mixed =
        lanes.iter().fold(0_u64, |h, lane| (h ^ lane ^ (lane >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53));
    (mixed >> 11) as f64
}
