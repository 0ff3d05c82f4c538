//! What a page calls. An instance has one engine, and all its state is in linear memory: a copy of that is a checkpoint.
//!
//! Texts and bytes pass through one buffer: [`room`] makes it for the caller to fill, [`text`] says where a result lies.

use crate::clock::{ClockError, Outcome, Profile, run_stream};
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

/// What lives as long as the instance.
struct State {
    engine: Box<dyn Play>,
    sample: Vec<f64>,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
    static DESIGN: RefCell<Option<Spec>> = const { RefCell::new(None) };
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn say(text: Vec<u8>) -> usize {
    TEXT.with_borrow_mut(|own| {
        *own = text;
        own.len()
    })
}

fn with<T: Default>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(|state| state.as_mut().map(f)).unwrap_or_default()
}

/// Room for so many bytes from the caller.
#[unsafe(no_mangle)]
extern "C" fn room(bytes: usize) -> *mut u8 {
    TEXT.with_borrow_mut(|text| {
        *text = vec![0; bytes];
        text.as_mut_ptr()
    })
}

/// Where the last result lies.
#[unsafe(no_mangle)]
extern "C" fn text() -> *const u8 {
    TEXT.with_borrow(|text| text.as_ptr())
}

/// Says who answers, before [`open`]: [`room`] was filled with a design and its knobs, as `--design` has them. 0 when there is
/// such a design, else the length of what is wrong. Without it the shipping allocator does.
#[unsafe(no_mangle)]
extern "C" fn design() -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    match String::from_utf8_lossy(&text).parse::<Spec>() {
        Ok(spec) => {
            DESIGN.set(Some(spec));
            0
        }
        Err(error) => say(error.to_string().into_bytes()),
    }
}

/// Makes the engine from the stream that [`room`] was filled with, on so many CPUs; 0: as many as that has. 0 when it worked, else the
/// length of what is wrong.
#[unsafe(no_mangle)]
extern "C" fn open(cpus: u32) -> usize {
    begin(stream(cpus))
}

/// The stream that [`room`] was filled with.
fn stream(cpus: u32) -> Result<Stream, String> {
    let bytes = TEXT.with_borrow_mut(core::mem::take);
    Stream::read(&bytes)
        .and_then(|stream| if cpus == 0 { Ok(stream) } else { stream.on(cpus) })
        .map_err(|error| error.to_string())
}

/// The same from a [script](crate::script).
#[unsafe(no_mangle)]
extern "C" fn open_script() -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    begin(script(&String::from_utf8_lossy(&text)).map_err(|error| error.to_string()))
}

fn begin(stream: Result<Stream, String>) -> usize {
    let opened = stream.and_then(|stream| {
        let design = DESIGN.take().unwrap_or_default();
        design.play(Box::leak(Box::new(stream))).map_err(|error| error.to_string())
    });
    match opened {
        Ok(engine) => {
            STATE.set(Some(State { engine, sample: Vec::new() }));
            0
        }
        Err(error) => say(error.into_bytes()),
    }
}

/// The lab's demos, as JSON; its length.
#[unsafe(no_mangle)]
extern "C" fn demos() -> usize {
    say(serde_json::to_vec(&demos::Name::ALL.map(demos::Name::about)).unwrap_or_default())
}

/// Runs a demo from its beginning: [`room`] was filled with its name and commands, a line each. The scenes after each command, as
/// JSON; the length. 0: there is no such demo, or no memory; a line that is no command is a scene that says so.
#[unsafe(no_mangle)]
extern "C" fn demo() -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    say(demos::play(&String::from_utf8_lossy(&text))
        .and_then(|scenes| serde_json::to_vec(&scenes).ok())
        .unwrap_or_default())
}

/// So many requests at random, the same for all demos that race: see [`Race`](demos::Race). As JSON; its length.
#[unsafe(no_mangle)]
extern "C" fn race(seed: u32, requests: u32) -> usize {
    let race = demos::race(seed.into(), requests as usize).ok();
    say(race.and_then(|race| serde_json::to_vec(&race).ok()).unwrap_or_default())
}

/// The labs of the course, with the numbers that a seed makes, as JSON; its length.
#[unsafe(no_mangle)]
extern "C" fn course(seed: u32) -> usize {
    say(serde_json::to_vec(&labs(seed)).unwrap_or_default())
}

/// What is right for a question, by its place from 0, of the lab whose name [`room`] was filled with: an [`Answer`](crate::course::Answer)
/// as JSON; its length. 0: there is no such question.
#[unsafe(no_mangle)]
extern "C" fn answer(seed: u32, question: usize) -> usize {
    let lab = TEXT.with_borrow_mut(core::mem::take);
    let right = course::answer(seed, &String::from_utf8_lossy(&lab), question);
    say(right.and_then(|right| serde_json::to_vec(&right).ok()).unwrap_or_default())
}

/// Makes the heap so much larger now, so that it does not grow later: going back cannot make linear memory smaller.
#[unsafe(no_mangle)]
extern "C" fn reserve(bytes: usize) {
    drop(core::hint::black_box(Vec::<u8>::with_capacity(bytes)));
}

/// What there is to know of the stream before it runs, as JSON; its length.
#[unsafe(no_mangle)]
extern "C" fn about() -> usize {
    let about =
        with(|State { engine, .. }| serde_json::to_vec(&About::from(engine.stream())).unwrap_or_default());
    say(about)
}

