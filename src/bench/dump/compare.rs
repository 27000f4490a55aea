//! Comparison of two folders of results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use half::bf16;
use serde_json::{Value, json};

use super::{Entry, Index};

/// Compare two folders of results; exit code 1 if exact ones differ.
#[derive(clap::Args)]
pub(crate) struct Compare {
    /// The results to check, usually of a GPU.
    #[arg(value_name = "FOLDER")]
    actual: PathBuf,
    /// The expected results, usually of the emulator.
    #[arg(value_name = "FOLDER")]
    expected: PathBuf,
    /// Also write every comparison to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Compare {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let (actual, expected) = (Index::read(&self.actual)?, Index::read(&self.expected)?);
        check_same(&actual, &expected)?;
        let mut rows = Vec::new();
        for (a, e) in actual.results.iter().zip(&expected.results) {
            let (a, bytes) = (read(&self.actual, a)?, read(&self.expected, e)?);
            rows.push((e, Difference::of(&e.dtype, &a, &bytes)?));
        }

        println!(
            "{} ({}) compared with {} ({})\n",
            actual.device, actual.gpu, expected.device, expected.gpu
        );
        let failures = print(&rows);
        if let Some(file) = &self.json {
            let report = json!({
                "actual": {"device": actual.device, "gpu": actual.gpu},
                "expected": {"device": expected.device, "gpu": expected.gpu},
                "failures": failures,
                "results": rows.iter().map(|(entry, d)| d.json(entry)).collect::<Vec<_>>(),
            });
            fs::write(file, format!("{report:#}\n"))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(ExitCode::from(u8::from(failures > 0)))
    }
}

/// Checks that both have the same list of results.
fn check_same(actual: &Index, expected: &Index) -> anyhow::Result<()> {
    let [a, e] = [actual, expected].map(|index| index.results.len());
    ensure!(a == e, "{a} results, expected {e}: {VERSIONS}");
    for (a, e) in actual.results.iter().zip(&expected.results) {
        ensure!(
            (&a.name, &a.shape, &a.dtype) == (&e.name, &e.shape, &e.dtype),
            "{a}, expected {e}: {VERSIONS}"
        );
    }
    Ok(())
}

const VERSIONS: &str = "the folders are from different versions; dump both again";

/// Prints differences and returns the number of failed results.
fn print(rows: &[(&Entry, Difference)]) -> usize {
    let differs = |(_, difference): &&(&Entry, Difference)| difference.elements > 0;
    if rows.iter().any(|row| differs(&row)) {
        println!(
            "| result | exact | differ | NaN: both, one | max abs | max rel | max ulp | norm |"
        );
        println!("|---|---|---|---|---|---|---|---|");
    }
    for (entry, d) in rows.iter().filter(differs) {
        println!(
            "| {} | {} | {} of {} | {}, {} | {:.2e} | {:.2e} | {} | {:.2e} |",
            entry.name,
            if entry.exact { "**yes**" } else { "no" },
            d.elements,
            d.of,
            d.both_nan,
            d.one_nan,
            d.max_abs,
            d.max_rel,
            d.max_ulp,
            d.norm
        );
    }

    let equal = rows.iter().filter(|row| !differs(row)).count();
    println!("\n{equal} of {} results are bitwise equal.", rows.len());
    let fails = |(entry, d): &&(&Entry, Difference)| d.fails(entry);
    let failures = rows.iter().filter(fails).count();
    let exact = rows.iter().filter(|(entry, _)| entry.exact).count();
    println!("{failures} fail; {exact} are exact and must not differ.");
    failures
}

fn read(folder: &Path, entry: &Entry) -> anyhow::Result<Vec<u8>> {
    let path = folder.join(&entry.file);
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let width = width(&entry.dtype)?;
    let expected = width * entry.shape.iter().product::<usize>();
    ensure!(
        bytes.len() == expected,
        "{} has {} bytes, {entry} needs {expected}: dump it again",
        path.display(),
        bytes.len()
    );
    Ok(bytes)
}

fn width(dtype: &str) -> anyhow::Result<usize> {
    match dtype {
        "f32" => Ok(4),
        "bf16" => Ok(2),
        "bool" => Ok(1),
        other => bail!("results of {other} cannot be compared"),
    }
}

