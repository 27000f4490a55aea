//! Cross entropy fused with its linear layer, on every device, compared with f64 on the CPU.

use crate::devices::{assert_close, devices, exact, numbered, reference, rounding, values};
use meshgrad_runtime::ops::Targets;
use meshgrad_runtime::{Accumulator, DType, Device, IndexOutOfRange, Shape, Tensor, ops};

const FLOATS: [DType; 2] = [DType::F32, DType::BF16];
const IGNORE: i64 = -100;

/// Rows, classes and features. Rows of `x` and `w` are whole vectors or not; there are several
/// tiles, one tile or no tiles of rows and of classes.
const EXTENTS: [[usize; 3]; 14] = [
    [6, 72, 16],
    [5, 33, 7],
    [1, 1, 1],
    [4099, 5, 3],
    [3, 4101, 8],
    [2, 512, 8],  // four vectors per lane of a warp
    [3, 4232, 8], // the second tile has whole vectors of a warp
    [3, 4700, 8], // the second tile is for CTAs
    [2, 600, 24],
    [2, 517, 8],
    [3, 1003, 8],
    [0, 4, 8],
    [3, 0, 8],
    [4, 5, 0],
];

/// A layer with one label per row. Labels are in this shard of the vocabulary, in another shard, or
/// ignored.
struct Problem {
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    vocab_start: usize,
    vocab_total: usize,
}

impl Problem {
    fn new(device: &Device, dtype: DType, [rows, classes, features]: [usize; 3]) -> Problem {
        let (vocab_start, vocab_total) = (2, classes + 4);
        let labels: Vec<i64> = (0..rows)
            .map(|row| match row % 4 {
                3 => IGNORE,
                _ => (vocab_total - 1 - row * 7 % vocab_total) as i64,
            })
            .collect();
        Problem {
            x: numbered(device, &[rows, features], dtype, 2.0),
            w: ramp(device, dtype, classes, features),
            labels: Tensor::from_slice(device, &[rows], &labels).unwrap(),
            vocab_start,
            vocab_total,
        }
    }

    fn targets<'a>(&self, labels: &'a Tensor) -> Targets<'a> {
        Targets {
            labels,
            ignore_index: IGNORE,
            vocab_start: self.vocab_start,
            vocab_total: self.vocab_total,
        }
    }
}

/// Weights for logits that grow from class to class in some rows and fall in others: the largest one
/// is in the first tile or in the last.
fn ramp(device: &Device, dtype: DType, classes: usize, features: usize) -> Tensor {
    let values: Vec<f32> = (0..classes * features)
        .map(|i| match i % features {
            0 => 4.0 * (i / features) as f32 / classes as f32,
            _ => (i as f32 * 0.7).sin(),
        })
        .collect();
    let w = Tensor::from_slice(reference(), &[classes, features], &values).unwrap();
    ops::to_device(&ops::cast(&w, dtype).unwrap(), device).unwrap()
}

/// max + ln(sum_exp).
fn log_sum_exp(max: &Tensor, sum_exp: &Tensor) -> Tensor {
    ops::add(max, &ops::ln(sum_exp).unwrap()).unwrap()
}

#[test]
fn statistics_and_gradients() {
    for device in devices() {
        for dtype in FLOATS {
            for extents in EXTENTS {
                eprintln!("{device} {dtype} {extents:?}");
                check(&Problem::new(&device, dtype, extents));
            }
        }
    }
}

fn check(problem: &Problem) {
    let Problem { x, w, labels, .. } = problem;
    let (exact_x, exact_w) = (exact(x), exact(w));
    let exact_labels = ops::to_device(labels, reference()).unwrap();
    let (targets, exact_targets) = (problem.targets(labels), problem.targets(&exact_labels));

    let (max, sum_exp, label_logit) = ops::linear_cross_entropy(x, w, targets).unwrap();
    let expected = ops::linear_cross_entropy(&exact_x, &exact_w, exact_targets).unwrap();
    assert_close(&max, &expected.0, 1e-5, 1.0);
    assert_close(&label_logit, &expected.2, 1e-5, 1.0);
    let lse = log_sum_exp(&max, &sum_exp);
    let exact_lse = log_sum_exp(&expected.0, &expected.1);
    assert_close(&lse, &exact_lse, 1e-5, 1.0);

    let dloss = numbered(x.device(), &[labels.elements()], DType::F32, 1.0);
    let exact_dloss = exact(&dloss);
    let (lse, exact_lse) = (&lse, &exact(&lse));
    let dx = ops::linear_cross_entropy_grad_input(x, w, targets, lse, &dloss).unwrap();
    let exact_dx = ops::linear_cross_entropy_grad_input(
        &exact_x,
        &exact_w,
        exact_targets,
        exact_lse,
        &exact_dloss,
    )
    .unwrap();
    assert_eq!(dx.dtype(), x.dtype());
    assert_close(&dx, &exact_dx, 4.0 * rounding(x.dtype()) + 1e-5, 1.0);

    let sums = |device: &Device, dtype| Accumulator::new(device, *w.shape(), dtype).unwrap();
    let [mut dw, mut also_dw] = [(); 2].map(|()| sums(x.device(), DType::F32));
    let mut exact_dw = sums(reference(), DType::F64);
    for _ in 0..2 {
        ops::linear_cross_entropy_grad_weight_into(x, w, targets, lse, &dloss, &mut dw).unwrap();
        ops::linear_cross_entropy_grad_weight_into(
            &exact_x,
            &exact_w,
            exact_targets,
            exact_lse,
            &exact_dloss,
            &mut exact_dw,
        )
        .unwrap();
        let also_dx =
            ops::linear_cross_entropy_grad_both_into(x, w, targets, lse, &dloss, &mut also_dw)
                .unwrap();
        let rows = x.extent(0).unwrap() as f64;
        // With few rows nothing cancels: an error is relative to the element.
        let unit = match x.dtype() {
            DType::BF16 if rows < 10.0 => 0.02,
            _ => 1.0 + rows / 4.0,
        };
        let tolerance = 4.0 * rounding(x.dtype()) + 1e-5;
        assert_close(dw.total().unwrap(), exact_dw.total().unwrap(), tolerance, unit);
        assert_eq!(values(&dx), values(&also_dx), "gradients from the same logits");
        let both = [dw.total().unwrap(), also_dw.total().unwrap()].map(values);
        assert_eq!(both[0], both[1], "gradients from the same logits");
    }
}

