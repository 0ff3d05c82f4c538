//! The macro that declares a table of scenarios for loom and shuttle.

/// Declares scenarios that loom, shuttle or both run, depending on the build. Each scenario becomes a module that
/// contains these tests:
///
/// - `model`: loom runs the scenario, as a `check::Model`;
/// - `schedules`: shuttle runs the scenario, as a `schedule::Schedules`;
/// - `planted`: loom or shuttle must detect each planted bug of the scenario.
///
/// A scenario has a line that begins with `loom`, a line that begins with `shuttle`, or both, in this order. A `loom`
/// or `shuttle` line contains the printed name of the scenario, how to run it, and the function to run. The printed
/// name begins with the properties that the scenario checks. A line that begins with `bug` contains the text of the
/// `planted!` call, the broken property, and a part of the expected message. Write `#[cfg(loom)]` in front of a `bug`
/// line that applies only to loom. The names `Bound`, `Model` and `Schedules` need no import.
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
/// The second argument of the line determines how to run the scenario. This argument is any value with a method
/// `run(name, function)`, such as a `Model`. Each later line calls another method of the same value, such as `bug`,
/// with the scenario's function as the last argument. Both `Model` and `Schedules` have the method `bug`.
///
/// If the table begins with `#![planted(NAME)]`, bugs are planted only in builds with `--cfg NAME`. In other builds,
/// the `planted` tests are ignored.
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
