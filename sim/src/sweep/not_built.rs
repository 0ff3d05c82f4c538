//! The commands of a build without the feature `sweep`, which only give an error.

use crate::output::Place;
use crate::output::command::Outcome;
use clap::Args;
use std::ffi::OsString;
use uslab_engine::Policy;

/// Run many points of `uslab scale`, on one machine or on many. It needs a build with the feature `sweep`: `cargo uslab-sweep
/// sweep --help`.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    args: Vec<OsString>,
}

/// Find the best setting by sweeps, round by round. It needs a build with the feature `sweep`: `cargo uslab-sweep tune --help`.
#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    args: Vec<OsString>,
}

#[expect(clippy::extra_unused_type_parameters, reason = "as with the feature")]
pub(crate) fn sweep<P: Policy>(args: &SweepArgs, _: Option<Place>) -> anyhow::Result<Outcome> {
    Err(not_built("sweep", &args.args))
}

#[expect(clippy::extra_unused_type_parameters, reason = "as with the feature")]
pub(crate) fn tune<P: Policy>(args: &TuneArgs, _: Option<Place>) -> anyhow::Result<Outcome> {
    Err(not_built("tune", &args.args))
}

fn not_built(verb: &str, args: &[OsString]) -> anyhow::Error {
    let rest: String = args.iter().map(|arg| format!(" {}", arg.display())).collect();
    anyhow::anyhow!(
        "{verb}: this build has no sweeps; expected one with the feature `sweep`: `cargo uslab-sweep {verb}{rest}`, or `cargo run \
         --release --package uslab-sim --features sweep -- {verb}{rest}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_sweeps_says_how_to_get_one() {
        let said = not_built("sweep", &["run".into(), "a.toml".into()]).to_string();
        assert!(
            said.starts_with("sweep: this build has no sweeps; expected one with the feature `sweep`: "),
            "{said}"
        );
        assert!(said.contains("`cargo uslab-sweep sweep run a.toml`"), "{said}");
    }
}
