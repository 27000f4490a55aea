//! Folders that cannot be loaded as they are: quantized weights, and adapters beside a model.

use std::path::Path;

use meshgrad_ckpt::Folder;

use crate::folder::{Error, Result};

/// The file of PEFT that describes an adapter.
const PEFT: &str = "adapter_config.json";

/// How the names of tensors beside quantized weights end, and the methods that write them.
const SCALES: [(&str, &str); 8] = [
    (".weight_scale_inv", "fp8"),
    (".weight_scale", "compressed-tensors"),
    (".weight_packed", "compressed-tensors"),
    (".qweight", "gptq or awq"),
    (".absmax", "bitsandbytes"),
    (".SCB", "bitsandbytes"),
    ("_blocks", "mxfp4"),
    ("_scales", "mxfp4"),
];

/// Checks that no weights of `folder` are quantized.
///
/// # Errors
/// [`Error::Quantized`] with the first tensor that says so.
pub(super) fn check_not_quantized(folder: &Folder) -> Result<()> {
    let methods = folder.tensors().filter_map(|tensor| {
        let method = SCALES.iter().find(|(end, _)| tensor.name.ends_with(end));
        method.map(|(_, method)| (&tensor.name, *method))
    });
    match methods.min() {
        None => Ok(()),
        Some((tensor, method)) => Err(Error::Quantized {
            folder: folder.path().to_owned(),
            tensor: tensor.clone(),
            method,
        }),
    }
}

/// Checks that `dir` has no adapter of PEFT, which changes what the model computes.
///
/// # Errors
/// [`Error::Adapters`] with the command that merges it.
pub(super) fn check_no_adapter(dir: &Path) -> Result<()> {
    let path = dir.join(PEFT);
    if !path.exists() {
        return Ok(());
    }
    let problem = format!(
        "adapters of PEFT are not applied; merge it into the weights and load NEW: python -c \"from \
         peft import AutoPeftModelForCausalLM as M; \
         M.from_pretrained('{}').merge_and_unload().save_pretrained('NEW')\"",
        dir.display()
    );
    Err(Error::Adapters { path, problem })
}
