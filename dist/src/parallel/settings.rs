//! What was asked for, by whom: degrees and the rest, each value with its source.
//!
//! Settings only collect. A value that is set twice is kept twice: [`ParallelConfig::new`] compares
//! them, so a conflict is reported together with everything else that is wrong.
//!
//! [`ParallelConfig::new`]: crate::parallel::ParallelConfig::new

use std::collections::BTreeMap;

use meshgrad_mesh::{GroupOptions, Size};

use super::declare::{Domain, Pick, View};
use super::degree::{Parallelism, parse_size};
use super::source::{Source, Sourced};
use super::violation::Violation;

/// Degrees, the world, the order, declared domains and groups, options: each value with its source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub(super) degrees: BTreeMap<Parallelism, Vec<Sourced<Size>>>,
    pub(super) world: Vec<Sourced<usize>>,
    pub(super) ranks_per_host: Vec<Sourced<usize>>,
    pub(super) order: Vec<Sourced<String>>,
    pub(super) domains: Vec<Sourced<Domain>>,
    pub(super) views: Vec<Sourced<View>>,
    pub(super) picks: Vec<Sourced<Pick>>,
    pub(super) options: BTreeMap<String, Vec<Sourced<GroupOptions>>>,
    pub(super) violations: Vec<Violation>,
}

impl Settings {
    /// Nothing set.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// A degree, or [`Size::Auto`].
    pub fn set(&mut self, kind: Parallelism, size: impl Into<Size>, source: Source) -> &mut Self {
        let given = Sourced::new(size.into(), source);
        self.degrees.entry(kind).or_default().push(given);
        self
    }

    /// A degree as it is written: a number or `auto`. Anything else is a violation.
    pub fn set_text(&mut self, kind: Parallelism, text: &str, source: Source) -> &mut Self {
        match parse_size(text) {
            Some(size) => self.set(kind, size, source),
            None => self.add_violation(Violation::NotADegree {
                name: kind.name().to_owned(),
                text: text.to_owned(),
                location: source,
            }),
        }
    }

    /// How many ranks there are.
    pub fn world(&mut self, ranks: usize, source: Source) -> &mut Self {
        self.world.push(Sourced::new(ranks, source));
        self
    }

    /// How many consecutive ranks a host has.
    pub fn ranks_per_host(&mut self, ranks: usize, source: Source) -> &mut Self {
        self.ranks_per_host.push(Sourced::new(ranks, source));
        self
    }

    /// Which kinds of parallelism neighbours differ in, the fastest first: `tp-cp-ep-dp-pp`.
    pub fn order(&mut self, order: impl Into<String>, source: Source) -> &mut Self {
        self.order.push(Sourced::new(order.into(), source));
        self
    }

    /// A domain of the user's own.
    pub fn domain(&mut self, domain: Domain, source: Source) -> &mut Self {
        self.domains.push(Sourced::new(domain, source));
        self
    }

    /// Axes of a domain as one, under a name.
    pub fn view(&mut self, view: View, source: Source) -> &mut Self {
        self.views.push(Sourced::new(view, source));
        self
    }

    /// Membership of a group as a group of their own, under a name.
    pub fn pick(&mut self, pick: Pick, source: Source) -> &mut Self {
        self.picks.push(Sourced::new(pick, source));
        self
    }

    /// How communicators of the groups of this name are made.
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

    /// Notes what a reader of settings found wrong, to be reported with everything else.
    pub fn add_violation(&mut self, violation: Violation) -> &mut Self {
        self.violations.push(violation);
        self
    }

    /// What readers of settings found wrong so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Takes all of other settings too. What both set must be equal.
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
        self.picks.extend(other.picks);
        self.violations.extend(other.violations);
        self
    }

    /// Takes other settings too, and prefers them: what they set is forgotten here. Their defaults
    /// override nothing.
    pub fn override_with(&mut self, other: Settings) -> &mut Self {
        for (kind, given) in &other.degrees {
            forget(self.degrees.entry(*kind).or_default(), given);
        }
        for (group, given) in &other.options {
            forget(self.options.entry(group.clone()).or_default(), given);
        }
        forget(&mut self.world, &other.world);
        forget(&mut self.ranks_per_host, &other.ranks_per_host);
        forget(&mut self.order, &other.order);
        forget_named(&mut self.domains, &other.domains, |domain| &domain.name);
        forget_named(&mut self.views, &other.views, |view| &view.name);
        forget_named(&mut self.picks, &other.picks, |pick| &pick.name);
        self.merge(other)
    }
}

/// Empties a value that is set elsewhere.
fn forget<T>(mine: &mut Vec<Sourced<T>>, theirs: &[Sourced<T>]) {
    if theirs.iter().any(|given| !given.source.is_default()) {
        mine.clear();
    }
}

/// Takes out what is declared elsewhere under the same name.
fn forget_named<T>(
    mine: &mut Vec<Sourced<T>>,
    theirs: &[Sourced<T>],
    name: impl Fn(&T) -> &String,
) {
    mine.retain(|mine| {
        let same = |theirs: &Sourced<T>| name(&theirs.value) == name(&mine.value);
        !theirs.iter().any(same)
    });
}
