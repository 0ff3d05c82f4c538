//! Tests redis-server, which uses threads, forks with copy-on-write, and measures its memory with
//! `malloc_usable_size`.

use super::server::Server;
use super::{command, print_line, program, run, run_long_tests, text};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Redis {
    server: Server,
    socket: PathBuf,
    cli: PathBuf,
    dir: PathBuf,
    with_library: bool,
}

impl Redis {
    /// Starts a server with the data that an earlier server has saved in `dir`. The server uses `threads` threads to
    /// read and answer requests.
    fn start(redis: &Path, cli: &Path, dir: &Path, threads: usize, with_library: bool) -> Self {
        let socket = dir.join("socket");
        let settings = "--port 0 --save  --appendonly no --io-threads-do-reads yes --enable-debug-command yes \
                        --loglevel warning --rdb-key-save-delay 200 --io-threads";
        let mut server = command(redis, &settings.split(' ').collect::<Vec<_>>());
        server.arg(threads.to_string()).arg("--unixsocket").arg(&socket).arg("--dir").arg(dir);
        let mut stop = Command::new(cli);
        stop.arg("-s").arg(&socket).args(["shutdown", "nosave"]);
        let server = Server::start(server, stop, dir, with_library);
        let mut redis = Redis { server, socket, cli: cli.into(), dir: dir.into(), with_library };
        let is_ready = redis.command_sender("ping");
        redis.server.wait_until("redis answers", || is_ready() == "PONG\n");
        redis
    }

    /// Returns a function that sends `commands`, one per line, through a client and returns the answers; the client has
    /// the server's malloc.
    fn command_sender(&self, commands: &str) -> impl Fn() -> String + use<> {
        let file = tempfile::NamedTempFile::new_in(&self.dir).unwrap();
        std::fs::write(&file, commands).unwrap();
        let (cli, socket, with_library) = (self.cli.clone(), self.socket.clone(), self.with_library);
        move || {
            let stdin = File::open(&file).unwrap();
            text(&run(Command::new(&cli).arg("-s").arg(&socket).stdin(stdin), with_library).stdout)
        }
    }

    fn run_commands(&self, commands: &str) -> String {
        self.command_sender(commands)()
    }
}

/// Commands that run once for each key number I; they set every kind of value, in many sizes.
const KEY_COMMANDS: &str = "
set key:I IVALUE
append text:FEW VALUE.
setrange hole:SOME SIZE x
hset hash:FEW field:I VALUE.
rpush list:SOME I VALUE.
sadd set:FEW I mI
zadd sorted:FEW SIZE member:I
xadd stream:FEW SIZE-I name VALUE.
pfadd seen:FEW I
geoadd places FEW SOME place:I
";
/// Commands that run for some keys, and remove their values.
const KEY_REMOVAL_COMMANDS: &str = "
lpop list:SOME
unlink key:HALF
zpopmin sorted:FEW
hdel hash:FEW field:HALF
";
/// Queries whose answers depend on no clock, random seed or address.
const QUERY_COMMANDS: &str = "
sort set:FEW alpha
zrange sorted:FEW 0 -1 withscores
xrange stream:FEW - + count 50
hlen hash:FEW
strlen text:FEW
pfcount seen:FEW
lrange list:FEW 0 -1
bitcount hole:FEW
debug digest-value set:FEW
";
/// Queries with large answers; the last query returns a digest of all keys and values.
const LAST: &str = r#"
sunionstore all set:0 set:1 set:2 set:3
zunionstore both 2 sorted:1 sorted:2
copy hash:1 copy
lcs key:58 key:59 len
eval "local t = {} for i = 1, 20000 do t[i] = redis.sha1hex(i) end return redis.sha1hex(table.concat(t))" 0
unlink stream:3 text:3 hash:3
dbsize
debug digest
"#;
/// Commands that change data, with the same result each time.
const IDEMPOTENT_COMMANDS: &str = "
set key:I VALUE
setrange text:FEW SIZE x
hset hash:FEW field:I x
";

