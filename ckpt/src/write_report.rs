//! A writer's report of the blocks that it wrote, and its validation.

use std::collections::BTreeMap;

use meshgrad_error::{Result, bail, ensure};
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

impl WriteReport {
    /// Checks the report against the created files: it may come from another machine.
    pub(crate) fn check(&self, created: &BTreeMap<String, u64>) -> Result<()> {
        for (file, blocks) in &self.parts {
            let Some(&size) = created.get(file) else {
                bail!(Invalid, "`{file}` was not created as a shared file");
            };
            for block in blocks {
                let Block { offset, bytes, .. } = *block;
                ensure!(
                    (1..=MAX_BLOCK_BYTES).contains(&bytes) && block.end() <= size,
                    Invalid,
                    "`{file}` of {size} bytes cannot have a block of {bytes} bytes at {offset} \
                     (blocks have 1 to {MAX_BLOCK_BYTES} bytes)"
                );
            }
        }
        Ok(())
    }
}
