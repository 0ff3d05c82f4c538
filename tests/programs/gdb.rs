//! The gdb script: on a core of the example server, made here, and on live programs. Without gdb, or where it may not look at other
//! processes, these tests are skipped.

use crate::server::Server;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use uslab_tests::{libuslab, server, workspace};

/// What gdb printed; `None` if it is not there, or not allowed to look.
fn gdb(arguments: &[&str], commands: &[&str]) -> Option<String> {
    // 4 GiB of a file, in units of 512 bytes: a core that has what is only reserved would fill the disk.
    let mut gdb = Command::new("sh");
    gdb.args(["-c", "ulimit -f 8388608 && exec \"$0\" \"$@\"", "gdb"]);
    gdb.args(["-batch", "-nx", "-iex", "set debuginfod enabled off", "-iex", "set auto-load no"]);
    gdb.args(arguments).args(["-ex", "source slab/gdb/uslab.py"]);
    gdb.args(commands.iter().flat_map(|command| ["-ex", command]));
    let output = match gdb.current_dir(workspace()).stdin(Stdio::null()).output() {
        Ok(output) if output.status.code() == Some(127) => {
            println!("SKIPPED: no gdb");
            return None;
        }
        output => output.unwrap(),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("ptrace: Operation not permitted") {
        println!("SKIPPED: gdb may not look at other processes: {errors}");
        return None;
    }
    println!("{said}{errors}");
    assert!(!errors.contains("Traceback") && !errors.contains("Error while executing"), "{errors}");
    Some(said + &errors)
}

/// The rows of a table that `uslab` printed behind `echo NAME`, by their first column; numbers of the others.
fn rows<'s>(said: &'s str, name: &str) -> BTreeMap<&'s str, Vec<usize>> {
    let mut lines = said.lines().skip_while(|line| *line != name).skip(1);
    assert!(lines.next().is_some_and(|header| header.starts_with("cache ")), "{said}");
    let cells = |line: &'s str| line.split_whitespace().collect::<Vec<_>>();
    let rows = lines.map(cells).take_while(|cells| cells.len() > 2);
    let numbers = |cells: &[&str]| cells.iter().filter_map(|cell| cell.parse().ok()).collect();
    rows.map(|cells| (cells[0], numbers(&cells[1..]))).collect()
}

/// The word behind `before`.
fn word<'s>(said: &'s str, before: &str) -> &'s str {
    let (_, behind) = said.split_once(before).unwrap_or_else(|| panic!("no {before} in {said}"));
    behind.split_whitespace().next().unwrap()
}

#[test]
fn a_core_of_the_server_is_read() {
    let running = Server::start(&["--threads", "2"]);
    let mut clients = [running.client(), running.client()];
    for key in 0..300 {
        clients[key % 2].say(&format!("set key:{key} {}", "v".repeat(100)));
    }
    for key in 0..100 {
        clients[0].say(&format!("del key:{key}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let core = dir.path().join("core");
    let pid = running.process.id().to_string();
    if gdb(&["-p", &pid], &[&format!("gcore {}", core.display())]).is_none() {
        return;
    }
    drop((clients, running));
    let (program, core) = (server(), core.display().to_string());
    let core = [program.to_str().unwrap(), &core];
    let cpus = std::thread::available_parallelism().unwrap().get();
    let magazines = (0..cpus).map(|cpu| format!("uslab magazines {cpu}"));
    let commands = ["echo CACHES\\n", "uslab caches", "echo LEAKS\\n", "uslab leaks", "echo MAGAZINES\\n"];
    let commands = commands.into_iter().map(str::to_owned).chain(magazines).collect::<Vec<_>>();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let said = gdb(&core, &commands).unwrap();

    // Subsystem, in use, stacks, depots, free, size, full, partial, empty.
    let caches = rows(&said, "CACHES");
    assert_eq!((caches["entry"][1], caches["connection"][1]), (200, 2));
    assert!(caches["entry"][2] + caches["entry"][3] + caches["entry"][4] >= 100, "those that were deleted");
    // Subsystem, in use, bytes, unreachable.
    let leaks = rows(&said, "LEAKS");
    assert_eq!((leaks["entry"][1], leaks["entry"][3]), (200, 0), "all are in the table");
    assert_eq!((leaks["connection"][1], leaks["connection"][3]), (2, 0));
    // Buffers that are free keep their memory.
    assert!(leaks.values().all(|row| row[3] == 0), "{leaks:?}");

    // An entry that a CPU would hand out next, then one that is in use.
    let (_, held) = said.split_once("MAGAZINES\n").unwrap();
    let entries = held.lines().find(|line| line.starts_with("entry ")).expect("a CPU has deleted some");
    let next = entries.split_whitespace().nth(3).unwrap();
    let about = [format!("uslab whatis {next}+1"), format!("uslab slab {next}")];
    let said = gdb(&core, &[&about[0], &about[1]]).unwrap();
    assert!(
        said.contains(&format!("byte 1 of object {next} ")) && said.contains("on the stack of CPU "),
        "{said}"
    );
    assert_eq!(word(&said, "of cache "), "entry,");
    let slab = word(&said, "\nslab ");
    let letters = said.lines().skip_while(|line| !line.starts_with("slab ")).skip(1);
    let letters: String = letters
        .take_while(|line| line.starts_with("0x"))
        .map(|line| &line[line.find(' ').unwrap() + 1..])
        .collect();
    let used = letters.find('U').expect("some of the slab are in use");
    let stride: usize = word(&said, "bytes each, ").parse().unwrap();
    let said = gdb(&core, &[&format!("uslab whatis {slab}+{}", used * stride)]).unwrap();
    assert!(said.contains(" of cache entry, subsystem 0: in use\n"), "{said}");
    assert!(gdb(&core, &["uslab whatis $sp"]).unwrap().contains("in no subsystem's pages"));
}

/// A C program under the library, once it has said a line.
fn preloaded(library: &Path, dir: &Path) -> Child {
    let (source, program) = (workspace().join("tests/programs/gdb.c"), dir.join("program"));
    let mut cc = Command::new("cc");
    // Stripped.
    cc.args(["-O1", "-s", "-o"]).arg(&program).arg(source);
    assert!(cc.status().expect("a C compiler").success());
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env("USLAB_OPTIONS", "reap=0");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

#[test]
fn what_a_stripped_program_has_lost_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libuslab.so");
    std::fs::copy(libuslab(), &library).unwrap();
    assert!(Command::new("strip").arg(&library).status().expect("binutils").success());
    let mut child = preloaded(&library, dir.path());
    let said = gdb(&["-p", &child.id().to_string()], &["echo LEAKS\\n", "uslab leaks malloc-320"]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let Some(said) = said else { return };
    // Subsystem, in use, bytes, unreachable. Some may look as if something pointed to them.
    let [_, in_use, _, unreachable] = rows(&said, "LEAKS")["malloc-320"][..] else { panic!("{said}") };
    assert!((1000..1010).contains(&in_use) && (450..=500).contains(&unreachable), "{said}");
    assert!(said.contains("of cache malloc-320: unreachable"));
}

#[test]
fn a_program_without_the_library_is_told_from_one_with_it() {
    let said = gdb(&["/bin/true"], &["uslab caches"]);
    assert!(said.is_none_or(|said| said.contains("uslab: no section .uslab")));
}
