//! meshgrad's TOML: the section `[parallel]`.
//!
//! ```toml
//! [parallel]
//! world = 1024
//! ranks_per_host = 8
//! pp = 8
//! dp_shard = "auto"
//! tp = 2
//! ep = 64
//! order = "tp-cp-ep-dp-pp"          ## fastest first
//!
//! [[parallel.domains]]              ## custom axes, slowest first
//! name = "rollout"
//! axes = "dp=auto,tp=4"
//!
//! [[parallel.views]]                ## axes of a domain, flattened
//! name = "tokens"
//! domain = "regular"
//! axes = "dp_replicate,dp_shard,cp_shard"
//!
//! [[parallel.picks]]                ## selected members of an axis or view
//! name = "ends"
//! of = "pp"
//! members = ["first", "last", 1]
//!
//! [parallel.options.tp]             ## options of a group's communicator
//! max_ctas = 16
//! timeout_seconds = 600
//! ```

use std::path::Path;

use meshgrad_error::error;
use meshgrad_mesh::{GroupOptions, Size};

use super::scalar::Scalar;
use super::tree::{Node, Tree};
use super::{of_file, of_section};
use crate::parallel::degree::parse_size;
use crate::parallel::violation::unknown_key;
use crate::parallel::{Domain, Member, Parallelism, Settings, Subgroup, View};

/// The keys of the section other than degrees.
const KEYS: [&str; 7] =
    ["world", "ranks_per_host", "order", "domains", "views", "picks", "options"];

const OPTIONS: [&str; 11] = [
    "timeout_seconds",
    "bootstrap_timeout_seconds",
    "high_priority",
    "min_ctas",
    "max_ctas",
    "cga_cluster_size",
    "net_name",
    "traffic_class",
    "split_share",
    "collnet",
    "nvls_ctas",
];

/// Reads the section `[parallel]` of a TOML text and ignores other sections; `path` names the text
/// in errors.
pub fn toml(text: &str, path: &str) -> Settings {
    of_section(text, path, "parallel", read)
}

/// [`toml()`] for a file.
pub fn toml_file(path: impl AsRef<Path>) -> Settings {
    of_file(path.as_ref(), toml)
}

fn read(section: &Tree, settings: &mut Settings) {
    for (key, value) in section.entries() {
        let location = &value.location;
        match (Parallelism::from_name(key), key.as_str()) {
            (Some(kind), _) => value.scalar().set_degree(settings, kind, location.clone()),
            (None, "world" | "ranks_per_host") => {
                let ranks = value.scalar().count_or_reject(settings, "a number of ranks", location);
                match (ranks, key.as_str()) {
                    (None, _) => {}
                    (Some(ranks), "world") => {
                        settings.world(ranks, location.clone());
                    }
                    (Some(ranks), _) => {
                        settings.ranks_per_host(ranks, location.clone());
                    }
                }
            }
            (None, "order") => {
                let order = value.scalar().text_or_reject(
                    settings,
                    "an order such as tp-cp-ep-dp-pp",
                    location,
                );
                if let Some(order) = order {
                    settings.order(order, location.clone());
                }
            }
            (None, "domains") => each(value, settings, read_domain),
            (None, "views") => each(value, settings, read_view),
            (None, "picks") => each(value, settings, read_subgroup),
            (None, "options") => {
                for (group, options) in value.entries() {
                    read_options(group, options, settings);
                }
            }
            (None, _) => {
                let degrees = Parallelism::ALL.map(Parallelism::name);
                let known = degrees.into_iter().chain(KEYS);
                settings.add_violation(unknown_key(key, location, known));
            }
        }
    }
}

/// Reads every table of a list.
fn each(list: &Tree, settings: &mut Settings, read: fn(&Tree, &mut Settings)) {
    match &list.node {
        Node::List(items) => items.iter().for_each(|item| read(item, settings)),
        _ => list.scalar().reject(
            settings,
            "a list of tables, as in [[parallel.views]]",
            &list.location,
        ),
    }
}

