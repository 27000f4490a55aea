//! `[model]`, `[balancing]` and `[adapter]`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshgrad_models::Balance;
use meshgrad_models::families::{Family, FamilyConfig, family, model_types};
use meshgrad_models::hf::{base_folder, read_adapter};
use meshgrad_models::lora::LoraConfig;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::weights::{TOKENIZER, adapter_folder, config_of, model_folder};
use crate::config::{CheckpointConfig, Config, Meaning, ModelTables, Violation};

/// The key of the folder whose weights a new run starts with.
const FROM: &str = "from";

/// The key that ignores tensors of that folder that the model does not have.
const IGNORE_UNUSED: &str = "ignore_unused";

/// The tables of a decoder of any [family](meshgrad_models::families). By default, it is a Qwen3-MoE of about 9 million
/// parameters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    /// Sizes.
    pub model: ModelTable,
    /// Balancing of experts, in addition to `model.router_aux_loss_coef`.
    pub balancing: BalancingConfig,
    /// The adapter that is trained in place of the weights.
    pub adapter: AdapterConfig,
}

/// `[model]`: the keys of the family that `model_type` names, which are those of Hugging Face's `config.json`, and
/// `from`: a Hugging Face folder, a checkpoint or a run that a new run starts with, and
/// `ignore_unused`. Values have the types of the family's configuration. Keys may be missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Table", into = "Table")]
pub struct ModelTable(Table);

