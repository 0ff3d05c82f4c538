//! Compares slab geometry with real kernels: the project's rule must predict every row of every `/proc/slabinfo`
//! snapshot.
//!
//! Two snapshots are stored in `tests/slab/data`. The variable `USLAB_TRACES=DIR` adds every `*slabinfo` in the folders
//! of `DIR`; machines in `host-*` folders have 2 CPUs, all others have 4.

use std::path::{Path, PathBuf};
use uslab::geometry::{Geometry, OrderRule};
use uslab::info::SlabInfo;
use uslab_tests::workspace;

fn read_slabinfo_file(path: &Path) -> SlabInfo {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the number of rows, and the number that the rule predicts for a machine with `cpus` CPUs.
fn count_matches(info: &SlabInfo, cpus: u32) -> (usize, usize) {
    let rule = OrderRule::for_cpus(cpus);
    let matching_rows = info.rows.iter().filter(|row| {
        let geometry = Geometry::new(row.object_size as usize, 0, &rule).unwrap();
        (geometry.objects() as u64, geometry.order().pages() as u64)
            == (row.objects_per_slab, row.pages_per_slab)
    });
    (info.rows.len(), matching_rows.count())
}

fn data(name: &str) -> SlabInfo {
    read_slabinfo_file(&workspace().join("tests/slab/data").join(name))
}

#[test]
fn slab_geometry_equals_linux_6_12_on_4_cpus() {
    let info = data("linux-6.12-4cpu.slabinfo");
    let (rows, matching_rows) = count_matches(&info, 4);
    assert_eq!(matching_rows, rows);
    assert!(rows > 100, "{rows} rows");
}

#[test]
fn slab_geometry_equals_linux_6_18_on_2_cpus() {
    let info = data("linux-6.18-2cpu.slabinfo");
    let (rows, matching_rows) = count_matches(&info, 2);
    assert_eq!(matching_rows, rows);
    assert!(rows > 200, "{rows} rows");
}

/// A negative control: with the number of CPUs of another machine, the rule must fail for many rows.
#[test]
fn wrong_cpu_count_changes_the_slab_geometry() {
    for (name, cpus) in [("linux-6.12-4cpu.slabinfo", 4), ("linux-6.18-2cpu.slabinfo", 2)] {
        let info = data(name);
        for wrong_cpus in [1, 2, 4, 8, 64].into_iter().filter(|&wrong_cpus| wrong_cpus != cpus) {
            let (rows, matching_rows) = count_matches(&info, wrong_cpus);
            assert!(
                matching_rows * 10 < rows * 9,
                "{name}: {matching_rows} of {rows} rows right with {wrong_cpus} CPUs"
            );
        }
    }
}

#[test]
fn slab_geometry_matches_every_slabinfo_of_the_trace_library() {
    let Some(traces) = std::env::var_os("USLAB_TRACES") else {
        return;
    };
    let (mut rows, mut matching_rows, mut files) = (0, 0, 0);
    for folder in
        std::fs::read_dir(&traces).unwrap().map(|entry| entry.unwrap().path()).filter(|p| p.is_dir())
    {
        let host = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("host-"));
        for file in slabinfo_paths_in(&folder) {
            let (n, matching) = count_matches(&read_slabinfo_file(&file), if host { 2 } else { 4 });
            assert_eq!(n, matching, "{}", file.display());
            (rows, matching_rows, files) = (rows + n, matching_rows + matching, files + 1);
        }
    }
    println!("{matching_rows} of {rows} rows of {files} snapshots");
    assert!(files > 0, "found no snapshot in {}", Path::new(&traces).display());
}

/// The test compares two values with the kernel's sysfs: the stride, computed from size and alignment, and
/// `min_partial`. In the kernel, a cache with a constructor or a type-stable cache stores a free-list pointer after
/// each object; this project's caches do not.
#[test]
fn slab_geometry_matches_every_attribute_table_of_the_trace_library() {
    let Some(traces) = std::env::var_os("USLAB_TRACES") else {
        return;
    };
    let (mut rows, mut files) = (0, 0);
    for folder in
        std::fs::read_dir(&traces).unwrap().map(|entry| entry.unwrap().path()).filter(|p| p.is_dir())
    {
        let Ok(text) = std::fs::read_to_string(folder.join("slab-attributes.tsv")) else { continue };
        let mut lines = text.lines();
        let columns: Vec<_> = lines.next().unwrap().split('\t').collect();
        for line in lines {
            let fields: Vec<_> = line.split('\t').collect();
            let field = |name| fields[columns.iter().position(|column| *column == name).unwrap()];
            let number = |name| field(name).parse::<usize>().unwrap();
            if !field("ctor").is_empty() || number("destroy_by_rcu") == 1 {
                continue;
            }
            let cpus = if folder.file_name().is_some_and(|name| name == "host-6.18") { 2 } else { 4 };
            let geometry =
                Geometry::new(number("object_size"), number("align"), &OrderRule::for_cpus(cpus)).unwrap();
            let own_geometry = (geometry.stride(), geometry.objects(), geometry.min_partial());
            let kernels = (number("slab_size"), number("objs_per_slab"), number("min_partial"));
            assert_eq!(own_geometry, kernels, "{}: {}", folder.display(), field("name"));
            rows += 1;
        }
        files += 1;
    }
    println!("{rows} rows of {files} tables");
    assert!(files > 0, "found no table in {}", Path::new(&traces).display());
}

fn slabinfo_paths_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with("slabinfo")))
        .collect()
}
