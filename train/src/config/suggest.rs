//! "Did you mean": the known key that means the same as an unknown one, or is most similar to it.

use meshgrad_error::{Error, error};

use super::setting::{Setting, paths};

/// Keys, and what other programs call them.
const OTHER_NAMES: &[(&str, &[&str])] = &[
    (
        "data.paths",
        &[
            "path",
            "file",
            "files",
            "dataset",
            "dataset_path",
            "train_file",
            "train_files",
            "corpus",
        ],
    ),
    (
        "data.validation",
        &["validation_file", "validation_files", "val_file", "val_path", "val_paths", "valid_file"],
    ),
    (
        "data.val_fraction",
        &["val_split", "validation_split", "test_size", "val_size", "val_ratio", "holdout"],
    ),
    (
        "train.steps",
        &[
            "max_steps",
            "num_steps",
            "total_steps",
            "n_steps",
            "train_steps",
            "num_train_steps",
            "iters",
            "max_iters",
            "train_iters",
            "iterations",
            "max_iterations",
            "num_iterations",
            "epochs",
            "num_epochs",
            "max_epochs",
            "num_train_epochs",
        ],
    ),
    (
        "train.batch_size",
        &["batch", "bs", "bsz", "gbs", "global_batch_size", "total_batch_size", "train_batch_size"],
    ),
    (
        "train.micro_batch_size",
        &[
            "mbs",
            "micro_batch",
            "device_batch_size",
            "per_device_batch_size",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "grad_accum",
            "grad_accum_steps",
            "accumulation_steps",
            "accumulate_grad_batches",
        ],
    ),
    (
        "train.seq_len",
        &[
            "seq_length",
            "sequence_length",
            "seqlen",
            "max_seq_len",
            "max_seq_length",
            "context",
            "context_length",
            "context_len",
            "context_size",
            "ctx_len",
            "n_ctx",
            "block_size",
            "max_length",
        ],
    ),
    (
        "train.dtype",
        &[
            "precision",
            "mixed_precision",
            "amp",
            "bf16",
            "fp16",
            "fp32",
            "torch_dtype",
            "compute_dtype",
        ],
    ),
    ("train.seed", &["random_seed", "manual_seed", "rng_seed"]),
    (
        "train.activation_checkpointing",
        &["gradient_checkpointing", "activation_recompute", "recompute", "remat"],
    ),
    ("optimizer.name", &["optim", "optimizer_type", "optimizer_name"]),
    (
        "optimizer.learning_rate",
        &["lr", "max_lr", "peak_lr", "base_lr", "init_lr", "max_learning_rate"],
    ),
    (
        "optimizer.max_grad_norm",
        &[
            "clip",
            "clip_grad",
            "grad_clip",
            "gradient_clip",
            "clip_norm",
            "clip_grad_norm",
            "grad_clip_norm",
            "gradient_clip_val",
            "gradient_clipping",
            "max_norm",
        ],
    ),
    ("optimizer.ema_decay", &["ema", "ema_rate", "use_ema"]),
    ("optimizer.groups", &["param_groups", "parameter_groups"]),
    ("optimizer.weight_decay", &["wd", "l2", "decay"]),
    ("optimizer.beta1", &["adam_beta1", "betas"]),
    ("optimizer.beta2", &["adam_beta2"]),
    ("optimizer.eps", &["epsilon", "adam_eps", "adam_epsilon"]),
    (
        "schedule.kind",
        &["scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule", "lr_decay_style"],
    ),
    (
        "schedule.warmup_steps",
        &[
            "warmup",
            "warmup_iters",
            "num_warmup_steps",
            "n_warmup_steps",
            "warmup_ratio",
            "lr_warmup_iters",
            "lr_warmup_steps",
        ],
    ),
    (
        "schedule.min_lr_ratio",
        &["min_lr", "min_learning_rate", "final_lr", "end_lr", "eta_min", "lr_min"],
    ),
    (
        "checkpoint.every",
        &["save_every", "save_steps", "save_interval", "checkpoint_every", "checkpoint_interval"],
    ),
    ("checkpoint.keep", &["save_total_limit", "keep_last", "max_to_keep", "keep_last_n"]),
    ("sample.every", &["sample_every", "sample_interval", "generate_every"]),
    ("sample.tokens", &["max_new_tokens", "max_tokens", "new_tokens"]),
    (
        "log.every",
        &["log_every", "log_interval", "logging_steps", "log_steps", "print_every", "log_freq"],
    ),
    (
        "log.val_every",
        &[
            "eval_every",
            "eval_interval",
            "eval_steps",
            "val_interval",
            "val_steps",
            "validation_steps",
            "val_check_interval",
        ],
    ),
    ("log.val_batches", &["eval_iters", "eval_batches", "val_iters", "limit_val_batches"]),
    (
        "model.hidden_size",
        &[
            "d_model",
            "n_embd",
            "dim",
            "hidden_dim",
            "embed_dim",
            "embedding_dim",
            "width",
            "model_dim",
        ],
    ),
    ("model.num_hidden_layers", &["n_layer", "n_layers", "num_layers", "layers", "depth"]),
    ("model.num_attention_heads", &["n_head", "n_heads", "num_heads", "heads", "nhead"]),
    (
        "model.num_key_value_heads",
        &["n_kv_head", "n_kv_heads", "num_kv_heads", "kv_heads", "num_query_groups"],
    ),
    (
        "model.intermediate_size",
        &["ffn_dim", "ffn_hidden_size", "d_ff", "mlp_dim", "n_inner", "ffn_size"],
    ),
    ("model.num_experts", &["n_experts", "experts", "n_routed_experts"]),
    (
        "model.num_experts_per_tok",
        &[
            "top_k_experts",
            "moe_top_k",
            "experts_per_token",
            "num_experts_per_token",
            "moe_router_topk",
        ],
    ),
    ("model.moe_intermediate_size", &["expert_dim", "moe_ffn_hidden_size", "expert_hidden_size"]),
    ("model.head_dim", &["kv_channels", "d_head", "head_size"]),
    ("model.rope_theta", &["rope_base", "rotary_base", "theta"]),
    ("model.tie_word_embeddings", &["tie_embeddings", "tied_embeddings", "weight_tying"]),
    (
        "model.router_aux_loss_coef",
        &["aux_loss_coef", "moe_aux_loss_coeff", "load_balance_coef", "aux_loss_weight"],
    ),
];