/// The strings at `keys`. Missing and unknown keys are violations.
fn texts<const N: usize>(
    table: &Tree,
    keys: [&str; N],
    others: &[&str],
    settings: &mut Settings,
) -> Option<[String; N]> {
    let known = || keys.into_iter().chain(others.iter().copied());
    for (key, value) in table.entries() {
        if !known().any(|known| known == key) {
            settings.add_violation(unknown_key(key, &value.location, known()));
        }
    }
    let found = keys.map(|key| match table.get(key) {
        Some(value) => value.scalar().text_or_reject(settings, "a string", &value.location),
        None => {
            settings.add_violation(error!(Invalid, "{}: `{key}` is missing", table.location));
            None
        }
    });
    let all: Vec<String> = found.into_iter().flatten().collect();
    all.try_into().ok()
}

fn read_domain(table: &Tree, settings: &mut Settings) {
    let Some([name, axes]) = texts(table, ["name", "axes"], &[], settings) else {
        return;
    };
    let parsed: Option<Vec<(String, Size)>> = axes
        .split(',')
        .map(|axis| {
            let (name, size) = axis.split_once('=')?;
            Some((name.trim().to_owned(), parse_size(size)?))
        })
        .collect();
    match parsed {
        Some(axes) => {
            settings.domain(Domain::new(name, axes), table.location.clone());
        }
        None => Scalar::Text(axes).reject(settings, "axes such as dp=auto,tp=4", &table.location),
    }
}

fn read_view(table: &Tree, settings: &mut Settings) {
    if let Some([name, domain, axes]) = texts(table, ["name", "domain", "axes"], &[], settings) {
        let view = View::new(name, domain, axes.split(',').map(str::trim));
        settings.view(view, table.location.clone());
    }
}

fn read_subgroup(table: &Tree, settings: &mut Settings) {
    let Some([name, of]) = texts(table, ["name", "of"], &["members"], settings) else {
        return;
    };
    let listed = match table.get("members").map(|members| &members.node) {
        Some(Node::List(members)) => members.iter().map(|item| member(&item.scalar())).collect(),
        _ => None,
    };
    match listed {
        Some(members) => {
            let members: Vec<Member> = members;
            settings.subgroup(Subgroup::new(name, of, members), table.location.clone());
        }
        None => {
            settings.add_violation(error!(
                Invalid,
                "{}: `members` must be a list of \"first\", \"last\" or indices", table.location
            ));
        }
    }
}

fn member(value: &Scalar) -> Option<Member> {
    match value {
        Scalar::Text(text) if text == "first" => Some(Member::First),
        Scalar::Text(text) if text == "last" => Some(Member::Last),
        other => other.count().map(Member::At),
    }
}

fn read_options(group: &str, table: &Tree, settings: &mut Settings) {
    if !table.is_table() {
        let location = &table.location;
        table.scalar().reject(settings, "a table of options", location);
        return;
    }
    let mut options = GroupOptions::default();
    for (key, value) in table.entries() {
        read_option(key, value, &mut options, settings);
    }
    settings.options(group, options, table.location.clone());
}

