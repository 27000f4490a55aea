//! What every key means: the source of `meshgrad config` and of the tables in docs/training.md.

use meshgrad_error::Result;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::choice::{self, Choice};
use super::read::{bad_default, not_toml};
use super::setting::lookup;
use super::{Config, Meaning, ModelTables};

/// The keys of every run, in the order of the tables. Keys of a choice are listed once.
pub const KEYS: &[Meaning] = &[
    (
        "data.paths",
        "files, folders and globs, relative to the working directory; empty for the default text",
    ),
    (
        "data.tokenizer",
        "`byte`, `bpe:N` (trained once on the training text), or the path of a tokenizer.json",
    ),
    (
        "data.val_fraction",
        "fraction held out for validation, by document; not used with `data.validation`",
    ),
    ("data.validation", "files, folders and globs of a separate validation text"),
    (
        "data.sources",
        "several training texts in place of `data.paths`, each with `paths` and `weight`",
    ),
    (
        "data.too_long",
        "with conversations, a document that is longer than `train.seq_len`: `refuse` is an error, `cut` \
         makes several documents of it",
    ),
    ("train.steps", "optimizer steps"),
    ("train.batch_size", "sequences per step, over all ranks"),
    (
        "train.micro_batch_size",
        "sequences per forward pass, over all ranks; gradients are summed. Left out, it is \
         `train.batch_size`",
    ),
    ("train.seq_len", "tokens per sequence"),
    (
        "train.dtype",
        "`f32` or `bf16`: dtype of activations and of the weights' compute copies; master weights \
         are f32",
    ),
    ("train.seed", "seed of initial values, sample order and text generation"),
    (
        "train.activation_checkpointing",
        "save only each layer's input and recompute the rest: the same bits, less memory",
    ),
    ("train.check_memory", "refuse a run that needs more memory than is free"),
    (
        "train.reduction",
        "`sum`, or `tree`: the same bits for any number of data-parallel ranks that is a power of two, and \
         of stages. With auxiliary losses, only runs with equally many data-parallel ranks have the same \
         bits. One sequence per pass and rank, so slower",
    ),
    (
        "train.only",
        "patterns of the names of the parameters that are trained, such as `*.self_attn.*`; all others are \
         frozen. Empty: all are trained",
    ),
    ("parallel.dp_replicate", "replicas of the parameters, with different sequences"),
    (
        "parallel.dp_shard",
        "shards of the parameters, with different sequences; `auto`: the ranks that the other degrees \
         leave",
    ),
    ("parallel.tp", "shards of each matrix (tensor parallelism)"),
    ("parallel.pp", "ranks of a pipeline, which have different layers"),
    (
        "parallel.cp_shard",
        "shards of the parameters, with different tokens of the same sequences (context parallelism)",
    ),
    (
        "parallel.cp_replicate",
        "replicas of the parameters, with different tokens of the same sequences",
    ),
    (
        "parallel.sp",
        "ranks with different tokens of the same sequences, and in attention different heads (Ulysses)",
    ),
    (
        "parallel.attention",
        "how ranks of `cp_shard` and `cp_replicate` get the keys and values of others: `gather`, all at \
         once; or `ring`, those of one rank after the other, so that no rank has all",
    ),
    (
        "parallel.ep",
        "expert parallelism: the experts are divided over this many of the ranks that the other degrees \
         give, and tokens are sent to them",
    ),
    ("parallel.etp", "shards of each expert's inner features, on ranks as for `ep`"),
    (
        "parallel.dispatch",
        "how tokens are sent to experts on other ranks: `all_gather`, `all_to_all`, or `auto`, which sends \
         fewer bytes",
    ),
    (
        "parallel.capacity",
        "how many tokens `all_to_all` has room for: `auto`, as the last steps needed, where a step that \
         needs more is repeated; or `worst`, for all tokens to choose the experts of one rank",
    ),
    ("parallel.order", "order of ranks, fastest first, such as `tp-dp`; empty for the default"),
    (
        "parallel.home",
        "`fsdp` divides the parameters of `dp_shard`, their gradients and optimizer state; `zero1` only \
         the state and the values it updates",
    ),
    (
        "parallel.reshard_after_forward",
        "free gathered parameters between forward and backward: less memory, more communication",
    ),
    (
        "parallel.whole_matrices",
        "divide between matrices, for an optimizer of your own that updates whole matrices",
    ),
    ("parallel.prefetch", "layers that are gathered ahead of their use"),
    (
        "parallel.sequence_parallel",
        "with `tp`, shard activations between blocks along the sequence",
    ),
    ("parallel.loss_parallel", "with `tp`, shard the vocabulary in the embedding and in the loss"),
    ("parallel.shard_experts", "with `tp`, shard each expert; otherwise experts are replicated"),
    (
        "parallel.overlap_chunks",
        "chunks in which the communication of `tp` runs beside matrix products; 1 is no overlap",
    ),
    (
        "pipeline.schedule",
        "order of the passes of a step: `gpipe`, `looped_bfs`, `1f1b`, `interleaved`, `zb1p`, \
         `interleaved_zb`, `zbv`, `dual_pipe_v`, `auto`, or a .csv file",
    ),
    ("pipeline.stages_per_rank", "stages of each rank; 0 for as many as the schedule needs"),
    ("pipeline.split", "layers of each stage; empty: as `pipeline.balance` says"),
    ("pipeline.balance", "what stages have about equally many of: `flops` or `layers`"),
    (
        "pipeline.reshard",
        "whether `fsdp` frees gathered parameters between the passes of a stage; otherwise they are \
         gathered once per step",
    ),
    ("optimizer.name", "`adamw`, `sgd`, `lion` or `muon`; it decides the keys of its table"),
    ("optimizer.learning_rate", "the peak learning rate"),
    ("optimizer.max_grad_norm", "clipping by the global norm; 0 disables it"),
    (
        "optimizer.ema_decay",
        "decay per step of the moving averages of the weights; 0 keeps no averages",
    ),
    (
        "optimizer.skip_nonfinite",
        "skip steps whose gradient is not finite; otherwise they end the run",
    ),
    ("optimizer.groups", "learning rates and weight decays by parameter name"),
    (
        "optimizer.weight_decay",
        "weight decay per step, relative to the learning rate; for `sgd` an L2 penalty",
    ),
    ("optimizer.beta1", "decay of the gradient's average; for `lion` its weight in the update"),
    ("optimizer.beta2", "decay of the squared gradient's average; for `lion` that of the momentum"),
    (
        "optimizer.eps",
        "added to the denominator; for `muon` the smallest norm of a direction that updates its matrix",
    ),
    ("optimizer.state_dtype", "`f32` or `bf16`: dtype of the optimizer's state"),
    (
        "optimizer.rounding",
        "`nearest` or `stochastic` (from the run's seed): rounding of bf16 parameters; \
         `stochastic` is an error if no parameter is bf16",
    ),
    ("optimizer.momentum", "decay of the momentum buffer"),
    ("optimizer.dampening", "the gradient enters the momentum buffer with factor 1 - `dampening`"),
    ("optimizer.nesterov", "use Nesterov momentum"),
    ("optimizer.iterations", "Newton-Schulz iterations"),
    ("optimizer.coefficients", "coefficients of the Newton-Schulz iteration"),
    (
        "optimizer.product_dtype",
        "`bf16` or `f32`: dtype of the operands of the iteration's products",
    ),
    (
        "optimizer.adjust_learning_rate",
        "`match_rms_adamw` or `original`: factor of the learning rate for a matrix",
    ),
    ("optimizer.adamw_names", "patterns of the matrices that AdamW updates, not Muon"),
    (
        "optimizer.adamw",
        "the keys of AdamW, for these matrices and for parameters with fewer than two dims",
    ),
    (
        "schedule.kind",
        "`constant`, `linear`, `cosine`, `wsd`, `phases` or `own` (set by a program); it decides \
         the keys of its table",
    ),
    ("schedule.warmup_steps", "steps of the linear warm-up"),
    ("schedule.min_lr_ratio", "the last step's rate as a fraction of the peak"),
    ("schedule.decay_steps", "steps of the decay at the end"),
    (
        "schedule.curve",
        "curve of the decay: `linear`, `cosine`, `exponential`, `poly:POWER` or `poly_out:POWER`",
    ),
    ("schedule.initial", "factor of the learning rate before the first phase"),
    (
        "schedule.phases",
        "phases, each with `length` (steps, `\"20%\"` or `\"rest\"`), `target` and `curve`",
    ),
    ("checkpoint.every", "steps between checkpoints; 0 saves only at the end"),
    ("checkpoint.keep", "newest checkpoints to keep; 0 keeps all"),
    ("checkpoint.verify", "compare the contents of a checkpoint with its digests when resuming"),
    (
        "sample.every",
        "steps between samples of generated text, with one at the end; 0 never samples",
    ),
    ("sample.prompt", "the text that a sample continues; empty for the start of a held-out line"),
    ("sample.tokens", "tokens to generate"),
    ("sample.temperature", "divides the logits; 0 always takes the most likely token"),
    ("sample.top_k", "sample only from this many most likely tokens; 0 means all"),
    ("log.every", "steps between progress lines"),
    ("log.val_every", "steps between validations; 0 validates only at the end"),
    ("log.val_batches", "batches per validation; 0 uses the whole held-out text"),
    ("log.tensorboard", "write metrics for TensorBoard, too"),
    (
        "log.trace_step",
        "step of which each rank writes its ops, collectives and waits to \
         `trace-rank-N.json`, for ui.perfetto.dev; 0 for none",
    ),
];

