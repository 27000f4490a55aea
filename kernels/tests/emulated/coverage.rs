//! Every kernel of the catalogue, executed in many orders: the same bits in each, and no instruction
//! that none of the launches reaches.
//!
//! `cargo test -p meshgrad-kernels --test emulated coverage -- --nocapture` shows the table.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use meshgrad_kernels::catalogue;

use crate::device::{Device, Reached};
use crate::{elementwise, gemm, rms_norm};

/// Seeds beside the eager and the lazy order.
const RANDOM_ORDERS: u64 = 8;

/// Runs every kernel of a family on operands that are small, and between them reach all of its
/// code; returns the bytes of all results.
type Exercise = fn(&Device) -> Vec<u8>;

const EXERCISES: &[(&str, Exercise)] = &[
    ("elementwise", elementwise::exercise),
    ("rms_norm", rms_norm::exercise),
    ("gemm_f32", gemm::exercise_f32),
    ("gemm_bf16", gemm::exercise_bf16),
];

#[test]
fn coverage() {
    let families = catalogue::families();
    let names: Vec<&str> = families.iter().map(|(name, _)| *name).collect();
    let exercised: Vec<&str> = EXERCISES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, exercised, "every family has an exercise, in order");

    let (next, reached) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((name, exercise)) = EXERCISES.get(next.fetch_add(1, Ordering::Relaxed)) {
            let of_family = in_every_order(name, *exercise);
            reached.lock().unwrap().push((*name, of_family));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(work);
        }
    });

    let reached = reached.into_inner().unwrap();
    let mut left = Vec::new();
    println!("family        kernels  instructions  unreached");
    for (name, kernels) in families {
        let of_family = reached.iter().find(|(family, _)| *family == name);
        let of_family = &of_family.expect("an exercise for each family").1;
        let entries: BTreeSet<&String> = kernels.iter().map(|ptx| &ptx.entry).collect();
        for entry in &entries {
            match of_family.get(*entry) {
                None => left.push(format!("{entry} was never launched")),
                Some(lines) => {
                    left.extend(lines.missed.iter().map(|(line, text)| {
                        format!("{entry}: nothing reaches line {line}: {text}")
                    }))
                }
            }
        }
        let lines = of_family.values();
        let (all, missed) = lines.fold((0, 0), |(all, missed), lines| {
            let of_kernel = lines.reached.len() + lines.missed.len();
            (all + of_kernel, missed + lines.missed.len())
        });
        println!("{name:12} {:8} {all:13} {missed:10}", entries.len());
    }
    assert!(left.is_empty(), "{}", left.join("\n"));
}

/// Runs a family eagerly, lazily and in random orders; what all launches together reached.
fn in_every_order(family: &str, exercise: Exercise) -> Reached {
    let (mut first, mut all) = (None, Reached::new());
    for device in Device::in_random_orders(RANDOM_ORDERS) {
        let bits = exercise(&device);
        let first = first.get_or_insert_with(|| bits.clone());
        assert!(*first == bits, "{family}: other bits in another order");
        for (kernel, lines) in device.reached() {
            all.entry(kernel).or_default().add(&lines);
        }
    }
    all
}
