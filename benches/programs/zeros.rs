//! Allocates zeroed blocks, and accesses only eight bytes of each. Pages that the system has just mapped are already
//! zero.

use crate::common::{Parameter, Parameters, Program};
use uslab_benches::resident::resident;

pub(crate) const PROGRAM: Program = Program {
    name: "zeros",
    about: "allocates zeroed blocks and writes eight bytes of each; the resident memory is printed to standard error",
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
    (1..).zip(&mut blocks).for_each(|(number, block)| block[..8].copy_from_slice(&u64::to_ne_bytes(number)));
    eprintln!("resident {:.1} MiB", (resident() - baseline) / f64::from(1 << 20));
    for (number, block) in (1_u64..).zip(&blocks) {
        assert!(block[..8] == number.to_ne_bytes() && block[8..16] == [0; 8], "corrupted: block {number}");
    }
    blocks.len() as u64
}
