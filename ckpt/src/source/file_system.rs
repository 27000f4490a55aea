//! Local and network file systems, and the best way to read from each.

use std::fmt;
use std::fs::File;

use super::backend::Backend;
use crate::folder::Folder;

/// The location of a file system's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileSystem {
    /// On this machine, or of an unknown type.
    Local,
    /// On other machines: a request takes a millisecond, so fewer and larger ones are better.
    Remote {
        /// Its name, such as `NFS`.
        name: &'static str,
    },
}

/// Magic numbers of `statfs` (Linux `magic.h` and the systems' own headers).
const REMOTE: [(u64, &str); 15] = [
    (0x6969, "NFS"),
    (0x0bd0_0bd0, "Lustre"),
    (0x6573_5546, "FUSE"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x517b, "SMB"),
    (0x00c3_6400, "Ceph"),
    (0x1983_0326, "BeeGFS"),
    (0x4750_4653, "GPFS"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x0102_1997, "9p"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0xaad7_aaea, "PanFS"),
];

impl FileSystem {
    /// The file system of a folder's files: remote if any of them is, after following links.
    pub fn of(folder: &Folder) -> FileSystem {
        let files = folder.files().iter();
        let found = files.map(|file| FileSystem::of_file(file.handle()));
        found.max().unwrap_or(FileSystem::Local)
    }

    /// The file system of a file; local if the system does not report it.
    #[cfg(target_os = "linux")]
    pub(super) fn of_file(file: &File) -> FileSystem {
        let stat = rustix::fs::fstatfs(file);
        stat.map_or(FileSystem::Local, |it| FileSystem::from_magic(it.f_type as u64))
    }

    /// Always local: other systems identify file systems by name, which is not supported.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn of_file(_: &File) -> FileSystem {
        FileSystem::Local
    }

    /// The file system with this Linux magic number, `f_type` of `statfs`.
    pub fn from_magic(number: u64) -> FileSystem {
        // Some ports sign-extend the 32-bit number.
        let known = REMOTE.iter().find(|(it, _)| *it == number & 0xffff_ffff);
        known.map_or(FileSystem::Local, |(_, name)| FileSystem::Remote { name })
    }

    /// The backend of [`BackendChoice::Auto`](super::BackendChoice::Auto), and the reason.
    pub fn backend(&self) -> (Backend, &'static str) {
        let why = match self {
            FileSystem::Local => {
                "files in the page cache are read as fast as from a map, without page tables, \
                 and other files use the system's read-ahead"
            }
            FileSystem::Remote { .. } => {
                "a map would read one page at a time over the network, and direct reads would \
                 transfer every byte again for each process on this machine"
            }
        };
        (Backend::Pread, why)
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileSystem::Local => f.write_str("a local file system"),
            FileSystem::Remote { name } => write!(f, "{name}, a network file system"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magic numbers from Linux's `magic.h`, as `statfs` returns them.
    #[test]
    fn unknown_types_are_local() {
        let [ext4, xfs, tmpfs, overlay] = [0xef53, 0x5846_5342, 0x0102_1994, 0x794c_7630];
        for number in [ext4, xfs, tmpfs, overlay, 0, 0x1234_5678, u64::MAX] {
            assert_eq!(FileSystem::from_magic(number), FileSystem::Local);
        }
        for (number, name) in [(0x6969, "NFS"), (0x0bd0_0bd0, "Lustre"), (0xff53_4d42, "CIFS")] {
            let remote = FileSystem::Remote { name };
            assert_eq!(FileSystem::from_magic(number), remote);
            let sign_extended = i64::from(number as u32 as i32) as u64;
            assert_eq!(FileSystem::from_magic(sign_extended), remote);
        }
    }

    #[test]
    fn file_systems_have_a_description() {
        let nfs = FileSystem::from_magic(0x6969);
        assert_eq!(nfs.to_string(), "NFS, a network file system");
        assert_eq!(FileSystem::Local.to_string(), "a local file system");
    }

    /// A mapping or direct reads must be chosen explicitly, after measurement.
    #[test]
    fn auto_chooses_pread_and_explains_why() {
        let (local, why) = FileSystem::Local.backend();
        let (remote, why_remote) = FileSystem::from_magic(0x6969).backend();
        assert_eq!([local, remote], [Backend::Pread; 2]);
        assert!(why.contains("page cache") && why_remote.contains("network"));
    }
}
