//! Runs every kernel of the catalogue in many orders of its threads. All orders must give the same
//! bits, and every instruction must be executed.
//!
//! `cargo test -p meshgrad-kernels --test all coverage -- --nocapture` shows the table.

use std::collections::BTreeSet;

use meshgrad_kernel_catalogue as catalogue;

use crate::device::{Device, Reached};
use crate::sample;

/// The number of random orders of an exhaustive run, in addition to the eager and the lazy one.
const RANDOM_ORDERS: u64 = 8;

/// Runs every kernel of a family on small operands that together execute all of its code; returns
/// the bytes of all results.
type Exercise = fn(&Device) -> Vec<u8>;

/// Defines one test per family of the catalogue, and a test that no family is missing.
macro_rules! exercises {
    ($($family:ident: $exercise:path,)*) => {
        $(
            #[test]
            fn $family() {
                cover(stringify!($family), $exercise);
            }
        )*

        #[test]
        fn every_family_has_an_exercise() {
            let families = catalogue::families().into_iter().map(|(name, _)| name);
            let exercised = [$(stringify!($family)),*];
            assert_eq!(families.collect::<Vec<_>>(), exercised);
        }
    };
}

exercises! {
    elementwise: crate::elementwise::exercise,
    copies: crate::copies::exercise,
    indexing: crate::indexing::exercise,
    gemm_f32: crate::gemm::exercise_f32,
    gemm_bf16: crate::gemm::exercise_bf16,
    gemm_parts: crate::gemm::exercise_parts,
    cross_entropy: crate::cross_entropy::exercise,
    swiglu: crate::swiglu::exercise,
    grouped: crate::grouped::exercise,
    expert_order: crate::expert_order::exercise,
    token_permute: crate::token_permute::exercise,
    rope: crate::rope::exercise,
    random: crate::random::exercise,
    norm_rope: crate::norm_rope::exercise,
    router: crate::router::exercise,
    adamw: crate::adamw::exercise,
    softmax: crate::softmax::exercise,
    reduce: crate::reduce::exercise,
    add_rms_norm: crate::add_rms_norm::exercise,
    attention: crate::attention::exercise,
    top_k: crate::top_k::exercise,
    global_norm: crate::global_norm::exercise,
    tree_reduce: crate::tree_reduce::exercise,
    row_map: crate::row_map::exercise,
    column_sums: crate::column_sums::exercise,
    cumsum: crate::cumsum::exercise,
    argsort: crate::argsort::exercise,
}

/// Runs a family in every order, and asserts that every instruction is executed.
fn cover(family: &str, exercise: Exercise) {
    let families = catalogue::families().into_iter();
    let of_family = families.filter(|(name, _)| *name == family);
    let entries: BTreeSet<String> =
        of_family.flat_map(|(_, kernels)| kernels).map(|ptx| ptx.entry).collect();

    let launched = in_every_order(family, exercise);
    let (mut left, mut instructions) = (Vec::new(), 0);
    for entry in &entries {
        let Some(lines) = launched.get(entry) else {
            left.push(format!("{entry} was never launched"));
            continue;
        };
        instructions += lines.reached.len() + lines.missed.len();
        let missed = lines.missed.iter();
        left.extend(
            missed.map(|(line, text)| format!("{entry}: line {line} was never executed: {text}")),
        );
    }
    println!(
        "{family}: {} kernels, {instructions} instructions, {} never executed",
        entries.len(),
        left.len()
    );
    assert!(left.is_empty(), "{}", left.join("\n"));
}

/// Runs a family eagerly, lazily and in random orders; returns the instructions executed.
fn in_every_order(family: &str, exercise: Exercise) -> Reached {
    let (mut first, mut all) = (None, Reached::new());
    for device in Device::in_random_orders(&sample::schedules(RANDOM_ORDERS)) {
        let bits = exercise(&device);
        let first = first.get_or_insert_with(|| bits.clone());
        assert!(*first == bits, "{family}: the results depend on the order");
        for (kernel, lines) in device.reached() {
            all.entry(kernel).or_default().add(&lines);
        }
    }
    all
}
