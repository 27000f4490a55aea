//! Activation checkpointing changes no bit.

use meshgrad_autograd::Module;
use meshgrad_models::{Balancing, Compute, Decoder};
use meshgrad_runtime::{DType, Device};

use crate::laws::{EXPERTS, GROUPED, WINDOW, YARN, gradients, ids};
use crate::small::{add_adapters, config};

/// The loss and every gradient have the same bits with and without it, for models, hidden sizes and
/// dtypes, with balancing losses and adapters.
#[test]
fn checkpointing_changes_no_bit() {
    let device = Device::cpu();
    let ids = ids(&device, 2, 13);
    let balancing = Balancing { auxiliary: 0.01, z: 0.001, ..Balancing::default() };
    for text in [WINDOW, GROUPED, EXPERTS, YARN] {
        for hidden in [1, 7, 20, 24, 32, 40, 65, 129] {
            for (dtype, has_adapters) in
                [(DType::F32, false), (DType::BF16, false), (DType::BF16, true)]
            {
                let mut config = config(text);
                config.hidden_size = hidden;
                config.head_dim = Some(8);
                let mut model = Decoder::new(&config).unwrap();
                if has_adapters {
                    add_adapters(&mut model);
                }
                model.materialize(&device, 7).unwrap();
                let run = |checkpointing| {
                    let compute = Compute { dtype, checkpointing };
                    let (loss, gradients) = gradients(&model, &ids, compute, balancing);
                    (loss.total.value().item::<f32>().unwrap().to_bits(), gradients)
                };
                let ((saved, expected), (recomputed, actual)) = (run(false), run(true));
                assert_eq!(saved, recomputed);
                for ((name, expected), (_, actual)) in expected.iter().zip(&actual) {
                    let bits = |values: &[f32]| -> Vec<u32> {
                        values.iter().map(|value| value.to_bits()).collect()
                    };
                    let is_equal = bits(expected) == bits(actual);
                    assert!(is_equal, "{name} with hidden_size {hidden} in {dtype}: {text}");
                }
            }
        }
    }
}
