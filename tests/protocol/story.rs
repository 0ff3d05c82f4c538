//! Converts a counterexample to the trace format of models under loom, from which `uslab story FILE --html`
//! makes a page.

use crate::model::{Action, ActionKind, Mechanism, Op, Pc, Protocol, Stage, State, ThreadRole, inside};
use std::collections::BTreeMap;
use uslab_sim::story::{Change, Step, Story, VERSION};

type StateParts = BTreeMap<String, String>;

fn rounds(rounds: &[u8]) -> String {
    if rounds.is_empty() { "nothing".to_owned() } else { format!("{rounds:?}") }
}
fn set(rounds_in: u16) -> String {
    rounds(&(0..16).filter(|round| rounds_in >> round & 1 == 1).collect::<Vec<u8>>())
}

/// Returns the parts of a state that a trace shows.
fn parts(protocol: &Protocol, s: &State) -> StateParts {
    let mut parts = StateParts::new();
    let mut insert = |name: String, value: String| _ = parts.insert(name, value);
    for cpu in 0..usize::from(protocol.cpus) {
        let region = &s.regions[cpu];
        let stack = rounds(&region.places[..usize::from(region.len)]);
        let taken_rounds = rounds(&region.places[..usize::from(region.taken_count)]);
        insert(
            format!("CPU {cpu} stack"),
            if region.taken_count > 0 { format!("{stack}, taken: {taken_rounds}") } else { stack },
        );
        insert(format!("CPU {cpu} places"), format!("{} of {}", region.cap, region.limit));
        if protocol.mechanism == Mechanism::Rseq {
            insert(
                format!("CPU {cpu} region"),
                if s.detached >> cpu & 1 == 1 { "away" } else { "there" }.to_owned(),
            );
        }
    }
    let magazine = |magazine_rounds: &[u8; 2]| rounds(&magazine_rounds[..usize::from(protocol.capacity)]);
    let depot = s.depot.magazines().items().iter().map(magazine).collect::<Vec<_>>().join(" ");
    insert("depot".to_owned(), if depot.is_empty() { "nothing".to_owned() } else { depot });
    insert("supplier".to_owned(), set(s.supplier));
    let number = &s.number;
    insert("class".to_owned(), if number.limit > 0 { "open" } else { "closed" }.to_owned());
    insert("drains at work".to_owned(), number.drains.to_string());
    for (name, lock) in [("lock of drains", s.drains), ("lock of the depot", s.depot_lock)] {
        insert(
            name.to_owned(),
            lock.checked_sub(1).map_or("free".to_owned(), |holder| format!("thread {holder}'s")),
        );
    }
    for (thread, t) in s.threads.iter().enumerate().filter(|(thread, _)| *thread < protocol.roles.len()) {
        let mut held_rounds = t.held_rounds[..usize::from(t.held_count)].to_vec();
        held_rounds.extend(&t.carried[..usize::from(t.carried_count)]);
        held_rounds.extend((t.own_round > 0).then_some(t.own_round));
        insert(format!("thread {thread} has"), rounds(&held_rounds));
    }
    parts
}

fn section(stage: Stage) -> &'static str {
    match stage {
        Stage::Pop => "a pop",
        Stage::Rest | Stage::RestAgain => "a push of a batch",
        Stage::Push | Stage::PushAgain => "a push",
        Stage::Widen | Stage::WidenAgain => "a push that may get more places",
        Stage::Overflow => "a pop of a magazine",
    }
}

