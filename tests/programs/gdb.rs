//! Tests the gdb script on a core dump of the example server, and on live programs. The tests are skipped if gdb is
//! missing or is not permitted to trace other processes.

use crate::server::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use uslab_tests::{faulty_server, libuslab, libuslab_cache, server, workspace};

/// The message that gdb prints if it is not permitted to trace another process.
const NOT_PERMITTED: &str = "ptrace: Operation not permitted";

/// Returns a gdb command that loads the script and runs further commands.
fn gdb_command_with_script(arguments: &[&str], commands: &[&str]) -> Command {
    // A file is limited to 4 GiB, in units of 512 bytes, because a core that contains reserved memory would fill the
    // disk.
    let mut gdb = Command::new("sh");
    gdb.args(["-c", "ulimit -f 8388608 && exec \"$0\" \"$@\"", "gdb"]);
    gdb.args(["-batch", "-nx", "-iex", "set debuginfod enabled off", "-iex", "set auto-load no"]);
    gdb.args(arguments).args(["-ex", "source slab/gdb/uslab.py"]);
    gdb.args(commands.iter().flat_map(|command| ["-ex", command]));
    gdb.current_dir(workspace()).stdin(Stdio::null());
    gdb
}

/// Runs gdb and returns its output, or `None` if gdb is missing or is not permitted to trace.
fn gdb(arguments: &[&str], commands: &[&str]) -> Option<String> {
    let output = match gdb_command_with_script(arguments, commands).output() {
        Ok(output) if output.status.code() == Some(127) => {
            println!("SKIPPED: gdb is not installed");
            return None;
        }
        output => output.unwrap(),
    };
    let gdb_output = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains(NOT_PERMITTED) {
        println!("SKIPPED: gdb may not trace other processes: {errors}");
        return None;
    }
    println!("{gdb_output}{errors}");
    assert!(!errors.contains("Traceback") && !errors.contains("Error while executing"), "{errors}");
    Some(gdb_output + &errors)
}

/// Returns gdb commands that show the magazines of each CPU, even of CPUs on which the test may not run.
fn magazines() -> impl Iterator<Item = String> {
    let cpus = sysconf(SysconfVar::_NPROCESSORS_CONF).unwrap().unwrap();
    (0..cpus).map(|cpu| format!("uslab magazines {cpu}"))
}

/// Returns the table that the script printed after `echo NAME`: the text in the first column of each row, with the
/// row's numbers.
fn rows<'s>(gdb_output: &'s str, name: &str) -> BTreeMap<&'s str, Vec<usize>> {
    let mut lines = gdb_output.lines().skip_while(|line| *line != name).skip(1);
    assert!(lines.next().is_some_and(|header| header.starts_with("cache ")), "{gdb_output}");
    let cells = |line: &'s str| line.split_whitespace().collect::<Vec<_>>();
    let rows = lines.map(cells).take_while(|cells| cells.len() > 2);
    let numbers = |cells: &[&str]| cells.iter().filter_map(|cell| cell.parse().ok()).collect();
    rows.map(|cells| (cells[0], numbers(&cells[1..]))).collect()
}

/// Returns the word that follows the text `before` in the output.
fn word<'s>(gdb_output: &'s str, before: &str) -> &'s str {
    let (_, after_command) =
        gdb_output.split_once(before).unwrap_or_else(|| panic!("expected {before} in {gdb_output}"));
    after_command.split_whitespace().next().unwrap()
}

