//! Tests programs that print a result and then exit; the library is preloaded.

use super::{check_same_output, command, preloaded, print_line, program, run, run_long_tests, text};
use uslab_tests::workspace;

#[test]
fn sqlite_output_is_unchanged_by_the_preloaded_library() {
    let Some(sqlite) = program("sqlite3") else { return };
    let queries = "
        create table t(a integer primary key, b text, c real);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
            insert into t select i, printf('%08d-%s', i * 7919 % 100000, hex(i)), i / 3.0 from n;
        create index tb on t(b);
        select count(*), sum(a), max(b), round(avg(c), 3) from t;
        select substr(b, 1, 2) as k, count(*), group_concat(a % 10, '') from t where a < 3000 group by k order by k;
        delete from t where a % 3 = 0; vacuum;
        select x.b, y.b from t x join t y on x.a + 1 = y.a where x.a % 9973 = 1;";
    check_same_output("sqlite3", || command(&sqlite, &[":memory:", queries]));
}

#[test]
fn git_output_is_unchanged_by_the_preloaded_library() {
    let Some(git) = program("git") else { return };
    let dir = tempfile::tempdir().unwrap();
    let in_dir = |args: &[&str]| {
        let mut git =
            command(&git, &["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]);
        git.args(args).current_dir(dir.path());
        git
    };
    let run_quietly = |args: &[&str]| {
        let output = preloaded(&mut in_dir(args), "check=1");
        assert!(output.status.success(), "git {args:?}: {}", text(&output.stderr));
    };
    run_quietly(&["init", "--quiet"]);
    for i in 0..30 {
        let lines: String = (0..500).map(|n| format!("{}\n", n * i % 91)).collect();
        std::fs::write(dir.path().join(format!("file{}", i % 7)), lines).unwrap();
        run_quietly(&["add", "--all"]);
        run_quietly(&["commit", "--quiet", "--message", "one more"]);
    }
    run_quietly(&["gc", "--quiet", "--aggressive"]);
    run_quietly(&["fsck", "--full"]);
    check_same_output("git log", || in_dir(&["log", "--stat", "--patch", "--format=%s %T"]));
    check_same_output("git blame", || in_dir(&["blame", "-s", "file3"]));
    // The clone uses packs, as over a network: the default copies the files of a directory.
    let clone = |directory: &str| in_dir(&["clone", "--quiet", "--no-local", ".", directory]);
    for (directory, with) in [("with", true), ("without", false)] {
        let output = run(&mut clone(directory), with);
        assert!(output.status.success(), "git clone: {}", text(&output.stderr));
    }
    let log = |log_directory| {
        run(&mut in_dir(&["-C", log_directory, "log", "--stat", "--patch", "--format=%H %T"]), false).stdout
    };
    let [own_log, with, without] = [".", "with", "without"].map(log);
    assert!(
        own_log.len() > 10_000 && with == own_log && without == own_log,
        "the clone must have the same history"
    );
    print_line("preload: git clone: the same history with and without the library");
    run_quietly(&["-C", "with", "fsck", "--full"]);
}

#[test]
fn gcc_output_is_unchanged_by_the_preloaded_library() {
    let Some(gcc) = program("gcc") else { return };
    let source = workspace().join("tests/programs/preload/api.c");
    check_same_output("gcc", || command(&gcc, &["-O2", "-S", "-o", "-", &source.display().to_string()]));
}

#[test]
fn perl_and_shell_output_is_unchanged_by_preloading() {
    if let Some(perl) = program("perl") {
        let script = "my %h; $h{$_ % 997} .= \"$_,\" for 1..80000; \
                      print join(\"\\n\", map { \"$_ \" . length $h{$_} } sort { $a <=> $b } keys %h), \"\\n\"; \
                      my $s = join ' ', 1..20000; $s =~ s/(\\d+) (\\d+)/$2-$1/g; print substr($s, -100), \"\\n\";";
        check_same_output("perl", || command(&perl, &["-e", script]));
    }
    if let Some(bash) = program("bash") {
        let script =
            "for i in {1..3000}; do a[i]=$((i * i)); done; echo ${a[@]} | tr ' ' '\\n' | sort -rn | md5sum";
        check_same_output("bash", || command(&bash, &["-c", script]));
    }
}

/// Regression test: php opens its extensions with `RTLD_DEEPBIND`; it crashed, because glibc freed memory
/// that the library had allocated.
#[test]
fn php_output_is_unchanged_by_the_preloaded_library() {
    let Some(php) = program("php") else { return };
    check_same_output("php -v", || command(&php, &["-v"]));
    let script = "$a = []; for ($i = 0; $i < 30000; $i++) $a[$i % 997][] = str_repeat(dechex($i), $i % 7); \
                  echo md5(json_encode($a)), strlen(serialize($a)), ' ', preg_replace('/(\\d)\\1/', '-', '112233'), \"\\n\"; \
                  foreach (get_loaded_extensions() as $e) echo $e, ' ';";
    check_same_output("php", || command(&php, &["-r", script]));
}

/// The output of stress-ng contains times, so it differs between runs; instead, stress-ng verifies the memory that it
/// allocates.
#[test]
fn stress_ng_verifies_memory_of_the_library() {
    let Some(stress) = program("stress-ng") else { return };
    let dir = tempfile::tempdir().unwrap();
    let operations = if run_long_tests() { "2000000" } else { "50000" };
    let mut stress =
        command(&stress, &["--malloc", "2", "--malloc-pthreads", "2", "--malloc-touch", "--verify"]);
    stress.args(["--malloc-ops", operations, "--temp-path"]).arg(dir.path());
    let output = preloaded(&mut stress, "check=1,stats=1");
    let output_text = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{:?} {output_text}", output.status);
    assert!(
        output_text.contains("successful run completed") && output_text.contains("\nmalloc-64 "),
        "{output_text}"
    );
    print_line(&format!("preload: stress-ng: {operations} operations a worker, verified"));
}
