//! The server's commands: a subset of Redis' commands on strings.

use super::memory::Memory;
use super::protocol::{Replies, ReplyResult, Request};
use super::store::{OutOfMemory, Store};
use allocator_api2_02::alloc::Allocator;

/// What the server does with the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    GoOn,
    Close,
}

/// The reason why a command could not increment a number.
enum IncrementError {
    NoNumber,
    OutOfMemory,
}
impl From<OutOfMemory> for IncrementError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'";
const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";

/// Replies `OK`, or an error if memory is short. After either reply the client's connection stays open.
fn reply_ok_or_error<A: Allocator>(
    result: Result<(), OutOfMemory>,
    replies: &mut Replies<'_, A>,
) -> ReplyResult {
    match result {
        Ok(()) => replies.push_status("OK"),
        Err(OutOfMemory) => replies.error(OUT_OF_MEMORY),
    }
}

/// Executes a request, and writes the reply.
///
/// # Errors
/// Returns an error if memory for the reply is short.
pub(crate) fn execute<M: Memory>(
    store: &Store<M>,
    request: Request<'_>,
    replies: &mut Replies<'_, M::Bytes>,
) -> Result<NextAction, OutOfMemory> {
    if request.len() == 0 {
        return Ok(NextAction::GoOn);
    }
    // The name of a command has at most this many bytes.
    let mut name = [0; 8];
    let length = request[0].len().min(8);
    name[..length].copy_from_slice(&request[0][..length]);
    name.make_ascii_uppercase();
    let name = if request[0].len() > 8 { &[] } else { &name[..length] };
    match (name, request.len()) {
        (b"GET", 2) => store.get(&request[1], |value| replies.string(value)),
        (b"SET", 3) => reply_ok_or_error(store.set(&request[1], &request[2]), replies),
        (b"SET", 4..) => replies.error("ERR syntax error: this server's SET takes no options"),
        (b"DEL", 2..) => replies.push_int(count_matching_keys(request, |key| store.remove(key))),
        (b"EXISTS", 2..) => {
            replies.push_int(count_matching_keys(request, |key| store.get(key, |value| value.is_some())))
        }
        (b"INCR", 2) => increase(store, &request[1], replies),
        (b"MGET", 2..) => {
            replies.push_array(request.len() - 1)?;
            for key in request.from(1) {
                store.get(key, |value| replies.string(value))?;
            }
            Ok(())
        }
        // The keys are set one after the other. If memory runs out, keys that are already set stay
        // set.
        (b"MSET", 3..) if !request.len().is_multiple_of(2) => {
            let mut pairs = (1..request.len()).step_by(2);
            reply_ok_or_error(pairs.try_for_each(|at| store.set(&request[at], &request[at + 1])), replies)
        }
        (b"DBSIZE", 1) => replies.push_int(store.len() as i64),
        (b"FLUSHALL", 1) => {
            store.clear();
            replies.push_status("OK")
        }
        (b"PING", 1) => replies.push_status("PONG"),
        (b"PING" | b"ECHO", 2) => replies.string(Some(&request[1])),
        (b"INFO", 1) => replies.string(Some(store.memory().info().as_bytes())),
        (b"INFO", 2) if request[1].eq_ignore_ascii_case(b"slabinfo") => {
            replies.string(Some(store.memory().slabinfo().as_bytes()))
        }
        // The server saves nothing. Load generators request the `save` setting and print it.
        (b"CONFIG", 3) if request[1].eq_ignore_ascii_case(b"get") => {
            let value: &[u8] = match &request[2] {
                b"save" => b"",
                b"appendonly" => b"no",
                _ => return replies.push_array(0).map(|()| NextAction::GoOn),
            };
            replies.push_array(2)?;
            replies.string(Some(&request[2]))?;
            replies.string(Some(value))
        }
        (b"QUIT", 1) => return replies.push_status("OK").map(|()| NextAction::Close),
        (
            b"GET" | b"SET" | b"DEL" | b"EXISTS" | b"INCR" | b"MGET" | b"MSET" | b"DBSIZE" | b"FLUSHALL"
            | b"PING" | b"ECHO" | b"INFO" | b"CONFIG" | b"QUIT",
            _,
        ) => replies.error(format_args!("ERR wrong arguments for '{}'", name.escape_ascii())),
        _ => {
            let shown_name = &request[0][..request[0].len().min(64)];
            replies.error(format_args!("ERR unknown command '{}'", shown_name.escape_ascii()))
        }
    }?;
    Ok(NextAction::GoOn)
}

/// Returns the number of keys in the request for which `what` returns `true`.
fn count_matching_keys(request: Request<'_>, mut what: impl FnMut(&[u8]) -> bool) -> i64 {
    request.from(1).filter(|key| what(key)).count() as i64
}

fn increase<M: Memory>(store: &Store<M>, key: &[u8], replies: &mut Replies<'_, M::Bytes>) -> ReplyResult {
    let mut number = 0;
    let increased = store.update(key, |value| {
        let text = value.map_or(Some("0"), |value| std::str::from_utf8(value).ok());
        let old: i64 = text.and_then(|text| text.parse().ok()).ok_or(IncrementError::NoNumber)?;
        number = old.checked_add(1).ok_or(IncrementError::NoNumber)?;
        Ok(number.to_string())
    });
    match increased {
        Ok(()) => replies.push_int(number),
        Err(IncrementError::NoNumber) => replies.error(NOT_A_NUMBER),
        Err(IncrementError::OutOfMemory) => replies.error(OUT_OF_MEMORY),
    }
}
