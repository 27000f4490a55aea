//! Random programs of ops and redistributions give on ranks what they give on one rank.

use std::sync::Arc;

use approx::relative_eq;
use meshgrad_autograd::{Result, Tape, Var, ops};
use meshgrad_collectives::with_redistribution;
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Incompatible, Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::{Device, Error, Tensor, ops as runtime, with_mesh};

use crate::parts::{assemble, part};
use crate::random::Random;
use crate::redistribution::gradients::named;
use crate::redistribution::{on_one_device, whole};

const ROWS: usize = 5;
const COLUMNS: usize = 4;
/// Ops of a program.
const OPS: usize = 8;

impl Random {
    fn placement(&mut self, dims: usize) -> Placement {
        match self.below(dims + 3) {
            0 => Placement::Replicate,
            1 => Placement::Partial(Reduction::Sum),
            2 => Placement::head_and_tail(0),
            dim => Placement::shard(dim - 3),
        }
    }

    /// A sharding without partial values.
    fn shards(&mut self, mesh: &Mesh, shape: &[usize]) -> Sharding {
        let mut placements = Vec::new();
        for axis in mesh.axes() {
            let at = self.placement(shape.len());
            let at = if at.dim().is_some() { at } else { Placement::Replicate };
            placements.push((axis.name().to_owned(), at));
        }
        if self.below(2) == 0 {
            placements.reverse();
        }
        Sharding::new(mesh, &placements, shape).unwrap()
    }
}

/// A rank of a mesh.
type On<'a> = Option<(&'a dyn Rank, &'a Mesh)>;

/// `op` of `operands`. If their shardings are refused, they are replicated first.
///
/// Every use of a value redistributes it to its own placements, which reduces the gradient of this
/// use: gradients that are partial in one use and replicated in another cannot be added.
fn call(on: On<'_>, operands: &[&Var], op: impl Fn(&[&Var]) -> Result<Var>) -> Result<Var> {
    let Some((_, mesh)) = on else {
        return op(operands);
    };
    let moved = |to: &dyn Fn(&Var) -> Vec<(String, Placement)>| -> Result<Var> {
        let moved: Result<Vec<Var>> =
            operands.iter().map(|x| ops::redistribute(*x, to(x))).collect();
        op(&moved?.iter().collect::<Vec<_>>())
    };
    match moved(&|x| x.value().sharding().map(named).unwrap_or_default()) {
        Err(error) if is_refused(&error) => moved(&|_| everywhere(mesh)),
        result => result,
    }
}

/// Whether an op does not accept the shardings of its operands, or cannot give one to its result.
fn is_refused(error: &Error) -> bool {
    let of_results = ["do not commute", "which have different extents"];
    error.details::<Incompatible>().is_some()
        || of_results.iter().any(|problem| error.to_string().contains(problem))
}

fn everywhere(mesh: &Mesh) -> Vec<(String, Placement)> {
    let replicate = |axis: &meshgrad_mesh::Axis| (axis.name().to_owned(), Placement::Replicate);
    mesh.axes().iter().map(replicate).collect()
}

/// One of the values, or something computed from some of them.
fn step(random: &mut Random, on: On<'_>, xs: &[Var], weights: &[Var]) -> Result<Var> {
    let mut pick = || &xs[random.below(xs.len())];
    let (a, b) = (pick(), pick());
    let [matrix, gain] = weights else { unreachable!() };
    match random.below(9) {
        0 => call(on, &[a, b], |x| ops::add(x[0], x[1])),
        1 => call(on, &[a, b], |x| ops::mul(x[0], x[1])),
        2 => call(on, &[a], |x| ops::silu(x[0])),
        3 => call(on, &[a], |x| ops::softmax(x[0])),
        4 => call(on, &[a, matrix], |x| ops::silu(&ops::linear(x[0], x[1])?)),
        5 => call(on, &[a, gain], |x| ops::rms_norm(x[0], x[1], 1e-6)),
        6 => {
            let mean = call(on, &[a], |x| ops::mean(x[0], &[0]))?;
            call(on, &[b, &mean], |x| ops::sub(x[0], x[1]))
        }
        _ => {
            let (axis, at) = (random.below(2), random.placement(2));
            match on {
                None => Ok(a.clone()),
                Some((_, mesh)) => {
                    let mut to = a.value().sharding().map(named).unwrap_or_default();
                    to.retain(|(name, _)| name != mesh.axes()[axis].name());
                    to.push((mesh.axes()[axis].name().to_owned(), at));
                    // A mean cannot become a sum, for example.
                    ops::redistribute(a, &to).or_else(|_| ops::redistribute(a, everywhere(mesh)))
                }
            }
        }
    }
}

