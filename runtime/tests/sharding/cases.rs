//! The ops to test, with operands, by family.

use meshgrad_mesh::{Reduction, ShardingRule};
use meshgrad_runtime::ops::{AttentionMask, AttentionSequences, RopeStyle, Targets};
use meshgrad_runtime::{DType, Key, Region, RegionKey, Result, Tensor, ops};

use crate::call::{
    CPU, Case, Local, added, case, changing, given, given_ranged, indices, local, numbers,
    positive, ranged, to_f32,
};

pub(crate) fn cases() -> Vec<Case> {
    let families = [
        products(),
        elementwise(),
        broadcasts(),
        rows(),
        embeddings(),
        ropes(),
        normed_ropes(),
        attentions(),
        losses(),
        experts(),
        steps(),
        with_dims(),
        views(),
    ];
    families.into_iter().flatten().collect()
}

fn products() -> Vec<Case> {
    let (x, w, dy) = (
        numbers(&[2, 5, 4], 1),
        numbers(&[6, 4], 2),
        numbers(&[2, 5, 6], 3),
    );
    let (a, b) = (numbers(&[2, 3, 4], 4), numbers(&[2, 4, 5], 5));
    vec![
        case("linear", vec![x.clone(), w.clone()], |o| {
            Ok(vec![ops::linear(&o[0], &o[1])?])
        }),
        case("linear_grad_input", vec![dy.clone(), w.clone()], |o| {
            Ok(vec![ops::linear_grad_input(&o[0], &o[1])?])
        }),
        case("linear_grad_weight_into", vec![dy, x, w], |o| {
            added(&o[2], |dw| ops::linear_grad_weight_into(&o[0], &o[1], dw))
        }),
        case("matmul", vec![a.clone(), b.clone()], |o| {
            Ok(vec![ops::matmul(&o[0], &o[1])?])
        }),
        case("matmul_into", vec![a, b, numbers(&[2, 3, 5], 6)], |o| {
            added(&o[2], |c| ops::matmul_into(&o[0], &o[1], c))
        }),
    ]
}

fn elementwise() -> Vec<Case> {
    let (x, dy) = (numbers(&[5, 4], 1), numbers(&[5, 4], 2));
    let draw = |local: &Local| -> Result<RegionKey> {
        if local.operands[0].sharding().is_some() {
            return Ok(Key::new(7).into());
        }
        let mut region = Region::whole(&[5, 4])?;
        for dim in 0..2 {
            let start = local.starts[0][dim];
            let end = start + local.operands[0].shape()[dim];
            region = region.slice(dim, start..end)?;
        }
        Ok(Key::new(7).within(&region))
    };
    let unary = ops::UNARY.iter().flat_map(|op| {
        let operand = match op.domain {
            ops::Domain::Real => x.clone(),
            ops::Domain::Positive => positive(&[5, 4], 1),
        };
        [
            case(op.name, vec![operand.clone()], |o| {
                Ok(vec![(op.value)(&o[0])?])
            }),
            case(op.grad_name, vec![operand, dy.clone()], |o| {
                Ok(vec![(op.grad)(&o[0], &o[1])?])
            }),
        ]
    });
    let others = vec![
        case("neg", vec![x.clone()], |o| Ok(vec![ops::neg(&o[0])?])),
        case("clamp_grad", vec![x.clone(), dy.clone()], |o| {
            Ok(vec![ops::clamp_grad(&o[0], &o[1], -2.0, 2.0)?])
        }),
        case("affine", vec![x.clone()], |o| {
            Ok(vec![ops::affine(&o[0], 2.0, 1.0)?])
        }),
        linear("affine", &x, |o| Ok(vec![ops::affine(&o[0], 2.0, 0.0)?])),
        case("add_into", vec![x.clone(), dy.clone()], |o| {
            added(&o[1], |sum| ops::add_into(&o[0], sum))
        }),
        case("contiguous", vec![x.clone()], |o| {
            Ok(vec![ops::copy(&o[0])?])
        }),
        linear("cast", &x, |o| Ok(vec![ops::cast(&o[0], DType::F32)?])),
        case("cast", vec![x.clone()], |o| {
            Ok(vec![ops::cast(&o[0], DType::I64)?])
        }),
        case("copy_into", vec![x.clone(), dy.clone()], |o| {
            let into = changing(&o[1])?;
            ops::copy_into(&o[0], &into)?;
            Ok(vec![into])
        }),
        local("dropout", vec![x.clone()], move |local| {
            Ok(vec![ops::dropout(&local.operands[0], draw(local)?, 0.5)?])
        }),
        local("dropout_grad", vec![dy.clone()], move |local| {
            Ok(vec![ops::dropout_grad(
                &local.operands[0],
                draw(local)?,
                0.5,
            )?])
        }),
    ];
    unary.chain(others).collect()
}

