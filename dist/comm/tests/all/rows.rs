//! Collectives with gradients: values are those of plain loops over all ranks, and backward is the
//! transpose of forward.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use meshgrad_autograd::{
    Grads, LocalOperand, LocalResult, Tape, Var, beside, checkpoint, local, ops,
};
use meshgrad_collectives::communicator;
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Communicator, Local, Rank, Result, TracedRank};
use meshgrad_error::ensure;
use meshgrad_mesh::{Group as Ranks, Mesh, Sharding};
use meshgrad_runtime::{Device, Tensor};

use crate::random::Random;

const RANKS: usize = 3;
const FEATURES: usize = 2;

/// The rows of each rank. The second has none.
const ROWS: [usize; RANKS] = [3, 0, 4];

/// The rows that each rank sends to each: they add up to `ROWS`.
const SENT: [[usize; RANKS]; RANKS] = [[1, 0, 2], [0, 0, 0], [2, 1, 1]];

type Group = Arc<dyn Communicator>;
type Op = fn(&Var, usize, &Group) -> Result<Var>;

type Row = [f64; FEATURES];

/// Rows as plain numbers.
type Plain = Vec<Row>;

/// An op, the rows of its operand on each rank, and what a rank gets from the operands of all.
struct Case {
    name: &'static str,
    rows: [usize; RANKS],
    op: Op,
    plain: fn(&[Plain; RANKS], usize) -> Plain,
}

fn received(rank: usize) -> [usize; RANKS] {
    SENT.map(|sent| sent[rank])
}

/// The rows of rank `at`, when `rows` of each rank follow each other.
fn part(all: &[Row], rows: [usize; RANKS], at: usize) -> Plain {
    let start: usize = rows[..at].iter().sum();
    all[start..start + rows[at]].to_vec()
}

const CASES: [Case; 5] = [
    Case {
        name: "all_gather_rows",
        rows: ROWS,
        op: |x, _, group| ops::all_gather_rows(x, &ROWS, group),
        plain: |x, _| x.concat(),
    },
    Case {
        name: "reduce_scatter_rows",
        rows: [7; RANKS],
        op: |x, _, group| ops::reduce_scatter_rows(x, &ROWS, group),
        plain: |x, rank| {
            let sum = |row: usize| std::array::from_fn(|at| x.iter().map(|x| x[row][at]).sum());
            part(&(0..7).map(sum).collect::<Plain>(), ROWS, rank)
        },
    },
    Case {
        name: "all_to_all_rows",
        rows: ROWS,
        op: |x, rank, group| ops::all_to_all_rows(x, &SENT[rank], &received(rank), group),
        plain: |x, rank| (0..RANKS).flat_map(|from| part(&x[from], SENT[from], rank)).collect(),
    },
    Case {
        name: "all_to_all_slots",
        rows: [2 * RANKS; RANKS],
        op: |x, rank, group| {
            let slots = ops::reshape(x, &[RANKS, 2, FEATURES])?;
            let counts: Vec<i64> = (0..RANKS).map(|to| (10 * rank + to) as i64).collect();
            let counts = Tensor::from_slice(x.value().device(), &[RANKS], &counts)?;
            let (y, counts) = ops::all_to_all_slots(&slots, &counts, group)?;
            let expected: Vec<i64> = (0..RANKS).map(|from| (10 * from + rank) as i64).collect();
            ensure!(counts.to_vec::<i64>()? == expected, Mismatch, "the counts are {counts:?}");
            ops::reshape(&y, &[2 * RANKS, FEATURES])
        },
        plain: |x, rank| x.iter().flat_map(|x| part(x, [2; RANKS], rank)).collect(),
    },
    Case {
        name: "send_recv",
        rows: ROWS,
        op: |x, rank, group| {
            let [to, from] = [(rank + 1) % RANKS, (rank + RANKS - 1) % RANKS];
            ops::send_recv(x, [to, from], &[ROWS[from], FEATURES], group)
        },
        plain: |x, rank| x[(rank + RANKS - 1) % RANKS].clone(),
    },
];

/// Where the op is called.
#[derive(Clone, Copy, Debug)]
enum Within {
    Nothing,
    Local,
    Checkpoint,
}