/// The difference of two results.
#[derive(Default)]
struct Difference {
    /// Number of elements.
    of: usize,
    /// Elements that differ in any bit.
    elements: usize,
    /// Differing elements that are NaN in both.
    both_nan: usize,
    /// Differing elements that are NaN in one of the two.
    one_nan: usize,
    max_abs: f64,
    /// Relative to the expected element.
    max_rel: f64,
    /// The distance in units in the last place.
    max_ulp: u64,
    /// The norm of the difference divided by the norm of the expected result.
    norm: f64,
}

impl Difference {
    fn of(dtype: &str, actual: &[u8], expected: &[u8]) -> anyhow::Result<Difference> {
        let width = width(dtype)?;
        let elements =
            |bytes: &[u8]| -> Vec<Number> { bytes.chunks_exact(width).map(Number::of).collect() };
        Ok(Difference::between(&elements(actual), &elements(expected)))
    }

    fn between(actual: &[Number], expected: &[Number]) -> Difference {
        let mut total = Difference { of: expected.len(), ..Difference::default() };
        let (mut squares, mut scale) = (0.0, 0.0);
        for (a, e) in actual.iter().zip(expected) {
            if e.value.is_finite() {
                scale += e.value * e.value;
            }
            if a.bits == e.bits {
                continue;
            }
            total.elements += 1;
            match (a.value.is_nan(), e.value.is_nan()) {
                (true, true) => total.both_nan += 1,
                (false, false) => {
                    let abs = (a.value - e.value).abs();
                    squares += abs * abs;
                    total.max_abs = total.max_abs.max(abs);
                    total.max_rel = total.max_rel.max(abs / e.value.abs());
                    total.max_ulp = total.max_ulp.max(a.ordinal.abs_diff(e.ordinal));
                }
                _ => total.one_nan += 1,
            }
        }
        if squares > 0.0 {
            total.norm = (squares / scale).sqrt();
        }
        total
    }

    /// Exact results must be equal, except for the payloads of NaNs: the PTX ISA leaves them open. In
    /// other results, the same elements must be NaN.
    fn fails(&self, entry: &Entry) -> bool {
        match entry.exact {
            true => self.elements > self.both_nan,
            false => self.one_nan > 0,
        }
    }

    fn json(&self, entry: &Entry) -> Value {
        // JSON has no infinity.
        let finite = |x: f64| {
            if x.is_finite() { json!(x) } else { json!(x.to_string()) }
        };
        let mut report = json!({
            "name": entry.name, "shape": entry.shape, "dtype": entry.dtype,
            "exact": entry.exact, "equal": self.elements == 0, "fails": self.fails(entry),
        });
        if self.elements > 0 {
            report["elements"] = json!(self.of);
            report["differ"] = json!(self.elements);
            report["differ_both_nan"] = json!(self.both_nan);
            report["differ_one_nan"] = json!(self.one_nan);
            report["max_abs"] = finite(self.max_abs);
            report["max_rel"] = finite(self.max_rel);
            report["max_ulp"] = json!(self.max_ulp);
            report["norm"] = finite(self.norm);
        }
        report
    }
}

/// An element.
struct Number {
    bits: u32,
    value: f64,
    /// Its index among all numbers of its dtype, in order; both zeros have index 0.
    ordinal: i64,
}

impl Number {
    /// Reads an f32 from four bytes, a bf16 from two, a bool from one.
    fn of(bytes: &[u8]) -> Number {
        let sign_and_magnitude = |bits: u32, width: u32| {
            let sign = 1 << (width - 1);
            let magnitude = i64::from(bits & (sign - 1));
            if bits & sign == 0 { magnitude } else { -magnitude }
        };
        match *bytes {
            [a, b, c, d] => {
                let value = f32::from_le_bytes([a, b, c, d]);
                let bits = value.to_bits();
                let (value, ordinal) = (value.into(), sign_and_magnitude(bits, 32));
                Number { bits, value, ordinal }
            }
            [a, b] => {
                let value = bf16::from_le_bytes([a, b]);
                let bits = value.to_bits().into();
                let (value, ordinal) = (value.into(), sign_and_magnitude(bits, 16));
                Number { bits, value, ordinal }
            }
            _ => {
                let bits: u32 = bytes.iter().copied().map(u32::from).sum();
                let (value, ordinal) = (bits.into(), bits.into());
                Number { bits, value, ordinal }
            }
        }
    }
}
