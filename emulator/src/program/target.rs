//! Checks that a device can run a module, by the module's `.version` and `.target` (PTX ISA 11.1).

use super::LoadError;
use crate::ptx::PtxError;
use crate::ptx::syntax::Heading;

/// The newest supported PTX version.
const NEWEST: (u32, u32) = (9, 0);

/// Values of `.target` besides an architecture.
const MODES: [&str; 4] = ["texmode_unified", "texmode_independent", "debug", "map_f64_to_f32"];

/// The first PTX version of each architecture (PTX ISA 13, "Release Notes"). Later versions support
/// it too.
const FIRST_VERSIONS: [(u32, (u32, u32)); 10] = [
    (60, (5, 0)),
    (70, (6, 0)),
    (75, (6, 3)),
    (80, (7, 0)),
    (86, (7, 1)),
    (89, (7, 8)),
    (90, (7, 8)),
    (100, (8, 6)),
    (103, (8, 8)),
    (120, (8, 7)),
];

/// The devices that run code for an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compatibility {
    /// Devices with the same or a higher compute capability.
    Upward,
    /// `f`: devices with the same major and the same or a higher minor capability.
    Family,
    /// `a`: only devices with the same capability.
    Exact,
}

/// The architecture of a heading, such as 80.
pub(super) fn architecture(heading: &Heading) -> u32 {
    let numbers = heading.targets.iter().filter_map(|it| parse(it));
    numbers.map(|(number, _)| number).max().unwrap_or(0)
}

/// Whether a heading has an architecture-specific target of this number, such as `sm_90a`.
pub(super) fn is_exactly(heading: &Heading, number: u32) -> bool {
    let mut targets = heading.targets.iter().filter_map(|it| parse(it));
    targets.any(|target| target == (number, Compatibility::Exact))
}

/// Checks that a device of compute capability `device` runs a module with this `heading`.
pub(super) fn check(source: &str, heading: &Heading, device: (u32, u32)) -> Result<(), LoadError> {
    let (major, minor) = heading.version;
    if heading.version > NEWEST {
        let words = format!(
            "the module is written in PTX {major}.{minor}; the newest supported version is {}.{}",
            NEWEST.0, NEWEST.1
        );
        return Err(LoadError::Version(PtxError::new(source, heading.version_line, words)));
    }
    let error = |words: String| PtxError::new(source, heading.target_line, words);
    for target in &heading.targets {
        if MODES.contains(&target.as_str()) {
            continue;
        }
        let Some((number, compatibility)) = parse(target) else {
            let words = format!("`{target}` is not a target");
            return Err(LoadError::Ptx(vec![error(words)]));
        };
        if let Some(first) = first_version(number, compatibility).filter(|it| *it > heading.version)
        {
            let words = format!(
                "PTX {major}.{minor} does not support the target `{target}`; it needs \
                 `.version {}.{}`",
                first.0, first.1
            );
            return Err(LoadError::Ptx(vec![error(words)]));
        }
        if !runs(number, compatibility, device) {
            return Err(LoadError::Target(error(incompatible(target, compatibility, device))));
        }
    }
    Ok(())
}

/// Parses a target: `sm_90a` is 90, exact.
fn parse(target: &str) -> Option<(u32, Compatibility)> {
    let plain = target.strip_prefix("sm_");
    let number = plain.or_else(|| target.strip_prefix("compute_"))?;
    let (number, compatibility) = match number.as_bytes().last()? {
        b'a' => (&number[..number.len() - 1], Compatibility::Exact),
        b'f' => (&number[..number.len() - 1], Compatibility::Family),
        _ => (number, Compatibility::Upward),
    };
    Some((number.parse().ok()?, compatibility))
}

fn first_version(number: u32, compatibility: Compatibility) -> Option<(u32, u32)> {
    match (number, compatibility) {
        (90, Compatibility::Exact) => Some((8, 0)),
        (_, Compatibility::Family) => Some((8, 8)),
        _ => {
            let known = FIRST_VERSIONS.iter().find(|(known, _)| *known == number);
            known.map(|(_, first)| *first)
        }
    }
}

fn runs(number: u32, compatibility: Compatibility, device: (u32, u32)) -> bool {
    let wanted = (number / 10, number % 10);
    match compatibility {
        Compatibility::Upward => device >= wanted,
        Compatibility::Family => device.0 == wanted.0 && device.1 >= wanted.1,
        Compatibility::Exact => device == wanted,
    }
}

fn incompatible(target: &str, compatibility: Compatibility, (major, minor): (u32, u32)) -> String {
    let (who, least) = match compatibility {
        Compatibility::Upward => ("devices of that capability or higher", "a lower target"),
        Compatibility::Family => ("devices of its family", "a target without the `f`"),
        Compatibility::Exact => ("devices of exactly that capability", "a target without the `a`"),
    };
    format!(
        "the module targets `{target}`, which runs only on {who}; this device has compute \
         capability {major}.{minor}; choose {least}, or another device"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::AddressSpace;
    use crate::options::Options;
    use crate::program::Module;

    fn load(version: &str, target: &str, capability: (u32, u32)) -> Result<(), LoadError> {
        let text = format!(".version {version}\n.target {target}\n.entry k() {{ ret; }}");
        let options = Options { capability, ..Options::default() };
        Module::load(&text, &AddressSpace::new(), 0, &options).map(drop)
    }

    #[test]
    fn a_device_runs_modules_for_its_capability_and_lower() {
        let (a100, h200, b200) = ((8, 0), (9, 0), (10, 0));
        for (version, target, runs) in [
            ("7.0", "sm_80", [true, true, true]),
            ("6.3", "sm_75, debug", [true, true, true]),
            ("7.8", "sm_90", [false, true, true]),
            ("8.0", "sm_90a", [false, true, false]),
            ("8.7", "sm_100", [false, false, true]),
            ("9.0", "compute_100f", [false, false, true]),
            ("9.0", "sm_103f", [false, false, false]),
        ] {
            for (device, runs) in [a100, h200, b200].into_iter().zip(runs) {
                let loaded = load(version, target, device);
                let refused = matches!(loaded, Err(LoadError::Target(_)));
                assert_eq!((loaded.is_ok(), refused), (runs, !runs), "{target} {device:?}");
            }
        }
    }

    #[test]
    fn errors_name_both_values_and_the_line() {
        let error = load("8.0", "sm_90a", (8, 0)).unwrap_err().to_string();
        assert!(error.contains("`sm_90a`") && error.contains("8.0"), "{error}");
        assert!(error.contains("ptx line 2"), "{error}");
        let error = load("99.9", "sm_80", (8, 0)).unwrap_err();
        assert!(matches!(error, LoadError::Version(_)));
        let error = error.to_string();
        assert!(error.contains("99.9") && error.contains("9.0"), "{error}");
        for (version, target) in [("6.0", "sm_80"), ("7.8", "sm_90a"), ("8.0", "fast")] {
            let error = load(version, target, (9, 0)).unwrap_err();
            assert!(matches!(error, LoadError::Ptx(_)), "{version} {target}");
        }
    }

    #[test]
    fn version_and_target_are_required() {
        for text in ["", ".entry k() { ret; }", ".version 8.0\n.entry k() { ret; }", ".version 8"] {
            let loaded = Module::load(text, &AddressSpace::new(), 0, &Options::default());
            assert!(matches!(loaded.err(), Some(LoadError::Ptx(_))), "{text}");
        }
    }
}
