//! Per-instruction counters of a launch, as a profiler shows them.

use std::fmt::Write;

use super::addresses::ResolvedAddresses;
use super::check::AccessInfo;
use super::cta::Cta;
use super::registers::lanes_of;
use super::windows::MemoryId;
use crate::memory::ByteSet;
use crate::program::Kernel;

/// Counts of one instruction, or of all instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Executions by a warp.
    pub executed: u64,
    /// Active lanes, summed over all executions.
    pub lanes: u64,
    /// 32-byte sectors of global memory accessed.
    pub sectors: u64,
    /// The fewest sectors that hold these bytes.
    pub ideal_sectors: u64,
    /// Wavefronts of shared memory: passes over its banks.
    pub wavefronts: u64,
    /// The fewest wavefronts for these bytes. A higher count means bank conflicts.
    pub ideal_wavefronts: u64,
    /// Bytes read from global memory.
    pub bytes_read: u64,
    /// Bytes written to global memory.
    pub bytes_written: u64,
    /// Floating-point operations; a fused multiply-add counts as two.
    pub flops: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.executed += other.executed;
        self.lanes += other.lanes;
        self.sectors += other.sectors;
        self.ideal_sectors += other.ideal_sectors;
        self.wavefronts += other.wavefronts;
        self.ideal_wavefronts += other.ideal_wavefronts;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.flops += other.flops;
    }
}

/// The counters of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The kernel.
    pub kernel: String,
    /// CTAs of the grid.
    pub ctas: u64,
    /// The sum over all instructions.
    pub total: Counts,
    /// Distinct bytes of global memory read.
    pub unique_bytes_read: u64,
    /// Distinct bytes of global memory written.
    pub unique_bytes_written: u64,
    /// Per instruction: its PTX line, text and counts. Empty unless counting is on.
    pub instructions: Vec<(u32, String, Counts)>,
    /// Instructions that no warp executed: PTX line and text. Empty unless counting is on.
    pub unreached: Vec<(u32, String)>,
}

impl Counters {
    /// `counts` has one element per instruction of the kernel.
    pub(crate) fn new(kernel: &Kernel, ctas: u64, counts: &[Counts], unique: [u64; 2]) -> Counters {
        let mut total = Counts::default();
        let (mut instructions, mut unreached) = (Vec::new(), Vec::new());
        let lines: Vec<&str> = kernel.text.lines().collect();
        for (place, (instruction, counts)) in kernel.code.iter().zip(counts).enumerate() {
            total.add(counts);
            let line = lines.get((instruction.line as usize).saturating_sub(1));
            let text = line.map_or("", |line| line.trim()).to_owned();
            match counts.executed {
                0 if place == kernel.end => {} // the implicit exit
                0 => unreached.push((instruction.line, text)),
                _ => instructions.push((instruction.line, text, *counts)),
            }
        }
        Counters {
            kernel: kernel.name.clone(),
            ctas,
            total,
            unique_bytes_read: unique[0],
            unique_bytes_written: unique[1],
            instructions,
            unreached,
        }
    }

    /// Formats the counters as one JSON object.
    pub fn to_json(&self) -> String {
        let mut json = format!(
            "{{\"kernel\":{},\"ctas\":{},\"unique_bytes_read\":{},\"unique_bytes_written\":{},{},\
             \"by_instruction\":[",
            quoted(&self.kernel),
            self.ctas,
            self.unique_bytes_read,
            self.unique_bytes_written,
            fields(&self.total)
        );
        for (index, (line, text, counts)) in self.instructions.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let text = quoted(text);
            let counts = fields(counts);
            // Writing to a string cannot fail.
            let _ = write!(json, "{comma}{{\"line\":{line},\"text\":{text},{counts}}}");
        }
        json.push_str("],\"unreached\":[");
        for (index, (line, text)) in self.unreached.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let text = quoted(text);
            let _ = write!(json, "{comma}{{\"line\":{line},\"text\":{text}}}");
        }
        json.push_str("]}");
        json
    }

    /// Formats the counters as a human-readable table.
    pub fn to_table(&self) -> String {
        let mut table = format!(
            "{}: {} CTAs, {} warp instructions, {} FLOPs\n\
             global memory: {} bytes read ({} different), {} written ({} different)\n\
             {:>6} {:>10} {:>6} {:>9} {:>8} {:>10} {:>6}  instruction\n",
            self.kernel,
            self.ctas,
            self.total.executed,
            self.total.flops,
            self.total.bytes_read,
            self.unique_bytes_read,
            self.total.bytes_written,
            self.unique_bytes_written,
            "line",
            "executed",
            "lanes",
            "sectors",
            "x ideal",
            "wavefronts",
            "x ideal",
        );
        for (line, text, counts) in &self.instructions {
            let lanes = ratio(counts.lanes, counts.executed);
            let _ = writeln!(
                table,
                "{line:>6} {:>10} {lanes:>6} {:>9} {:>8} {:>10} {:>6}  {text}",
                counts.executed,
                counts.sectors,
                ratio(counts.sectors, counts.ideal_sectors),
                counts.wavefronts,
                ratio(counts.wavefronts, counts.ideal_wavefronts),
            );
        }
        table
    }
}

