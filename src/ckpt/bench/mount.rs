//! The file system that was measured.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// A mounted file system.
#[derive(Serialize, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) device: String,
    pub(super) mounted_at: String,
}

impl Mount {
    /// The file system of `path`, if the system reports it.
    pub(super) fn of(path: &Path) -> Option<Mount> {
        let path = fs::canonicalize(path).ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        find(&mounts, &path)
    }
}

/// The mount whose path is the longest prefix of `path`. The last mount at a path hides earlier
/// ones.
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

/// Decodes the octal escapes of white space and backslashes.
fn unescaped(text: &str) -> String {
    let mut text = text.to_owned();
    for (escaped, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
    {
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
    fn the_mount_with_the_longest_prefix_is_found() {
        let kind = |path| find(MOUNTS, Path::new(path)).map(|it| (it.kind, it.device));
        let named = |kind: &str, device: &str| Some((kind.to_owned(), device.to_owned()));
        assert_eq!(kind("/home/model"), named("ext4", "/dev/vda"));
        assert_eq!(kind("/data/model"), named("xfs", "/dev/nvme0n1"));
        assert_eq!(kind("/database"), named("ext4", "/dev/vda"));
        assert_eq!(kind("/data/with blank/x"), named("tmpfs", "tmpfs"));
        assert_eq!(find("", Path::new("/")), None);
    }
}
