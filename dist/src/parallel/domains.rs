//! Domains: the same ranks under different axes, because different tensors are cut differently.
//!
//! | domain | axes, the slowest first in the default order | of |
//! |---|---|---|
//! | `regular` | pp, dp_replicate, dp_shard, cp_shard, cp_replicate, sp, tp | one axis a degree |
//! | `dense` | pp, dp_replicate, dp_cp_shard, cp_replicate, sp, tp | parameters, not experts' |
//! | `expert` | pp, ep_replicate, ep_shard, etp | experts' parameters |
//! | `batch` | pp, dp, cp, sp, tp | samples: dp ranks see different ones |
//! | `flat` | world | everybody |
//!
//! Names and axes are those of d9d, with `sp` and `etp` added. Every domain is all ranks: experts
//! regroup the dp, cp, sp *and tp* ranks of a stage, so nobody is outside of the expert domain when
//! tp is more than 1. An axis that several domains have is the same ranks in each of them.

use meshgrad_mesh::{Mesh, Relation, Result, Size};

use super::check::Degrees;
use super::declare::Domain;
use super::degree::Parallelism;
use super::order::{Order, Token};
use super::source::{Source, Sourced};
use super::violation::Violation;

pub(super) const REGULAR: &str = "regular";
pub(super) const DENSE: &str = "dense";
pub(super) const EXPERT: &str = "expert";
pub(super) const BATCH: &str = "batch";
pub(super) const FLAT: &str = "flat";

/// A domain and who declared it.
pub(super) struct BuiltDomain {
    pub(super) name: String,
    pub(super) location: Source,
    pub(super) mesh: Mesh,
}

/// All domains that can be built.
pub(super) fn build(
    degrees: &Degrees,
    order: &Sourced<Order>,
    declared: &[Sourced<Domain>],
    violations: &mut Vec<Violation>,
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
            violations.push(Violation::Mesh {
                what: "the degrees".to_owned(),
                error,
            });
            return Vec::new();
        }
    };
    for Sourced { value, source } in declared {
        if value.name.is_empty() {
            violations.push(Violation::InvalidDeclaration {
                what: "a domain".to_owned(),
                location: source.clone(),
                problem: "it has no name".to_owned(),
            });
            continue;
        }
        if domains.iter().any(|domain| domain.name == value.name) {
            violations.push(Violation::NameTaken {
                name: value.name.clone(),
                location: source.clone(),
                by: "a domain of meshgrad".to_owned(),
            });
            continue;
        }
        match of_axes(degrees.world.value, &value.axes) {
            Ok(mesh) => domains.push(BuiltDomain {
                name: value.name.clone(),
                location: source.clone(),
                mesh,
            }),
            Err(error) => violations.push(Violation::Mesh {
                what: format!("domain `{}` ({source})", value.name),
                error,
            }),
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
    Ok([
        (REGULAR, regular),
        (DENSE, dense),
        (EXPERT, expert),
        (BATCH, batch),
        (FLAT, flat),
    ])
}

/// Axes of all ranks from 0, the slowest first.
fn of_axes(world: usize, axes: &[(String, Size)]) -> Result<Mesh> {
    let axes: Vec<(&str, Size)> = axes.iter().map(|(name, size)| (&**name, *size)).collect();
    Mesh::new(&[world], &["world"])?.split("world", &axes)
}

/// Two axes as one, the one that is slower in the mesh first.
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

/// An axis of one name that is not the same ranks in two domains. That "the order must end with pp"
/// is a case of it.
fn differently_shared(domains: &[BuiltDomain]) -> Vec<Violation> {
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
                violations.push(Violation::SharedAxis {
                    axis: axis.name().to_owned(),
                    first: first.name.clone(),
                    first_source: first.location.clone(),
                    first_ranks: layout.ranks().collect(),
                    second: second.name.clone(),
                    second_source: second.location.clone(),
                    second_ranks: axis.layout().ranks().collect(),
                });
            }
        }
    }
    violations
}