/// An op of one operand that is linear only for some arguments.
fn linear(
    name: &'static str,
    x: &Tensor,
    run: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
) -> Case {
    let case = case(name, vec![x.clone()], run);
    let rule = case.rule.linear_in(&["x"]).unwrap();
    Case { rule, ..case }
}

fn broadcasts() -> Vec<Case> {
    let mut cases = Vec::new();
    for (of_a, of_b) in [
        (vec![5, 4], vec![5, 4]),
        (vec![5, 4], vec![4]),
        (vec![5, 1], vec![3, 1, 4]),
    ] {
        let (a, b) = (numbers(&of_a, 1), positive(&of_b, 2));
        let pair = || vec![a.clone(), b.clone()];
        cases.extend([
            case("add", pair(), |o| Ok(vec![ops::add(&o[0], &o[1])?])),
            case("sub", pair(), |o| Ok(vec![ops::sub(&o[0], &o[1])?])),
            case("mul", pair(), |o| Ok(vec![ops::mul(&o[0], &o[1])?])),
            case("div", pair(), |o| Ok(vec![ops::div(&o[0], &o[1])?])),
            case("maximum", pair(), |o| Ok(vec![ops::maximum(&o[0], &o[1])?])),
            case("lt", pair(), |o| Ok(vec![ops::lt(&o[0], &o[1])?])),
        ]);
        let condition = ops::lt(&numbers(&of_b, 3), &numbers(&of_b, 4)).unwrap();
        cases.push(case("where_", vec![condition, a, b], |o| {
            Ok(vec![ops::where_(&o[0], &o[1], &o[2])?])
        }));
    }
    cases
}

