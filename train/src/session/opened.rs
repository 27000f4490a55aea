//! What a run reads before its model is built: the run folder, the data, and where it starts.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Session;
use super::start::Start;
use crate::Result;
use crate::data::{Data, TextInfo};
use crate::ranks::RunRanks;
use crate::run_folder::{Rollback, RunFolder};
use crate::tokenizer::Tokenizer;

/// An open run folder, its data, and the start of the run.
pub(super) struct Opened<'a> {
    pub(super) folder: RunFolder,
    pub(super) data: Data,
    pub(super) start: Start<'a>,
    /// Undoes what rank 0 wrote if the run cannot start.
    pub(super) rollback: Option<Rollback>,
}

/// What rank 0 tells the others.
#[derive(Serialize, Deserialize)]
struct Told {
    checkpoint: Option<PathBuf>,
    texts: TextInfo,
}

impl<'a> Opened<'a> {
    /// Rank 0 locks the folder, prepares the data and chooses the checkpoint; the others follow.
    pub(super) fn new(session: &Session<'a>, ranks: &RunRanks<'_>) -> Result<Opened<'a>> {
        let mut first = None;
        let told = ranks.share(|| {
            let opened = Opened::of_first_rank(session)?;
            let told = opened.told();
            first = Some(opened);
            Ok(told)
        })?;
        let opened = match first {
            Some(opened) => Ok(opened),
            None => Opened::of_other_rank(session, told),
        };
        ranks.agree(opened)
    }

    fn of_first_rank(session: &Session<'a>) -> Result<Opened<'a>> {
        let config = session.config;
        let folder = RunFolder::open(&session.run_dir)?;
        let rollback = Some(Rollback::of(&folder)?);
        let start = Start::choose(&session.resume, &folder, config)?;
        let check = |text, tokenizer: &Tokenizer| start.check_data(text, tokenizer);
        let data = Data::prepare_checked(&config.data, &folder, check)?;
        Ok(Opened {
            folder,
            data,
            start,
            rollback,
        })
    }

    fn of_other_rank(session: &Session<'a>, told: Told) -> Result<Opened<'a>> {
        let folder = RunFolder::of_other_rank(&session.run_dir);
        let checkpoint = told.checkpoint.as_deref();
        Ok(Opened {
            data: Data::of_other_rank(told.texts, &folder)?,
            start: Start::of_other_rank(checkpoint, session.config)?,
            folder,
            rollback: None,
        })
    }

    fn told(&self) -> Told {
        let checkpoint = self.start.checkpoint();
        Told {
            checkpoint: checkpoint.map(|it| Path::to_owned(it.path())),
            texts: self.data.texts.clone(),
        }
    }
}
