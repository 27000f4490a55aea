//! In place of `parquet` where the feature `parquet` is off.

use std::path::Path;

use super::CorpusError;
use super::contents::Contents;

pub(super) fn read(path: &Path, _: &mut Contents) -> Result<(), CorpusError> {
    Err(CorpusError::Parquet {
        path: path.to_owned(),
        problem: "this meshgrad was built without Parquet; build it with `--features parquet`, or \
                  convert the file to JSON Lines"
            .to_owned(),
    })
}
