//! Fixtures in safetensors files, under the names of transformers.

use std::collections::BTreeMap;
use std::path::Path;

use meshgrad_ckpt::TensorFile;

/// One tensor's shape and elements.
pub(crate) type Values<T> = (Vec<usize>, Vec<T>);

/// The tensors of a file, whose elements have `N` bytes.
pub(crate) fn read<T, const N: usize>(
    path: &Path,
    decode: impl Fn([u8; N]) -> T,
) -> BTreeMap<String, Values<T>> {
    let file = TensorFile::open(path).unwrap();
    let tensors = file.tensors().iter().map(|info| {
        let bytes = file.read(&info.name).unwrap();
        let values: Vec<T> =
            bytes.chunks_exact(N).map(|element| decode(element.try_into().unwrap())).collect();
        assert_eq!(values.len(), info.shape.iter().product::<usize>());
        (info.name.clone(), (info.shape.clone(), values))
    });
    tensors.collect()
}

/// The names of a parameter in transformers, which stores gate and up apart.
pub(crate) fn names_of(param: &str) -> Vec<String> {
    match param.strip_suffix("gate_up_proj.weight") {
        Some(mlp) => ["gate", "up"].map(|part| format!("{mlp}{part}_proj.weight")).to_vec(),
        None => vec![param.to_owned()],
    }
}
