//! Zeroed blocks of which a program touches one byte: pages that the system has just given are zero already.

use crate::common::{Parameter, Parameters, Program};
use uslab_benches::resident::resident;

pub(crate) const PROGRAM: Program = Program {
    name: "zeros",
    about: "zeroed blocks, one byte of each written; standard error gets what is resident",
    parameters: &[
        Parameter::new("blocks", 300, 30, "blocks"),
        Parameter::new("kib", 3072, 3072, "KiB of each"),
    ],
    run,
};

fn run(parameters: &Parameters) -> u64 {
    let baseline = resident();
    let mut blocks: Vec<_> =
        (0..parameters.size("blocks")).map(|_| vec![0_u8; parameters.size("kib") << 10]).collect();
    blocks.iter_mut().for_each(|block| block[0] = 1);
    eprintln!("resident {:.1} MiB", (resident() - baseline) / f64::from(1 << 20));
    blocks.len() as u64
}
