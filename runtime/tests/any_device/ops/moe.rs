//! Mixture-of-experts layers on every device, compared with the CPU.

use crate::devices::{assert_close, devices, exact, numbered, reference, rounding};
use meshgrad_runtime::{Accumulator, DType, Device, Result, Tensor, ops};

/// [tokens, experts per token, experts, first local expert, local experts].
const CASES: [[usize; 5]; 7] = [
    [0, 2, 4, 0, 4],
    [1, 1, 1, 0, 1],
    [5, 3, 7, 0, 7],
    [5, 3, 7, 2, 3],
    [9, 2, 4, 4, 0],
    [700, 4, 128, 0, 128],
    [40, 6, 300, 10, 280],
];

fn indices(device: &Device, [tokens, k, experts, ..]: [usize; 5], dtype: DType) -> Tensor {
    let values: Vec<i64> =
        (0..tokens * k).map(|i| ((i * i * 7 + i / 3) % experts) as i64).collect();
    let indices = Tensor::from_slice(reference(), &[tokens, k], &values).unwrap();
    ops::to_device(&ops::cast(&indices, dtype).unwrap(), device).unwrap()
}

fn ints(x: &Tensor) -> Vec<i64> {
    let x = ops::to_device(x, reference()).unwrap();
    ops::cast(&x, DType::I64).unwrap().to_vec().unwrap()
}

/// `offsets`, `order` and `row_of_slot` equal those of a stable sort, for any number of local
/// experts.
#[test]
fn order_is_a_stable_sort() {
    for device in devices() {
        for dtype in [DType::I64, DType::I32, DType::U32] {
            for case in CASES {
                check_order(&indices(&device, case, dtype), case);
            }
        }
        // A view that does not start at the first element.
        let all = indices(&device, [6, 3, 5, 1, 3], DType::I32);
        check_order(&all.slice(0, 1..6).unwrap(), [5, 3, 5, 1, 3]);
    }
}

fn check_order(indices: &Tensor, [tokens, k, experts, first, held]: [usize; 5]) {
    let sorted = ops::expert_order(indices, experts, first, held).unwrap();
    let group = |index: i64| (index as usize).checked_sub(first).filter(|it| *it < held);
    let groups: Vec<Option<usize>> = ints(indices).into_iter().map(group).collect();

    let mut by_expert: Vec<usize> = (0..tokens * k).filter(|it| groups[*it].is_some()).collect();
    by_expert.sort_by_key(|slot| groups[*slot]);
    let (mut order, mut row_of_slot) = (vec![-1; tokens * k], vec![-1; tokens * k]);
    for (row, slot) in by_expert.iter().enumerate() {
        (order[row], row_of_slot[*slot]) = (*slot as i64, row as i64);
    }
    let before = |expert| groups.iter().flatten().filter(|it| **it < expert).count() as i64;
    let offsets: Vec<i64> = (0..=held).map(before).collect();
    let counts: Vec<i64> = offsets.windows(2).map(|ends| ends[1] - ends[0]).collect();

    assert_eq!(ints(&sorted.offsets), offsets);
    assert_eq!(ints(&sorted.order), order);
    assert_eq!(ints(&sorted.row_of_slot), row_of_slot);
    let counted = ops::expert_counts(&sorted.offsets).unwrap();
    assert_eq!(counted.dtype(), DType::F32);
    assert_eq!(ints(&counted), counts);
}

/// Each rank gets the slots of its experts in expert order, up to its capacity. Permuting to the places
/// and back is as for any other order: rows without a slot are zero, and slots without a row add nothing.
#[test]
fn places_are_in_expert_order_and_have_gaps() {
    for device in devices() {
        for (case, held) in [(CASES[0], 2), (CASES[1], 1), (CASES[2], 7), (CASES[5], 32)] {
            for capacity in [0, 1, 3, 200] {
                check_places(&device, case, held, capacity);
            }
        }
    }
}

