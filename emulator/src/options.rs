//! Options of execution: schedule, sanitizers and limits.

use std::io::Write;
use std::sync::Arc;
use std::{env, fmt, io};

use crate::numerics::Approximation;

/// When asynchronous copies and products happen between their start and the wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncCopies {
    /// Immediately.
    Eager,
    /// At the wait, or after a failed test of the mbarrier at which they arrive.
    Lazy,
    /// At a random time in between.
    Random {
        /// The same seed gives the same run.
        seed: u64,
    },
}

/// A function that gets printed text.
pub type Print = dyn Fn(&[u8]) + Send + Sync;

/// Where the text goes that kernels print.
#[derive(Clone, Default)]
pub enum Output {
    /// The host's standard output.
    #[default]
    Stdout,
    /// A function, which gets the text of one `printf` of one thread at a time.
    Function(Arc<Print>),
}

impl Output {
    pub(crate) fn write(&self, text: &[u8]) {
        match self {
            Output::Stdout => {
                let mut out = io::stdout().lock();
                // Ignored: stdout may be closed.
                let _ = out.write_all(text).and_then(|()| out.flush());
            }
            Output::Function(write) => write(text),
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Output::Stdout => "Stdout",
            Output::Function(_) => "Function",
        })
    }
}

/// Two functions are equal if they are the same.
impl PartialEq for Output {
    fn eq(&self, other: &Output) -> bool {
        match (self, other) {
            (Output::Stdout, Output::Stdout) => true,
            (Output::Function(a), Output::Function(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// How kernels are executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Whether to check for uninitialized reads, races and divergence. Addresses are always
    /// checked.
    pub sanitize: bool,
    /// Seed of a random schedule of warps and CTAs; `None` for the fixed order.
    pub schedule_seed: Option<u64>,
    /// When asynchronous copies and products happen.
    pub async_copies: AsyncCopies,
    /// The results of approximate instructions.
    pub approximation: Approximation,
    /// Host threads that run CTAs; 0 for all cores.
    pub threads: usize,
    /// Whether to count executions, sectors and wavefronts per instruction.
    pub counters: bool,
    /// The address at which shared memory starts.
    pub shared_base: u32,
    /// The number of instructions that a CTA may execute without a store, atomic or barrier before
    /// it is reported as deadlocked. A wait loop that changes no register is reported much earlier.
    pub stall_limit: u64,
    /// Compute capability (major, minor) that modules are loaded for. The driver sets it to the
    /// capability of its device.
    pub capability: (u32, u32),
    /// Where the text goes that kernels print.
    pub output: Output,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sanitize: true,
            schedule_seed: None,
            async_copies: AsyncCopies::Eager,
            approximation: Approximation::Rounded,
            threads: 0,
            counters: false,
            shared_base: 0x400,
            stall_limit: 4_000_000_000,
            capability: (9, 0),
            output: Output::Stdout,
        }
    }
}

/// An environment variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value}: expected {expected}")]
pub struct OptionsError {
    /// The name of the variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// The accepted values.
    pub expected: &'static str,
}

impl Options {
    /// Reads the options from the environment (docs/emulator.md): `MESHGRAD_EMULATOR_SANITIZE`,
    /// `_SCHEDULE`, `_ASYNC`, `_APPROX`, `_THREADS`, `_SHARED_BASE` and `_STALL_LIMIT`.
    ///
    /// # Errors
    ///
    /// [`OptionsError`] for an invalid value.
    pub fn from_env() -> Result<Options, OptionsError> {
        Options::from_lookup(|variable| env::var(variable).ok())
    }

    /// [`Options::from_env`] with any source of variables.
    ///
    /// # Errors
    ///
    /// [`OptionsError`].
    pub fn from_lookup(
        lookup: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Options, OptionsError> {
        let mut options = Options::default();
        let mut set =
            |variable, expected, apply: &dyn Fn(&mut Options, &str) -> Option<()>| match lookup(
                variable,
            )
            .filter(|value| !value.is_empty())
            {
                None => Ok(()),
                Some(value) => {
                    apply(&mut options, &value).ok_or(OptionsError { variable, value, expected })
                }
            };
        set("MESHGRAD_EMULATOR_SANITIZE", "on or off", &|options, value| {
            options.sanitize = switch(value)?;
            Some(())
        })?;
        set("MESHGRAD_EMULATOR_SCHEDULE", "ordered or random:SEED", &|options, value| {
            options.schedule_seed = match value {
                "ordered" => None,
                _ => Some(value.strip_prefix("random:")?.parse().ok()?),
            };
            Some(())
        })?;
        set("MESHGRAD_EMULATOR_ASYNC", "eager, lazy or random:SEED", &|options, value| {
            options.async_copies = match value {
                "eager" => AsyncCopies::Eager,
                "lazy" => AsyncCopies::Lazy,
                _ => AsyncCopies::Random { seed: value.strip_prefix("random:")?.parse().ok()? },
            };
            Some(())
        })?;
        set("MESHGRAD_EMULATOR_APPROX", "rounded or perturbed:SEED", &|options, value| {
            options.approximation = match value {
                "rounded" => Approximation::Rounded,
                _ => Approximation::Perturbed {
                    seed: value.strip_prefix("perturbed:")?.parse().ok()?,
                },
            };
            Some(())
        })?;
        set("MESHGRAD_EMULATOR_THREADS", "a number", &|options, value| {
            options.threads = value.parse().ok()?;
            Some(())
        })?;
        set(
            "MESHGRAD_EMULATOR_SHARED_BASE",
            "a multiple of 1024 below 65536",
            &|options, value| {
                let base = value.parse().ok()?;
                (base % 1024 == 0 && base < 1 << 16).then_some(())?;
                options.shared_base = base;
                Some(())
            },
        )?;
        set("MESHGRAD_EMULATOR_STALL_LIMIT", "a number of instructions", &|options, value| {
            options.stall_limit = value.parse().ok()?;
            Some(())
        })?;
        Ok(options)
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" | "1" | "true" => Some(true),
        "off" | "0" | "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_of_the_environment_are_rejected() {
        let from = |name: &'static str, value: &'static str| {
            Options::from_lookup(move |variable| (variable == name).then(|| value.to_owned()))
        };
        let options = from("MESHGRAD_EMULATOR_SCHEDULE", "random:7").unwrap();
        assert_eq!(options.schedule_seed, Some(7));
        let options = from("MESHGRAD_EMULATOR_ASYNC", "lazy").unwrap();
        assert_eq!(options.async_copies, AsyncCopies::Lazy);
        let error = from("MESHGRAD_EMULATOR_ASYNC", "soon").unwrap_err();
        assert_eq!(
            error.to_string(),
            "MESHGRAD_EMULATOR_ASYNC=soon: expected eager, lazy or random:SEED"
        );
        assert!(from("MESHGRAD_EMULATOR_SHARED_BASE", "16").is_err());
        assert_eq!(from("PATH", "x").unwrap(), Options::default());
    }
}
