//! `meshgrad sample`: continues a prompt, or answers one.

use std::fmt::Display;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use meshgrad::runtime::{DType, Device};
use meshgrad::train::checkpoint;
use meshgrad::train::generate::{GenerationRequest, generate};
use meshgrad::train::prompt::Prompt;
use meshgrad::train::sampling::Sampling;
use meshgrad::train::tokenizer::Tokenizer;

use crate::device::OnFastest;
use crate::model::{self, Checks, Opened};

#[derive(clap::Args)]
pub(crate) struct SampleArguments {
    /// A run, one of its checkpoints, or a Hugging Face folder with a tokenizer.json.
    model: PathBuf,
    #[command(flatten)]
    pub(crate) device: OnFastest,
    /// The prompt; `-` reads it from standard input.
    #[arg(long, allow_hyphen_values = true)]
    prompt: Option<String>,
    /// The prompt is a message of a user: print the answer of a model trained on conversations.
    #[arg(long)]
    chat: bool,
    /// The maximum number of tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 200)]
    tokens: usize,
    /// Divides the logits; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Sample only from this many most likely tokens; 0 means all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,
    /// Sample only from the most likely tokens that together have this probability; 1 means all.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f64,
    /// Sample only from tokens with at least this fraction of the largest probability; 0 means all.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f64,
    /// Makes tokens of prompt and text less likely; 1 means no penalty.
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f64,
    /// End the text before this string; may be repeated.
    #[arg(long, value_name = "STRING", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// The random seed; equal seeds give equal text.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use the weights that training continues from, where a run also averages them.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    checks: Checks,
}

impl SampleArguments {
    fn sampling(&self) -> anyhow::Result<Sampling> {
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        };
        match sampling.check() {
            Ok(()) => Ok(sampling),
            // The options are named after the fields.
            Err(error) => bail!("--{}", error.to_string().replace('_', "-")),
        }
    }

    fn prompt(&self) -> anyhow::Result<String> {
        match self.prompt.as_deref() {
            Some("-") => read_prompt(io::stdin()),
            Some(prompt) => Ok(prompt.to_owned()),
            None => Ok(String::new()),
        }
    }
}

/// The prompt in `input`, without the newline at its end.
fn read_prompt(mut input: impl Read) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = input.read_to_end(&mut bytes);
    read.context("cannot read the prompt from standard input; use --prompt TEXT")?;
    let mut prompt = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let way_out = "convert it (iconv -t UTF-8) or use --prompt TEXT";
        anyhow::anyhow!("the prompt from standard input is not UTF-8 at byte {at}; {way_out}")
    })?;
    let newline = ["\r\n", "\n"].into_iter().find(|it| prompt.ends_with(it));
    prompt.truncate(prompt.len() - newline.map_or(0, str::len));
    ensure!(
        !prompt.is_empty(),
        "the prompt from standard input is empty; pipe a text, or use --prompt TEXT (an empty TEXT \
         starts a new document)"
    );
    Ok(prompt)
}

pub(crate) fn sample(arguments: &SampleArguments, device: &Device) -> anyhow::Result<()> {
    let sampling = arguments.sampling()?;
    ensure!(
        arguments.stop.iter().all(|stop| !stop.is_empty()),
        "--stop is empty; it needs at least one character"
    );
    let prompt = arguments.prompt()?;
    ensure!(
        !(arguments.chat && prompt.is_empty()),
        "--chat has no message to answer; use --prompt TEXT"
    );
    let Opened { model, folder, is_averaged } =
        model::open(&arguments.model, arguments.checks, arguments.raw, device)?;
    if checkpoint::has_averages(&folder) {
        let folder_name = folder.display();
        match is_averaged {
            true => eprintln!("averages of the weights of {folder_name}; --raw for the weights"),
            false => eprintln!("weights of {folder_name}, not their averages"),
        }
    }
    let tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json"))?;

    let prompt = match arguments.chat {
        true => Prompt::chat(&tokenizer, &prompt)?,
        false => Prompt::new(&tokenizer, &prompt)?,
    };
    if !arguments.chat {
        show(&prompt.text);
    }
    let request = GenerationRequest {
        prompt,
        tokens: arguments.tokens,
        sampling,
        ends: checkpoint::ends_of_text(&folder)?,
        stop: arguments.stop.clone(),
    };
    let dtype = DType::F32;
    generate(&model, &tokenizer, &request, dtype, device, |text| show(text))?;
    println!();
    Ok(())
}

/// Prints a part of the text; on a terminal, immediately.
fn show(text: impl Display) {
    print!("{text}");
    if io::stdout().is_terminal() {
        // A closed terminal is not an error.
        let _ = io::stdout().flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_no_newline_at_its_end() {
        let read = |bytes: &[u8]| read_prompt(bytes).map_err(|error| error.to_string());
        assert_eq!(read("fn \u{e9}\n".as_bytes()).unwrap(), "fn \u{e9}");
        assert_eq!(read(b"a\r\n").unwrap(), "a");
        assert_eq!(read(b"a\n\n").unwrap(), "a\n");
        assert_eq!(read(b" ").unwrap(), " ");
        for empty in [&b""[..], b"\n"] {
            let error = read(empty).unwrap_err();
            assert!(error.contains("is empty; pipe a text"), "{error}");
        }
        let error = read(b"ab\xffc").unwrap_err();
        assert!(error.contains("not UTF-8 at byte 2; convert it"), "{error}");
    }
}
