//! All tests of the crate, in one process.

mod laws;
mod local;
mod modules;
mod sharded;
mod torch;

/// Asserts that `result` is an error whose message contains `part`.
#[track_caller]
fn assert_error<T>(result: meshgrad_autograd::Result<T>, part: &str) {
    let error = result.err().expect("it is accepted").to_string();
    assert!(error.contains(part), "{error}");
}