/// The loss of a program, and the gradients of its operands.
fn run(seed: u64, on: On<'_>) -> Result<Vec<Tensor>> {
    let device = on.map_or_else(Device::cpu, |(rank, _)| rank.device().clone());
    let mut random = Random(seed);
    let shapes = [&[ROWS, COLUMNS][..], &[ROWS, COLUMNS], &[COLUMNS, COLUMNS], &[COLUMNS]];
    let mut placing = Random(seed ^ 1);
    let operands = shapes.map(|shape| {
        let numbers = runtime::cast(&whole(&device, shape), meshgrad_runtime::DType::F64).unwrap();
        let x = runtime::sin(&numbers).unwrap();
        match on {
            None => x,
            Some((rank, mesh)) => part(&x, &placing.shards(mesh, shape), rank.rank()),
        }
    });

    let ((operands, loss), tape) = Tape::record(|| {
        let operands = operands.map(Var::input);
        let mut xs = operands[..2].to_vec();
        for _ in 0..OPS {
            let y = step(&mut random, on, &xs, &operands[2..])?;
            xs.push(y);
        }
        let mut loss = None;
        for x in &xs {
            let square = call(on, &[x], |x| ops::square(x[0]))?;
            let mut sum = ops::sum(&square, &[0, 1])?;
            if let Some((_, mesh)) = on {
                sum = ops::redistribute(&sum, everywhere(mesh))?;
            }
            loss = Some(match loss {
                None => sum,
                Some(loss) => ops::add(&loss, &sum)?,
            });
        }
        Ok((operands, loss.unwrap_or_else(|| unreachable!())))
    })?;
    let one = runtime::full(&device, &[], meshgrad_runtime::DType::F64, 1.0)?;
    let (gradients, _) = tape.backward_inputs(&[(&loss, one)], &operands.each_ref())?;
    Ok([vec![loss.into_value()], gradients].concat())
}

fn is_near(parts: &[Tensor], expected: &Tensor) -> bool {
    let actual = assemble(parts, "the result").to_vec::<f64>().unwrap();
    let expected = expected.to_vec::<f64>().unwrap();
    relative_eq!(actual[..], expected[..], epsilon = 1e-9, max_relative = 1e-9)
}

/// Whether the program gives on ranks what it gives on one.
fn agrees(seed: u64, mesh: &Mesh, fault: Fault) -> bool {
    let expected = run(seed, None).unwrap();
    let results = Local::run(mesh.ranks().len(), |rank| {
        let rank = RewiredRank::faulty(rank, fault);
        with_redistribution(Arc::new(Redistributor::new(&rank)), || {
            with_mesh(mesh, rank.rank(), || run(seed, Some((&rank, mesh))))
        })
    });
    if fault == Fault::None
        && let Err(error) = &results
    {
        panic!("program {seed}: {error}");
    }
    results.is_ok_and(|results| {
        let results = on_one_device(&results);
        let of = |at: usize| results.iter().map(|it| it[at].clone()).collect::<Vec<_>>();
        let all = || expected.iter().enumerate().all(|(at, expected)| is_near(&of(at), expected));
        std::panic::catch_unwind(all).unwrap_or(false)
    })
}

#[test]
fn random_programs_agree_with_one_rank() {
    for mesh in [Mesh::new(&[3, 1], &["dp", "tp"]), Mesh::new(&[2, 3], &["dp", "tp"])] {
        let mesh = mesh.unwrap();
        for seed in 0..150 {
            assert!(agrees(seed, &mesh, Fault::None), "program {seed} on {mesh}");
        }
    }
}

#[test]
fn faults_in_random_programs_are_found() {
    let mesh = Mesh::new(&[3, 1], &["dp", "tp"]).unwrap();
    for fault in [Fault::Dropped, Fault::Scaled] {
        let found = (0..30).filter(|seed| !agrees(*seed, &mesh, fault)).count();
        // Every program reduces its loss, except one whose values are all replicated.
        assert!(found >= 25, "{fault:?} is found in {found} of 30 programs");
    }
}