/// Describes an action in a sentence.
fn describe(protocol: &Protocol, before: &State, action: Action) -> String {
    let t = &before.threads[usize::from(action.thread)];
    let cpu = match action.act {
        ActionKind::On(cpu) => cpu,
        _ => t.cpu(),
    };
    let claims = protocol.mechanism == Mechanism::Claimed;
    match (action.act, t.pc) {
        (ActionKind::Begin(op), _) => match op {
            Op::Alloc => "begins an allocation",
            Op::Free => "begins a free",
            Op::Drain => "begins a drain",
            Op::Reap => "begins a reap",
            Op::Close => "closes the class",
            Op::Retire => "returns the number",
            Op::Fork => "begins a fork",
            Op::Resize => "changes the limit",
        }
        .to_owned(),
        (ActionKind::Abort, pc) => {
            format!("is interrupted in {}, which restarts", inside(pc).map_or("it", section))
        }
        (ActionKind::Child, _) => "continues as the child".to_owned(),
        (_, Pc::Enter(stage)) if claims && before.regions[usize::from(cpu)].claiming_thread() > 0 => {
            format!("finds the region of CPU {cpu} claimed, for {}", section(stage))
        }
        (_, Pc::Enter(stage)) => {
            let claim = if claims { "claims the region and " } else { "" };
            format!("{claim}begins {} on CPU {cpu}", section(stage))
        }
        (_, Pc::Read(_)) => format!("reads the stack of CPU {cpu}"),
        (_, Pc::Store(_)) => "gives the stack more places".to_owned(),
        (_, Pc::Write(_)) => "writes its rounds above the stack".to_owned(),
        (_, Pc::Commit(stage)) => format!("commits {}", section(stage)),
        (_, Pc::Leave(..)) => "releases its claim".to_owned(),
        (_, Pc::Look) => "misses, and checks if the class is open".to_owned(),
        (_, Pc::Fill) => "requests rounds from the supplier".to_owned(),
        (_, Pc::Flush) => "flushes its magazine to the supplier".to_owned(),
        (_, Pc::Bypass) => "flushes its round to the supplier".to_owned(),
        (_, Pc::IsOpen(_)) => format!("checks if the stack of CPU {cpu} is open"),
        (_, Pc::TryDrains(_)) => "tries the lock of drains".to_owned(),
        (_, Pc::Open(_)) => format!("opens the stack of CPU {cpu}, if allowed"),
        (_, Pc::Hint) => "checks if the depot has a magazine".to_owned(),
        (
            _,
            Pc::LockDepot
            | Pc::LockDepotToPut
            | Pc::LockToCloseDepot
            | Pc::LockForSurplus
            | Pc::LockDepotToFork,
        ) => "locks the depot".to_owned(),
        (_, Pc::Take) => "takes a magazine from the depot, if the depot has one".to_owned(),
        (_, Pc::Put) => "puts a magazine into the depot, if there is room".to_owned(),
        (_, Pc::LockDrains | Pc::LockToReopen | Pc::LockToLimit) => "locks the drains".to_owned(),
        (_, Pc::Close) => "closes the class temporarily".to_owned(),
        (_, Pc::Want) => format!("checks if it drains the stack of CPU {cpu}"),
        (_, Pc::Own) if claims => format!("claims the region of CPU {cpu} and takes its stack"),
        (_, Pc::Own) => format!("detaches the region of CPU {cpu}"),
        (_, Pc::Fence) => format!("fences CPU {cpu}"),
        (_, Pc::TakeStack) => format!("takes the stack of CPU {cpu}"),
        (_, Pc::PutBack) => format!("restores the region of CPU {cpu}"),
        (_, Pc::Claim) => "unlocks the drains".to_owned(),
        (_, Pc::LockToClaim) => "collects the rounds of its sweep, if they still exist".to_owned(),
        (_, Pc::GiveStack) => format!("finds its rounds of CPU {cpu}"),
        (_, Pc::ForgetTaken) => format!("begins to flush the rounds that it took from CPU {cpu}"),
        (_, Pc::GiveRound) => format!("flushes a round of CPU {cpu} to the supplier"),
        (_, Pc::Reopen) => "ends its drain of the class".to_owned(),
        (_, Pc::Surplus) => "reads the number of unused magazines".to_owned(),
        (_, Pc::Limit) => "sets the limit".to_owned(),
        (_, Pc::CloseDepot) => "closes the depot".to_owned(),
        (_, Pc::Retire) => "closes the class for good".to_owned(),
        (_, Pc::Forget) => "frees the class number for another owner".to_owned(),
        (_, Pc::Fork) => "has forked, and continues as the parent".to_owned(),
        (_, Pc::Idle | Pc::Gone) => "does nothing".to_owned(),
    }
}

/// Builds a trace from a path of canonical states. Canonical states may use different names for the same CPU or round;
/// the trace keeps one name for each.
pub(crate) fn trace_of(protocol: &Protocol, title: &str, path: &[State], end: &str) -> Story {
    let mut state = protocol.start();
    let mut known_parts = StateParts::new();
    let mut steps = vec![];
    for next_state in &path[1..] {
        let mut actions = vec![];
        protocol.actions(&state, &mut actions);
        let mut successors = actions.iter().map(|action| (*action, protocol.next(&state, *action)));
        let (action, after) = successors
            .find(|(_, after)| protocol.is_symmetric_to(after, next_state))
            .expect("the path must be one of the protocol");
        let new_parts = parts(protocol, &after);
        if steps.is_empty() {
            known_parts = parts(protocol, &state);
        }
        let changed = new_parts.iter().filter(|(part, value)| known_parts.get(*part) != Some(value));
        let change = |(part, after): (&String, &String)| Change {
            thing: 1,
            part: part.clone(),
            before: known_parts.get(part).cloned(),
            after: after.clone(),
        };
        let thread = usize::from(action.thread);
        let role = match if state.child { ThreadRole::User } else { protocol.roles[thread] } {
            ThreadRole::User => "user",
            ThreadRole::Drainer => "drain",
            ThreadRole::Reaper => "reaper",
            ThreadRole::Closer | ThreadRole::Successor => "owner",
            ThreadRole::Forker => "fork",
            ThreadRole::Resizer => "tuning",
        };
        steps.push(Step {
            thread: action.thread.to_string(),
            role: Some(role.to_owned()),
            did: describe(protocol, &state, action),
            changes: changed.map(change).collect(),
            at: None,
        });
        known_parts = new_parts;
        state = protocol.without_unread_values(&after);
    }
    Story {
        version: VERSION,
        title: title.to_owned(),
        steps,
        waiting: vec![],
        end: end.to_owned(),
        about: None,
    }
}
