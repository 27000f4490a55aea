//! Transfers between meshes: which parts of tensors each rank sends to which other ranks.
//!
//! The ranks of a training mesh hold weights in other shards than those of an inference mesh. Both
//! meshes are over ranks of one world; a rank may be in one of them or in both.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use meshgrad_error::{Result, bail, ensure};

use crate::redistribution::check_shapes;
use crate::{Region, Sharding};

/// A tensor of a [`Transfer`].
#[derive(Debug, Clone, Copy)]
pub struct TransferTensor<'a> {
    /// The sharding on the mesh that has it.
    pub from: &'a Sharding,
    /// The sharding on the mesh that gets it.
    pub to: &'a Sharding,
    /// The bits of an element.
    pub element_bits: usize,
}

/// The messages that bring tensors from one mesh to another, at most one for each ordered pair of
/// ranks. A plan is a value, and equal on all ranks.
///
/// Each rank receives the elements of its target regions that it does not have, once. If several
/// ranks have them, the rank that has sent the fewest bytes so far sends them.
///
/// ```
/// use meshgrad_mesh::{Mesh, Placement, Sharding, Transfer, TransferTensor};
///
/// let training = Mesh::new(&[2, 2], &["dp", "tp"])?;
/// let inference = Mesh::from_ranks(&[3, 4, 5], &[3], &["tp"])?;
/// let rows = [("tp", Placement::shard(0))];
/// let from = Sharding::new(&training, &rows, &[12, 4])?; // rank 3 has rows 6..12 and needs 0..4
/// let to = Sharding::new(&inference, &rows, &[12, 4])?;
///
/// let tensor = TransferTensor { from: &from, to: &to, element_bits: 32 };
/// let plan = Transfer::plan(&[tensor])?;
/// let messages: Vec<String> = plan.messages().iter().map(|one| one.to_string()).collect();
/// assert_eq!(
///     messages,
///     ["0 to 3: 64 bytes", "1 to 4: 32 bytes", "2 to 4: 32 bytes", "3 to 5: 64 bytes"]
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    messages: Vec<TransferMessage>,
}

/// What one rank sends to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferMessage {
    /// The rank that sends.
    pub sender: usize,
    /// The rank that receives.
    pub receiver: usize,
    /// The parts of tensors, in the order of the tensors.
    pub parts: Vec<TransferPart>,
    /// The size of all parts in bytes.
    pub bytes: u64,
}

/// A part of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferPart {
    /// The index of the tensor in the list that was planned.
    pub tensor: usize,
    /// The region of the global tensor. It is not empty.
    pub region: Region,
}

impl Transfer {
    /// The plan for a list of tensors, whose messages are shared.
    ///
    /// # Errors
    /// When shapes differ, a source or a target is partial, or a mesh has parallel instances.
    pub fn plan(tensors: &[TransferTensor<'_>]) -> Result<Transfer> {
        let mut sent: HashMap<usize, u64> = HashMap::new();
        let mut messages: BTreeMap<(usize, usize), TransferMessage> = BTreeMap::new();
        for (at, tensor) in tensors.iter().enumerate() {
            check(tensor)?;
            let sources = regions(tensor.from);
            for receiver in tensor.to.mesh().ranks() {
                let Some(wanted) = tensor.to.region(receiver) else {
                    continue;
                };
                for (region, holders) in &sources {
                    let region = region.intersection(&wanted);
                    if region.is_empty() || holders.contains(&receiver) {
                        continue;
                    }
                    let load = |rank: &&usize| sent.get(*rank).copied().unwrap_or(0);
                    let Some(sender) = holders.iter().min_by_key(load) else {
                        continue;
                    };
                    let bytes = bytes(&region, tensor.element_bits);
                    *sent.entry(*sender).or_default() += bytes;
                    let message = messages.entry((*sender, receiver));
                    let message = message.or_insert_with(|| TransferMessage {
                        sender: *sender,
                        receiver,
                        parts: Vec::new(),
                        bytes: 0,
                    });
                    message.bytes += bytes;
                    message.parts.push(TransferPart { tensor: at, region });
                }
            }
        }
        Ok(Transfer { messages: messages.into_values().collect() })
    }

    /// The messages, by sender and then by receiver.
    pub fn messages(&self) -> &[TransferMessage] {
        &self.messages
    }

    /// The bytes of all messages.
    pub fn bytes(&self) -> u64 {
        self.messages.iter().map(|message| message.bytes).sum()
    }
}

/// `0 to 3: 64 bytes`.
impl fmt::Display for TransferMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransferMessage { sender, receiver, bytes, .. } = self;
        write!(f, "{sender} to {receiver}: {bytes} bytes")
    }
}

/// A region and the ranks that have it.
type Held = (Region, Vec<usize>);

/// The distinct nonempty regions of a sharding, by their first rank. They do not overlap.
fn regions(sharding: &Sharding) -> Vec<Held> {
    let mut held: Vec<Held> = Vec::new();
    let mut known: HashMap<Region, usize> = HashMap::new();
    for rank in sharding.mesh().ranks() {
        let region = sharding.region(rank);
        let Some(region) = region.filter(|region| !region.is_empty()) else {
            continue;
        };
        let at = *known.entry(region.clone()).or_insert(held.len());
        match held.get_mut(at) {
            Some((_, ranks)) => ranks.push(rank),
            None => held.push((region, vec![rank])),
        }
    }
    held
}

fn check(tensor: &TransferTensor<'_>) -> Result<()> {
    let TransferTensor { from, to, .. } = tensor;
    check_shapes(from, to)?;
    for (sharding, end) in [(from, "from"), (to, "to")] {
        let instances = sharding.mesh().instances();
        ensure!(
            instances <= 1,
            Invalid,
            "cannot transfer from or to the {instances} parallel instances of {}, whose values may \
             differ: state the sharding on a mesh with all axes",
            sharding.mesh()
        );
        if let Some((axis, _)) = sharding.partials().first() {
            let way = match end {
                "from" => format!("redistribute it to replicate or shard on axis `{axis}` first"),
                _ => format!(
                    "transfer to replicate or shard on axis `{axis}`, and redistribute it there"
                ),
            };
            bail!(Invalid, "cannot transfer {end} partial values ({sharding}): {way}");
        }
    }
    Ok(())
}

fn bytes(region: &Region, element_bits: usize) -> u64 {
    (region.elements() as u64 * element_bits as u64).div_ceil(8)
}