fn commands(script_text: &str, i: usize) -> String {
    let number = |n: usize| n.to_string();
    script_text
        .replace("VALUE", &"0123456789abcdef".repeat(i * 37 % 251))
        .replace("FEW", &number(i % 7))
        .replace("SOME", &number(i % 61))
        .replace("SIZE", &number(i * 13))
        .replace("HALF", &number(i / 2))
        .replace('I', &number(i))
}

fn script(keys: usize) -> String {
    let response_lines = (1..keys).map(|i| {
        commands(KEY_COMMANDS, i) + &commands(if i % 3 == 0 { KEY_REMOVAL_COMMANDS } else { "" }, i)
    });
    let first_queries = (0..7).map(|i| commands(QUERY_COMMANDS, i));
    response_lines.chain(first_queries).chain([LAST.into()]).collect()
}

struct Load {
    keys: usize,
    requests: usize,
    threads: usize,
}

/// Returns the answers to all commands, if all programs run under the same malloc.
fn answers(programs: [&Path; 3], load: &Load, with_library: bool) -> String {
    let [redis, cli, benchmark] = programs;
    let dir = tempfile::tempdir().unwrap();
    let mut server = Redis::start(redis, cli, dir.path(), load.threads, with_library);
    let mut replies = server.run_commands(&script(load.keys));
    let before = server.run_commands("debug digest");
    assert!(replies.len() > 50_000 && before.len() == 41 && replies.contains(&before), "{replies}");
    assert!(!replies.contains("ERR") && !replies.contains("WRONGTYPE"), "{replies}");

    // The child slowly writes the data as it was at the fork, while the parent changes all of it.
    replies += &server.run_commands("bgsave");
    let changes: String = (0..load.keys).map(|i| commands(IDEMPOTENT_COMMANDS, i)).collect();
    let [change, save] = [server.command_sender(&changes), server.command_sender("info persistence")];
    server.server.wait_until("the save ends", || {
        change();
        save().contains("rdb_bgsave_in_progress:0")
    });
    assert!(save().contains("rdb_last_bgsave_status:ok"));
    let new_digest = server.run_commands("debug digest");
    assert_ne!(before, new_digest);
    replies += &new_digest;
    server.server.end();

    let server = Redis::start(redis, cli, dir.path(), load.threads, with_library);
    assert_eq!(server.run_commands("debug digest"), before, "the saved keys must equal the keys in memory");
    // Another thread of the server frees the values.
    replies += &server.run_commands("flushall async");
    let mut clients =
        command(benchmark, &["--csv", "--threads", "2", "-n", &load.requests.to_string(), "-s"]);
    let output = run(clients.arg(&server.socket), with_library);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The other columns are times.
    let rows = text(&output.stdout);
    let names: Vec<_> = rows.lines().filter_map(|row| row.split("\",").next()).collect();
    assert!(names.len() > 15, "{rows}");
    replies += &names.join("\n");
    replies += &server.run_commands("dbsize\nllen mylist\nget counter:__rand_int__\ndebug digest\n");
    server.server.end();
    replies
}

#[test]
fn redis_output_is_unchanged_by_the_preloaded_library() {
    let (Some(redis), Some(cli), Some(benchmark)) =
        (program("redis-server"), program("redis-cli"), program("redis-benchmark"))
    else {
        return;
    };
    let mut loads = vec![Load { keys: 600, requests: 2000, threads: 1 }];
    if run_long_tests() {
        loads[0] = Load { keys: 5000, requests: 100_000, threads: 1 };
        // The number of requests is small, because these threads spin and wait for each other.
        loads.push(Load { keys: 600, requests: 2000, threads: 2 });
    }
    for load in loads {
        let [without_library, with_library] =
            [false, true].map(|with_library| answers([&redis, &cli, &benchmark], &load, with_library));
        for (with_library, without_library) in with_library.lines().zip(without_library.lines()) {
            assert_eq!(with_library, without_library);
        }
        assert_eq!(with_library.len(), without_library.len());
        let (bytes, operation) = (with_library.len(), "a save, a load and redis-benchmark");
        print_line(&format!(
            "preload: redis, {operation}: the same {bytes} bytes with and without the library"
        ));
    }
}
