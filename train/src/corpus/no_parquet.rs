//! Replaces `parquet` without the feature `parquet`: reading a Parquet file is an error.

use std::path::Path;

use meshgrad_error::{Result, bail};

use super::contents::Contents;

pub(super) fn read(path: &Path, _: &mut Contents) -> Result<()> {
    bail!(
        Unsupported,
        "data: {}: this meshgrad was built without Parquet; build it with `--features parquet`, or \
         convert the file to JSON Lines",
        path.display()
    )
}
