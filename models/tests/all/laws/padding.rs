//! `pad_token_id`: the lookup of padding has no gradient, as with torch's `padding_idx`.

use meshgrad_autograd::Module;
use meshgrad_models::{Balancing, Compute, Decoder};
use meshgrad_runtime::{DType, Device, Tensor};

use crate::laws::{EXPERTS, GROUPED, WINDOW, gradients, ids};
use crate::small::config;

const EMBEDDING: &str = "model.embed_tokens.weight";

/// The gradients of the model `text`, with this `pad_token_id`, by name.
fn of(text: &str, padding: Option<i64>, ids: &Tensor, compute: Compute) -> Vec<(String, Vec<f32>)> {
    let mut config = config(text);
    config.pad_token_id = padding;
    let model = Decoder::materialized(&config, ids.device(), 7).unwrap();
    gradients(&model, ids, compute, Balancing::default()).1
}

/// Only the row of padding changes: it has the gradient of a tied head, and is zero without one.
#[test]
fn the_row_of_padding_has_no_gradient_from_the_lookup() {
    let device = Device::cpu();
    let ids = ids(&device, 2, 11);
    let padding = ids.to_vec::<i64>().unwrap()[3];
    for text in [WINDOW, GROUPED, EXPERTS] {
        for (dtype, checkpointing) in
            [(DType::F32, false), (DType::BF16, false), (DType::F32, true)]
        {
            let compute = Compute { dtype, checkpointing };
            let expected = of(text, None, &ids, compute);
            let is_tied = config(text).tie_word_embeddings;
            // The gradient of the head alone.
            let untied = text.replace("tie_word_embeddings = true", "");
            let untied = Decoder::materialized(&config(&untied), &device, 7).unwrap();
            if let (true, Some(head)) = (is_tied, &untied.head) {
                let table = untied.embedding.as_ref().unwrap().weight.value().unwrap();
                head.weight.set(&table).unwrap();
            }
            let (_, of_untied) = gradients(&untied, &ids, compute, Balancing::default());
            let of_head = of_untied.iter().find(|(name, _)| name == "lm_head.weight").unwrap();

            for id in [padding, padding - 96] {
                let actual = of(text, Some(id), &ids, compute);
                for ((name, expected), (_, actual)) in expected.iter().zip(&actual) {
                    if name != EMBEDDING {
                        assert!(expected == actual, "{name}");
                        continue;
                    }
                    let width = config(text).hidden_size;
                    let row = padding as usize * width..(padding as usize + 1) * width;
                    assert!(expected[row.clone()].iter().any(|x| *x != 0.0));
                    let of_row: Vec<f32> = match is_tied {
                        true => of_head.1[row.clone()].to_vec(),
                        false => vec![0.0; width],
                    };
                    assert_ne!(expected[row.clone()], of_row[..]);
                    assert_eq!(actual[row.clone()], of_row[..]);
                    assert!(expected[..row.start] == actual[..row.start]);
                    assert!(expected[row.end..] == actual[row.end..]);
                }
            }
        }
    }
    assert!(config(GROUPED).tie_word_embeddings);
}

/// As in torch, the id must be in the vocabulary; a negative one counts from its end.
#[test]
fn padding_is_a_token_of_the_vocabulary() {
    for (id, is_valid) in [(95, true), (96, false), (-1, true), (-96, true), (-97, false)] {
        let mut config = config(WINDOW);
        config.pad_token_id = Some(id);
        let model = Decoder::new(&config);
        assert_eq!(model.is_ok(), is_valid, "{id}");
        match model {
            Ok(model) => {
                assert_eq!(model.params().len(), Decoder::new(&config).unwrap().params().len())
            }
            Err(error) => assert!(error.to_string().contains("pad_token_id"), "{error}"),
        }
    }
}
