//! `meshgrad ckpt diff`: compares two checkpoints.
//!
//! The report is data, which `--json` prints; [`text`] formats it as tables.

mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;
use glob::Pattern;
use serde::Serialize;

use super::arguments::LinkArguments;
use super::catalog::{Catalog, Entry};
use super::size::ByteSize;
use super::values::{Difference, Workers, comparable, differences};
use super::{parse_glob, warn};
use crate::answer::Answer;

#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 no difference, 1 some difference, 2 error.")]
pub(super) struct DiffArguments {
    /// A file of safetensors or PyTorch, a folder of them, a checkpoint, or a run: its newest
    /// checkpoint.
    a: PathBuf,
    /// The second one, of any of these kinds.
    b: PathBuf,
    /// Compare only tensors that match; `*` is any text. May be repeated.
    #[arg(long, value_name = "GLOB", value_parser = parse_glob)]
    tensors: Vec<Pattern>,
    /// Also compare elements: by bits for equal dtypes, otherwise by value.
    #[arg(long)]
    values: bool,
    /// Memory for tensor data.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    budget: ByteSize,
    #[command(flatten)]
    links: LinkArguments,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    a: SideReport,
    b: SideReport,
    same: bool,
    /// The number of tensors with equal name, shape and dtype.
    matching: u64,
    only_in_a: Vec<TensorReport>,
    only_in_b: Vec<TensorReport>,
    mismatched: Vec<Mismatch>,
    values: Option<ValuesReport>,
}

#[derive(Serialize)]
struct SideReport {
    path: String,
    kind: &'static str,
    #[serde(skip)]
    description: String,
    tensors: u64,
    bytes: u64,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct TensorReport {
    name: String,
    #[serde(flatten)]
    tensor_type: TensorType,
}

#[derive(Serialize, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TensorType {
    dtype: &'static str,
    shape: Vec<usize>,
}

#[derive(Serialize)]
struct Mismatch {
    name: String,
    a: TensorType,
    b: TensorType,
}

#[derive(Serialize)]
struct ValuesReport {
    /// Tensors whose elements were compared.
    compared: u64,
    /// Compared tensors that are equal.
    equal: u64,
    /// Tensors of equal shape whose dtypes cannot be compared.
    not_comparable: Vec<String>,
    differing: Vec<ValueReport>,
}

#[derive(Serialize)]
struct ValueReport {
    name: String,
    a_dtype: &'static str,
    b_dtype: &'static str,
    shape: Vec<usize>,
    elements: u64,
    #[serde(flatten)]
    difference: Difference,
}

type Pair<'a> = (Entry<'a>, Entry<'a>);

pub(super) fn diff(arguments: &DiffArguments, threads: usize) -> anyhow::Result<Answer> {
    let open = |path: &Path| Catalog::open(path, arguments.links.links());
    let (a, b) = (open(&arguments.a)?, open(&arguments.b)?);
    let workers = Workers::new(arguments.budget, threads, a.buffers() + b.buffers())?;
    let (tensors_a, tensors_b) = select(&a, &b, &arguments.tensors)?;

    let mut report = Report {
        a: SideReport::new(&a, &tensors_a),
        b: SideReport::new(&b, &tensors_b),
        same: true,
        matching: 0,
        only_in_a: Vec::new(),
        only_in_b: Vec::new(),
        mismatched: Vec::new(),
        values: None,
    };
    let pairs = report.match_names(tensors_a, tensors_b);
    if arguments.values {
        report.values = Some(compare(pairs, workers)?);
    }
    report.same = report.is_same();

    let code = u8::from(!report.same);
    if arguments.json {
        return Answer::json(&report, code);
    }
    warn(&a.warnings);
    warn(&b.warnings);
    let text = report.text();
    Ok(Answer { text, code })
}

