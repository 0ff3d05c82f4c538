//! The server's commands, and the additional command `MISTAKE`.

#[path = "../../../slab/examples/server/command.rs"]
mod redis;

use super::memory::Memory;
use super::protocol::{Replies, Request};
use super::store::{OutOfMemory, Store};
// The server's own source expects these modules here.
use super::{memory, protocol, store};

pub(crate) use redis::NextAction;

#[inline(never)]
pub(crate) fn execute<M: Memory>(
    store: &Store<M>,
    request: Request<'_>,
    replies: &mut Replies<'_, M::Bytes>,
) -> Result<NextAction, OutOfMemory> {
    if request.len() == 2 && request[0] == *b"MISTAKE" {
        let is_known = super::mistakes::make(store, &request[1], replies.0);
        return if is_known { replies.push_status("OK") } else { replies.error("ERR unknown mistake") }
            .map(|()| NextAction::GoOn);
    }
    redis::execute(store, request, replies)
}
