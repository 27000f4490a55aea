//! The check for free space before a write.

use std::path::Path;

use meshgrad_error::Result;

use crate::error::no_space;

/// Fails, before the first byte is written, if `needed` bytes plus 5% do not fit. The file system
/// needs some space for itself.
pub(crate) fn check_space(path: &Path, needed: u64, available: Option<u64>) -> Result<()> {
    match available {
        Some(available) if available < needed.saturating_add(needed / 20) => {
            Err(no_space(path, needed, Some(available)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::available_bytes;

    #[test]
    fn a_file_that_does_not_fit_is_rejected_before_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not/yet/there");
        let available = available_bytes(&path).unwrap();
        assert!(available > 0);

        assert!(check_space(&path, 100, Some(105)).is_ok());
        assert!(check_space(&path, u64::MAX, None).is_ok());
        let error = check_space(&path, 100, Some(104)).unwrap_err();
        assert!(error.to_string().contains("100 bytes needed, 104 available"), "{error}");
    }
}