fn rows() -> Vec<Case> {
    let (x, dy, w) = (
        numbers(&[3, 5, 4], 1),
        numbers(&[3, 5, 4], 2),
        numbers(&[4], 3),
    );
    let (_, inv_rms) = ops::rms_norm(&x, &w, 1e-6).unwrap();
    let (_, mean, inv_std) = ops::layer_norm(&x, &w, &w, 1e-6).unwrap();
    let (y, log_y) = (ops::softmax(&x).unwrap(), ops::log_softmax(&x).unwrap());
    let (gate_up, dgated) = (numbers(&[3, 2, 5], 4), numbers(&[3, 5], 5));
    vec![
        case("rms_norm", vec![x.clone(), w.clone()], |o| {
            let (y, inv_rms) = ops::rms_norm(&o[0], &o[1], 1e-6)?;
            Ok(vec![y, inv_rms])
        }),
        case(
            "rms_norm_grad_input",
            vec![dy.clone(), x.clone(), w.clone(), inv_rms.clone()],
            |o| Ok(vec![ops::rms_norm_grad_input(&o[0], &o[1], &o[2], &o[3])?]),
        ),
        case(
            "rms_norm_grad_weight_into",
            vec![dy.clone(), x.clone(), inv_rms.clone(), w.clone()],
            |o| {
                added(&o[3], |dw| {
                    ops::rms_norm_grad_weight_into(&o[0], &o[1], &o[2], dw)
                })
            },
        ),
        case(
            "add_rms_norm",
            vec![x.clone(), dy.clone(), w.clone()],
            |o| {
                let (sum, y, inv_rms) = ops::add_rms_norm(&o[0], &o[1], &o[2], 1e-6)?;
                Ok(vec![sum, y, inv_rms])
            },
        ),
        case(
            "add_rms_norm_grad_input",
            vec![dy.clone(), x.clone(), x.clone(), w.clone(), inv_rms.clone()],
            |o| {
                let dx = ops::add_rms_norm_grad_input(&o[0], &o[1], &o[2], &o[3], &o[4])?;
                Ok(vec![dx])
            },
        ),
        case("layer_norm", vec![x.clone(), w.clone(), w.clone()], |o| {
            let (y, mean, inv_std) = ops::layer_norm(&o[0], &o[1], &o[2], 1e-6)?;
            Ok(vec![y, mean, inv_std])
        }),
        case(
            "layer_norm_grad_input",
            vec![
                dy.clone(),
                x.clone(),
                w.clone(),
                mean.clone(),
                inv_std.clone(),
            ],
            |o| {
                let dx = ops::layer_norm_grad_input(&o[0], &o[1], &o[2], &o[3], &o[4])?;
                Ok(vec![dx])
            },
        ),
        case(
            "layer_norm_grad_weight_into",
            vec![dy.clone(), x.clone(), mean, inv_std, w.clone()],
            |o| {
                added(&o[4], |dw| {
                    ops::layer_norm_grad_weight_into(&o[0], &o[1], &o[2], &o[3], dw)
                })
            },
        ),
        case("cumsum", vec![x.clone()], |o| {
            Ok(vec![ops::cumsum(&o[0], -1)?])
        }),
        case("reverse_cumsum", vec![x.clone()], |o| {
            Ok(vec![ops::reverse_cumsum(&o[0], -1)?])
        }),
        case("argsort", vec![x.clone()], |o| {
            Ok(vec![ops::argsort(&o[0], -1, false)?])
        }),
        case("softmax", vec![x.clone()], |o| {
            Ok(vec![ops::softmax(&o[0])?])
        }),
        case("softmax_grad", vec![y, dy.clone()], |o| {
            Ok(vec![ops::softmax_grad(&o[0], &o[1])?])
        }),
        case("log_softmax", vec![x.clone()], |o| {
            Ok(vec![ops::log_softmax(&o[0])?])
        }),
        case("log_softmax_grad", vec![log_y, dy], |o| {
            Ok(vec![ops::log_softmax_grad(&o[0], &o[1])?])
        }),
        case("swiglu", vec![gate_up.clone()], |o| {
            Ok(vec![ops::swiglu(&o[0])?])
        }),
        case("swiglu_grad", vec![gate_up, dgated], |o| {
            Ok(vec![ops::swiglu_grad(&o[0], &o[1])?])
        }),
        case("top_k", vec![x], |o| {
            let (values, places) = ops::top_k(&o[0], 2)?;
            Ok(vec![values, places])
        }),
    ]
}

fn embeddings() -> Vec<Case> {
    let (table, ids, dy) = (
        numbers(&[7, 4], 1),
        indices(&[3, 5], 7),
        numbers(&[3, 5, 4], 2),
    );
    vec![
        ranged("embedding", vec![table.clone(), ids.clone()], |o| {
            Ok(vec![ops::embedding(&o[0], &o[1])?])
        }),
        ranged("embedding_grad_into", vec![dy, ids, table], |o| {
            added(&o[2], |dtable| {
                ops::embedding_grad_into(&o[0], &o[1], dtable)
            })
        }),
    ]
}

fn ropes() -> Vec<Case> {
    let x = numbers(&[2, 5, 3, 4], 1);
    let (positions, inv_freq) = (indices(&[2, 5], 9), to_f32(&positive(&[2], 3)));
    let (cos, sin) = ops::rope_tables(&positions, &inv_freq, 1.0).unwrap();
    let operands = vec![x, cos, sin];
    vec![
        case("rope_tables", vec![positions, inv_freq], |o| {
            let (cos, sin) = ops::rope_tables(&o[0], &o[1], 1.0)?;
            Ok(vec![cos, sin])
        }),
        case("rope", operands.clone(), |o| {
            Ok(vec![ops::rope(&o[0], &o[1], &o[2], RopeStyle::Half)?])
        }),
        case("rope_grad", operands, |o| {
            Ok(vec![ops::rope_grad(&o[0], &o[1], &o[2], RopeStyle::Half)?])
        }),
    ]
}

