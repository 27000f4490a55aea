//! A configuration as seen from one rank, as text and JSON.

use std::collections::BTreeMap;
use std::fmt;

use meshgrad::collectives::registry::{RecordingWorld, Registry, Report};
use meshgrad::dist::parallel::{ParallelConfig, ParallelState, Parallelism};
use meshgrad::mesh::{Hosts, Mesh};
use serde::Serialize;
use serde_json::Value;

use crate::table::Side::{Left, Right};
use crate::table::Table;

/// The longest list of ranks that is shown in full.
const SHOWN: usize = 10;

/// Ordered names and numbers.
type Named = serde_json::Map<String, Value>;

/// The fields of `--json`. Axes are in order, slowest first.
#[derive(Serialize)]
pub(super) struct View {
    world: usize,
    ranks_per_host: Option<usize>,
    /// Fastest first.
    order: String,
    /// Degrees with their sources.
    degrees: Vec<Degree>,
    /// The sizes of the axes of the regular domain.
    axes: Named,
    /// The sizes of the axes of every domain.
    domains: Named,
    rank: usize,
    /// The coordinate of the rank on the axes of the regular domain.
    coordinate: Named,
    /// The groups of the rank.
    groups: BTreeMap<String, Vec<usize>>,
    /// The number of communicators for these groups. Equal groups share one, singletons need none.
    distinct_communicators: usize,
    report: Report,
    #[serde(skip)]
    meshes: Vec<(String, Mesh)>,
}

#[derive(Serialize)]
struct Degree {
    name: &'static str,
    value: usize,
    source: String,
}

impl View {
    pub(super) fn new(state: &ParallelState, rank: usize) -> anyhow::Result<View> {
        let config = state.config();
        let hosts = config.hosts().cloned();
        let registry = Registry::new(rank, RecordingWorld::new().connector(rank));
        let mut groups = BTreeMap::new();
        let mut shares = Vec::new();
        for (name, group) in state.groups_of(rank) {
            shares.push(registry.share(name, &group)?);
            groups.insert(name.to_owned(), group.ranks().to_vec());
        }
        let one_host = Hosts::Uniform(config.world());
        let report = registry.report(hosts.as_ref().unwrap_or(&one_host));

        let regular = state.mesh("regular")?;
        let domains = state.meshes().iter();
        Ok(View {
            world: config.world(),
            ranks_per_host: match hosts {
                Some(Hosts::Uniform(ranks)) => Some(ranks),
                _ => None,
            },
            order: config.order().to_string(),
            degrees: degrees(config),
            axes: named(regular, regular.shape()),
            domains: domains
                .map(|(name, mesh)| (name.clone(), named(mesh, mesh.shape()).into()))
                .collect(),
            rank,
            coordinate: named(regular, regular.coordinate(rank).unwrap_or_default()),
            groups,
            distinct_communicators: report.communicators.len(),
            report,
            meshes: state.meshes().to_vec(),
        })
    }
}

/// One number per axis of a mesh.
fn named(mesh: &Mesh, numbers: Vec<usize>) -> Named {
    let names = mesh.axes().iter().map(|axis| axis.name().to_owned());
    names.zip(numbers.into_iter().map(Value::from)).collect()
}

/// `pp 8 x tp 2`, without axes of one rank.
fn axes_text(mesh: &Mesh) -> String {
    let axes = mesh.axes().iter().filter(|axis| axis.size() > 1);
    let axes: Vec<String> = axes.map(|axis| format!("{} {}", axis.name(), axis.size())).collect();
    match axes.is_empty() {
        true => "1 rank".to_owned(),
        false => axes.join(" x "),
    }
}

fn degrees(config: &ParallelConfig) -> Vec<Degree> {
    let degree = |kind: Parallelism| Degree {
        name: kind.name(),
        value: config.degree(kind),
        source: config.degree_with_source(kind).source.to_string(),
    };
    Parallelism::ALL.map(degree).into()
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = Table::new([Left, Left]);
        let hosts = self.ranks_per_host.map(|ranks| {
            let hosts = self.world.div_ceil(ranks);
            match hosts {
                1 => " on 1 host".to_owned(),
                hosts => format!(" on {hosts} hosts of {ranks}"),
            }
        });
        let ranks = if self.world == 1 { "rank" } else { "ranks" };
        let world = format!("{} {ranks}{}", self.world, hosts.unwrap_or_default());
        head.row(["world".to_owned(), world]);
        head.row(["order".to_owned(), self.order.clone()]);
        writeln!(f, "{head}")?;
        if self.world > 1 {
            writeln!(f, "degrees\n{}", self.degree_table())?;
        }

        let mut domains = Table::new([Left, Left]).indented(2);
        for (name, mesh) in &self.meshes {
            domains.row([name.clone(), axes_text(mesh)]);
        }
        writeln!(f, "domains\n{domains}")?;
        self.of_rank(f)
    }
}

impl View {
    /// The degrees greater than 1.
    fn degree_table(&self) -> Table {
        let mut table = Table::new([Left, Right, Left]).indented(2);
        for degree in self.degrees.iter().filter(|degree| degree.value > 1) {
            let source = degree.source.clone();
            table.row([degree.name.to_owned(), degree.value.to_string(), source]);
        }
        table
    }

    fn of_rank(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let coordinate: Vec<String> = self
            .coordinate
            .iter()
            .filter(|(axis, _)| self.axes[*axis] != 1)
            .map(|(axis, at)| format!("{axis} {at}"))
            .collect();
        let at = match coordinate.is_empty() {
            true => String::new(),
            false => format!(" at {}", coordinate.join(", ")),
        };
        writeln!(f, "rank {}{at}", self.rank)?;

        let mut table = Table::new([Right, Left, Left, Left, Left]).indented(2);
        for communicator in &self.report.communicators {
            let hosts = match (self.ranks_per_host, communicator.hosts) {
                (None, _) => String::new(),
                (_, 1) => "on 1 host".to_owned(),
                (_, hosts) => format!("across {hosts} hosts"),
            };
            table.row([
                communicator.ranks.len().to_string(),
                listed(&communicator.ranks),
                hosts,
                communicator.shared_by.join(", "),
                options_text(&communicator.options),
            ]);
        }
        write!(f, "{table}")?;

        let singletons = self.groups.iter().filter(|(_, ranks)| ranks.len() == 1);
        let singletons: Vec<&str> = singletons.map(|(name, _)| name.as_str()).collect();
        if !singletons.is_empty() {
            writeln!(f, "  singleton groups: {}", singletons.join(", "))?;
        }
        let (groups, communicators) = (self.groups.len(), self.distinct_communicators);
        let of = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        let (groups, communicators) = (of(groups, "group"), of(communicators, "communicator"));
        writeln!(f, "\n{groups}, {communicators}")
    }
}

/// `with max_ctas 16`: the options that differ from the default.
fn options_text(options: &BTreeMap<&'static str, String>) -> String {
    let options: Vec<String> =
        options.iter().map(|(option, value)| format!("{option} {value}")).collect();
    match options.is_empty() {
        true => String::new(),
        false => format!("with {}", options.join(", ")),
    }
}

fn listed(ranks: &[usize]) -> String {
    let join = |ranks: &[usize]| {
        let texts: Vec<String> = ranks.iter().map(usize::to_string).collect();
        texts.join(" ")
    };
    match ranks {
        [head @ .., last] if ranks.len() > SHOWN => format!("{} .. {last}", join(&head[..4])),
        _ => join(ranks),
    }
}
