//! The report of `plan` as text.

use super::{RankReport, Report};
use crate::ckpt::size::{self, counted};
use crate::table::Side::{Left, Right};
use crate::table::{Table, printable};

/// Characters of a digest that are shown.
const DIGEST_SHOWN: usize = 12;

impl Report {
    pub(super) fn text(&self) -> String {
        let mut head = Table::new([Left; 2]);
        let source = self.source.row("source");
        head.row([source[0].clone(), source[1..].join(", ")]);
        let map = self.map.as_deref().map_or("identity".into(), printable);
        let outputs = counted(self.outputs, "tensor");
        let inputs = size::grouped(self.inputs);
        head.row(["map".to_owned(), format!("{map}, makes {outputs} from {inputs}")]);
        if let Some(mesh) = &self.mesh {
            let ranks = counted(self.rank_count, "rank");
            head.row(["layout".to_owned(), format!("{mesh}, {ranks}")]);
        }
        let allowed = self.allowed.len() as u64;
        if allowed > 0 {
            head.row(["allowed".to_owned(), counted(allowed, "problem")]);
        }
        format!("{head}\n{}{}", self.costs(), self.sums())
    }

    fn costs(&self) -> Table {
        let mut sides = vec![Right; 13];
        sides[12] = Left;
        let mut table = Table::new(sides);
        let bandwidth = format!("s at {}", rate(self.bytes_per_second));
        table.row(
            [
                "rank",
                "targets",
                "needed",
                "read",
                "x",
                "reads",
                "extents",
                "files",
                "memory",
                "= targets",
                "+ windows",
                &bandwidth,
                "digest",
            ]
            .map(str::to_owned),
        );
        for rank in &self.ranks {
            table.row(rank.row());
        }
        table
    }

    fn sums(&self) -> String {
        if self.ranks.len() < 2 {
            return String::new();
        }
        let sum = |of: fn(&RankReport) -> u64| self.ranks.iter().map(of).sum();
        let most = self.ranks.iter().map(|it| it.memory.total).max();
        format!(
            "\nall ranks: {} needed, {} read, at most {} of memory per rank\n",
            size::bytes(sum(|it| it.needed_bytes)),
            size::bytes(sum(|it| it.read_bytes)),
            size::bytes(most.unwrap_or(0)),
        )
    }
}

impl RankReport {
    fn row(&self) -> Vec<String> {
        let memory = &self.memory;
        vec![
            self.rank.to_string(),
            size::grouped(self.targets),
            size::bytes(self.needed_bytes),
            size::bytes(self.read_bytes),
            format!("{:.2}", self.amplification),
            size::grouped(self.reads),
            size::grouped(self.extents),
            size::grouped(self.files),
            size::bytes(memory.total),
            size::bytes(memory.targets),
            size::bytes(memory.windows),
            format!("{:.3}", self.seconds),
            self.digest[..DIGEST_SHOWN].to_owned(),
        ]
    }
}

/// Formats a rate, as in `3.00 GB/s`.
fn rate(bytes_per_second: u64) -> String {
    let count = size::count(bytes_per_second).replace(" B", " G");
    let space = if count.contains(' ') { "" } else { " " };
    format!("{count}{space}B/s")
}
