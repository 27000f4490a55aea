//! Everything needed to load and launch a kernel: its text, launch geometry and parameter bytes.

/// The virtual architecture that a kernel is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Compute capability 8.0 and everything newer.
    Sm80,
    /// Compute capability 9.0 with its architecture-specific instructions, and nothing newer.
    Sm90a,
}

impl Target {
    /// Its name in a `.target` directive.
    pub fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
        }
    }

    /// The lowest PTX version that has the instructions we use, since a driver rejects newer
    /// versions than its own.
    pub(super) fn ptx_version(self) -> &'static str {
        match self {
            Target::Sm80 => "7.8",
            Target::Sm90a => "8.3",
        }
    }
}

/// A kernel ready to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// The name of its entry point.
    pub entry: String,
    /// The text of a PTX module.
    pub text: String,
    /// The virtual architecture it is written for.
    pub target: Target,
    /// Threads per CTA, by dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory; 0 if static shared memory suffices.
    pub dynamic_shared: u32,
    /// Its parameters in order.
    pub parameters: Vec<Parameter>,
}

impl Ptx {
    /// The size of its parameter space, which must equal the length of [`Arguments::bytes`].
    pub fn parameter_bytes(&self) -> usize {
        self.parameters.iter().fold(0, |end, parameter| {
            end.next_multiple_of(parameter.kind.align()) + parameter.kind.size()
        })
    }
}

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the text.
    pub name: String,
    /// Its type.
    pub kind: ParameterKind,
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterKind {
    /// An address in global memory.
    Pointer,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 64 bits.
    I64,
    /// An f32.
    F32,
    /// An f64.
    F64,
}

impl ParameterKind {
    /// Its size in bytes, which is also its alignment.
    pub fn size(self) -> usize {
        match self {
            ParameterKind::U32 | ParameterKind::I32 | ParameterKind::F32 => 4,
            ParameterKind::Pointer
            | ParameterKind::U64
            | ParameterKind::I64
            | ParameterKind::F64 => 8,
        }
    }

    /// Its alignment in bytes.
    pub fn align(self) -> usize {
        self.size()
    }

    pub(super) fn ptx_type(self) -> &'static str {
        match self {
            ParameterKind::Pointer | ParameterKind::U64 => "u64",
            ParameterKind::U32 => "u32",
            ParameterKind::I32 => "s32",
            ParameterKind::I64 => "s64",
            ParameterKind::F32 => "f32",
            ParameterKind::F64 => "f64",
        }
    }
}

/// The launch geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    /// CTAs, by dimension.
    pub grid: [u32; 3],
    /// Threads per CTA, by dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
}

impl Launch {
    /// `grid` CTAs of `threads` threads without dynamic shared memory. `None` if a dimension is 0,
    /// which the driver would reject.
    pub fn new(grid: [u32; 3], threads: u32) -> Option<Launch> {
        let launch = Launch { grid, block: [threads, 1, 1], dynamic_shared: 0 };
        (!grid.contains(&0)).then_some(launch)
    }

    /// The same launch with dynamic shared memory, as given by [`Ptx::dynamic_shared`].
    #[must_use]
    pub fn with_dynamic_shared(self, bytes: u32) -> Launch {
        Launch { dynamic_shared: bytes, ..self }
    }
}

/// Parameter bytes in the layout of the kernel's parameter space: each value is at the next
/// multiple of its size. The bytes are stored inline, without heap allocation.
///
/// # Panics
/// Pushing beyond [`Arguments::CAPACITY`] panics.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    bytes: [u8; Arguments::CAPACITY],
    len: usize,
}

impl Arguments {
    /// Capacity in bytes. PTX allows 4096, but each launch copies these bytes. The constructors of
    /// this crate's kernels stay within it.
    pub const CAPACITY: usize = 576;

    /// Creates empty arguments.
    pub fn new() -> Arguments {
        Arguments { bytes: [0; Arguments::CAPACITY], len: 0 }
    }

    /// The bytes so far, padding included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn push<const N: usize>(&mut self, value: [u8; N]) {
        let start = self.len.next_multiple_of(N);
        assert!(
            start + N <= Arguments::CAPACITY,
            "argument at byte {start} exceeds the capacity of {} bytes; pass a pointer to a buffer",
            Arguments::CAPACITY
        );
        self.len = start + N;
        self.bytes[start..self.len].copy_from_slice(&value);
    }
}

impl Default for Arguments {
    fn default() -> Self {
        Arguments::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_aligned_to_their_size() {
        let mut arguments = Arguments::new();
        arguments.push(7u32.to_ne_bytes());
        arguments.push(0x1122u64.to_ne_bytes());
        arguments.push(1f32.to_ne_bytes());
        arguments.push((-1i64).to_ne_bytes());
        let mut expected = [7u32.to_ne_bytes(), [0; 4]].concat();
        expected.extend(0x1122u64.to_ne_bytes());
        expected.extend(1f32.to_ne_bytes());
        expected.extend([0; 4]);
        expected.extend((-1i64).to_ne_bytes());
        assert_eq!(arguments.bytes(), expected);
    }

    #[test]
    fn arguments_may_fill_the_capacity() {
        let mut arguments = Arguments::new();
        for _ in 0..Arguments::CAPACITY / 8 {
            arguments.push([1; 8]);
        }
        assert_eq!(arguments.bytes().len(), Arguments::CAPACITY);
    }

    #[test]
    #[should_panic(expected = "argument at byte 576 exceeds the capacity of 576 bytes")]
    fn arguments_beyond_the_capacity_panic() {
        let mut arguments = Arguments::new();
        for _ in 0..=Arguments::CAPACITY / 8 {
            arguments.push([1; 8]);
        }
    }

    #[test]
    fn an_empty_grid_is_not_launched() {
        assert_eq!(Launch::new([0, 1, 1], 128), None);
        assert_eq!(Launch::new([3, 2, 1], 128).unwrap().block, [128, 1, 1]);
    }
}