fn check_places(device: &Device, case: [usize; 5], held: usize, capacity: usize) {
    let [tokens, k, experts, ..] = case;
    let indices = indices(device, case, DType::I32);
    let sorted = ops::expert_order(&indices, experts, 0, experts).unwrap();
    let places = ops::expert_places(&indices, &sorted, held, capacity).unwrap();

    let (chosen, ranks) = (ints(&indices), experts / held);
    let (mut order, mut experts) =
        (vec![-1; ranks * capacity], vec![held as i64; ranks * capacity]);
    let (mut row_of_slot, mut used) = (vec![-1; chosen.len()], vec![0; ranks]);
    for slot in ints(&sorted.order) {
        let expert = chosen[slot as usize];
        let rank = expert as usize / held;
        if used[rank] < capacity {
            let row = rank * capacity + used[rank];
            (order[row], experts[row]) = (slot, expert % held as i64);
            row_of_slot[slot as usize] = row as i64;
        }
        used[rank] += 1;
    }
    let ends: Vec<i64> = (0..=ranks as i64).map(|rank| rank * capacity as i64).collect();
    assert_eq!(ints(&places.order.offsets), ends);
    assert_eq!(ints(&places.order.order), order);
    assert_eq!(ints(&places.order.row_of_slot), row_of_slot);
    assert_eq!(ints(&places.experts), experts);

    let x = numbered(device, &[tokens, 7], DType::F32, 2.0);
    let weights = numbered(device, &[tokens, k], DType::F32, 1.0);
    let order = &places.order;
    let rows = [
        ops::permute_tokens(&x, &order.order, &order.offsets, k).unwrap(),
        ops::unpermute_tokens_grad_input(&x, &weights, &order.order, &order.offsets).unwrap(),
    ];
    let (x, weights) = (floats(&x), floats(&weights));
    for (rows, is_weighted) in rows.iter().zip([false, true]) {
        let expected =
            ints(&order.order).into_iter().flat_map(|slot| match usize::try_from(slot) {
                Err(_) => vec![0.0; 7],
                Ok(slot) => {
                    let weight = if is_weighted { weights[slot] } else { 1.0 };
                    x[slot / k * 7..][..7].iter().map(|value| weight * value).collect()
                }
            });
        assert_eq!(floats(rows), expected.collect::<Vec<f32>>());
    }
}

fn floats(x: &Tensor) -> Vec<f32> {
    ops::to_device(x, reference()).unwrap().to_vec().unwrap()
}

/// Permute, unpermute and all gradients, for rows that are whole vectors or not, of one element and
/// of none.
#[test]
fn rows_are_permuted_and_unpermuted() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for case in CASES {
                for features in [32, 7, 1, 0, 600] {
                    let x = numbered(&device, &[case[0], features], dtype, 2.0);
                    check_rows(&x, case);
                }
            }
            // Rows that are not aligned to a vector, and transposed operands.
            let case = [6, 3, 7, 2, 3];
            let view = numbered(&device, &[7, 33], dtype, 2.0).slice(0, 1..7).unwrap();
            check_rows(&view.slice(1, 1..33).unwrap(), case);
            let rows = numbered(&device, &[7, 32], dtype, 2.0).slice(0, 1..7).unwrap();
            check_rows(&rows, case);
            let transposed = numbered(&device, &[16, 6], dtype, 2.0);
            check_rows(&transposed.transpose(0, 1).unwrap(), case);
        }
    }
}

