//! How the crash tests save: four writers, each with parts of every file.

use std::path::Path;
use std::sync::Arc;

use meshgrad_ckpt::vfs::Vfs;
use meshgrad_ckpt::{Committed, Result, Staging, WriteReport, Writer, step_name};

use crate::invariant::{SHARED_FILES, STATE_FILE, Save};
use crate::splitmix::SplitMix64;

/// Writers per save.
pub(crate) const WRITERS: u64 = 4;

/// Small, so that small files have several blocks.
const BLOCK_BYTES: u64 = 1024;

/// Bytes of a file that one writer writes.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    file: &'static str,
    offset: usize,
    bytes: Vec<u8>,
}

/// The parts of each writer. They depend on the save only.
pub(crate) fn parts(save: Save) -> Vec<Vec<Part>> {
    let mut random = SplitMix64::new(save.step ^ (save.attempt << 40));
    let mut parts = vec![Vec::new(); WRITERS as usize];
    for file in SHARED_FILES {
        let content = save.content(file);
        let mut first: Vec<u64> = (0..WRITERS).collect();
        random.shuffle(&mut first);

        let mut offset = 0;
        while offset < content.len() {
            let len = (100 + random.below(270) as usize).min(content.len() - offset);
            let bytes = content[offset..offset + len].to_vec();
            // Every writer gets a part, because even the shortest file has five parts.
            let writer = first.pop().unwrap_or_else(|| random.below(WRITERS)) as usize;
            parts[writer].push(Part { file, offset, bytes });
            offset += len;
        }
    }
    parts
}

pub(crate) fn writer_name(writer: u64) -> String {
    format!("rank {writer}")
}

/// Starts a save and creates the shared files.
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

/// Joins a save and writes the parts of one writer.
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
    writer.file(part.file)?.write_at(part.offset as u64, &part.bytes)
}

/// Commits a save with the reports of all writers.
pub(crate) fn commit(
    mut staging: Staging,
    save: Save,
    reports: Vec<WriteReport>,
) -> Result<Committed> {
    for report in reports {
        staging.accept(report)?;
    }
    staging.write(STATE_FILE, &save.content(STATE_FILE))?;
    staging.commit()
}

/// A whole save in one thread that interleaves the writers at random.
pub(crate) fn save_mixed(
    vfs: &Arc<dyn Vfs>,
    run: &Path,
    save: Save,
    random: &mut SplitMix64,
) -> Result<Committed> {
    let staging = stage(vfs, run, save)?;

    let mut writers = Vec::new();
    for (writer, mut parts) in (0..).zip(parts(save)) {
        random.shuffle(&mut parts);
        writers.push((join(vfs, staging.folder(), writer)?, parts));
    }
    let mut reports = Vec::new();
    while !writers.is_empty() {
        let at = random.below(writers.len() as u64) as usize;
        let (writer, parts) = &mut writers[at];
        match parts.pop() {
            Some(part) => write_part(writer, &part)?,
            None => reports.push(writers.swap_remove(at).0.finish()?),
        }
    }
    commit(staging, save, reports)
}
