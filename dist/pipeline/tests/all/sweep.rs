//! Every schedule, for every small shape it supports: complete, free of deadlocks, and as idle and
//! as large as the literature says.

use meshgrad_pipeline::{Action, Costs, Lowering, Named, Program, Shape, Simulation};

const MAX_RANKS: usize = 8;
const MAX_PER_RANK: usize = 4;
const MAX_MICROBATCHES: usize = 32;

fn shapes() -> impl Iterator<Item = Shape> {
    let all = |count: usize| 1..=count;
    all(MAX_RANKS).flat_map(move |ranks| {
        all(MAX_PER_RANK).flat_map(move |per_rank| {
            let shape = move |it| Shape::new(ranks, ranks * per_rank, it).unwrap();
            all(MAX_MICROBATCHES).map(shape)
        })
    })
}

fn simulated(named: Named, ranks: usize, per_rank: usize, microbatches: usize) -> Simulation {
    let shape = Shape::new(ranks, ranks * per_rank, microbatches).unwrap();
    let program = named.schedule(shape).unwrap().lower(&Lowering::default());
    program.unwrap().simulate(&Costs::uniform(shape.stages())).unwrap()
}

/// The check does not know how a program was made. It accepts every program that lowering makes.
#[test]
fn all_programs_are_complete_and_free_of_deadlocks() {
    let mut count = 0;
    for shape in shapes() {
        for named in Named::ALL {
            let Ok(schedule) = named.schedule(shape) else {
                continue;
            };
            count += 1;
            for resident in [None, Some(2), Some(3)] {
                let reduce = resident.is_some() && named != Named::Inference;
                let lowering = Lowering { resident, reduce };
                let program = schedule.lower(&lowering).unwrap();
                let (placement, ranks) = (program.placement().clone(), program.ranks().to_vec());
                let checked = Program::new(placement, shape.microbatches(), ranks);
                assert_eq!(checked, Ok(program), "{named} {shape:?} {lowering:?}");
            }
        }
    }
    assert!(count > 4000, "{count}");
}

/// Gathers keep within their bound and none is without use.
#[test]
fn gathered_stages_keep_within_their_bound() {
    for shape in shapes().filter(|it| it.microbatches() % 5 == 2) {
        for schedule in Named::ALL.into_iter().filter_map(|it| it.schedule(shape).ok()) {
            for resident in 2..=3 {
                let lowering = Lowering { resident: Some(resident), reduce: false };
                for list in schedule.lower(&lowering).unwrap().ranks() {
                    check_gathers(list, resident);
                }
            }
        }
    }
}

fn check_gathers(list: &[Action], resident: usize) {
    let mut gathered: Vec<(usize, bool)> = Vec::new();
    for action in list {
        match *action {
            Action::Gather(stage) => gathered.push((stage, false)),
            Action::Release(stage) => {
                let at = gathered.iter().position(|it| it.0 == stage).unwrap();
                assert!(gathered.remove(at).1, "stage {stage} was gathered without use");
            }
            _ => {}
        }
        for compute in action.computes() {
            let entry = gathered.iter_mut().find(|it| it.0 == compute.stage);
            entry.unwrap().1 = true;
        }
        assert!(gathered.len() <= resident);
    }
}

#[test]
fn an_overlapped_pair_needs_both_stages() {
    let shape = Shape::new(2, 4, 4).unwrap();
    let schedule = Named::DualPipeV.schedule(shape).unwrap();
    let lowering = Lowering { resident: Some(1), reduce: false };
    let error = schedule.lower(&lowering).unwrap_err().to_string();
    assert_eq!(
        error,
        "(0F3;3B1)OVERLAP_F_B needs the parameters of 2 stages, but at most 1 may be gathered"
    );
}

/// The nearest numbers of an error are the nearest ones that the schedule accepts.
#[test]
fn refused_numbers_of_microbatches_name_the_nearest() {
    let mut count = 0;
    for shape in shapes() {
        for named in Named::ALL {
            let Err(error) = named.schedule(shape) else {
                continue;
            };
            if !error.to_string().contains(" cannot run ") {
                continue;
            }
            count += 1;
            let accepts = |microbatches: usize| {
                let shape = Shape::new(shape.ranks(), shape.stages(), microbatches).unwrap();
                named.schedule(shape).is_ok()
            };
            let given = shape.microbatches();
            let above = (given + 1..).find(|&it| accepts(it)).unwrap();
            let nearest = match (1..given).rev().find(|&it| accepts(it)) {
                Some(below) => format!("; use {below} or {above}"),
                None => format!("; use {above}"),
            };
            assert!(error.to_string().ends_with(&nearest), "{named} {shape:?}: {error}");
        }
    }
    assert!(count > 500, "{count}");
}

