//! Adapters in the format of PEFT: `adapter_config.json` has the sizes and the folder of the weights that are
//! updated, `adapter_model.safetensors` the low-rank matrices.
//!
//! Without a folder of weights, the weights are in the adapter's own folder.

use std::path::{Path, PathBuf};

use meshgrad_autograd::Param;
use meshgrad_ckpt::Folder;
use meshgrad_ckpt::mapping::{Mapping, Report};
use meshgrad_error::{Error, Kind, Result, bail, ensure, error};
use meshgrad_load::LoadOptions;
use meshgrad_runtime::Device;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::read_text;
use crate::folder::StoredValues;
use crate::lora::{LoraConfig, LoraSlot, is_lora};
use crate::{Decoder, Model, folder};

/// The file that describes an adapter.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// The file with its matrices.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// The mapping from parameters to the names of PEFT, which wraps a model in two others.
const NAMES: &str = "{name:path} = base_model.model.{name:path}";

/// The keys of `adapter_config.json` that do not change what the adapter computes, or that are read here. Any
/// other key must be unset.
const KEYS: [&str; 24] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "megatron_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
];

#[derive(Deserialize)]
struct PeftConfig {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    base_model_name_or_path: Option<String>,
    #[serde(default)]
    target_modules: Value,
    #[serde(default)]
    init_lora_weights: Value,
}

/// The configuration of the adapter in `dir`; `None` if there is none.
///
/// # Errors
/// When adapter_config.json cannot be read, or the adapter is of a kind that is not supported.
pub fn read_adapter(dir: &Path) -> Result<Option<LoraConfig>> {
    let path = dir.join(ADAPTER_CONFIG);
    if !path.exists() {
        return Ok(None);
    }
    let read = parse(&read_text(&path)?);
    read.map(Some).map_err(|error| error.context(path.display()))
}

fn parse(text: &str) -> Result<LoraConfig> {
    let malformed = |cause: serde_json::Error| error!(Malformed, "{cause}");
    let keys: Map<String, Value> = serde_json::from_str(text).map_err(malformed)?;
    let config: PeftConfig = serde_json::from_str(text).map_err(malformed)?;
    let is_unset = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text == "none",
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        _ => false,
    };
    let changing = keys.iter().find(|(key, value)| !KEYS.contains(&&***key) && !is_unset(value));
    // Some initial values change the weights that are updated.
    let init = &config.init_lora_weights;
    let changes_weights = init.as_str().is_some_and(|init| !["gaussian", "eva"].contains(&init));
    let problem = match changing {
        Some((key, value)) => Some(format!("{key} = {value}")),
        None if config.peft_type != "LORA" => Some(format!("peft_type = {}", config.peft_type)),
        None if changes_weights => Some(format!("init_lora_weights = {init}")),
        None => None,
    };
    if let Some(problem) = problem {
        bail!(
            Unsupported,
            "adapters with {problem} are not supported, only low-rank updates of projections (peft_type \
             LORA); merge it with PEFT (merge_and_unload) and load the merged model"
        );
    }
    let targets = match config.target_modules {
        Value::Array(names) => {
            names.iter().filter_map(|it| it.as_str().map(str::to_owned)).collect()
        }
        _ => Vec::new(), // A regular expression; the tensors say which projections are updated.
    };
    let config = LoraConfig {
        rank: config.r,
        alpha: config.lora_alpha,
        rslora: config.use_rslora,
        targets,
        base: config.base_model_name_or_path,
    };
    config.check()?;
    Ok(config)
}

/// The text of adapter_config.json.
fn written(config: &LoraConfig) -> String {
    let alpha = match config.alpha.fract() == 0.0 {
        true => json!(config.alpha as i64),
        false => json!(config.alpha),
    };
    let config = json!({
        "base_model_name_or_path": config.base,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": config.rank,
        "target_modules": config.targets,
        "task_type": "CAUSAL_LM",
        "use_rslora": config.rslora,
    });
    format!("{config:#}\n")
}

/// The folder with the weights of the model in `dir`: another one if `dir` has an adapter of it.
///
/// # Errors
/// As [`read_adapter`]; when the other folder does not exist or has an adapter itself.
pub fn base_folder(dir: &Path) -> Result<PathBuf> {
    let Some(LoraConfig { base: Some(base), .. }) = read_adapter(dir)? else {
        return Ok(dir.to_owned());
    };
    let (path, base) = (dir.join(ADAPTER_CONFIG), PathBuf::from(base));
    ensure!(
        base.is_dir(),
        Missing,
        "{}: the base model `{}` is not a folder; download it, and set base_model_name_or_path to its \
         folder",
        path.display(),
        base.display()
    );
    ensure!(
        read_adapter(&base)?.is_none(),
        Unsupported,
        "{}: the base model `{}` has an adapter itself; merge that first (meshgrad ckpt merge)",
        path.display(),
        base.display()
    );
    Ok(base)
}

