//! Tests the example server over sockets: requests in one or many pieces, large and invalid requests, many
//! clients, the memory limit, and the statistics of its caches. If `redis-benchmark` is installed, it puts
//! load on the server.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};
use uslab_tests::server;

/// A time limit that no request reaches, even if the machine is busy.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server that listens on a free port; dropping this value kills the server.
pub(crate) struct Server {
    pub(crate) process: Child,
    address: SocketAddr,
    /// The output of the server until it began to listen.
    output: String,
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_server_command(Command::new(server()).args(["--listen", "127.0.0.1:0"]).args(options))
    }
    /// Starts a program, which must print the address on which it listens.
    pub(crate) fn start_server_command(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let (mut listen_output, mut address) = (String::new(), None);
        while address.is_none() {
            let line = lines.next().expect("the server must listen");
            address = line.strip_prefix("listening on ").map(|address| address.parse().expect(&line));
            listen_output += &line;
        }
        Self { process, address: address.unwrap(), output: listen_output }
    }
    pub(crate) fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Client { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
}
use Reply::*;

fn string(text: &str) -> Reply {
    Bulk(text.into())
}

pub(crate) struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

/// Formats a request in the form that clients send.
fn request(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n", argument.len()).bytes());
        bytes.extend(*argument);
        bytes.extend(b"\r\n");
    }
    bytes
}

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.strip_suffix("\r\n").expect("the server must send a whole line").to_owned()
    }
    fn reply(&mut self) -> Reply {
        let line = self.line();
        let (kind, payload) = line.split_at(1);
        match (kind, payload.parse::<i64>()) {
            ("+", _) => Status(payload.to_owned()),
            ("-", _) => Error(payload.to_owned()),
            (":", Ok(number)) => Integer(number),
            ("$" | "*", Ok(-1)) => Nil,
            ("$", Ok(length)) => {
                let mut bytes = vec![0; length as usize + 2];
                self.reader.read_exact(&mut bytes).unwrap();
                assert_eq!(bytes.split_off(length as usize), b"\r\n");
                Bulk(bytes)
            }
            ("*", Ok(length)) => Array((0..length).map(|_| self.reply()).collect()),
            _ => panic!("not a reply: {line:?}"),
        }
    }
    fn bytes(&mut self, arguments: &[&[u8]]) -> Reply {
        self.send(&request(arguments));
        self.reply()
    }
    /// Sends a request to a server that may abort; the words of the text become the arguments. Returns `true` if the
    /// server answered.
    pub(crate) fn is_answered(&mut self, words: &str) -> bool {
        let arguments: Vec<_> = words.split(' ').map(str::as_bytes).collect();
        let write_result = self.stream.write_all(&request(&arguments));
        let answered = write_result.is_ok() && self.reader.fill_buf().is_ok_and(|bytes| !bytes.is_empty());
        if answered {
            self.reply();
        }
        answered
    }
    /// Sends a request; the words of the text become the arguments.
    pub(crate) fn send_words(&mut self, words: &str) -> Reply {
        let arguments: Vec<_> = words.split(' ').map(str::as_bytes).collect();
        self.bytes(&arguments)
    }
    /// Returns `true` if the server has closed the connection.
    fn is_closed(&mut self) -> bool {
        match self.reader.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
    fn info(&mut self, section: &str) -> String {
        match self.send_words(section) {
            Bulk(bytes) => String::from_utf8(bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    /// Returns the number in the field `field` of the named line of `INFO`; 0 if the line does not exist.
    fn number(&mut self, line: &str, field: &str) -> u64 {
        let info = self.info("INFO");
        let Some(fields) = info.lines().find_map(|info_line| info_line.strip_prefix(line)?.strip_prefix(':'))
        else {
            return 0;
        };
        let value = fields.split(',').find_map(|pair| pair.strip_prefix(field)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("expected {field} in {fields}")).parse().unwrap()
    }
    /// Returns the number of objects in use in the caches that hold data: entries, strings, and blocks of pages.
    fn data_objects_in_use(&mut self) -> u64 {
        let info = self.info("INFO");
        let lines = info.lines().filter(|line| line.starts_with("data_"));
        let used_objects = lines
            .map(|line| line.split_once(":used=").expect(line).1.split(',').next().unwrap().parse::<u64>());
        used_objects.map(Result::unwrap).sum()
    }
}

/// Waits until `is_done` returns `true`, which can take one or two reap intervals.
fn wait(condition: &str, mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < TIMEOUT, "timeout: the condition `{condition}` does not hold");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a test with both memory sources of the server, which must give the same answers.
fn run_with_both_memory_sources(test: impl Fn(&Server)) {
    for memory in ["uslab", "box"] {
        println!("--memory {memory}");
        test(&Server::start(&["--memory", memory]));
    }
}

/// A single Prometheus page contains the statistics of the caches and tokio's own statistics. The Prometheus page does
/// not describe the C library's malloc, which the program also uses.
#[test]
fn server_metrics_web_page_includes_caches_and_tokio() {
    let server = Server::start(&["--threads", "2", "--metrics", "127.0.0.1:0"]);
    let mut client = server.client();
    assert_eq!(client.send_words("SET key value"), Status("OK".into()));
    let address =
        server.output.strip_prefix("metrics on http://").and_then(|text| text.split('/').next()).unwrap();
    let scrape = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, page) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", page.len())), "{head}");
        assert!(page.ends_with("# EOF\n"), "{page}");
        page.to_owned()
    };
    let pages = [scrape(), scrape()];
    for line in [
        r#"uslab_cache_objects{heap="clients",cache="connection",place="used"} 1"#,
        r#"uslab_cache_objects{heap="data",cache="entry",place="used"} 1"#,
        r#"uslab_cache_allocs_total{heap="data",cache="entry"} 1"#,
        "# TYPE uslab_zone_bytes gauge",
        "tokio_workers 2",
    ] {
        assert!(pages[1].lines().any(|other| other == line), "expected {line} in\n{}", pages[1]);
    }
    assert!(pages[1].contains("tokio_busy_seconds_total "));
    assert!(!pages[1].contains(r#"heap="malloc""#), "the program must use another malloc");
    assert_eq!(client.send_words("GET key"), string("value"));
}

#[test]
fn server_answers_requests_with_slab_debugging_enabled() {
    let server = Server::start(&["--slab-debug", "FZPU,entry;FZP"]);
    let mut client = server.client();
    for n in 0..300_usize {
        let (key, value) = (format!("key{}", n % 50), "v".repeat(n * n % 5000));
        assert_eq!(client.bytes(&[b"SET", key.as_bytes(), value.as_bytes()]), Status("OK".into()));
        assert_eq!(client.send_words(&format!("GET {key}")), string(&value));
    }
    let slabinfo = client.info("INFO slabinfo");
    let of_entries = slabinfo.lines().find(|line| line.starts_with("entry ")).unwrap();
    assert_eq!(
        of_entries.split_whitespace().nth(3),
        Some("64"),
        "an entry has 48 bytes and red zones: {of_entries}"
    );
    assert_eq!(client.send_words("FLUSHALL"), Status("OK".into()));
}

/// More clients connect than the server allows; when one client disconnects, the server serves a waiting client. The
/// server may serve clients in any order, so each client disconnects after its answer.
#[test]
fn clients_beyond_the_connection_limit_wait() {
    let server = Server::start(&["--max-clients", "100"]);
    // The number of clients exceeds the served ones, but not the files that a process may open.
    let mut clients: Vec<_> = (0..400).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| client.send(b"*1\r\n$4\r\nPING\r\n"));
    let once = Once::new();
    std::thread::scope(|scope| {
        for (i, mut client) in clients.into_iter().enumerate() {
            let once = &once;
            scope.spawn(move || {
                assert_eq!(client.reply(), Status("PONG".into()), "client {i}");
                // No client disconnects before this point.
                once.call_once(|| {
                    let served_clients = client.number("clients_connection", "used");
                    assert!(served_clients <= 103, "{served_clients} clients were served simultaneously");
                });
            });
        }
    });
}

#[test]
fn server_executes_each_command() {
    run_with_both_memory_sources(|server| {
        let mut client = server.client();
        let ok = || Status("OK".into());
        let error_reply = |text: &str| Error(text.into());
        let dialogue = [
            ("PING", Status("PONG".into())),
            ("ping hello", string("hello")),
            ("ECHO hello", string("hello")),
            ("GET a", Nil),
            ("SET a 1", ok()),
            ("GET a", string("1")),
            ("set a two", ok()),
            ("GET a", string("two")),
            ("INCR a", error_reply("ERR value is not an integer or out of range")),
            ("INCR n", Integer(1)),
            ("INCR n", Integer(2)),
            ("SET n 9223372036854775807", ok()),
            ("INCR n", error_reply("ERR value is not an integer or out of range")),
            ("GET n", string("9223372036854775807")),
            ("MSET b 2 c 3", ok()),
            ("MGET a b x c", Array(vec![string("two"), string("2"), Nil, string("3")])),
            ("EXISTS a b x a", Integer(3)),
            ("DBSIZE", Integer(4)),
            ("DEL a x b", Integer(2)),
            ("DBSIZE", Integer(2)),
            ("CONFIG GET save", Array(vec![string("save"), string("")])),
            ("CONFIG GET whatever", Array(vec![])),
            ("SET a", error_reply("ERR wrong arguments for 'SET'")),
            ("MSET a 1 b", error_reply("ERR wrong arguments for 'MSET'")),
            ("SET a 1 EX 10", error_reply("ERR syntax error: this server's SET takes no options")),
            ("LPUSH a 1", error_reply("ERR unknown command 'LPUSH'")),
            ("FLUSHALLXX", error_reply("ERR unknown command 'FLUSHALLXX'")),
            ("FLUSHALL", ok()),
            ("DBSIZE", Integer(0)),
            ("QUIT", ok()),
        ];
        for (words, expected) in dialogue {
            assert_eq!(client.send_words(words), expected, "{words}");
        }
        assert!(client.is_closed());
    });
}

#[test]
fn server_accepts_requests_split_across_packets() {
    run_with_both_memory_sources(|server| {
        let mut client = server.client();
        // The bytes have two requests, with an inline one and an empty line between them, byte by byte.
        let mut bytes = request(&[b"SET", b"key", b"a\r\nb"]);
        bytes.extend(b"\r\nget key\r\n*0\r\n*-1\r\n");
        bytes.extend(request(&[b"GET", b"key"]));
        for byte in bytes {
            client.send(&[byte]);
        }
        assert_eq!(client.reply(), Status("OK".into()));
        assert_eq!([client.reply(), client.reply()], [string("a\r\nb"), string("a\r\nb")]);

        // Ten thousand requests are more than fit into a buffer or a socket.
        let mut other = client.stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            for n in 0..10_000 {
                let (key, value) = (format!("k{n}"), format!("{n}").repeat(n % 50));
                other.write_all(&request(&[b"SET", key.as_bytes(), value.as_bytes()])).unwrap();
                other.write_all(&request(&[b"GET", key.as_bytes()])).unwrap();
            }
        });
        for n in 0..10_000 {
            assert_eq!(client.reply(), Status("OK".into()));
            assert_eq!(client.reply(), string(&format!("{n}").repeat(n % 50)));
        }
        sender.join().unwrap();
        assert_eq!(client.send_words("DBSIZE"), Integer(10_001));
    });
}

