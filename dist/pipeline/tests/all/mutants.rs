//! Programs with one fault are refused, and the error names the rank and the action.

use std::collections::HashMap;

use meshgrad_pipeline::{
    Action, Compute, Lowering, Message, MessageKind, Named, Op, Placement, Program, Result,
    Schedule, Shape,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Small programs of all kinds, with all kinds of communication.
fn programs() -> Vec<Program> {
    let shapes = [
        (Named::Gpipe, 3, 3),
        (Named::LoopedBfs, 2, 4),
        (Named::OneFOneB, 3, 3),
        (Named::Interleaved, 2, 4),
        (Named::InterleavedZb, 2, 4),
        (Named::Zbv, 3, 6),
        (Named::DualPipeV, 2, 4),
    ];
    let lowered = |(named, ranks, stages): (Named, usize, usize)| {
        let schedule = named.schedule(Shape::new(ranks, stages, 4).unwrap()).unwrap();
        [(None, false), (Some(2), true)].map(|(resident, reduce)| {
            let lowering = Lowering { resident, reduce };
            schedule.lower(&lowering).unwrap()
        })
    };
    shapes.into_iter().flat_map(lowered).collect()
}

fn check(program: &Program, ranks: Vec<Vec<Action>>) -> Result<Program> {
    Program::new(program.placement().clone(), program.microbatches(), ranks)
}

/// Calls `mutate` for every position of every program, with the lists and the rank.
fn for_each_position(mut mutate: impl FnMut(&Program, Vec<Vec<Action>>, usize, usize)) {
    for program in programs() {
        for (rank, list) in program.ranks().iter().enumerate() {
            for at in 0..list.len() {
                mutate(&program, program.ranks().to_vec(), rank, at);
            }
        }
    }
}

/// A missing action is named itself, or is what another action of its rank lacks.
#[test]
fn a_dropped_action_is_refused() {
    for_each_position(|program, mut ranks, rank, at| {
        let dropped = ranks[rank].remove(at);
        let error = check(program, ranks).unwrap_err().to_string();
        let is_named = |name: &String| {
            let is_early = error.starts_with(&format!("rank {rank}: "))
                && error.ends_with(&format!(" needs {name} before it"));
            is_early || error == format!("rank {rank} never runs {name}")
        };
        assert!(names(dropped).iter().any(is_named), "{dropped} of rank {rank}: {error}");
    });
}

/// The names of an action and its computations. A missing I can also be named as B.
fn names(action: Action) -> Vec<String> {
    let whole = |it: Compute| match it.op {
        Op::BackwardInput => Compute::new(Op::Backward, it.stage, it.microbatch),
        _ => it,
    };
    let computes = action.computes().flat_map(|it| [it, whole(it)]);
    computes.map(|it| it.to_string()).chain([action.to_string()]).collect()
}

#[test]
fn a_repeated_action_is_refused() {
    for_each_position(|program, mut ranks, rank, at| {
        let action = ranks[rank][at];
        ranks[rank].insert(at, action);
        let error = check(program, ranks).unwrap_err().to_string();
        // A release of what is released needs a gather.
        let is_named = ["repeats", "needs"]
            .iter()
            .any(|it| error.starts_with(&format!("rank {rank}: {action} {it} ")));
        assert!(is_named, "{action} of rank {rank}: {error}");
    });
}

#[test]
fn an_action_on_another_rank_is_refused() {
    for_each_position(|program, mut ranks, rank, at| {
        let action = ranks[rank].remove(at);
        let other = (rank + 1) % ranks.len();
        ranks[other].push(action);
        let error = check(program, ranks).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("rank {rank}")) || text.contains(&format!("rank {other}")));
    });
}

/// Two neighbors in a list are swapped. The check refuses exactly those programs for which a second
/// proof fails: the graph of all actions has a circle, or an action precedes one that it needs.
#[test]
fn swapped_neighbors_are_refused_where_the_order_matters() {
    let (mut refused, mut accepted) = (0, 0);
    for_each_position(|program, mut ranks, rank, at| {
        if at + 1 == ranks[rank].len() {
            return;
        }
        ranks[rank].swap(at, at + 1);
        let swapped = [ranks[rank][at], ranks[rank][at + 1]];
        let is_valid = keeps_needs(program, &ranks) && !has_circle(&ranks);
        match check(program, ranks) {
            Ok(_) => {
                accepted += 1;
                assert!(is_valid, "{swapped:?} of rank {rank} was accepted");
            }
            Err(error) => {
                refused += 1;
                assert!(!is_valid, "{swapped:?} of rank {rank}: {error}");
                let text = error.to_string();
                let names = |it: &Action| text.contains(&it.to_string());
                assert!(text.contains(&format!("rank {rank}")), "{text}");
                assert!(swapped.iter().any(names), "{swapped:?}: {text}");
            }
        }
    });
    assert!(refused > 300 && accepted > 100, "{refused} refused, {accepted} accepted");
}