/// The width of comments.
const WIDTH: usize = 80;

impl Config {
    /// As [`Config::to_toml`], with the meaning of each key as a comment. Keys of the model without
    /// a value are listed in comments.
    ///
    /// # Errors
    /// As [`Config::to_toml`].
    pub fn annotated<T: ModelTables>(&self) -> Result<String> {
        let mut text = self.to_toml()?;
        let mut comments = Vec::new();
        let written = DeTable::parse(&text).map_err(bad_default)?.into_inner();
        for (at, path) in positions(&written, "") {
            let mut comment = String::new();
            if let Some(meaning) = meaning::<T>(&path) {
                push(&mut comment, meaning);
            }
            comments.push((text[..at].rfind('\n').map_or(0, |newline| newline + 1), comment));
        }
        let headers =
            |(at, path): &(usize, String)| !path.contains('.') && text[..*at].ends_with('[');
        let tables: Vec<(usize, String)> =
            positions(&written, "").into_iter().filter(headers).collect();
        for (index, (_, table)) in tables.iter().enumerate() {
            let end = tables.get(index + 1).map_or(text.len(), |(next, _)| next - 1);
            comments.push((end, self.unset::<T>(table)));
        }
        // From the last on, so that earlier positions stay valid.
        comments.sort_by_key(|(at, _)| *at);
        for (at, comment) in comments.iter().rev() {
            text.insert_str(*at, comment);
        }
        Ok(text)
    }

