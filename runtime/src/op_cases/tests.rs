//! The law of the table: it has a case of every op, and a case runs the op that it is named after.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{OpCase, Source, Written, small};
use crate::{DType, Device, Result, Tensor, ops};

/// Numbers in f64 on the CPU, and i64 indices.
struct Host(Device);

impl Source for Host {
    fn device(&self) -> &Device {
        &self.0
    }

    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let positive = self.positive(name, shape)?;
        ops::affine(&positive, 2.0, -2.0)
    }

    fn positive(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let number = |at: usize| 0.5 + ((at * 7 + name.len()) as f64 * 0.618).fract();
        Tensor::from_slice(&self.0, shape, &(0..count).map(number).collect::<Vec<_>>())
    }

    fn indices(&self, _: &str, shape: &[usize], below: usize) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let indices: Vec<i64> = (0..count).map(|at| (at * 5 % below) as i64).collect();
        Tensor::from_slice(&self.0, shape, &indices)
    }
}

/// The ops of a call, by name.
fn traced(case: &OpCase, device: &Device) -> Vec<&'static str> {
    let operands = case.whole(Written::Copies);
    let trace = device.trace_ops(|| Duration::ZERO).unwrap();
    let run = case.run(&operands);
    run.unwrap_or_else(|error| panic!("{}: {error}", case.name));
    trace.finish().iter().map(|span| span.name).collect()
}

#[test]
fn every_op_has_a_case_that_runs_it() {
    let source = Host(Device::cpu());
    let cases = small(&source).unwrap();
    let signatures: BTreeSet<&str> = ops::signatures().map(|it| it.name()).collect();
    let covered = cases.iter().filter(|case| {
        let is_op = signatures.contains(case.op);
        let ops = traced(case, &source.0);
        assert!(!is_op || ops.contains(&case.op), "{} ran {ops:?}", case.name);
        is_op
    });
    let covered: BTreeSet<&str> = covered.map(|case| case.op).collect();
    let missing: Vec<_> = signatures.difference(&covered).collect();
    assert!(missing.is_empty(), "ops without a case: {missing:?}");
}

#[test]
fn names_of_cases_are_unique() {
    let mut names = BTreeSet::new();
    for case in small(&Host(Device::cpu())).unwrap() {
        assert!(names.insert(case.name.clone()), "two cases `{}`", case.name);
    }
}

/// A case returns the same at every call, unless its op writes in place.
#[test]
fn calls_that_write_copies_do_not_change_the_operands() {
    let source = Host(Device::cpu());
    for case in small(&source).unwrap() {
        let call = || {
            let results = case.run(&case.whole(Written::Copies)).unwrap();
            let values = |x: &Tensor| ops::cast(x, DType::F64)?.to_vec::<f64>();
            results.iter().map(|x| values(x).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(call(), call(), "{}", case.name);
    }
}