fn normed_ropes() -> Vec<Case> {
    let (x, dy) = (numbers(&[2, 5, 3, 4], 1), numbers(&[2, 5, 3, 4], 2));
    let w = numbers(&[4], 3);
    let (positions, inv_freq) = (indices(&[2, 5], 9), to_f32(&positive(&[2], 3)));
    let (cos, sin) = ops::rope_tables(&positions, &inv_freq, 1.0).unwrap();
    let half = RopeStyle::Half;
    let (_, inv_rms) = ops::rms_norm_rope(&x, &w, &cos, &sin, half, 1e-6).unwrap();
    let (x, dy, tables) = (|| x.clone(), || dy.clone(), [cos, sin]);
    vec![
        case(
            "rms_norm_rope",
            [vec![x(), w.clone()], tables.to_vec()].concat(),
            move |o| {
                let (y, inv_rms) = ops::rms_norm_rope(&o[0], &o[1], &o[2], &o[3], half, 1e-6)?;
                Ok(vec![y, inv_rms])
            },
        ),
        case(
            "rms_norm_rope_grad_input",
            [vec![dy(), x(), w.clone(), inv_rms.clone()], tables.to_vec()].concat(),
            move |o| {
                let (x, w, inv_rms, cos, sin) = (&o[1], &o[2], &o[3], &o[4], &o[5]);
                let dx = ops::rms_norm_rope_grad_input(&o[0], x, w, inv_rms, cos, sin, half)?;
                Ok(vec![dx])
            },
        ),
        case(
            "rms_norm_rope_grad_weight_into",
            [vec![dy(), x(), inv_rms], tables.to_vec(), vec![w]].concat(),
            move |o| {
                added(&o[5], |dw| {
                    let (cos, sin) = (&o[3], &o[4]);
                    ops::rms_norm_rope_grad_weight_into(&o[0], &o[1], &o[2], cos, sin, half, dw)
                })
            },
        ),
    ]
}

/// Two query heads per key head, one query head per key head, and one key head for all.
fn attentions() -> Vec<Case> {
    let mut cases = vec![cached_attention()];
    for (heads, shared) in [(4, 2), (3, 3), (4, 1)] {
        let (q, k, v) = (
            numbers(&[2, 5, heads, 2], 1),
            numbers(&[2, 5, shared, 2], 2),
            numbers(&[2, 5, shared, 2], 3),
        );
        let (out, lse) = ops::attention(&q, &k, &v, &AttentionMask::causal(), 0.5).unwrap();
        let dout = numbers(&[2, 5, heads, 2], 4);
        let forward = vec![q.clone(), k.clone(), v.clone()];
        cases.push(local("attention", forward, move |local| {
            let o = &local.operands;
            let (out, lse) = ops::attention(&o[0], &o[1], &o[2], &causal(local)?, 0.5)?;
            Ok(vec![out, lse])
        }));
        let backward = vec![q, k, v, out, lse, dout];
        cases.push(local("attention_grad", backward, move |local| {
            let (o, mask) = (&local.operands, causal(local)?);
            let (dq, dk, dv) =
                ops::attention_grad(&o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &mask, 0.5)?;
            Ok(vec![dq, dk, dv])
        }));
    }
    cases
}

/// The causal mask of a rank's queries: without a sharding, it must state their position.
fn causal(local: &Local) -> Result<AttentionMask> {
    let (q, keys) = (&local.operands[0], local.operands[1].shape()[1]);
    let first = local.starts[0][1];
    let of = |value: usize| Tensor::from_slice(&CPU, &[1], &[value as i64]);
    Ok(AttentionMask {
        sequences: match q.sharding() {
            Some(_) => AttentionSequences::Rows,
            None => AttentionSequences::Cached {
                q_offset: of(first)?,
                k_len: of(keys)?,
            },
        },
        ..AttentionMask::causal()
    })
}

/// Queries at another position in each row of the batch.
fn cached_attention() -> Case {
    let rule = "q[b t h d!], k[b s! g d!], v[b s! g d!], q_offset[b], k_len[b] \
                -> out[b t h d], lse[b h t]";
    let rule = ShardingRule::new("attention", rule).unwrap();
    let list = |values: [i64; 2]| Tensor::from_slice(&CPU, &[2], &values).unwrap();
    let operands = vec![
        numbers(&[2, 3, 4, 2], 1),
        numbers(&[2, 6, 2, 2], 2),
        numbers(&[2, 6, 2, 2], 3),
        list([3, 1]),
        list([6, 4]),
    ];
    let rule = rule.grouped("h", "g").unwrap();
    given("attention", rule, operands, |local| {
        let o = &local.operands;
        let first = match o[0].sharding() {
            Some(_) => 0,
            None => local.starts[0][1] as i64,
        };
        let q_offset = match first {
            0 => o[3].clone(),
            _ => {
                let offsets = o[3].to_vec::<i64>()?.into_iter().map(|at| at + first);
                Tensor::from_slice(&CPU, o[3].shape(), &offsets.collect::<Vec<_>>())?
            }
        };
        let mask = AttentionMask {
            window: Some(3),
            sequences: AttentionSequences::Cached {
                q_offset,
                k_len: o[4].clone(),
            },
            ..AttentionMask::causal()
        };
        let (out, lse) = ops::attention(&o[0], &o[1], &o[2], &mask, 0.5)?;
        Ok(vec![out, lse])
    })
}