fn ratio(value: u64, of: u64) -> String {
    match of {
        0 => "-".to_owned(),
        _ => format!("{:.2}", value as f64 / of as f64),
    }
}

fn fields(counts: &Counts) -> String {
    let Counts {
        executed,
        lanes,
        sectors,
        ideal_sectors,
        wavefronts,
        ideal_wavefronts,
        bytes_read,
        bytes_written,
        flops,
    } = counts;
    format!(
        "\"executed\":{executed},\"lanes\":{lanes},\"sectors\":{sectors},\
         \"ideal_sectors\":{ideal_sectors},\"wavefronts\":{wavefronts},\
         \"ideal_wavefronts\":{ideal_wavefronts},\"bytes_read\":{bytes_read},\
         \"bytes_written\":{bytes_written},\"flops\":{flops}"
    )
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl Cta<'_> {
    /// Counts an access, if counting is on.
    #[inline(always)]
    pub(super) fn count_access(&mut self, resolved: &ResolvedAddresses, info: AccessInfo) {
        if !self.counts.is_empty() {
            self.count_sectors_and_wavefronts(resolved, info);
        }
    }

    fn count_sectors_and_wavefronts(&mut self, resolved: &ResolvedAddresses, info: AccessInfo) {
        let ResolvedAddresses { memory, lanes, ref offsets } = *resolved;
        let counts = &mut self.counts[info.pc as usize];
        let bytes = u64::from(lanes.count_ones()) * info.bytes as u64;
        match memory {
            MemoryId::Shared => {
                let (wavefronts, ideal) = wavefronts(offsets, lanes, info.bytes);
                counts.wavefronts += wavefronts;
                counts.ideal_wavefronts += ideal;
            }
            MemoryId::Global(index) => {
                let (sectors, ideal) = sectors(offsets, lanes, info.bytes);
                counts.sectors += sectors;
                counts.ideal_sectors += ideal;
                counts.bytes_read += if info.reads { bytes } else { 0 };
                counts.bytes_written += if info.writes { bytes } else { 0 };
                self.count_different_bytes(index, resolved, info);
            }
            MemoryId::Local | MemoryId::Param => {}
        }
    }

    /// Marks bytes of the allocation with this index as read or written.
    fn count_different_bytes(&self, index: usize, resolved: &ResolvedAddresses, info: AccessInfo) {
        let Some(accessed) = &self.grid.accessed else {
            return;
        };
        let block = self.grid.allocations[index].info.bytes;
        let sets = accessed[index].iter().zip([info.reads, info.writes]);
        for (set, _) in sets.filter(|(_, is_accessed)| *is_accessed) {
            let set = set.get_or_init(|| ByteSet::new(block));
            for lane in lanes_of(resolved.lanes) {
                set.set(resolved.offsets[lane] as usize, info.bytes);
            }
        }
    }
}

/// The maximum number of sectors or bank words of one access: eight lanes of 32 bytes, each of
/// which spans up to nine words.
const MAX_ACCESSED: usize = 72;

