//! Checked settings.

use std::collections::BTreeMap;

use meshgrad_error::{Error, error};
use meshgrad_mesh::{GroupOptions, Hosts, Mesh, Size};

use super::check::{self, Degrees};
use super::declare::Domain;
use super::degree::{Parallelism, size_text};
use super::domains::{self, BuiltDomain};
use super::members::{self, Groups, Membership};
use super::order::{Order, Token};
use super::rank_generator::RankGenerator;
use super::settings::Settings;
use super::source::Sourced;
use super::text::nearest;
use super::violation::Violations;

/// A valid parallel configuration: degrees that multiply to the world, domains and groups.
///
/// A plain value: it has no current rank and creates no communicators. The cost of checking depends
/// on the number of axes, not of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParallelConfig {
    degrees: BTreeMap<Parallelism, Sourced<usize>>,
    world: usize,
    order: Order,
    hosts: Option<Hosts>,
    domains: Vec<(String, Mesh)>,
    pub(super) groups: Groups,
    pub(super) options: BTreeMap<String, GroupOptions>,
    dense: RankGenerator,
    expert: RankGenerator,
}

impl ParallelConfig {
    /// Checks settings.
    ///
    /// # Errors
    /// All violations, each with the sources of its values. Checks that depend on an invalid value
    /// are skipped.
    pub fn new(settings: &Settings) -> Result<ParallelConfig, Violations> {
        let mut violations = settings.violations.clone();
        let order = check::order(settings, &mut violations);
        let degrees = check::degrees(settings, &mut violations);
        let per_host = check::count("ranks_per_host", &settings.ranks_per_host, &mut violations);

        let (Some(degrees), Some(order)) = (degrees, order) else {
            check_names(settings, &mut violations);
            return Err(Violations(violations));
        };
        check::order_names_all(&order, &degrees, &mut violations);
        let (domains, groups) = named(settings, &degrees, &order, &mut violations);
        let options = options(settings, &groups, &mut violations);
        if !violations.is_empty() {
            return Err(Violations(violations));
        }

        Ok(ParallelConfig {
            dense: generator(&order.value, |token| degrees.of_token(token)),
            expert: generator(&order.value, |token| degrees.of_expert_token(token)),
            world: degrees.world.value,
            degrees: Parallelism::ALL.map(|kind| (kind, degrees.given(kind).clone())).into(),
            order: order.value,
            hosts: per_host.map(|per_host| Hosts::Uniform(per_host.value)),
            domains: domains.into_iter().map(|domain| (domain.name, domain.mesh)).collect(),
            groups,
            options,
        })
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// A degree.
    pub fn degree(&self, kind: Parallelism) -> usize {
        self.degrees[&kind].value
    }

    /// A degree and its source.
    pub fn degree_with_source(&self, kind: Parallelism) -> &Sourced<usize> {
        &self.degrees[&kind]
    }

    /// The order of the kinds of parallelism.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// The hosts of the ranks, if set.
    pub fn hosts(&self) -> Option<&Hosts> {
        self.hosts.as_ref()
    }

    /// The domains by name, built-in ones first, over ranks 0, 1, ...
    pub fn domains(&self) -> &[(String, Mesh)] {
        &self.domains
    }

    /// The names of all groups.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// Megatron-LM's rank generator for parameters outside experts. Its tokens are tp, cp, sp, dp
    /// and pp.
    pub fn dense_generator(&self) -> &RankGenerator {
        &self.dense
    }

    /// Megatron-LM's rank generator for experts. `tp` is etp, and `dp` the number of expert
    /// replicas.
    pub fn expert_generator(&self) -> &RankGenerator {
        &self.expert
    }
}

fn generator(order: &Order, size: impl Fn(Token) -> usize) -> RankGenerator {
    let sizes = Token::ALL.map(|token| (token, size(token))).into();
    RankGenerator::new(order, &sizes).expect("degrees that multiply to the world")
}

/// The domains, and the groups of their axes, views and subgroups.
fn named(
    settings: &Settings,
    degrees: &Degrees,
    order: &Sourced<Order>,
    violations: &mut Vec<Error>,
) -> (Vec<BuiltDomain>, Groups) {
    let declared = once("domain", &settings.domains, |domain| &domain.name, axes_text, violations);
    let domains = domains::build(degrees, order, &declared, violations);
    let mut groups = members::built_in(&domains, degrees, violations);
    if !settings.ranks_per_host.is_empty() {
        groups.insert(members::SAME_HOST.to_owned(), Membership::SameHost);
        groups.insert(members::ACROSS_HOSTS.to_owned(), Membership::AcrossHosts);
    }

    let axes = |view: &super::View| format!("{} of {}", view.axes.join(" x "), view.domain);
    let views = once("view", &settings.views, |view| &view.name, axes, violations);
    let members = |subgroup: &super::Subgroup| format!("{:?} of {}", subgroup.members, subgroup.of);
    let subgroups =
        once("subgroup", &settings.subgroups, |subgroup| &subgroup.name, members, violations);
    members::declare(&mut groups, &domains, &views, &subgroups, violations);
    (domains, groups)
}

fn axes_text(domain: &Domain) -> String {
    let axes = domain.axes.iter();
    let axes: Vec<String> =
        axes.map(|(name, size)| format!("{name} {}", size_text(*size))).collect();
    axes.join(" x ")
}

/// One declaration per name. Equal declarations from two sources count once.
fn once<T: Clone + PartialEq>(
    kind: &str,
    all: &[Sourced<T>],
    name: impl Fn(&T) -> &String,
    text: impl Fn(&T) -> String,
    violations: &mut Vec<Error>,
) -> Vec<Sourced<T>> {
    let mut names: Vec<&String> = Vec::new();
    for given in all {
        if !names.contains(&name(&given.value)) {
            names.push(name(&given.value));
        }
    }
    let of_name = |declared_name: &String| {
        let same = all.iter().filter(|given| name(&given.value) == declared_name);
        let same: Vec<Sourced<T>> = same.cloned().collect();
        check::one(&format!("{kind} `{declared_name}`"), &same, &text, violations)
    };
    names.into_iter().filter_map(of_name).collect()
}

/// Checks names when degrees or the order are invalid. All sizes are replaced by 1.
fn check_names(settings: &Settings, violations: &mut Vec<Error>) {
    let mut settings = settings.clone();
    for domain in &mut settings.domains {
        for (_, size) in &mut domain.value.axes {
            *size = Size::Ranks(1);
        }
    }
    let order = Sourced::new(Order::default(), super::Source::default_of("meshgrad"));
    let (_, groups) = named(&settings, &Degrees::unit(), &order, violations);
    options(&settings, &groups, violations);
}

fn options(
    settings: &Settings,
    groups: &Groups,
    violations: &mut Vec<Error>,
) -> BTreeMap<String, GroupOptions> {
    let mut options = BTreeMap::new();
    for (group, all) in &settings.options {
        if !groups.contains_key(group) {
            let names: Vec<&str> = groups.keys().map(String::as_str).collect();
            violations.extend(all.first().map(|given| {
                let (location, hint) = (&given.source, nearest(group, &names));
                error!(Invalid, "options ({location}) are for an unknown group `{group}`{hint}")
            }));
        }
        let name = format!("options of group `{group}`");
        let Some(given) = check::one(&name, all, options_text, violations) else {
            continue;
        };
        if let Err(error) = given.value.check() {
            violations.push(error.context(format!("{name} ({})", given.source)));
        }
        options.insert(group.clone(), given.value);
    }
    options
}

/// The options that differ from the default.
fn options_text(options: &GroupOptions) -> String {
    let stated = options.non_default().into_iter();
    let fields: Vec<String> = stated.map(|(field, value)| format!("{field} {value}")).collect();
    match fields.is_empty() {
        true => "defaults".to_owned(),
        false => fields.join(", "),
    }
}
