//! `--dtype`: the compute dtype of a command.

use clap::ValueEnum;
use meshgrad::runtime::DType;

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ComputeDType {
    F32,
    Bf16,
}

impl From<ComputeDType> for DType {
    fn from(dtype: ComputeDType) -> DType {
        match dtype {
            ComputeDType::F32 => DType::F32,
            ComputeDType::Bf16 => DType::BF16,
        }
    }
}