    /// A comment with the keys of `table` that have no value; empty if there are none.
    fn unset<T: ModelTables>(&self, table: &str) -> String {
        let mut comment = String::new();
        for (path, meaning) in T::keys() {
            let parts: Vec<String> = path.split('.').map(str::to_owned).collect();
            if parts[0] == table && lookup(&self.tables, &parts).is_none() {
                push(&mut comment, &format!("{}: {meaning}", parts[1..].join(".")));
            }
        }
        match comment.is_empty() {
            true => comment,
            false => format!("# Further keys of [{table}]:\n{comment}\n"),
        }
    }
}

/// The keys and tables of `table`, at `path`: the position of each name, and its whole path.
fn positions(table: &DeTable<'_>, path: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (name, value) in table {
        let separator = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{separator}{}", name.get_ref());
        if let DeValue::Table(inner) = value.get_ref() {
            found.extend(positions(inner, &path));
        }
        found.push((name.span().start, path));
    }
    found.sort_unstable();
    found
}

/// The meaning of the key `path`. AdamW's keys within Muon are those of AdamW.
fn meaning<T: ModelTables>(path: &str) -> Option<&'static str> {
    let path = match path.strip_prefix("optimizer.adamw.") {
        Some(key) => format!("optimizer.{key}"),
        None => path.to_owned(),
    };
    let mut all = KEYS.iter().chain(T::keys());
    all.find(|(key, _)| *key == path).map(|(_, meaning)| *meaning)
}

/// Adds `text` as a comment, in lines of at most [`WIDTH`].
fn push(to: &mut String, text: &str) {
    let mut line = "#".to_owned();
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            to.push_str(&line);
            to.push('\n');
            line = "#".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    to.push_str(&line);
    to.push('\n');
}

/// Tables in Markdown, of the keys of every run and of those of `T`: path, default and meaning.
///
/// # Errors
/// When a default cannot be written.
pub fn markdown<T: ModelTables>() -> Result<[String; 2]> {
    let common = Table::try_from(Config::default()).map_err(not_toml)?;
    let own = Table::try_from(T::default()).map_err(not_toml)?;
    let rows = |keys: &[Meaning], defaults: &Table| {
        let mut rows = "| key | default | meaning |\n|---|---|---|\n".to_owned();
        for (path, meaning) in keys {
            let default = default(path, defaults);
            rows.push_str(&format!("| `{path}` | {default} | {meaning} |\n"));
        }
        rows
    };
    Ok([rows(KEYS, &common), rows(T::keys(), &own)])
}

