//! The exchange at the end of each step.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Ranks, RanksError};
use crate::{Error, Result};

/// Exchanges the results of a step and returns those of ranks 0, 1, ...
///
/// # Errors
/// [`RanksError::Failed`] if a rank failed, on all ranks; [`RanksError::Transport`],
/// [`RanksError::Message`].
pub(super) fn agree<T: Serialize + DeserializeOwned, E: std::fmt::Display>(
    ranks: &mut dyn Ranks,
    step: &'static str,
    mine: std::result::Result<T, E>,
) -> Result<Vec<T>> {
    let mine = mine.map_err(|error| error.to_string());
    let invalid = |rank, problem| Error::Ranks(RanksError::Message { rank, problem });
    let own = ranks.rank();
    let message = serde_json::to_vec(&mine).map_err(|error| invalid(own, error.to_string()))?;

    let messages = ranks.all_gather(&message);
    let messages = messages.map_err(|cause| {
        // One may be the consequence of the other: rank 0 removes the folder when a rank exits.
        Error::Ranks(match &mine {
            Err(own_cause) => failed(own, step, format!("{own_cause}; {cause}")),
            Ok(_) => RanksError::Transport {
                step,
                cause: cause.to_string(),
            },
        })
    })?;
    if messages.len() != ranks.world_size() {
        let problem = format!(
            "{} messages of {} ranks",
            messages.len(),
            ranks.world_size()
        );
        return Err(invalid(own, problem));
    }

    let mut results = Vec::with_capacity(messages.len());
    let mut first_failure = None;
    for (rank, message) in messages.iter().enumerate() {
        let result: std::result::Result<T, String> =
            serde_json::from_slice(message).map_err(|error| invalid(rank, error.to_string()))?;
        match result {
            Ok(result) => results.push(result),
            Err(cause) => {
                first_failure.get_or_insert(failed(rank, step, cause));
            }
        }
    }
    match first_failure {
        None => Ok(results),
        Some(failure) => Err(failure.into()),
    }
}

fn failed(rank: usize, step: &'static str, cause: String) -> RanksError {
    RanksError::Failed { rank, step, cause }
}
