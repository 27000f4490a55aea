use approx::assert_relative_eq;

use super::*;
use crate::{DType, Device, Element, IndexOutOfRange, Tensor, assert_error, ops};

fn numbered(device: &Device, shape: &[usize], step: f64, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|i| ((i + 1) as f64 * step).sin()).collect();
    ops::cast(&Tensor::from_slice(device, shape, &values).unwrap(), dtype).unwrap()
}

fn values(x: &Tensor) -> Vec<f64> {
    ops::cast(x, DType::F64).unwrap().to_vec().unwrap()
}

fn ints(x: &Tensor) -> Vec<i64> {
    ops::cast(x, DType::I64).unwrap().to_vec().unwrap()
}

fn indices(device: &Device, shape: &[usize], of: impl Fn(usize) -> usize) -> Tensor {
    let count: usize = shape.iter().product();
    let elements: Vec<i32> = (0..count).map(|at| of(at) as i32).collect();
    Tensor::from_slice(device, shape, &elements).unwrap()
}

fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_relative_eq!(*actual, *expected, epsilon = tolerance, max_relative = tolerance);
}

fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 1e-6,
        _ => 1.0 / 256.0,
    }
}

const FLOATS: [DType; 3] = [DType::F64, DType::F32, DType::BF16];

/// For any number of experts and any k, with many ties, the selected experts are the prefix of a
/// stable descending sort.
#[test]
fn router_top_k_is_a_stable_sort() {
    let device = Device::cpu();
    for dtype in FLOATS {
        for (n, e, k) in
            [(0, 4, 2), (1, 1, 1), (3, 3, 3), (17, 8, 2), (300, 130, 130), (40, 512, 8)]
        {
            let coarse: Vec<f64> =
                (0..n * e).map(|i| ((i * i * 31 + i) % 13) as f64 / 16.0).collect();
            let p = Tensor::from_slice(&device, &[e, n], &coarse).unwrap();
            let p = ops::cast(&p, dtype).unwrap().transpose(0, 1).unwrap();
            let bias = numbered(&device, &[e], 0.9, dtype.accumulator());

            for (renormalize, bias) in [(false, None), (true, None), (true, Some(&bias))] {
                let (weights, chosen) = router_top_k(&p, k, renormalize, bias).unwrap();
                assert_eq!((weights.dtype(), chosen.dtype()), (dtype, DType::I32));
                let (weights, chosen, p) = (values(&weights), ints(&chosen), values(&p));
                let bias = bias.map_or(vec![0.0; e], values);

                for row in 0..n {
                    let p = &p[row * e..][..e];
                    let mut order: Vec<usize> = (0..e).collect();
                    order.sort_by(|a, b| (p[*b] + bias[*b]).total_cmp(&(p[*a] + bias[*a])));
                    let expected: Vec<i64> = order[..k].iter().map(|i| *i as i64).collect();
                    assert_eq!(&chosen[row * k..][..k], expected);

                    let sum: f64 = order[..k].iter().map(|i| p[*i]).sum();
                    let scale = if renormalize { sum } else { 1.0 };
                    let expected: Vec<f64> = order[..k].iter().map(|i| p[*i] / scale).collect();
                    let weights = &weights[row * k..][..k];
                    assert!(
                        scale == 0.0 || {
                            assert_close(weights, &expected, rounding(dtype));
                            true
                        }
                    );
                }
            }
        }
    }
}

#[test]
fn nan_sorts_first_and_ties_by_index() {
    let device = Device::cpu();
    let p = [0.5f32, f32::NAN, 0.5, f32::INFINITY, f32::NAN];
    let p = Tensor::from_slice(&device, &[1, 5], &p).unwrap();
    let (_, chosen) = router_top_k(&p, 5, false, None).unwrap();
    assert_eq!(ints(&chosen), [1, 4, 3, 0, 2]);
}

