//! The configuration of the emulated machine, read from environment variables.

use std::path::PathBuf;

use super::device::Model;
use super::nccl::sums::Sums;

/// `MESHGRAD_EMULATOR_DEVICES`: a count (`4`), or models by name (`h200,h200,a100`).
const DEVICES: &str = "MESHGRAD_EMULATOR_DEVICES";
/// `MESHGRAD_EMULATOR_MEMORY`: bytes of memory per device (`256MiB`).
const MEMORY: &str = "MESHGRAD_EMULATOR_MEMORY";
/// `MESHGRAD_EMULATOR_VERSION`: the CUDA version that the driver reports (`13.0`).
const VERSION: &str = "MESHGRAD_EMULATOR_VERSION";
/// `MESHGRAD_EMULATOR_STREAMS`: `ordered` or `random:SEED`.
const STREAMS: &str = "MESHGRAD_EMULATOR_STREAMS";
/// `MESHGRAD_EMULATOR_LEAKS`: `report`, `error` or `off`.
const LEAKS: &str = "MESHGRAD_EMULATOR_LEAKS";
/// `MESHGRAD_EMULATOR_QUIET`: `1` keeps reports off stderr.
const QUIET: &str = "MESHGRAD_EMULATOR_QUIET";
/// `MESHGRAD_EMULATOR_SUMS`: the order of sums in collectives, `ring` or `perturbed:SEED`.
const SUMS: &str = "MESHGRAD_EMULATOR_SUMS";
/// `MESHGRAD_EMULATOR_HANGS`: `1` lets wrong collectives wait without end, as NCCL does, and reports nothing.
const HANGS: &str = "MESHGRAD_EMULATOR_HANGS";
/// `MESHGRAD_EMULATOR_PROCESSES`: `1` lets ranks of a communicator be in several processes.
pub(crate) const PROCESSES: &str = "MESHGRAD_EMULATOR_PROCESSES";
/// `MESHGRAD_EMULATOR_RESIDENT`: how many collectives may occupy a GPU at a time; without it, any number.
const RESIDENT: &str = "MESHGRAD_EMULATOR_RESIDENT";
/// `MESHGRAD_EMULATOR_NCCL`: the version of NCCL that is emulated, such as `2.19`.
const NCCL: &str = "MESHGRAD_EMULATOR_NCCL";
/// `MESHGRAD_EMULATOR_COUNTERS`: `table`, or the path of a file to append counters to.
const COUNTERS: &str = "MESHGRAD_EMULATOR_COUNTERS";

/// When stream operations are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamOrder {
    /// Immediately, in the call that submits them.
    Ordered,
    /// Deferred. The seed selects a random order among those that the API allows.
    Random(u64),
}

/// The handling of resources that a context still holds when it is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaks {
    Off,
    Report,
    /// Reported, and the call that destroys the context fails.
    Error,
}

/// The destination of launch counters, in addition to the counting API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CounterSink {
    Nowhere,
    Stderr,
    File(PathBuf),
}

/// The emulated machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    pub(crate) devices: Vec<Model>,
    /// Bytes of memory per device, overriding the model's.
    pub(crate) memory: Option<usize>,
    /// The CUDA version in the format of `cuDriverGetVersion`: 1000 * major + 10 * minor.
    pub(crate) version: i32,
    pub(crate) streams: StreamOrder,
    pub(crate) leaks: Leaks,
    pub(crate) quiet: bool,
    pub(crate) counters: CounterSink,
    pub(crate) sums: Sums,
    pub(crate) hangs: bool,
    pub(crate) processes: bool,
    /// How many collectives may occupy a GPU at a time.
    pub(crate) resident: Option<usize>,
    /// The version of NCCL in the format of `ncclGetVersion`: 10000 * major + 100 * minor + patch.
    pub(crate) nccl: i32,
}

impl Default for Configuration {
    fn default() -> Configuration {
        Configuration {
            devices: vec![Model::H200],
            memory: None,
            // The first version that loads PTX 9.0.
            version: 13000,
            streams: StreamOrder::Ordered,
            leaks: Leaks::Report,
            quiet: false,
            counters: CounterSink::Nowhere,
            sums: Sums::Ring,
            hangs: false,
            processes: false,
            resident: None,
            // The last before functions that are missing here.
            nccl: 22807,
        }
    }
}

/// An environment variable with an invalid value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}=`{value}` is invalid: expected {expected}")]
pub(crate) struct ConfigurationError {
    name: &'static str,
    value: String,
    expected: &'static str,
}

