//! `meshgrad forward`: logits, loss and gradients of a Hugging Face model, from file to file, for
//! comparison with other implementations.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use meshgrad::autograd::{Grads, Module, Param, Tape, ops};
use meshgrad::ckpt::{Dtype, FileWriter, TensorFile};
use meshgrad::models::folder::{self, NamedTensor};
use meshgrad::models::{Balancing, Compute, Decoder, IGNORE_INDEX, Model, TokenBatch, hf};
use meshgrad::runtime::{DType, Device, Tensor};

use crate::device::OnCpu;
use crate::dtype::ComputeDType;
use crate::model::{self, Checks};

#[derive(clap::Args)]
pub(crate) struct ForwardArguments {
    /// A run, one of its checkpoints, or a Hugging Face folder. Weight averages and router biases
    /// of a run are not read, as in transformers.
    model: PathBuf,
    /// A file with `input_ids` [B, T] int64 and optionally `labels` [B, T] int64, aligned by
    /// position; -100 is ignored.
    #[arg(long)]
    input: PathBuf,
    /// The output file: `logits` [B, T, V] f32; with labels `loss` [1] f32, the mean over counted
    /// labels.
    #[arg(long)]
    output: PathBuf,
    /// Also write the gradient of the loss as `grad.NAME`, f32, for each tensor of the folder.
    #[arg(long)]
    grads: bool,
    /// The compute dtype.
    #[arg(long, default_value = "f32")]
    dtype: ComputeDType,
    #[command(flatten)]
    checks: Checks,
    #[command(flatten)]
    pub(crate) device: OnCpu,
}

/// Named f32 tensors, in file order.
type Outputs = Vec<(String, Vec<usize>, Vec<f32>)>;

pub(crate) fn forward(arguments: &ForwardArguments, device: &Device) -> anyhow::Result<()> {
    let loaded = model::read(&arguments.model, arguments.checks, |folder, sealed, options| {
        let mut loader = hf::Loader::new(folder).progress(options.progress);
        if options.verify {
            loader = loader.only_finite();
        }
        if let (true, Some(checkpoint)) = (options.verify, sealed) {
            loader = loader.sealed_by(checkpoint);
        }
        if options.ignore_unused {
            loader = loader.ignore_unused();
        }
        let loaded = loader.load(device)?;
        hf::ignored_note(folder, &loaded.ignored).into_iter().for_each(options.note);
        Ok(loaded)
    })?;
    let input = TensorFile::open(&arguments.input)?;
    let ids = read_ids(&input, "input_ids", device)?
        .with_context(|| format!("{} has no `input_ids`", arguments.input.display()))?;
    let labels = read_ids(&input, "labels", device)?;
    let compute = Compute::new(arguments.dtype.into());
    let logits = ops::cast(loaded.model.logits(&ids, compute)?.value(), DType::F32)?;
    let mut outputs: Outputs =
        vec![("logits".into(), logits.shape().to_vec(), logits.to_vec::<f32>()?)];
    match labels {
        Some(labels) => {
            ensure!(
                labels.shape() == ids.shape(),
                "`labels` has shape {} but `input_ids` has {}: give one label per position",
                labels.shape(),
                ids.shape()
            );
            outputs.extend(loss(&loaded, &ids, &labels, compute, arguments.grads)?);
        }
        None if arguments.grads => bail!("--grads needs `labels` in {}", arguments.input.display()),
        None => {}
    }
    write(&arguments.output, &outputs)
}

/// The mean loss and, if requested, the gradient of every tensor.
fn loss(
    loaded: &hf::Loaded,
    ids: &Tensor,
    labels: &Tensor,
    compute: Compute,
    with_grads: bool,
) -> anyhow::Result<Outputs> {
    let counted = labels.to_vec::<i64>()?.iter().filter(|label| **label != IGNORE_INDEX).count();
    ensure!(
        counted > 0,
        "every label is {IGNORE_INDEX}, so there is no loss; give at least one other label"
    );

    let model: &Decoder = &loaded.model;
    let (auxiliary, is_added) = model.config().auxiliary_loss();
    let auxiliary = if is_added { auxiliary } else { 0.0 };
    let balanced = Decoder::clone(model).balanced(Balancing { auxiliary, ..Balancing::default() });
    let batch = TokenBatch::new(ids, labels);
    let (loss, tape) = Tape::record(|| balanced.loss(&batch, compute))?;
    let mean = loss.total.value().item::<f32>()? / loss.weight.item::<f32>()?;
    let mut outputs: Outputs = vec![("loss".into(), vec![1], vec![mean])];
    if with_grads {
        let params = model.params();
        let mut grads = Grads::new(&params)?;
        let seed = ops::reciprocal(&loss.weight)?;
        tape.backward_from(&[(&loss.total, seed)], &mut grads)?;
        let mut of = |param: &Param| Ok(NamedTensor::new(param.name(), grads.get(param)?));
        let gradients: Vec<NamedTensor> =
            params.iter().map(&mut of).collect::<anyhow::Result<_>>()?;
        let map = model.config().mapping(loaded.experts, false)?;
        for (tensor, bytes) in folder::stored(&gradients, &map)? {
            let shape = tensor.shape.iter().map(|extent| *extent as usize).collect();
            let elements = bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it));
            outputs.push((format!("grad.{}", tensor.name), shape, elements.collect()));
        }
    }
    Ok(outputs)
}

fn read_ids(file: &TensorFile, name: &str, device: &Device) -> anyhow::Result<Option<Tensor>> {
    let Some(info) = file.get(name) else {
        return Ok(None);
    };
    let path = file.path().display();
    ensure!(info.dtype == Dtype::I64, "{path}: `{name}` is {} but must be I64", info.dtype.name());
    ensure!(
        info.shape.len() == 2 && info.shape.iter().all(|extent| *extent > 0),
        "{path}: `{name}` is {:?} but must be [B, T] with at least one token",
        info.shape
    );
    let bytes = file.read(name)?;
    let ids = bytes.chunks_exact(8).map(|id| i64::from_le_bytes(id.try_into().unwrap_or_default()));
    Ok(Some(Tensor::from_slice(device, &info.shape, &ids.collect::<Vec<_>>())?))
}

fn write(path: &Path, outputs: &Outputs) -> anyhow::Result<()> {
    let mut writer = FileWriter::new();
    for (name, shape, _) in outputs {
        writer.add(name, Dtype::F32, shape)?;
    }
    writer.save(path, |info, sink| {
        let output = outputs.iter().find(|(name, _, _)| *name == info.name);
        let elements = output.map(|(_, _, elements)| elements.as_slice()).unwrap_or_default();
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        sink.append(&bytes)
    })?;
    Ok(())
}
