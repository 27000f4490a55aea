//! An event file for TensorBoard: the metrics of each step as scalars.
//!
//! The format is that of `tensorflow/core/lib/io/record_writer.h` and of the messages `Event` and
//! `Summary` of TensorBoard's `event.proto` and `summary.proto`. A record is, in little-endian:
//! the length of its data (8 bytes), a masked CRC-32C of the length (4), the data, and a masked
//! CRC-32C of the data (4).

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use meshgrad_ckpt::io_error;
use meshgrad_error::Result;

use crate::metrics::Record;
use crate::run_folder::replace;

/// The first event of a file has this text.
const VERSION: &str = "brain.Event:2";

/// Fields of `Event`.
const WALL_TIME: u64 = 1;
const STEP: u64 = 2;
const FILE_VERSION: u64 = 3;
const SUMMARY: u64 = 5;
/// The field of `Summary`.
const VALUE: u64 = 1;
/// Fields of `Summary.Value`.
const TAG: u64 = 1;
const SIMPLE_VALUE: u64 = 2;

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
    damage: Option<Damage>,
}

/// Bytes that are not a record; they were removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// The offset of the first of them.
    pub offset: usize,
    /// The number of these bytes.
    pub bytes: usize,
    /// The records that were kept.
    pub records: usize,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { path, offset, bytes, records } = self;
        let path = path.display();
        write!(
            f,
            "{path} was damaged from byte {offset} on: {bytes} bytes are removed, {records} \
             records are kept"
        )
    }
}

impl EventFile {
    /// Opens the file for a run that has done `step` steps. Events of later steps, and anything
    /// that is not a complete record, are removed; step 0 removes all.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn open_after(path: &Path, step: u64) -> Result<Self> {
        let bytes = match fs::read(path) {
            Ok(bytes) if step > 0 => bytes,
            Ok(_) => Vec::new(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(cause) => return Err(io_error("read", path, cause)),
        };
        let kept = Kept::of(&bytes, step);
        let start = match kept.has_version {
            true => Vec::new(),
            false => record(&version(now())),
        };
        replace(path, &[start, kept.bytes].concat())?;
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(|cause| io_error("write", path, cause))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            damage: kept.first_damage.map(|offset| Damage {
                path: path.to_owned(),
                offset,
                bytes: kept.damaged_bytes,
                records: kept.records,
            }),
        })
    }

    /// What was removed because it was damaged. An end that is no record is not reported if all
    /// steps that the run has done are in front of it: an interrupted write leaves such an end.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Appends the metrics of a step. They are in the file when this returns.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn append(&mut self, metrics: &Record) -> Result<()> {
        // One write: only a crash can leave an incomplete record.
        let written = self.file.write_all(&record(&scalars_event(now(), metrics)));
        written.map_err(|cause| io_error("write", &self.path, cause))
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// The scalars of a step, by tag: every number of its line in `metrics.jsonl`.
fn scalars(metrics: &Record) -> Vec<(String, f64)> {
    let fields = serde_json::to_value(metrics).unwrap_or_default();
    let fields = fields.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| *name != "step");
    fields.filter_map(|(name, value)| Some((tag(name), number(value)?))).collect()
}

fn tag(field: &str) -> String {
    match field.strip_prefix("val_") {
        Some(name) => format!("validation/{name}"),
        None => format!("train/{field}"),
    }
}

/// A number, or the name of one that is not finite.
fn number(value: &serde_json::Value) -> Option<f64> {
    let named = || value.as_str()?.parse().ok();
    value.as_f64().or_else(named)
}

/// A `Summary`.
fn summary(metrics: &Record) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, scalar) in scalars(metrics) {
        let mut value = Vec::new();
        bytes_field(&mut value, TAG, tag.as_bytes());
        key(&mut value, SIMPLE_VALUE, WireType::Four);
        value.extend((scalar as f32).to_le_bytes());
        bytes_field(&mut summary, VALUE, &value);
    }
    summary
}

/// The first event of a file.
fn version(wall_time: f64) -> Vec<u8> {
    let mut event = event(wall_time);
    bytes_field(&mut event, FILE_VERSION, VERSION.as_bytes());
    event
}

/// The event of a step.
fn scalars_event(wall_time: f64, metrics: &Record) -> Vec<u8> {
    let mut event = event(wall_time);
    varint_field(&mut event, STEP, metrics.step);
    bytes_field(&mut event, SUMMARY, &summary(metrics));
    event
}

/// An `Event` with only its time.
fn event(wall_time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, WALL_TIME, WireType::Eight);
    event.extend(wall_time.to_le_bytes());
    event
}

