//! An emulator device for the tests.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use half::bf16;
use meshgrad_emulator::launch::launch;
use meshgrad_emulator::memory::{AddressSpace, MemoryKind};
use meshgrad_emulator::program::{Kernel, Module};
use meshgrad_emulator::{AsyncCopies, Counters, Options};
use meshgrad_kernels::faults::Fault;
use meshgrad_kernels::{Dtype, Launch, Variant};

/// An empty device with one execution order.
pub(crate) struct Device {
    space: AddressSpace,
    options: Options,
    loaded: RefCell<HashMap<String, Arc<Kernel>>>,
    reached: RefCell<Reached>,
}

/// The executed instructions of each kernel.
pub(crate) type Reached = BTreeMap<String, Lines>;

/// The lines of a kernel's PTX that hold instructions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    pub(crate) reached: BTreeSet<u32>,
    /// Not executed by any launch so far; with their text.
    pub(crate) missed: BTreeSet<(u32, String)>,
}

impl Lines {
    /// Adds the lines of another launch.
    pub(crate) fn add(&mut self, other: &Lines) {
        self.reached.extend(&other.reached);
        self.missed.extend(other.missed.iter().cloned());
        self.missed.retain(|(line, _)| !self.reached.contains(line));
    }
}

impl Device {
    /// One device per kind of execution order.
    pub(crate) fn all() -> impl Iterator<Item = Device> {
        Device::in_random_orders(&[0])
    }

    /// A device that completes asynchronous copies immediately, one that completes them as late as
    /// possible, and one with a random order for each seed.
    pub(crate) fn in_random_orders(seeds: &[u64]) -> impl Iterator<Item = Device> {
        let random = seeds.iter().map(|seed| {
            let async_copies = AsyncCopies::Random { seed: 3 + seed };
            (Some(2 + seed), async_copies)
        });
        let plain = [(None, AsyncCopies::Eager), (Some(1), AsyncCopies::Lazy)];
        plain.into_iter().chain(random).map(|(schedule_seed, async_copies)| Device {
            space: AddressSpace::new(),
            loaded: RefCell::default(),
            reached: RefCell::default(),
            options: Options { schedule_seed, async_copies, counters: true, ..Options::default() },
        })
    }

    /// The instructions that the launches so far executed.
    pub(crate) fn reached(&self) -> Reached {
        self.reached.borrow().clone()
    }

    /// The device with the eager order.
    pub(crate) fn plain() -> Device {
        Device::all().next().unwrap()
    }

    /// Allocates memory and writes these bytes to it.
    pub(crate) fn put(&self, bytes: &[u8]) -> u64 {
        let address = self.room(bytes.len());
        self.space.write(address, bytes).unwrap();
        address
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.space.write(address, bytes).unwrap();
    }

    /// Skips addresses before the next allocation: addresses of freed memory are not reused.
    pub(crate) fn skip(&self, bytes: u64) {
        const PIECE: usize = 64 << 20;
        for _ in 0..bytes.div_ceil(PIECE as u64) {
            self.space.free(self.room(PIECE)).unwrap();
        }
    }

    /// Allocates memory and writes these values to it, rounded to `dtype`.
    pub(crate) fn put_floats(&self, dtype: Dtype, values: &[f32]) -> u64 {
        self.put(&encoded(dtype, values))
    }

    /// Allocates uninitialized memory.
    pub(crate) fn room(&self, bytes: usize) -> u64 {
        self.space.allocate(bytes.max(1), MemoryKind::Device(0)).unwrap()
    }

    pub(crate) fn bytes(&self, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.space.read(address, &mut bytes).unwrap();
        bytes
    }

    /// The fault that a fault word reports, if any.
    pub(crate) fn fault(&self, word: u64) -> Option<Fault> {
        let word: [u8; 8] = self.bytes(word, 8).try_into().unwrap();
        Fault::from_word(u64::from_le_bytes(word))
    }

    pub(crate) fn floats(&self, dtype: Dtype, address: u64, count: usize) -> Vec<f32> {
        decoded(dtype, &self.bytes(address, count * dtype.size() as usize))
    }

    fn kernel(&self, variant: &impl Variant) -> Arc<Kernel> {
        let mut loaded = self.loaded.borrow_mut();
        let kernel = loaded.entry(variant.entry()).or_insert_with(|| {
            let module = Module::load(&variant.ptx().text, &self.space, 0, &Options::default());
            let module = module.unwrap_or_else(|error| panic!("{error}"));
            module.kernel(&variant.entry()).unwrap()
        });
        kernel.clone()
    }

    /// Runs a kernel to its end.
    pub(crate) fn run<V: Variant>(
        &self,
        variant: &V,
        extents: Launch,
        arguments: &V::Arguments,
    ) -> Counters {
        let (kernel, packed) = (self.kernel(variant), variant.pack(arguments));
        let call = meshgrad_emulator::launch::Launch {
            kernel: &kernel,
            grid: extents.grid,
            block: extents.block,
            dynamic_shared: extents.dynamic_shared,
            parameters: packed.bytes(),
            multiprocessors: 4,
        };
        let counters =
            launch(&self.space, &call, &self.options).unwrap_or_else(|error| panic!("{error}"));
        self.note(&counters);
        counters
    }

    fn note(&self, counters: &Counters) {
        let lines = Lines {
            reached: counters.instructions.iter().map(|it| it.0).collect(),
            missed: counters.unreached.iter().cloned().collect(),
        };
        let mut reached = self.reached.borrow_mut();
        reached.entry(counters.kernel.clone()).or_default().add(&lines);
    }
}

/// The bytes of values, rounded to `dtype`.
pub(crate) fn encoded(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let bytes = |x: &f32| match dtype {
        Dtype::F32 => x.to_le_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

/// The values of these bytes.
pub(crate) fn decoded(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        Dtype::Bf16 => {
            let values = bytes.as_chunks().0.iter();
            values.map(|x| bf16::from_le_bytes(*x).to_f32()).collect()
        }
    }
}

/// Pseudo-random values between -1 and 1, exact in `dtype`.
pub(crate) fn values(dtype: Dtype, count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values: Vec<f32> = (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect();
    decoded(dtype, &encoded(dtype, &values))
}
