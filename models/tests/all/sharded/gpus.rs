//! Ranks whose devices are emulated GPUs.

use meshgrad_comm::Local;
use meshgrad_comm::conformance::Fault;
use meshgrad_models::moe::Dispatch;
use meshgrad_runtime::Device;

use crate::sharded::cases::{CASES, Case};
use crate::sharded::run::{Expected, on_ranks_of};
use crate::sharded::unchanged;

/// As on the CPU: dense and sparse, with every kind of seam, with experts that tokens are sent to, and
/// with rows that are divided by document.
#[test]
fn emulated_gpus_have_the_loss_and_gradients_of_one_cpu() {
    if !Device::emulator_is_built() {
        println!("skipped: the emulator is not built");
        return;
    }
    let sends =
        |case: &Case| case.apart.is_some_and(|(_, dispatch)| dispatch == Dispatch::AllToAll);
    let cases = CASES.iter().filter(|case| case.mesh().len() == 3 && !case.bf16);
    let divides = |case: &Case| case.ranks_of_documents().is_some();
    let chosen = |case: &&Case| case.sequence || sends(case) || divides(case);
    let cases: Vec<_> = cases.filter(chosen).collect();
    assert!(cases.len() >= 6);
    for case in cases {
        let devices = (0..3).map(|_| Device::emulator(0).unwrap());
        let local = Local::new(3).devices(devices.collect());
        let outcomes = on_ranks_of(&local, case, Fault::None, unchanged).unwrap();
        let expected = Expected::of(case).unwrap();
        for outcome in &outcomes {
            let same = expected.compare(outcome);
            assert!(same.is_ok(), "{case}: {same:?}");
        }
    }
}