fn check_rows(x: &Tensor, case: [usize; 5]) {
    let [tokens, k, experts, first, held] = case;
    let (device, tolerance) = (x.device(), 4.0 * rounding(x.dtype()));
    let sort = |device: &Device| {
        let indices = indices(device, case, DType::I32);
        ops::expert_order(&indices, experts, first, held).unwrap()
    };
    let (sorted, expected) = (sort(device), sort(reference()));
    let weights = numbered(device, &[tokens, k], x.dtype(), 1.0);
    let used = *ints(&sorted.offsets).last().unwrap() as usize;
    let in_use = |rows: &Tensor| rows.slice(0, 0..used).unwrap();

    let y = ops::permute_tokens(x, &sorted.order, &sorted.offsets, k).unwrap();
    let exact_y = ops::permute_tokens(&exact(x), &expected.order, &expected.offsets, k).unwrap();
    assert_close(&in_use(&y), &in_use(&exact_y), 0.0, 1.0);

    let out = ops::unpermute_tokens(&y, &weights, &sorted.row_of_slot).unwrap();
    let exact_out =
        ops::unpermute_tokens(&exact(&y), &exact(&weights), &expected.row_of_slot).unwrap();
    assert_close(&out, &exact_out, tolerance, 4.0);

    let dx = ops::permute_tokens_grad(&y, &sorted.row_of_slot).unwrap();
    let exact_dx = ops::permute_tokens_grad(&exact(&y), &expected.row_of_slot).unwrap();
    assert_close(&dx, &exact_dx, tolerance, 4.0);

    let rows = (&sorted.order, &sorted.offsets);
    let dy = ops::unpermute_tokens_grad_input(x, &weights, rows.0, rows.1).unwrap();
    let rows = (&expected.order, &expected.offsets);
    let exact_dy =
        ops::unpermute_tokens_grad_input(&exact(x), &exact(&weights), rows.0, rows.1).unwrap();
    assert_close(&in_use(&dy), &in_use(&exact_dy), tolerance, 1.0);

    let dweights = ops::unpermute_tokens_grad_weights(x, &y, &sorted.row_of_slot).unwrap();
    let exact_dweights =
        ops::unpermute_tokens_grad_weights(&exact(x), &exact(&y), &expected.row_of_slot).unwrap();
    assert_eq!(dweights.dtype(), DType::F32);
    assert_close(&dweights, &exact_dweights, 1e-5, 10.0);
}

/// Without experts, `offsets` must still have one element.
#[test]
fn missing_offsets_are_an_error() {
    for device in devices() {
        let x = numbered(&device, &[2, 8], DType::F32, 1.0);
        let indices = indices(&device, [2, 2, 3, 0, 3], DType::I32);
        let sorted = ops::expert_order(&indices, 3, 0, 3).unwrap();
        let none = sorted.offsets.slice(0, 0..0).unwrap();
        assert!(ops::permute_tokens(&x, &sorted.order, &none, 2).is_err());
        assert!(ops::expert_counts(&none).is_err());
    }
}

/// The selected experts, the weights and their gradient equal those of the CPU bit for bit, also
/// with ties.
#[test]
fn routers_select_as_on_the_cpu() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for (shape, k) in [
                ([0, 4], 2),
                ([1, 1], 1),
                ([7, 8], 3),
                ([30, 128], 8),
                ([3, 57], 57),
                ([2, 130], 40),
                ([2, 512], 6),
                ([1, 601], 34),
                ([2, 700], 5),
            ] {
                check_router(&numbered(&device, &shape, dtype, 1.0), k);
            }
            let view = numbered(&device, &[5, 33], dtype, 1.0).slice(0, 1..5).unwrap();
            check_router(&view, 4);
            let transposed = numbered(&device, &[12, 5], dtype, 1.0);
            check_router(&transposed.transpose(0, 1).unwrap(), 4);
        }
    }
}

/// NaN ranks first, infinities are in order, and both zeros are equal.
#[test]
fn routers_rank_nan_and_infinities() {
    let odd = [-0.0, 1.0, f32::NAN, 0.0, f32::INFINITY, f32::NAN, -f32::MIN_POSITIVE];
    for device in devices() {
        for experts in [8, 520] {
            let mut row = vec![f32::NEG_INFINITY; experts];
            row[..7].copy_from_slice(&odd);
            let x = Tensor::from_slice(&device, &[1, experts], &row).unwrap();
            let (weights, indices) = ops::router_top_k(&x, 7, false, None).unwrap();
            assert_eq!(ints(&indices), [2, 5, 4, 1, 0, 3, 6]);
            let weights = weights.to_vec::<f32>().unwrap();
            assert!(weights[..2].iter().all(|weight| weight.is_nan()));
            assert_eq!(weights[2..], [f32::INFINITY, 1.0, 0.0, 0.0, odd[6]]);
        }
    }
}

