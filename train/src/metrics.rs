//! `metrics.jsonl`: one JSON object per step, appended and flushed, so that a crash loses at most
//! the last line.
//!
//! JSON has no NaN and no infinities; they are written as the strings `"NaN"`, `"inf"` and
//! `"-inf"`. The keys `mfu`, `expert_load`, `kernel_launches`, `val_loss` and `val_bits_per_byte` are
//! present only if they were measured, `skipped` only in a step that was skipped, `ranks`,
//! `comm_bytes` and `comm_exposed_s` only on several ranks, `save_stall_s` only in the step after a
//! save.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use meshgrad_ckpt::io_error;
use meshgrad_error::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::run_folder::replace;

/// The metrics of one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The step, from 1.
    pub step: u64,
    /// Mean training loss in nats per token.
    #[serde(with = "number")]
    pub loss: f64,
    /// Learning rate of the step.
    #[serde(with = "number")]
    pub lr: f64,
    /// Global norm of the gradient before clipping.
    #[serde(with = "number")]
    pub grad_norm: f64,
    /// Training tokens per second of this step.
    #[serde(with = "number")]
    pub tokens_per_s: f64,
    /// Model FLOPs utilization: the share of the peak of all ranks' GPUs that the model's own operations
    /// took ([`Model::flops_per_token`](meshgrad_models::Model::flops_per_token)). `None` where either
    /// is unknown, in other dtypes than bf16, and if some parameters are not trained.
    #[serde(with = "optional_number", default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Load of the busiest expert: its tokens over the mean tokens per expert, in the layer where
    /// this ratio is largest. 1 is perfectly balanced; `None` without experts.
    #[serde(with = "optional_number", default, skip_serializing_if = "Option::is_none")]
    pub expert_load: Option<f64>,
    /// Each expert's share of the tokens over all layers; empty without experts. Printed, but not
    /// stored.
    #[serde(skip)]
    pub expert_shares: Vec<f64>,
    /// Whether the step changed nothing and must be repeated; see
    /// [`PendingStep::wait`](crate::trainer::PendingStep::wait). Not stored.
    #[serde(skip)]
    pub overflowed: bool,
    /// Kernels that the step launched; `None` on a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_launches: Option<u64>,
    /// The number of ranks, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<usize>,
    /// The bytes that rank 0 communicated in this step ([`CommStats::bytes`]).
    ///
    /// [`CommStats::bytes`]: meshgrad_comm::CommStats::bytes
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm_bytes: Option<u64>,
    /// The seconds that rank 0 waited in this step for communication that no computation hid.
    #[serde(with = "optional_number", default, skip_serializing_if = "Option::is_none")]
    pub comm_exposed_s: Option<f64>,
    /// After a save: the seconds for which it held up training, to copy the state and to wait for the
    /// previous save.
    #[serde(with = "optional_number", default, skip_serializing_if = "Option::is_none")]
    pub save_stall_s: Option<f64>,
    /// Mean validation loss in nats per token, if measured.
    #[serde(with = "optional_number", default, skip_serializing_if = "Option::is_none")]
    pub val_loss: Option<f64>,
    /// The validation loss in bits per byte of text, if measured.
    #[serde(with = "optional_number", default, skip_serializing_if = "Option::is_none")]
    pub val_bits_per_byte: Option<f64>,
    /// Further metrics of the caller, under its own names.
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// An open `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens the file for a run that has done `step` steps. Records of later steps and an
    /// incomplete last line are removed; step 0 empties the file.
    ///
    /// # Errors
    /// When the file cannot be written, or has a line that is not a record.
    pub fn open_after(path: &Path, step: u64) -> Result<Self> {
        truncate_after(path, step)?;

        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|cause| io_error("write", path, cause))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends a record. It is in the file when this returns.
    ///
    /// # Errors
    /// When it cannot be written, for example on a full disk.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        let error = |cause| io_error("write", &self.path, cause);
        let mut line = serde_json::to_vec(record).map_err(|cause| error(cause.into()))?;
        line.push(b'\n');
        // One write: only a crash can leave an incomplete line.
        self.file.write_all(&line).map_err(error)?;
        self.file.flush().map_err(error)
    }
}

/// All records of a file, in order, without an incomplete last line. A missing file has no records.
///
/// # Errors
/// When the file cannot be read, or has a line that is not a record.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    Ok(read_lines(path)?.into_iter().map(|(_, record)| record).collect())
}

/// Removes the records of steps after `step`, and an incomplete last line. Other lines do not
/// change.
fn truncate_after(path: &Path, step: u64) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }

    let lines = read_lines(path)?;
    let kept = lines.into_iter().filter(|(_, record)| record.step <= step);
    let text: String = kept.map(|(line, _)| line + "\n").collect();
    replace(path, text.as_bytes())
}

