//! Groups by name: axes of all domains, views and subgroups.
//!
//! | group | members |
//! |---|---|
//! | `pp`, `dp_replicate`, `tp`, `ep_shard`, `dp`, `cp`, `world`, ... | an axis of a domain |
//! | `fsdp` | dp_shard x cp_shard: ranks that share one copy of the parameters |
//! | `loss` | all dp, cp and sp: ranks with different tokens |
//! | `dp_cp`, `tp_dp`, `tp_cp`, `tp_dp_cp`, `mp`, `sp_dp` | the named axes; mp is pp x tp |
//! | `ep`, `ep_tp`, `tp_ep_mp`, `tp_ep_pp`, `ep_dp` | axes for experts: ep_shard, etp, ... |
//! | `intra_dp_cp`, `intra_ep_dp`, `intra_dist_opt_instance` | ranks of one dp_replicate instance |
//! | `inter_ep_dp` | ranks at one position of all dp_replicate instances |
//! | `embd`, `pos_embd` | first and last stage; first stage |
//! | `all_to_all_local`, `all_to_all_global` | the ranks of a host; one rank per host (ZeRO++) |
//!
//! Megatron-LM uses the short names to look up the options of a group.

use std::collections::BTreeMap;

use meshgrad_error::{Error, error};
use meshgrad_mesh::{Axis, RankLayout};

use super::check::Degrees;
use super::declare::{Member, Subgroup, View};
use super::degree::Parallelism;
use super::domains::{BuiltDomain, EXPERT, REGULAR};
use super::source::Sourced;
use super::text::nearest;

/// The ranks that form the groups of one name. Layouts hold indices into the state's list of ranks,
/// not the ranks themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Membership {
    /// All groups of a layout; every rank is in one.
    Along(RankLayout),
    /// The members at these distinct indices of each group of a layout, in order.
    Subgroup { of: RankLayout, indices: Vec<usize> },
    /// The ranks of a host.
    SameHost,
    /// The ranks with the same index on each host.
    AcrossHosts,
}

/// Groups by name.
pub(super) type Groups = BTreeMap<String, Membership>;

/// The built-in views: name, domain, axes.
const VIEWS: [(&str, &str, &[&str]); 14] = [
    ("fsdp", REGULAR, &["dp_shard", "cp_shard"]),
    ("loss", REGULAR, &["dp_replicate", "dp_shard", "cp_shard", "cp_replicate", "sp"]),
    ("dp_cp", REGULAR, &["dp_replicate", "dp_shard", "cp_shard", "cp_replicate"]),
    ("intra_dp_cp", REGULAR, &["dp_shard", "cp_shard", "cp_replicate"]),
    ("tp_dp_cp", REGULAR, &["dp_replicate", "dp_shard", "cp_shard", "cp_replicate", "tp"]),
    ("tp_dp", REGULAR, &["dp_replicate", "dp_shard", "tp"]),
    ("tp_cp", REGULAR, &["cp_shard", "cp_replicate", "tp"]),
    ("mp", REGULAR, &["pp", "tp"]),
    ("sp_dp", REGULAR, &["dp_replicate", "dp_shard", "sp"]),
    ("ep", EXPERT, &["ep_shard"]),
    ("ep_tp", EXPERT, &["etp"]),
    ("tp_ep_mp", EXPERT, &["ep_shard", "etp"]),
    ("tp_ep_pp", EXPERT, &["pp", "ep_shard", "etp"]),
    ("ep_dp", EXPERT, &["ep_replicate"]),
];

/// The ranks of a host; requires ranks_per_host.
pub(super) const SAME_HOST: &str = "all_to_all_local";
/// The ranks with the same index on each host; requires ranks_per_host.
pub(super) const ACROSS_HOSTS: &str = "all_to_all_global";

/// The groups of the axes of all domains, and the built-in groups.
pub(super) fn built_in(
    domains: &[BuiltDomain],
    degrees: &Degrees,
    violations: &mut Vec<Error>,
) -> Groups {
    let mut groups = Groups::new();
    for axis in domains.iter().flat_map(|domain| domain.mesh.axes()) {
        let layout = axis.layout().clone();
        groups.insert(axis.name().to_owned(), Membership::Along(layout));
    }
    for (name, members) in views_and_subgroups(domains, degrees) {
        let declared = domains.iter().find(|domain| domain.mesh.axis(&name).is_ok());
        match declared {
            Some(domain) => violations.push(error!(
                Invalid,
                "domain `{}` ({}): axis `{name}` has the name of a built-in group",
                domain.name,
                domain.location
            )),
            None => drop(groups.insert(name, members)),
        }
    }
    groups
}

fn views_and_subgroups(domains: &[BuiltDomain], degrees: &Degrees) -> Groups {
    let view = |(name, domain, axes): &(&str, &str, &[&str])| {
        let domain = domains.iter().find(|built| built.name == *domain);
        let all = domain.map_or(&[][..], |built| built.mesh.axes());
        let chosen = all.iter().filter(|axis| axes.contains(&axis.name()));
        ((*name).to_owned(), Membership::Along(concat(chosen)))
    };
    let mut groups: Groups = VIEWS.iter().map(view).collect();
    let instances = degrees.get(Parallelism::DpReplicate);
    groups.extend(of_instances(&groups, instances).unwrap_or_default());

    let regular = domains.iter().find(|built| built.name == REGULAR);
    let stages = regular.and_then(|built| built.mesh.axis("pp").ok());
    let stages = stages.map(|axis| axis.layout().clone()).unwrap_or_default();
    let ends = [Member::First, Member::Last];
    for (name, members) in [("embd", &ends[..]), ("pos_embd", &ends[..1])] {
        let of = stages.clone();
        let indices = indices(members, of.len()).expect("first and last exist");
        groups.insert(name.to_owned(), Membership::Subgroup { of, indices });
    }
    groups
}

