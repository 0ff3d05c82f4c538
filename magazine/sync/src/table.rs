//! A table of scenarios, from which both checkers run.

/// States scenarios, each once, for the checker that the program is built with: a module for each, whose tests are
///
/// - `model`: loom runs the scenario (`check::Model`);
/// - `schedules`: shuttle runs it (`schedule::Schedules`);
/// - `planted`: the checker must notice each of its planted bugs.
///
/// A scenario is for the checkers whose line it has, `loom` first. Such a line names the scenario in the output, says how it
/// is run, and gives the function. The name begins with the properties that the scenario is of. A `bug` is named as where it is
/// planted, then comes the property that it breaks and a part of the message that tells it. Behind `#[cfg(loom)]` it is for
/// one of the two checkers only. `Bound`, `Model` and `Schedules` need not be imported.
///
/// ```text
/// uslab_sync::scenarios! {
///     /// Of two who take a ticket nobody gets the other's.
///     tickets_differ {
///         loom("T1: two take tickets", Model::new(Bound::None, 13), two_take_tickets);
///         shuttle("T1: four take tickets", Schedules(100), four_take_tickets);
///         bug("a ticket is taken in two steps", "T1", "two have the same ticket");
///     }
/// }
/// ```
///
/// How a scenario is run is any value with a method `run(name, function)`. Each line behind it is a call of another method, with
/// the function as its last argument: `bug` is one that the values above have.
#[macro_export]
macro_rules! scenarios {
    ($($(#[$doc:meta])* $name:ident { $($entry:tt)* })+) => { $(
        $(#[$doc])*
        #[allow(unused_imports, reason = "a scenario may be for the other checker")]
        mod $name {
            use super::*;
            #[cfg(loom)]
            use $crate::check::{Bound, Model};
            #[cfg(shuttle)]
            use $crate::schedule::Schedules;
            $crate::scenarios! { @entry $($entry)* }
        }
    )+ };
    (@entry loom($($model:tt)*); shuttle($($schedules:tt)*); $($bugs:tt)*) => {
        $crate::scenarios! { @entry loom($($model)*); $($bugs)* }
        $crate::scenarios! { @entry shuttle($($schedules)*); $($bugs)* }
    };
    (@entry loom($($model:tt)*); $($bugs:tt)*) => {
        #[cfg(loom)]
        $crate::scenarios! { @tests model ($($model)*) $($bugs)* }
    };
    (@entry shuttle($($schedules:tt)*); $($bugs:tt)*) => {
        #[cfg(shuttle)]
        $crate::scenarios! { @tests schedules ($($schedules)*) $($bugs)* }
    };
    (@tests $test:ident ($name:expr, $by:expr, $f:expr $(,)?)) => {
        #[test]
        fn $test() {
            $by.run($name, $f);
        }
    };
    (@tests $test:ident ($name:expr, $by:expr, $f:expr $(,)?)
        $($(#[$only:meta])* $bug:ident($($planted:expr),+ $(,)?);)+) => {
        $crate::scenarios! { @tests $test ($name, $by, $f) }
        #[test]
        fn planted() {
            $($(#[$only])* $by.$bug($($planted),+, $f);)+
        }
    };
}