#[test]
fn errors_name_the_way_out() {
    let error = |named: Named, ranks, stages, microbatches| {
        let shape = Shape::new(ranks, stages, microbatches);
        shape.and_then(|shape| named.schedule(shape)).unwrap_err().to_string()
    };
    assert_eq!(
        error(Named::Interleaved, 4, 8, 9),
        "interleaved cannot run 9 microbatches on 4 ranks: the number of rounds, microbatches / \
         ranks rounded down, must divide it; use 8 or 10"
    );
    assert_eq!(
        error(Named::DualPipeV, 4, 8, 5),
        "dual_pipe_v cannot run 5 microbatches on 4 ranks: it needs two per rank or more; use 8"
    );
    assert_eq!(
        error(Named::OneFOneB, 4, 8, 8),
        "1f1b needs one stage per rank, but got 8 stages on 4 ranks; use 4 stages or interleaved"
    );
    assert_eq!(
        error(Named::LoopedBfs, 4, 6, 8),
        "looped_bfs needs the same number of stages on every rank, but got 6 stages on 4 ranks; \
         use 4 or 8 stages"
    );
    assert_eq!(
        error(Named::Gpipe, 4, 3, 8),
        "3 stages do not fill 4 ranks: every rank needs at least one stage"
    );
    assert_eq!(error(Named::Gpipe, 4, 4, 0), "the number of microbatches is 0: use at least 1");
    let limit = "exceed the limit of 4096 stages and 1048576 pairs of a stage and a microbatch";
    assert_eq!(
        error(Named::Gpipe, 4, 4, usize::MAX),
        format!("4 stages x {} microbatches {limit}", usize::MAX)
    );
    assert_eq!(error(Named::Gpipe, 4097, 4097, 1), format!("4097 stages x 1 microbatches {limit}"));
}

/// Idle time in percent for (ranks, microbatches) = (4, 8), (8, 16), (8, 32), and the peak of the
/// activations of 8 ranks for 16 and 32 microbatches, in units of a rank's whole share of the model.
#[test]
fn idle_shares_and_peaks_are_those_of_the_literature() {
    let table = [
        (Named::Gpipe, 1, [27.3, 30.4, 17.9], [16.0, 32.0]),
        (Named::OneFOneB, 1, [27.3, 30.4, 17.9], [8.0, 8.0]),
        (Named::LoopedBfs, 2, [15.8, 17.9, 9.9], [16.0, 32.0]),
        (Named::Interleaved, 2, [15.8, 17.9, 9.9], [11.5, 11.5]),
        (Named::Zb1p, 1, [11.1, 12.7, 6.8], [8.0, 8.0]),
        (Named::InterleavedZb, 2, [5.9, 6.8, 3.5], [8.0, 8.0]),
        (Named::Zbv, 2, [5.9, 6.8, 3.5], [8.0, 8.0]),
        (Named::DualPipeV, 2, [11.1, 12.7, 6.8], [8.5, 8.5]),
    ];
    for (named, per_rank, idle, peaks) in table {
        for ((ranks, microbatches), expected) in [(4, 8), (8, 16), (8, 32)].into_iter().zip(idle) {
            let simulation = simulated(named, ranks, per_rank, microbatches);
            let percent = 100.0 * simulation.idle_share();
            let case = format!("{named} {ranks} {microbatches}: {percent}");
            assert!((percent - expected).abs() <= 0.05, "{case}, not {expected}");
        }
        for (microbatches, expected) in [16, 32].into_iter().zip(peaks) {
            let peak = simulated(named, 8, per_rank, microbatches).peak_memory();
            assert_eq!(peak / per_rank as f64, expected, "{named} {microbatches}");
        }
    }
}

/// The idle time in closed form, where it is known: p - 1 steps of the shortest kind.
#[test]
fn idle_shares_follow_their_formulas() {
    for ranks in 1..=MAX_RANKS {
        for microbatches in (1..=4).map(|it| it * 2 * ranks) {
            for per_rank in 1..=MAX_PER_RANK {
                let work = (per_rank * microbatches) as f64;
                let hops = (ranks - 1) as f64;
                let mut all = vec![
                    (Named::LoopedBfs, hops / (work + hops)),
                    (Named::Interleaved, hops / (work + hops)),
                    (Named::InterleavedZb, hops / (3.0 * work + hops)),
                    (Named::Inference, hops / (work + hops)),
                ];
                if per_rank == 1 {
                    all.push((Named::Gpipe, hops / (work + hops)));
                    all.push((Named::OneFOneB, hops / (work + hops)));
                    all.push((Named::Zb1p, hops / (3.0 * work + hops)));
                }
                if per_rank == 2 {
                    all.push((Named::Zbv, hops / (3.0 * work + hops)));
                    all.push((Named::DualPipeV, 2.0 * hops / (3.0 * work + 2.0 * hops)));
                }
                for (named, expected) in all {
                    let idle = simulated(named, ranks, per_rank, microbatches).idle_share();
                    let case = format!("{named} {ranks} {per_rank} {microbatches}");
                    assert!((idle - expected).abs() < 1e-12, "{case}: {idle}, not {expected}");
                }
            }
        }
    }
}

/// The program of a single stage passes the checks of any program, and needs a microbatch.
#[test]
fn a_single_stage_has_a_program() {
    for microbatches in [1, 2, 9] {
        let program = Program::single(microbatches).unwrap();
        let ranks = program.ranks().to_vec();
        assert_eq!(ranks[0].len(), 2 * microbatches);
        let checked = Program::new(program.placement().clone(), microbatches, ranks);
        assert_eq!(checked.unwrap(), program);
    }
    assert!(Program::single(0).is_err());
}