/// Gives `model` the adapter of the folder `dir`, if it has one. The parameters of the updates have no values
/// yet.
///
/// # Errors
/// As [`read_adapter`]; when the adapter does not fit the model.
pub fn add_adapter(model: &mut Decoder, dir: &Path) -> Result<()> {
    let Some(config) = read_adapter(dir)? else {
        return Ok(());
    };
    let file = dir.join(ADAPTER_FILE);
    let folder = Folder::open_file(&file)?;
    let base = config.base.clone().unwrap_or_else(|| dir.display().to_string());
    let mismatch = |problem: String| {
        error!(
            Mismatch,
            "{}: {problem}; the adapter is of another base model than {base}",
            file.display()
        )
    };
    let mut used = 0;
    let mut filled = Vec::new();
    for slot in model.lora_slots() {
        if check_slot(&slot, &config, &folder).map_err(mismatch)? {
            used += 2;
            filled.push(slot.path.to_string());
            slot.fill(&config);
        }
    }
    if used != folder.tensors().len() {
        let names = folder.tensors().map(|tensor| tensor.name.as_str());
        let unused = names.into_iter().find(|name| !filled.iter().any(|it| name.contains(it)));
        let unused = unused.unwrap_or_default().escape_debug();
        return Err(mismatch(format!("the model has no projection for `{unused}`")));
    }
    model.set_adapter(&config, filled);
    Ok(())
}

/// Whether `folder` has matrices for `slot`; a problem if they do not fit it.
fn check_slot(slot: &LoraSlot<'_>, config: &LoraConfig, folder: &Folder) -> Result<bool, String> {
    let (path, rank) = (&slot.path, config.rank);
    let [a, b] = ["lora_A", "lora_B"].map(|it| format!("base_model.model.{path}.{it}.weight"));
    if folder.get(&a).is_none() && folder.get(&b).is_none() {
        return Ok(false);
    }
    for (name, expected) in [(a, [rank, slot.inputs]), (b, [slot.outputs, rank])] {
        match folder.get(&name).map(|stored| &stored.shape[..]) {
            Some(shape) if shape == expected => {}
            Some(shape) => {
                return Err(format!(
                    "`{name}` has shape {shape:?}, but with r = {rank} `{path}` needs {expected:?}"
                ));
            }
            None => return Err(format!("there is no tensor `{name}`")),
        }
    }
    Ok(true)
}

/// The parts of a folder that stores `model`: a path, `""` or that of a file, the parameters and buffers, and their
/// mapping to tensors. An adapter is a part of its own; the weights that it updates are one if no other folder
/// has them.
///
/// # Errors
/// As [`Model::stored_as`]; when a weight that the folder does not have is trained.
pub fn stored_parts(model: &impl Model) -> Result<Vec<(&'static str, StoredValues, Mapping)>> {
    parts_of(model, model.stored_as()?)
}

/// As [`stored_parts`], with another mapping of the weights.
pub(crate) fn parts_of(
    model: &impl Model,
    mapping: Mapping,
) -> Result<Vec<(&'static str, StoredValues, Mapping)>> {
    let buffers = model.stored_buffers();
    let Some(config) = model.adapter() else {
        return Ok(vec![("", StoredValues { params: model.params(), buffers }, mapping)]);
    };
    let (loras, weights): (Vec<Param>, Vec<Param>) =
        model.params().into_iter().partition(|it| is_lora(it.name()));
    let trained = weights.iter().find(|it| config.base.is_some() && !it.is_frozen());
    if let Some(trained) = trained {
        bail!(
            Unsupported,
            "`{}` is trained beside an adapter, whose folder would not have it; freeze it, or let \
             LoraConfig::base be None, so that all weights are saved",
            trained.name()
        );
    }
    let loras = StoredValues { params: loras, buffers: Vec::new() };
    let adapter = (ADAPTER_FILE, loras, Mapping::parse(NAMES)?);
    Ok(match config.base {
        Some(_) => vec![adapter],
        None => vec![("", StoredValues { params: weights, buffers }, mapping), adapter],
    })
}

/// The text files of a folder that stores `model`: those of the model, and of its adapter.
///
/// # Errors
/// As [`Model::files`].
pub fn all_files(model: &impl Model) -> Result<Vec<(String, String)>> {
    let mut files = model.files()?;
    files.extend(model.adapter().map(|config| (ADAPTER_CONFIG.to_owned(), written(config))));
    Ok(files)
}

/// Loads the parameters `loras` of an adapter from the folder `dir`.
///
/// # Errors
/// When tensors are missing, damaged or of another shape, or if it `is_whole`, unexpected.
pub fn fill_adapter(
    loras: &[Param],
    is_whole: bool,
    dir: &Path,
    device: &Device,
    options: &LoadOptions<'_>,
) -> Result<()> {
    let folder = Folder::open_file(dir.join(ADAPTER_FILE))?;
    let fill = if is_whole { folder::fill } else { folder::fill_part };
    let filled = fill(&loras, device, &folder, &Mapping::parse(NAMES)?, options);
    filled.map(drop).map_err(|error| match error.details::<Report>() {
        Some(report) => Error::with_details(Kind::Mismatch, report.clone())
            .context(format!("{} does not fit the adapter of the model", folder.path().display())),
        None => error,
    })
}
