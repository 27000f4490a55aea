//! Which files are not on this machine.

use std::fs::File;

/// Magic numbers of `statfs` (Linux `magic.h` and the systems' own headers).
#[cfg(target_os = "linux")]
const REMOTE: [(u64, &str); 12] = [
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
    (0x0102_1997, "9p"),
    (0x0116_1970, "GFS2"),
];

/// The name of the network file system that a file is on.
#[cfg(target_os = "linux")]
pub(super) fn remote(file: &File) -> Option<&'static str> {
    let magic = rustix::fs::fstatfs(file).ok()?.f_type as u64;
    // Some ports sign-extend the 32-bit number.
    let (_, name) = REMOTE.iter().find(|(it, _)| *it == magic & 0xffff_ffff)?;
    Some(name)
}

/// Other systems have names instead of numbers; nothing here depends on knowing.
#[cfg(not(target_os = "linux"))]
pub(super) fn remote(_: &File) -> Option<&'static str> {
    None
}