/// Small integers, so that sums are exact.
fn numbers(seed: usize, rows: usize) -> Plain {
    let mut random = Random(seed as u64);
    (0..rows).map(|_| std::array::from_fn(|_| random.below(9) as f64 - 4.0)).collect()
}

fn tensor(device: &Device, x: &Plain) -> Result<Tensor> {
    Tensor::from_slice(device, &[x.len(), FEATURES], &x.concat())
}

fn plain(x: &Tensor) -> Result<Plain> {
    Ok(x.to_vec::<f64>()?.as_chunks().0.to_vec())
}

fn dot(a: &Plain, b: &Plain) -> f64 {
    a.concat().iter().zip(b.concat()).map(|(a, b)| a * b).sum()
}

/// y = op(x), and dx for dy = `dy`, on one rank. Without `dy`, nothing depends on y.
fn run(
    case: &Case,
    within: Within,
    (x, dy): (&Plain, Option<&Plain>),
    rank: &dyn Rank,
) -> Result<[Plain; 2]> {
    let (group, own, op) = (rank.world()?, rank.rank(), case.op);
    let ((x, y, unused), tape) = Tape::record(|| {
        let x = Var::input(tensor(rank.device(), x)?);
        let y = within.call(&x, move |x| op(x, own, &group))?;
        let unused = ops::affine(&x, 0.0, 0.0)?;
        Ok((x, y, unused))
    })?;
    let root = match dy {
        Some(dy) => (&y, tensor(rank.device(), dy)?),
        None => (&unused, unused.value().clone()),
    };
    let (dx, weights) = tape.backward_inputs(&[root], &[&x])?;
    weights.run(&mut Grads::new(&[])?)?;
    Ok([plain(y.value())?, plain(&dx[0])?])
}

/// Whether the values are those of plain loops, and <y, dy> = <x, dx> summed over all ranks. On rank
/// `without`, nothing depends on y, so its dy is zero.
fn holds(case: &Case, within: Within, fault: Fault, without: Option<usize>) -> bool {
    let x: [Plain; RANKS] = std::array::from_fn(|rank| numbers(rank, case.rows[rank]));
    let y: [Plain; RANKS] = std::array::from_fn(|rank| (case.plain)(&x, rank));
    let dy: [Plain; RANKS] = std::array::from_fn(|rank| numbers(10 + rank, y[rank].len()));
    let of_rank = |rank: usize| (without != Some(rank)).then_some(&dy[rank]);
    let ranks = match fault {
        // Transfers of swapped members match no receive, and end at the deadline.
        Fault::Swapped => Local::new(RANKS).deadline(Duration::from_secs(1)),
        _ => Local::new(RANKS),
    };
    let results = ranks.launch(|rank| {
        let own = rank.rank();
        run(case, within, (&x[own], of_rank(own)), &RewiredRank::faulty(rank, fault))
    });
    let results = match results {
        Ok(results) => results,
        Err(error) => {
            println!("{error}");
            return false;
        }
    };
    let ranks = results.iter().enumerate();
    let sums = ranks
        .map(|(rank, [y, dx])| (of_rank(rank).map_or(0.0, |dy| dot(y, dy)), dot(&x[rank], dx)));
    let sums = sums.fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    results.iter().zip(&y).all(|([actual, _], y)| actual == y) && sums.0 == sums.1
}

impl Within {
    /// `body` of `x`.
    fn call(self, x: &Var, body: impl Fn(&Var) -> Result<Var> + Send + 'static) -> Result<Var> {
        match self {
            Within::Nothing => body(x),
            Within::Checkpoint => checkpoint([x], move |[x]| body(&x)),
            Within::Local => {
                let one = Mesh::new(&[1], &["one"])?;
                let operand = LocalOperand::new::<&str>(x, &one, []);
                let result = LocalResult::new::<&str>(&one, [], &[]);
                let [y] = local([operand], [result], |[x]| Ok([body(&x)?]))?;
                Ok(y)
            }
        }
    }
}