#[test]
fn server_returns_large_values_unchanged() {
    run_with_both_memory_sources(|server| {
        let mut client = server.client();
        for length in [0, 1, 8191, 8193, 16 << 10, 1 << 20, 4 << 20] {
            let value: Vec<u8> = (0..length).map(|n| (n * 31 + n / 251) as u8).collect();
            assert_eq!(client.bytes(&[b"SET", b"large", &value]), Status("OK".into()));
            let Bulk(returned_text) = client.send_words("GET large") else { panic!("{length} bytes") };
            assert!(returned_text == value, "{length} bytes");
        }
        let keys: Vec<_> = (0..20_000).map(|n| format!("key{n}")).collect();
        let arguments = ["MSET".as_bytes()].into_iter().chain(keys.iter().flat_map(|k| [k.as_bytes(); 2]));
        assert_eq!(client.bytes(&arguments.collect::<Vec<_>>()), Status("OK".into()));
        let arguments = ["MGET".as_bytes()].into_iter().chain(keys.iter().map(|k| k.as_bytes()));
        let all = client.bytes(&arguments.collect::<Vec<_>>());
        assert_eq!(all, Array(keys.iter().map(|k| string(k)).collect()));
    });
}

#[test]
fn invalid_request_closes_only_its_connection() {
    run_with_both_memory_sources(|server| {
        let mut bystander = server.client();
        assert_eq!(bystander.send_words("SET a 1"), Status("OK".into()));
        let long = vec![b'x'; 70_000];
        let cases: [(&[u8], &str); 9] = [
            (b"*2\r\n:1\r\n", "expected '$', got ':'"),
            (b"*x\r\n", "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*99999999999999999999\r\n", "invalid multibulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$4194305\r\n", "invalid bulk length"),
            (b"*1\r\n$x\r\n", "invalid bulk length"),
            (b"*1\r\n$4\r\nPINGPING", "expected a line end"),
            (&long, "too big inline request"),
        ];
        for (bytes, expected) in cases {
            let mut client = server.client();
            client.send(bytes);
            let Reply::Error(text) = client.reply() else { panic!("{expected}") };
            assert!(text.starts_with("ERR Protocol error: ") && text.contains(expected), "{text}");
            assert!(client.is_closed(), "{expected}");
        }
        // The valid requests before an invalid one are executed.
        let mut client = server.client();
        client.send(&[&request(&[b"INCR", b"a"])[..], b"*1\r\n!\r\n"].concat());
        assert_eq!(client.reply(), Integer(2));
        assert!(matches!(client.reply(), Error(_)) && client.is_closed());
        // Some clients disconnect in the middle of a request, or of the replies.
        let mut client = server.client();
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100\r\nhalf");
        drop(client);
        let mut client = server.client();
        bystander.bytes(&[b"SET", b"b", &[7; 1 << 20]]);
        client.send(&request(&[b"GET", b"b"]).repeat(16));
        drop(client);
        assert_eq!(bystander.send_words("GET a"), string("2"));
    });
}