/// Two sends of rank 0 in the wrong order: the error names both ranks, and what each waits for.
#[test]
fn a_deadlock_names_the_ranks_and_actions_of_its_circle() {
    let shape = Shape::new(2, 2, 2).unwrap();
    let schedule = Named::Gpipe.schedule(shape).unwrap();
    let program = schedule.lower(&Lowering::default()).unwrap();
    let mut ranks = program.ranks().to_vec();
    let sends: Vec<usize> =
        (0..ranks[0].len()).filter(|&at| matches!(ranks[0][at], Action::Send(_))).collect();
    let first = ranks[0].remove(sends[0]);
    ranks[0].insert(sends[1], first);
    assert_eq!(
        check(&program, ranks).unwrap_err().to_string(),
        "deadlock: rank 0 waits at 0SEND_F1 for 1RECV_F1 of rank 1; rank 1 waits at 1RECV_F0 for \
         0SEND_F0 of rank 0"
    );
}

/// Values that are no schedule at all.
#[test]
fn lists_that_do_not_fit_the_placement_are_refused() {
    let shape = Shape::new(2, 2, 2).unwrap();
    let placement = Placement::looped(shape);
    let error = |microbatches, ranks: usize| {
        let lists = vec![Vec::new(); ranks];
        let schedule = Schedule::new(placement.clone(), microbatches, lists.clone());
        let program = Program::new(placement.clone(), microbatches, lists);
        let (schedule, program) = (schedule.unwrap_err(), program.unwrap_err());
        assert_eq!(schedule, program);
        schedule.to_string()
    };
    assert_eq!(error(2, 3), "3 lists of actions for 2 ranks: give each rank one");
    assert_eq!(error(0, 2), "the number of microbatches is 0: use at least 1");
    assert_eq!(error(2, 2), "rank 0 never runs 0F0");
    assert_eq!(
        Placement::new(2, vec![0, 2]).unwrap_err().to_string(),
        "stage 1 is on rank 2, but the ranks are 0 to 1"
    );
    assert_eq!(Placement::new(2, vec![0, 1]), Ok(placement.clone()));
}

fn any_action() -> impl Strategy<Value = Action> {
    let number = || prop_oneof![4 => 0..3usize, 1 => Just(usize::MAX)];
    let compute = || {
        let parts = (0..4usize, number(), number());
        parts.prop_map(|(op, stage, microbatch)| Compute::new(Op::ALL[op], stage, microbatch))
    };
    let message = || {
        let kind = prop_oneof![Just(MessageKind::Activation), Just(MessageKind::Gradient)];
        (kind, number(), number()).prop_map(|(kind, boundary, microbatch)| Message {
            kind,
            boundary,
            microbatch,
        })
    };
    prop_oneof![
        compute().prop_map(Action::Compute),
        (compute(), compute()).prop_map(|(one, other)| Action::Overlapped(one, other)),
        message().prop_map(Action::Send),
        message().prop_map(Action::Receive),
        number().prop_map(Action::Gather),
        number().prop_map(Action::Release),
        number().prop_map(Action::Reduce),
    ]
}

