//! Domains: meshes of all ranks with different axes, for tensors that are sharded differently.
//!
//! | domain | axes, slowest first in the default order | for |
//! |---|---|---|
//! | `regular` | pp, dp_replicate, dp_shard, cp_shard, cp_replicate, sp, tp | one axis per degree |
//! | `dense` | pp, dp_replicate, dp_cp_shard, cp_replicate, sp, tp | parameters outside experts |
//! | `expert` | pp, ep_replicate, ep_shard, etp | parameters of experts |
//! | `batch` | pp, dp, cp, sp, tp | samples, which differ between dp ranks |
//! | `flat` | world | all ranks |
//!
//! Names and axes are those of d9d, plus `sp` and `etp`. Every domain has all ranks: experts
//! regroup the dp, cp, sp *and tp* ranks of a stage, so the expert domain is complete for tp > 1.
//! An axis in several domains has the same groups in each.

use meshgrad_error::{Error, Result, error};
use meshgrad_mesh::{Mesh, RankLayout, Relation, Size};

use super::check::Degrees;
use super::declare::Domain;
use super::degree::Parallelism;
use super::order::{Order, Token};
use super::source::{Source, Sourced};
use super::text;

pub(super) const REGULAR: &str = "regular";
pub(super) const DENSE: &str = "dense";
pub(super) const EXPERT: &str = "expert";
pub(super) const BATCH: &str = "batch";
pub(super) const FLAT: &str = "flat";

/// A domain and its source.
pub(super) struct BuiltDomain {
    pub(super) name: String,
    pub(super) location: Source,
    pub(super) mesh: Mesh,
}

/// All valid domains.
pub(super) fn build(
    degrees: &Degrees,
    order: &Sourced<Order>,
    declared: &[Sourced<Domain>],
    violations: &mut Vec<Error>,
) -> Vec<BuiltDomain> {
    let mut domains: Vec<BuiltDomain> = match built_in(degrees, &order.value) {
        Ok(meshes) => meshes
            .into_iter()
            .map(|(name, mesh)| BuiltDomain {
                name: name.to_owned(),
                location: order.source.clone(),
                mesh,
            })
            .collect(),
        Err(error) => {
            violations.push(error.context("the degrees"));
            return Vec::new();
        }
    };
    for Sourced { value, source } in declared {
        if value.name.is_empty() {
            violations.push(error!(Invalid, "a domain ({source}): its name is empty"));
            continue;
        }
        if domains.iter().any(|domain| domain.name == value.name) {
            violations.push(error!(
                Invalid,
                "`{}` ({source}) is the name of a built-in domain: rename it", value.name
            ));
            continue;
        }
        match of_axes(degrees.world.value, &value.axes) {
            Ok(mesh) => domains.push(BuiltDomain {
                name: value.name.clone(),
                location: source.clone(),
                mesh,
            }),
            Err(error) => {
                let domain = format!("domain `{}` ({source})", value.name);
                violations.push(error.context(domain));
            }
        }
    }
    violations.extend(differently_shared(&domains));
    domains
}

fn built_in(degrees: &Degrees, order: &Order) -> Result<[(&'static str, Mesh); 5]> {
    let world = degrees.world.value;
    let regular: Vec<(String, Size)> = order
        .slowest_first()
        .flat_map(regular_axes)
        .map(|kind| (kind.name().to_owned(), Size::Ranks(degrees.get(*kind))))
        .collect();
    let regular = of_axes(world, &regular)?;

    let expert: Vec<(String, Size)> = order
        .slowest_first()
        .filter_map(|token| Some((token, expert_axis(token)?)))
        .map(|(token, axis)| (axis.to_owned(), Size::Ranks(degrees.of_expert_token(token))))
        .collect();
    let expert = of_axes(world, &expert)?;

    let dense = flattened(&regular, ["dp_shard", "cp_shard"], "dp_cp_shard")?;
    let batch = flattened(&regular, ["dp_replicate", "dp_shard"], "dp")?;
    let batch = flattened(&batch, ["cp_shard", "cp_replicate"], "cp")?;
    let flat = of_axes(world, &[("world".to_owned(), Size::Auto)])?;
    Ok([(REGULAR, regular), (DENSE, dense), (EXPERT, expert), (BATCH, batch), (FLAT, flat)])
}

/// A mesh of ranks 0, 1, ... with these axes, slowest first.
fn of_axes(world: usize, axes: &[(String, Size)]) -> Result<Mesh> {
    let axes: Vec<(&str, Size)> = axes.iter().map(|(name, size)| (&**name, *size)).collect();
    Mesh::new(&[world], &["world"])?.split("world", &axes)
}

/// Flattens two axes, in mesh order.
fn flattened(mesh: &Mesh, axes: [&str; 2], name: &str) -> Result<Mesh> {
    let names = mesh.axes().iter().map(|axis| axis.name());
    let in_order: Vec<&str> = names.filter(|name| axes.contains(name)).collect();
    mesh.flatten(in_order, name)
}

fn regular_axes(token: Token) -> &'static [Parallelism] {
    match token {
        Token::Pp => &[Parallelism::Pp],
        Token::Dp => &[Parallelism::DpReplicate, Parallelism::DpShard],
        Token::Cp => &[Parallelism::CpShard, Parallelism::CpReplicate],
        Token::Sp => &[Parallelism::Sp],
        Token::Tp => &[Parallelism::Tp],
        Token::Ep => &[],
    }
}

fn expert_axis(token: Token) -> Option<&'static str> {
    match token {
        Token::Pp => Some("pp"),
        Token::Dp => Some("ep_replicate"),
        Token::Ep => Some("ep_shard"),
        Token::Tp => Some("etp"),
        Token::Cp | Token::Sp => None,
    }
}

/// Violations of the rule that an axis has the same groups in all domains. Megatron's rule that an
/// order must end with pp is a special case.
fn differently_shared(domains: &[BuiltDomain]) -> Vec<Error> {
    let mut violations = Vec::new();
    for (at, second) in domains.iter().enumerate() {
        for axis in second.mesh.axes() {
            let first = domains[..at].iter().find_map(|domain| {
                let shared = domain.mesh.axis(axis.name()).ok()?;
                Some((domain, shared.layout()))
            });
            let Some((first, layout)) = first else {
                continue;
            };
            if layout.relation(axis.layout()) != Relation::Same {
                let ranks = |of: &RankLayout| text::ranks(&of.ranks().collect::<Vec<_>>());
                violations.push(error!(
                    Invalid,
                    "axis `{}` of rank 0 has ranks {} in domain {} ({}) but {} in domain {} ({}); \
                     they must be equal: {}",
                    axis.name(),
                    ranks(layout),
                    first.name,
                    first.location,
                    ranks(axis.layout()),
                    second.name,
                    second.location,
                    match &*second.name {
                        EXPERT => "use an order that ends with pp",
                        _ => "move the axis in one domain, or rename it",
                    }
                ));
            }
        }
    }
    violations
}
