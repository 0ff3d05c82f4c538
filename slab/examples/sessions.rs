//! Shows handles in a server, and how to check code that uses handles.
//!
//! The checked code manages sessions: requests use a session and a timer closes it, from any thread. A request names
//! its session by a handle, which arrives as a number from the network. A handle from the network may be stale or
//! invented. If a session is closed during a request, its object stays allocated until the request ends. Later requests
//! do not find the closed session, and a session never passes to another client.
//!
//! ```console
//! $ cargo run -p uslab --example sessions                                         # one run, on threads
//! $ RUSTFLAGS="--cfg loom" cargo test --profile loom -p uslab --example sessions  # every schedule
//! ```
//!
//! The models at the end of the file pass. If the planted bug is compiled in, one of the models fails.

use uslab::handle::{Handle, HandleCache, HandleError, WrapPolicy};
use uslab::sync::Ordering::Relaxed;
use uslab::sync::{AtomicU64, planted, tell};
use uslab::{AllocError, ObjectCache};

#[cfg(all(test, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

/// The state of a client's session. The object stays constructed when its session ends, and serves the next session.
struct Session {
    client: AtomicU64,
    served: AtomicU64,
}

struct SessionTable(HandleCache<Session>);

impl SessionTable {
    fn new() -> Result<Self, uslab::CacheError> {
        let construct = || Session { client: AtomicU64::new(0), served: AtomicU64::new(0) };
        ObjectCache::builder("session").ctor(construct).build_handles(WrapPolicy::Retire).map(Self)
    }

    /// Opens a session, and returns its number.
    fn open(&self, client: u64) -> Result<u64, HandleError<AllocError>> {
        let prepare = |session: &mut Session| {
            // Relaxed: the session is not shared yet.
            session.client.store(client, Relaxed);
            session.served.store(0, Relaxed);
        };
        Ok(self.0.alloc_with(prepare)?.to_bits())
    }

    /// Serves one request on an open session. Returns the session's client, and the index of the request among the
    /// session's requests. Returns `None` if the session was closed, or never existed.
    fn serve(&self, number: u64) -> Option<(u64, u64)> {
        let handle = Handle::from_bits(number)?;
        planted!("a session is looked up twice" => {
            // Each lookup is consistent, but the second lookup may fail.
            let client = self.0.get(handle)?.client.load(Relaxed);
            let served = self.0.get(handle).expect("the session must exist").served.fetch_add(1, Relaxed);
            return Some((client, served));
        });
        let session = self.0.get(handle)?;
        let served = session.served.fetch_add(1, Relaxed);
        tell!("serves request {served}");
        Some((session.client.load(Relaxed), served))
    }

    /// Closes a session. If several threads close a session concurrently, only one of the calls returns `true`.
    fn close(&self, number: u64) -> bool {
        Handle::from_bits(number).is_some_and(|handle| self.0.free(handle))
    }
}

/// A program that uses sessions; the models check the same code.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    if cfg!(loom) {
        return Err("a build with --cfg loom can only run tests: cargo test --example sessions".into());
    }
    const ROUNDS: u64 = 50_000;
    let sessions = SessionTable::new()?;
    let current = AtomicU64::new(sessions.open(0)?);
    let served = std::thread::scope(|scope| {
        let requests = [1, 2].map(|_| {
            scope.spawn(|| {
                let serve = |_| sessions.serve(current.load(Relaxed));
                (0..ROUNDS).filter_map(serve).count()
            })
        });
        for client in 1..=ROUNDS {
            let old = current.swap(sessions.open(client)?, Relaxed);
            if !sessions.close(old) || sessions.serve(old).is_some() {
                return Err("a session was served after it was closed".into());
            }
        }
        let served = requests.map(|thread| thread.join().map_err(|_| "a request panicked"));
        Ok::<_, Box<dyn std::error::Error>>(served[0]? + served[1]?)
    })?;
    let late_requests = 2 * ROUNDS - served as u64;
    println!(
        "{ROUNDS} sessions were opened and closed; {served} requests were served, {late_requests} requests came for closed sessions"
    );
    println!("objects constructed for all sessions: {}", sessions.0.info().objects);
    Ok(())
}

#[cfg(all(test, loom))]
mod models {
    use super::SessionTable;
    use uslab::Subsystem;
    use uslab::check::{Bound, Script, assert_caught, models, on_cpu};
    use uslab::sync::{Arc, thread};

    const TWO_PREEMPTIONS: Bound = Bound::Preemptions(2);

    /// A request runs while a timer closes its session, and while another client opens a session in the same slot.
    fn race_request_with_reopen(script: Script) {
        let sessions = Arc::new(SessionTable::new().unwrap());
        let number = sessions.open(1).unwrap();
        let other = sessions.clone();
        let timer = thread::spawn(move || {
            on_cpu(1);
            assert!(other.close(number));
            other.open(2).unwrap()
        });
        script.install();
        if let Some((client, served)) = sessions.serve(number) {
            assert_eq!((client, served), (1, 0), "the session belongs to the client");
        }
        let next = timer.join().unwrap();
        assert_eq!(sessions.serve(number), None, "a closed session must not be served");
        assert_eq!(sessions.serve(next), Some((2, 0)), "a new session has served no request");
        assert!(sessions.close(next) && !sessions.close(next));
        drop(sessions);
        let census = Subsystem::global().unwrap().check().unwrap();
        assert_eq!((census.used, census.slabs), (0, 0));
    }

    #[test]
    fn web_request_gets_its_session_or_none() {
        let name = "sessions: a request, a close, an open";
        models(name, TWO_PREEMPTIONS, 270, Script::all(0, 2, 2), race_request_with_reopen);
    }

    #[test]
    fn web_request_gets_its_session_or_none_under_loom() {
        let mut builder = uslab::check::loom::model::Builder::new();
        (builder.max_branches, builder.preemption_bound) = (10_000, Some(2));
        builder.check(|| race_request_with_reopen(Script::on(0)));
    }

    #[test]
    fn loom_detects_a_session_closed_between_two_lookups() {
        let bug = "a session is looked up twice";
        let property = "a request has its own session or none";
        assert_caught(
            bug,
            property,
            TWO_PREEMPTIONS,
            "the session must exist",
            [Script::on(0)],
            race_request_with_reopen,
        );
    }
}
