//! Planted faults: without one of the waits, the emulator must find an error in some order of the
//! streams' operations. With all of them there is none.

use std::env;
use std::process::Command;
use std::sync::Arc;

use meshgrad_runtime::{DType, Device, Error, Kind, Tensor, ops};

use super::Wait;
use crate::{Collectives, Communicator, Local, Rank, Reduction, conformance};

/// The wait that a child process leaves out.
const LEFT_OUT: &str = "MESHGRAD_TEST_LEFT_OUT";

/// Random orders of stream operations.
const SEEDS: u64 = 6;

pub(super) fn is_left_out(wait: Wait) -> bool {
    env::var(LEFT_OUT).is_ok_and(|left_out| left_out == format!("{wait:?}"))
}

#[test]
fn each_wait_is_needed() {
    if !Device::emulator_is_built() {
        println!("skipped: the emulator is not built");
        return;
    }
    let orders = || (1..=SEEDS).map(|seed| format!("random:{seed}"));
    for order in orders().chain(["ordered".to_owned()]) {
        run_child("nothing", &order).unwrap();
    }
    for wait in [Wait::Operands, Wait::Shards, Wait::End] {
        let left_out = format!("{wait:?}");
        let found = orders().filter_map(|order| run_child(&left_out, &order).err());
        let found: Vec<String> = found.collect();
        let is_expected =
            |text: &&String| text.contains("uninitialized-global") || text.contains("differs");
        assert!(
            found.iter().any(|text| is_expected(&text)),
            "without {wait:?} nothing is found: {found:?}"
        );
        let by_sanitizer = found.iter().filter(|it| it.contains("uninitialized-global"));
        let (by_sanitizer, found) = (by_sanitizer.count(), found.len());
        println!("{wait:?}: {found} of {SEEDS} orders fail, {by_sanitizer} in the sanitizer");
        if wait != Wait::End {
            assert!(by_sanitizer > 0, "{wait:?}");
        }
    }
}

/// The error is the output of the process.
fn run_child(left_out: &str, order: &str) -> Result<(), String> {
    let output = Command::new(env::current_exe().unwrap())
        .args(["local::gpus::faults::child", "--exact", "--nocapture"])
        .env(LEFT_OUT, left_out)
        .env("MESHGRAD_EMULATOR_DEVICES", "3")
        .env("MESHGRAD_EMULATOR_STREAMS", order)
        .output()
        .unwrap();
    let words = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    match output.status.success() {
        true => Ok(()),
        false => Err(words.concat()),
    }
}

/// Runs on three GPUs; without its variable it does nothing.
#[test]
fn child() {
    if env::var_os(LEFT_OUT).is_none() {
        return;
    }
    let devices = (0..3).map(|rank| Device::emulator(rank).unwrap());
    let results = Local::new(3).devices(devices.collect()).launch(|rank| {
        let comm = rank.world().map_err(|error| error.to_string())?;
        results_are_read(&comm)?;
        operands_are_overwritten(&comm)?;
        let checks = conformance::checks().into_iter();
        let mut checks = checks.filter(|check| check.dtype() == DType::F32);
        let checked = checks.try_for_each(|check| check.run(&comm, 300));
        checked.map_err(|error| error.to_string())
    });
    results.unwrap();
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Kernels read results. All tensors are kept, so none is in memory that was written before.
fn results_are_read(comm: &Arc<dyn Communicator>) -> Result<(), String> {
    let mut kept = Vec::new();
    for _ in 0..20 {
        let x = ops::full(comm.device(), &[300], DType::F32, 1.0).map_err(text)?;
        let sum = comm.all_reduce(&x, Reduction::Sum).map_err(text)?;
        let sum = sum.wait().map_err(text)?;
        let twice = ops::add(&sum, &sum).map_err(text)?;
        if twice.to_vec::<f32>().map_err(text)? != [6.0; 300] {
            return Err("the sum differs".to_owned());
        }
        kept.extend([x, sum, twice]);
    }
    Ok(())
}

/// After its wait, the root writes the tensor that the others copied.
fn operands_are_overwritten(comm: &Arc<dyn Communicator>) -> Result<(), String> {
    for round in 0..30 {
        let (root, value) = (round % 3, round as f32);
        let x = Tensor::zeros(comm.device(), &[300], DType::F32, Kind::Cache).map_err(text)?;
        ops::fill_into(&x, f64::from(value)).map_err(text)?;
        let copied = comm.broadcast_in_place(&x, root).map_err(text)?;
        copied.wait().map_err(text)?;
        if comm.index() == root {
            ops::fill_into(&x, -1.0).map_err(text)?;
        } else if x.to_vec::<f32>().map_err(text)? != [value; 300] {
            return Err(format!("the copy differs in round {round}"));
        }
    }
    Ok(())
}
