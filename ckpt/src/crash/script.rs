//! How the drill saves: four writers, each with parts of every file.

use std::path::Path;
use std::sync::Arc;

use super::law::{SHARED_FILES, STATE_FILE, Save};
use crate::splitmix::SplitMix64;
use crate::vfs::Vfs;
use crate::{Committed, Result, Staging, WriteReport, Writer, step_name};

/// Writers of a save.
pub(crate) const WRITERS: u64 = 4;

/// Small, so that small files have several.
const BLOCK_BYTES: u64 = 1024;

/// A part of a file that one writer writes.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    file: &'static str,
    offset: usize,
    bytes: Vec<u8>,
}

/// The parts of each writer: the same for all who ask.
pub(crate) fn parts(save: Save) -> Vec<Vec<Part>> {
    let mut draws = SplitMix64::new(save.step ^ (save.attempt << 40));
    let mut parts = vec![Vec::new(); WRITERS as usize];
    for file in SHARED_FILES {
        let content = save.content(file);
        let mut first: Vec<u64> = (0..WRITERS).collect();
        draws.shuffle(&mut first);

        let mut offset = 0;
        while offset < content.len() {
            let len = (100 + draws.below(270) as usize).min(content.len() - offset);
            let bytes = content[offset..offset + len].to_vec();
            // Each has at least one part: the shortest file has five.
            let writer = first.pop().unwrap_or_else(|| draws.below(WRITERS)) as usize;
            parts[writer].push(Part {
                file,
                offset,
                bytes,
            });
            offset += len;
        }
    }
    parts
}

pub(crate) fn writer_name(writer: u64) -> String {
    format!("rank {writer}")
}

/// Begins a save: creates the files that all write.
pub(crate) fn stage(vfs: &Arc<dyn Vfs>, run: &Path, save: Save) -> Result<Staging> {
    let mut staging =
        Staging::new_in(Arc::clone(vfs), run, &step_name(save.step))?.block_bytes(BLOCK_BYTES);
    staging.set_about("step", save.step);
    staging.set_about("attempt", save.attempt);
    for file in SHARED_FILES {
        staging.create(file, save.content(file).len() as u64)?;
    }
    staging.expect_writers((0..WRITERS).map(writer_name));
    Ok(staging)
}

/// Joins and writes one writer's parts.
pub(crate) fn write(
    vfs: &Arc<dyn Vfs>,
    folder: &Path,
    save: Save,
    writer: u64,
) -> Result<WriteReport> {
    let mut joined = join(vfs, folder, writer)?;
    for part in &parts(save)[writer as usize] {
        write_part(&mut joined, part)?;
    }
    joined.finish()
}

fn join(vfs: &Arc<dyn Vfs>, folder: &Path, writer: u64) -> Result<Writer> {
    let joined = Writer::join_in(Arc::clone(vfs), folder, &writer_name(writer))?;
    Ok(joined.block_bytes(BLOCK_BYTES))
}

fn write_part(writer: &mut Writer, part: &Part) -> Result<()> {
    writer
        .file(part.file)?
        .write_at(part.offset as u64, &part.bytes)
}

/// Ends a save when all receipts are there.
pub(crate) fn commit(
    mut staging: Staging,
    save: Save,
    receipts: Vec<WriteReport>,
) -> Result<Committed> {
    for receipt in receipts {
        staging.accept(receipt)?;
    }
    staging.write(STATE_FILE, &save.content(STATE_FILE))?;
    staging.commit()
}

/// A whole save by writers whose operations are mixed as `draws` say.
pub(crate) fn save_mixed(
    vfs: &Arc<dyn Vfs>,
    run: &Path,
    save: Save,
    draws: &mut SplitMix64,
) -> Result<Committed> {
    let staging = stage(vfs, run, save)?;

    let mut writers = Vec::new();
    for (writer, mut parts) in (0..).zip(parts(save)) {
        draws.shuffle(&mut parts);
        writers.push((join(vfs, staging.folder(), writer)?, parts));
    }
    let mut receipts = Vec::new();
    while !writers.is_empty() {
        let at = draws.below(writers.len() as u64) as usize;
        let (writer, parts) = &mut writers[at];
        match parts.pop() {
            Some(part) => write_part(writer, &part)?,
            None => receipts.push(writers.swap_remove(at).0.finish()?),
        }
    }
    commit(staging, save, receipts)
}
