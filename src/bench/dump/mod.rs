//! Results of kernels as files: raw little-endian bytes and an index.

mod cases;
mod compare;
mod inputs;

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::{Context, bail};
use half::bf16;
use meshgrad::prelude::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use cases::cases;
pub(crate) use compare::Compare;

use crate::device::OnGpu;

/// Run every kernel on fixed inputs and write the results.
#[derive(clap::Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    device: OnGpu,
    /// The output folder, for index.json and one file per result; created if missing.
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
}

/// The index of a folder of results.
#[derive(Serialize, Deserialize)]
pub(crate) struct Index {
    /// The device's name: `cuda:0`, `emulator:0`.
    pub(crate) device: String,
    /// The model of the GPU.
    pub(crate) gpu: String,
    pub(crate) results: Vec<Entry>,
}

/// One result.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: String,
    /// Whether all devices must agree on every bit.
    pub(crate) exact: bool,
    pub(crate) file: String,
}

const INDEX: &str = "index.json";

impl Dump {
    pub(crate) fn run(&self, cpu: &Device) -> anyhow::Result<()> {
        let device = self.device.open(cpu)?;
        let gpu = device.properties().gpu.clone();
        let cases = cases(&device)?;
        fs::create_dir_all(&self.to)
            .with_context(|| format!("cannot create {}", self.to.display()))?;

        let mut results = Vec::new();
        for (at, case) in cases.iter().enumerate() {
            let file = format!("{at:03}.bin");
            write(&self.to.join(&file), &bytes(&case.result)?)?;
            results.push(Entry {
                name: case.name.clone(),
                shape: case.result.shape().to_vec(),
                dtype: case.result.dtype().name().to_owned(),
                exact: case.exact,
                file,
            });
        }

        let index = Index {
            device: device.to_string(),
            gpu: gpu.map_or_else(String::new, |gpu| gpu.model),
            results,
        };
        write(&self.to.join(INDEX), &serde_json::to_vec_pretty(&index)?)?;
        println!(
            "{} results of {} ({}) in {}",
            index.results.len(),
            index.device,
            index.gpu,
            self.to.display()
        );
        Ok(())
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.name, self.shape, self.dtype)
    }
}

impl Index {
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Index> {
        let path = folder.join(INDEX);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not an index", path.display()))
    }
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn bytes(x: &Tensor) -> anyhow::Result<Vec<u8>> {
    Ok(match x.dtype() {
        DType::F32 => little_endian(x.to_vec::<f32>()?, f32::to_le_bytes),
        DType::BF16 => little_endian(x.to_vec::<bf16>()?, bf16::to_le_bytes),
        DType::Bool => {
            x.to_vec::<meshgrad::runtime::Bool>()?.into_iter().map(|t| u8::from(t.get())).collect()
        }
        other => bail!("results of {other} cannot be compared"),
    })
}

fn little_endian<T, const N: usize>(values: Vec<T>, bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.into_iter().flat_map(bytes).collect()
}
