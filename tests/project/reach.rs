//! The table of what reaches which lines has all files, and those that no concurrent checker reaches have their reasons.

use uslab_tests::claims::unreached;
use uslab_tests::reach::{Table, probed};
use uslab_tests::workspace;

#[test]
fn each_file_that_ships_has_its_row_and_what_no_concurrent_checker_reaches_its_reason() {
    let text = std::fs::read_to_string(workspace().join("tests/REACH.md")).unwrap();
    let table = Table::parse(&text).unwrap();
    let misfits = table.misfits(&probed().unwrap(), &unreached().unwrap());
    assert!(misfits.is_empty(), "\n{}", misfits.join("\n"));
}