/// Runs up to an operation. 0 when it got there, else the length of what is wrong.
#[unsafe(no_mangle)]
extern "C" fn run(until: u32) -> usize {
    match with(|state| state.engine.run(until.into()).err()) {
        None => 0,
        Some(error) => say(error.to_string().into_bytes()),
    }
}

/// Runs up to an operation and writes the moment as JSON; its length. [`room`] was filled with the caches to be shown, four
/// bytes each. What the last operation did is told if it is one of this call.
#[unsafe(no_mangle)]
extern "C" fn view(until: u32) -> usize {
    let shown = TEXT.with_borrow_mut(core::mem::take);
    let shown: Vec<u32> = shown.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    say(with(|State { engine, .. }| {
        engine
            .view(until.into(), &shown)
            .ok()
            .and_then(|view| serde_json::to_vec(&view).ok())
            .unwrap_or_default()
    }))
}

/// Runs until something happens, and no further than to an operation. [`room`] was filled with an [`Until`](crate::until::Until) as JSON; the result is
/// what was [`Found`](crate::until::Found), or null, as JSON, and its length is returned. 0: there is no such thing to wait for.
#[unsafe(no_mangle)]
extern "C" fn run_until(end: u32) -> usize {
    let text = TEXT.with_borrow_mut(core::mem::take);
    say(with(|State { engine, .. }| {
        let until = serde_json::from_slice(&text).ok()?;
        serde_json::to_vec(&engine.run_until(&until, end.into()).ok()?).ok()
    })
    .unwrap_or_default())
}

/// Names of the cost profiles, as JSON; its length.
#[unsafe(no_mangle)]
extern "C" fn profiles() -> usize {
    let names: Vec<_> = Profile::own().map(|profile| profile.name).collect();
    say(serde_json::to_vec(&names).unwrap_or_default())
}

/// The stream that [`room`] was filled with, in virtual time, each CPU back to back: on so many CPUs, 0 as many as it has; at the prices
/// of a profile by its place in [`profiles`]. In place of [`open`], for an instance has the addresses of one machine. `{"Ok": ...}` with
/// an [`Outcome`], or `{"Err": ...}` with what is wrong, as JSON; its length.
#[unsafe(no_mangle)]
extern "C" fn back_to_back(cpus: u32, profile: usize) -> usize {
    let outcome = stream(cpus).and_then(|stream| {
        let profile = Profile::own().nth(profile).ok_or("no such profile")?;
        let pages = Pages::new(stream.cpus).map_err(|error| error.to_string())?;
        let run = BackToBack { pages: &pages, stream: &stream, profile: &profile };
        let outcome = DESIGN.take().unwrap_or_default().policy(run);
        outcome.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    });
    say(serde_json::to_vec(&outcome).unwrap_or_default())
}

/// A stream in virtual time, for whichever design.
struct BackToBack<'a> {
    pages: &'a Pages,
    stream: &'a Stream,
    profile: &'a Profile,
}

impl PolicyVisitor for BackToBack<'_> {
    type Out = Result<Outcome, ClockError>;

    fn visit<P: Policy>(self, knobs: P::Knobs) -> Self::Out {
        run_stream::<P>(self.pages, knobs, self.stream, self.profile)
    }
}

/// The hash of the last result.
#[unsafe(no_mangle)]
extern "C" fn text_hash() -> u64 {
    TEXT.with_borrow(|text| hash(text))
}

/// What each page of memory is, a byte a page; how many.
#[unsafe(no_mangle)]
extern "C" fn map() -> usize {
    TEXT.with_borrow_mut(|text| {
        with(|State { engine, .. }| engine.map(text));
        text.len()
    })
}

/// The sums for a time line: see [`Engine::sample`].
#[unsafe(no_mangle)]
extern "C" fn sample() -> *const f64 {
    STATE.with_borrow_mut(|state| {
        state.as_mut().map_or(core::ptr::null(), |State { engine, sample }| {
            engine.sample(sample);
            sample.as_ptr()
        })
    })
}

/// 0 if every object and page is where its state says, else the length of what is wrong.
#[unsafe(no_mangle)]
extern "C" fn check() -> usize {
    match with(|state| state.engine.check().err()) {
        None => 0,
        Some(violation) => say(violation.into_bytes()),
    }
}

/// A hash of a part of linear memory (`bytes` a multiple of 32), as a whole number below 2^53: who keeps checkpoints compares
/// these, and keeps no second copy of memory. Writes nothing, so that looking does not change what is looked at.
///
/// # Safety
/// The part lies in linear memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn page_hash(at: usize, bytes: usize) -> f64 {
    // SAFETY: by contract; nothing else runs meanwhile. All of linear memory is readable, and any bytes are numbers.
    let words =
        unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u64>(at), bytes / 8) };
    let mut lanes =
        [0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0x2545_f491_4f6c_dd1d];
    for four in words.as_chunks::<4>().0 {
        for (lane, word) in lanes.iter_mut().zip(four) {
            *lane = (*lane ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
        }
    }
    let mixed =
        lanes.iter().fold(0_u64, |h, lane| (h ^ lane ^ (lane >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53));
    (mixed >> 11) as f64
}