/// A chain of collectives, whose gradients have been added to already on rank 0 only.
fn chain(rank: &dyn Rank, within: Within, seed: usize) -> Result<([Var; 2], Tape)> {
    let (group, own) = (rank.world()?, rank.rank());
    Tape::record(|| {
        let x = Var::input(tensor(rank.device(), &numbers(seed, ROWS[own]))?);
        let mut y = x.clone();
        for step in 0..3 {
            let group = group.clone();
            y = within.call(&y, move |y| {
                let z = ops::affine(y, 1.0 + step as f64, 0.5)?;
                let sent = ops::all_to_all_rows(&z, &SENT[own], &received(own), &group)?;
                let back = ops::all_to_all_rows(&sent, &received(own), &SENT[own], &group)?;
                match own {
                    0 => ops::add(&back, &z),
                    _ => Ok(back),
                }
            })?;
        }
        Ok([x, y])
    })
}

/// A backward pass beside a forward pass has the bits of the one after the other, and goes on at each of
/// its collectives: with six in each pass, the last of the backward pass has started before the last of
/// the forward pass ends.
#[test]
fn a_backward_pass_beside_another_pass_has_the_same_bits() {
    for within in [Within::Nothing, Within::Local, Within::Checkpoint] {
        let of_ranks = Local::run(RANKS, |rank| {
            let (own, traced) = (rank.rank(), TracedRank::new(rank));
            let dy = || tensor(rank.device(), &numbers(9, ROWS[own]));
            let outcome = |is_beside: bool| -> Result<([Plain; 3], u64)> {
                let ([x, y], tape) = chain(&traced, within, 1)?;
                let (grads, root) = (&mut Grads::new(&[])?, [(&y, dy()?)]);
                let before = traced.stats().collectives;
                let forward = || Ok((chain(&traced, within, 2)?, traced.stats().collectives));
                let ((([a, b], other), started), dx) = match is_beside {
                    true => tape.backward_beside(&root, &[&x], grads, forward)?,
                    false => (forward()?, tape.backward_with(&root, &[&x], grads)?),
                };
                let da = other.backward_with(&[(&b, dy()?)], &[&a], grads)?;
                Ok(([plain(&dx[0])?, plain(b.value())?, plain(&da[0])?], started - before))
            };
            Ok::<_, meshgrad_comm::Error>((outcome(true)?, outcome(false)?))
        });
        // A checkpointed block of the backward pass is recomputed.
        let recomputed = if matches!(within, Within::Checkpoint) { 6 } else { 0 };
        for ((beside, in_beside), (after, in_after)) in of_ranks.unwrap() {
            assert_eq!(beside, after);
            assert_eq!((in_beside, in_after), (12 + recomputed, 6), "{within:?}");
        }
    }
}

/// Work beside a body runs once: when the body has started to communicate, or after it.
#[test]
fn work_runs_beside_the_first_collective() {
    Local::run(RANKS, |rank| {
        let (group, own) = (rank.world()?, rank.rank());
        let x = Var::input(tensor(rank.device(), &numbers(1, ROWS[own]))?);
        let order: Rc<RefCell<Vec<&str>>> = Rc::default();
        let note = |what| {
            let order = order.clone();
            move || {
                order.borrow_mut().push(what);
                Ok::<_, meshgrad_comm::Error>(())
            }
        };
        beside(note("work"), || {
            let sent = ops::all_to_all_rows(&x, &SENT[own], &received(own), &group)?;
            note("sent")()?;
            ops::all_to_all_rows(&sent, &received(own), &SENT[own], &group)?;
            note("back")()
        })?;
        beside(note("more work"), note("no collective"))?;
        assert_eq!(*order.borrow(), ["work", "sent", "back", "no collective", "more work"]);
        let fails = || -> Result<()> { Err(meshgrad_error::error!(Invalid, "the work fails")) };
        let failed = beside(fails, || ops::all_gather_rows(&x, &ROWS, &group)).err();
        assert_eq!(failed.unwrap().to_string(), "the work fails");
        Ok::<_, meshgrad_comm::Error>(())
    })
    .unwrap();
}

