//! The report of `inspect` as text.

use std::collections::BTreeSet;

use super::{CheckpointReport, Report, TensorReport, Total};
use crate::ckpt::fold::{Folded, fold};
use crate::ckpt::size::{self, counted};
use crate::ckpt::values::{Statistics, float_text};
use crate::table::Side::{Left, Right};
use crate::table::{Table, printable};

impl Report {
    /// A summary, then tables.
    pub(super) fn text(&self, one_by_one: bool) -> String {
        let mut blocks = Vec::new();
        blocks.extend(self.run.as_deref().map(run_table));
        blocks.push(self.facts());
        blocks.push(total_table(
            "dtype",
            self.dtypes.iter().map(|row| (row.dtype.to_owned(), &row.total)),
        ));
        if self.parts.len() > 1 {
            let parts = self.parts.iter().map(|part| match part.name.as_str() {
                "" => (".".to_owned(), &part.total),
                name => (printable(name), &part.total),
            });
            blocks.push(total_table("part", parts));
        }
        blocks.extend(self.tensor_table(one_by_one));
        blocks.extend(self.not_finite());
        blocks.join("\n")
    }

    fn facts(&self) -> String {
        let counts = format!(
            "{} in {}",
            size::grouped(self.total.tensors),
            counted(self.files.len() as u64, "file")
        );
        let parameters = match self.parameters {
            few @ 0..1000 => few.to_string(),
            many => format!("{} ({})", size::count(many), size::grouped(many)),
        };
        let (data, files) = (size::bytes(self.total.bytes), size::bytes(self.file_bytes));

        let mut table = Table::new([Left; 2]);
        for (name, fact) in [
            ("path", printable(&self.path)),
            ("kind", self.description.clone()),
            ("parameters", parameters),
            ("tensors", counts),
            ("bytes", format!("{data}, {files} with headers")),
            ("metadata", self.metadata()),
        ] {
            if !fact.is_empty() {
                table.row([name.to_owned(), fact]);
            }
        }
        table.to_string()
    }

    /// The metadata of all headers; each pair of key and value is shown once.
    fn metadata(&self) -> String {
        const LONGEST: usize = 60;

        let pairs: BTreeSet<(&String, &String)> =
            self.files.iter().flat_map(|file| &file.metadata).collect();
        let shown = pairs.iter().map(|(key, value)| {
            let (key, value) = (printable(key), printable(value));
            match value.char_indices().nth(LONGEST) {
                Some((at, _)) => format!("{key}={}...", &value[..at]),
                None => format!("{key}={value}"),
            }
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    fn tensor_table(&self, one_by_one: bool) -> Option<String> {
        if self.tensors.is_empty() {
            return None;
        }

        let mut head = ["tensor", "dtype", "shape", "", "bytes"].map(str::to_owned).to_vec();
        if self.has_stats {
            head.extend(["min", "max", "mean", "std", "zeros", "nan", "inf"].map(str::to_owned));
        }
        let sides = [vec![Left; 4], vec![Right; head.len() - 4]].concat();
        let mut table = Table::new(sides);
        table.row(head);

        for folded in self.rows(one_by_one) {
            let members = || folded.members.iter().map(|&at| &self.tensors[at]);
            let first = &self.tensors[folded.members[0]];
            let mut row = vec![
                printable(&folded.pattern),
                first.dtype.to_owned(),
                format!("{:?}", first.shape),
                match folded.members.len() {
                    1 => String::new(),
                    many => format!("x {many}"),
                },
                size::bytes(members().map(|tensor| tensor.bytes).sum()),
            ];
            if self.has_stats {
                row.extend(stats_cells(members()));
            }
            table.row(row);
        }
        Some(table.to_string())
    }

    fn rows(&self, one_by_one: bool) -> Vec<Folded> {
        if one_by_one {
            let alone = self
                .tensors
                .iter()
                .enumerate()
                .map(|(at, tensor)| Folded { pattern: tensor.name.clone(), members: vec![at] });
            return alone.collect();
        }
        let tensors = self.tensors.iter();
        fold(tensors.map(|tensor| (tensor.name.as_str(), (tensor.dtype, &tensor.shape))))
    }

    /// The tensors with NaN or infinity.
    fn not_finite(&self) -> Option<String> {
        const SHOWN: usize = 20;

        let stats = self.tensors.iter().filter_map(|t| Some((t, t.stats.as_ref()?)));
        let bad: Vec<_> = stats.filter(|(_, stats)| stats.nan + stats.infinite > 0).collect();
        if bad.is_empty() {
            return None;
        }

        let mut table = Table::new([Left, Right, Right]).indented(2);
        for (tensor, stats) in bad.iter().take(SHOWN) {
            let (nan, infinite) = (size::grouped(stats.nan), size::grouped(stats.infinite));
            let name = printable(&tensor.name);
            table.row([name, format!("{nan} nan"), format!("{infinite} inf")]);
        }
        let more = match bad.len().checked_sub(SHOWN) {
            None | Some(0) => String::new(),
            Some(more) => format!("  and {more} more\n"),
        };
        let count = counted(bad.len() as u64, "tensor");
        Some(format!("NaN or infinity in {count}\n{table}{more}"))
    }
}

/// The statistics of all elements of some tensors; dashes if a dtype is not supported.
fn stats_cells<'a>(tensors: impl Iterator<Item = &'a TensorReport>) -> [String; 7] {
    let mut all = Statistics::default();
    for tensor in tensors {
        match &tensor.stats {
            Some(stats) => all.merge(stats),
            None => return [(); 7].map(|()| "-".to_owned()),
        }
    }

    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        or_dash(all.min.map(|value| value.to_string())),
        or_dash(all.max.map(|value| value.to_string())),
        or_dash(all.mean.map(float_text)),
        or_dash(all.std.map(float_text)),
        size::grouped(all.zeros),
        size::grouped(all.nan),
        size::grouped(all.infinite),
    ]
}

fn run_table(checkpoints: &[CheckpointReport]) -> String {
    let mut table = Table::new([Left, Right, Right]);
    table.row(["checkpoint", "files", "bytes"].map(str::to_owned));
    for checkpoint in checkpoints {
        table.row([
            printable(&checkpoint.name),
            checkpoint.files.to_string(),
            size::bytes(checkpoint.bytes),
        ]);
    }
    table.to_string()
}

fn total_table<'a>(what: &str, rows: impl Iterator<Item = (String, &'a Total)>) -> String {
    let mut table = Table::new([Left, Right, Right, Right]);
    table.row([what, "tensors", "elements", "bytes"].map(str::to_owned));
    for (name, total) in rows {
        table.row([
            name,
            size::grouped(total.tensors),
            size::count(total.elements),
            size::bytes(total.bytes),
        ]);
    }
    table.to_string()
}
