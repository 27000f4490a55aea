//! The blocks of an allocator: neighbors in their segment, and lists of free blocks.

/// The pool of a block. A freed block is reused only within its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pool {
    /// The stream that orders the work on its blocks; 0 for the base stream.
    pub(crate) stream: u32,
    /// The graph that owns its blocks; 0 for none.
    pub(crate) graph: u32,
}

/// Free blocks sorted by (bytes, address). A sorted vector: a binary search finds the best fit, and
/// removal allocates nothing.
#[derive(Default)]
pub(super) struct FreeList(Vec<(usize, u64, u32)>);

impl FreeList {
    pub(super) fn insert(&mut self, key: (usize, u64, u32)) {
        let at = self.0.partition_point(|other| *other < key);
        self.0.insert(at, key);
    }

    pub(super) fn remove(&mut self, key: (usize, u64, u32)) {
        if let Ok(at) = self.0.binary_search(&key) {
            self.0.remove(at);
        }
    }

    /// The smallest block of at least `bytes` bytes.
    pub(super) fn best_fit(&self, bytes: usize) -> Option<u32> {
        let at = self.0.partition_point(|(size, _, _)| *size < bytes);
        self.0.get(at).map(|(_, _, node)| *node)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Live,
    /// Freed, but other streams may still use it.
    Pending,
    Free,
}

/// A block in its segment. Neighbors are linked so that free ones can be merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) pool: Pool,
    pub(super) small: bool,
    pub(super) state: State,
    pub(super) previous: Option<u32>,
    pub(super) next: Option<u32>,
}

impl Node {
    pub(super) fn key(&self, id: u32) -> (usize, u64, u32) {
        (self.bytes, self.address, id)
    }

    pub(super) fn is_whole_segment(&self) -> bool {
        self.previous.is_none() && self.next.is_none()
    }
}

/// Nodes by id; ids are reused.
#[derive(Default)]
pub(super) struct Nodes {
    all: Vec<Option<Node>>,
    vacant: Vec<u32>,
}

impl Nodes {
    pub(super) fn add(&mut self, node: Node) -> u32 {
        match self.vacant.pop() {
            Some(id) => {
                self.all[id as usize] = Some(node);
                id
            }
            None => {
                self.all.push(Some(node));
                (self.all.len() - 1) as u32
            }
        }
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.all[id as usize] = None;
        self.vacant.push(id);
    }

    /// `id` must be a result of `add` that was not removed since.
    pub(super) fn get(&mut self, id: u32) -> &mut Node {
        self.all[id as usize].as_mut().expect("a live block id")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Node)> {
        let numbered = self.all.iter().enumerate();
        numbered.filter_map(|(id, node)| Some((id as u32, node.as_ref()?)))
    }
}