#[test]
fn router_gradient_equals_differences() {
    let device = Device::cpu();
    let (n, e, k) = (5, 7, 3);
    let p = numbered(&device, &[n, e], 0.77, DType::F64);
    let p = ops::affine(&p, 0.4, 0.5).unwrap();
    let dweights = numbered(&device, &[n, k], 1.3, DType::F64);

    for renormalize in [false, true] {
        let loss = |p: &Tensor| {
            let (weights, _) = router_top_k(p, k, renormalize, None).unwrap();
            ops::sum(&ops::mul(&weights, &dweights).unwrap(), &[0, 1])
                .unwrap()
                .item::<f64>()
                .unwrap()
        };
        let (_, chosen) = router_top_k(&p, k, renormalize, None).unwrap();
        let actual = values(&router_top_k_grad(&p, &chosen, &dweights, renormalize).unwrap());

        let at = values(&p);
        let moved = |index: usize, by: f64| {
            let mut p = at.clone();
            p[index] += by;
            loss(&Tensor::from_slice(&device, &[n, e], &p).unwrap())
        };
        let step = 1e-6;
        let differences = (0..n * e).map(|i| (moved(i, step) - moved(i, -step)) / (2.0 * step));
        assert_close(&actual, &differences.collect::<Vec<_>>(), 1e-8);
    }
}

/// `order` lists the slots of local experts, sorted by expert and then by slot. `row_of_slot` is
/// its inverse.
#[test]
fn order_is_a_stable_sort_and_row_of_slot_is_its_inverse() {
    let device = Device::cpu();
    for (n, k, e) in [(0, 2, 4), (1, 1, 1), (7, 3, 5), (300, 2, 8), (5, 0, 3)] {
        let chosen = indices(&device, &[n, k], |at| (at * at + at / 3) % e);
        for (first, held) in [(0, e), (0, 0), (e / 2, e - e / 2), (e - 1, 1)] {
            let sorted = expert_order(&chosen, e, first, held).unwrap();
            let expert = ints(&chosen);
            let mut expected: Vec<usize> = (0..n * k)
                .filter(|slot| (first..first + held).contains(&(expert[*slot] as usize)))
                .collect();
            expected.sort_by_key(|slot| expert[*slot]);

            let (order, row_of_slot) = (ints(&sorted.order), ints(&sorted.row_of_slot));
            let used = expected.len();
            assert_eq!(order[..used], expected.iter().map(|s| *s as i64).collect::<Vec<_>>());
            for (slot, at) in row_of_slot.iter().enumerate() {
                let row = expected.iter().position(|other| *other == slot);
                assert_eq!(*at, row.map_or(-1, |row| row as i64));
            }

            let count = |expert_: usize| expert.iter().filter(|x| **x as usize == expert_).count();
            let counts: Vec<f64> = (first..first + held).map(|g| count(g) as f64).collect();
            assert_eq!(values(&expert_counts(&sorted.offsets).unwrap()), counts);
            assert_eq!(*ints(&sorted.offsets).last().unwrap(), used as i64);
        }
    }
}

/// An MoE layer with one matrix per expert: route, sort, permute, multiply, unpermute.
fn layer(x: &Tensor, p: &Tensor, w: &Tensor, k: usize, held: (usize, usize)) -> Tensor {
    let experts = p.extent(1).unwrap();
    let (weights, chosen) = router_top_k(p, k, true, None).unwrap();
    let sorted = expert_order(&chosen, experts, held.0, held.1).unwrap();
    let rows = permute_tokens(x, &sorted.order, &sorted.offsets, k).unwrap();
    let w = w.slice(0, held.0..held.0 + held.1).unwrap();
    let y = ops::grouped_matmul_nt(&rows, &w, &sorted.offsets).unwrap();
    unpermute_tokens(&y, &weights, &sorted.row_of_slot).unwrap()
}

