//! Arguments that several subcommands share: maps, allowed problems, layouts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use meshgrad::ckpt::Links;
use meshgrad::ckpt::layout::{self, Layout};
use meshgrad::ckpt::mapping::{AllowedProblems, Mapping, Report, Template, TensorSpec};
use serde::Serialize;

use crate::answer::Answer;
use crate::table::{display_path, printable};

/// A layout with more ranks is probably a typing error.
const MAX_RANKS: u64 = 100_000;

/// Problems of a map that are not errors.
#[derive(clap::Args)]
pub(super) struct AllowArguments {
    /// Allow a kind of problem, for all tensors or for those whose names match, as in
    /// `unexpected:{r:path}.inv_freq`. Kinds are unmade, unexpected, partly-used, narrowed,
    /// unmatched and dropped. May be repeated.
    #[arg(long, value_name = "KIND[:TEMPLATE]", value_parser = parse_allowed)]
    allow: Vec<String>,
}

/// Whether files of a folder may be links.
#[derive(clap::Args)]
pub(super) struct LinkArguments {
    /// Follow links in the folder that is read, wherever they lead. Links within the Hugging Face
    /// cache are always followed.
    #[arg(long)]
    follow_links: bool,
}

impl LinkArguments {
    pub(super) fn links(&self) -> Links {
        match self.follow_links {
            true => Links::Follow,
            false => Links::Refuse,
        }
    }
}

fn parse_allowed(text: &str) -> Result<String, String> {
    let problems = AllowedProblems::none().and(text);
    problems.map(|_| text.to_owned()).map_err(|bad| bad.to_string())
}

impl AllowArguments {
    pub(super) fn problems(&self) -> anyhow::Result<AllowedProblems> {
        let none = AllowedProblems::none();
        let all = self.allow.iter().try_fold(none, |all, it| all.and(it));
        Ok(all?)
    }
}

/// Axes of ranks, as in `ep=8,tp=2`.
pub(super) fn parse_mesh(text: &str) -> Result<String, String> {
    let layout = Layout::parse(text, "").map_err(|error| error.to_string())?;
    match layout.ranks() {
        ..=MAX_RANKS => Ok(text.to_owned()),
        ranks => Err(format!("{text} has {ranks} ranks, but the maximum is {MAX_RANKS}")),
    }
}

pub(super) fn parse_template(text: &str) -> Result<Template, String> {
    layout::names(text).map_err(|problem| problem.to_string())
}

/// Reads a map. Without a path, returns the identity.
pub(super) fn read_map(path: Option<&Path>) -> anyhow::Result<Mapping> {
    let Some(path) = path else {
        return Ok(Mapping::identity());
    };
    let text = read(path)?;
    Mapping::parse(&text).map_err(|error| anyhow!("{}: {error}", display_path(path)))
}

/// Reads a table of renames, one `OLD NEW` per line, as a map that keeps all other names.
pub(super) fn read_renames(path: &Path) -> anyhow::Result<Mapping> {
    let mut map = String::new();
    for (number, line) in (1..).zip(read(path)?.lines()) {
        let names = line.split('#').next().unwrap_or_default();
        let names: Vec<&str> = names.split_whitespace().collect();
        match names[..] {
            [] => {}
            [old, new] if !line.contains('"') => {
                map.push_str(&format!("\"{new}\" = rename(\"{old}\")"));
            }
            _ => bail!(
                "{}: line {number}: write two names without quotes, OLD NEW",
                display_path(path)
            ),
        }
        map.push('\n');
    }
    map.push_str("{rest:path} = {rest:path}");
    Mapping::parse(&map).map_err(|error| anyhow!("{}: {error}", display_path(path)))
}

/// Reads the placements of a layout; also returns their text.
pub(super) fn read_layout(mesh: &str, placements: &Path) -> anyhow::Result<(Layout, String)> {
    let text = read(placements)?;
    match Layout::parse(mesh, &text) {
        Ok(layout) => Ok((layout, text)),
        Err(error) => bail!("{}: {error}", display_path(placements)),
    }
}

/// Checks that each line of the placements applies to a tensor.
pub(super) fn check_placements(
    layout: &Layout,
    placements: &Path,
    tensors: &[TensorSpec],
) -> anyhow::Result<()> {
    let names: Vec<&str> = tensors.iter().map(|it| it.name.as_str()).collect();
    let checked = layout.check_matches(&names);
    checked.map_err(|error| anyhow!("{}: {error}", display_path(placements)))
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", display_path(path)))
}

/// A path for JSON.
pub(super) fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[derive(Serialize)]
struct MappingErrors {
    source: String,
    map: Option<String>,
    problems: Vec<String>,
}

/// The answer when a map does not fit the source: all problems and exit code 1.
pub(super) fn mapping_errors(
    source: &Path,
    map: &Option<PathBuf>,
    report: &Report,
    json: bool,
) -> anyhow::Result<Answer> {
    if json {
        let problems = report.problems.iter().map(ToString::to_string);
        let mapping_errors = MappingErrors {
            source: path_text(source),
            map: map.as_deref().map(path_text),
            problems: problems.collect(),
        };
        return Answer::json(&mapping_errors, 1);
    }
    let map = map.as_deref().map_or_else(|| "the identity".to_owned(), display_path);
    let mut text = format!("{map} does not fit {}: ", display_path(source));
    for line in report.to_string().lines() {
        text.push_str(&printable(line));
        text.push('\n');
    }
    let allowable = report.allowable();
    if !allowable.is_empty() {
        let options: Vec<String> = allowable.iter().map(|it| format!("--allow {it}")).collect();
        text.push_str(&format!("to accept such problems: {}\n", options.join(" ")));
    }
    Ok(Answer { text, code: 1 })
}
