//! The one error of this crate: what went wrong in which part, nothing added.

use crate::config::ConfigError;
use crate::corpus::CorpusError;
use crate::metrics::MetricsError;
use crate::plot::PlotError;

use crate::run_folder::RunFolderError;
use crate::sampler::SamplerError;
use crate::tokenizer::TokenizerError;
use crate::tokens::TokensError;

/// Short for a result with a [`TrainError`].
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// Everything that can go wrong here. The message is the part's own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The configuration cannot be read or makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The text cannot be read.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// The tokenizer cannot be made, read or used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The token cache cannot be written or read.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The data are too short for the batches asked for.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// `metrics.jsonl` cannot be written or read.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// `loss.svg` cannot be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The run folder cannot be used.
    #[error(transparent)]
    RunFolder(#[from] RunFolderError),
}
