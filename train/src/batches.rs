//! Batches of a language model on a device, gathered from a token stream.

use meshgrad_models::{IGNORE_INDEX, TokenBatch};
use meshgrad_runtime::{Device, Tensor};

use crate::Result;
use crate::ranks::{BatchPart, RunRanks};
use crate::sampler::{Batch, Order, Windows};
use crate::tokens::Tokens;

/// A token stream in windows, and the device that batches are copied to.
#[derive(Clone, Copy)]
pub struct TokenBatches<'t> {
    windows: Windows,
    tokens: Tokens<'t>,
    device: &'t Device,
    ranks: Option<&'t RunRanks<'t>>,
}

impl<'t> TokenBatches<'t> {
    /// Batches of `windows` of `tokens`.
    pub fn new(windows: Windows, tokens: Tokens<'t>, device: &'t Device) -> TokenBatches<'t> {
        TokenBatches { windows, tokens, device, ranks: None }
    }

    /// Each rank gathers only its own sequences of a batch. `batch_size` and `micro_batch_size` are
    /// those of all ranks, and the order of sequences does not depend on their number.
    #[must_use]
    pub fn on(self, ranks: &'t RunRanks<'t>) -> TokenBatches<'t> {
        let ranks = Some(ranks);
        TokenBatches { ranks, ..self }
    }

    /// The microbatches of step `step` (from 1): its `batch_size` sequences in groups of at most
    /// `micro_batch_size`.
    pub fn of_step(
        self,
        order: &Order,
        step: u64,
        batch_size: usize,
        micro_batch_size: usize,
    ) -> impl ExactSizeIterator<Item = Result<TokenBatch>> + 't {
        let order = order.clone();
        let starts = (0..batch_size).step_by(micro_batch_size.max(1));
        starts.map(move |first| {
            let rows = first..(first + micro_batch_size).min(batch_size);
            self.gather(order.windows(step, rows))
        })
    }

    /// The first `batches` batches of `batch_size` sequences in their order; all batches if
    /// `batches` is 0. Sequences without a trained token are left out.
    pub fn in_order(
        self,
        batch_size: usize,
        batches: usize,
    ) -> impl Iterator<Item = Result<TokenBatch>> + 't {
        let windows = self.windows.trained(0..self.windows.count(), self.tokens);
        let all = windows.count().div_ceil(batch_size);
        let batches = if batches == 0 { all } else { batches.min(all) };
        (0..batches).map(move |at| {
            let rows = at * batch_size..((at + 1) * batch_size).min(windows.count());
            self.gather(rows.map(|row| windows.window(row)))
        })
    }

    /// A batch of some windows, or this rank's part of it.
    fn gather(&self, chosen: impl IntoIterator<Item = usize>) -> Result<TokenBatch> {
        let mut chosen: Vec<usize> = chosen.into_iter().collect();
        let seq_len = self.windows.seq_len();
        let counted = chosen.len();
        let part = match self.ranks {
            None => BatchPart::whole(counted, seq_len),
            Some(ranks) => {
                // The last batch of a text may have too few sequences for all ranks.
                if let Some(last) = chosen.last() {
                    chosen.resize(ranks.padded(counted), *last);
                }
                ranks.part_of_batch(chosen.len(), seq_len)?
            }
        };
        let own = &chosen[part.rows.clone()];
        let mut batch = Batch::gather(self.windows, own.iter().copied(), |at| self.tokens.get(at))?;
        self.mask(&mut batch, own);
        let counted_rows = counted.saturating_sub(part.rows.start).min(own.len());
        batch.labels[counted_rows * seq_len..].fill(IGNORE_INDEX);

        let tensor = |whole: &[i64]| {
            let own = part.select(whole, seq_len);
            part.tensor(Tensor::from_slice(self.device, &part.shape(), &own)?)
        };
        Ok(TokenBatch::new(&tensor(&batch.input_ids)?, &tensor(&batch.labels)?))
    }

    /// Removes the labels that the loss does not count.
    fn mask(&self, batch: &mut Batch, windows: &[usize]) {
        if !self.tokens.is_masked() {
            return;
        }
        let positions = windows.iter().flat_map(|window| self.windows.tokens(*window).skip(1));
        for (label, position) in batch.labels.iter_mut().zip(positions) {
            if !self.tokens.is_trained(position) {
                *label = IGNORE_INDEX;
            }
        }
    }
}
