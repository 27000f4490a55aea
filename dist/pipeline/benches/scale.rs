//! The time to generate, lower, check and simulate schedules of 1,024 ranks and 64 microbatches.
//!
//! ```text
//! cargo bench -p meshgrad-pipeline --bench scale [-- --smoke]
//! ```

use std::hint::black_box;
use std::time::Instant;

use meshgrad_pipeline::{Costs, Lowering, Named, Program, Shape};

const MICROBATCHES: usize = 64;

/// `dual_pipe_v` needs at least two microbatches per rank.
const SCHEDULES: [(Named, usize); 8] = [
    (Named::Gpipe, 1),
    (Named::LoopedBfs, 2),
    (Named::OneFOneB, 1),
    (Named::Interleaved, 2),
    (Named::Zb1p, 1),
    (Named::InterleavedZb, 2),
    (Named::Zbv, 2),
    (Named::Inference, 1),
];

fn main() {
    let is_smoke = std::env::args().any(|it| it == "--smoke");
    let (ranks, rounds) = if is_smoke { (16, 1) } else { (1024, 9) };
    println!(
        "{ranks} ranks, {MICROBATCHES} microbatches; ms: median (minimum - maximum) of {rounds} runs\n"
    );
    println!(
        "| schedule | stages per rank | actions | generate | lower | check | simulate | all but check |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (named, per_rank) in SCHEDULES {
        let mut actions = 0;
        let mut times: [Vec<f64>; 5] = Default::default();
        for _ in 0..rounds {
            let (count, steps) = run(named, ranks, per_rank);
            actions = count;
            times.iter_mut().zip(steps).for_each(|(all, time)| all.push(time));
        }
        let cells = times.map(spread).join(" | ");
        println!("| {named} | {per_rank} | {actions} | {cells} |");
    }
}

/// The number of actions, and milliseconds per step and in total.
fn run(named: Named, ranks: usize, per_rank: usize) -> (usize, [f64; 5]) {
    let stages = ranks * per_rank;
    let shape = Shape::new(ranks, stages, MICROBATCHES).expect("a valid shape");
    let (schedule, generate) = timed(|| named.schedule(shape).expect("a supported shape"));
    let (program, lower) = timed(|| schedule.lower(&Lowering::default()).expect("no deadlock"));
    let (placement, lists) = (program.placement().clone(), program.ranks().to_vec());
    let (checked, check) = timed(|| Program::new(placement, MICROBATCHES, lists));
    assert_eq!(checked.as_ref(), Ok(&program));
    let (simulation, simulate) = timed(|| program.simulate(&Costs::uniform(stages)));
    black_box(simulation.expect("valid costs"));

    let actions = program.ranks().iter().map(Vec::len).sum();
    let total = generate + lower + simulate;
    (actions, [generate, lower, check, simulate, total])
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = black_box(work());
    (result, 1000.0 * start.elapsed().as_secs_f64())
}

fn spread(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let (least, most) = (times[0], times[times.len() - 1]);
    format!("{:.0} ({least:.0} - {most:.0})", times[times.len() / 2])
}
