//! A small model, and runs of it over a small text.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshgrad_autograd::{Init, Module, Param, Result, Var, ops, precedes_backward};
use meshgrad_ckpt::mapping::Mapping;
use meshgrad_models::{Compute, Generate, IGNORE_INDEX, Loss, Model, TokenBatch};
use meshgrad_runtime::{DType, Device, Tensor};
use meshgrad_train::config::{Config, ModelTables};
use meshgrad_train::session::{Resume, Session, Summary};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tables {
    pub(crate) model: Sizes,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sizes {
    pub(crate) width: usize,
}

impl ModelTables for Tables {}

/// Predicts a token from the one before it.
#[derive(Module)]
#[module(crate = meshgrad_autograd)]
pub(crate) struct Bigram {
    pub(crate) embedding: Param,
    pub(crate) head: Param,
    /// The number of passes so far, of which some overflow; `None` if none does.
    #[module(skip)]
    pub(crate) overflowing: Option<AtomicUsize>,
}

impl Bigram {
    pub(crate) fn new(vocabulary: usize, width: usize) -> Bigram {
        let init = Init::Normal { std: 0.1 };
        Bigram {
            embedding: Param::new("embedding", [vocabulary, width], init),
            head: Param::new("head", [vocabulary, width], init),
            overflowing: None,
        }
    }

    fn hidden(&self, ids_bt: &Tensor) -> Result<Var> {
        ops::embedding(&self.embedding.var()?, ids_bt)?.as_activation()
    }
}

impl Model for Bigram {
    type Batch = TokenBatch;
    type Stream = ();

    /// Both parameters are one tensor.
    fn stored_as(&self) -> Result<Mapping> {
        Mapping::parse("concat(embedding, head, shares=1:1) = table")
    }

    fn loss(&self, batch: &TokenBatch, _: Compute) -> Result<Loss> {
        let (x_btd, head) = (self.hidden(&batch.ids)?, self.head.var()?);
        let (sum, weight) = ops::linear_cross_entropy(&x_btd, &head, &batch.labels, IGNORE_INDEX)?;
        let Some(passes) = self.overflowing.as_ref().filter(|_| precedes_backward()) else {
            return Ok(Loss::new(sum, weight));
        };
        // Every third pass overflows, and its gradient is wrong.
        let overflows = passes.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
        let factor = if overflows { 100.0 } else { 1.0 };
        let count = ops::full(sum.value().device(), &[], DType::F32, factor - 1.0)?;
        let loss = Loss::new(ops::affine(&sum, factor, 0.0)?, weight);
        Ok(Loss { statistics: vec![count], ..loss })
    }

    fn overflow(&self, statistics: &[Tensor]) -> Result<Option<Tensor>> {
        Ok(statistics.first().cloned())
    }
}

impl Generate for Bigram {
    type Cache = ();

    fn vocab_size(&self) -> usize {
        self.embedding.shape()[0]
    }

    fn cache(&self, _: &Device, _: DType, _: usize) -> Result<()> {
        Ok(())
    }

    fn next_logits(&self, ids_bt: &Tensor, _: &mut (), _: DType) -> Result<Tensor> {
        let last = ids_bt.extent(-1)? - 1;
        let x_b1d = self.hidden(&ids_bt.slice(1, last..last + 1)?)?;
        let logits_b1v = ops::linear(&x_b1d, &self.head.var()?)?;
        ops::reshape(logits_b1v.value(), &[ids_bt.extent(0)?, self.vocab_size()])
    }
}

const CONFIG: &str = r#"
    train = { steps = 4, batch_size = 2, micro_batch_size = 1, seq_len = 8 }
    data = { paths = ["TEXT"], tokenizer = "byte", val_fraction = 0.2 }
    checkpoint = { every = 2, keep = 0 }
    sample = { every = 0, tokens = 2 }
    log = { val_every = 0, val_batches = 1 }
    model = { width = 4 }
"#;

/// A text, and a run of four steps over it.
pub(crate) struct Fixture {
    temp: tempfile::TempDir,
    pub(crate) device: Device,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        let fixture = Fixture { temp: tempfile::tempdir().unwrap(), device: Device::cpu() };
        for (name, lines) in [("text", 40), ("other", 41)] {
            let text: String = (0..lines).map(|line| format!("line {line}\n")).collect();
            fs::write(fixture.path(name), text).unwrap();
        }
        fixture
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(crate) fn config(&self, sets: &[&str]) -> Config {
        let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
        let text = CONFIG.replace("TEXT", self.path("text").to_str().unwrap());
        Config::parse::<Tables>(&text, "the test", &sets).unwrap()
    }

    pub(crate) fn train(&self, resume: Resume, sets: &[&str]) -> Result<Summary> {
        let config = self.config(sets);
        let tables: Tables = config.model_tables()?;
        Session::new(&config, &self.device).run_dir(self.path("run")).resume(resume).train(
            |data, _| {
                let vocabulary = data.tokenizer.vocab_size();
                Ok(Bigram::new(vocabulary, tables.model.width))
            },
        )
    }
}
