//! Opening the library where there is none, and the configuration. `scripts/prove/nccl-library` compares all of
//! the table with libraries and headers of NVIDIA.

use std::ffi::OsStr;
use std::fs;

use meshgrad_error::Kind;
use meshgrad_mesh::GroupOptions;
use meshgrad_nccl::Library;
use meshgrad_nccl::raw::{Config, Status, Version};

fn refusal(path: &str) -> (Kind, String) {
    let error = Library::named(Some(OsStr::new(path))).unwrap_err();
    (error.kind(), format!("{error:#}"))
}

#[test]
fn a_missing_library_is_an_error_with_the_way_out() {
    let (kind, message) = refusal("/nowhere/libnccl.so.2");
    assert_eq!(kind, Kind::Missing);
    assert!(message.contains("/nowhere/libnccl.so.2: cannot open shared object file"), "{message}");
    assert!(message.contains("set MESHGRAD_NCCL to the path of libnccl.so.2"), "{message}");
}

#[test]
fn another_library_is_an_error() {
    let (kind, message) = refusal("libc.so.6");
    assert_eq!(kind, Kind::Unsupported);
    assert!(message.contains("cannot use libc.so.6 as NCCL"), "{message}");
    assert!(
        message.contains("it has no function `ncclGetVersion`; use NCCL 2.19 or newer"),
        "{message}"
    );
}

#[test]
fn a_file_that_is_no_library_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "text").unwrap();
    let (kind, message) = refusal(file.path().to_str().unwrap());
    assert_eq!(kind, Kind::Missing);
    assert!(
        message.contains("file too short") || message.contains("invalid ELF header"),
        "{message}"
    );
}

/// The integer of the configuration at a field of `nccl.h`.
fn field(config: &mut Config, name: &str) -> i32 {
    let (fields, _) = Config::offsets();
    let (_, at) = fields.iter().find(|(other, _)| *other == name).unwrap();
    // SAFETY: the field is an integer inside of the configuration.
    unsafe { config.as_mut_ptr().byte_add(*at).cast::<i32>().read() }
}

#[test]
fn a_configuration_has_what_is_set_and_nothing_else() {
    let mut options = GroupOptions::default();
    options.min_ctas = Some(4);
    options.nvlink_centric = Some(true);
    let mut config = Config::new(&options);
    // A minimum without a maximum would be refused.
    for (name, expected) in
        [("minCTAs", 4), ("maxCTAs", 64), ("nvlinkCentricSched", 1), ("blocking", 0)]
    {
        assert_eq!(field(&mut config, name), expected, "{name}");
    }
    for name in ["cgaClusterSize", "splitShare", "CTAPolicy", "graphUsageMode", "nvlsHostMode"] {
        assert_eq!(field(&mut config, name), i32::MIN, "{name}");
    }
    options.max_ctas = Some(8);
    assert_eq!(field(&mut Config::new(&options), "maxCTAs"), 8);
}

#[test]
fn codes_of_versions_and_results_are_read() {
    assert_eq!(Version::of_code(22105).to_string(), "2.21.5");
    assert!(
        Version::of_code(21903) >= Version::OLDEST && Version::of_code(21803) < Version::OLDEST
    );
    assert_eq!(Status(99).kind(), Kind::System);
}
