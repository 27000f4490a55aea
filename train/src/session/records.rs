//! The files to which the metrics of a run are appended.

use std::path::PathBuf;

use crate::Result;
use crate::config::Config;
use crate::metrics::{self, MetricsFile, Record};
use crate::run_folder::RunFolder;
use crate::tensorboard::EventFile;

/// The files to which metrics are appended.
pub(super) struct Records {
    metrics: MetricsFile,
    tensorboard: Option<EventFile>,
}

impl Records {
    /// Opens the files for a run that has done `step` steps, and sets aside what follows them.
    pub(super) fn open(
        folder: &RunFolder,
        config: &Config,
        step: u64,
        notes: &mut Vec<String>,
    ) -> Result<Records> {
        // A file that cannot be read ends the run before anything is moved.
        metrics::read(&folder.metrics())?;
        notes.extend(set_aside(folder, step)?);
        folder.write(&folder.config(), &config.to_toml()?)?;
        let metrics = MetricsFile::open_after(&folder.metrics(), step)?;
        let tensorboard = match config.log.tensorboard {
            true => Some(EventFile::open_after(&folder.tensorboard(), step)?),
            false => None,
        };
        let damage = tensorboard.as_ref().and_then(EventFile::damage);
        notes.extend(damage.map(ToString::to_string));
        Ok(Records { metrics, tensorboard })
    }

    pub(super) fn append(&mut self, record: &Record) -> Result<()> {
        self.metrics.append(record)?;
        if let Some(tensorboard) = &mut self.tensorboard {
            tensorboard.append(record)?;
        }
        Ok(())
    }
}

/// Moves aside what an earlier run did after `step`. Returns a message to report.
fn set_aside(folder: &RunFolder, step: u64) -> Result<Option<String>> {
    let aside = folder.set_aside_after(step)?;
    let note = |aside: PathBuf| {
        let aside = aside.display();
        match step {
            0 => format!("moved the checkpoints and metrics of an earlier run to {aside}"),
            _ => format!("moved checkpoints after step {step} to {aside}"),
        }
    };
    Ok(aside.map(note))
}
