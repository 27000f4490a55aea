//! Reads golden tables of other libraries and creates the corresponding settings.

use std::path::Path;

use meshgrad_dist::parallel::{ParallelConfig, Parallelism, Settings, Source, Violations};
use serde_json::Value;

pub(crate) fn table(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn lists(value: &Value) -> Vec<Vec<usize>> {
    serde_json::from_value(value.clone()).unwrap()
}

pub(crate) fn number(value: &Value, key: &str) -> Option<usize> {
    value[key].as_u64().map(|number| number as usize)
}

pub(crate) fn digest<T: serde::Serialize>(lists: &T) -> String {
    let json = serde_json::to_string(lists).unwrap();
    format!("{:016x}", twox_hash::XxHash3_64::oneshot(json.as_bytes()))
}

pub(crate) fn here() -> Source {
    Source::code("the test")
}

/// Settings with degrees by name, and `world`.
pub(crate) fn settings(given: &[(&str, usize)]) -> Settings {
    let mut settings = Settings::new();
    for (name, size) in given {
        match Parallelism::from_name(name) {
            Some(kind) => settings.set(kind, *size, here()),
            None => {
                assert_eq!(*name, "world");
                settings.world(*size, here())
            }
        };
    }
    settings
}

pub(crate) fn config(given: &[(&str, usize)]) -> ParallelConfig {
    ParallelConfig::new(&settings(given)).unwrap()
}

pub(crate) fn ordered(given: &[(&str, usize)], order: &str) -> Result<ParallelConfig, Violations> {
    ParallelConfig::new(settings(given).order(order, here()))
}
