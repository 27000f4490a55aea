//! The plan: turns requests into chunks and computes their cost.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use meshgrad_error::{Error, Kind, Result};

use super::catalog::{Catalog, CatalogFile};
use super::chunk::{self, Chunk, Cut, Origin, Rules};
use super::computed::ComputedTensor;
use super::copy::ByteCopy;
use super::digest::Digest;
use super::fill::Fill;
use super::gather::{self, Conversion};
use super::options::{Options, Targets};
use super::request::{LoadRequest, Target};
use crate::graph::Graph;
use crate::source::Windows;

/// The memory that executing a plan needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Targets: all of them, or only incomplete ones, depending on [`Options::targets`].
    pub targets: u64,
    /// Windows of all threads.
    pub windows: u64,
    /// The plan itself.
    pub plan: u64,
}

impl Memory {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.targets + self.windows + self.plan
    }
}

/// The reads of a load, their destinations and their cost.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    pub(super) targets: Vec<Target>,
    pub(super) files: Vec<CatalogFile>,
    tensors: Vec<Arc<str>>,
    pub(super) copies: Vec<ByteCopy>,
    conversions: Vec<Conversion>,
    pub(super) fills: Vec<Fill>,
    pub(super) computed: Vec<ComputedTensor>,
    /// The computations of the computed chunks, in order. These chunks follow the chunks of files.
    pub(super) computed_chunks: Vec<ComputedChunk>,
    pub(super) chunks: Vec<Chunk>,
    touched: Vec<u32>,
    memory: Memory,
    threads: usize,
    /// The rank of each target in an order that depends only on names.
    pub(super) ranks: Vec<u32>,
    /// Computed on first use: hashing is slow, and a single rank does not need the digest.
    pub(super) digest: OnceLock<Digest>,
}

/// The budget for a plan is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Infeasible {
    /// The minimum in bytes.
    pub need: u64,
    /// The budget.
    pub have: u64,
    /// Bytes of the minimum that are for targets.
    pub targets: u64,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Infeasible { need, have, targets } = self;
        write!(
            f,
            "the plan needs {need} bytes of memory, but the budget is {have}: {targets} are for \
             targets alone; raise the budget, use fewer threads, or load less at once"
        )
    }
}

impl LoadPlan {
    /// Plans a load without reading any data.
    ///
    /// # Errors
    /// When a region cannot be traced, tensors are missing or differ from the graph, or the budget
    /// is too small; the last has [`Infeasible`] as details.
    pub fn new(
        graph: &Graph,
        catalog: &Catalog<'_>,
        requests: &[LoadRequest],
        options: &Options,
    ) -> Result<LoadPlan> {
        let gathered = gather::gather(graph, catalog, requests)?;
        let mut plan = LoadPlan {
            targets: gathered.targets,
            files: catalog.files.clone(),
            tensors: gathered.tensors,
            copies: gathered.copies,
            conversions: gathered.conversions,
            fills: gathered.fills,
            computed: gathered.computed,
            computed_chunks: Vec::new(),
            chunks: Vec::new(),
            touched: Vec::new(),
            memory: Memory { targets: 0, windows: 0, plan: 0 },
            threads: options.threads.max(1),
            ranks: gathered.ranks,
            digest: OnceLock::new(),
        };

        let mut window = options.window.max(options.alignment).max(1);
        while let Err(infeasible) = plan.cut(window, graph, catalog, options) {
            let is_too_much = infeasible.details::<Infeasible>().is_some();
            if !is_too_much || window <= Options::MIN_WINDOW {
                return Err(infeasible);
            }
            window = (window / 2).max(Options::MIN_WINDOW);
        }
        Ok(plan)
    }

    /// Divides the reads into chunks for windows of this size. Fails if the memory exceeds the
    /// budget.
    fn cut(
        &mut self,
        window: u64,
        graph: &Graph,
        catalog: &Catalog<'_>,
        options: &Options,
    ) -> Result<()> {
        let rules =
            Rules { gap: options.gap.min(window), window, in_place: options.in_place.max(1) };
        let files = self.files.iter().map(|file| Origin {
            bytes: file.bytes,
            alignment: options.alignment.max(1),
            is_computed: false,
        });
        let computed = self.computed.iter().map(ComputedTensor::origin);
        let origins: Vec<Origin> = files.chain(computed).collect();
        let Cut { chunks, touched } = chunk::cut(&self.copies, &origins, &rules);
        (self.chunks, self.touched) = (chunks, touched);
        self.make(graph, catalog, &Options { window, ..options.clone() })?;

        let at_once = self.open_targets();
        let (least, most) = match options.targets {
            Targets::Released => (at_once.start, at_once.end),
            Targets::Retained => {
                let all = self.targets.iter().map(|target| target.bytes).sum();
                (all, all)
            }
        };
        let computed_chunks = self.computed_chunks.iter().map(|it| it.plan.memory.total());
        let windows = Windows::footprint(self.threads, self.window_bytes()) as u64
            + computed_chunks.max().unwrap_or(0) * self.threads as u64;
        let plan = self.own_bytes();
        let have = options.budget.unwrap_or(u64::MAX);
        let need = least + windows + plan;
        if need > have {
            let infeasible = Infeasible { need, have, targets: least };
            return Err(Error::with_details(Kind::OutOfMemory, infeasible));
        }
        let targets = most.min(have - windows - plan);
        self.memory = Memory { targets, windows, plan };
        Ok(())
    }