proptest! {
    /// Any lists give a program or an error with a message.
    #[test]
    fn no_lists_panic(ranks in vec(vec(any_action(), 0..8), 2), replace in any_action(), at: u8) {
        let placement = Placement::looped(Shape::new(2, 3, 2).unwrap());
        if let Err(error) = Program::new(placement, 2, ranks) {
            prop_assert!(!error.to_string().is_empty());
        }

        // A program with one other action passes many checks before it fails.
        let program = &programs()[1];
        let mut ranks = program.ranks().to_vec();
        let at = usize::from(at) % ranks[1].len();
        ranks[1][at] = replace;
        if let Err(error) = check(program, ranks) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

/// What must precede an action on its rank: one of each list.
fn needs(action: Action, program: &Program) -> Vec<Vec<Action>> {
    let placement = program.placement();
    let produced = |it: Message| match it.kind {
        MessageKind::Activation => computes(&[Op::Forward], it.from(), it),
        _ => computes(&[Op::Backward, Op::BackwardInput], it.from(), it),
    };
    let mut all = Vec::new();
    for compute in action.computes() {
        let Compute { op, stage, microbatch } = compute;
        let same = |op| Action::Compute(Compute::new(op, stage, microbatch));
        match op {
            Op::Forward => {}
            Op::Backward | Op::BackwardInput => all.push(vec![same(Op::Forward)]),
            Op::BackwardWeight => all.push(vec![same(Op::BackwardInput)]),
        }
        if let Some(input) = compute.input(placement.stages()) {
            let is_local = placement.rank_of(input.from()) == placement.rank_of(input.to());
            all.push(match is_local {
                true => produced(input),
                false => vec![Action::Receive(input)],
            });
        }
    }
    match action {
        Action::Send(message) => all.push(produced(message)),
        Action::Reduce(stage) => {
            for it in 0..program.microbatches() {
                let by = |op| Action::Compute(Compute::new(op, stage, it));
                all.push(vec![by(Op::Backward), by(Op::BackwardWeight)]);
            }
        }
        _ => {}
    }
    all
}

fn computes(ops: &[Op], stage: usize, message: Message) -> Vec<Action> {
    let by = |op: &Op| Compute::new(*op, stage, message.microbatch).into();
    ops.iter().map(by).collect()
}

fn keeps_needs(program: &Program, ranks: &[Vec<Action>]) -> bool {
    ranks.iter().all(|list| {
        let is_done = |at: usize, it: &Action| {
            let before = &list[..at];
            let part = |done: &Action| done.computes().any(|part| Action::Compute(part) == *it);
            before.contains(it) || before.iter().any(part)
        };
        let is_gathered = |at: usize, stage: usize| {
            let is_change =
                |it: &&Action| matches!(it, Action::Gather(s) | Action::Release(s) if *s == stage);
            matches!(list[..at].iter().rfind(is_change), Some(Action::Gather(_)))
        };
        let is_sharded = list.iter().any(|it| matches!(it, Action::Gather(_)));
        let uses = |action: &Action| action.computes().map(|it| it.stage).collect::<Vec<_>>();
        list.iter().enumerate().all(|(at, action)| {
            let ordered =
                needs(*action, program).iter().all(|any| any.iter().any(|it| is_done(at, it)));
            let gathered = !is_sharded || uses(action).iter().all(|&stage| is_gathered(at, stage));
            let changes = match *action {
                Action::Gather(stage) => !is_gathered(at, stage),
                Action::Release(stage) => is_gathered(at, stage),
                _ => true,
            };
            ordered && gathered && changes
        })
    })
}

/// Whether the graph of program order has a circle, with a send and its receive as one node.
fn has_circle(ranks: &[Vec<Action>]) -> bool {
    let mut nodes: HashMap<(usize, Action), usize> = HashMap::new();
    let mut edges: Vec<Vec<usize>> = Vec::new();
    for (rank, list) in ranks.iter().enumerate() {
        let mut previous: Option<usize> = None;
        for &action in list {
            let key = match action {
                Action::Send(it) | Action::Receive(it) => (usize::MAX, Action::Send(it)),
                other => (rank, other),
            };
            // Gathers and releases repeat; they order nothing between ranks.
            if matches!(action, Action::Gather(_) | Action::Release(_)) {
                continue;
            }
            let count = nodes.len();
            let node = *nodes.entry(key).or_insert(count);
            edges.resize(nodes.len(), Vec::new());
            if let Some(previous) = previous {
                edges[previous].push(node);
            }
            previous = Some(node);
        }
    }
    let mut indegree = vec![0; edges.len()];
    edges.iter().flatten().for_each(|&to| indegree[to] += 1);
    let mut free: Vec<usize> = (0..edges.len()).filter(|&it| indegree[it] == 0).collect();
    let mut removed = 0;
    while let Some(node) = free.pop() {
        removed += 1;
        for &to in &edges[node] {
            indegree[to] -= 1;
            if indegree[to] == 0 {
                free.push(to);
            }
        }
    }
    removed < edges.len()
}