/// The default of a key; by choice where it depends on one.
fn default(path: &str, defaults: &Table) -> String {
    let path: Vec<String> = path.split('.').map(str::to_owned).collect();
    let Some(choice) = choice::of_table(&path[0]).filter(|choice| !choice.is_key(&path[1])) else {
        return lookup(defaults, &path).map_or_else(|| "-".to_owned(), shown);
    };
    by_choice(choice, &path[1..])
}

/// The defaults of a key that depends on a choice: those of each value that has it.
fn by_choice(choice: &Choice, path: &[String]) -> String {
    let mut defaults: Vec<(String, Vec<String>)> = Vec::new();
    for name in choice.values {
        let Some(default) = choice.table_of(name).and_then(|it| lookup(&it, path).map(shown))
        else {
            continue;
        };
        let name = format!("`{name}`");
        match defaults.iter_mut().find(|(known, _)| *known == default) {
            Some((_, names)) => names.push(name),
            None => defaults.push((default, vec![name])),
        }
    }
    match &defaults[..] {
        [(default, names)] if names.len() == choice.values.len() => default.clone(),
        all => {
            let all =
                all.iter().map(|(default, names)| format!("{default} ({})", names.join(", ")));
            all.collect::<Vec<_>>().join(", ")
        }
    }
}

/// A value in a table of the documentation.
fn shown(value: &Value) -> String {
    match value {
        Value::Float(number) if *number != 0.0 && number.abs() < 0.01 => format!("{number:e}"),
        Value::Float(number) => number.to_string(),
        Value::Table(_) => "a table".to_owned(),
        Value::String(_) | Value::Array(_) => format!("`{value}`"),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::setting::paths;
    use super::*;
    use crate::decoder::Tables;

    fn schema_paths() -> Vec<String> {
        let common = Table::try_from(Config::default()).unwrap();
        let mut all = paths(&common);
        for table in ["optimizer", "schedule"] {
            let choice = choice::of_table(table).unwrap();
            for name in choice.values {
                let keys = paths(&choice.table_of(name).unwrap()).into_iter();
                all.extend(keys.map(|key| format!("{table}.{key}")));
            }
        }
        all.retain(|path| path.contains('.'));
        all
    }

    #[test]
    fn every_key_has_a_meaning_and_every_meaning_a_key() {
        let schema = schema_paths();
        for path in &schema {
            assert!(meaning::<Tables>(path).is_some(), "{path} has no meaning");
        }
        for (path, _) in KEYS {
            assert!(schema.iter().any(|known| known == path), "{path} is no key");
        }
        let own = paths(&Table::try_from(Tables::default()).unwrap());
        for path in own.iter().filter(|path| path.contains('.')) {
            assert!(meaning::<Tables>(path).is_some(), "{path} has no meaning");
        }
    }

    /// Comments change nothing, for any choice.
    #[test]
    fn an_annotated_configuration_reads_back_equal() {
        let sets = ["optimizer.name=muon", "schedule.kind=wsd"].map(|set| set.parse().unwrap());
        let groups = "optimizer.groups=[{ pattern = '*', weight_decay = 0.0 }]";
        let group = groups.parse().unwrap();
        for overrides in [vec![], sets.to_vec(), vec![group]] {
            let config = Config::parse::<Tables>("", "", &overrides).unwrap();
            let text = config.annotated::<Tables>().unwrap();
            assert_eq!(Config::parse::<Tables>(&text, "", &[]).unwrap(), config, "{text}");
            assert!(text.contains("# optimizer steps\nsteps = 300\n"), "{text}");
            assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        }
    }

    /// The tables in docs/training.md. `UPDATE_GOLDEN=1` writes them.
    #[test]
    fn the_documentation_has_every_key() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/training.md");
        let Ok(mut text) = std::fs::read_to_string(path) else {
            return;
        };
        let before = text.clone();
        let names = ["keys of every run", "keys of the model"];
        for (name, rows) in names.iter().zip(markdown::<Tables>().unwrap()) {
            let [begin, end] = ["begin", "end"].map(|what| format!("<!-- {what}: {name} -->\n"));
            let from = text.find(&begin).unwrap() + begin.len();
            let to = text.find(&end).unwrap();
            text.replace_range(from..to, &format!("\n{rows}\n"));
        }
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            return std::fs::write(path, text).unwrap();
        }
        assert!(before == text, "docs/training.md is stale; run this test with UPDATE_GOLDEN=1");
    }
}