/// 32-byte sectors accessed by lanes with `bytes` bytes at `offsets`, and the fewest possible.
pub(crate) fn sectors(offsets: &[u64; 32], mask: u32, bytes: usize) -> (u64, u64) {
    let accessed = lanes_of(mask)
        .flat_map(|lane| offsets[lane] / 32..=(offsets[lane] + bytes as u64 - 1) / 32);
    let accessed = distinct(accessed, &mut [0; MAX_ACCESSED]).len();
    let different = distinct(lanes_of(mask).map(|lane| offsets[lane]), &mut [0; 32]).len();
    let ideal = (different * bytes).div_ceil(32) as u64;
    (accessed as u64, ideal)
}

/// Wavefronts over 32 banks of 4 bytes for a shared-memory access, and the fewest possible.
/// An access of 8 or 16 bytes per lane is served per half warp or quarter warp.
pub(crate) fn wavefronts(offsets: &[u64; 32], mask: u32, bytes: usize) -> (u64, u64) {
    let lanes_at_once = match bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let (mut wavefronts, mut ideal) = (0, 0);
    for first in (0..32).step_by(lanes_at_once) {
        let part = mask & (u32::MAX >> (32 - lanes_at_once)) << first;
        if part == 0 {
            continue;
        }
        let words = lanes_of(part)
            .flat_map(|lane| offsets[lane] / 4..=(offsets[lane] + bytes as u64 - 1) / 4);
        let mut room = [0; MAX_ACCESSED];
        let words = distinct(words, &mut room);
        let mut banks = [0u64; 32];
        for word in words {
            banks[(*word % 32) as usize] += 1;
        }
        wavefronts += banks.iter().max().copied().unwrap_or(0).max(1);
        ideal += words.len().div_ceil(32).max(1) as u64;
    }
    (wavefronts, ideal)
}

/// Sorts the numbers and removes duplicates. It runs on every access, so it does not allocate.
fn distinct(numbers: impl Iterator<Item = u64>, room: &mut [u64]) -> &[u64] {
    let mut count = 0;
    for number in numbers {
        room[count] = number;
        count += 1;
    }
    room[..count].sort_unstable();
    let mut kept = 0;
    for at in 0..count {
        if kept == 0 || room[at] != room[kept - 1] {
            room[kept] = room[at];
            kept += 1;
        }
    }
    &room[..kept]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(stride: u64) -> [u64; 32] {
        std::array::from_fn(|lane| lane as u64 * stride)
    }

    #[test]
    fn json_lists_executed_and_unreached_instructions() {
        let total = Counts { executed: 3, ..Counts::default() };
        let counters = Counters {
            kernel: "k".into(),
            ctas: 1,
            total,
            instructions: vec![(7, "bra \"x\";".into(), total)],
            unreached: vec![(8, "trap;".into()), (9, "ret;".into())],
            ..Counters::default()
        };
        let json = counters.to_json();
        assert!(
            json.contains(r#""by_instruction":[{"line":7,"text":"bra \"x\";","executed":3,"#),
            "{json}"
        );
        let unreached = r#""unreached":[{"line":8,"text":"trap;"},{"line":9,"text":"ret;"}]}"#;
        assert!(json.ends_with(unreached), "{json}");
    }

    #[test]
    fn sectors_of_strides() {
        assert_eq!(sectors(&offsets(4), u32::MAX, 4), (4, 4));
        assert_eq!(sectors(&offsets(16), u32::MAX, 16), (16, 16));
        assert_eq!(sectors(&offsets(128), u32::MAX, 4), (32, 4));
        assert_eq!(sectors(&offsets(0), u32::MAX, 4), (1, 1));
        assert_eq!(sectors(&offsets(4), 0b1, 2), (1, 1));
    }

    #[test]
    fn wavefronts_of_strides() {
        assert_eq!(wavefronts(&offsets(4), u32::MAX, 4), (1, 1));
        assert_eq!(wavefronts(&offsets(8), u32::MAX, 4), (2, 1));
        assert_eq!(wavefronts(&offsets(128), u32::MAX, 4), (32, 1));
        assert_eq!(wavefronts(&offsets(0), u32::MAX, 4), (1, 1));
        assert_eq!(wavefronts(&offsets(132), u32::MAX, 4), (1, 1));
        assert_eq!(wavefronts(&offsets(16), u32::MAX, 16), (4, 4));
    }
}