/// The tensors to compare. A pattern must match on at least one side.
fn select<'a>(
    a: &'a Catalog,
    b: &'a Catalog,
    globs: &[Pattern],
) -> anyhow::Result<(Vec<Entry<'a>>, Vec<Entry<'a>>)> {
    let (mut of_a, mut of_b) = (a.entries(), b.entries());
    for glob in globs {
        let matches = |entry: &Entry| glob.matches(&entry.name);
        if !of_a.iter().any(matches) && !of_b.iter().any(matches) {
            bail!("{}", a.no_match(glob.as_str(), &of_a));
        }
    }
    let selected =
        |entry: &Entry| globs.is_empty() || globs.iter().any(|glob| glob.matches(&entry.name));
    of_a.retain(selected);
    of_b.retain(selected);
    Ok((of_a, of_b))
}

impl Report {
    /// Matches tensors by name and records differences of dtype and shape; returns the pairs of
    /// equal shape.
    fn match_names<'a>(&mut self, a: Vec<Entry<'a>>, b: Vec<Entry<'a>>) -> Vec<Pair<'a>> {
        let mut of_name: BTreeMap<String, Entry> =
            a.iter().map(|entry| (entry.name.clone(), entry.clone())).collect();
        let mut partner_of = BTreeMap::new();
        for entry in b {
            match of_name.remove(&entry.name) {
                Some(_) => {
                    partner_of.insert(entry.name.clone(), entry);
                }
                None => self.only_in_b.push(TensorReport::new(&entry)),
            }
        }

        let mut pairs = Vec::new();
        for entry in a {
            let Some(partner) = partner_of.remove(&entry.name) else {
                self.only_in_a.push(TensorReport::new(&entry));
                continue;
            };
            let (tensor_type, other) = (TensorType::new(&entry), TensorType::new(&partner));
            let same_shape = tensor_type.shape == other.shape;
            if tensor_type == other {
                self.matching += 1;
            } else {
                self.mismatched.push(Mismatch {
                    name: entry.name.clone(),
                    a: tensor_type,
                    b: other,
                });
            }
            if same_shape {
                pairs.push((entry, partner));
            }
        }
        pairs
    }

    fn is_same(&self) -> bool {
        let values_differ = |values: &ValuesReport| !values.differing.is_empty();
        self.only_in_a.is_empty()
            && self.only_in_b.is_empty()
            && self.mismatched.is_empty()
            && !self.values.as_ref().is_some_and(values_differ)
    }
}

fn compare(pairs: Vec<Pair>, workers: Workers) -> anyhow::Result<ValuesReport> {
    let (pairs, others): (Vec<Pair>, Vec<Pair>) =
        pairs.into_iter().partition(|(a, b)| comparable(a.info.dtype, b.info.dtype));

    let found = differences(&pairs, workers)?;
    let differing = pairs.iter().zip(found).filter(|(_, found)| found.differing > 0);
    let differing: Vec<ValueReport> = differing
        .map(|((a, b), difference)| ValueReport {
            name: a.name.clone(),
            a_dtype: a.info.dtype.name(),
            b_dtype: b.info.dtype.name(),
            shape: a.info.shape.clone(),
            elements: a.elements(),
            difference,
        })
        .collect();
    Ok(ValuesReport {
        compared: pairs.len() as u64,
        equal: (pairs.len() - differing.len()) as u64,
        not_comparable: others.into_iter().map(|(a, _)| a.name).collect(),
        differing,
    })
}

impl SideReport {
    fn new(catalog: &Catalog, entries: &[Entry]) -> SideReport {
        SideReport {
            path: catalog.path.to_string_lossy().into_owned(),
            kind: catalog.kind.name(),
            description: catalog.kind.describe(),
            tensors: entries.len() as u64,
            bytes: entries.iter().map(Entry::bytes).sum(),
            warnings: catalog.warnings.clone(),
        }
    }
}

impl TensorReport {
    fn new(entry: &Entry) -> TensorReport {
        TensorReport { name: entry.name.clone(), tensor_type: TensorType::new(entry) }
    }
}

impl TensorType {
    fn new(entry: &Entry) -> TensorType {
        TensorType { dtype: entry.info.dtype.name(), shape: entry.info.shape.clone() }
    }
}
