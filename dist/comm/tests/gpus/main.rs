//! Ranks whose devices are GPUs: the conformance suite, and what only streams have.
//!
//! The GPUs are emulated, or with `MESHGRAD_TEST_GPU=cuda` real ones, which ranks share if there are
//! fewer. The emulator
//! reads its options once per process, so each test runs itself in child processes, with streams in
//! order and in several random orders.

mod conformance;
mod nccl;
mod processes;
mod streams;

use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshgrad_comm::Local;
use meshgrad_runtime::Device;

/// The variable of child processes.
const CHILD: &str = "MESHGRAD_TEST_CHILD";

/// The most GPUs of a test.
const GPUS: usize = 8;

/// The orders of stream operations: as submitted, and interleaved as far as events allow.
const STREAMS: [&str; 4] = ["ordered", "random:1", "random:2", "random:3"];

/// Runs `test` in a child process for each order, if this is not a child; else runs `body`.
fn in_each_order(test: &str, orders: &[&str], body: impl FnOnce()) {
    in_each_order_with(&[], test, orders, body);
}

/// [`in_each_order`] with more variables of the environment.
fn in_each_order_with(
    variables: &[(&str, &str)],
    test: &str,
    orders: &[&str],
    body: impl FnOnce(),
) {
    if env::var_os(CHILD).is_some() || is_real() {
        return body();
    }
    if !Device::emulator_is_built() {
        println!("skipped: the emulator is not built");
        return;
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(order) = orders.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run_child(variables, test, order);
                }
            });
        }
    });
}

fn run_child(variables: &[(&str, &str)], test: &str, order: &str) {
    let output = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .env("MESHGRAD_EMULATOR_DEVICES", GPUS.to_string())
        .env("MESHGRAD_EMULATOR_STREAMS", order)
        .env("MESHGRAD_EMULATOR_LEAKS", "error")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{test}, {order}: {text}{out}");
    assert!(out.contains("1 passed"), "{test} is no test: {out}");
}

/// Whether the tests run on a real GPU.
fn is_real() -> bool {
    match env::var("MESHGRAD_TEST_GPU").as_deref() {
        Ok("cuda") => true,
        Ok(other) => panic!("MESHGRAD_TEST_GPU={other} is unknown; the only value is `cuda`"),
        Err(_) => false,
    }
}

/// The device of rank `ordinal`.
fn gpu(ordinal: usize) -> Device {
    let device = match is_real() {
        true => Device::cuda_count().and_then(|count| Device::cuda(ordinal % count.max(1))),
        false => Device::emulator(ordinal),
    };
    device.unwrap_or_else(|error| panic!("{error}"))
}

/// A world whose ranks each have a GPU.
fn gpus(ranks: usize) -> Local {
    Local::new(ranks).devices((0..ranks).map(gpu).collect())
}