/// A copy of the tensor on the CPU.
fn on_cpu(x: &Tensor) -> Tensor {
    ops::to_device(x, reference()).unwrap()
}

fn check_router(scores: &Tensor, k: usize) {
    let experts = scores.extent(1).unwrap();
    let ties = ops::relu(scores).unwrap(); // half of the scores are equal
    for renormalize in [false, true] {
        let bias = numbered(scores.device(), &[experts], DType::F32, 0.2);
        for (probabilities, bias) in [(scores, None), (&ties, Some(&bias)), (&ties, None)] {
            let (weights, indices) =
                ops::router_top_k(probabilities, k, renormalize, bias).unwrap();
            let exact_bias = bias.map(on_cpu);
            let expected =
                ops::router_top_k(&on_cpu(probabilities), k, renormalize, exact_bias.as_ref());
            let (exact_weights, exact_indices) = expected.unwrap();
            assert_eq!(ints(&indices), ints(&exact_indices));
            assert_close(&weights, &exact_weights, 0.0, 1.0);

            let dweights = ops::cos(&weights).unwrap();
            let slopes =
                ops::router_top_k_grad(probabilities, &indices, &dweights, renormalize).unwrap();
            let operands = (on_cpu(probabilities), on_cpu(&dweights));
            let exact =
                ops::router_top_k_grad(&operands.0, &exact_indices, &operands.1, renormalize);
            assert_close(&slopes, &exact.unwrap(), 0.0, 1.0);
        }
    }
}

/// On the CPU the op reports an out-of-range index. A GPU skips it, and the next synchronization
/// reports it.
#[test]
fn out_of_range_indices_are_errors() {
    for device in devices() {
        let x = numbered(&device, &[2, 8], DType::F32, 1.0);
        let ids = |values: &[i32]| {
            let shape: &[usize] = if values.len() == 4 { &[2, 2] } else { &[values.len()] };
            Tensor::from_slice(&device, shape, values).unwrap()
        };
        let sorted = ops::expert_order(&ids(&[0, 1, 2, 0]), 3, 0, 3).unwrap();
        let (weights, rows) = (numbered(&device, &[2, 2], DType::F32, 1.0), ids(&[0, 1, 4, 2]));
        let y = ops::permute_tokens(&x, &sorted.order, &sorted.offsets, 2).unwrap();

        let fails = |work: &dyn Fn() -> Result<Tensor>| {
            let error = work().and_then(|result| ops::to_device(&result, reference()));
            let message = error.expect_err("an index out of range").to_string();
            assert!(message.contains("outside of 0.."), "{message}");
        };
        fails(&|| Ok(ops::expert_order(&ids(&[0, 1, 3, 0]), 3, 0, 3)?.order));
        fails(&|| ops::permute_tokens_grad(&y, &rows));
        fails(&|| ops::unpermute_tokens(&y, &weights, &rows));
        fails(&|| ops::unpermute_tokens_grad_weights(&x, &y, &rows));
        fails(&|| ops::router_top_k_grad(&x, &ids(&[0, 8, 1, 2]), &weights, true));
        let order = Tensor::from_slice(&device, &[4], &[0i32, 3, -2, 1]).unwrap();
        fails(&|| ops::permute_tokens(&x, &order, &sorted.offsets, 2));
    }
}

/// A whole layer, forward and backward, with all experts or some of them local.
#[test]
fn layers_compute_as_on_the_cpu() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for held in [0..5, 1..4] {
                let layer = Layer {
                    x: numbered(&device, &[19, 24], dtype, 1.0),
                    probabilities: probabilities(&device, [19, 5], dtype),
                    bias: numbered(&device, &[5], DType::F32, 0.1),
                    gate_up: numbered(&device, &[5, 32, 24], dtype, 0.4),
                    down: numbered(&device, &[5, 24, 16], dtype, 0.4),
                    dout: numbered(&device, &[19, 24], dtype, 0.7),
                    held,
                };
                let (found, exact) = (layer.run().unwrap(), layer.exact().run().unwrap());
                for (name, tensor) in &found {
                    eprintln!("{name} of {dtype:?} on {device}");
                    let (_, expected) = exact.iter().find(|(of, _)| of == name).unwrap();
                    // Every matrix product rounds its result; sums have up to sixty terms.
                    let tolerance = if dtype == DType::F32 { 1e-5 } else { 0.03 };
                    assert_close(tensor, expected, tolerance, 2.0);
                }
            }
        }
    }
}