/// The encoding of a field in Protocol Buffers.
#[derive(Clone, Copy)]
enum WireType {
    Varint = 0,
    Eight = 1,
    Bytes = 2,
    Four = 5,
}

fn key(to: &mut Vec<u8>, field: u64, wire_type: WireType) {
    varint(to, field << 3 | wire_type as u64);
}

fn varint_field(to: &mut Vec<u8>, field: u64, value: u64) {
    key(to, field, WireType::Varint);
    varint(to, value);
}

fn bytes_field(to: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    key(to, field, WireType::Bytes);
    varint(to, bytes.len() as u64);
    to.extend(bytes);
}

/// Seven bits per byte, lowest first; the highest bit of a byte says that more follow.
fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// The record of `data`.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_crc(data).to_le_bytes());
    record
}

/// The records of a file whose checksums are right, without events after a step.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    records: usize,
    /// Whether the first record is the version of the file.
    has_version: bool,
    /// The largest step.
    last_step: u64,
    /// The offset of the first byte that belongs to no record, and the number of all such bytes.
    first_damage: Option<usize>,
    damaged_bytes: usize,
}

impl Kept {
    fn of(bytes: &[u8], step: u64) -> Kept {
        let mut kept = Kept::default();
        let mut at = 0;
        while let Some((start, data, size)) = next_record(bytes, at) {
            kept.skip(at..start);
            at = start + size;
            let of = step_of(data);
            if of.is_none_or(|of| of <= step) {
                kept.has_version |= kept.records == 0 && of.is_none();
                kept.records += 1;
                kept.last_step = kept.last_step.max(of.unwrap_or(0));
                kept.bytes.extend(&bytes[start..at]);
            }
        }
        if kept.last_step < step {
            kept.skip(at..bytes.len());
        }
        kept
    }

    fn skip(&mut self, damaged: Range<usize>) {
        if !damaged.is_empty() {
            self.first_damage.get_or_insert(damaged.start);
            self.damaged_bytes += damaged.len();
        }
    }
}

/// The first record of `bytes` from `at` on: its start, data and size. After damage, the next
/// record is recognized by its two checksums.
fn next_record(bytes: &[u8], at: usize) -> Option<(usize, &[u8], usize)> {
    (at..bytes.len()).find_map(|start| {
        let (data, size) = first_record(&bytes[start..])?;
        Some((start, data, size))
    })
}

/// The data of the first record of `bytes`, and the size of the record.
fn first_record(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let length = bytes.get(..8)?;
    let size = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let end = size.checked_add(12)?;
    // The checksum of the length comes first, because it quickly rejects bytes that start no
    // record.
    if u32_at(8)? != masked_crc(length) {
        return None;
    }
    let data = bytes.get(12..end)?;
    let is_whole = u32_at(end)? == masked_crc(data);
    is_whole.then_some((data, end + 4))
}

/// The step of an event that this module wrote, in which the step follows the time.
fn step_of(event: &[u8]) -> Option<u64> {
    let rest = event.get(9..)?.strip_prefix(&[(STEP << 3) as u8])?;
    let mut step = 0;
    for (at, byte) in rest.iter().take(10).enumerate() {
        step |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some(step);
        }
    }
    None
}