/// The meanings of the keys.
const KEYS: &[Meaning] = &[
    (
        "model.from",
        "a Hugging Face folder, a checkpoint or a run that a new run starts with; its config.json \
         has the defaults of the other keys",
    ),
    (
        "model.ignore_unused",
        "ignore tensors of the folder `from` that the model does not have; unset: they are an error",
    ),
    (
        "model.model_type",
        "the family (docs/models.md, \"Families\"), which says what other keys there are; with another one than \
         `qwen3_moe`, they are unset by default",
    ),
    ("model.vocab_size", "size of the vocabulary; unset: the tokenizer's"),
    ("model.hidden_size", "width of the residual stream"),
    ("model.num_hidden_layers", "layers"),
    (
        "model.intermediate_size",
        "inner width of the MLP of a dense layer; not needed if every layer has experts",
    ),
    ("model.num_attention_heads", "query heads"),
    (
        "model.num_key_value_heads",
        "key-value heads, a divisor of the query heads; unset: as many as query heads",
    ),
    ("model.head_dim", "features per head; unset: `hidden_size / num_attention_heads`"),
    ("model.attention_bias", "biases in the projections of attention; unset: none"),
    ("model.mlp_bias", "`llama`: only false is supported"),
    ("model.attention_dropout", "only 0 is supported"),
    (
        "model.hidden_act",
        "activation of the gate: `silu`, `gelu`, `gelu_new` or `gelu_pytorch_tanh`; with experts, only `silu`; unset: \
         that of the family",
    ),
    ("model.rms_norm_eps", "added to the mean square in every norm; unset: 1e-6"),
    ("model.initializer_range", "standard deviation of the initial weights; unset: 0.02"),
    (
        "model.tie_word_embeddings",
        "whether the output projection shares the embedding; unset: it does with `gemma3_text` and `gpt2`",
    ),
    ("model.rope_theta", "base of the rotary frequencies; unset: that of the family"),
    (
        "model.rope_local_base_freq",
        "`gemma3_text`: base of the rotary frequencies of layers with a window; unset: 10000",
    ),
    (
        "model.rope_scaling",
        "scaling of the rotary frequencies, such as `{ rope_type = \"yarn\", factor = 4.0 }`",
    ),
    (
        "model.rope_parameters",
        "base and scaling of the rotary frequencies, as transformers 5 writes them",
    ),
    ("model.max_position_embeddings", "context length that YaRN starts from; unset: 32768"),
    ("model.use_sliding_window", "whether sliding windows are used; unset: none are"),
    ("model.sliding_window", "length of the sliding window, with the token itself"),
    (
        "model.max_window_layers",
        "`qwen3` without `layer_types`: the first sliding layer; unset: 28",
    ),
    ("model.layer_types", "`full_attention` or `sliding_attention` for each layer"),
    (
        "model.sliding_window_pattern",
        "`gemma3_text` without `layer_types`: every so many layers, one has no window; unset: 6",
    ),
    (
        "model.query_pre_attn_scalar",
        "`gemma3_text`: scores are divided by its square root; unset: 256",
    ),
    (
        "model.q_lora_rank",
        "`deepseek_v3`: features of the latent of queries; unset: queries have none",
    ),
    ("model.kv_lora_rank", "`deepseek_v3`: features of the latent of keys and values"),
    (
        "model.qk_nope_head_dim",
        "`deepseek_v3`: features per head of queries and keys that are not rotated",
    ),
    ("model.qk_rope_head_dim", "`deepseek_v3`: features per head that are rotated"),
    ("model.v_head_dim", "`deepseek_v3`: features per head of values"),
    (
        "model.rope_interleave",
        "`deepseek_v3`: whether rotated features are pairs of neighbors; unset: they are",
    ),
    (
        "model.num_nextn_predict_layers",
        "`deepseek_v3`: layers that predict further tokens, which are not loaded; unset: 1",
    ),
    ("model.clip_qkv", "`olmoe`: not supported"),
    ("model.attn_logit_softcapping", "`gemma3_text`: not supported"),
    ("model.final_logit_softcapping", "`gemma3_text`: not supported"),
    ("model.use_bidirectional_attention", "`gemma3_text`: only false is supported"),
    ("model.num_experts", "experts per sparse layer"),
    ("model.num_local_experts", "`mixtral`: experts per layer"),
    ("model.n_routed_experts", "`deepseek_v3`: experts per sparse layer"),
    ("model.n_shared_experts", "`deepseek_v3`: experts that each token has besides; unset: 1"),
    ("model.n_group", "`deepseek_v3`: groups of experts; unset: 8"),
    ("model.topk_group", "`deepseek_v3`: a token's experts are of so many groups; unset: 4"),
    ("model.first_k_dense_replace", "`deepseek_v3`: the first layers, which are dense; unset: 3"),
    ("model.routed_scaling_factor", "`deepseek_v3`: the factor of experts' weights; unset: 2.5"),
    ("model.num_experts_per_tok", "experts per token"),
    ("model.moe_intermediate_size", "inner width of an expert"),
    (
        "model.norm_topk_prob",
        "normalize the weights of a token's experts to sum to one; unset: they are not",
    ),
    (
        "model.decoder_sparse_step",
        "layer `i` may be sparse if `i + 1` is a multiple of this; unset: 1",
    ),
    ("model.mlp_only_layers", "layers that are always dense; unset: none"),
    ("model.router_aux_loss_coef", "weight of the load-balancing loss; unset: 0.001"),
    ("model.router_jitter_noise", "`mixtral`: only 0 is supported"),
    ("model.pretraining_tp", "`llama`: written to config.json; training ignores it"),
    ("model.output_router_logits", "written to config.json for transformers; training ignores it"),
    ("model.n_positions", "`gpt2`: learned positions, and so the longest sequence"),
    ("model.n_embd", "`gpt2`: width of the residual stream"),
    ("model.n_layer", "`gpt2`: layers"),
    ("model.n_head", "`gpt2`: heads"),
    ("model.n_inner", "`gpt2`: inner width of the MLP; unset: `4 n_embd`"),
    ("model.activation_function", "`gpt2`: as `hidden_act`; unset: `gelu_new`"),
    ("model.layer_norm_epsilon", "`gpt2`: added to the variance in every norm; unset: 1e-5"),
    (
        "model.scale_attn_weights",
        "`gpt2`: whether scores are divided by the square root of the features per head; unset: they are",
    ),
    (
        "model.scale_attn_by_inverse_layer_idx",
        "`gpt2`: whether scores of layer `i`, from 0, are divided by `i + 1`; unset: they are not",
    ),
    ("model.bos_token_id", "written to config.json; training ignores it"),
    ("model.eos_token_id", "written to config.json; training ignores it"),
    (
        "model.pad_token_id",
        "token whose row of the embedding gets no gradient from the input, as in torch; unset: none",
    ),
    (
        "balancing.bias_update_rate",
        "change of a router bias per step, up for experts with few tokens, down for those with \
         many; 0 disables it",
    ),
    ("balancing.z_loss_coef", "weight of the router z-loss"),
    (
        "balancing.balance",
        "over which tokens the load-balancing loss balances experts: `pooled`, those of a microbatch in \
         all layers together; `layer`, in each layer; `sequence`, of each sequence in each layer",
    ),
    (
        "adapter.from",
        "a folder of PEFT, or a checkpoint of an adapter, whose values a new run starts with; it has the \
         defaults of the other keys",
    ),
    (
        "adapter.targets",
        "names of the projections that have an update, such as `q_proj` or `layers.0.*`: patterns of paths or \
         of the ends of paths. `q_proj` and `v_proj` if another key of the table is given; otherwise empty: \
         no adapter",
    ),
    ("adapter.rank", "rank of the updates"),
    ("adapter.alpha", "the updates are multiplied by `alpha / rank`"),
    ("adapter.rslora", "multiply by `alpha / sqrt(rank)` instead"),
];