/// The sigmoid of distinct scores.
fn probabilities(device: &Device, shape: [usize; 2], dtype: DType) -> Tensor {
    ops::sigmoid(&numbered(device, &shape, dtype, 1.5)).unwrap()
}

/// An MoE layer with two experts per token. An expert is a SwiGLU MLP.
struct Layer {
    x: Tensor,
    probabilities: Tensor,
    bias: Tensor,
    gate_up: Tensor,
    down: Tensor,
    dout: Tensor,
    held: std::ops::Range<usize>,
}

impl Layer {
    fn exact(&self) -> Layer {
        Layer {
            x: exact(&self.x),
            probabilities: exact(&self.probabilities),
            bias: exact(&self.bias),
            gate_up: exact(&self.gate_up),
            down: exact(&self.down),
            dout: exact(&self.dout),
            held: self.held.clone(),
        }
    }

    /// Computes the result and all gradients.
    fn run(&self) -> Result<Vec<(&'static str, Tensor)>> {
        let (p, held) = (&self.probabilities, self.held.clone());
        let (weights, indices) = ops::router_top_k(p, 2, true, Some(&self.bias))?;
        let sorted = ops::expert_order(&indices, 5, held.start, held.len())?;
        let (order, offsets, row_of_slot) = (&sorted.order, &sorted.offsets, &sorted.row_of_slot);

        let (w_in, w_out) = (self.gate_up.slice(0, held.clone())?, self.down.slice(0, held)?);
        let rows = ops::permute_tokens(&self.x, order, offsets, 2)?;
        let gate_up = ops::grouped_matmul_nt(&rows, &w_in, offsets)?;
        let flat = *gate_up.shape();
        let gate_up = ops::reshape(&gate_up, &[flat[0], 2, flat[1] / 2])?;
        let hidden = ops::swiglu(&gate_up)?;
        let y = ops::grouped_matmul_nt(&hidden, &w_out, offsets)?;
        let out = ops::unpermute_tokens(&y, &weights, row_of_slot)?;

        let dout = &self.dout;
        let dweights = ops::unpermute_tokens_grad_weights(dout, &y, row_of_slot)?;
        let dweights = ops::cast(&dweights, p.dtype())?;
        let dp = ops::router_top_k_grad(p, &indices, &dweights, true)?;
        let dy = ops::unpermute_tokens_grad_input(dout, &weights, order, offsets)?;
        let dw_out = weight_gradient(&dy, &hidden, offsets, &w_out)?;
        let dhidden = ops::grouped_matmul_grad_input(&dy, &w_out, offsets)?;
        let dgate_up = ops::reshape(&ops::swiglu_grad(&gate_up, &dhidden)?, &flat)?;
        let dw_in = weight_gradient(&dgate_up, &rows, offsets, &w_in)?;
        let drows = ops::grouped_matmul_grad_input(&dgate_up, &w_in, offsets)?;
        let dx = ops::permute_tokens_grad(&drows, row_of_slot)?;
        Ok(vec![("out", out), ("dp", dp), ("dx", dx), ("dw_in", dw_in), ("dw_out", dw_out)])
    }
}

fn weight_gradient(dy: &Tensor, x: &Tensor, offsets: &Tensor, w: &Tensor) -> Result<Tensor> {
    let sums = match w.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let mut dw = Accumulator::new(w.device(), *w.shape(), sums)?;
    ops::grouped_matmul_grad_weight_into(dy, x, offsets, &mut dw)?;
    Ok(dw.total()?.clone())
}
