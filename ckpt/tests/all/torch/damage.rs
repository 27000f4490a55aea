//! Truncated and flipped files: an error, or tensors of the right sizes, but never a panic.

use std::fs;
use std::path::Path;

use meshgrad_ckpt::torch::{self};
use meshgrad_ckpt::{Dtype, Links};

use crate::torch::tensors;

/// What a folder gives: the number of tensors, or an error.
fn outcome(folder: &Path) -> Result<usize, String> {
    let model = torch::open(folder, Links::Refuse).map_err(|error| error.to_string())?;
    let model = model.ok_or("no model")?;
    let tensors = tensors(&model).map_err(|error| error.to_string())?;
    for (name, (dtype, shape, bytes)) in &tensors {
        let elements: u64 = shape.iter().product();
        let expected = elements * dtype.bits() as u64 / 8;
        assert_eq!(bytes.len() as u64, expected, "{name}");
        assert_ne!(*dtype, Dtype::F4, "{name}");
    }
    Ok(tensors.len())
}

/// A copy of a fixture in which one file can be changed.
struct Copy {
    place: tempfile::TempDir,
    file: String,
    bytes: Vec<u8>,
}

impl Copy {
    fn of(fixture: &str, file: &str) -> Copy {
        let place = crate::torch::copy(fixture);
        Copy { bytes: fs::read(place.path().join(file)).unwrap(), file: file.to_owned(), place }
    }

    fn with(&self, bytes: &[u8]) -> Result<usize, String> {
        fs::write(self.place.path().join(&self.file), bytes).unwrap();
        outcome(self.place.path())
    }
}

fn copies() -> [Copy; 4] {
    [
        Copy::of("views", "pytorch_model.bin"),
        Copy::of("sharded", "pytorch_model-00001-of-00002.bin"),
        Copy::of("dcp", ".metadata"),
        Copy::of("dcp", "__4_0.distcp"),
    ]
}

/// A file that is truncated anywhere is an error.
#[test]
fn truncated_files_are_errors() {
    for copy in copies() {
        assert!(copy.with(&copy.bytes).is_ok());
        for len in (0..copy.bytes.len()).step_by(37) {
            let result = copy.with(&copy.bytes[..len]);
            assert!(result.is_err(), "{} of {len} bytes: {result:?}", copy.file);
        }
    }
}

/// An archive without checksums, so that changed pickles are parsed.
fn without_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    for at in 0..bytes.len() {
        if bytes[at..].starts_with(b"PK\x01\x02") {
            bytes[at + 16..at + 20].fill(0);
        }
    }
    bytes
}

/// A changed byte gives an error or tensors, never a panic.
#[test]
fn flipped_bytes_do_not_panic() {
    let (mut errors, mut reads) = (0, 0);
    for copy in copies() {
        let mut bytes = without_checksums(copy.bytes.clone());
        for at in (0..bytes.len()).step_by(29) {
            for value in [bytes[at] ^ 1, 0xff] {
                let kept = std::mem::replace(&mut bytes[at], value);
                match copy.with(&bytes) {
                    Ok(_) => reads += 1,
                    Err(_) => errors += 1,
                }
                bytes[at] = kept;
            }
        }
    }
    assert!(errors > 100 && reads > 100, "{errors}, {reads}");
}

/// A chunk that the metadata does not mention leaves a gap, which is named.
#[test]
fn files_of_other_saves_are_errors() {
    let copy = Copy::of("dcp", "__4_0.distcp");
    let folder = copy.place.path();
    fs::copy(folder.join("__0_0.distcp"), folder.join("__4_0.distcp")).unwrap();
    let message = outcome(folder).unwrap_err();
    assert!(message.contains("__4_0.distcp cannot be read as a model of PyTorch"), "{message}");
    fs::remove_file(folder.join("__4_0.distcp")).unwrap();
    let message = outcome(folder).unwrap_err();
    assert!(message.contains("names missing files: `__4_0.distcp`"), "{message}");
}
