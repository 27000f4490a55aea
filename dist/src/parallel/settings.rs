//! Settings: degrees and other values, each with its source.
//!
//! Settings are not checked when they are set. A value set twice is stored twice;
//! [`ParallelConfig::new`] compares both and reports conflicts together with all other violations.
//!
//! [`ParallelConfig::new`]: crate::parallel::ParallelConfig::new

use std::collections::BTreeMap;

use meshgrad_error::Error;
use meshgrad_mesh::{GroupOptions, Size};

use super::declare::{Domain, Subgroup, View};
use super::degree::{Parallelism, not_a_degree, parse_size};
use super::source::{Source, Sourced};

/// Degrees, the world, the order, declared domains and groups, and options, with their sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub(super) degrees: BTreeMap<Parallelism, Vec<Sourced<Size>>>,
    pub(super) world: Vec<Sourced<usize>>,
    pub(super) ranks_per_host: Vec<Sourced<usize>>,
    pub(super) order: Vec<Sourced<String>>,
    pub(super) domains: Vec<Sourced<Domain>>,
    pub(super) views: Vec<Sourced<View>>,
    pub(super) subgroups: Vec<Sourced<Subgroup>>,
    pub(super) options: BTreeMap<String, Vec<Sourced<GroupOptions>>>,
    pub(super) violations: Vec<Error>,
}

impl Settings {
    /// Empty settings.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Sets a degree, or [`Size::Auto`].
    pub fn set(&mut self, kind: Parallelism, size: impl Into<Size>, source: Source) -> &mut Self {
        let given = Sourced::new(size.into(), source);
        self.degrees.entry(kind).or_default().push(given);
        self
    }

    /// Sets a degree from text: a number or `auto`. Other text is recorded as a violation.
    pub fn set_text(&mut self, kind: Parallelism, text: &str, source: Source) -> &mut Self {
        match parse_size(text) {
            Some(size) => self.set(kind, size, source),
            None => self.add_violation(not_a_degree(kind, text, &source)),
        }
    }

    /// Sets the number of ranks.
    pub fn world(&mut self, ranks: usize, source: Source) -> &mut Self {
        self.world.push(Sourced::new(ranks, source));
        self
    }

    /// Sets the number of consecutive ranks per host.
    pub fn ranks_per_host(&mut self, ranks: usize, source: Source) -> &mut Self {
        self.ranks_per_host.push(Sourced::new(ranks, source));
        self
    }

    /// Sets the order of the kinds of parallelism, fastest first: `tp-cp-ep-dp-pp`.
    pub fn order(&mut self, order: impl Into<String>, source: Source) -> &mut Self {
        self.order.push(Sourced::new(order.into(), source));
        self
    }

    /// Declares a domain.
    pub fn domain(&mut self, domain: Domain, source: Source) -> &mut Self {
        self.domains.push(Sourced::new(domain, source));
        self
    }

    /// Declares a view: axes of a domain flattened into one.
    pub fn view(&mut self, view: View, source: Source) -> &mut Self {
        self.views.push(Sourced::new(view, source));
        self
    }

    /// Declares a subgroup: selected members of an axis or view.
    pub fn subgroup(&mut self, subgroup: Subgroup, source: Source) -> &mut Self {
        self.subgroups.push(Sourced::new(subgroup, source));
        self
    }

    /// Sets the options of the groups with this name.
    pub fn options(
        &mut self,
        group: impl Into<String>,
        options: GroupOptions,
        source: Source,
    ) -> &mut Self {
        let given = Sourced::new(options, source);
        self.options.entry(group.into()).or_default().push(given);
        self
    }

    /// Adds a violation found while importing settings.
    pub fn add_violation(&mut self, violation: Error) -> &mut Self {
        self.violations.push(violation);
        self
    }

    /// The violations found while importing settings.
    pub fn violations(&self) -> &[Error] {
        &self.violations
    }

    /// Adds other settings. Values set in both must be equal.
    pub fn merge(&mut self, other: Settings) -> &mut Self {
        for (kind, given) in other.degrees {
            self.degrees.entry(kind).or_default().extend(given);
        }
        for (group, given) in other.options {
            self.options.entry(group).or_default().extend(given);
        }
        self.world.extend(other.world);
        self.ranks_per_host.extend(other.ranks_per_host);
        self.order.extend(other.order);
        self.domains.extend(other.domains);
        self.views.extend(other.views);
        self.subgroups.extend(other.subgroups);
        self.violations.extend(other.violations);
        self
    }

    /// Adds other settings, which override these. Defaults in `other` do not override values.
    pub fn override_with(&mut self, other: Settings) -> &mut Self {
        for (kind, given) in &other.degrees {
            clear_if_set(self.degrees.entry(*kind).or_default(), given);
        }
        for (group, given) in &other.options {
            clear_if_set(self.options.entry(group.clone()).or_default(), given);
        }
        clear_if_set(&mut self.world, &other.world);
        clear_if_set(&mut self.ranks_per_host, &other.ranks_per_host);
        clear_if_set(&mut self.order, &other.order);
        remove_redeclared(&mut self.domains, &other.domains, |domain| &domain.name);
        remove_redeclared(&mut self.views, &other.views, |view| &view.name);
        remove_redeclared(&mut self.subgroups, &other.subgroups, |subgroup| &subgroup.name);
        self.merge(other)
    }
}

/// Clears a value if the other settings set it explicitly.
fn clear_if_set<T>(mine: &mut Vec<Sourced<T>>, theirs: &[Sourced<T>]) {
    if theirs.iter().any(|given| !given.source.is_default()) {
        mine.clear();
    }
}

/// Removes declarations whose names the other settings also declare.
fn remove_redeclared<T>(
    mine: &mut Vec<Sourced<T>>,
    theirs: &[Sourced<T>],
    name: impl Fn(&T) -> &String,
) {
    mine.retain(|mine| {
        let same = |theirs: &Sourced<T>| name(&theirs.value) == name(&mine.value);
        !theirs.iter().any(same)
    });
}
