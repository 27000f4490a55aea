//! What a run reads before its model is built: the run folder, the data, and where it starts.

use std::fs;
use std::path::{Path, PathBuf};

use meshgrad_ckpt::{Committed, io_error, is_disk_failure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use twox_hash::XxHash3_128;

use super::resume::Resume;
use super::start::Start;
use crate::Result;
use crate::config::Config;
use crate::data::{Data, TextInfo};
use crate::intact::damage;
use crate::ranks::RunRanks;
use crate::run_folder::{Rollback, RunFolder, not_shared};
use crate::tokenizer::Tokenizer;
use crate::tokens::CacheKey;

/// An open run folder, its data, and the start of the run.
pub(super) struct Opened<'a> {
    pub(super) folder: RunFolder,
    pub(super) data: Data,
    pub(super) start: Start<'a>,
    /// Undoes what rank 0 wrote if the run cannot start.
    pub(super) rollback: Option<Rollback>,
}

/// What rank 0 broadcasts.
#[derive(Serialize, Deserialize)]
struct Broadcast {
    checkpoint: Option<PathBuf>,
    /// The digest of its manifest.
    manifest: Option<u128>,
    texts: TextInfo,
    tokens: CacheKey,
}

impl<'a> Opened<'a> {
    /// Rank 0 locks the folder, prepares the data and chooses the checkpoint; the others follow.
    pub(super) fn new(
        config: &'a Config,
        run_dir: &Path,
        resume: &Resume,
        ranks: &RunRanks<'_>,
    ) -> Result<Opened<'a>> {
        let (mut first, mut damage) = (None, None);
        loop {
            let broadcast = ranks.broadcast(|| {
                let mut opened = match first.take() {
                    Some(opened) => opened,
                    None => Opened::of_first_rank(config, run_dir, resume)?,
                };
                if let Some(problem) = damage.take() {
                    opened.start.choose_again(problem)?;
                }
                let broadcast = opened.to_broadcast()?;
                first = Some(opened);
                Ok(broadcast)
            })?;
            let other = match first {
                Some(_) => Ok(Ok(None)),
                None => Opened::of_other_rank(config, run_dir, broadcast).map(|it| it.map(Some)),
            };
            // A rank may be the only one that sees damage of the checkpoint.
            match ranks.agree_on_damage(other)? {
                Ok(other) => {
                    if let Some(opened) = other.or_else(|| first.take()) {
                        opened.check_data(ranks)?;
                        return Ok(opened);
                    }
                }
                Err(problem) => damage = Some(problem),
            }
        }
    }

    /// Checks that all ranks have the same tokens and tokenizer.
    fn check_data(&self, ranks: &RunRanks<'_>) -> Result<()> {
        if ranks.count() > 1 {
            let Data { texts, tokenizer, tokens, .. } = &self.data;
            let [text, tokenizer, tokens] =
                [texts.digest, tokenizer.digest()?, tokens.digest()].map(|it| format!("{it:032x}"));
            let data = json!({ "text": text, "tokenizer": tokenizer, "tokens": tokens });
            ranks.check_equal(&json!({ "digest of data": data }))?;
        }
        Ok(())
    }

    fn of_first_rank(config: &'a Config, run_dir: &Path, resume: &Resume) -> Result<Opened<'a>> {
        let folder = RunFolder::open(run_dir)?;
        let rollback = Some(Rollback::of(&folder)?);
        let start = Start::choose(resume, &folder, config)?;
        let check = |text, tokenizer: &Tokenizer| start.check_data(text, tokenizer);
        let data = Data::prepare_checked(&config.data, &folder, check)?;
        Ok(Opened { folder, data, start, rollback })
    }

    /// As rank 0 has opened it; the problem if this rank sees damage of the checkpoint.
    fn of_other_rank(
        config: &'a Config,
        run_dir: &Path,
        first: Broadcast,
    ) -> Result<Result<Opened<'a>, String>> {
        let folder = RunFolder::of_other_rank(run_dir);
        let mut checkpoint = None;
        if let Some(path) = &first.checkpoint {
            match manifest_digest(path) {
                Err(error) if is_disk_failure(&error) => return Ok(Err(error.to_string())),
                digest if digest.as_ref().ok() != first.manifest.as_ref() => {
                    return Err(not_shared(path));
                }
                _ => {}
            }
            checkpoint = match Committed::open(path) {
                Ok(checkpoint) => Some(checkpoint),
                Err(error) => return Ok(Err(damage(error)?)),
            };
        }
        Ok(Ok(Opened {
            data: Data::of_other_rank(first.texts, first.tokens, &config.data, &folder)?,
            start: Start::of_other_rank(checkpoint, config),
            folder,
            rollback: None,
        }))
    }

    fn to_broadcast(&self) -> Result<Broadcast> {
        let checkpoint = self.start.checkpoint().map(Committed::path);
        Ok(Broadcast {
            checkpoint: checkpoint.map(Path::to_owned),
            manifest: checkpoint.map(manifest_digest).transpose()?,
            texts: self.data.texts.clone(),
            tokens: self.data.tokens.own_key(),
        })
    }
}

fn manifest_digest(checkpoint: &Path) -> Result<u128> {
    let path = checkpoint.join("manifest.json");
    let text = fs::read(&path).map_err(|cause| io_error("read", &path, cause))?;
    Ok(XxHash3_128::oneshot(&text))
}
