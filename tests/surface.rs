//! How much each crate shows its users. Whoever raises a number says why beside it.
#![cfg(not(any(loom, shuttle)))]

use uslab_tests::surface::paths;

/// A crate, and the most public paths that it may have. Of those of `uslab-buddy` 41 are `Gfp`: Linux's flags, and the
/// operations on sets that bitflags gives them.
const MOST: [(&str, usize); 3] = [("uslab", 350), ("uslab-magazine", 60), ("uslab-buddy", 119)];

#[test]
fn no_crate_shows_more_than_its_users_need() {
    for (package, most) in MOST {
        let paths = paths(package).unwrap();
        println!("SURFACE {package} | {} public paths, at most {most}", paths.len());
        assert!(
            paths.len() <= most,
            "{package}: {} public paths, at most {most}:\n{}",
            paths.len(),
            paths.join("\n")
        );
    }
}