/// Labels of every index dtype give the same results. The other operands are strided.
#[test]
fn labels_of_every_dtype_and_strided_operands() {
    for device in devices() {
        for dtype in FLOATS {
            let x = numbered(&device, &[6, 2, 5], dtype, 1.0);
            let x = x.transpose(1, 2).unwrap().transpose(0, 1).unwrap();
            let w = numbered(&device, &[2, 9], dtype, 1.0).transpose(0, 1).unwrap();
            let places =
                |rows: usize| (0..rows as i64).map(|row| if row % 3 == 1 { 100 } else { row % 9 });
            let wide: Vec<i64> = places(30).collect();
            let signed: Vec<i32> = places(30).map(|it| it as i32).collect();
            let unsigned: Vec<u32> = places(30).map(|it| it as u32).collect();
            let labels = [
                Tensor::from_slice(&device, &[5, 6], &wide),
                Tensor::from_slice(&device, &[5, 6], &signed),
                Tensor::from_slice(&device, &[5, 6], &unsigned),
            ];
            let [first, others @ ..] = labels.map(|labels| {
                let labels = labels.unwrap();
                let targets =
                    Targets { labels: &labels, ignore_index: 100, vocab_start: 0, vocab_total: 9 };
                let (max, sum_exp, label_logit) =
                    ops::linear_cross_entropy(&x, &w, targets).unwrap();
                let lse = log_sum_exp(&max, &sum_exp);
                let dx = ops::linear_cross_entropy_grad_input(&x, &w, targets, &lse, &max).unwrap();
                let (loss, count) =
                    ops::cross_entropy_sum(&lse, &label_logit, &labels, 100).unwrap();
                assert_eq!(values(&count), [20.0]);
                [label_logit, lse, dx, loss].map(|it| values(&it))
            });
            assert!(others.iter().all(|other| *other == first));

            let shape = Shape::new(&[9, 2]).unwrap();
            let labels = Tensor::from_slice(&device, &[5, 6], &wide).unwrap();
            let targets =
                Targets { labels: &labels, ignore_index: 100, vocab_start: 0, vocab_total: 9 };
            let (max, _, _) = ops::linear_cross_entropy(&x, &w, targets).unwrap();
            let mut narrow = Accumulator::new(&device, shape, DType::BF16).unwrap();
            let mut wide = Accumulator::new(&device, shape, DType::F32).unwrap();
            for dw in [&mut narrow, &mut wide] {
                ops::linear_cross_entropy_grad_weight_into(&x, &w, targets, &max, &max, dw)
                    .unwrap();
            }
            let (narrow, wide) = (narrow.total().unwrap(), exact(wide.total().unwrap()));
            assert_close(narrow, &wide, rounding(DType::BF16), 1e-3);
        }
    }
}

/// Sums over the rows that are not ignored. With no rows, the sum is 0.
#[test]
fn sums_of_losses() {
    for device in devices() {
        for dtype in FLOATS {
            for rows in [0, 1, 700, 3001] {
                let lse = numbered(&device, &[rows], dtype, 3.0);
                let label_logit = ops::cos(&lse).unwrap();
                let labels: Vec<i64> = (0..rows as i64).map(|row| row % 3).collect();
                let on = |device| Tensor::from_slice(device, &[rows], &labels).unwrap();
                let (loss, count) =
                    ops::cross_entropy_sum(&lse, &label_logit, &on(&device), 1).unwrap();
                let expected = (exact(&lse), exact(&label_logit));
                let expected =
                    ops::cross_entropy_sum(&expected.0, &expected.1, &on(reference()), 1).unwrap();
                assert_eq!((loss.dtype(), count.dtype()), (dtype, dtype));
                assert_close(&loss, &expected.0, rounding(dtype), 1e-6);
                assert_close(&count, &expected.1, rounding(dtype), 1.0);
            }
        }
    }
}

/// On the CPU the op reports an out-of-range label; on a GPU the next synchronization does.
#[test]
fn labels_outside_of_the_vocabulary() {
    for device in devices() {
        let x = numbered(&device, &[3, 8], DType::F32, 1.0);
        let w = numbered(&device, &[10, 8], DType::F32, 1.0);
        for invalid in [10, -7] {
            let labels = Tensor::from_slice(&device, &[3], &[0, invalid, IGNORE]).unwrap();
            let targets =
                Targets { labels: &labels, ignore_index: IGNORE, vocab_start: 0, vocab_total: 10 };
            let result = ops::linear_cross_entropy(&x, &w, targets);
            let error = match device.is_gpu() {
                true => result.and_then(|_| device.synchronize()).unwrap_err(),
                false => result.map(drop).unwrap_err(),
            };
            let reported = error.details::<IndexOutOfRange>().unwrap();
            assert_eq!((reported.index, reported.extent), (invalid, 10));
            assert_eq!(reported.gpu.is_some(), device.is_gpu());
        }
    }
}
