//! What a writer says to have written, and whether that can be true.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blocks::{Block, MAX_BLOCK_BYTES};

/// What a writer wrote: proof enough to seal files that others never read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteReport {
    /// The writer's name.
    pub writer: String,
    /// The blocks of each file, by path below the staging folder.
    pub parts: BTreeMap<String, Vec<Block>>,
}

/// What is wrong with a receipt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteReportError {
    /// This writer has given one already.
    #[error("a writer of this name has given one already; names must differ")]
    Twice,
    /// It has a file that was not created.
    #[error("`{file}` was not created as a shared file")]
    UnknownFile {
        /// The path in the receipt.
        file: String,
    },
    /// It has a block that cannot be.
    #[error(
        "`{file}` of {size} bytes cannot have a block of {bytes} bytes at {offset} (blocks have \
         1 to {MAX_BLOCK_BYTES})"
    )]
    BadBlock {
        /// The path in the receipt.
        file: String,
        /// The file's size.
        size: u64,
        /// The block's first byte.
        offset: u64,
        /// The block's size.
        bytes: u64,
    },
}

impl WriteReport {
    /// Checks the receipt against the files that were created: it may come from another machine.
    pub(crate) fn check(
        &self,
        created: &BTreeMap<String, u64>,
    ) -> std::result::Result<(), WriteReportError> {
        for (path, blocks) in &self.parts {
            let file = || path.clone();
            let Some(&size) = created.get(path) else {
                return Err(WriteReportError::UnknownFile { file: file() });
            };
            for block in blocks {
                let is_sized = (1..=MAX_BLOCK_BYTES).contains(&block.bytes);
                if !is_sized || block.end() > size {
                    return Err(WriteReportError::BadBlock {
                        file: file(),
                        size,
                        offset: block.offset,
                        bytes: block.bytes,
                    });
                }
            }
        }
        Ok(())
    }
}