/// A body that communicates in a block of its own, of whatever kind, does not take the work into it: the
/// work has its gradient.
#[test]
fn work_beside_is_recorded_on_the_tape_of_its_caller() {
    for within in [Within::Nothing, Within::Local, Within::Checkpoint] {
        let of_ranks = Local::run(RANKS, |rank| {
            let (group, own) = (rank.world()?, rank.rank());
            let ([x, of_work, of_body], tape) = Tape::record(|| {
                let x = Var::input(tensor(rank.device(), &numbers(1, ROWS[own]))?);
                let operand = x.clone();
                let (of_work, of_body) = beside(
                    move || ops::affine(&operand, 3.0, 0.0),
                    || within.call(&x, move |x| ops::all_gather_rows(x, &ROWS, &group)),
                )?;
                Ok([x, of_work, of_body])
            })?;
            let roots = [&of_work, &of_body].map(|y| (y, y.value().clone()));
            let dx = tape.backward_with(&roots, &[&x], &mut Grads::new(&[])?)?;
            Ok::<_, meshgrad_comm::Error>([plain(x.value())?, plain(&dx[0])?])
        });
        for [x, dx] in of_ranks.unwrap() {
            // 3 * 3 x from the work, and one x from each rank that gathers it.
            let expected: Plain =
                x.iter().map(|row| row.map(|x| (9.0 + RANKS as f64) * x)).collect();
            assert_eq!(dx, expected, "{within:?}");
        }
    }
}

/// After an error of the body, and with one in the backward pass, the gradients can be used again.
#[test]
fn errors_beside_a_backward_pass_are_returned() {
    let of_ranks = Local::run(RANKS, |rank| {
        let ([x, y], tape) = chain(rank, Within::Nothing, 1)?;
        let (grads, root) = (&mut Grads::new(&[])?, y.value().clone());
        let fails = || -> Result<()> { Err(meshgrad_error::error!(Invalid, "the body fails")) };
        let failed = tape.backward_beside(&[(&y, root)], &[&x], grads, fails).err();
        let ([x, y], tape) = chain(rank, Within::Nothing, 1)?;
        tape.backward_with(&[(&y, y.value().clone())], &[&x], grads)?;
        Ok::<_, meshgrad_comm::Error>(failed.map(|error| error.to_string()))
    });
    assert_eq!(of_ranks.unwrap(), vec![Some("the body fails".to_owned()); RANKS]);
}

#[test]
fn backward_is_the_transpose_of_forward() {
    for case in &CASES {
        for within in [Within::Nothing, Within::Local, Within::Checkpoint] {
            for without in [None, Some(0), Some(1), Some(2)] {
                let place = format!("{}, {within:?}, {without:?}", case.name);
                assert!(holds(case, within, Fault::None, without), "{place}");
            }
        }
        for fault in Fault::ALL {
            assert!(!holds(case, Within::Nothing, fault, None), "{}, {fault:?}", case.name);
        }
    }
}

#[test]
fn wrong_operands_are_errors() {
    Local::run(2, |rank| -> Result<()> {
        let (world, mesh) = (rank.world()?, Mesh::new(&[2], &["dp"])?);
        let x = tensor(rank.device(), &numbers(1, 2))?;
        let counts = Tensor::from_slice(rank.device(), &[1], &[2i64])?;
        let error = ops::all_to_all_slots(&x, &counts, &world).err().unwrap().to_string();
        assert!(error.contains("pass one slot and one count for each"), "{error}");

        let sharded =
            x.with_sharding(&Sharding::replicated(&mesh, &[2, FEATURES])?, rank.rank())?;
        let error = ops::all_gather_rows(&sharded, &[2, 2], &world).err().unwrap().to_string();
        assert!(error.contains("call it in the body of `local`"), "{error}");

        let alone = rank.connect("alone", &Ranks::new([rank.rank()])?)?;
        let error = ops::send_recv(&x, [0, 0], &[7, FEATURES], &alone).err().unwrap().to_string();
        assert!(error.contains("is not of shape [7, 2]"), "{error}");

        let error = communicator(&mesh, ["dp"]).err().unwrap().to_string();
        assert!(error.starts_with("communicator: no ranks to communicate with"), "{error}");
        Ok(())
    })
    .unwrap();
}
