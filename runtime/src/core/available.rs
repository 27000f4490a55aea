//! Host memory that this process can still allocate.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory that the system has available, within the limits of this process's control groups;
/// `None` where the system does not report it.
pub(crate) fn host_memory() -> Option<usize> {
    let of_system = fs::read_to_string("/proc/meminfo").ok();
    let of_system = of_system.and_then(|text| field(&text, "MemAvailable:"))? << 10;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_groups = folders(&groups, Path::new("/sys/fs/cgroup"));
    let of_groups = of_groups.iter().filter_map(|folder| left_in(folder));
    Some(of_groups.fold(of_system, usize::min))
}

/// The number after `name` in a file of lines `name number`.
fn field(text: &str, name: &str) -> Option<usize> {
    let mut rest = text.lines().filter_map(|line| line.strip_prefix(name));
    rest.next()?.split_whitespace().next()?.parse().ok()
}

/// The folders below `root` of the control groups that limit memory, and of all groups above them.
/// `groups` is the text of `/proc/self/cgroup`. In a container its paths may be those of the host,
/// and then `root` itself is the container's group.
fn folders(groups: &str, root: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let root = match controllers {
            "" => root.to_owned(),
            _ if controllers.split(',').any(|it| it == "memory") => root.join("memory"),
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        folders.extend(path.ancestors().map(|group| root.join(group)));
    }
    folders
}

/// The bytes that a control group (version 1 or 2) may still allocate; `None` without a limit. Its
/// usage includes cached files, which do not count here because the kernel frees them when memory
/// is needed.
fn left_in(folder: &Path) -> Option<usize> {
    let number = |name: &str| -> Option<usize> {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        text.trim().parse().ok()
    };
    let (limit, used) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")?),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?),
    };
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    Some(limit.saturating_sub(used.saturating_sub(cached(&statistics))))
}

/// The bytes of cached files in `memory.stat`, inactive and active. Version 1 reports them with
/// (`total_`) and without child groups. Its limit includes child groups, so `total_` is used.
fn cached(statistics: &str) -> usize {
    let lists = ["inactive_file ", "active_file "].map(|list| {
        let all = field(statistics, &format!("total_{list}"));
        all.or_else(|| field(statistics, list))
    });
    lists.into_iter().flatten().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_reports_available_memory() {
        let available = host_memory().unwrap();
        assert!(available > 1 << 20 && available < 1 << 50, "{available}");
    }

    #[test]
    fn fields_are_found_by_name() {
        let text = "MemTotal:  100 kB\nMemAvailable:   42 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(42));
        assert_eq!(field(text, "MemFree:"), None);
    }

    #[test]
    fn parent_control_groups_are_limits() {
        let groups = "4:cpu,memory:/a/b\n3:cpuset:/c\n0::/d e\n";
        let found = folders(groups, Path::new("/r"));
        let expected = ["/r/memory/a/b", "/r/memory/a", "/r/memory/", "/r/d e", "/r/"];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    /// `memory.stat` of version 2, shortened.
    const VERSION_2: &str = "\
anon 3000
file 900
kernel 50
shmem 200
inactive_anon 100
active_anon 2900
inactive_file 400
active_file 300
unevictable 0
workingset_refault_file 7
";

    /// `memory.stat` of version 1, for a group with child groups.
    const VERSION_1: &str = "\
cache 40
rss 10
inactive_anon 1
active_anon 2
inactive_file 20
active_file 10
hierarchical_memory_limit 9000
total_cache 800
total_inactive_file 500
total_active_file 250
";

    /// Files that were read twice are on the active list, and are cached too.
    #[test]
    fn inactive_and_active_files_count_as_cached() {
        assert_eq!(cached(VERSION_2), 700);
        assert_eq!(cached(VERSION_1), 750);
        assert_eq!(cached("active_file 3\n"), 3);
        assert_eq!(cached(""), 0);
    }

    #[test]
    fn groups_of_both_versions_have_limits() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(place.path().join(name), text).unwrap();
        assert_eq!(left_in(place.path()), None);
        write("memory.limit_in_bytes", "1000\n");
        write("memory.usage_in_bytes", "700\n");
        assert_eq!(left_in(place.path()), Some(300));
        write("memory.stat", "cache 5\ninactive_file 50\ntotal_inactive_file 200\n");
        assert_eq!(left_in(place.path()), Some(500));
        write("memory.max", "2000\n");
        write("memory.current", "1900\n");
        assert_eq!(left_in(place.path()), Some(300));
        write("memory.max", "max\n");
        assert_eq!(left_in(place.path()), Some(500));
    }
}
