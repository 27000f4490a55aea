//! The output of a run: a header, a progress line, and messages in between.
//!
//! One line is printed per interval. On a terminal, with the feature `progress`, there is also a
//! bar at the bottom, which is redrawn every step. Color is used only on a terminal, and only if
//! `NO_COLOR` is not set (no-color.org). This module measures nothing.

#[cfg(feature = "progress")]
mod bar;
#[cfg(not(feature = "progress"))]
#[path = "report/no_bar.rs"]
mod bar;
pub mod format;
#[cfg(feature = "progress")]
mod loading;
#[cfg(not(feature = "progress"))]
#[path = "report/no_loading.rs"]
mod loading;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use bar::Bar;
pub use loading::with_loading_bar;

use crate::metrics::Record;
use crate::sampler::PackingInfo;

/// The header of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// `meshgrad 0.1.0`.
    pub version: String,
    /// The device's name, such as `cpu`.
    pub device: String,
    /// Threads and instruction sets, such as `x2 avx512 bf16`, or the GPU's model.
    pub hardware: String,
    /// Dtype of activations.
    pub dtype: String,
    /// The ranks and their mesh, if there are several.
    pub mesh: Option<String>,
    /// The stages of a pipeline, and the work of each.
    pub stages: Option<String>,
    /// A short description of the model: type, layers, experts.
    pub model: String,
    /// All parameters.
    pub parameters: u64,
    /// Parameters that one token uses.
    pub active_parameters: u64,
    /// A description of the text.
    pub data: String,
    /// XXH3-128 of the text.
    pub digest: u128,
    /// Documents of the text.
    pub documents: usize,
    /// Bytes of text, training and validation.
    pub text_bytes: u64,
    /// Invalid UTF-8 bytes that were replaced by U+FFFD.
    pub replaced_bytes: u64,
    /// Files that were skipped because they have no text.
    pub empty_files: u64,
    /// Size of the tokenizer's vocabulary.
    pub vocab_size: usize,
    /// Training tokens.
    pub training_tokens: u64,
    /// Validation tokens.
    pub validation_tokens: u64,
    /// How conversations are packed into sequences.
    pub packing: Option<PackingInfo>,
    /// The documents of the validation text that are cut, because they are longer than a sequence.
    pub cut_for_validation: usize,
    /// The run folder.
    pub run: String,
}

impl Header {
    /// The lines of the header, each as label and text.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let counted = |count: u64| format::count(count);
        let (total, active) = (counted(self.parameters), counted(self.active_parameters));
        let active = if total == active { String::new() } else { format!(" ({active} active)") };
        let replaced = match self.replaced_bytes {
            0 => String::new(),
            count => format!(", {} invalid UTF-8 bytes replaced", format::thousands(count as f64)),
        };

        let skipped = match self.empty_files {
            0 => String::new(),
            1 => ", 1 empty file skipped".to_owned(),
            count => format!(", {} empty files skipped", format::thousands(count as f64)),
        };

        let mut lines = vec![
            ("device", format!("{} {}  {}", self.device, self.hardware, self.dtype)),
            ("model", format!("{}  {total} parameters{active}", self.model)),
            (
                "data",
                format!(
                    "{}: {} documents, {}{replaced}{skipped}  xxh3 {:016x}",
                    self.data,
                    format::thousands(self.documents as f64),
                    format::bytes(self.text_bytes),
                    // Half of the digest is enough to identify the text.
                    (self.digest >> 64) as u64
                ),
            ),
            (
                "tokens",
                format!(
                    "{} for training, {} held out, vocabulary {}",
                    counted(self.training_tokens),
                    counted(self.validation_tokens),
                    format::thousands(self.vocab_size as f64)
                ),
            ),
            ("run", self.run.clone()),
        ];
        let of_ranks = [("ranks", &self.mesh), ("stages", &self.stages)].into_iter();
        let of_ranks = of_ranks.filter_map(|(label, text)| Some((label, text.clone()?)));
        let run = lines.len() - 1;
        lines.splice(run..run, self.packing.map(|packing| ("packing", self.packed(&packing))));
        lines.splice(1..1, of_ranks);
        lines
    }

    /// The rows of an epoch, and what was cut.
    fn packed(&self, packing: &PackingInfo) -> String {
        let (rows, padding) = (packing.rows as f64, 100.0 * packing.padding());
        let rows = format::thousands(rows);
        let cut = match packing.cut + self.cut_for_validation {
            0 => String::new(),
            1 => ", 1 document is cut".to_owned(),
            count => format!(", {} documents are cut", format::thousands(count as f64)),
        };
        format!("{rows} sequences of whole documents, {padding:.1}% padding{cut}")
    }
}

