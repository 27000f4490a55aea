//! Documents in a row have the loss and the gradients that each has alone.

use meshgrad_models::{Balancing, TokenBatch};
use meshgrad_runtime::{Device, Tensor};

use crate::laws::{EXPERTS, F32, GROUPED, WINDOW, YARN, gradients, gradients_of, ids, model};
use crate::small::{distance, norm};

const TOKENS: usize = 17;

/// The tokens of each document, in two rows.
const ROWS: [&[usize]; 2] = [&[5, 1, 8, 3], &[2, 15]];

/// Both rows, whose documents begin `shift` tokens too late.
fn packed(ids: &Tensor, shift: i64) -> TokenBatch {
    let of_tokens = |of: fn(i64, i64) -> i64| {
        let of_row = |lengths: &&[usize]| -> Vec<i64> {
            let documents = lengths.iter().enumerate();
            let document = |(number, length): (usize, &usize)| {
                (0..*length as i64).map(move |at| of(number as i64, at)).collect::<Vec<i64>>()
            };
            documents.flat_map(document).collect()
        };
        let mut values: Vec<i64> = ROWS.iter().flat_map(of_row).collect();
        for row in values.chunks_mut(TOKENS) {
            row.rotate_right(shift as usize);
            row[..shift as usize].fill(0);
        }
        Tensor::from_slice(ids.device(), &[ROWS.len(), TOKENS], &values).unwrap()
    };
    TokenBatch {
        documents: Some(of_tokens(|document, _| document)),
        positions: Some(of_tokens(|_, at| at)),
        ..TokenBatch::new(ids, ids)
    }
}

type Outcome = (f32, Vec<(String, Vec<f32>)>);

/// Sums over each document alone.
fn alone(text: &str, ids: &Tensor) -> Outcome {
    let mut sums: Option<Outcome> = None;
    for (row, lengths) in (0..).zip(ROWS) {
        let mut end = 0;
        for length in lengths {
            let start = end;
            end += length;
            let own = ids.slice(0, row..row + 1).unwrap().slice(1, start..end).unwrap();
            let model = model(text, ids.device());
            let (loss, gradients) = gradients(&model, &own, F32, Balancing::default());
            let loss = loss.sum.item::<f32>().unwrap();
            let Some((total, of_params)) = &mut sums else {
                sums = Some((loss, gradients));
                continue;
            };
            *total += loss;
            for ((_, sum), (_, gradient)) in of_params.iter_mut().zip(gradients) {
                sum.iter_mut().zip(gradient).for_each(|(sum, it)| *sum += it);
            }
        }
    }
    sums.unwrap()
}

fn is_near((loss, gradients): &Outcome, (other, others): &Outcome) -> bool {
    let near = |(a, b): (&Vec<f32>, &Vec<f32>)| distance(a, b) <= 2e-6 * norm(b) + 1e-7;
    let pairs = gradients.iter().zip(others).map(|((_, a), (_, b))| (a, b));
    (loss - other).abs() <= 1e-6 * other && pairs.into_iter().all(near)
}

#[test]
fn packed_documents_are_those_alone() {
    let device = Device::cpu();
    let ids = ids(&device, ROWS.len(), TOKENS);
    for text in [WINDOW, GROUPED, EXPERTS, YARN] {
        let alone = alone(text, &ids);
        let of = |batch: &TokenBatch| {
            let model = model(text, &device);
            let (loss, gradients) = gradients_of(&model, batch, F32, Balancing::default());
            (loss.sum.item::<f32>().unwrap(), gradients)
        };
        assert!(is_near(&of(&packed(&ids, 0)), &alone), "{text}");
        // One document per row; documents whose starts are off by one; documents without positions.
        let whole = TokenBatch::new(&ids, &ids);
        let without_positions = TokenBatch { positions: None, ..packed(&ids, 0) };
        for wrong in [whole, packed(&ids, 1)] {
            assert!(!is_near(&of(&wrong), &alone), "{text}");
        }
        // Rotary embeddings only see differences of positions.
        assert!(is_near(&of(&without_positions), &alone), "{text}");
    }
}
