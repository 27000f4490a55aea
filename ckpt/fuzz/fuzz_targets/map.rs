//! Binds any map of names to tensors, in both directions. Nothing panics, and inverses are correct.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshgrad_ckpt::Dtype;
use meshgrad_ckpt::mapping::{AllowedProblems, Mapping, TensorSpec};

fuzz_target!(|map: &str| {
    let Ok(mapping) = Mapping::parse(map) else {
        return;
    };
    let tensor = |name: &str, shape: &[u64]| TensorSpec::new(name, Dtype::F32, shape);
    let sources =
        [tensor("a", &[4, 6]), tensor("b", &[4, 6]), tensor("x.0", &[6]), tensor("x.1", &[6])];
    for mapping in [&mapping, &mapping.reversed()] {
        if let Ok(bound) = mapping.bind(&sources, None, &AllowedProblems::none())
            && let Ok(back) = bound.inverse()
        {
            let outputs: Vec<TensorSpec> = back.outputs().collect();
            assert_eq!(outputs, bound.inputs().collect::<Vec<_>>());
        }
    }
});