/// The state of a run, which the progress line shows next to the metrics of the step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunProgress {
    /// Steps of the whole run.
    pub steps: u64,
    /// The last validation loss.
    pub val_loss: Option<f64>,
    /// Live or peak bytes of the device's memory.
    pub memory: u64,
    /// Estimated time left.
    pub eta: Option<Duration>,
}

/// A line that fits any terminal: `step 120/600  loss 3.412  9,812 tok/s  eta 1m41s`.
pub fn short_line(record: &Record, progress: &RunProgress) -> String {
    let width = progress.steps.to_string().len();
    let mut parts = vec![
        format!("step {:>width$}/{}", record.step, progress.steps),
        format!("loss {:.3}", record.loss),
        format!("{} tok/s", format::thousands(record.tokens_per_s)),
    ];
    let eta = progress.eta.map(format::duration);
    parts.extend(eta.map(|eta| format!("eta {eta}")));
    parts.join("  ")
}

/// The line of a step: [`short_line`], then `val 3.500  lr 9.8e-4  |g| 0.82  mem 412 MB`, what is known of
/// packing, of the use of GPUs and of communication, and each expert's share of the tokens.
pub fn line(record: &Record, progress: &RunProgress) -> String {
    let mut parts = vec![short_line(record, progress)];
    parts.extend(progress.val_loss.map(|loss| format!("val {loss:.3}")));
    parts.push(format!("lr {}", format::rate(record.lr)));
    parts.push(format!("|g| {:.2}", record.grad_norm));
    parts.push(format!("mem {}", format::bytes(progress.memory)));
    let padding = record.extra.get("padding").and_then(serde_json::Value::as_f64);
    parts.extend(padding.map(|padding| format!("padding {:.1}%", 100.0 * padding)));
    parts.extend(record.mfu.map(|mfu| format!("mfu {:.1}%", 100.0 * mfu)));
    parts.extend(communication(record));
    if !record.expert_shares.is_empty() {
        parts.push(format!("experts {}", format::shares(&record.expert_shares)));
    }
    parts.extend(dispatches(record));
    parts.join("  ")
}

/// Of experts on several ranks, the rows of the busiest rank over the mean, what all ranks sent, and how
/// often the step was repeated: `busiest rank 1.45  6,288 rows sent, 50 MB  repeated 1`.
fn dispatches(record: &Record) -> Vec<String> {
    let known = |name: &str| record.extra.get(name).and_then(serde_json::Value::as_f64);
    let load = known("rank_load").map(|load| format!("busiest rank {load:.2}"));
    let sent = known("sent_rows").zip(known("sent_bytes")).map(|(rows, bytes)| {
        format!("{} rows sent, {}", format::thousands(rows), format::bytes(bytes as u64))
    });
    let repeats = known("repeats").map(|repeats| format!("repeated {repeats}"));
    [load, sent, repeats].into_iter().flatten().collect()
}

/// The rate per rank, the bytes that a rank communicates in a step, and the time that it waits for
/// them: `4 ranks, 2,453 tok/s each  comm 37 MB, 12 ms exposed`.
fn communication(record: &Record) -> Option<String> {
    let ranks = record.ranks?;
    let (bytes, exposed) = (record.comm_bytes?, record.comm_exposed_s?);
    Some(format!(
        "{ranks} ranks, {} tok/s each  comm {}, {:.0} ms exposed",
        format::thousands(record.tokens_per_s / ranks as f64),
        format::bytes(bytes),
        1e3 * exposed
    ))
}

