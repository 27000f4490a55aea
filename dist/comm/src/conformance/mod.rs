//! The conformance suite: checks that the author of a transport runs on its communicators.
//!
//! All members run the same checks with the same counts. A check compares the results of a
//! collective bit for bit with plain code that shares nothing with the library, so it needs no
//! other transport and no exchange between ranks.
//!
//! ```
//! use meshgrad_comm::{Local, Rank, conformance};
//!
//! let checked = Local::run(3, |rank| {
//!     let world = rank.world().map_err(|error| error.to_string())?;
//!     conformance::check(&world, &[0, 1, 7]).map_err(|difference| difference.to_string())
//! });
//! assert!(checked.is_ok());
//! ```
//!
//! [`Faulty`] plants faults below a communicator; every check must detect them.
//! [`RewiredRank::faulty`] plants them below all communicators of a rank.

mod checks;
mod control;
mod faulty;
mod plain;

use meshgrad_collectives::Communicator;
use meshgrad_error::{Result, error};
use meshgrad_runtime::DType;

use checks::Run;
pub use control::{check_control, check_control_after_failure};
pub use faulty::{Fault, Faulty, RewiredRank};
use plain::Plain;

/// A check of a kind of collective with elements of one dtype.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    name: &'static str,
    of: &'static dyn Plain,
    is_ragged: bool,
    run: Run,
}

impl Check {
    /// The collective, or what else it checks.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.of.dtype()
    }

    /// Whether members have different numbers of rows.
    pub fn is_ragged(&self) -> bool {
        self.is_ragged
    }

    /// Runs it, with `count` elements per member or a small multiple.
    ///
    /// # Errors
    /// When a collective fails, or its result is not the expected one.
    pub fn run(&self, communicator: &dyn Communicator, count: usize) -> Result<()> {
        (self.run)(communicator, self.of, count).map_err(|problem| {
            let (check, dtype) = (self.name, self.dtype());
            error!(Mismatch, "{check} of {dtype} with {count} elements: {problem}")
        })
    }
}

/// Runs every check for every dtype, with each of these counts.
///
/// # Errors
/// That of the first check that fails.
pub fn check(communicator: &dyn Communicator, counts: &[usize]) -> Result<()> {
    for check in checks() {
        for count in counts {
            check.run(communicator, *count)?;
        }
    }
    Ok(())
}

/// Every check for every dtype.
pub fn checks() -> Vec<Check> {
    plain::all::<false>().into_iter().flat_map(of_dtype).collect()
}

/// What ranks over NCCL fulfil: every check except for that of opposite messages that are not fused. Unless
/// sums have [the order of a tree](crate::NcclRank::tree), those of floats are exact, for up to 16 ranks.
pub fn checks_over_nccl(is_tree: bool) -> Vec<Check> {
    let elements = if is_tree { plain::all::<false>() } else { plain::all::<true>() };
    let checks = elements.into_iter().flat_map(of_dtype);
    checks.filter(|check| check.name != checks::OPPOSITE_NOT_FUSED).collect()
}

fn of_dtype(of: &'static dyn Plain) -> impl Iterator<Item = Check> {
    let check = move |is_ragged| move |(name, run)| Check { name, of, is_ragged, run };
    let even = checks::even().into_iter().map(check(false));
    even.chain(checks::ragged().into_iter().map(check(true)))
}