/// [`layer`] as a loop over tokens and their experts, in f64.
fn naive_layer(x: &Tensor, p: &Tensor, w: &Tensor, k: usize, held: (usize, usize)) -> Vec<f64> {
    let (n, h, o) = (x.shape()[0], x.shape()[1], w.shape()[1]);
    let (weights, chosen) = router_top_k(p, k, true, None).unwrap();
    let (weights, chosen, x, w) = (values(&weights), ints(&chosen), values(x), values(w));
    let mut out = vec![0.0; n * o];
    for slot in 0..n * k {
        let (token, expert) = (slot / k, chosen[slot] as usize);
        if !(held.0..held.0 + held.1).contains(&expert) {
            continue;
        }
        for to in 0..o {
            let row = &w[(expert * o + to) * h..][..h];
            let dot: f64 = row.iter().zip(&x[token * h..]).map(|(w, x)| w * x).sum();
            out[token * o + to] += weights[slot] * dot;
        }
    }
    out
}

/// Probabilities under which the experts in `dead` are never chosen.
fn probabilities(device: &Device, n: usize, e: usize, dead: &[usize], dtype: DType) -> Tensor {
    let value = |at: usize| match dead.contains(&(at % e)) {
        true => 0.0,
        false => 0.5 + 0.4 * (at as f64 * 1.7).sin(),
    };
    let elements: Vec<f64> = (0..n * e).map(value).collect();
    ops::cast(&Tensor::from_slice(device, &[n, e], &elements).unwrap(), dtype).unwrap()
}

#[test]
fn a_layer_equals_a_loop_over_tokens_and_experts() {
    let device = Device::cpu();
    for dtype in FLOATS {
        for (n, h, o, e, k) in
            [(0, 4, 3, 4, 2), (1, 3, 1, 2, 2), (17, 5, 7, 4, 3), (65, 33, 17, 8, 2)]
        {
            let x = numbered(&device, &[n, h], 0.37, dtype);
            let w = numbered(&device, &[e, o, h], 0.61, dtype);
            for dead in [vec![], vec![0], vec![1, e - 1]] {
                if e - dead.len() < k {
                    continue;
                }
                let p = probabilities(&device, n, e, &dead, dtype);
                for held in [(0, e), (0, 1), (e / 2, e - e / 2), (1, 0)] {
                    let actual = values(&layer(&x, &p, &w, k, held));
                    // bf16 rounds each expert's result and their sum.
                    let tolerance = 4.0 * rounding(dtype) * (h as f64).sqrt();
                    assert_close(&actual, &naive_layer(&x, &p, &w, k, held), tolerance);
                }
            }
        }
    }
}

#[test]
fn all_tokens_on_one_expert() {
    let device = Device::cpu();
    let (n, h, o, e) = (33, 16, 9, 6);
    let x = numbered(&device, &[n, h], 0.37, DType::F64);
    let w = numbered(&device, &[e, o, h], 0.61, DType::F64);
    let p = probabilities(&device, n, e, &[0, 1, 2, 4, 5], DType::F64);
    let actual = values(&layer(&x, &p, &w, 1, (0, e)));
    assert_close(&actual, &naive_layer(&x, &p, &w, 1, (0, e)), 1e-12);
}