/// The estimated time left when `done` of `total` steps took `elapsed`; `None` before the first.
pub fn eta(elapsed: Duration, done: u64, total: u64) -> Option<Duration> {
    let left = total.saturating_sub(done) as f64;
    let per_step = elapsed.as_secs_f64() / done as f64;
    (done > 0).then(|| Duration::from_secs_f64(per_step * left))
}

/// Writes the output of a run.
pub struct Reporter {
    bar: Option<Bar>,
    color: bool,
    every: u64,
    is_silent: bool,
}

impl Reporter {
    /// Writes to standard output: a line every `every` steps, and on a terminal a bar that is
    /// redrawn.
    pub fn new(steps: u64, every: u64) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());

        let bar = is_terminal.then(|| Bar::new(steps)).flatten();
        Self { bar, color: is_terminal && !no_color, every: every.max(1), is_silent: false }
    }

    /// Writes nothing: for ranks other than 0.
    pub(crate) fn silent() -> Self {
        Self { bar: None, color: false, every: u64::MAX, is_silent: true }
    }

    /// Writes the header.
    pub fn header(&self, header: &Header) {
        self.print(&self.bold(&header.version));
        for (name, text) in header.lines() {
            self.print(&format!("  {}  {text}", self.dim(&format!("{name:<7}"))));
        }
        self.print("");
    }

    /// Prints the first, the last and every `every`th step. The bar shows all of them.
    pub fn step(&self, record: &Record, progress: &RunProgress) {
        if is_due(record.step, progress.steps, self.every) {
            self.print(&line(record, progress));
        }
        if let Some(bar) = &self.bar {
            bar.show(record.step, short_line(record, progress));
        }
    }

    /// Writes a message above the bar.
    pub fn message(&self, text: &str) {
        self.print(text);
    }

    /// Writes generated text, marked so that it is not mistaken for output of the program.
    pub fn sample(&self, step: u64, text: &str) {
        self.print(&self.bold(&format!("sample after step {step}")));
        for line in printable(text).lines() {
            self.print(&format!("  {} {line}", self.dim("|")));
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.clear();
        }
    }

    fn bold(&self, text: &str) -> String {
        paint(self.color, "1", text)
    }

    fn dim(&self, text: &str) -> String {
        paint(self.color, "2", text)
    }

    fn print(&self, text: &str) {
        if self.is_silent {
            return;
        }
        let write = || {
            // A closed pipe (`| head`) must not stop a training run.
            let _ = writeln!(std::io::stdout(), "{text}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

fn is_due(step: u64, steps: u64, every: u64) -> bool {
    step == 1 || step == steps || step.is_multiple_of(every)
}

fn paint(color: bool, code: &str, text: &str) -> String {
    if color { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// Replaces control characters, which a model may generate and which would move the cursor.
fn printable(text: &str) -> String {
    let visible = |char: char| match char {
        '\n' => '\n',
        '\t' => ' ',
        char if char.is_control() => char::REPLACEMENT_CHARACTER,
        char => char,
    };
    text.chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_documented_one() {
        let mut record = Record {
            step: 120,
            loss: 3.4119,
            lr: 9.8e-4,
            grad_norm: 0.8211,
            tokens_per_s: 9812.2,
            mfu: Some(0.4123),
            expert_shares: vec![0.4, 0.6],
            ..Record::default()
        };
        let progress = RunProgress {
            steps: 1600,
            val_loss: Some(3.5),
            memory: 412_000_000,
            eta: Some(Duration::from_secs(101)),
        };
        let short = "step  120/1600  loss 3.412  9,812 tok/s  eta 1m41s";
        let rest = "  val 3.500  lr 9.8e-4  |g| 0.82  mem 412 MB  mfu 41.2%  experts [40 60]%";
        assert_eq!(line(&record, &progress), format!("{short}{rest}"));
        assert_eq!(short_line(&record, &progress), short);

        let of_dispatches = [
            ("rank_load", 1.4541),
            ("sent_rows", 6288.0),
            ("sent_bytes", 50_429_952.0),
            ("repeats", 1.0),
        ];
        record.extra.extend(of_dispatches.map(|(name, value)| (name.to_owned(), value.into())));
        record.extra.insert("padding".to_owned(), 0.031.into());
        let rest = rest.replace("  mfu", "  padding 3.1%  mfu");
        let last = "  busiest rank 1.45  6,288 rows sent, 50.4 MB  repeated 1";
        assert_eq!(line(&record, &progress), format!("{short}{rest}{last}"));
    }

    #[test]
    fn unknown_values_are_not_shown() {
        let record = Record { step: 1, loss: f64::NAN, ..Record::default() };
        let progress = RunProgress { steps: 2, ..RunProgress::default() };
        let line = line(&record, &progress);
        assert_eq!(line, "step 1/2  loss NaN  0 tok/s  lr 0  |g| 0.00  mem 0 B");
    }

    #[test]
    fn the_header_shows_every_field() {
        let header = Header {
            version: "meshgrad 0.1.0".to_owned(),
            device: "cpu".to_owned(),
            hardware: "x2 avx512".to_owned(),
            dtype: "f32".to_owned(),
            mesh: Some("4: 2 pp (zbv) x 2 dp_shard (fsdp)".to_owned()),
            stages: Some("4: layers 1 1 1 1, FLOPs [25 25 25 25]%".to_owned()),
            model: "qwen3_moe, 4 layers, 8 experts top-2".to_owned(),
            parameters: 9_190_000,
            active_parameters: 3_420_000,
            data: "Rust sources of 97 crates".to_owned(),
            digest: 0x0123_4567_89ab_cdef_0000_0000_0000_0000,
            documents: 1900,
            text_bytes: 16_000_000,
            replaced_bytes: 3,
            empty_files: 2,
            vocab_size: 4096,
            training_tokens: 4_900_000,
            validation_tokens: 100_000,
            packing: Some(PackingInfo {
                pieces: 1900,
                tokens: 4_800_000,
                rows: 5000,
                seq_len: 1000,
                cut: 1,
            }),
            cut_for_validation: 1,
            run: "runs/default".to_owned(),
        };
        let lines: Vec<String> = header.lines().into_iter().map(|(_, text)| text).collect();
        let expected = [
            "cpu x2 avx512  f32",
            "4: 2 pp (zbv) x 2 dp_shard (fsdp)",
            "4: layers 1 1 1 1, FLOPs [25 25 25 25]%",
            "qwen3_moe, 4 layers, 8 experts top-2  9.19M parameters (3.42M active)",
            "Rust sources of 97 crates: 1,900 documents, 16.0 MB, 3 invalid UTF-8 bytes \
             replaced, 2 empty files skipped  xxh3 0123456789abcdef",
            "4.90M for training, 100K held out, vocabulary 4,096",
            "5,000 sequences of whole documents, 4.0% padding, 2 documents are cut",
            "runs/default",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn lines_are_due_at_intervals_and_at_both_ends() {
        let due: Vec<u64> = (1..=25).filter(|&step| is_due(step, 25, 10)).collect();
        assert_eq!(due, [1, 10, 20, 25]);
    }

    #[test]
    fn eta_is_proportional() {
        let spent = Duration::from_secs(10);
        assert_eq!(eta(spent, 100, 600), Some(Duration::from_secs(50)));
        assert_eq!(eta(spent, 0, 600), None);
        assert_eq!(eta(spent, 700, 600), Some(Duration::ZERO));
    }

    #[test]
    fn color_codes_and_control_characters() {
        assert_eq!(paint(false, "1", "x"), "x");
        assert_eq!(paint(true, "1", "x"), "\u{1b}[1mx\u{1b}[0m");
        assert_eq!(printable("a\u{1b}[2J\tb\n"), "a\u{fffd}[2J b\n");
    }
}
