//! Benchmarks (*rows*) that compare allocators (*subjects*) of all kinds. The `README.md` of the benches
//! defines the rows.

mod batches;
mod churn;
mod crowd;
mod disturbed;
mod hot;
mod idle;
mod memory;
mod mixed;
mod refills;
mod remote;
mod sharing;
mod start;
mod tails;
mod threads;

use uslab_benches::Bench;

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start("all", "");
    bench.preloads();
    hot::row(&mut bench);
    batches::row(&mut bench);
    churn::row(&mut bench);
    mixed::row(&mut bench);
    refills::row(&mut bench);
    threads::row(&mut bench);
    crowd::row(&mut bench);
    remote::row(&mut bench);
    tails::row(&mut bench);
    disturbed::row(&mut bench);
    memory::row(&mut bench);
    idle::row(&mut bench);
    sharing::row(&mut bench);
    start::row(&mut bench);
    bench.run()
}