fn losses() -> Vec<Case> {
    const CLASSES: usize = 7;
    let (x, w, labels) = (
        numbers(&[5, 3], 1),
        numbers(&[CLASSES, 3], 2),
        indices(&[5], CLASSES),
    );
    fn targets(local: &Local) -> Targets<'_> {
        Targets {
            labels: &local.operands[2],
            ignore_index: -100,
            vocab_start: local.starts[1][0],
            vocab_total: CLASSES,
        }
    }
    let statistics = Local::whole(&[x.clone(), w.clone(), labels.clone()]);
    let (max, sum, label_logit) = ops::linear_cross_entropy(&x, &w, targets(&statistics)).unwrap();
    let lse = ops::add(&max, &ops::ln(&sum).unwrap()).unwrap();
    let mut operands = vec![x, w.clone(), labels.clone()];
    let forward = operands.clone();
    operands.extend([lse.clone(), positive(&[5], 3)]);
    let grad_input = operands.clone();
    operands.push(numbers(&[CLASSES, 3], 4));

    vec![
        local("linear_cross_entropy", forward, |local| {
            let (x, w) = (&local.operands[0], &local.operands[1]);
            let (max, sum, label) = ops::linear_cross_entropy(x, w, targets(local))?;
            Ok(vec![max, sum, label])
        }),
        local("linear_cross_entropy_grad_input", grad_input, |local| {
            let (o, targets) = (&local.operands, targets(local));
            let dx = ops::linear_cross_entropy_grad_input(&o[0], &o[1], targets, &o[3], &o[4])?;
            Ok(vec![dx])
        }),
        local(
            "linear_cross_entropy_grad_weight_into",
            operands.clone(),
            |local| {
                let (o, to) = (&local.operands, targets(local));
                added(&o[5], |dw| {
                    ops::linear_cross_entropy_grad_weight_into(&o[0], &o[1], to, &o[3], &o[4], dw)
                })
            },
        ),
        local("linear_cross_entropy_grad_both_into", operands, |local| {
            let (o, to) = (&local.operands, targets(local));
            let mut results = Vec::new();
            let dw = added(&o[5], |dw| {
                let dx =
                    ops::linear_cross_entropy_grad_both_into(&o[0], &o[1], to, &o[3], &o[4], dw)?;
                results.push(dx);
                Ok(())
            })?;
            results.extend(dw);
            Ok(results)
        }),
        case("cross_entropy_sum", vec![lse, label_logit, labels], |o| {
            let (loss, count) = ops::cross_entropy_sum(&o[0], &o[1], &o[2], -100)?;
            Ok(vec![loss, count])
        }),
    ]
}

