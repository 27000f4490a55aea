//! Attention composed of other ops computes the values and gradients of the fused op.

use approx::assert_abs_diff_eq;
use meshgrad_autograd::{Result, Tape, Var, ops};
use meshgrad_runtime::ops::{AttentionMask, AttentionSequences};
use meshgrad_runtime::{DType, Device, Tensor};

use super::numbers;

/// Extents [B, T, S] and a mask.
fn cases(device: &Device) -> Vec<([usize; 3], AttentionMask)> {
    let list = |values: &[i64]| Tensor::from_slice(device, &[values.len()], values).unwrap();
    let causal = AttentionMask::causal;
    let window = |window| AttentionMask { window: Some(window), ..causal() };
    let cached = AttentionSequences::Cached { q_offset: list(&[1, 4]), k_len: list(&[4, 7]) };
    // The second row has queries without keys.
    let bounds = [[0i32, 2], [0, 3], [4, 5], [4, 6], [4, 7], [4, 7]];
    let others = [[0i32, 0], [0, 4], [1, 4], [4, 4], [4, 5], [7, 7]];
    let bounds = [bounds, others].concat();
    let ranges = Tensor::from_slice(device, &[2, 6, 2], bounds.as_flattened()).unwrap();
    let ranges = AttentionSequences::Ranges(ranges);
    let of = |sequences: &AttentionSequences, mask: AttentionMask| AttentionMask {
        sequences: sequences.clone(),
        ..mask
    };
    vec![
        ([2, 3, 5], AttentionMask::default()),
        ([2, 5, 5], causal()),
        ([1, 6, 7], window(3)),
        ([2, 3, 7], of(&cached, causal())),
        ([2, 3, 7], of(&cached, window(2))),
        ([2, 6, 7], of(&ranges, AttentionMask::default())),
        ([2, 6, 7], of(&ranges, window(2))),
    ]
}

type Attention = fn([&Var; 3], &AttentionMask) -> Result<Var>;

fn run(
    device: &Device,
    attention: Attention,
    [b, t, s]: [usize; 3],
    mask: &AttentionMask,
) -> Vec<Vec<f64>> {
    let numbers = |shape: &[usize], salt: usize| {
        ops::cast(&numbers(device, shape, salt), DType::F64).unwrap()
    };
    let shapes = [[b, t, 6, 4], [b, s, 2, 4], [b, s, 2, 4]];
    let ((inputs, y), tape) = Tape::record(|| {
        let inputs = [0, 1, 2].map(|at| Var::input(numbers(&shapes[at], at)));
        let y = attention(inputs.each_ref(), mask)?;
        Ok((inputs, y))
    })
    .unwrap();
    let dy = numbers(y.value().shape(), 9);
    let (gradients, _) = tape.backward_inputs(&[(&y, dy)], &inputs.each_ref()).unwrap();
    let all = [y.value().clone()].into_iter().chain(gradients);
    all.map(|it| it.to_vec::<f64>().unwrap()).collect()
}

#[test]
fn composed_attention_is_the_fused_one() {
    let device = Device::cpu();
    for (extents, mask) in cases(&device) {
        let fused =
            run(&device, |[q, k, v], mask| ops::attention(q, k, v, mask, 0.3), extents, &mask);
        let composed: Attention =
            |qkv, mask| ops::attention_with_scores(qkv, None, None, mask, 0.3);
        for (fused, composed) in fused.iter().zip(run(&device, composed, extents, &mask)) {
            assert_abs_diff_eq!(fused[..], composed[..], epsilon = 1e-9);
        }
    }
}

#[test]
fn refusals_name_the_values() {
    let device = Device::cpu();
    let x = |heads| numbers(&device, &[1, 3, heads, 4], 0);
    let of = |[q, k]: [usize; 2], cap| {
        let mask = AttentionMask::default();
        let refused = ops::attention_with_scores([&x(q), &x(k), &x(k)], None, cap, &mask, 1.0);
        refused.unwrap_err().to_string()
    };
    assert!(of([3, 2], None).contains("3 query heads are not a multiple of 2 key heads"));
    assert!(of([2, 2], Some(-1.0)).contains("soft_cap = -1 is not above 0"));
    let flat = numbers(&device, &[3, 4], 0);
    let mask = AttentionMask::default();
    let refused = ops::attention_with_scores([&flat, &flat, &flat], None, None, &mask, 1.0);
    assert!(refused.unwrap_err().to_string().contains("q has shape [3, 4]"));
}