#[test]
fn gdb_commands_read_a_core_dump_of_the_server() {
    let running = Server::start(&["--threads", "2"]);
    let mut clients = [running.client(), running.client()];
    for key in 0..300 {
        clients[key % 2].send_words(&format!("set key:{key} {}", "v".repeat(100)));
    }
    // Each third key is deleted, so that some objects of each slab remain on every CPU.
    for key in (0..300).step_by(3) {
        clients[0].send_words(&format!("del key:{key}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let core = dir.path().join("core");
    // The server is stopped, because its reaper would take objects from the magazines while gdb starts.
    kill(Pid::from_raw(running.process.id().cast_signed()), Signal::SIGSTOP).unwrap();
    let pid = running.process.id().to_string();
    if gdb(&["-p", &pid], &[&format!("gcore {}", core.display())]).is_none() {
        return;
    }
    drop((clients, running));
    let (program, core) = (server(), core.display().to_string());
    let core = [program.to_str().unwrap(), &core];
    let commands = ["echo CACHES\\n", "uslab caches", "echo LEAKS\\n", "uslab leaks", "echo MAGAZINES\\n"];
    let commands = commands.into_iter().map(str::to_owned).chain(magazines()).collect::<Vec<_>>();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let gdb_output = gdb(&core, &commands).unwrap();

    // The columns: subsystem, in use, stacks, depots, free, size, full, partial, empty.
    let caches = rows(&gdb_output, "CACHES");
    assert_eq!((caches["entry"][1], caches["connection"][1]), (200, 2));
    assert!(
        caches["entry"][2] + caches["entry"][3] + caches["entry"][4] >= 100,
        "the objects of deleted keys must be free"
    );
    // The columns: subsystem, in use, bytes, unreachable.
    let leaks = rows(&gdb_output, "LEAKS");
    assert_eq!((leaks["entry"][1], leaks["entry"][3]), (200, 0), "all objects must be in the table");
    assert_eq!((leaks["connection"][1], leaks["connection"][3]), (2, 0));
    // Free buffers keep their memory.
    assert!(leaks.values().all(|row| row[3] == 0), "{leaks:?}");

    // One entry is the CPU's next to allocate, the other is an entry in use of the same slab. A slab may have no entry
    // in use, if the CPU held all its remaining objects.
    let (_, magazine_section) = gdb_output.split_once("MAGAZINES\n").unwrap();
    let entries = magazine_section.lines().filter(|line| line.starts_with("entry "));
    let (gdb_output, letters) = entries
        .flat_map(|line| line.split_whitespace().skip(3))
        .find_map(|next| {
            let gdb_output =
                gdb(&core, &[&format!("uslab whatis {next}+1"), &format!("uslab slab {next}")]).unwrap();
            assert!(
                gdb_output.contains(&format!("byte 1 of object {next} "))
                    && gdb_output.contains("on the stack of CPU "),
                "{gdb_output}"
            );
            let letters = gdb_output.lines().skip_while(|line| !line.starts_with("slab ")).skip(1);
            let letters: String = letters
                .take_while(|line| line.starts_with("0x"))
                .map(|line| &line[line.find(' ').unwrap() + 1..])
                .collect();
            letters.contains('U').then_some((gdb_output, letters))
        })
        .expect("a CPU's magazine must hold objects of a slab in use");
    assert_eq!(word(&gdb_output, "of cache "), "entry,");
    let slab = word(&gdb_output, "\nslab ");
    let used_position = letters.find('U').unwrap();
    let stride: usize = word(&gdb_output, "bytes each, ").parse().unwrap();
    let gdb_output = gdb(&core, &[&format!("uslab whatis {slab}+{}", used_position * stride)]).unwrap();
    assert!(gdb_output.contains(" of cache entry, subsystem 0: in use\n"), "{gdb_output}");
    assert!(gdb(&core, &["uslab whatis $sp"]).unwrap().contains("in no subsystem's pages"));
}

/// In this test, the server writes to a value that it has already freed, and then aborts. The core dump must show which
/// object was overwritten, and which objects were leaked before.
#[test]
fn gdb_finds_the_owner_of_overwritten_memory_in_cores() {
    let mut command = Command::new(faulty_server());
    // A small heap keeps the core small. The heap has room for the names of functions, which the report looks up in
    // debug information.
    let mut server = Server::start_server_command(
        command.args(["FZPU", "4096"]).env("USLAB_OPTIONS", "limit=256m").stderr(Stdio::piped()),
    );
    let mut client = server.client();
    let value = "v".repeat(100);
    client.send_words(&format!("SET key {value}"));
    client.send_words("MISTAKE leak");
    let dir = tempfile::tempdir().unwrap();
    let core = dir.path().join("core").display().to_string();
    let (pid, gcore) = (server.process.id().to_string(), format!("gcore {core}"));
    // The server continues under the debugger, which stops it when it aborts.
    let commands = ["echo ATTACHED\\n", "handle SIGUSR1 nostop", "continue", &gcore];
    let errors = dir.path().join("errors");
    let mut debugger = gdb_command_with_script(&["-p", &pid], &commands);
    debugger.stdout(Stdio::piped()).stderr(File::create(&errors).unwrap());
    let mut debugger = debugger.spawn().unwrap();
    let mut lines = BufReader::new(debugger.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line == "ATTACHED");
    client.is_answered("MISTAKE write_after_free");
    let mut replacements = (0..1000).flat_map(|n| [format!("SET other{n} {value}"), format!("DEL other{n}")]);
    assert!(replacements.any(|request| !client.is_answered(&request)), "the mistake was not detected");
    println!("{}", lines.collect::<Vec<_>>().join("\n"));
    let exit_status = debugger.wait().unwrap();
    let errors = std::fs::read_to_string(errors).unwrap();
    let mut report = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut report).unwrap();
    if exit_status.code() == Some(127) || errors.contains(NOT_PERMITTED) {
        println!("SKIPPED: gdb is not installed or may not trace other processes: {errors}");
        return;
    }
    assert!(Path::new(&core).exists(), "gdb wrote no core file: {errors}");
    println!("{report}core: {} KiB", std::fs::metadata(&core).unwrap().len() >> 10);

    let culprit = word(&report, "\nObject ");
    let (program, whatis, slab) =
        (faulty_server(), format!("uslab whatis {culprit}+7"), format!("uslab slab {culprit}"));
    let core = [program.to_str().unwrap(), &core];
    let gdb_output = gdb(&core, &[&whatis]).unwrap();
    assert!(gdb_output.contains(&format!(": byte 7 of object {culprit} (")), "{gdb_output}");
    assert_eq!(word(&gdb_output, "of cache "), "malloc-112,");
    let allocation_text =
        gdb_output.split_once("\nallocated by thread ").expect("the allocating function must be named").1;
    let (allocation_text, free_text) =
        allocation_text.split_once("\nfreed by thread ").expect("the freeing function must be named");
    assert!(allocation_text.contains("Store"), "{gdb_output}");
    assert!(free_text.contains("mistakes::removed") || free_text.contains("mistakes::make"), "{gdb_output}");

    let gdb_output = gdb(&core, &[&slab]).unwrap();
    let [start, distance] = ["\nslab 0x", "bytes each, "].map(|before| word(&gdb_output, before));
    let number = |hex: &str| usize::from_str_radix(hex.trim_start_matches("0x"), 16).unwrap();
    // Objects are between red zones, so none begins at the start of its slab.
    let offset = number(culprit) - number(start);
    assert!(offset % distance.parse::<usize>().unwrap() != 0, "{gdb_output}");
    let letters = gdb_output.lines().find(|line| line.starts_with("0x")).unwrap();
    assert_eq!(number(word(letters, "0x")), number(start) + offset % distance.parse::<usize>().unwrap());

    let magazines: Vec<_> = magazines().collect();
    let commands = ["echo CACHES\\n", "uslab caches", "echo LEAKS\\n", "uslab leaks", "echo MAGAZINES\\n"];
    let gdb_output =
        gdb(&core, &[&commands[..], &magazines.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    let gdb_output = gdb_output.unwrap();
    // Classes of the heap have the same names, in subsystem 0.
    let row = |table: &str, cache: &str| {
        let rows = gdb_output.split_once(&format!("{table}\n")).unwrap().1.lines().map(str::split_whitespace);
        let mut matching_rows =
            rows.map(Iterator::collect::<Vec<_>>).filter(|row| row.starts_with(&[cache, "1"]));
        matching_rows
            .next()
            .unwrap()
            .into_iter()
            .skip(2)
            .map(|cell| cell.parse().unwrap())
            .collect::<Vec<usize>>()
    };
    // The last column counts objects in quarantine.
    assert!((10..=4096 / 112).contains(row("CACHES", "malloc-112").last().unwrap()), "{gdb_output}");
    let [in_use, _, unreachable] = row("LEAKS", "malloc-256")[..] else { panic!("{gdb_output}") };
    // Some leaked objects may look reachable, because a stale word holds their address.
    assert!((50..60).contains(&in_use) && (40..=50).contains(&unreachable), "{gdb_output}");
    let (_, holders) =
        gdb_output.split_once("of cache malloc-256: unreachable\n").expect("some objects must be named");
    let holder =
        holders.split_once(" of them allocated by:\n").expect("the allocating function must be named").1;
    assert!(holder.lines().next().is_some_and(|line| line.contains("leak_entry")), "{gdb_output}");
}

/// Starts a C program with the libraries preloaded, and waits for the first line of its output.
fn preloaded(libraries: &[&Path], dir: &Path) -> Child {
    let (source, program) = (workspace().join("tests/programs/gdb.c"), dir.join("program"));
    let mut cc = Command::new("cc");
    // The option `-s` strips the program.
    cc.args(["-O1", "-s", "-o"]).arg(&program).arg(source).args(libraries);
    assert!(cc.status().expect("a C compiler").success());
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", std::env::join_paths(libraries).unwrap())
        .env("USLAB_OPTIONS", "reap=0,guard=0");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// Regression test: if another library's subsystem came first, the script ignored blocks of pages as roots; objects
/// that only these blocks referred to were reported as leaks.
#[test]
fn gdb_finds_leaks_with_a_stripped_library() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libuslab.so");
    std::fs::copy(libuslab(), &library).unwrap();
    assert!(Command::new("strip").arg(&library).status().expect("binutils").success());
    let cache = libuslab_cache();
    for libraries in [vec![&*library], vec![&*cache, &*library]] {
        let mut child = preloaded(&libraries, dir.path());
        let gdb_output = gdb(&["-p", &child.id().to_string()], &["echo LEAKS\\n", "uslab leaks malloc-320"]);
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        let Some(gdb_output) = gdb_output else { return };
        // The columns are: subsystem, in use, bytes, unreachable. Some leaked objects may look reachable, because a
        // stale word holds their address.
        let [total, in_use, _, unreachable] = rows(&gdb_output, "LEAKS")["malloc-320"][..] else {
            panic!("{gdb_output}")
        };
        assert_eq!(total, libraries.len() - 1, "{gdb_output}");
        assert!((1000..1100).contains(&in_use) && (450..=500).contains(&unreachable), "{gdb_output}");
        assert!(gdb_output.contains("of cache malloc-320: unreachable"));
    }
}

#[test]
fn gdb_commands_report_a_program_without_the_library() {
    let gdb_output = gdb(&["/bin/true"], &["uslab caches"]);
    assert!(gdb_output.is_none_or(|gdb_output| gdb_output.contains("uslab: no section .uslab")));
}