/// Five tokens, each routed to two of three experts.
fn experts() -> Vec<Case> {
    let probabilities = ops::softmax(&numbers(&[5, 3], 1)).unwrap();
    let (weights, chosen) = ops::router_top_k(&probabilities, 2, true, None).unwrap();
    let order = ops::expert_order(&chosen, 3, 0, 3).unwrap();
    let (offsets, row_of_slot, order) = (order.offsets, order.row_of_slot, order.order);
    let (tokens, rows) = (numbers(&[5, 4], 2), numbers(&[10, 4], 3));
    let (w, dy) = (numbers(&[3, 6, 4], 4), numbers(&[10, 6], 5));
    let of_rows = vec![dy.clone(), rows.clone(), offsets.clone(), w.clone()];
    let of_choice = vec![probabilities.clone(), chosen, numbers(&[5, 2], 6)];
    vec![
        case("router_top_k", vec![probabilities], |o| {
            let (weights, chosen) = ops::router_top_k(&o[0], 2, true, None)?;
            Ok(vec![weights, chosen])
        }),
        case("router_top_k_grad", of_choice, |o| {
            Ok(vec![ops::router_top_k_grad(&o[0], &o[1], &o[2], true)?])
        }),
        case(
            "permute_tokens",
            vec![tokens.clone(), order.clone(), offsets.clone()],
            |o| Ok(vec![ops::permute_tokens(&o[0], &o[1], &o[2])?]),
        ),
        case(
            "permute_tokens_grad",
            vec![rows.clone(), row_of_slot.clone()],
            |o| Ok(vec![ops::permute_tokens_grad(&o[0], &o[1])?]),
        ),
        case(
            "unpermute_tokens",
            vec![rows.clone(), weights.clone(), row_of_slot.clone()],
            |o| Ok(vec![ops::unpermute_tokens(&o[0], &o[1], &o[2])?]),
        ),
        case(
            "unpermute_tokens_grad_input",
            vec![tokens.clone(), weights, order, offsets.clone()],
            |o| {
                let dy = ops::unpermute_tokens_grad_input(&o[0], &o[1], &o[2], &o[3])?;
                Ok(vec![dy])
            },
        ),
        case(
            "unpermute_tokens_grad_weights",
            vec![tokens, rows.clone(), row_of_slot],
            |o| {
                Ok(vec![ops::unpermute_tokens_grad_weights(
                    &o[0], &o[1], &o[2],
                )?])
            },
        ),
        case(
            "grouped_matmul_nt",
            vec![rows, w.clone(), offsets.clone()],
            |o| Ok(vec![ops::grouped_matmul_nt(&o[0], &o[1], &o[2])?]),
        ),
        case("grouped_matmul_grad_input", vec![dy, w, offsets], |o| {
            Ok(vec![ops::grouped_matmul_grad_input(&o[0], &o[1], &o[2])?])
        }),
        case("grouped_matmul_grad_weight_into", of_rows, |o| {
            added(&o[3], |dw| {
                ops::grouped_matmul_grad_weight_into(&o[0], &o[1], &o[2], dw)
            })
        }),
    ]
}

fn steps() -> Vec<Case> {
    let mut operands: Vec<Tensor> = (0..3).map(|at| numbers(&[5], at)).collect();
    operands.push(positive(&[5], 3));
    operands.extend([0.5f32, 2.0, 0.25].map(|x| Tensor::scalar(&CPU, x).unwrap()));
    vec![case("adamw_step", operands, |o| {
        let (param, exp_avg, exp_avg_sq) = (changing(&o[0])?, changing(&o[2])?, changing(&o[3])?);
        let scalars = ops::StepScalars {
            learning_rate: &o[4],
            step: &o[5],
            scale: &o[6],
        };
        let constants = ops::AdamW {
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.1,
        };
        ops::adamw_step(&param, &o[1], &exp_avg, &exp_avg_sq, scalars, constants)?;
        Ok(vec![param, exp_avg, exp_avg_sq])
    })]
}