/// `[balancing]`: balancing of experts. The weight of the load-balancing loss is the model's
/// `router_aux_loss_coef`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalancingConfig {
    /// The amount by which each step raises the router biases of experts with few tokens and lowers
    /// the others (Wang et al. 2024, who use 0.001). 0 freezes existing biases and adds none.
    pub bias_update_rate: f64,
    /// Weight of the router z-loss (Zoph et al. 2022, who use 0.001); 0 disables it.
    pub z_loss_coef: f64,
    /// Over which tokens the load-balancing loss balances experts.
    pub balance: Balance,
}

/// `[adapter]`: low-rank updates of projections, which are trained in place of all other parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterConfig {
    /// The adapter whose values a new run starts with.
    pub from: Option<PathBuf>,
    /// Names of projections ([`LoraConfig::targets`]); empty for no adapter.
    pub targets: Vec<String>,
    /// The rank of the updates.
    pub rank: usize,
    /// The updates are multiplied by alpha / rank.
    pub alpha: f64,
    /// Whether they are multiplied by alpha / sqrt(rank) instead.
    pub rslora: bool,
}

impl Default for AdapterConfig {
    fn default() -> AdapterConfig {
        AdapterConfig { from: None, targets: Vec::new(), rank: 8, alpha: 16.0, rslora: false }
    }
}

impl AdapterConfig {
    /// The defaults of a table with the keys `given`: those of the adapter that it starts with.
    fn defaults(given: &Table) -> AdapterConfig {
        let mut defaults = AdapterConfig::default();
        let from = given.get(FROM).and_then(Value::as_str).map(Path::new);
        match from.and_then(|from| read_adapter(&adapter_folder(from)).ok().flatten()) {
            Some(LoraConfig { rank, alpha, rslora, targets, .. }) => {
                defaults = AdapterConfig { from: None, targets, rank, alpha, rslora };
            }
            None if !given.is_empty() => {
                defaults.targets = ["q_proj", "v_proj"].map(str::to_owned).into()
            }
            None => {}
        }
        defaults
    }

    /// The adapter, if there is one, of the weights in the folder `base`.
    pub(super) fn lora(&self, base: Option<&Path>) -> Option<LoraConfig> {
        (!self.targets.is_empty()).then(|| LoraConfig {
            rank: self.rank,
            alpha: self.alpha,
            rslora: self.rslora,
            targets: self.targets.clone(),
            base: base.map(|base| base.to_string_lossy().into_owned()),
        })
    }

    fn violations(&self, has_origin: bool, only: &[String]) -> Vec<Violation> {
        let violation =
            |key: &str, problem: String| Violation { key: format!("adapter.{key}"), problem };
        let mut violations = Vec::new();
        let Some(lora) = self.lora(None) else {
            if *self != AdapterConfig::default() {
                let problem =
                    "empty, so no adapter is trained, but other keys of [adapter] are given";
                violations.push(violation("targets", problem.to_owned()));
            }
            return violations;
        };
        if let Err(error) = lora.check() {
            let key = match (self.rank, self.alpha.is_finite()) {
                (0, _) => "rank",
                (_, false) => "alpha",
                _ => "targets",
            };
            violations.push(violation(key, error.to_string()));
        }
        if !has_origin {
            let problem =
                "an adapter updates the weights of a folder; name it: --from DIR (model.from)";
            violations.push(violation("targets", problem.to_owned()));
        }
        if !only.is_empty() {
            let problem = "an adapter is trained alone; remove it, or train.only";
            violations.push(violation("targets", problem.to_owned()));
        }
        violations
    }
}

impl ModelTables for Tables {
    /// With `model.from`, `[model]` starts with the config.json of that folder. A `model_type`
    /// other than the default needs other keys, so `[model]` then starts empty.
    fn defaults(given: &Table) -> Tables {
        let mut tables = Tables::default();
        if let Some(adapter) = given.get("adapter").and_then(Value::as_table) {
            tables.adapter = AdapterConfig::defaults(adapter);
        }
        if let Some(from) = from_of(given) {
            tables.model = ModelTable::of_folder(from, verify_of(given));
            return tables;
        }
        let model_type = |model: &Table| model.get("model_type").cloned();
        let given = given.get("model").and_then(Value::as_table);
        let given = given.and_then(model_type);
        if given.is_some() && given != model_type(&tables.model.0) {
            tables.model.0.clear();
        }
        tables
    }

