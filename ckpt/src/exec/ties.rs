//! Checks *ties*: pairs of tensors that must be equal for a map to have an inverse.

use crate::mapping::Bound;
use crate::{Error, Folder, Result};

/// Bytes compared per read.
const AT_A_TIME: usize = 1 << 20;

/// Checks that the tied tensors of a map are equal, byte by byte.
///
/// # Errors
/// [`Error::NotTied`]; errors of reading.
pub fn check_ties(bound: &Bound, folder: &Folder) -> Result<()> {
    for (first, second) in bound.ties() {
        if !are_equal(folder, first, second)? {
            return Err(Error::NotTied {
                folder: folder.path().to_owned(),
                first: first.clone(),
                second: second.clone(),
            });
        }
    }
    Ok(())
}

fn are_equal(folder: &Folder, first: &str, second: &str) -> Result<bool> {
    let size = |name: &str| folder.get(name).map_or(0, |tensor| tensor.byte_len());
    let type_of = |name: &str| folder.get(name).map(|tensor| (tensor.dtype, &tensor.shape));
    if type_of(first) != type_of(second) {
        return Ok(false);
    }
    let mut bytes = [Vec::new(), Vec::new()];
    for start in (0..size(first)).step_by(AT_A_TIME) {
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