fn with_dims() -> Vec<Case> {
    let x = numbers(&[4, 3, 6], 1);
    let reduction = |name, by, f: fn(&Tensor, &[isize]) -> Result<Tensor>| {
        let rule = ShardingRule::reduction(name, 3, &[0, 2], by).unwrap();
        given(name, rule, vec![x.clone()], move |local| {
            Ok(vec![f(&local.operands[0], &[0, 2])?])
        })
    };
    let argmax = ShardingRule::reduction("argmax", 3, &[1], None).unwrap();
    let concat = ShardingRule::concat("concat", 2, 3, 1).unwrap();
    let merge = ShardingRule::reshape("reshape", &[4, 3, 6], &[72]).unwrap();
    let select = ShardingRule::index_select("index_select", 3, 1).unwrap();
    let select_grad = ShardingRule::index_select_grad("index_select_grad", 3, 1).unwrap();
    let permute = ShardingRule::permute("permute", &[2, 0, 1]).unwrap();
    let reshape = ShardingRule::reshape("reshape", &[4, 3, 6], &[12, 2, 3]).unwrap();
    vec![
        reduction("sum", Some(Reduction::Sum), ops::sum),
        reduction("mean", Some(Reduction::Avg), ops::mean),
        reduction("max", Some(Reduction::Max), ops::max),
        reduction("min", None, ops::min),
        given("argmax", argmax, vec![x.clone()], |local| {
            Ok(vec![ops::argmax(&local.operands[0], 1)?])
        }),
        given(
            "concat",
            concat,
            vec![x.clone(), numbers(&[4, 2, 6], 2)],
            |local| {
                let operands: Vec<&Tensor> = local.operands.iter().collect();
                Ok(vec![ops::concat(&operands, 1)?])
            },
        ),
        given_ranged(
            "index_select",
            select,
            vec![x.clone(), indices(&[5], 3)],
            |local| {
                Ok(vec![ops::index_select(
                    &local.operands[0],
                    1,
                    &local.operands[1],
                )?])
            },
        ),
        given(
            "index_select_grad",
            select_grad,
            vec![x.clone(), indices(&[3], 5)],
            |local| {
                let (dy, ids) = (&local.operands[0], &local.operands[1]);
                Ok(vec![ops::index_select_grad(dy, 1, ids, 5)?])
            },
        ),
        given("permute", permute, vec![x.clone()], |local| {
            Ok(vec![local.operands[0].permute(&[2, 0, 1])?])
        }),
        given("reshape", reshape, vec![x.clone()], |local| {
            let x = &local.operands[0];
            if x.sharding().is_some() {
                return Ok(vec![ops::reshape(x, &[12, 2, 3])?]);
            }
            let (rows, columns) = (x.shape()[0] * x.shape()[1], x.shape()[2] / 3);
            Ok(vec![ops::reshape(x, &[rows, columns, 3])?])
        }),
        given("reshape", merge, vec![x.clone()], |local| {
            let x = &local.operands[0];
            let elements = x.global_shape().elements();
            Ok(vec![ops::reshape(x, &[elements])?])
        }),
    ]
}

/// Views, and the remaining ops that take a dim.
fn views() -> Vec<Case> {
    let x = numbers(&[4, 3, 6], 1);
    let one = numbers(&[4, 1, 6], 2);
    let of_x = |name, rule: ShardingRule, run: fn(&Tensor) -> Result<Tensor>| {
        given(name, rule, vec![x.clone()], move |local| {
            Ok(vec![run(&local.operands[0])?])
        })
    };
    let slice = ShardingRule::slice("slice", 3, 1, 2).unwrap();
    let slice_grad = ShardingRule::slice("slice_grad", 3, 1, 7).unwrap();
    let transpose = ShardingRule::permute("transpose", &[2, 1, 0]).unwrap();
    let unsqueeze = ShardingRule::unsqueeze("unsqueeze", 3, 1).unwrap();
    let argmin = ShardingRule::reduction("argmin", 3, &[2], None).unwrap();
    let broadcast = ShardingRule::broadcast("broadcast_to", &[4, 1, 6], &[2, 4, 5, 6]).unwrap();
    let index = indices(&[4, 2, 6], 3);
    let gather = ShardingRule::gather("gather", &[4, 3, 6], &[4, 2, 6], 1).unwrap();
    let source = numbers(&[4, 2, 6], 5);
    let scatter = ShardingRule::scatter_add("scatter_add", &[4, 3, 6], &[4, 2, 6], 1).unwrap();
    vec![
        of_x("slice", slice, |x| x.slice(1, 1..3)),
        of_x("slice_grad", slice_grad, |dy| {
            ops::slice_grad(dy, &dy.global_shape().with(1, 7), 1, 2..5)
        }),
        of_x("transpose", transpose, |x| x.transpose(0, 2)),
        of_x("unsqueeze", unsqueeze, |x| x.unsqueeze(1)),
        of_x("argmin", argmin, |x| ops::argmin(x, 2)),
        given("broadcast_to", broadcast, vec![one], |local| {
            let x = &local.operands[0];
            let [rows, columns] = [x.global_shape()[0], x.global_shape()[2]];
            Ok(vec![x.broadcast_to(&[2, rows, 5, columns])?])
        }),
        given_ranged("gather", gather, vec![x.clone(), index.clone()], |local| {
            Ok(vec![ops::gather(
                &local.operands[0],
                1,
                &local.operands[1],
            )?])
        }),
        given("scatter_add", scatter, vec![source, index], |local| {
            let (source, index) = (&local.operands[0], &local.operands[1]);
            let shape = source.global_shape().with(1, 3);
            Ok(vec![ops::scatter_add(&shape, 1, index, source)?])
        }),
    ]
}
