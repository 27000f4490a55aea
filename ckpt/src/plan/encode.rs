//! The encoding of a plan for its digest.

use twox_hash::XxHash3_128;

use super::digest::Digest;
use super::load_plan::LoadPlan;

impl LoadPlan {
    /// The digest of all reads and copies: ranks or runs with equal digests read and write the
    /// same.
    pub fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| of(self))
    }
}

/// Must be changed together with the encoding below.
const VERSION: u64 = 1;

/// Targets are numbered by ranks that depend only on their names.
fn of(plan: &LoadPlan) -> Digest {
    let ranks = &plan.ranks;
    let mut to = Encoder::default();
    to.number(VERSION);

    // Each target has its own hash, stored at its rank.
    let (mut targets, mut one) = (vec![0; ranks.len()], Encoder::default());
    for (target, rank) in plan.targets.iter().zip(ranks) {
        one.text(&target.name);
        one.text(target.dtype.name());
        one.numbers(target.shape.iter().copied());
        targets[*rank as usize] = one.finish();
    }
    to.number(targets.len() as u64);
    targets.iter().for_each(|hash| to.bytes(&hash.to_le_bytes()));

    to.number(plan.files.len() as u64);
    for file in &plan.files {
        to.text(&file.name);
        to.number(file.bytes);
    }
    to.number(plan.copies.len() as u64);
    for copy in &plan.copies {
        let [file, element] = [copy.file, copy.element].map(u64::from);
        let target = ranks[copy.target as usize].into();
        to.numbers([file, copy.from, target, copy.to, element]);
        to.numbers(copy.loops.iter().flat_map(|it| [it.count, it.from, it.to]));
        let conversion = plan.conversion(copy);
        to.number(conversion.is_some().into());
        if let Some(conversion) = conversion {
            to.text(conversion.from.name());
            to.text(&format!("{:?}", conversion.steps));
        }
    }
    to.number(plan.fills.len() as u64);
    for fill in &plan.fills {
        to.numbers([ranks[fill.target as usize].into(), fill.to]);
        to.numbers(fill.element.iter().map(|byte| u64::from(*byte)));
        to.numbers(fill.loops.iter().flat_map(|it| [it.count, it.to]));
    }
    to.number(plan.computed_chunks.len() as u64);
    for computed_chunk in &plan.computed_chunks {
        to.text(plan.computed[computed_chunk.computed].computation.name());
        to.numbers([computed_chunk.rows.start, computed_chunk.rows.end]);
        to.bytes(&computed_chunk.plan.digest().to_bytes());
    }
    to.number(plan.chunks.len() as u64);
    for chunk in &plan.chunks {
        to.numbers([u64::from(chunk.file), chunk.own.start, chunk.own.end]);
        to.numbers([chunk.read.start, chunk.read.end]);
        to.numbers(chunk.in_place);
    }
    Digest(to.finish())
}

/// Every variable-length value is preceded by its length, so that plans have unique encodings.
#[derive(Default)]
struct Encoder {
    hash: XxHash3_128,
    /// Not hashed yet: hashing a few bytes at a time is slow.
    pending: Vec<u8>,
}

impl Encoder {
    fn bytes(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() > 1 << 14 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.hash.write(&self.pending);
        self.pending.clear();
    }

    /// Returns the hash of the values since the last call.
    fn finish(&mut self) -> u128 {
        self.flush();
        let hash = self.hash.finish_128();
        self.hash = XxHash3_128::new();
        hash
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let mut count = 0;
        for number in numbers {
            self.number(number);
            count += 1;
        }
        self.number(count);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.number(text.len() as u64);
    }
}