    /// Plans how the computed chunks are computed.
    fn make(&mut self, graph: &Graph, catalog: &Catalog<'_>, options: &Options) -> Result<()> {
        let chunks = self.chunks.iter();
        let computed_chunks = chunks.filter_map(|chunk| {
            let number = (chunk.file as usize).checked_sub(self.files.len())?;
            let computed = &self.computed[number];
            Some(computed_chunk(computed, number, chunk, graph, catalog, options))
        });
        self.computed_chunks = computed_chunks.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Sets [`Chunk::opening`]. Returns two peaks of the bytes of incomplete targets. The minimum
    /// is for chunks that run one by one in order; the maximum is for threads that all work on
    /// consecutive chunks without waiting.
    fn open_targets(&mut self) -> Range<u64> {
        let mut last_chunk = vec![0; self.targets.len()];
        for (chunk, number) in self.chunks.iter().zip(1usize..) {
            for target in self.targets_of(chunk) {
                last_chunk[target] = number;
            }
        }
        let mut is_open = vec![false; self.targets.len()];
        // For each chunk, the bytes of incomplete targets before it.
        let mut open_before = Vec::with_capacity(self.chunks.len());
        let mut open = 0;
        for number in 1..=self.chunks.len() {
            let (mut opening, mut closing) = (0, 0);
            for target in self.targets_of(&self.chunks[number - 1]) {
                let bytes = self.targets[target].bytes;
                if !std::mem::replace(&mut is_open[target], true) {
                    opening += bytes;
                }
                if last_chunk[target] == number {
                    last_chunk[target] = 0;
                    closing += bytes;
                }
            }
            self.chunks[number - 1].opening = opening;
            open_before.push(open);
            open = open + opening - closing;
        }

        let at_once = |threads: usize| {
            let following = (0..self.chunks.len()).map(|first| {
                let chunks = self.chunks[first..].iter().take(threads);
                open_before[first] + chunks.map(|chunk| chunk.opening).sum::<u64>()
            });
            following.max().unwrap_or(0)
        };
        at_once(1)..at_once(self.threads)
    }

    fn targets_of(&self, chunk: &Chunk) -> impl Iterator<Item = usize> {
        self.copies_of(chunk).map(|copy| copy.target as usize)
    }

    fn own_bytes(&self) -> u64 {
        fn of<T>(items: &[T]) -> usize {
            size_of_val(items)
        }
        let spilled = self.copies.iter().filter(|copy| copy.loops.spilled());
        let loops = spilled.map(|copy| of(&copy.loops));
        let names = self.tensors.iter().map(|it| it.len());
        let targets = self.targets.iter();
        let targets = targets.map(|target| target.name.len() + of(&target.shape));
        let files = self.files.iter().map(|file| file.name.len());
        let inside: usize = loops.chain(names).chain(targets).chain(files).sum();
        let flat = of(&self.ranks)
            + of(&self.copies)
            + of(&self.chunks)
            + of(&self.touched)
            + of(&self.fills);
        let inner: u64 = self.computed_chunks.iter().map(|it| it.plan.own_bytes()).sum();
        let named = of(&self.tensors) + of(&self.targets) + of(&self.files);
        (inside + flat + named) as u64 + inner
    }

    /// The targets, in the order of the requests.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Bytes of files that targets depend on.
    pub fn needed_bytes(&self) -> u64 {
        let is_read = |copy: &&ByteCopy| (copy.file as usize) < self.files.len();
        let copies = self.copies.iter().filter(is_read);
        let computed_chunks = self.computed_chunks.iter().map(|it| it.plan.needed_bytes());
        copies.map(ByteCopy::bytes).chain(computed_chunks).sum()
    }

    /// Bytes that are read.
    pub fn read_bytes(&self) -> u64 {
        let chunks = self.read_chunks().iter();
        let bytes = chunks.map(|chunk| chunk.read.end - chunk.read.start);
        let computed_chunks = self.computed_chunks.iter().map(|it| it.plan.read_bytes());
        bytes.chain(computed_chunks).sum()
    }

    /// The chunks that are read from files.
    fn read_chunks(&self) -> &[Chunk] {
        &self.chunks[..self.chunks.len() - self.computed_chunks.len()]
    }

    /// Bytes read per byte needed. More than 1 if gaps are read; less if targets share reads; 1 if
    /// nothing is needed.
    pub fn amplification(&self) -> f64 {
        match self.needed_bytes() {
            0 => 1.0,
            needed => self.read_bytes() as f64 / needed as f64,
        }
    }

    /// The number of reads, and of contiguous extents of the files.
    pub fn reads(&self) -> Reads {
        let adjoins =
            |pair: &[Chunk]| pair[0].file == pair[1].file && pair[0].own.end == pair[1].own.start;
        let chunks = self.read_chunks();
        let joints = chunks.windows(2).filter(|pair| adjoins(pair)).count();
        let mut files: BTreeSet<u32> = chunks.iter().map(|chunk| chunk.file).collect();
        let mut reads = chunks.len();
        let mut extents = chunks.len() - joints;
        for computed_chunk in &self.computed_chunks {
            let inner = computed_chunk.plan.reads();
            (reads, extents) = (reads + inner.reads, extents + inner.extents);
            files.extend(computed_chunk.plan.files_read());
        }
        Reads { reads, extents, files: files.len() }
    }

    /// The files that are read.
    fn files_read(&self) -> Vec<u32> {
        let own = self.read_chunks().iter().map(|chunk| chunk.file);
        let inner = self.computed_chunks.iter().flat_map(|it| it.plan.files_read());
        own.chain(inner).collect()
    }

    /// The memory that execution needs.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// The duration of the reads in seconds at this bandwidth in bytes per second.
    pub fn seconds_at(&self, bytes_per_second: f64) -> f64 {
        self.read_bytes() as f64 / bytes_per_second
    }

    pub(crate) fn files(&self) -> &[CatalogFile] {
        &self.files
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// The name of the tensor that a copy reads.
    pub(crate) fn tensor(&self, copy: &ByteCopy) -> &str {
        &self.tensors[copy.tensor as usize]
    }

    /// How a chunk is computed; `None` if it is read.
    pub(crate) fn computed_chunk(
        &self,
        chunk: &Chunk,
    ) -> Option<(&ComputedTensor, &ComputedChunk)> {
        (chunk.file as usize).checked_sub(self.files.len())?;
        let first = self.chunks.len() - self.computed_chunks.len();
        let number = self.chunks[first..]
            .partition_point(|it| (it.file, it.own.start) < (chunk.file, chunk.own.start));
        let computed_chunk = self.computed_chunks.get(number)?;
        Some((&self.computed[computed_chunk.computed], computed_chunk))
    }

    /// The constant elements of targets.
    pub(crate) fn fills(&self) -> &[Fill] {
        &self.fills
    }

    /// The conversion of each element of a copy.
    pub(crate) fn conversion(&self, copy: &ByteCopy) -> Option<&Conversion> {
        copy.conversion.map(|at| &self.conversions[at as usize])
    }

    /// The copies that use a chunk.
    pub(crate) fn copies_of(&self, chunk: &Chunk) -> impl Iterator<Item = &ByteCopy> {
        let touched = &self.touched[chunk.touched.start as usize..chunk.touched.end as usize];
        touched.iter().map(|copy| &self.copies[*copy as usize])
    }

    /// Bytes of the window that each thread needs.
    pub(crate) fn window_bytes(&self) -> usize {
        let windowed = self.chunks.iter().filter(|chunk| chunk.in_place.is_none());
        let bytes = windowed.map(|chunk| chunk.read.end - chunk.read.start);
        bytes.max().unwrap_or(0) as usize
    }
}

/// The number of reads of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// Read requests.
    pub reads: usize,
    /// Contiguous extents of files.
    pub extents: usize,
    /// Files that are read.
    pub files: usize,
}

/// The computation of one chunk of a computed tensor.
#[derive(Clone, Debug)]
pub(crate) struct ComputedChunk {
    /// The tensor: an index into [`LoadPlan::computed`].
    pub(crate) computed: usize,
    pub(crate) rows: Range<u64>,
    /// The rows of each operand that are loaded.
    pub(crate) operand_rows: Vec<Range<u64>>,
    /// Loads these rows: one target per operand.
    pub(crate) plan: LoadPlan,
}

/// Plans the computation of a chunk by one thread.
fn computed_chunk(
    computed: &ComputedTensor,
    number: usize,
    chunk: &Chunk,
    graph: &Graph,
    catalog: &Catalog<'_>,
    options: &Options,
) -> Result<ComputedChunk> {
    let rows = computed.rows(chunk);
    let operand_rows = computed.operand_rows(rows.clone());
    let requests = computed.requests(&operand_rows);
    let options =
        Options { threads: 1, targets: Targets::Retained, budget: None, ..options.clone() };
    Ok(ComputedChunk {
        computed: number,
        rows,
        operand_rows,
        plan: LoadPlan::new(graph, catalog, &requests, &options)?,
    })
}
