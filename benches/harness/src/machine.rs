//! Properties of the machine, for reports.

use std::fs;

use serde::Serialize;

/// Properties of the machine, as reported by the system.
#[derive(Serialize)]
pub struct Machine {
    /// The model of the CPU, if known.
    pub cpu: Option<String>,
    /// Logical cores that this process may use.
    pub cores: usize,
    /// Bytes of RAM, if known.
    pub memory_bytes: Option<u64>,
    /// The operating system and its kernel release.
    pub kernel: String,
}

impl Machine {
    /// This machine.
    pub fn this() -> Machine {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            cpu: proc_field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: proc_bytes("/proc/meminfo", "MemTotal"),
            kernel: format!("{} {}", std::env::consts::OS, release.trim()).trim_end().to_owned(),
        }
    }
}

/// The value of the first line `NAME: VALUE` of a file in /proc.
pub fn proc_field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    field(&text, name).map(str::to_owned)
}

/// The value of a field in bytes; the file gives it in bytes or in kB.
pub fn proc_bytes(path: &str, name: &str) -> Option<u64> {
    bytes(&proc_field(path, name)?)
}

fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn bytes(value: &str) -> Option<u64> {
    match value.strip_suffix(" kB") {
        Some(kibibytes) => Some(kibibytes.parse::<u64>().ok()? << 10),
        None => value.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kilobytes_are_converted_to_bytes() {
        let text = "MemTotal:       24633344 kB\nMemFree: 1 kB\nrchar: 17\n";
        let value = |name| field(text, name).and_then(bytes);
        assert_eq!(value("MemTotal"), Some(24_633_344 << 10));
        assert_eq!(value("rchar"), Some(17));
        assert_eq!(value("SwapTotal"), None);
    }
}