#[test]
fn disconnected_clients_leave_no_objects_in_use() {
    let server = Server::start(&["--threads", "4"]);
    let mut control = server.client();
    let clients: Vec<_> = (0..100).map(|_| server.client()).collect();
    wait("all clients are connected", || control.number("clients_connection", "used") == 101);
    std::thread::scope(|scope| {
        for (client_number, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                for n in 0..200 {
                    let (key, value) =
                        (format!("{client_number}:{}", n % 50), format!("{n}").repeat(n * 7 % 300));
                    assert_eq!(
                        client.bytes(&[b"SET", key.as_bytes(), value.as_bytes()]),
                        Status("OK".into())
                    );
                    assert_eq!(client.bytes(&[b"GET", key.as_bytes()]), string(&value));
                    assert!(matches!(client.send_words("INCR all"), Integer(_)));
                }
            });
        }
    });
    assert_eq!(control.send_words("GET all"), string("20000"));
    assert_eq!(control.send_words("DBSIZE"), Integer(5001));
    assert_eq!(control.number("data_entry", "used"), 5001);
    // Keys, values and tables are all allocated in these caches.
    assert!(control.data_objects_in_use() > 3 * 5001);
    let slabinfo = control.info("INFO slabinfo");
    for cache in ["entry", "buffer", "connection", "malloc-16"] {
        let row = slabinfo.lines().find(|line| line.split(' ').next() == Some(cache)).expect(cache);
        assert_ne!(row.split_whitespace().nth(2), Some("0"), "{row}");
    }

    // The client that sends INFO has two buffers and its connection.
    wait("all clients are disconnected", || control.number("clients_connection", "used") == 1);
    assert_eq!(control.number("clients_buffer", "used"), 2);
    assert_eq!(control.send_words("FLUSHALL"), Status("OK".into()));
    assert_eq!(control.data_objects_in_use(), 0);
    assert_eq!(control.number("data_entry", "used"), 0);
    // The reaper then returns the pages.
    wait("all slabs are freed", || control.number("data_entry", "slabs") == 0);
    wait("all pages are freed", || control.number("data", "bytes_from_system") == 0);
}

