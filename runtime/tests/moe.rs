//! Mixture-of-experts layers on every device, against the CPU.

mod devices;

use devices::{assert_close, devices, exact, numbered, reference, rounding};
use meshgrad_runtime::{DType, Device, Error, Tensor, ops};

/// [tokens, choices, experts, first held, held].
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
    let values: Vec<i64> = (0..tokens * k)
        .map(|i| ((i * i * 7 + i / 3) % experts) as i64)
        .collect();
    let indices = Tensor::from_slice(reference(), &[tokens, k], &values).unwrap();
    ops::to_device(&ops::cast(&indices, dtype).unwrap(), device).unwrap()
}

fn ints(x: &Tensor) -> Vec<i64> {
    let x = ops::to_device(x, reference()).unwrap();
    ops::cast(&x, DType::I64).unwrap().to_vec().unwrap()
}

/// Offsets, order and places are those of a stable sort, whoever holds how many of the experts.
#[test]
fn order_is_a_stable_sort() {
    for device in devices() {
        for dtype in [DType::I64, DType::I32, DType::U32] {
            for case in CASES {
                check_order(&indices(&device, case, dtype), case);
            }
        }
        // A view that begins at any element.
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
    let (mut order, mut place) = (vec![-1; tokens * k], vec![-1; tokens * k]);
    for (row, slot) in by_expert.iter().enumerate() {
        (order[row], place[*slot]) = (*slot as i64, row as i64);
    }
    let before = |expert| groups.iter().flatten().filter(|it| **it < expert).count() as i64;
    let offsets: Vec<i64> = (0..=held).map(before).collect();
    let counts: Vec<i64> = offsets.windows(2).map(|ends| ends[1] - ends[0]).collect();

    assert_eq!(ints(&sorted.offsets), offsets);
    assert_eq!(ints(&sorted.order), order);
    assert_eq!(ints(&sorted.place), place);
    let counted = ops::expert_counts(&sorted.offsets).unwrap();
    assert_eq!(counted.dtype(), DType::F32);
    assert_eq!(ints(&counted), counts);
}

/// Rows there and back, and all gradients, for whole vectors, odd rows, one element and none.
#[test]
fn rows_go_to_their_experts_and_back() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for case in CASES {
                for features in [32, 7, 1, 0, 600] {
                    let x = numbered(&device, &[case[0], features], dtype, 2.0);
                    check_rows(&x, case);
                }
            }
            // Rows that do not begin at a vector, and columns that were rows.
            let case = [6, 3, 7, 2, 3];
            let view = numbered(&device, &[7, 33], dtype, 2.0)
                .slice(0, 1..7)
                .unwrap();
            check_rows(&view.slice(1, 1..33).unwrap(), case);
            let rows = numbered(&device, &[7, 32], dtype, 2.0)
                .slice(0, 1..7)
                .unwrap();
            check_rows(&rows, case);
            let turned = numbered(&device, &[16, 6], dtype, 2.0);
            check_rows(&turned.transpose(0, 1).unwrap(), case);
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
    let (here, there) = (sort(device), sort(reference()));
    let weights = numbered(device, &[tokens, k], x.dtype(), 1.0);
    let used = *ints(&here.offsets).last().unwrap() as usize;
    let in_use = |rows: &Tensor| rows.slice(0, 0..used).unwrap();

    let y = ops::permute_tokens(x, &here.order, &here.offsets).unwrap();
    let exact_y = ops::permute_tokens(&exact(x), &there.order, &there.offsets).unwrap();
    assert_close(&in_use(&y), &in_use(&exact_y), 0.0, 1.0);

    let out = ops::unpermute_tokens(&y, &weights, &here.place).unwrap();
    let exact_out = ops::unpermute_tokens(&exact(&y), &exact(&weights), &there.place).unwrap();
    assert_close(&out, &exact_out, tolerance, 4.0);

    let dx = ops::permute_tokens_grad(&y, &here.place).unwrap();
    let exact_dx = ops::permute_tokens_grad(&exact(&y), &there.place).unwrap();
    assert_close(&dx, &exact_dx, tolerance, 4.0);

    let rows = (&here.order, &here.offsets);
    let dy = ops::unpermute_tokens_grad_input(x, &weights, rows.0, rows.1).unwrap();
    let rows = (&there.order, &there.offsets);
    let exact_dy =
        ops::unpermute_tokens_grad_input(&exact(x), &exact(&weights), rows.0, rows.1).unwrap();
    assert_close(&in_use(&dy), &in_use(&exact_dy), tolerance, 1.0);

    let dweights = ops::unpermute_tokens_grad_weights(x, &y, &here.place).unwrap();
    let exact_dweights =
        ops::unpermute_tokens_grad_weights(&exact(x), &exact(&y), &there.place).unwrap();
    assert_eq!(dweights.dtype(), DType::F32);
    assert_close(&dweights, &exact_dweights, 1e-5, 10.0);
}

