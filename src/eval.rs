//! `meshgrad eval`: the loss of a model on a text.

use std::path::PathBuf;

use anyhow::ensure;
use meshgrad::runtime::Device;
use meshgrad::train::config::Config;
use meshgrad::train::corpus::Corpus;
use meshgrad::train::decoder;
use meshgrad::train::eval::{EvalOptions, eval as evaluate};
use meshgrad::train::report::format::thousands;
use meshgrad::train::tokenizer::Tokenizer;

use crate::device::OnFastest;
use crate::dtype::ComputeDType;
use crate::model::{self, Checks, Opened};

#[derive(clap::Args)]
pub(crate) struct EvalArguments {
    /// A run, one of its checkpoints, or a Hugging Face folder with a tokenizer.json.
    model: PathBuf,
    /// Files, folders or globs; without it, the default text.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    data: Vec<String>,
    /// Tokens per sequence [default: that of the run, otherwise 1024].
    #[arg(long, value_name = "N")]
    seq_len: Option<usize>,
    /// Sequences per forward pass.
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch_size: usize,
    /// The compute dtype.
    #[arg(long, default_value = "f32")]
    dtype: ComputeDType,
    /// Use the weights that training continues from, where a run also averages them.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    checks: Checks,
    #[command(flatten)]
    pub(crate) device: OnFastest,
}

pub(crate) fn eval(arguments: &EvalArguments, device: &Device) -> anyhow::Result<()> {
    for (option, value) in
        [("--seq-len", arguments.seq_len), ("--batch-size", Some(arguments.batch_size))]
    {
        ensure!(value != Some(0), "{option} is 0; it must be at least 1");
    }
    let opened = model::open(&arguments.model, arguments.checks, arguments.raw, device)?;
    let tokenizer = Tokenizer::from_file(&opened.folder.join("tokenizer.json"))?;
    let (tokens, rows) = (tokenizer.vocab_size(), opened.model.config().vocab_size());
    ensure!(
        tokens <= rows,
        "the tokenizer has {tokens} tokens but the model has {rows}: \
         tokenizer.json belongs to another model"
    );
    let corpus = Corpus::load(&arguments.data)?;
    let documents = &corpus.documents;

    let options = EvalOptions {
        seq_len: arguments.seq_len.unwrap_or_else(|| seq_len(&opened)),
        batch_size: arguments.batch_size,
        dtype: arguments.dtype.into(),
    };
    let result = evaluate(&opened.model, &tokenizer, documents, options, device)?;
    let (documents, predicted) = (documents.len(), thousands(result.tokens as f64));
    println!("model       {}", opened.folder.display());
    println!("data        {}: {documents} documents, {predicted} predicted tokens", corpus.title);
    println!("sequences   {} tokens", options.seq_len);
    println!("loss        {:.6} nats per token", result.nats_per_token);
    println!("perplexity  {:.4}", result.perplexity());
    println!("            {:.6} bits per byte", result.bits_per_byte);
    Ok(())
}

/// The sequence length of the run, if it is one.
fn seq_len(opened: &Opened) -> usize {
    let file = opened.folder.join("trainer/config.toml");
    let config = Config::read::<decoder::Tables>(Some(&file), &[]);
    config.map_or(1024, |config| config.train.seq_len)
}