/// TensorFlow rotates and shifts checksums, so that a checksum of data with checksums is sound.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), reflected.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize])
}

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 3720, B.4.
    #[test]
    fn the_checksum_is_crc_32c() {
        let ascending: Vec<u8> = (0..32).collect();
        let cases: [(&[u8], u32); 5] = [
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (b"123456789", 0xe306_9283),
            (b"", 0),
        ];
        for (data, expected) in cases {
            assert_eq!(crc32c(data), expected);
        }
    }

    /// A message by hand: field 1 as 8 bytes, field 2 as a varint, field 5 with one value.
    #[test]
    fn an_event_has_the_documented_bytes() {
        let mut event = event(1.0);
        varint_field(&mut event, STEP, 300);
        let mut value = Vec::new();
        bytes_field(&mut value, TAG, b"a");
        bytes_field(&mut event, SUMMARY, &value);
        let expected =
            [&[0x09][..], &1f64.to_le_bytes(), &[0x10, 0xac, 0x02], &[0x2a, 3, 0x0a, 1, b'a']];
        assert_eq!(event, expected.concat());
        assert_eq!(step_of(&event), Some(300));
    }

    fn metrics(step: u64) -> Record {
        Record { step, loss: 2.0, val_loss: (step == 2).then_some(3.0), ..Record::default() }
    }

    #[test]
    fn every_number_of_a_record_is_a_scalar() {
        let mut record = metrics(2);
        record.loss = f64::INFINITY;
        record.save_stall_s = Some(0.5);
        record.extra.insert("own".to_owned(), 7.into());
        let expected = [
            ("train/loss", f64::INFINITY),
            ("train/lr", 0.0),
            ("train/grad_norm", 0.0),
            ("train/tokens_per_s", 0.0),
            ("train/save_stall_s", 0.5),
            ("validation/loss", 3.0),
            ("train/own", 7.0),
        ];
        assert_eq!(scalars(&record), expected.map(|(tag, value)| (tag.to_owned(), value)));
    }

    fn steps(path: &Path) -> Vec<Option<u64>> {
        let bytes = fs::read(path).unwrap();
        let (mut rest, mut found) = (&bytes[..], Vec::new());
        while let Some((data, size)) = first_record(rest) {
            found.push(step_of(data));
            rest = &rest[size..];
        }
        assert!(rest.is_empty(), "{} bytes are no record", rest.len());
        found
    }

    #[test]
    fn resuming_removes_later_events() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("events");
        let mut file = EventFile::open_after(&path, 0).unwrap();
        for step in 1..=200 {
            file.append(&metrics(step)).unwrap();
        }
        let mut file = EventFile::open_after(&path, 130).unwrap();
        file.append(&metrics(131)).unwrap();
        let expected: Vec<_> = [None].into_iter().chain((1..=131).map(Some)).collect();
        assert_eq!(steps(&path), expected);

        EventFile::open_after(&path, 0).unwrap();
        assert_eq!(steps(&path), [None]);
    }

    /// A wrong bit or missing bytes in the middle of a file are reported, and only the records that
    /// contain them are lost.
    ///
    /// The times are constant: where a record ends with the byte that the next one begins with, a
    /// missing byte could be of either.
    #[test]
    fn records_after_damage_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("events");
        let mut whole = record(&version(1.0));
        let mut ends = vec![whole.len()];
        for step in 1..=4 {
            whole.extend(record(&scalars_event(1.0, &metrics(step))));
            ends.push(whole.len());
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(EventFile::open_after(&path, 9).unwrap().damage(), None);
        assert!(fs::read(&path).unwrap() == whole);

        for at in 0..ends[3] {
            // Record 0 is the version.
            let lost = ends.iter().filter(|end| **end <= at).count();
            let start = lost.checked_sub(1).map_or(0, |before| ends[before]);
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            let missing = [&whole[..at], &whole[at + 1..]].concat();
            for (damaged, bytes) in
                [(flipped, ends[lost] - start), (missing, ends[lost] - start - 1)]
            {
                fs::write(&path, damaged).unwrap();
                let file = EventFile::open_after(&path, 3).unwrap();
                let all = [None].into_iter().chain((1..=3).map(Some));
                // A lost version is written again.
                let is_kept = |step: &Option<u64>| step.is_none() || *step != Some(lost as u64);
                assert_eq!(steps(&path), all.filter(is_kept).collect::<Vec<_>>(), "byte {at}");
                let damage = file.damage().unwrap();
                assert_eq!((damage.offset, damage.bytes, damage.records), (start, bytes, 3));
            }
        }
        let message = format!("{} was damaged from byte {} on: ", path.display(), ends[2]);
        let mut flipped = whole.clone();
        flipped[ends[2]] ^= 1;
        fs::write(&path, flipped).unwrap();
        let file = EventFile::open_after(&path, 4).unwrap();
        let found = file.damage().unwrap().to_string();
        assert!(found.starts_with(&message) && found.ends_with("4 records are kept"), "{found}");
    }

    /// A file that ends anywhere, or whose last record has a wrong bit, keeps the records before.
    /// The end is reported if the run has done its step.
    #[test]
    fn damaged_records_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("events");
        let mut file = EventFile::open_after(&path, 0).unwrap();
        file.append(&metrics(1)).unwrap();
        let first = fs::read(&path).unwrap().len();
        file.append(&metrics(2)).unwrap();
        let whole = fs::read(&path).unwrap();

        for at in first..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            for damaged in [&whole[..at], &flipped] {
                for step in [1, 2] {
                    fs::write(&path, damaged).unwrap();
                    let file = EventFile::open_after(&path, step).unwrap();
                    assert_eq!(steps(&path), [None, Some(1)], "byte {at}");
                    let found = file.damage().map(|it| (it.offset, it.bytes, it.records));
                    let bytes = damaged.len() - first;
                    let expected = (step == 2 && bytes > 0).then_some((first, bytes, 2));
                    assert_eq!(found, expected, "byte {at}");
                }
            }
        }
    }
}