    /// With `model.from`, the default tokenizer is the `tokenizer.json` of the same folder as the
    /// weights.
    fn defaults_elsewhere(given: &Table) -> Vec<([&'static str; 2], Value)> {
        let tokenizer = |from: &str| {
            let of_run = Path::new(from).join(TOKENIZER);
            let folder = model_folder(Path::new(from), verify_of(given)).ok();
            // An adapter of PEFT may have none, but its base does.
            let base = folder.as_ref().and_then(|folder| base_folder(folder).ok());
            let mut own = folder.into_iter().chain(base).map(|folder| folder.join(TOKENIZER));
            let path = own.find(|path| path.exists()).unwrap_or(of_run);
            let path = path.to_string_lossy().into_owned();
            (["data", "tokenizer"], Value::String(path))
        };
        from_of(given).map(tokenizer).into_iter().collect()
    }

    fn violations(&self, config: &Config) -> Vec<Violation> {
        if let Some(violation) = self.model.unreadable_from(config.checkpoint.verify) {
            return vec![violation];
        }
        let balancing = &self.balancing;
        let numbers = [
            ("balancing.bias_update_rate", balancing.bias_update_rate),
            ("balancing.z_loss_coef", balancing.z_loss_coef),
        ];
        let invalid = |value: f64| !(value.is_finite() && value >= 0.0);
        let invalid = numbers.into_iter().filter(|(_, value)| invalid(*value));
        let violation = |(key, value): (&str, f64)| Violation {
            key: key.to_owned(),
            problem: format!("{value} is not a finite number of at least 0"),
        };
        let missing = self.model.missing();
        let adapter = self.adapter.violations(self.model.origin().is_some(), &config.train.only);
        missing.into_iter().chain(invalid.map(violation)).chain(adapter).collect()
    }

    fn weights_from(&self) -> Option<PathBuf> {
        self.model.origin().map(Path::to_owned)
    }

    fn keys() -> &'static [Meaning] {
        KEYS
    }
}

impl Default for ModelTable {
    /// 4 layers of 256 features, 8 experts, 2 per token.
    fn default() -> ModelTable {
        ModelTable(toml::toml! {
            model_type = "qwen3_moe"
            hidden_size = 256
            num_hidden_layers = 4
            num_attention_heads = 8
            num_key_value_heads = 4
            head_dim = 32
            num_experts = 8
            num_experts_per_tok = 2
            moe_intermediate_size = 256
            norm_topk_prob = true
            router_aux_loss_coef = 0.01
            rope_theta = 10000.0
            rms_norm_eps = 1e-6
            tie_word_embeddings = false
        })
    }
}

impl ModelTable {
    /// The keys that this model needs and that are left out.
    fn missing(&self) -> Vec<Violation> {
        let violation = |key: String| Violation {
            key: format!("model.{key}"),
            problem: format!("missing; a {} needs it", self.model_type()),
        };
        let sizes = self.sizes();
        let Ok((config, mut missing)) = completed(sizes.clone()) else {
            return Vec::new(); // Another error, which is reported elsewhere.
        };
        let is_given = |key: &str| sizes.contains_key(key) || missing.iter().any(|it| it == key);
        let zero = config.zero_sizes().into_iter().filter(|key| !is_given(key));
        let zero: Vec<String> = zero.map(str::to_owned).collect();
        missing.extend(zero);
        missing.into_iter().map(violation).collect()
    }

    fn model_type(&self) -> &str {
        let model_type = self.0.get("model_type").and_then(Value::as_str);
        model_type.unwrap_or("model")
    }
}

/// The configuration that these keys begin, with 1 for each size that is missing, and the names of those except
/// `vocab_size`.
fn completed(mut keys: Table) -> Result<(Arc<dyn FamilyConfig>, Vec<String>), String> {
    keys.entry("vocab_size").or_insert(Value::Integer(1));
    let mut missing = Vec::new();
    loop {
        let problem = match read(&keys) {
            Ok(config) => return Ok((config, missing)),
            Err(problem) => problem,
        };
        match missing_field(&problem) {
            Some(key) if !keys.contains_key(key) => {
                keys.insert(key.to_owned(), Value::Integer(1));
                missing.push(key.to_owned());
            }
            _ => return Err(problem),
        }
    }
}