impl Setting {
    /// The error for a key that is not one of `known`.
    pub(super) fn unknown(&self, known: &[String]) -> Error {
        let key = self.key.join(".");
        let nearest = same_meaning(&key, known).or_else(|| nearest(&key, known));
        let hint = nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        error!(Invalid, "unknown key `{key}` ({}){hint}", self.origin)
    }

    /// The error for a value that serde rejected with `message`. `defaults` are all known tables.
    pub(super) fn rejected(&self, message: &str, defaults: &toml::Table) -> Error {
        let Some((field, fields)) = unknown_field(message) else {
            return self.bad_value(message);
        };
        if self.key.last().is_some_and(|last| last == field) {
            let parents = &self.key[..self.key.len() - 1];
            let beside = fields
                .iter()
                .map(|field| [parents, std::slice::from_ref(field)].concat().join("."));
            let known: Vec<String> = paths(defaults).into_iter().chain(beside).collect();
            return self.unknown(&known);
        }
        let hint = nearest(field, &fields).map(|name| format!("; did you mean `{name}`?"));
        self.bad_value(format_args!("{message}{}", hint.unwrap_or_default()))
    }
}

/// The unknown field that serde's `message` names, and the valid fields that it lists. `None` for
/// other messages.
fn unknown_field(message: &str) -> Option<(&str, Vec<String>)> {
    let (field, fields) = message.strip_prefix("unknown field `")?.split_once("`, ")?;
    let fields = fields.split('`').skip(1).step_by(2);
    Some((field, fields.map(str::to_owned).collect()))
}

/// The key of `known` that other programs call by the last part of `wrong`.
fn same_meaning(wrong: &str, known: &[String]) -> Option<String> {
    let name = wrong.rsplit('.').next().unwrap_or_default();
    let is_meant = |(key, names): &&(&str, &[&str])| {
        names.contains(&name) && known.iter().any(|known| known == key)
    };
    let (key, _) = OTHER_NAMES.iter().find(is_meant)?;
    Some((*key).to_owned())
}

/// The path whose last part is most similar to that of `wrong`; the whole path decides ties. `None`
/// if no last part is similar.
fn nearest(wrong: &str, paths: &[String]) -> Option<String> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let similarity = |path: &str| strsim::jaro_winkler(&last(wrong), &last(path));
    let rank = |path: &str| similarity(path) + 0.1 * strsim::jaro_winkler(wrong, path);

    let similar = paths.iter().filter(|path| similarity(path) > 0.8);
    similar.max_by(|a, b| rank(a).total_cmp(&rank(b))).cloned()
}
