//! A table of scenarios, which loom and shuttle run.

/// Declares scenarios, each once, for the checker of the current build. Each scenario becomes a module with these
/// tests:
///
/// - `model`: loom runs the scenario (`check::Model`);
/// - `schedules`: shuttle runs the scenario (`schedule::Schedules`);
/// - `planted`: the checker must detect each planted bug of the scenario.
///
/// A scenario has one line per checker that runs it, with `loom` first. A checker's line has the printed name of the
/// scenario, the kind of run, and the scenario's function. The printed name begins with the properties that the
/// scenario checks. A `bug` line has the text of the `planted!` call, the broken property, and a part of the expected
/// message. `#[cfg(loom)]` in front of a `bug` line restricts the line to one checker. `Bound`, `Model` and `Schedules`
/// need no import.
///
/// ```text
/// uslab_sync::scenarios! {
///     /// Two concurrent callers get different tickets.
///     tickets_differ {
///         loom("T1: two take tickets", Model::new(Bound::None, 13), two_take_tickets);
///         shuttle("T1: four take tickets", Schedules(100), four_take_tickets);
///         bug("a ticket is taken without an atomic increment", "T1", "two threads have the same ticket");
///     }
/// }
/// ```
///
/// The kind of run is any value with a method `run(name, function)`, such as a `Model`. Each later line of a scenario
/// calls another method of the kind of run, with the function as the last argument. `Model` and `Schedules` have the
/// method `bug`.
///
/// After `#![planted(NAME)]` at the top of the table, the bugs are planted only in builds with `--cfg NAME`.
/// In other builds, the tests `planted` are ignored.
#[macro_export]
macro_rules! scenarios {
    (#![planted($only:ident)] $($scenarios:tt)*) => { $crate::scenarios! { @all [$only] $($scenarios)* } };
    (@all $only:tt $($(#[$doc:meta])* $name:ident { $($entry:tt)* })+) => { $(
        $(#[$doc])*
        #[allow(unused_imports, reason = "a scenario may be for the other checker")]
        mod $name {
            use super::*;
            #[cfg(loom)]
            use $crate::check::{Bound, Model};
            #[cfg(shuttle)]
            use $crate::schedule::Schedules;
            $crate::scenarios! { @entry $only $($entry)* }
        }
    )+ };
    (@entry $only:tt loom($($model:tt)*); shuttle($($schedules:tt)*); $($bugs:tt)*) => {
        $crate::scenarios! { @entry $only loom($($model)*); $($bugs)* }
        $crate::scenarios! { @entry $only shuttle($($schedules)*); $($bugs)* }
    };
    (@entry $only:tt loom($($model:tt)*); $($bugs:tt)*) => {
        #[cfg(loom)]
        $crate::scenarios! { @tests $only model ($($model)*) $($bugs)* }
    };
    (@entry $only:tt shuttle($($schedules:tt)*); $($bugs:tt)*) => {
        #[cfg(shuttle)]
        $crate::scenarios! { @tests $only schedules ($($schedules)*) $($bugs)* }
    };
    (@tests $only:tt $test:ident ($name:expr, $by:expr, $f:expr $(,)?)) => {
        #[test]
        fn $test() {
            $by.run($name, $f);
        }
    };
    (@tests [$($only:ident)?] $test:ident ($name:expr, $by:expr, $f:expr $(,)?)
        $($(#[$of:meta])* $bug:ident($($planted:expr),+ $(,)?);)+) => {
        $crate::scenarios! { @tests [] $test ($name, $by, $f) }
        #[test]
        $(#[cfg_attr(not($only), ignore = "the bugs are planted in other builds")])?
        fn planted() {
            $($(#[$of])* $by.$bug($($planted),+, $f);)+
        }
    };
    ($($(#[$doc:meta])* $name:ident { $($entry:tt)* })+) => {
        $crate::scenarios! { @all [] $($(#[$doc])* $name { $($entry)* })+ }
    };
}
