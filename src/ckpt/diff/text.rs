//! The report of `diff` as text.

use super::{Report, SideReport, TensorReport, TensorType, ValueReport, ValuesReport};
use crate::ckpt::fold::{Folded, fold};
use crate::ckpt::size::{self, counted};
use crate::ckpt::values::{Difference, ULP_BUCKETS, float_text};
use crate::table::Side::{Left, Right};
use crate::table::{Table, printable};

/// Up to this many tensors with different values are listed individually.
const MAX_LISTED: usize = 32;

impl Report {
    pub(super) fn text(&self) -> String {
        let mut blocks = vec![sides(&self.a, &self.b)];
        blocks.extend(only_in("A", &self.only_in_a));
        blocks.extend(only_in("B", &self.only_in_b));
        blocks.extend(self.mismatches());
        if let Some(values) = &self.values {
            blocks.extend(values.text());
        }
        blocks.push(self.verdict());
        blocks.join("\n")
    }

    fn mismatches(&self) -> Option<String> {
        if self.mismatched.is_empty() {
            return None;
        }
        let names = self.mismatched.iter().map(|m| (m.name.as_str(), (&m.a, &m.b)));
        let mut table = Table::new([Left; 4]).indented(2);
        table.row(["tensor", "", "A", "B"].map(str::to_owned));
        for folded in fold(names) {
            let first = &self.mismatched[folded.members[0]];
            table.row([printable(&folded.pattern), times(&folded), first.a.text(), first.b.text()]);
        }
        let count = counted(self.mismatched.len() as u64, "tensor");
        Some(format!("different dtype or shape: {count}\n{table}"))
    }

    fn verdict(&self) -> String {
        let matching = counted(self.matching, "tensor");
        match (self.same, &self.values) {
            (true, Some(_)) => format!("same: {matching}, bit for bit\n"),
            (true, None) => format!(
                "same: {matching} have equal names, dtypes and shapes; --values compares elements\n"
            ),
            (false, Some(_)) => "different\n".to_owned(),
            (false, None) => "different; --values also compares elements\n".to_owned(),
        }
    }
}

impl ValuesReport {
    fn text(&self) -> Option<String> {
        let mut text = String::new();
        if !self.differing.is_empty() {
            let compared = counted(self.compared, "tensor");
            text = format!("different values: {} of {compared}\n", self.differing.len());
            text.push_str(&self.table().to_string());
        }
        for name in &self.not_comparable {
            let name = printable(name);
            text.push_str(&format!("elements of {name} cannot be compared between these dtypes\n"));
        }
        (!text.is_empty()).then_some(text)
    }

    fn table(&self) -> Table {
        let ranges = self.ulp_buckets();
        let mut head =
            ["tensor", "", "dtype", "elements", "differ", "first at"].map(str::to_owned).to_vec();
        head.extend(["max abs", "max rel", "nan, inf"].map(str::to_owned));
        head.extend(ranges.iter().map(|&at| format!("{} ulp", ULP_BUCKETS[at].0)));

        let sides = [vec![Left; 3], vec![Right; head.len() - 3]].concat();
        let mut table = Table::new(sides).indented(2);
        table.row(head);
        for folded in self.rows() {
            table.row(self.row(&folded, &ranges));
        }
        table
    }

    /// The buckets of the histogram that have counts.
    fn ulp_buckets(&self) -> Vec<usize> {
        let histograms = || self.differing.iter().filter_map(|report| report.difference.ulps);
        let counted = |&at: &usize| histograms().any(|counts| counts[at] > 0);
        (0..ULP_BUCKETS.len()).filter(counted).collect()
    }

    fn rows(&self) -> Vec<Folded> {
        if self.differing.len() <= MAX_LISTED {
            let alone = self
                .differing
                .iter()
                .enumerate()
                .map(|(at, report)| Folded { pattern: report.name.clone(), members: vec![at] });
            return alone.collect();
        }
        fold(self.differing.iter().map(|report| {
            let tensor_type = (report.a_dtype, report.b_dtype, &report.shape);
            (report.name.as_str(), tensor_type)
        }))
    }

    fn row(&self, folded: &Folded, ranges: &[usize]) -> Vec<String> {
        let members = || folded.members.iter().map(|&at| &self.differing[at]);
        let first = &self.differing[folded.members[0]];
        let mut difference = Difference::default();
        members().for_each(|report| difference.merge(&report.difference));

        let or_dash = |number: Option<f64>| number.map_or("-".to_owned(), float_text);
        let mut row = vec![
            printable(&folded.pattern),
            times(folded),
            first.dtypes(),
            size::grouped(members().map(|report| report.elements).sum()),
            size::grouped(difference.differing),
            match folded.members.len() {
                1 => first.first_index(),
                _ => String::new(),
            },
            or_dash(difference.max_abs),
            or_dash(difference.max_relative),
            size::grouped(difference.not_finite),
        ];
        row.extend(ranges.iter().map(|&at| match difference.ulps {
            Some(counts) => size::grouped(counts[at]),
            None => "-".to_owned(),
        }));
        row
    }
}

impl ValueReport {
    fn dtypes(&self) -> String {
        match self.a_dtype == self.b_dtype {
            true => self.a_dtype.to_owned(),
            false => format!("{}, {}", self.a_dtype, self.b_dtype),
        }
    }

    /// The row-major index of the first element that differs.
    fn first_index(&self) -> String {
        let mut rest = self.difference.first.unwrap_or_default();
        let mut index = vec![0; self.shape.len()];
        for (at, &extent) in self.shape.iter().enumerate().rev() {
            index[at] = rest % extent as u64;
            rest /= extent as u64;
        }
        format!("{index:?}")
    }
}

impl TensorType {
    fn text(&self) -> String {
        format!("{} {:?}", self.dtype, self.shape)
    }
}

fn sides(a: &SideReport, b: &SideReport) -> String {
    let mut table = Table::new([Left, Left, Right, Right, Left]);
    for (letter, side) in [("A", a), ("B", b)] {
        table.row([
            letter.to_owned(),
            printable(&side.path),
            counted(side.tensors, "tensor"),
            size::bytes(side.bytes),
            side.description.clone(),
        ]);
    }
    table.to_string()
}

fn only_in(side: &str, tensors: &[TensorReport]) -> Option<String> {
    if tensors.is_empty() {
        return None;
    }
    let names = tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.tensor_type));
    let mut table = Table::new([Left; 3]).indented(2);
    for folded in fold(names) {
        table.row([
            printable(&folded.pattern),
            times(&folded),
            tensors[folded.members[0]].tensor_type.text(),
        ]);
    }
    let count = counted(tensors.len() as u64, "tensor");
    Some(format!("only in {side}: {count}\n{table}"))
}

fn times(folded: &Folded) -> String {
    match folded.members.len() {
        1 => String::new(),
        many => format!("x {many}"),
    }
}
