//! Replaces `parquet` without the feature `parquet`: reading a Parquet file is an error.

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
