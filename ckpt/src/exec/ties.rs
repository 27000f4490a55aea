//! Checks *ties*: pairs of tensors that must be equal for a map to have an inverse.

use std::path::Path;

use meshgrad_error::{Error, Result, error};

use crate::Folder;
use crate::mapping::Bound;

/// Bytes compared per read.
const AT_A_TIME: usize = 1 << 20;

/// Checks that the tied tensors of a map are equal, byte by byte. Of `ranks` ranks that load the same
/// folder, each compares its share: every `ranks`-th MiB, from the one with the number of `rank`.
///
/// # Errors
/// When two tied tensors differ; errors of reading.
pub fn check_ties(bound: &Bound, folder: &Folder, rank: usize, ranks: usize) -> Result<()> {
    for (first, second) in bound.ties() {
        if !are_equal(folder, first, second, rank, ranks)? {
            return Err(not_tied(folder.path(), first, second));
        }
    }
    Ok(())
}

/// The error for two tensors of a folder that differ, although a map ties them.
pub fn not_tied(folder: &Path, first: &str, second: &str) -> Error {
    error!(
        Mismatch,
        "the map ties `{}` and `{}` of {}, but they differ: remove the one that is wrong, or \
         change the map",
        first.escape_debug(),
        second.escape_debug(),
        folder.display()
    )
}

fn are_equal(
    folder: &Folder,
    first: &str,
    second: &str,
    rank: usize,
    ranks: usize,
) -> Result<bool> {
    let size = |name: &str| folder.get(name).map_or(0, |tensor| tensor.byte_len());
    let type_of = |name: &str| folder.get(name).map(|tensor| (tensor.dtype, &tensor.shape));
    if type_of(first) != type_of(second) {
        return Ok(false);
    }
    let mut bytes = [Vec::new(), Vec::new()];
    let starts = (0..size(first)).step_by(AT_A_TIME).skip(rank);
    for start in starts.step_by(ranks.max(1)) {
        let count = AT_A_TIME.min(size(first) - start);
        for (bytes, name) in bytes.iter_mut().zip([first, second]) {
            bytes.resize(count, 0);
            folder.read_range_into(name, start, bytes)?;
        }
        if bytes[0] != bytes[1] {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{AllowedProblems, Mapping, TensorSpec};
    use crate::{Dtype, FileWriter};

    /// Of three ranks, exactly the one whose share has the difference reports it.
    #[test]
    fn each_part_is_compared_by_one_rank() {
        let bytes = 3 * AT_A_TIME + 10;
        for different in [0, AT_A_TIME, 3 * AT_A_TIME - 1, bytes - 1] {
            let dir = tempfile::tempdir().unwrap();
            let mut file = FileWriter::new();
            for name in ["a", "b"] {
                file.add(name, Dtype::U8, &[bytes]).unwrap();
            }
            let saved = file.save(dir.path().join("model.safetensors"), |tensor, data| {
                let mut values = vec![7; bytes];
                values[different] += u8::from(tensor.name == "b");
                data.append(&values)
            });
            saved.unwrap();
            let folder = Folder::open(dir.path()).unwrap();
            let stored: Vec<TensorSpec> = folder.tensors().map(TensorSpec::from).collect();
            let mapping = Mapping::parse("w = tied(a, b)").unwrap();
            let bound = mapping.bind(&stored, None, &AllowedProblems::none());
            let bound = bound.unwrap_or_else(|report| panic!("{report}"));

            let fails = |rank, ranks| check_ties(&bound, &folder, rank, ranks).is_err();
            let found = [0, 1, 2].map(|rank| fails(rank, 3));
            let owner = different / AT_A_TIME % 3;
            assert_eq!(found, [0, 1, 2].map(|rank| rank == owner));
            assert!(fails(0, 1));
        }
    }
}