/// Each rank with a subset of the experts computes a part of the sum.
#[test]
fn shards_of_experts_sum_to_the_whole() {
    let device = Device::cpu();
    let (n, h, o, e, k) = (50, 24, 10, 8, 3);
    let x = numbered(&device, &[n, h], 0.37, DType::F64);
    let w = numbered(&device, &[e, o, h], 0.61, DType::F64);
    let p = probabilities(&device, n, e, &[3], DType::F64);

    let whole = values(&layer(&x, &p, &w, k, (0, e)));
    for cuts in [vec![0, 4, 8], vec![0, 1, 3, 4, 8]] {
        let mut sum = vec![0.0; n * o];
        for cut in cuts.windows(2) {
            let part = values(&layer(&x, &p, &w, k, (cut[0], cut[1] - cut[0])));
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        assert_close(&sum, &whole, 1e-12);
    }
}

/// Permuting rows is linear, so its gradients are its adjoints: <f(x), z> = <x, f'(z)>.
#[test]
fn gradients_are_adjoints() {
    let device = Device::cpu();
    let dot = |a: &Tensor, b: &Tensor| -> f64 {
        values(a).iter().zip(values(b)).map(|(a, b)| a * b).sum()
    };
    for (n, h, e, k) in [(1, 1, 1, 1), (19, 300, 5, 2), (7, 17, 4, 3)] {
        let chosen = indices(&device, &[n, k], |at| (at * at + at) % e);
        for (first, held) in [(0, e), (e / 2, e - e / 2)] {
            let sorted = expert_order(&chosen, e, first, held).unwrap();
            let ExpertOrder { offsets, order, row_of_slot } = &sorted;
            let used = *ints(offsets).last().unwrap() as usize;
            let cut = |x: &Tensor| x.slice(0, 0..used).unwrap();

            let x = numbered(&device, &[h, n], 0.3, DType::F64).transpose(0, 1).unwrap();
            let z = numbered(&device, &[n * k, h], 0.7, DType::F64);
            let weights = numbered(&device, &[n, k], 1.1, DType::F64);

            let there = dot(&cut(&permute_tokens(&x, order, offsets, k).unwrap()), &cut(&z));
            let back = dot(&x, &permute_tokens_grad(&z, row_of_slot).unwrap());
            assert_close(&[there], &[back], 1e-11);

            let there = dot(&unpermute_tokens(&z, &weights, row_of_slot).unwrap(), &x);
            let dz = unpermute_tokens_grad_input(&x, &weights, order, offsets).unwrap();
            assert_close(&[there], &[dot(&cut(&z), &cut(&dz))], 1e-11);
            let dweights = unpermute_tokens_grad_weights(&x, &z, row_of_slot).unwrap();
            assert_close(&[there], &[dot(&weights, &dweights)], 1e-11);
        }
    }
}

/// bf16 rows are widened, summed and rounded once; the weights may have another dtype.
#[test]
fn narrow_rows_are_rounded_once() {
    let device = Device::cpu();
    let (n, h, e, k) = (9, 300, 4, 3);
    let chosen = indices(&device, &[n, k], |at| at % e);
    let sorted = expert_order(&chosen, e, 0, e).unwrap();
    for weight_dtype in [DType::F32, DType::BF16] {
        let y = numbered(&device, &[n * k, h], 0.7, DType::BF16);
        let weights = numbered(&device, &[n, k], 1.1, weight_dtype);
        let narrow = unpermute_tokens(&y, &weights, &sorted.row_of_slot).unwrap();
        assert_eq!(narrow.dtype(), DType::BF16);

        let wide = |x: &Tensor| ops::cast(x, DType::F64).unwrap();
        let exact = unpermute_tokens(&wide(&y), &wide(&weights), &sorted.row_of_slot).unwrap();
        for (narrow, exact) in values(&narrow).iter().zip(values(&exact)) {
            assert!((narrow - exact).abs() <= exact.abs() / 256.0 + 1e-6, "{narrow} {exact}");
        }
        let dweights = unpermute_tokens_grad_weights(&narrow, &y, &sorted.row_of_slot).unwrap();
        assert_eq!(dweights.dtype(), DType::F32);
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let bits = |threads: usize| {
        let device = Device::cpu_with_threads(threads).unwrap();
        device.run(|| {
            let (n, h, o, e, k) = (700, 130, 60, 40, 3);
            let x = numbered(&device, &[n, h], 0.37, DType::F32);
            let w = numbered(&device, &[e, o, h], 0.61, DType::F32);
            let p = probabilities(&device, n, e, &[3], DType::F32);
            let y = layer(&x, &p, &w, k, (0, e));
            let (weights, chosen) = router_top_k(&p, k, true, None).unwrap();
            let sorted = expert_order(&chosen, e, 0, e).unwrap();
            let rows = numbered(&device, &[n * k, o], 0.1, DType::F32);
            let dweights = unpermute_tokens_grad_weights(&y, &rows, &sorted.row_of_slot).unwrap();
            let dp = router_top_k_grad(&p, &chosen, &weights, true).unwrap();
            let all = [y, weights, dweights, dp];
            all.map(|x| {
                x.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
            })
        })
    };
    assert_eq!(bits(1), bits(2));
    assert_eq!(bits(1), bits(5));
}

fn scalar_list<T: Element>(device: &Device, elements: &[T]) -> Tensor {
    Tensor::from_slice(device, &[elements.len()], elements).unwrap()
}

#[test]
fn mismatched_operands_are_rejected() {
    let device = Device::cpu();
    let p = numbered(&device, &[2, 4], 0.3, DType::F32);
    for k in [0, 5] {
        assert_error(router_top_k(&p, k, true, None), "is not in 1..=4, the number of experts");
    }

    let chosen = indices(&device, &[2, 2], |at| at);
    assert_eq!(
        expert_order(&chosen, 3, 0, 1).unwrap_err().to_string(),
        "expert_order: index 3 at position 3 is outside of 0..3"
    );
    assert_eq!(
        expert_order(&chosen, 4, 3, 2).unwrap_err().to_string(),
        "expert_order: 2 experts from 3 on exceed the 4 experts"
    );

    let x = numbered(&device, &[2, 3], 0.3, DType::F32);
    let order = scalar_list(&device, &[0i32, 1, 2, 4]);
    let offsets = |ends: &[i64]| scalar_list(&device, ends);
    // Slot 4 does not exist, which is an error only if its row is before the last offset.
    assert!(permute_tokens(&x, &order, &offsets(&[0, 3]), 2).is_ok());
    let error = permute_tokens(&x, &order, &offsets(&[0, 4]), 2).unwrap_err();
    assert_eq!(error.to_string(), "permute_tokens: index 4 at position 3 is outside of 0..4");
    let expected =
        IndexOutOfRange { op: "permute_tokens", index: 4, position: Some(3), extent: 4, gpu: None };
    assert_eq!(error.details(), Some(&expected));
    for ends in [&[][..], &[1, 2], &[0, 2, 1], &[0, 5]] {
        let expected = format!("permute_tokens: offsets {ends:?} must start with 0");
        assert_error(permute_tokens(&x, &order, &offsets(ends), 2), &expected);
    }
    // A row without a slot is zero.
    let absent = scalar_list(&device, &[3i32, -1]);
    let y = permute_tokens(&x, &absent, &offsets(&[0, 2]), 2).unwrap();
    assert_eq!(values(&y)[3..], [0.0; 3]);

    let sorted = expert_order(&chosen, 4, 0, 4).unwrap();
    for held in [0, 3] {
        let expected = format!("expert_places: 4 experts cannot be divided into ranks of {held}");
        assert_error(expert_places(&chosen, &sorted, held, 2), &expected);
    }
    assert_error(expert_places(&chosen, &sorted, 2, 1 << 31), "are more than 2^31 - 1");

    let row_of_slot = indices(&device, &[2, 2], |at| at + 1);
    let y = numbered(&device, &[4, 3], 0.3, DType::F32);
    assert_error(permute_tokens_grad(&y, &row_of_slot), "index 4 at position 3 is outside of 0..4");
}

/// A meta device returns the same shapes and counts the same work and peak memory as the CPU.
#[test]
fn a_meta_device_runs_the_layer() {
    let real = Device::cpu();
    let (n, h, o, e, k) = (6, 5, 4, 3, 2);
    let run = |device: &Device| {
        let make =
            |shape: &[usize]| Tensor::zeros(device, shape, DType::F32, crate::Kind::Cache).unwrap();
        let y = layer(&make(&[n, h]), &make(&[n, e]), &make(&[e, o, h]), k, (0, e));
        (y.shape().to_vec(), device.work(), device.memory_stats().peak)
    };
    let meta = Device::meta(real.properties());
    assert_eq!(run(&meta), run(&real));
}