#[test]
fn idle_server_connection_holds_no_buffer() {
    const IDLE_CLIENTS: u64 = 200;
    let server = Server::start(&[]);
    let mut control = server.client();
    let mut clients: Vec<_> = (0..IDLE_CLIENTS).map(|_| server.client()).collect();
    wait("all clients are connected", || control.number("clients_connection", "used") == IDLE_CLIENTS + 1);
    // The client that sends INFO has two buffers.
    wait("a client that sent nothing has no buffer", || control.number("clients_buffer", "used") == 2);
    for client in &mut clients {
        assert_eq!(client.send_words("PING"), Status("PONG".into()));
    }
    wait("an answered client has no buffer", || control.number("clients_buffer", "used") == 2);
    // An incomplete request is kept in a buffer.
    clients[0].send(b"*1\r\n$4\r\nPI");
    wait("a client with an unfinished request has a buffer", || {
        control.number("clients_buffer", "used") == 3
    });
    clients[0].send(b"NG\r\n");
    assert_eq!(clients[0].reply(), Status("PONG".into()));
    wait("the client was answered", || control.number("clients_buffer", "used") == 2);
    assert_eq!(control.number("clients_connection", "used"), IDLE_CLIENTS + 1);
}

#[test]
fn client_can_delete_keys_at_the_memory_limit() {
    let server = Server::start(&["--max-memory", "16"]);
    let mut client = server.client();
    let value = vec![7; 3000];
    let mut stored_keys = 0;
    let refusal = loop {
        match client.bytes(&[b"SET", format!("key{stored_keys}").as_bytes(), &value]) {
            Status(_) => stored_keys += 1,
            other => break other,
        }
        assert!(stored_keys < 16 << 10, "the limit must refuse values well before 16,384 keys");
    };
    assert!(matches!(&refusal, Error(text) if text.starts_with("OOM ")), "{refusal:?}");
    assert!(stored_keys > 2000, "values must use most of the memory: {stored_keys} of 3000 bytes");
    assert_eq!(client.send_words("DBSIZE"), Integer(stored_keys));
    // A value that does not fit leaves the old value unchanged.
    assert!(matches!(client.bytes(&[b"SET", b"key0", &vec![1; 4 << 20]]), Error(_)));
    assert_eq!(client.send_words("GET key0"), Bulk(value.clone()));
    // Other clients can connect, read, and free memory.
    let mut other = server.client();
    assert_eq!(other.send_words("GET key1"), Bulk(value.clone()));
    for n in 0..stored_keys {
        assert_eq!(other.send_words(&format!("DEL key{n}")), Integer(1));
    }
    for n in 0..stored_keys / 2 {
        assert_eq!(client.bytes(&[b"SET", format!("again{n}").as_bytes(), &value]), Status("OK".into()));
    }
    assert_eq!(client.send_words("FLUSHALL"), Status("OK".into()));
    assert_eq!(client.data_objects_in_use(), 0);
}

