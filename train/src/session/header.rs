//! What a run prints before its first step.

use meshgrad_models::Model;
use meshgrad_runtime::{DType, Properties};

use super::run::Run;
use super::utilization::peak;
use crate::report::{Header, format};
use crate::sampler::Rows;

impl<M: Model> Run<'_, M> {
    pub(super) fn print_header(&self) {
        let (data, model) = (&self.data, &self.model);
        let (training, validation) = (data.tokens.training(), data.tokens.validation());
        self.reporter.header(&Header {
            version: format!("meshgrad {}", env!("CARGO_PKG_VERSION")),
            device: self.device.to_string(),
            hardware: hardware(self.device.properties(), self.trainer.dtype()),
            dtype: self.config.train.dtype.name().into(),
            mesh: self.ranks.title(),
            stages: self.trainer.stages().map(|shares| stages(&shares)),
            model: model.title.clone(),
            parameters: model.parameters,
            active_parameters: model.active_parameters,
            data: data.texts.title.clone(),
            digest: data.texts.digest,
            documents: data.texts.documents,
            text_bytes: training.text_bytes() + validation.text_bytes(),
            replaced_bytes: data.texts.replaced_bytes,
            empty_files: data.texts.empty_files,
            vocab_size: data.tokenizer.vocab_size(),
            training_tokens: training.len() as u64,
            validation_tokens: validation.len() as u64,
            packing: self.order.packing(),
            cut_for_validation: self.validation.as_ref().map_or(0, Rows::cut),
            run: self.folder.path().display().to_string(),
        });
        for note in &self.notes {
            self.reporter.message(note);
        }
        if self.first_step > 0 {
            self.reporter.message(&format!("resuming after step {}", self.first_step));
        }
    }
}

/// A device's threads and instruction sets, or the GPU's model, memory and peak.
fn hardware(properties: &Properties, dtype: DType) -> String {
    let Properties { threads, simd, native_bf16, gpu, .. } = properties;
    let peak = peak(properties, dtype).map(|peak| format!(", {:.1} TFLOP/s", 1e-12 * peak));
    match gpu {
        Some(gpu) => {
            format!("{}, {} GiB{}", gpu.model, gpu.memory >> 30, peak.unwrap_or_default())
        }
        None if *native_bf16 => format!("x{threads} {simd} bf16"),
        None => format!("x{threads} {simd}"),
    }
}

/// `4: layers 1 2 2 1, FLOPs [25 27 27 21]%`.
fn stages(shares: &[(usize, f64)]) -> String {
    let layers: Vec<String> = shares.iter().map(|(layers, _)| layers.to_string()).collect();
    let shares: Vec<f64> = shares.iter().map(|(_, share)| *share).collect();
    format!("{}: layers {}, FLOPs {}", layers.len(), layers.join(" "), format::shares(&shares))
}
