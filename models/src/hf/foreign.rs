//! Folders that cannot be loaded as they are: those with quantized weights.

use meshgrad_ckpt::Folder;
use meshgrad_error::{Result, bail};

use crate::config::way_out_of;

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
