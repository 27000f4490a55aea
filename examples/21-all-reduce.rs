//! The times of an all_reduce over NCCL, as `all_reduce_perf` of nccl-tests prints them.
//!
//! ```text
//! MESHGRAD_EMULATOR_DEVICES=4 cargo run --example 21-all-reduce              # 4 threads with an emulated GPU each
//! meshgrad launch -n 8 -- target/debug/examples/21-all-reduce --device cuda   # a process for each GPU of this host
//! ```

use std::time::Instant;

use meshgrad::comm::launch::Environment;
use meshgrad::comm::{Collectives, Local, NcclRank, ProcessRank, Rank, Reduction};
use meshgrad::runtime::{DType, Device, Result, ops};

fn times(base: &dyn Rank, gpu: Device) -> Result<()> {
    let rank = NcclRank::new(base, gpu)?;
    let (world, n) = (rank.world()?, rank.world_size() as f64);
    let print = |line: String| (rank.rank() == 0).then(|| println!("{line}"));
    print("#     bytes      time us    algbw GB/s    busbw GB/s".into());
    for elements in [256, 4096, 65536] {
        let x = ops::full(rank.device(), &[elements], DType::F32, 1.0)?;
        let sum = world.all_reduce(&x, Reduction::Sum)?.wait()?.to_vec::<f32>()?; // connects first
        assert!(sum.iter().all(|sum| f64::from(*sum) == n));
        let (repeats, since) = (5, Instant::now());
        for _ in 0..repeats {
            world.all_reduce(&x, Reduction::Sum)?.wait()?;
        }
        rank.device().synchronize()?;
        let seconds = since.elapsed().as_secs_f64() / f64::from(repeats);
        let algorithm = 4e-9 * elements as f64 / seconds;
        let bus = algorithm * 2.0 * (n - 1.0) / n; // what each link carries
        print(format!(
            "{:>11} {:>12.1} {algorithm:>13.3} {bus:>13.3}",
            4 * elements,
            1e6 * seconds
        ));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let is_real = std::env::args().any(|argument| argument == "cuda");
    let gpu = |rank| if is_real { Device::cuda(rank) } else { Device::emulator(rank) };
    match Environment::read()? {
        Some(place) => {
            times(&ProcessRank::from_env()?, gpu(if is_real { place.local_rank() } else { 0 })?)?
        }
        None => {
            let ranks = (0..8).take_while(|rank| gpu(*rank).is_ok()).count();
            Local::run(ranks, |rank| times(rank, gpu(rank.rank())?))?;
        }
    }
    Ok(())
}
