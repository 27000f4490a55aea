//! On a machine without a usable GPU, the error has one message with a remedy. Each case runs in a
//! child process, because a process opens the driver only once.

use std::path::PathBuf;

use crate::processes;
use meshgrad_runtime::Device;

/// The environment variable that selects what [`opens_a_gpu`] opens: `emulator`, `cuda`, or `both`,
/// one after the other.
const OPEN: &str = "MESHGRAD_TEST_OPEN";

/// Prints the device that it opened or the error.
#[test]
#[ignore = "started by the other tests"]
fn opens_a_gpu() {
    let opened = match std::env::var(OPEN).as_deref() {
        Ok("cuda") => Device::cuda(0),
        Ok("both") => Device::emulator(0).and_then(|_| Device::cuda(0)),
        _ => Device::emulator(0),
    };
    match opened {
        Ok(device) => println!("<{device} opened>"),
        Err(error) => println!("<{error}>"),
    }
}

/// Runs [`opens_a_gpu`] for `open` with these environment variables. Returns the device that it
/// printed, or the error.
fn opened(open: &str, variables: &[(&str, &str)]) -> String {
    let variables = [&[(OPEN, open)], variables].concat();
    let run = processes::run(&["machines::opens_a_gpu"], &variables);
    let output = String::from_utf8(run.stdout).unwrap();
    let message = output.split_once('<').and_then(|(_, rest)| rest.rsplit_once('>'));
    message.unwrap_or_else(|| panic!("{output}")).0.to_string()
}

/// [`opened`] for the emulator; `None` if it is not built.
fn emulated(variable: &str, value: &str) -> Option<String> {
    if !Device::emulator_is_built() {
        eprintln!("no emulator found: skipped");
        return None;
    }
    Some(opened("emulator", &[(variable, value)]))
}

#[test]
fn no_driver() {
    let message = opened("cuda", &[]);
    if message.starts_with("cuda:0 ") {
        eprintln!("there is a driver: {message}");
        return;
    }
    assert_eq!(
        message,
        "no CUDA driver: libcuda.so could not be loaded; install NVIDIA's driver, or use a CPU \
         device or the emulator (Device::emulator)"
    );
}

#[test]
fn no_emulator() {
    let message = opened("emulator", &[("MESHGRAD_EMULATOR", "/nowhere/none.so")]);
    assert_eq!(
        message,
        "no emulator: looked for /nowhere/none.so; run `cargo build --release -p meshgrad-emulator` in \
         meshgrad's source, then copy target/release/libmeshgrad_emulator.so next to this program, \
         or set MESHGRAD_EMULATOR to it"
    );
    // An empty variable counts as unset.
    if let Some(found) = emulated("MESHGRAD_EMULATOR", "") {
        assert_eq!(found, "emulator:0 opened");
    }
}

/// A file that is not a library, or is not the emulator's library, is reported.
#[test]
fn broken_emulators() {
    let path = std::env::temp_dir().join(format!("not-a-library-{}", std::process::id()));
    std::fs::write(&path, "not a library".repeat(1000)).unwrap();
    let broken = path.to_str().unwrap();
    let message = opened("emulator", &[("MESHGRAD_EMULATOR", broken)]);
    std::fs::remove_file(&path).unwrap();
    let begins = format!("the emulator {broken} could not be opened: {broken}: ");
    let ends =
        "; rebuild it with `cargo build --release -p meshgrad-emulator` in meshgrad's source";
    assert!(message.starts_with(&begins) && message.ends_with(ends), "{message}");

    let Some(other) = other_library() else { return };
    let other = other.to_str().unwrap();
    let message = opened("emulator", &[("MESHGRAD_EMULATOR", other)]);
    assert_eq!(
        message,
        format!("the emulator {other} could not be opened: it is not the emulator's library{ends}")
    );
}

/// The C library of this process.
fn other_library() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.split_whitespace().last());
    let mut libraries = paths.filter(|path| path.contains("libc.so"));
    libraries.next().map(PathBuf::from)
}

#[test]
fn a_driver_that_is_too_old() {
    let Some(old) = emulated("MESHGRAD_EMULATOR_VERSION", "11.8") else {
        return;
    };
    assert_eq!(
        old,
        "the CUDA emulator supports CUDA 11.8, but 12.0 is needed; rebuild it with `cargo build \
         --release -p meshgrad-emulator` in meshgrad's source"
    );
    let Some(enough) = emulated("MESHGRAD_EMULATOR_VERSION", "12.0") else {
        return;
    };
    assert_eq!(enough, "emulator:0 opened");
}

#[test]
fn a_gpu_that_is_too_old() {
    let Some(old) = emulated("MESHGRAD_EMULATOR_DEVICES", "v100,a100") else {
        return;
    };
    assert_eq!(
        old,
        "emulator:0 (NVIDIA V100-SXM2-32GB (meshgrad emulator)) has compute capability 7.0, but the \
         kernels need 8.0 (A100) or newer; use another GPU or a CPU device"
    );
}

#[test]
fn no_gpu() {
    let Some(none) = emulated("MESHGRAD_EMULATOR_DEVICES", "0") else {
        return;
    };
    assert_eq!(none, "emulator:0 does not exist: MESHGRAD_EMULATOR_DEVICES is 0");
}

#[test]
fn a_driver_that_does_not_start() {
    let Some(wrong) = emulated("MESHGRAD_EMULATOR_DEVICES", "h100") else {
        return;
    };
    assert_eq!(
        wrong,
        "cannot initialize the CUDA emulator: CUDA_ERROR_INVALID_VALUE (invalid argument)\n\
         MESHGRAD_EMULATOR_DEVICES=`h100` is invalid: expected a count up to 64, or names \
         such as h200,a100; correct or unset that variable"
    );
}

/// A process opens the driver or the emulator, never both.
#[test]
fn the_other_library() {
    let Some(_) = emulated("MESHGRAD_EMULATOR", "") else {
        return;
    };
    assert_eq!(
        opened("both", &[]),
        "this process uses the CUDA emulator, so it cannot also use the CUDA driver: both export \
         the same functions; start another process for the CUDA driver"
    );
}
