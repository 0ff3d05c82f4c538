//! A client's connection: the client sends requests, possibly many at a time, and gets replies in order.

use super::buffer::Buffer;
use super::command::{NextAction, execute};
use super::memory::Memory;
use super::protocol::{Failure, Parser, Replies};
use super::store::Store;
use std::io::{self, Write};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// If the replies exceed this number of bytes, the server sends them before it executes the next request.
const SEND_THRESHOLD: usize = 32 << 10;

/// The state of one client's connection. An idle connection has no buffers for requests and replies. The next request
/// on the connection allocates new buffers.
pub(crate) struct Connection<M: Memory> {
    parser: Parser<M::Bytes>,
    input: Option<M::Object<Buffer<M::Bytes>>>,
    output: Option<M::Object<Buffer<M::Bytes>>>,
}

/// Result of answering the available requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerResult {
    /// The server has answered all available requests.
    All,
    /// More requests may be available, but the server should send the replies first.
    Some,
    /// The client will send no more requests.
    Last,
}

impl<M: Memory> Connection<M> {
    pub(crate) fn new_in(memory: M::Bytes) -> Self {
        Self { parser: Parser::new_in(memory), input: None, output: None }
    }
    /// Resets the connection to the state of a new connection, but keeps its memory.
    pub(crate) fn reset(&mut self) {
        self.parser.reset();
        (self.input, self.output) = (None, None);
    }

    /// Answers all complete requests in `input`.
    fn answer(&mut self, store: &Store<M>) -> io::Result<AnswerResult> {
        let (Some(input), Some(output)) = (&mut self.input, &mut self.output) else {
            return Ok(AnswerResult::All);
        };
        let mut replies = Replies(output);
        while replies.0.len() < SEND_THRESHOLD {
            if input.is_empty() {
                return Ok(AnswerResult::All);
            }
            let next_step = match self.parser.next(input.bytes()) {
                Ok(None) => return Ok(AnswerResult::All),
                Ok(Some(request)) => execute(store, request, &mut replies),
                Err(Failure::Malformed(why)) => {
                    replies.error(format_args!("ERR Protocol error: {why}")).map(|()| NextAction::Close)
                }
                Err(Failure::OutOfMemory) => Err(super::store::OutOfMemory),
            };
            match next_step {
                Ok(NextAction::GoOn) => {}
                Ok(NextAction::Close) => return Ok(AnswerResult::Last),
                Err(_) => return Err(io::ErrorKind::OutOfMemory.into()),
            }
            input.consume(self.parser.len());
            self.parser.reset();
        }
        Ok(AnswerResult::Some)
    }

    /// Answers all complete requests in `input`, and sends the replies.
    async fn reply(&mut self, store: &Store<M>, stream: &mut TcpStream) -> io::Result<AnswerResult> {
        loop {
            let answered = self.answer(store)?;
            if let Some(output) = &mut self.output {
                stream.write_all(output.bytes()).await?;
                output.reset();
            }
            if answered != AnswerResult::Some {
                return Ok(answered);
            }
        }
    }
}

pub(crate) async fn accept<M: Memory>(store: &'static Store<M>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(async {
                    // `TCP_NODELAY` sends a small reply without waiting for the next reply.
                    _ = stream.set_nodelay(true);
                    // An error on one connection must not affect the server.
                    _ = serve(store, stream).await;
                });
            }
            // If all descriptors are in use, wait for a client to disconnect.
            Err(error) => {
                _ = writeln!(io::stderr(), "server: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Waits until a connection is available, and then serves a client until it disconnects or sends an invalid
/// request.
///
/// # Errors
/// Returns an error if the connection breaks, or if memory for the connection is short.
async fn serve<M: Memory>(store: &Store<M>, mut stream: TcpStream) -> io::Result<()> {
    let memory = store.memory();
    // With `--max-clients`, the call waits for a free connection.
    let mut connection = memory.alloc_connection().await.map_err(io::Error::other)?;
    loop {
        stream.readable().await?;
        let buffer = || memory.alloc_buffer().map_err(io::Error::other);
        let Connection { input, output, .. } = &mut *connection;
        let input = match input {
            Some(input) => input,
            None => input.insert(buffer()?),
        };
        match input.receive(&stream) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                *output = Some(buffer()?);
                if connection.reply(store, &mut stream).await? == AnswerResult::Last {
                    return Ok(());
                }
                connection.output = None;
            }
            // The system reports a new socket as readable, and also a socket whose last bytes were
            // read.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        // A non-empty input contains a part of a request.
        if connection.input.as_ref().is_some_and(|input| input.is_empty()) {
            connection.input = None;
        }
    }
}