/// The configuration that the keys of a `[model]` table describe. Sizes are not checked.
///
/// # Errors
/// With the first problem.
pub(super) fn read(table: &Table) -> Result<Arc<dyn FamilyConfig>, String> {
    let keys = serde_json::to_value(table).map_err(|error| error.to_string())?;
    let serde_json::Value::Object(keys) = keys else {
        return Err("a model is no table".to_owned());
    };
    let family = family_of(table)?;
    family.read_table(keys).map_err(|error| error.to_string())
}

/// The family that `model_type` names.
fn family_of(table: &Table) -> Result<&'static dyn Family, String> {
    let name = match table.get("model_type") {
        Some(Value::String(name)) => name,
        Some(other) => return Err(format!("model_type = {other} is not a string")),
        None => return Err("missing field `model_type`".to_owned()),
    };
    family(name).ok_or_else(|| {
        let known: Vec<String> = model_types().iter().map(|it| format!("`{it}`")).collect();
        format!("unknown variant `{name}`, expected one of {}", known.join(", "))
    })
}

/// The field that serde reports as missing.
fn missing_field(problem: &str) -> Option<&str> {
    let rest = problem.strip_prefix("missing field `")?;
    rest.split('`').next()
}

/// The keys of a configuration as TOML.
fn table_of(config: &dyn FamilyConfig) -> Option<Table> {
    Table::try_from(config.table().ok()?).ok()
}

/// The value of `model.from` in the tables of a configuration.
fn from_of(tables: &Table) -> Option<&str> {
    tables.get("model")?.as_table()?.get(FROM)?.as_str()
}

/// The value of `checkpoint.verify` in the tables of a configuration, or its default.
fn verify_of(tables: &Table) -> bool {
    let checkpoint = tables.get("checkpoint");
    let verify = checkpoint.and_then(|table| table.get("verify")?.as_bool());
    verify.unwrap_or(CheckpointConfig::default().verify)
}

impl ModelTable {
    /// `model.from` and the keys of the config.json in that folder. If the file cannot be read,
    /// only `model.from`.
    fn of_folder(from: &str, verify: bool) -> ModelTable {
        let config = config_of(Path::new(from), verify).ok();
        let keys = config.and_then(|config| table_of(&*config));
        let mut keys = keys.unwrap_or_default();
        keys.insert(FROM.to_owned(), from.into());
        ModelTable(keys)
    }

    /// The folder whose weights a new run starts with.
    pub(super) fn origin(&self) -> Option<&Path> {
        self.0.get(FROM)?.as_str().map(Path::new)
    }

    /// Whether tensors of that folder that the model does not have are ignored.
    pub(super) fn ignores_unused(&self) -> bool {
        self.0.get(IGNORE_UNUSED).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The violation if the folder in `from` cannot be read, unless all keys are known without it.
    fn unreadable_from(&self, verify: bool) -> Option<Violation> {
        let error = match self.0.contains_key("vocab_size") {
            true => None,
            false => config_of(self.origin()?, verify).err(),
        };
        error.map(|error| Violation { key: format!("model.{FROM}"), problem: error.to_string() })
    }

    /// The keys of the model's configuration.
    pub(super) fn sizes(&self) -> Table {
        let mut sizes = self.0.clone();
        sizes.retain(|key, _| ![FROM, IGNORE_UNUSED].contains(&key));
        sizes
    }
}

impl TryFrom<Table> for ModelTable {
    type Error = String;

    /// Keeps the keys of `written`, and converts the values to the types of the
    /// family's configuration.
    fn try_from(mut written: Table) -> Result<ModelTable, String> {
        let from = written.remove(FROM);
        if from.as_ref().is_some_and(|from| !from.is_str()) {
            return Err(format!("`{FROM}` is not the path of a folder"));
        }
        let ignore_unused = written.remove(IGNORE_UNUSED);
        if ignore_unused.as_ref().is_some_and(|ignore| !ignore.is_bool()) {
            return Err(format!("`{IGNORE_UNUSED}` is neither true nor false"));
        }
        let mut keys = written.clone();
        keys.entry("model_type").or_insert("qwen3".into());
        let (config, _) = completed(keys)?;
        let typed = table_of(&*config).unwrap_or_default();
        for (key, value) in &mut written {
            if let Some(typed) = typed.get(key) {
                *value = typed.clone();
            }
        }
        written.extend(from.map(|from| (FROM.to_owned(), from)));
        written.extend(ignore_unused.map(|ignore| (IGNORE_UNUSED.to_owned(), ignore)));
        Ok(ModelTable(written))
    }
}

impl From<ModelTable> for Table {
    fn from(model: ModelTable) -> Table {
        model.0
    }
}
