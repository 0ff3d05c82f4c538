//! Programs that answer and end.

use crate::{command, preloaded, program, same, text};
use uslab_tests::workspace;

#[test]
fn sqlite_answers_the_same() {
    let Some(sqlite) = program("sqlite3") else { return };
    let queries = "
        create table t(a integer primary key, b text, c real);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
            insert into t select i, printf('%08d-%s', i * 7919 % 60000, hex(i)), i / 3.0 from n;
        create index tb on t(b);
        select count(*), sum(a), max(b), round(avg(c), 3) from t;
        select substr(b, 1, 2) as k, count(*), group_concat(a % 10, '') from t where a < 3000 group by k order by k;
        delete from t where a % 3 = 0; vacuum;
        select x.b, y.b from t x join t y on x.a + 1 = y.a where x.a % 9973 = 1;";
    same("sqlite3", || command(&sqlite, &[":memory:", queries]));
}

#[test]
fn git_answers_the_same() {
    let Some(git) = program("git") else { return };
    let dir = tempfile::tempdir().unwrap();
    let in_dir = |args: &[&str]| {
        let mut git =
            command(&git, &["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]);
        git.args(args).current_dir(dir.path());
        git
    };
    let quietly = |args: &[&str]| {
        let output = preloaded(&mut in_dir(args), "check=1");
        assert!(output.status.success(), "git {args:?}: {}", text(&output.stderr));
    };
    quietly(&["init", "--quiet"]);
    for i in 0..30 {
        let lines: String = (0..500).map(|n| format!("{}\n", n * i % 91)).collect();
        std::fs::write(dir.path().join(format!("file{}", i % 7)), lines).unwrap();
        quietly(&["add", "--all"]);
        quietly(&["commit", "--quiet", "--message", "one more"]);
    }
    quietly(&["gc", "--quiet", "--aggressive"]);
    quietly(&["fsck", "--full"]);
    same("git log", || in_dir(&["log", "--stat", "--patch", "--format=%s %T"]));
    same("git blame", || in_dir(&["blame", "-s", "file3"]));
}

#[test]
fn gcc_compiles_the_same() {
    let Some(gcc) = program("gcc") else { return };
    let source = workspace().join("tests/preload/api.c");
    same("gcc", || command(&gcc, &["-O2", "-S", "-o", "-", &source.display().to_string()]));
}

#[test]
fn perl_and_the_shell_answer_the_same() {
    if let Some(perl) = program("perl") {
        let script = "my %h; $h{$_ % 997} .= \"$_,\" for 1..80000; \
                      print join(\"\\n\", map { \"$_ \" . length $h{$_} } sort { $a <=> $b } keys %h), \"\\n\"; \
                      my $s = join ' ', 1..20000; $s =~ s/(\\d+) (\\d+)/$2-$1/g; print substr($s, -100), \"\\n\";";
        same("perl", || command(&perl, &["-e", script]));
    }
    if let Some(bash) = program("bash") {
        let script =
            "for i in {1..3000}; do a[i]=$((i * i)); done; echo ${a[@]} | tr ' ' '\\n' | sort -rn | md5sum";
        same("bash", || command(&bash, &["-c", script]));
    }
}
