//! An example that checks code built on uslab, with the same kit that checks uslab itself.
//!
//! The checked code is a lock-free mailbox with room for one letter. A posted letter replaces a letter that was not
//! fetched yet. Letters are objects of a cache, and threads exchange their addresses.
//!
//! ```console
//! $ cargo run -p uslab --example check_your_code                                       # one run, on threads
//! $ RUSTFLAGS="--cfg loom" cargo test --profile loom -p uslab --example check_your_code  # every schedule
//! ```
//!
//! The models at the end of the file pass. If one of the two planted bugs is compiled into the mailbox, the models
//! fail. `STORY=1` prints the counterexample traces.

use core::ptr::{NonNull, null_mut};
use uslab::sync::Ordering::{AcqRel, Acquire};
use uslab::sync::{AtomicPtr, planted, tell};
use uslab::{AllocError, Gfp, KmemCache};

#[cfg(all(test, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

/// Address of the letter in the mailbox, or null if the mailbox is empty; the letter is an object of the cache.
struct Mailbox {
    letters: KmemCache,
    letter: AtomicPtr<u8>,
}

impl Mailbox {
    fn new() -> Result<Self, uslab::CacheError> {
        let letters = KmemCache::builder("letter", size_of::<u64>()).align(align_of::<u64>()).build()?;
        Ok(Self { letters, letter: AtomicPtr::new(null_mut()) })
    }

    /// Posts a letter. Returns the text of the letter that the new letter replaced, if any.
    fn post(&self, text: u64) -> Result<Option<u64>, AllocError> {
        let letter = self.letters.alloc(Gfp::KERNEL)?;
        // SAFETY: the object is large enough, aligned, and not shared yet.
        unsafe { letter.cast().write(text) };
        planted!("a message is posted without Release" => {
            return Ok(self.open(self.letter.swap(letter.as_ptr(), Acquire)));
        });
        // Release: pairs with the Acquire in `fetch`, which reads and frees the letter. Acquire: pairs with the Release
        // of the thread that posted the replaced letter.
        let replaced = self.letter.swap(letter.as_ptr(), AcqRel);
        tell!("posts {text}");
        Ok(self.open(replaced))
    }

    /// Takes the letter out of the mailbox.
    fn fetch(&self) -> Option<u64> {
        planted!("a message is taken without an atomic exchange" => {
            let letter = self.letter.load(Acquire);
            self.letter.swap(null_mut(), Acquire);
            return self.open(letter);
        });
        // Acquire: pairs with the Release in `post`.
        self.open(self.letter.swap(null_mut(), Acquire))
    }

    /// Reads and frees a letter, which the caller must own.
    fn open(&self, letter: *mut u8) -> Option<u64> {
        let letter = NonNull::new(letter)?;
        // SAFETY: `post` wrote the letter, and only the thread that swaps it out of the mailbox owns it.
        let text = unsafe { letter.cast().read() };
        tell!("opens {text}");
        // SAFETY: the letter was allocated from this cache, and the caller owns it.
        unsafe { self.letters.free(letter) };
        Some(text)
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.fetch();
    }
}

/// A program that uses the mailbox; the models check the same code.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    if cfg!(loom) {
        return Err("a build with --cfg loom can only run tests: cargo test --example check_your_code".into());
    }
    let mailbox = Mailbox::new()?;
    let fetched = std::thread::scope(|scope| {
        let fetcher = scope.spawn(|| (0..100_000).filter_map(|_| mailbox.fetch()).count());
        let mut replaced = 0;
        for text in 0..100_000 {
            replaced += u64::from(mailbox.post(text)?.is_some());
        }
        let fetched = fetcher.join().map_err(|_| "the fetcher panicked")?;
        Ok::<_, Box<dyn std::error::Error>>(fetched as u64 + replaced)
    })?;
    let remaining = u64::from(mailbox.fetch().is_some());
    println!("100000 letters were posted; {fetched} of them were fetched or replaced, {remaining} remained");
    println!("This run tried some schedules. To check all of them: RUSTFLAGS=\"--cfg loom\" cargo test ...");
    Ok(())
}

#[cfg(all(test, loom))]
mod models {
    use super::Mailbox;
    use uslab::Subsystem;
    use uslab::check::{Bound, Script};
    use uslab::sync::{Arc, scenarios, thread};

    const TWO_PREEMPTIONS: Bound = Bound::Preemptions(2);

    /// One thread posts two letters while two other threads fetch letters. The script determines when the posting
    /// thread moves to the other CPU.
    fn post_with_two_fetchers(script: Script) {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let fetchers = [0, 1].map(|cpu| {
            let mailbox = mailbox.clone();
            thread::spawn(move || {
                Script::on(cpu).install();
                mailbox.fetch()
            })
        });
        script.install();
        let replaced = [1, 2].map(|text| mailbox.post(text).unwrap());
        let mut seen: Vec<u64> = fetchers.into_iter().filter_map(|t| t.join().unwrap()).collect();
        seen.extend(replaced.into_iter().flatten());
        seen.extend(mailbox.fetch());
        seen.sort_unstable();
        assert_eq!(seen, [1, 2], "each letter is read once");
        // Dropping the last reference destroys the cache, and frees all its memory.
        drop(mailbox);
        let census = Subsystem::global().unwrap().check().unwrap();
        assert_eq!((census.used, census.slabs), (0, 0));
    }

    /// If two threads fetch concurrently, only one of them gets a letter.
    fn race_two_fetches_of_letter(script: Script) {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        mailbox.post(1).unwrap();
        let other = mailbox.clone();
        let fetcher = thread::spawn(move || {
            script.install();
            other.fetch()
        });
        let own_letter = mailbox.fetch();
        let other_letter = fetcher.join().unwrap();
        assert!(own_letter.xor(other_letter) == Some(1), "each letter is read once");
    }

    scenarios! {
        one_posts_and_two {
            loom("the mailbox: one posts, two fetch", Model::new(TWO_PREEMPTIONS, 940).each(Script::all(0, 2, 2)), post_with_two_fetchers);
            bug("a message is posted without Release", "each letter is read once", "Causality violation");
        }
        two_fetch {
            loom("mailbox: two threads fetch one letter", Model::new(TWO_PREEMPTIONS, 10).each(Script::all(0, 2, 2)), race_two_fetches_of_letter);
            bug("a message is taken without an atomic exchange", "each letter is read once", "object freed twice");
        }
    }
}
