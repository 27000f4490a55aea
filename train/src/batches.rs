//! Batches of a language model on a device, gathered from a token stream. Where a text has several
//! documents, batches say where they are, and no label crosses from one into the next.

use meshgrad_models::{IGNORE_INDEX, TokenBatch};
use meshgrad_runtime::{Device, Tensor};

use crate::Result;
use crate::ranks::{BatchPart, RunRanks};
use crate::rows::{Batch, Row, RowFormat};
use crate::sampler::{Order, Rows};
use crate::tokens::Tokens;

/// A token stream, and the device that batches are copied to.
#[derive(Clone, Copy)]
pub struct TokenBatches<'t> {
    tokens: Tokens<'t>,
    device: &'t Device,
    ranks: Option<&'t RunRanks<'t>>,
}

impl<'t> TokenBatches<'t> {
    /// Batches of rows of `tokens`.
    pub fn new(tokens: Tokens<'t>, device: &'t Device) -> TokenBatches<'t> {
        TokenBatches { tokens, device, ranks: None }
    }

    /// Each rank gathers only its own part of a batch. `batch_size` and `micro_batch_size` are
    /// those of all ranks, and the order of rows does not depend on their number.
    #[must_use]
    pub fn on(self, ranks: &'t RunRanks<'t>) -> TokenBatches<'t> {
        let ranks = Some(ranks);
        TokenBatches { ranks, ..self }
    }

    /// The microbatches of step `step` (from 1): its `batch_size` rows of `order` in groups of at
    /// most `micro_batch_size`.
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
            self.gather(order.format, rows.map(|row| order.row(step, row)).collect())
        })
    }

    /// The first `batches` batches of `batch_size` rows in their order; all batches if `batches` is
    /// 0.
    pub fn in_order(
        self,
        rows: &'t Rows,
        batch_size: usize,
        batches: usize,
    ) -> impl Iterator<Item = Result<TokenBatch>> + 't {
        let count = rows.count();
        let all = count.div_ceil(batch_size);
        let batches = if batches == 0 { all } else { batches.min(all) };
        (0..batches).map(move |at| {
            let own = at * batch_size..((at + 1) * batch_size).min(count);
            self.gather(rows.format, own.map(|row| rows.row(row)).collect())
        })
    }

    /// A batch of some rows, or this rank's part of it.
    fn gather(&self, format: RowFormat, mut chosen: Vec<Row>) -> Result<TokenBatch> {
        let seq_len = format.seq_len;
        let counted = chosen.len();
        let part = match self.ranks {
            None => BatchPart::whole(counted, seq_len),
            Some(ranks) => {
                // The last batch of a text may have too few rows for all ranks.
                if let Some(last) = chosen.last().cloned() {
                    chosen.resize(ranks.padded(counted), last);
                }
                ranks.part_of_batch(chosen.len(), seq_len)?
            }
        };
        let own = &chosen[part.rows.clone()];
        let mut batch = Batch::gather(format, own, &self.tokens)?;
        let counted_rows = counted.saturating_sub(part.rows.start).min(own.len());
        batch.labels[counted_rows * seq_len..].fill(IGNORE_INDEX);

        batch.tensors(format, |whole| {
            let own = part.select(whole, seq_len);
            part.tensor(Tensor::from_slice(self.device, &part.shape(), &own)?)
        })
    }
}