impl Configuration {
    /// Reads the configuration; `lookup` returns the value of an environment variable.
    pub(crate) fn read(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Configuration, ConfigurationError> {
        let default = Configuration::default();
        let variable = |name, expected| Variable {
            name,
            expected,
            value: lookup(name).filter(|value| !value.is_empty()),
        };
        Ok(Configuration {
            devices: variable(DEVICES, "a count up to 64, or names such as h200,a100")
                .parse(parse_devices, default.devices)?,
            memory: variable(MEMORY, "bytes such as 1048576, 512KiB, 256MiB or 4GiB")
                .parse(|text| parse_bytes(text).map(Some), default.memory)?,
            version: variable(VERSION, "a CUDA version such as 13.0")
                .parse(parse_version, default.version)?,
            streams: variable(STREAMS, "ordered, or random:SEED with a number as seed")
                .parse(parse_streams, default.streams)?,
            leaks: variable(LEAKS, "report, error or off").parse(parse_leaks, default.leaks)?,
            quiet: variable(QUIET, "0 or 1").parse(parse_switch, default.quiet)?,
            counters: variable(COUNTERS, "table, or a path")
                .parse(|text| Some(parse_counters(text)), default.counters)?,
            sums: variable(SUMS, "ring, or perturbed:SEED with a number as seed")
                .parse(parse_sums, default.sums)?,
            hangs: variable(HANGS, "0 or 1").parse(parse_switch, default.hangs)?,
            processes: variable(PROCESSES, "0 or 1").parse(parse_switch, default.processes)?,
            resident: variable(RESIDENT, "a number of collectives, at least 1")
                .parse(parse_resident, default.resident)?,
            nccl: variable(NCCL, "2.19, 2.28 or 2.30").parse(parse_nccl, default.nccl)?,
        })
    }
}

struct Variable {
    name: &'static str,
    expected: &'static str,
    value: Option<String>,
}

impl Variable {
    fn parse<T>(
        self,
        parse: impl Fn(&str) -> Option<T>,
        default: T,
    ) -> Result<T, ConfigurationError> {
        let Some(value) = self.value else {
            return Ok(default);
        };
        parse(value.trim()).ok_or(ConfigurationError {
            name: self.name,
            value,
            expected: self.expected,
        })
    }
}

fn parse_devices(text: &str) -> Option<Vec<Model>> {
    match text.parse::<usize>() {
        Ok(count) => (count <= 64).then(|| vec![Model::H200; count]),
        Err(_) => text.split(',').map(|name| Model::named(name.trim())).collect(),
    }
}

fn parse_sums(text: &str) -> Option<Sums> {
    match text.strip_prefix("perturbed:") {
        Some(seed) => seed.parse().ok().map(Sums::Perturbed),
        None => (text == "ring").then_some(Sums::Ring),
    }
}

fn parse_bytes(text: &str) -> Option<usize> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let unit = match text[digits..].trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<usize>().ok()?.checked_mul(unit)
}

fn parse_version(text: &str) -> Option<i32> {
    let (major, minor) = text.split_once('.')?;
    let part = |text: &str| text.parse::<u8>().ok().filter(|part| *part < 100);
    Some(i32::from(part(major)?) * 1000 + i32::from(part(minor)?) * 10)
}

fn parse_streams(text: &str) -> Option<StreamOrder> {
    match text.split_once(':') {
        None => (text == "ordered").then_some(StreamOrder::Ordered),
        Some(("random", seed)) => seed.parse().ok().map(StreamOrder::Random),
        Some(_) => None,
    }
}

fn parse_resident(text: &str) -> Option<Option<usize>> {
    text.parse().ok().filter(|limit| *limit > 0).map(Some)
}

fn parse_nccl(text: &str) -> Option<i32> {
    match text {
        "2.19" => Some(21903),
        "2.28" => Some(22807),
        "2.30" => Some(23007),
        _ => None,
    }
}

fn parse_leaks(text: &str) -> Option<Leaks> {
    match text {
        "report" => Some(Leaks::Report),
        "error" => Some(Leaks::Error),
        "off" => Some(Leaks::Off),
        _ => None,
    }
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn parse_counters(text: &str) -> CounterSink {
    match text {
        "table" => CounterSink::Stderr,
        path => CounterSink::File(path.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Configuration, ConfigurationError> {
        Configuration::read(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn the_environment_configures_the_machine() {
        assert_eq!(read(&[]).unwrap(), Configuration::default());
        let machine = read(&[
            (DEVICES, "h200, a100"),
            (MEMORY, "256MiB"),
            (VERSION, "11.8"),
            (STREAMS, "random:7"),
            (LEAKS, "error"),
            (QUIET, "1"),
            (COUNTERS, "counters.txt"),
            (SUMS, "perturbed:3"),
            (HANGS, "1"),
            (PROCESSES, "1"),
            (RESIDENT, "2"),
            (NCCL, "2.19"),
        ]);
        let expected = Configuration {
            devices: vec![Model::H200, Model::A100],
            memory: Some(256 << 20),
            version: 11080,
            streams: StreamOrder::Random(7),
            leaks: Leaks::Error,
            quiet: true,
            counters: CounterSink::File("counters.txt".into()),
            sums: Sums::Perturbed(3),
            hangs: true,
            processes: true,
            resident: Some(2),
            nccl: 21903,
        };
        assert_eq!(machine.unwrap(), expected);
        assert_eq!(read(&[(DEVICES, "4")]).unwrap().devices.len(), 4);
        assert_eq!(read(&[(DEVICES, "0")]).unwrap().devices.len(), 0);
    }

    #[test]
    fn invalid_values_are_named() {
        for (name, value) in [
            (DEVICES, "h100"),
            (DEVICES, "65"),
            (MEMORY, "many"),
            (MEMORY, "12MB"),
            (MEMORY, "99999999999999999999"),
            (VERSION, "12"),
            (VERSION, "12.x"),
            (STREAMS, "random"),
            (STREAMS, "random:x"),
            (LEAKS, "yes"),
            (QUIET, "2"),
            (SUMS, "tree"),
            (HANGS, "yes"),
            (PROCESSES, "2"),
            (RESIDENT, "0"),
            (NCCL, "3.0"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