/// There is an offset even without experts.
#[test]
fn no_offsets_are_an_error() {
    for device in devices() {
        let x = numbered(&device, &[2, 8], DType::F32, 1.0);
        let indices = indices(&device, [2, 2, 3, 0, 3], DType::I32);
        let sorted = ops::expert_order(&indices, 3, 0, 3).unwrap();
        let none = sorted.offsets.slice(0, 0..0).unwrap();
        assert!(ops::permute_tokens(&x, &sorted.order, &none).is_err());
        assert!(ops::expert_counts(&none).is_err());
    }
}

/// The choice, its weights and their gradient have the CPU's bits, ties included.
#[test]
fn routers_choose_as_on_the_cpu() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for (shape, k) in [
                ([0, 4], 2),
                ([1, 1], 1),
                ([7, 8], 3),
                ([30, 128], 8),
                ([3, 57], 57),
                ([2, 700], 5),
            ] {
                check_router(&numbered(&device, &shape, dtype, 1.0), k);
            }
            let view = numbered(&device, &[5, 33], dtype, 1.0)
                .slice(0, 1..5)
                .unwrap();
            check_router(&view, 4);
            let turned = numbered(&device, &[12, 5], dtype, 1.0);
            check_router(&turned.transpose(0, 1).unwrap(), 4);
        }
    }
}

/// A tensor with the same values on the CPU.
fn there(x: &Tensor) -> Tensor {
    ops::to_device(x, reference()).unwrap()
}

fn check_router(scores: &Tensor, k: usize) {
    let experts = scores.extent(1).unwrap();
    let ties = ops::relu(scores).unwrap(); // half of the scores are equal
    for renormalise in [false, true] {
        let bias = numbered(scores.device(), &[experts], DType::F32, 0.2);
        for (probabilities, bias) in [(scores, None), (&ties, Some(&bias)), (&ties, None)] {
            let (weights, indices) =
                ops::router_top_k(probabilities, k, renormalise, bias).unwrap();
            let exact_bias = bias.map(there);
            let on_cpu =
                ops::router_top_k(&there(probabilities), k, renormalise, exact_bias.as_ref());
            let (exact_weights, exact_indices) = on_cpu.unwrap();
            assert_eq!(ints(&indices), ints(&exact_indices));
            assert_close(&weights, &exact_weights, 0.0, 1.0);

            let dweights = ops::cos(&weights).unwrap();
            let slopes =
                ops::router_top_k_grad(probabilities, &indices, &dweights, renormalise).unwrap();
            let operands = (there(probabilities), there(&dweights));
            let exact =
                ops::router_top_k_grad(&operands.0, &exact_indices, &operands.1, renormalise);
            assert_close(&slopes, &exact.unwrap(), 0.0, 1.0);
        }
    }
}

/// Indices that name nothing are errors: at once on the CPU, where the host next waits on a GPU,
/// which goes on as if they were absent.
#[test]
fn wild_indices_are_errors() {
    for device in devices() {
        let x = numbered(&device, &[2, 8], DType::F32, 1.0);
        let ids = |values: &[i32]| {
            let shape: &[usize] = if values.len() == 4 {
                &[2, 2]
            } else {
                &[values.len()]
            };
            Tensor::from_slice(&device, shape, values).unwrap()
        };
        let sorted = ops::expert_order(&ids(&[0, 1, 2, 0]), 3, 0, 3).unwrap();
        let (weights, places) = (
            numbered(&device, &[2, 2], DType::F32, 1.0),
            ids(&[0, 1, 4, 2]),
        );
        let y = ops::permute_tokens(&x, &sorted.order, &sorted.offsets).unwrap();

        let fails = |work: &dyn Fn() -> Result<Tensor, Error>| {
            let error = work().and_then(|result| ops::to_device(&result, reference()));
            let message = error.expect_err("an index out of range").to_string();
            assert!(message.contains("outside of 0.."), "{message}");
        };
        fails(&|| Ok(ops::expert_order(&ids(&[0, 1, 3, 0]), 3, 0, 3)?.order));
        fails(&|| ops::permute_tokens_grad(&y, &places));
        fails(&|| ops::unpermute_tokens(&y, &weights, &places));
        fails(&|| ops::unpermute_tokens_grad_weights(&x, &y, &places));
        fails(&|| ops::router_top_k_grad(&x, &ids(&[0, 8, 1, 2]), &weights, true));
        let order = Tensor::from_slice(&device, &[4], &[0i32, 3, -1, 1]).unwrap();
        fails(&|| ops::permute_tokens(&x, &order, &sorted.offsets));
    }
}
