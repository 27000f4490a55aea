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
        let context = self.ranks.map_or(1, RunRanks::context_ranks);
        if format.has_documents && context > 1 {
            batch = batch.by_document(format, context);
        }

        batch.tensors(format, |whole| {
            let own = part.select(whole, seq_len);
            part.tensor(Tensor::from_slice(self.device, &part.shape(), &own)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_mesh::{Mesh, Placement, Sharding};

    use super::*;
    use crate::config::{DataConfig, TokenizerChoice};
    use crate::data::Data;
    use crate::packing::Pieces;
    use crate::run_folder::RunFolder;
    use crate::sampler::Units;

    const SEQ_LEN: usize = 4096;

    /// The pairs of a query and a key that each rank's queries see, for tokens at these positions in
    /// their documents.
    fn pairs(positions: &[i64], ranks: usize, window: usize) -> Vec<usize> {
        let mesh = Mesh::new(&[ranks], &["cp"]).unwrap();
        let placements = [("cp", Placement::head_and_tail(0))];
        let sharding = Sharding::new(&mesh, placements, &[positions.len()]).unwrap();
        let of_rank = |rank| {
            let region = sharding.region(rank).unwrap();
            let own = region.dims()[0].ranges().iter().flat_map(|range| &positions[range.clone()]);
            own.map(|position| (*position as usize + 1).min(window)).sum()
        };
        (0..ranks).map(of_rank).collect()
    }

    /// Ranks differ by less than what one chunk of queries sees.
    #[test]
    fn ranks_have_equal_work_in_rows_of_one_document() {
        let positions: Vec<i64> = (0..SEQ_LEN as i64).collect();
        for ranks in [2, 4, 8] {
            let chunk = SEQ_LEN / (2 * ranks);
            for window in [1, 100, chunk, 1000, SEQ_LEN] {
                let work = pairs(&positions, ranks, window);
                let difference = work.iter().max().unwrap() - work.iter().min().unwrap();
                assert!(difference < chunk * window, "{ranks} ranks, {window}: {work:?}");
                assert!(window < SEQ_LEN || difference == 0);
            }
        }
    }

    /// In rows of documents of the default text, the rank with most work has at most 5 % more than the
    /// mean. Under a window, heads of documents have less work than tails, so it may have more, but less
    /// than without division by document.
    #[test]
    fn ranks_have_nearly_equal_work_in_rows_of_documents() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(&place.path().join("run")).unwrap();
        let config = DataConfig { tokenizer: TokenizerChoice::Byte, ..DataConfig::default() };
        let data = Data::prepare(&config, &folder).unwrap();
        let tokens = data.tokens.training();
        let windows = data.order(SEQ_LEN, 1, 0).unwrap();
        let pieces = Pieces::of(&tokens, 0..tokens.len(), SEQ_LEN);
        let packed = Order::new(windows.format, vec![(Units::Pieces(pieces), 1.0)], 1, 0);
        for (name, order) in [("windows", windows), ("packed", packed)] {
            for (ranks, window) in [(2, SEQ_LEN), (4, SEQ_LEN), (8, SEQ_LEN), (4, 512)] {
                let [mut by_document, mut by_place] = [Balance::default(); 2];
                for step in 1..=500 {
                    let row = order.row(step, 0);
                    let row = Batch::gather(order.format, [&row], &tokens).unwrap();
                    let divided = row.by_document(order.format, ranks);
                    by_document.add(&pairs(&divided.positions, ranks, window));
                    by_place.add(&pairs(&row.positions, ranks, window));
                }
                let text = format!("{name}, {ranks} ranks, {window} keys");
                let [mean, worst] = by_document.above_mean();
                println!(
                    "{text}: the slowest rank has {mean:.1} % more work than the mean (at most \
                     {worst:.1} % in a row); divided by place, {:.1} %",
                    by_place.above_mean()[0]
                );
                assert!(mean <= by_place.above_mean()[0], "{text}");
                assert!(mean <= 5.0 || window < SEQ_LEN, "{text}");
            }
        }
    }

    /// How much more work the slowest rank has than the mean, over several rows.
    #[derive(Clone, Copy, Default)]
    struct Balance {
        slowest: usize,
        mean: f64,
        worst: f64,
    }

    impl Balance {
        fn add(&mut self, work: &[usize]) {
            let slowest = work.iter().copied().max().unwrap_or_default();
            let mean = work.iter().sum::<usize>() as f64 / work.len() as f64;
            self.slowest += slowest;
            self.mean += mean;
            self.worst = self.worst.max(slowest as f64 / mean);
        }

        /// In all rows, and in the worst one, in percent.
        fn above_mean(&self) -> [f64; 2] {
            [self.slowest as f64 / self.mean, self.worst].map(|it| 100.0 * (it - 1.0))
        }
    }
}