#[test]
fn error_names_the_invalid_server_option() {
    let taken_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken_listener.local_addr().unwrap().to_string();
    let cases: [(&[&str], &str); 7] = [
        (&["--slab-debug", "Q"], "expected letters of FZPUTA"),
        (&["--memory", "box", "--slab-debug", "F"], "--slab-debug"),
        (&["--listen", "nowhere"], "--listen"),
        (&["--listen", &address], &address),
        (&["--memory", "paper"], "[possible values: uslab, box]"),
        (&["--max-memory", "1"], "--max-memory"),
        (&["--memory", "box", "--max-memory", "64"], "--max-memory"),
    ];
    for (options, expected) in cases {
        let output = Command::new(server()).args(options).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {error}");
        assert!(error.contains(expected) && output.stdout.is_empty(), "{options:?}: {error}");
    }
}

#[test]
fn redis_benchmark_completes_against_the_example_server() {
    if let Err(error) = Command::new("redis-benchmark").arg("--version").output() {
        // The line bypasses libtest's capture.
        _ = std::io::stdout().write_all(format!("server: skipped redis-benchmark: {error}\n").as_bytes());
        return;
    }
    run_with_both_memory_sources(|server| {
        let mut load = Command::new("redis-benchmark");
        load.args(["-h", "127.0.0.1", "-p", &server.address.port().to_string()]);
        load.args([
            "-t",
            "ping,set,get,incr,mset",
            "-n",
            "20000",
            "-r",
            "5000",
            "-P",
            "16",
            "-d",
            "300",
            "--csv",
        ]);
        let output = load.output().unwrap();
        let (text, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && !text.contains("rror"), "{text}{error}");
        for test in
            ["\"PING_INLINE\"", "\"PING_MBULK\"", "\"SET\"", "\"GET\"", "\"INCR\"", "\"MSET (10 keys)\""]
        {
            assert!(text.lines().any(|line| line.starts_with(test)), "{test}: {text}{error}");
        }
        let mut client = server.client();
        let Integer(keys) = client.send_words("DBSIZE") else { panic!("expected a number") };
        assert!(keys > 5000, "{keys} keys");
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert!(client.is_closed());
    });
}
