//! The report of `bench` and its text.

use meshgrad_harness::{Machine, Spread};
use serde::Serialize;

use super::budget::Memory;
use super::mount::Mount;
use super::rounds::Measurement;
use crate::ckpt::size::{self, counted};
use crate::ckpt::source::Summary;
use crate::table::Side::{Left, Right};
use crate::table::{Table, printable};

/// All measurements, with the machine.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) command: String,
    pub(super) version: &'static str,
    pub(super) machine: Machine,
    pub(super) source: Summary,
    /// Bytes of the files, including headers.
    pub(super) file_bytes: u64,
    pub(super) file_system: Option<Mount>,
    pub(super) threads: usize,
    pub(super) samples: u32,
    pub(super) cold: bool,
    pub(super) budget: u64,
    pub(super) memory: Memory,
    pub(super) warnings: Vec<String>,
    pub(super) opening: Vec<Measurement>,
    pub(super) reading: Vec<Measurement>,
    pub(super) writing: Option<Writing>,
}

/// The measurements of writes.
#[derive(Serialize)]
pub(super) struct Writing {
    pub(super) path: String,
    pub(super) file_system: Option<Mount>,
    pub(super) contestants: Vec<Measurement>,
}

impl Report {
    pub(super) fn text(&self) -> String {
        let mut head = Table::new([Left; 2]);
        let mut note = |title: &str, text: String| head.row([title.to_owned(), text]);
        let source = self.source.row("");
        note("source", source[1..].join(", "));
        note("on", on(self.file_system.as_ref()));
        note("machine", machine_text(&self.machine));
        note("memory", self.memory_text());
        note("samples", self.samples_text());

        let mut text = format!("{head}\n{}", opening(&self.opening));
        text.push_str(&format!("\n{}", transfers("reading", &self.reading)));
        if let Some(writing) = &self.writing {
            let mut place = Table::new([Left; 2]);
            let on = on(writing.file_system.as_ref());
            place.row(["written to".to_owned(), printable(&writing.path)]);
            place.row(["on".to_owned(), on]);
            let table = transfers("writing", &writing.contestants);
            text.push_str(&format!("\n{place}\n{table}"));
        }
        text
    }

    fn memory_text(&self) -> String {
        let (total, budget) = (size::bytes(self.memory.total()), size::bytes(self.budget));
        let what = match self.memory.holds_all {
            true => "all tensors fit, in memory that every sample reuses",
            false => "not all tensors fit: each is freed when complete and its memory is reused",
        };
        format!("{total} of {budget}; {what}")
    }

    fn samples_text(&self) -> String {
        let cache = match self.cold {
            true => "cold page cache; a hypervisor or a disk may still cache",
            false => "warm page cache",
        };
        let threads = counted(self.threads as u64, "thread");
        format!("{} of each, interleaved, {threads}; {cache}", self.samples)
    }
}

fn on(mount: Option<&Mount>) -> String {
    mount.map_or("unknown file system".to_owned(), |it| {
        printable(&format!("{}, {}", it.kind, it.device))
    })
}

fn machine_text(machine: &Machine) -> String {
    let parts = [
        machine.cpu.as_deref().map(printable),
        Some(counted(machine.cores as u64, "core")),
        machine.memory_bytes.map(size::bytes),
        Some(printable(&machine.kernel)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn opening(measurements: &[Measurement]) -> Table {
    let mut table = Table::new([Left, Right, Left]);
    table.row(["opening", "ms", "(min - max)"].map(str::to_owned));
    for measurement in measurements {
        let [median, reach] = measurement.seconds.map_or_else(Default::default, |seconds| {
            let Spread { median, min, max } = seconds;
            figures([median, min, max].map(|it| 1e3 * it))
        });
        table.row([measurement.name.clone(), median, reach]);
    }
    table
}

fn transfers(title: &str, measurements: &[Measurement]) -> Table {
    let mut table = Table::new([Left, Right, Left, Right, Right, Left]);
    let heads = [title, "seconds", "(min - max)", "GB/s", "speed", "compared with, per round"];
    table.row(heads.map(str::to_owned));
    for measurement in measurements {
        table.row(row(measurement));
    }
    table
}

fn row(measurement: &Measurement) -> [String; 6] {
    let name = measurement.name.clone();
    let Some(seconds) = measurement.seconds else {
        let why = measurement.left_out.as_deref().map(printable);
        let left_out = format!("skipped: {}", why.unwrap_or_default());
        let nothing = String::new;
        return [name, "-".into(), nothing(), nothing(), nothing(), left_out];
    };
    let [median, reach] = figures([seconds.median, seconds.min, seconds.max]);
    let rate = measurement.bytes_per_second.unwrap_or(0.0) / 1e9;
    let [speed, compared] = match &measurement.relative {
        None => Default::default(),
        Some(relative) => {
            let Spread { median, min, max } = relative.speed;
            let other = format!("({min:.2} - {max:.2}) of {}", relative.name);
            [format!("{median:.2}"), other]
        }
    };
    [name, median, reach, format!("{rate:.2}"), speed, compared]
}

/// A median with its range, all with the digits that suit the median.
fn figures([median, min, max]: [f64; 3]) -> [String; 2] {
    let digits = match median {
        it if it < 0.01 => 5,
        it if it < 1.0 => 3,
        it if it < 100.0 => 2,
        _ => 1,
    };
    [format!("{median:.digits$}"), format!("({min:.digits$} - {max:.digits$})")]
}

#[cfg(test)]
mod tests {
    use super::figures;

    #[test]
    fn digits_suit_the_median() {
        let shown = |median| figures([median, median / 2.0, 2.0 * median]).join(" ");
        assert_eq!(shown(0.0012), "0.00120 (0.00060 - 0.00240)");
        assert_eq!(shown(0.5), "0.500 (0.250 - 1.000)");
        assert_eq!(shown(12.3), "12.30 (6.15 - 24.60)");
        assert_eq!(shown(1234.5), "1234.5 (617.2 - 2469.0)");
    }
}
