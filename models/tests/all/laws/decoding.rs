//! Decoding against the cache equals computing the whole sequence.

use meshgrad_models::{Cache, Compute, Decoder, Generate, Model};
use meshgrad_runtime::{DType, Device, Tensor, ops};

use crate::laws::{EXPERTS, GROUPED, WINDOW, YARN, ids, model};

const TOKENS: usize = 18;

fn values(logits: &Tensor) -> Vec<f32> {
    ops::cast(logits, DType::F32).unwrap().to_vec().unwrap()
}

/// The logits after each chunk of `ids`, decoded chunk by chunk.
fn decoded(model: &Decoder, ids: &Tensor, chunk: usize, dtype: DType) -> Vec<Vec<f32>> {
    let mut cache = Cache::new(model.layers(), ids.device(), TOKENS).unwrap();
    let starts = (0..TOKENS).step_by(chunk);
    let next = starts.map(|start| {
        let given = ids.slice(1, start..start + chunk).unwrap();
        values(&model.next_logits(&given, &mut cache, dtype).unwrap())
    });
    next.collect()
}

/// Both are equal bit for bit, in f32 and in bf16: no row of a product, norm, attention or expert
/// depends on the other rows of the batch.
#[test]
fn decoding_equals_the_full_forward_pass() {
    let device = Device::cpu();
    let configurations =
        [("window", WINDOW), ("grouped", GROUPED), ("experts", EXPERTS), ("yarn", YARN)];
    for (name, text) in configurations {
        let (model, ids) = (model(text, &device), ids(&device, 2, TOKENS));
        for dtype in [DType::F32, DType::BF16] {
            let compute = Compute::new(dtype);
            let whole = model.logits(&ids, compute).unwrap();
            for chunk in [1, 3, TOKENS] {
                for (at, next) in decoded(&model, &ids, chunk, dtype).iter().enumerate() {
                    let last = (at + 1) * chunk - 1;
                    let expected = values(&whole.value().slice(1, last..last + 1).unwrap());
                    assert!(
                        *next == expected,
                        "{name} in {dtype}, chunks of {chunk}: token {last} differs"
                    );
                }
            }
        }
    }
}

/// The test above can fail: the logits of the last token depend on the tokens before it.
#[test]
fn logits_depend_on_earlier_tokens() {
    let device = Device::cpu();
    let (model, ids) = (model(GROUPED, &device), ids(&device, 2, TOKENS));
    let after_all = decoded(&model, &ids, TOKENS, DType::F32);

    let mut cache = Cache::new(model.layers(), &device, TOKENS).unwrap();
    let last = ids.slice(1, TOKENS - 1..TOKENS).unwrap();
    let alone = model.next_logits(&last, &mut cache, DType::F32).unwrap();
    assert_ne!(after_all[0], values(&alone));
}