fn read_lines(path: &Path) -> Result<Vec<(String, Record)>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(io_error("read", path, cause)),
    };

    // An interrupted write may end within a character.
    let text = String::from_utf8_lossy(&bytes);
    let count = text.lines().count();
    let mut records = Vec::with_capacity(count);
    for (index, line) in text.lines().enumerate() {
        let is_last = index + 1 == count;
        let is_incomplete = is_last && !text.ends_with('\n');
        match serde_json::from_str(line) {
            Ok(record) if !is_incomplete => records.push((line.to_owned(), record)),
            _ if is_last => {}
            Ok(_) => {}
            Err(problem) => bail!(
                Malformed,
                "{}:{} is not a metrics record: {problem}; repair or delete the line",
                path.display(),
                index + 1
            ),
        }
    }
    Ok(records)
}

/// A float as a JSON number, or as `"NaN"`, `"inf"` or `"-inf"`.
mod number {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Json {
        Number(f64),
        Name(String),
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
    pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            to.serialize_f64(*value)
        } else {
            to.serialize_str(&value.to_string())
        }
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<f64, D::Error> {
        match Json::deserialize(from)? {
            Json::Number(value) => Ok(value),
            // `serialize` writes Rust's names of these values.
            Json::Name(name) => name.parse().map_err(serde::de::Error::custom),
        }
    }
}

mod optional_number {
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::number::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<f64>, D::Error> {
        super::number::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> Record {
        Record { step, loss: 1.0 / step as f64, lr: 1e-3, ..Record::default() }
    }

    fn write(path: &Path, steps: impl Iterator<Item = u64>) {
        let mut file = MetricsFile::open_after(path, 0).unwrap();
        for step in steps {
            file.append(&record(step)).unwrap();
        }
    }

    #[test]
    fn a_line_is_one_flat_object() {
        let mut measured = record(2);
        measured.expert_load = Some(1.25);
        measured.val_loss = Some(3.5);
        measured.extra.insert("experts".to_owned(), vec![0.25, 0.75].into());

        let line = serde_json::to_string(&measured).unwrap();
        let expected = concat!(
            r#"{"step":2,"loss":0.5,"lr":0.001,"grad_norm":0.0,"tokens_per_s":0.0,"#,
            r#""expert_load":1.25,"val_loss":3.5,"experts":[0.25,0.75]}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn nan_and_infinities_round_trip_as_strings() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("metrics.jsonl");
        let record = Record {
            step: 1,
            loss: f64::NAN,
            grad_norm: f64::INFINITY,
            lr: f64::NEG_INFINITY,
            val_loss: Some(f64::NAN),
            ..Record::default()
        };
        MetricsFile::open_after(&path, 0).unwrap().append(&record).unwrap();

        let text = fs::read_to_string(&path).unwrap();
        for expected in [r#""loss":"NaN""#, r#""grad_norm":"inf""#, r#""lr":"-inf""#] {
            assert!(text.contains(expected), "{text}");
        }
        let read = read(&path).unwrap().remove(0);
        assert!(read.loss.is_nan() && read.val_loss.unwrap().is_nan());
        assert_eq!((read.grad_norm, read.lr), (record.grad_norm, record.lr));
    }

    #[test]
    fn resuming_removes_later_records() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("metrics.jsonl");
        assert_eq!(read(&path).unwrap(), []);

        write(&path, 1..=5);
        assert_eq!(read(&path).unwrap(), (1..=5).map(record).collect::<Vec<_>>());

        let mut resumed = MetricsFile::open_after(&path, 3).unwrap();
        resumed.append(&record(4)).unwrap();
        assert_eq!(read(&path).unwrap(), (1..=4).map(record).collect::<Vec<_>>());

        MetricsFile::open_after(&path, 0).unwrap();
        assert_eq!(read(&path).unwrap(), []);
    }

    /// A file truncated anywhere in its last line reads and resumes as if that line did not exist.
    #[test]
    fn an_incomplete_last_line_is_dropped() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("metrics.jsonl");
        write(&path, 1..=2);
        let whole = fs::read(&path).unwrap();
        let first = 1 + whole.iter().position(|&byte| byte == b'\n').unwrap();

        for length in first..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(read(&path).unwrap(), [record(1)], "{length} bytes");

            MetricsFile::open_after(&path, 9).unwrap().append(&record(2)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), whole, "{length} bytes");
        }
    }

    #[test]
    fn a_broken_line_in_the_middle_is_an_error_with_its_number() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("metrics.jsonl");
        write(&path, 1..=2);
        let text = fs::read_to_string(&path).unwrap().replacen("\"step\":1", "\"step\":", 1);
        fs::write(&path, text).unwrap();

        let error = MetricsFile::open_after(&path, 2).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl:1 is not a metrics record"), "{error}");
    }
}
