//! Folders that cannot be loaded as they are: quantized weights, and adapters beside a model.

use std::path::Path;

use meshgrad_ckpt::Folder;
use meshgrad_error::{Result, bail, ensure};

use crate::config::way_out_of;

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
/// When a tensor says so, with the first.
pub(super) fn check_not_quantized(folder: &Folder) -> Result<()> {
    let methods = folder.tensors().filter_map(|tensor| {
        let method = SCALES.iter().find(|(end, _)| tensor.name.ends_with(end));
        method.map(|(_, method)| (&tensor.name, *method))
    });
    if let Some((tensor, method)) = methods.min() {
        bail!(
            Unsupported,
            "{}: weights are quantized ({method}, as `{}` shows), and would be read without their \
             scales; {}",
            folder.path().display(),
            tensor.escape_debug(),
            way_out_of(method)
        );
    }
    Ok(())
}

/// Checks that `dir` has no adapter of PEFT, which changes what the model computes.
///
/// # Errors
/// When it has one, with the command that merges it.
pub(super) fn check_no_adapter(dir: &Path) -> Result<()> {
    let path = dir.join(PEFT);
    ensure!(
        !path.exists(),
        Unsupported,
        "{}: adapters of PEFT are not applied; merge it into the weights and load NEW: python -c \
         \"from peft import AutoPeftModelForCausalLM as M; \
         M.from_pretrained('{}').merge_and_unload().save_pretrained('NEW')\"",
        path.display(),
        dir.display()
    );
    Ok(())
}
