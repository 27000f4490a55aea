//! What was measured on: figures mean nothing without it.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// The machine, as far as it tells.
#[derive(Serialize)]
pub(super) struct Machine {
    pub(super) cpu: Option<String>,
    pub(super) cores: usize,
    pub(super) memory_bytes: Option<u64>,
    pub(super) kernel: String,
}

impl Machine {
    /// This one.
    pub(super) fn this() -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let release = read("/proc/sys/kernel/osrelease");
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name").map(str::to_owned),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(&read("/proc/meminfo")),
            kernel: format!("{} {}", std::env::consts::OS, release.trim())
                .trim_end()
                .to_owned(),
        }
    }
}

/// The value of a line `NAME : VALUE`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let total = field(meminfo, "MemTotal")?.strip_suffix(" kB")?;
    Some(total.parse::<u64>().ok()? << 10)
}

/// A file system that is mounted.
#[derive(Serialize, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) device: String,
    pub(super) mounted_at: String,
}

impl Mount {
    /// The one that `path` is on, where the system tells.
    pub(super) fn of(path: &Path) -> Option<Mount> {
        let path = fs::canonicalize(path).ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        find(&mounts, &path)
    }
}

/// The mount with the longest path above `path`; of several there the last, which hides the others.
fn find(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(parse);
    let above = mounts.filter(|mount| path.starts_with(&mount.mounted_at));
    above.max_by_key(|mount| mount.mounted_at.len())
}

/// A line such as `36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/vda rw` (proc(5)).
fn parse(line: &str) -> Option<Mount> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    Some(Mount {
        kind: unescaped(system.next()?),
        device: unescaped(system.next()?),
        mounted_at: unescaped(mount.split(' ').nth(4)?),
    })
}

/// Blanks are written as octal numbers there.
fn unescaped(text: &str) -> String {
    let mut text = text.to_owned();
    for (escaped, character) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        text = text.replace(escaped, character);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /data rw shared:7 master:2 - nfs4 server:/export rw,vers=4.2
24 22 0:22 / /data rw - xfs /dev/nvme0n1 rw
25 22 0:23 / /data/with\\040blank rw - tmpfs tmpfs rw
";

    #[test]
    fn the_nearest_mount_is_found() {
        let kind = |path| find(MOUNTS, Path::new(path)).map(|it| (it.kind, it.device));
        let named = |kind: &str, device: &str| Some((kind.to_owned(), device.to_owned()));
        assert_eq!(kind("/home/model"), named("ext4", "/dev/vda"));
        assert_eq!(kind("/data/model"), named("xfs", "/dev/nvme0n1"));
        assert_eq!(kind("/database"), named("ext4", "/dev/vda"));
        assert_eq!(kind("/data/with blank/x"), named("tmpfs", "tmpfs"));
        assert_eq!(find("", Path::new("/")), None);
    }

    #[test]
    fn memory_is_in_kilobytes() {
        let text = "MemTotal:       24633344 kB\nMemFree: 1 kB\n";
        assert_eq!(memory_bytes(text), Some(24_633_344 << 10));
        assert_eq!(memory_bytes("MemFree: 1 kB\n"), None);
    }
}
