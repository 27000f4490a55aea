//! A writer's report of the blocks that it wrote, and its validation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blocks::{Block, MAX_BLOCK_BYTES};

/// The blocks that a writer wrote, with which the coordinator seals files that it never reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteReport {
    /// The writer's name.
    pub writer: String,
    /// The blocks of each file, by path below the staging folder.
    pub parts: BTreeMap<String, Vec<Block>>,
}

/// The problem with a report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteReportError {
    /// This writer has already reported.
    #[error("a writer with this name has already reported; names must be unique")]
    Twice,
    /// It contains a file that was not created.
    #[error("`{file}` was not created as a shared file")]
    UnknownFile {
        /// The path in the report.
        file: String,
    },
    /// It contains an impossible block.
    #[error(
        "`{file}` of {size} bytes cannot have a block of {bytes} bytes at {offset} (blocks have \
         1 to {MAX_BLOCK_BYTES} bytes)"
    )]
    BadBlock {
        /// The path in the report.
        file: String,
        /// The file's size.
        size: u64,
        /// The block's offset.
        offset: u64,
        /// The block's size.
        bytes: u64,
    },
}

impl WriteReport {
    /// Checks the report against the created files: it may come from another machine.
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
