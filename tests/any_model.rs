//! A model that meshgrad does not know trains, resumes, samples and is saved like Qwen3.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use meshgrad::models::folder;
use meshgrad::models::layers::Linear;
use meshgrad::models::model::Metrics;
use meshgrad::prelude::*;
use meshgrad::train::config::Config;
use meshgrad::train::metrics;
use meshgrad::train::session::{self, Options, Summary};

/// Predicts a token from the one before it, and counts the tokens it was trained on.
#[derive(Module)]
struct Bigram {
    embedding: Param,
    inside: Linear,
    head: Linear,
    seen: Buffer,
}

impl Bigram {
    fn new(vocabulary: usize) -> Bigram {
        Bigram {
            embedding: Param::new("embedding", [vocabulary, 24], Init::Normal { std: 0.1 }),
            inside: Linear::new("inside", 24, 24).bias(true),
            head: Linear::new("head", 24, vocabulary),
            seen: Buffer::new("seen", [1], Init::Zeros),
        }
    }

    fn hidden(&self, ids_bt: &Tensor, dtype: DType) -> Result<Var> {
        let x_btd = ops::embedding(&self.embedding.var_as(dtype)?, ids_bt)?.as_activation()?;
        &x_btd + &ops::silu(&self.inside.forward(&x_btd)?)?
    }
}

impl Model for Bigram {
    type Batch = TokenBatch;

    fn loss(&self, batch: &TokenBatch, compute: Compute) -> Result<Loss> {
        let x_btd = self.hidden(&batch.ids, compute.dtype)?;
        let head = self.head.weight.var_as(compute.dtype)?;
        let (sum, weight) = ops::linear_cross_entropy(&x_btd, &head, &batch.labels, IGNORE_INDEX)?;
        Ok(Loss {
            statistics: vec![weight.clone()],
            ..Loss::new(sum, weight)
        })
    }

    fn after_step(&self, statistics: &[Tensor]) -> Result<()> {
        let seen = self.seen.value()?;
        values::copy_into(&values::add(&seen, &statistics[0])?, &seen)
    }

    fn metrics(&self, statistics: &[Vec<f32>]) -> Metrics {
        Metrics {
            extra: vec![("counted".into(), statistics[0][0].into())],
            ..Metrics::default()
        }
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

    fn next_logits(&self, ids_bt: &Tensor, _: &mut (), dtype: DType) -> Result<Tensor> {
        let last = ids_bt.extent(-1)? - 1;
        let x_b1d = self.hidden(&ids_bt.slice(1, last..last + 1)?, dtype)?;
        let logits_b1v = self.head.forward(&x_b1d)?;
        values::reshape(logits_b1v.value(), &[ids_bt.extent(0)?, self.vocab_size()])
    }
}

const CONFIG: &str = r#"
    train = { steps = 6, batch_size = 6, micro_batch_size = 2, seq_len = 33 }
    data = { paths = ["TEXT"], tokenizer = "byte" }
    checkpoint = { every = 2, keep = 0 }
    sample = { every = 3, tokens = 4 }
    log = { val_every = 4, val_batches = 2 }
    optimizer = { learning_rate = 0.01 }
    schedule = { warmup_steps = 1 }
"#;

fn train(run: &Path, stop_after: Option<u64>) -> Summary {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/any_model.rs");
    let text = CONFIG.replace("TEXT", text.to_str().unwrap());
    let config = Config::parse(&text, "the test", &[]).unwrap();
    let options = Options {
        run_dir: run.to_owned(),
        stop_after,
        ..Options::default()
    };
    let stop = AtomicBool::new(false);
    let build = |data: &meshgrad::train::data::Data, _: Option<&meshgrad::ckpt::Committed>| {
        Ok(Bigram::new(data.tokenizer.vocab_size()))
    };
    session::run_model(&config, &options, &Device::cpu(), &stop, build).unwrap()
}

/// The content of every tensor file below `folder`.
fn tensors(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for part in [
        "",
        "trainer/exp_avg",
        "trainer/exp_avg_sq",
        "trainer/buffers",
    ] {
        let file = folder.join(part).join("model.safetensors");
        files.insert(part.to_owned(), fs::read(file).unwrap());
    }
    files
}

#[test]
fn a_run_that_was_stopped_and_resumed_gives_the_same_bits() {
    let temp = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| temp.path().join(name));
    let summary = train(&whole, None);
    for stop_after in [Some(1), Some(3), None] {
        train(&parts, stop_after);
    }

    let last = "step-000006";
    assert!(tensors(&whole.join(last)) == tensors(&parts.join(last)));
    assert!(tensors(&whole.join("step-000002")) != tensors(&whole.join("step-000004")));
    assert!(summary.val_loss.unwrap() < 5.6, "{summary:?}");

    // The buffer counted every token once, and the model's own metric is recorded.
    let stored = meshgrad::ckpt::TensorFile::open(
        whole.join(last).join("trainer/buffers/model.safetensors"),
    );
    let seen = stored.unwrap().read("seen").unwrap();
    assert_eq!(
        f32::from_le_bytes(seen[..4].try_into().unwrap()),
        6.0 * 6.0 * 33.0
    );
    let records = metrics::read(&parts.join("metrics.jsonl")).unwrap();
    assert_eq!(records.len(), 6);
    assert!(
        records
            .iter()
            .all(|record| record.extra["counted"] == 198.0)
    );
    assert!(records[5].loss < records[0].loss);
}

#[test]
fn a_module_is_saved_and_loaded_under_its_own_names() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    let device = Device::cpu();
    let saved = Bigram::new(11);
    saved.materialize(&device, 7).unwrap();
    values::fill_into(&saved.seen.value().unwrap(), 42.0).unwrap();
    folder::save(&saved, &dir).unwrap();
    assert!(folder::save(&saved, &dir).is_err(), "the folder exists");

    let loaded = Bigram::new(11);
    folder::load(&loaded, &dir, &device).unwrap();
    let bits = |model: &Bigram| {
        let params = model.params().into_iter().map(|it| it.value().unwrap());
        let buffers = model.buffers().into_iter().map(|it| it.value().unwrap());
        let all = params.chain(buffers);
        all.map(|it| it.to_vec::<f32>().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(bits(&saved), bits(&loaded));

    let error = folder::load(&Bigram::new(12), &dir, &device)
        .unwrap_err()
        .to_string();
    assert!(error.contains("embedding"), "{error}");
}
