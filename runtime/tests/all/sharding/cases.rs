//! The cases of the table of ops, with their sharding rules.

use meshgrad_mesh::{Reduction, ShardingRule};
use meshgrad_runtime::op_cases::{OpCase, small};
use meshgrad_runtime::ops;

use crate::sharding::call::Host;

/// A case of an op, and the op's sharding rule.
pub(crate) struct Case {
    pub(crate) of: OpCase,
    pub(crate) rule: ShardingRule,
    /// Whether the op needs to know the shardings: it takes its rank's range from them.
    pub(crate) needs_shardings: bool,
}

/// Cases that are left out. The first two create a tensor, which has no sharding outside of
/// `with_mesh`. The seven operands of the third have 200,000 combinations of placements.
const LEFT_OUT: [&str; 3] = ["dropout_mask", "normal", "attention_lse_grad"];

/// Ops that look up indices in a range of a dim.
const NEED_SHARDINGS: [&str; 4] = ["embedding", "embedding_grad_into", "index_select", "gather"];

pub(crate) fn cases() -> Vec<Case> {
    let with_rule = |of: OpCase| Case {
        rule: rule(&of).unwrap(),
        needs_shardings: NEED_SHARDINGS.contains(&of.op),
        of,
    };
    let cases = small(&Host).unwrap().into_iter();
    let cases = cases.filter(|case| !LEFT_OUT.contains(&case.op));
    cases.map(with_rule).collect()
}

/// The rule of the op's signature, unless it depends on arguments of the op.
fn rule(case: &OpCase) -> meshgrad_mesh::Result<ShardingRule> {
    let (op, shapes) = (case.op, case.operands.iter().map(|x| &x.shape()[..]));
    let shapes: Vec<&[usize]> = shapes.collect();
    let reduced = |dims: &[usize], by| ShardingRule::reduction(op, 3, dims, by);
    match case.name.as_str() {
        "affine, no shift" | "cast" => signature(op).linear_in(&["x"]),
        "attention, cached keys" => {
            let rule = "q[b t h d!], k[b s! g d!], v[b s! g d!], q_offset[b], k_len[b] \
                        -> out[b t h d], lse[b h t]";
            ShardingRule::new(op, rule)?.grouped("h", "g")
        }
        "attention, ranges of keys" => {
            let rule = "q[b t h d!], k[b s! g d!], v[b s! g d!], ranges[b t r!] \
                        -> out[b t h d], lse[b h t]";
            ShardingRule::new(op, rule)?.grouped("h", "g")
        }
        "copy_at_into" => ShardingRule::new(op, "x[b t!], at[n!], into[b s!] -> into[b s!]"),
        "global_norm" => ShardingRule::new(op, "x[n!], y[m!] -> norm[]"),
        "sum" => reduced(&[0, 2], Some(Reduction::Sum)),
        "mean" => reduced(&[0, 2], Some(Reduction::Avg)),
        "max" => reduced(&[0, 2], Some(Reduction::Max)),
        "min" => reduced(&[0, 2], None),
        "argmax" | "argmin" => reduced(&[1], None),
        "concat" => ShardingRule::concat(op, 2, 3, 1),
        "index_select" => ShardingRule::index_select(op, 3, 1),
        "index_select_grad" => ShardingRule::index_select_grad(op, 3, 1),
        "gather" => ShardingRule::gather(op, shapes[0], shapes[1], 1),
        "scatter_add" => ShardingRule::scatter_add(op, &[4, 3, 6], shapes[1], 1),
        "permute" => ShardingRule::permute(op, &[2, 0, 1]),
        "transpose" => ShardingRule::permute(op, &[2, 1, 0]),
        "unsqueeze" => ShardingRule::unsqueeze(op, 3, 1),
        "slice" => ShardingRule::slice(op, 3, 1, 2),
        "slice_grad" => ShardingRule::slice(op, 3, 1, 7),
        "broadcast_to" => ShardingRule::broadcast(op, shapes[0], &[2, 4, 5, 6]),
        "reshape" => ShardingRule::reshape(op, shapes[0], &[12, 2, 3]),
        "reshape, flat" => ShardingRule::reshape(op, shapes[0], &[72]),
        _ => Ok(signature(op)),
    }
}

fn signature(op: &str) -> ShardingRule {
    let signature = ops::signatures().find(|signature| signature.name() == op);
    let signature = signature.unwrap_or_else(|| panic!("`{op}` has no signature and no rule"));
    signature.sharding_rule().clone()
}