fn read_option(key: &str, value: &Tree, options: &mut GroupOptions, settings: &mut Settings) {
    let (scalar, location) = (value.scalar(), &value.location);
    let count = |settings: &mut Settings| {
        let count = scalar.count_or_reject(settings, "a number", location)?;
        u32::try_from(count).ok()
    };
    let truth = |settings: &mut Settings| match scalar {
        Scalar::Truth(truth) => Some(truth),
        _ => {
            scalar.reject(settings, "true or false", location);
            None
        }
    };
    match key {
        "timeout_seconds" => options.timeout = scalar.seconds_or_reject(settings, location),
        "bootstrap_timeout_seconds" => {
            options.bootstrap_timeout = scalar.seconds_or_reject(settings, location);
        }
        "high_priority" => options.high_priority = truth(settings),
        "split_share" => options.split_share = truth(settings),
        "collnet" => options.collnet = truth(settings),
        "min_ctas" => options.min_ctas = count(settings),
        "max_ctas" => options.max_ctas = count(settings),
        "cga_cluster_size" => options.cga_cluster_size = count(settings),
        "traffic_class" => options.traffic_class = count(settings),
        "nvls_ctas" => options.nvls_ctas = count(settings),
        "net_name" => options.net_name = scalar.text_or_reject(settings, "a name", location),
        _ => {
            settings.add_violation(unknown_key(key, location, OPTIONS));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::parallel::Source;

    #[test]
    fn all_settings_are_read() {
        let text = r#"
            [parallel]
            world = 1_024
            ranks_per_host = 8
            pp = 8
            dp_shard = "auto"
            order = "tp-cp-ep-dp-pp"
            domains = [{ name = "rollout", axes = "dp=auto,tp=4" }]
            views = [{ name = "tokens", domain = "regular", axes = "dp_shard, cp_shard" }]
            picks = [{ name = "ends", of = "pp", members = ["first", "last", 1] }]
            options.tp = { max_ctas = 16, timeout_seconds = 600, high_priority = true }
        "#;
        let at = |line, key: &str| {
            let location = Source::file("run.toml").at_line(line);
            location.at_key(format!("parallel.{key}"))
        };
        let mut options = GroupOptions::default();
        options.max_ctas = Some(16);
        options.timeout = Some(Duration::from_secs(600));
        options.high_priority = Some(true);
        let rollout = Domain::new("rollout", [("dp", Size::Auto), ("tp", Size::Ranks(4))]);
        let members = [Member::First, Member::Last, Member::At(1)];

        let mut expected = Settings::new();
        expected
            .world(1024, at(3, "world"))
            .ranks_per_host(8, at(4, "ranks_per_host"))
            .set(Parallelism::Pp, 8, at(5, "pp"))
            .set(Parallelism::DpShard, Size::Auto, at(6, "dp_shard"))
            .order("tp-cp-ep-dp-pp", at(7, "order"))
            .domain(rollout, at(8, "domains"))
            .view(View::new("tokens", "regular", ["dp_shard", "cp_shard"]), at(9, "views"))
            .subgroup(Subgroup::new("ends", "pp", members), at(10, "picks"))
            .options("tp", options, at(11, "options.tp"));
        assert_eq!(toml(text, "run.toml"), expected);
    }

    #[test]
    fn errors_have_their_lines() {
        let text = r#"
            [parallel]
            world = -1
            ttp = 2
            pp = 0.5
            order = 3
            domains = [{ name = "x", axes = "dp" }, { nam = "x", axes = "dp=1" }]
            views = 3
            picks = [{ name = "p", of = "pp", members = ["middle"] }]
            options.tp = { max_ctas = -1, max_cta = 1 }
            options.pp = 3
        "#;
        let settings = toml(text, "run.toml");
        let mut texts: Vec<String> =
            settings.violations().iter().map(|it| it.to_string()).collect();
        texts.sort();
        let expected = [
            "pp is `0.5` (run.toml:5",
            "run.toml:10, parallel.options.tp.max_ctas: `-1` is not a number",
            "run.toml:11, parallel.options.pp: `3` is not a table of options",
            "run.toml:3, parallel.world: `-1` is not a number of ranks",
            "run.toml:6, parallel.order: `3` is not an order",
            "run.toml:7, parallel.domains: `dp` is not axes such as",
            "run.toml:7, parallel.domains: `name` is missing",
            "run.toml:8, parallel.views: `3` is not a list of tables",
            "run.toml:9, parallel.picks: `members` must be a list",
            "unknown key `max_cta` (run.toml:10",
            "unknown key `nam` (run.toml:7",
            "unknown key `ttp` (run.toml:4",
        ];
        assert_eq!(texts.len(), expected.len(), "{texts:#?}");
        for (text, expected) in texts.iter().zip(expected) {
            assert!(text.starts_with(expected), "{text}\n{expected}");
        }
        let broken = toml("[parallel]\npp = = 2\n", "run.toml");
        let text = broken.violations()[0].to_string();
        assert!(text.starts_with("run.toml:2: invalid TOML"), "{text}");
        assert!(toml("", "run.toml").violations()[0].to_string().contains("no section [parallel]"));
    }
}
