//! Ranks: one main function, run as threads of a process or as processes of any launcher.
//!
//! ```text
//! cargo run --example 09-ranks -- --ranks 8             # 8 threads, as without arguments
//! meshgrad launch -n 8 -- target/debug/examples/09-ranks
//! torchrun --no-python --nproc-per-node 8 target/debug/examples/09-ranks
//! mpirun -n 8 target/debug/examples/09-ranks
//! ```
//!
//! All of them print the same lines, one per rank. `meshgrad launch` adds a prefix with the rank.

use meshgrad::comm::{Collectives, Reduction};
use meshgrad::prelude::*;

/// Sums over each axis of a 2 x 4 mesh, and over both.
fn sums(rank: &dyn Rank) -> Result<String> {
    let mesh = Mesh::new(&[2, 4], &["dp", "tp"])?;
    let group = |axis: &str| -> Result<_> {
        let group = mesh.group([axis], rank.rank())?;
        Ok(group.expect("the mesh has 8 ranks"))
    };
    let (dp, tp) = (group("dp")?, group("tp")?);
    let (over_dp, over_tp) = (rank.connect("dp", &dp)?, rank.connect("tp", &tp)?);

    let x = Tensor::scalar(rank.device(), 1.0f32 / (rank.rank() + 1) as f32)?;
    let dp_sum = over_dp.all_reduce(&x, Reduction::Sum)?; // starts; waits for no other rank
    let tp_sum = over_tp.all_reduce(&x, Reduction::Sum)?.wait()?;
    let all = over_dp.all_reduce(&tp_sum, Reduction::Sum)?.wait()?;

    let bits = |x: Tensor| -> Result<String> {
        let x = x.item::<f32>()?;
        Ok(format!("{x:.6} ({:08x})", x.to_bits()))
    };
    Ok(format!(
        "rank {}  dp {dp} {}  tp {tp} {}  all {}",
        rank.rank(),
        bits(dp_sum.wait()?)?,
        bits(tp_sum)?,
        bits(all)?
    ))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--ranks", ranks] => ranks.parse()?,
        [] => 8,
        _ => return Err("usage: 09-ranks [--ranks 8]".into()),
    };
    for line in ranks::run(threads, sums)? {
        println!("{line}");
    }
    Ok(())
}
