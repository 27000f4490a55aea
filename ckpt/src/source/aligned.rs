//! Memory aligned for direct reads and writes.

/// The alignment of addresses, offsets and lengths of direct I/O: a page, a multiple of every block
/// size.
pub(crate) const ALIGNMENT: usize = 4096;

/// Bytes whose address is a multiple of [`ALIGNMENT`].
#[derive(Debug, Default)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Allocates zeroed memory.
    pub(crate) fn new(len: usize) -> Aligned {
        let memory = vec![0; Aligned::footprint(len)];
        let start = match len {
            0 => 0,
            _ => memory.as_ptr().align_offset(ALIGNMENT),
        };
        Aligned { memory, start, len }
    }

    /// The bytes to allocate for `len` aligned bytes.
    pub(crate) fn footprint(len: usize) -> usize {
        match len {
            0 => 0,
            _ => len + ALIGNMENT,
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}