fn along<'a>(groups: &'a Groups, name: &str) -> &'a RankLayout {
    match &groups[name] {
        Membership::Along(layout) => layout,
        members => panic!("`{name}` is an axis or a view, not {members:?}"),
    }
}

/// Flattens axes of one domain, the last one fastest.
fn concat<'a>(axes: impl Iterator<Item = &'a Axis>) -> RankLayout {
    RankLayout::concat(axes.map(Axis::layout)).expect("axes of one domain")
}

/// The groups of experts within and across dp_replicate instances; `None` if the replicas of
/// experts cannot be split into instances.
fn of_instances(groups: &Groups, instances: usize) -> Option<Groups> {
    let replicas = along(groups, "ep_dp");
    let within = replicas.len() / instances;
    let parts = replicas.split(&[instances, within]).ok()?;
    let [across, within] = <[RankLayout; 2]>::try_from(parts).ok()?;
    let instance = RankLayout::concat([&within, along(groups, "tp_ep_pp")]).ok()?;
    Some(Groups::from([
        ("inter_ep_dp".to_owned(), Membership::Along(across)),
        ("intra_ep_dp".to_owned(), Membership::Along(within)),
        ("intra_dist_opt_instance".to_owned(), Membership::Along(instance)),
    ]))
}

/// Adds user-defined views and subgroups.
pub(super) fn declare(
    groups: &mut Groups,
    domains: &[BuiltDomain],
    views: &[Sourced<View>],
    subgroups: &[Sourced<Subgroup>],
    violations: &mut Vec<Error>,
) {
    for Sourced { value, source } in views {
        let found = view(domains, value)
            .and_then(|layout| insert(groups, &value.name, Membership::Along(layout)));
        if let Err(problem) = found {
            violations.push(error!(Invalid, "view `{}` ({source}): {problem}", value.name));
        }
    }
    for Sourced { value, source } in subgroups {
        let found =
            subgroup(groups, value).and_then(|members| insert(groups, &value.name, members));
        if let Err(problem) = found {
            violations.push(error!(Invalid, "subgroup `{}` ({source}): {problem}", value.name));
        }
    }
}

fn insert(groups: &mut Groups, name: &str, members: Membership) -> Result<(), String> {
    if name.is_empty() {
        return Err("its name is empty".to_owned());
    }
    if groups.contains_key(name) {
        return Err("a group with this name exists: rename it".to_owned());
    }
    groups.insert(name.to_owned(), members);
    Ok(())
}

fn view(domains: &[BuiltDomain], view: &View) -> Result<RankLayout, String> {
    let domain = domains.iter().find(|domain| domain.name == view.domain);
    let domain = domain.ok_or_else(|| {
        let names: Vec<&str> = domains.iter().map(|domain| &*domain.name).collect();
        format!("unknown domain `{}`{}", view.domain, nearest(&view.domain, &names))
    })?;

    let names: Vec<&str> = domain.mesh.axes().iter().map(Axis::name).collect();
    let mut chosen = Vec::new();
    for (at, name) in view.axes.iter().enumerate() {
        let axis = domain.mesh.axis(name).map_err(|_| {
            let nearest = nearest(name, &names);
            format!("domain `{}` has no axis `{name}`{nearest}", view.domain)
        })?;
        if view.axes[..at].contains(name) {
            return Err(format!("axis `{name}` is listed twice"));
        }
        chosen.push(axis);
    }
    Ok(concat(chosen.into_iter()))
}

fn subgroup(groups: &Groups, subgroup: &Subgroup) -> Result<Membership, String> {
    let Some(members) = groups.get(&subgroup.of) else {
        let names: Vec<&str> = groups.keys().map(String::as_str).collect();
        return Err(format!("unknown group `{}`{}", subgroup.of, nearest(&subgroup.of, &names)));
    };
    let Membership::Along(layout) = members else {
        return Err(format!("`{}` is not an axis or view", subgroup.of));
    };
    let indices = indices(&subgroup.members, layout.len()).map_err(|index| {
        let len = layout.len();
        format!("index {index} is out of range for `{}` of {len} ranks", subgroup.of)
    })?;
    if indices.is_empty() {
        return Err("it has no members: list at least one".to_owned());
    }
    Ok(Membership::Subgroup { of: layout.clone(), indices })
}

/// The distinct indices of these members in a group of `len`.
fn indices(members: &[Member], len: usize) -> Result<Vec<usize>, usize> {
    let mut indices = Vec::new();
    for member in members {
        let index = match member {
            Member::First => 0,
            Member::Last => len - 1,
            Member::At(index) => *index,
        };
        if index >= len {
            return Err(index);
        }
        if !indices.contains(&index) {
            indices.push(index);
        }
    }
    Ok(indices)
}
