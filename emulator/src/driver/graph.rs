//! Graphs: operations and their dependencies, captured once and launched many times.

use std::sync::{Arc, OnceLock};

use super::context::ContextHandle;
use super::error::{Code, Result};
use super::event::{EventHandle, Point};
use super::handles::{Handle, Named};
use super::nccl::call::Action;
use super::nccl::world::CommunicatorHandle;
use super::schedule::Ticket;
use super::stream::StreamHandle;
use super::work::Work;
use super::{Driver, State};

pub(crate) type GraphHandle = Handle<Graph>;
pub(crate) type ExecutableHandle = Handle<Executable>;

/// Index of a node in its graph. Nodes depend only on nodes with a lower index.
pub(crate) type NodeIndex = usize;

/// A captured graph.
#[derive(Default)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
    /// The addresses of the memory that its nodes allocate. Every launch uses the same addresses.
    pub(crate) memory: Arc<Vec<u64>>,
}

#[derive(Clone)]
struct Node {
    context: ContextHandle,
    after: Vec<NodeIndex>,
    kind: NodeKind,
}

/// The operation of a node.
#[derive(Clone)]
pub(crate) enum NodeKind {
    Work(Work),
    Record(EventHandle),
    Wait(EventHandle),
    Allocate(u64),
    Free(u64),
    /// Calls of a communicator that start together. Each launch makes these calls again.
    Calls(CommunicatorHandle, Arc<[Action]>),
}

/// An instantiated graph.
pub(crate) struct Executable {
    nodes: Arc<[Node]>,
    pub(crate) memory: Arc<Vec<u64>>,
    /// Memory that a launch allocates and does not free.
    left: Vec<u64>,
    frees_on_launch: bool,
    /// The end of its last launch; the next launch depends on it.
    last: Option<Ticket>,
}

impl Named for Graph {
    const NAME: &'static str = "graph";
    const UNKNOWN: Code = Code::InvalidValue;
    const DESTROYED: Code = Code::InvalidValue;
}

impl Named for Executable {
    const NAME: &'static str = "executable graph";
    const UNKNOWN: Code = Code::InvalidValue;
    const DESTROYED: Code = Code::InvalidValue;
}

impl Executable {
    /// Whether any of its operations belongs to a context.
    pub(crate) fn is_of(&self, context: ContextHandle) -> bool {
        self.nodes.iter().any(|node| node.context == context)
    }

    /// Whether it calls a communicator.
    pub(crate) fn calls(&self, communicator: CommunicatorHandle) -> bool {
        let is_call =
            |node: &Node| matches!(node.kind, NodeKind::Calls(handle, _) if handle == communicator);
        self.nodes.iter().any(is_call)
    }
}

impl Graph {
    /// Whether any of its operations belongs to a context.
    pub(crate) fn is_of(&self, context: ContextHandle) -> bool {
        self.nodes.iter().any(|node| node.context == context)
    }

    /// Adds a node that depends on those in `after`.
    pub(crate) fn add(
        &mut self,
        context: ContextHandle,
        after: Vec<NodeIndex>,
        kind: NodeKind,
    ) -> NodeIndex {
        if let NodeKind::Allocate(address) = kind {
            Arc::make_mut(&mut self.memory).push(address);
        }
        self.nodes.push(Node { context, after, kind });
        self.nodes.len() - 1
    }

    /// Nodes that no other node depends on.
    pub(crate) fn leaves(&self) -> Vec<NodeIndex> {
        leaves(&self.nodes)
    }

    /// Whether some node allocates this address and no later node frees it.
    pub(crate) fn holds(&self, address: u64) -> bool {
        left(&self.nodes).contains(&address)
    }
}

fn leaves(nodes: &[Node]) -> Vec<NodeIndex> {
    let mut is_leaf = vec![true; nodes.len()];
    for before in nodes.iter().flat_map(|node| &node.after) {
        is_leaf[*before] = false;
    }
    (0..nodes.len()).filter(|node| is_leaf[*node]).collect()
}

fn left(nodes: &[Node]) -> Vec<u64> {
    let mut left = Vec::new();
    for node in nodes {
        match node.kind {
            NodeKind::Allocate(address) => left.push(address),
            NodeKind::Free(address) => left.retain(|it| *it != address),
            _ => {}
        }
    }
    left
}

/// `CUgraphInstantiate_flags`.
const FREE_ON_LAUNCH: u64 = 1;
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const NODE_PRIORITY: u64 = 8;

impl Driver {
    /// `cuGraphInstantiateWithFlags`.
    pub(crate) fn instantiate(&self, graph: GraphHandle, flags: u64) -> Result<ExecutableHandle> {
        let known = FREE_ON_LAUNCH | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY;
        let contradictory = flags & FREE_ON_LAUNCH != 0 && flags & DEVICE_LAUNCH != 0;
        if flags & !known != 0 || contradictory {
            let message = format!("{flags:#x} are not valid graph instantiation flags");
            return Err(Code::InvalidValue.because(message));
        }
        if flags & DEVICE_LAUNCH != 0 {
            let message = "device-side graph launch is not supported";
            return Err(Code::NotSupported.because(message));
        }
        self.with(|state| {
            let graph = state.graphs.get(graph)?;
            let executable = Executable {
                nodes: graph.nodes.clone().into(),
                memory: graph.memory.clone(),
                left: left(&graph.nodes),
                frees_on_launch: flags & FREE_ON_LAUNCH != 0,
                last: None,
            };
            Ok(state.executables.insert(executable))
        })
    }

    /// `cuGraphLaunch`.
    pub(crate) fn launch_graph(&self, handle: ExecutableHandle, raw: u64) -> Result<()> {
        let mut state = self.lock();
        let (stream, _) = state.stream(raw)?;
        match state.streams.get(stream)?.capture {
            Some(_) => state.capture_graph(handle, stream)?,
            None => {
                let enqueued = state.enqueue_graph(handle, stream);
                enqueued.inspect_err(|_| self.changed.notify_all())?; // contexts may have failed
            }
        }
        self.run_submitted(state, stream)
    }

    /// `cuGraphUpload`: checks the handles; nothing needs to be uploaded.
    pub(crate) fn upload_graph(&self, handle: ExecutableHandle, raw: u64) -> Result<()> {
        self.with(|state| {
            state.stream(raw)?;
            state.executables.get(handle).map(drop)
        })
    }

    /// `cuGraphGetNodes`: the number of nodes.
    pub(crate) fn count_nodes(&self, graph: GraphHandle) -> Result<usize> {
        self.with(|state| Ok(state.graphs.get(graph)?.nodes.len()))
    }

    /// `cuGraphDestroy`.
    pub(crate) fn destroy_graph(&self, graph: GraphHandle) -> Result<()> {
        self.with(|state| {
            let graph = state.graphs.remove(graph)?;
            state.release_graph_memory(&graph.memory, Vec::new())
        })
    }

    /// `cuGraphExecDestroy`: a launch in progress still completes.
    pub(crate) fn destroy_executable(&self, executable: ExecutableHandle) -> Result<()> {
        self.with(|state| {
            let executable = state.executables.remove(executable)?;
            state.release_graph_memory(&executable.memory, executable.last.into_iter().collect())
        })
    }
}

impl State {
    fn enqueue_graph(&mut self, handle: ExecutableHandle, stream: StreamHandle) -> Result<()> {
        self.reject_implicit_sync(stream)?;
        let executable = self.executables.get(handle)?;
        let (nodes, last) = (executable.nodes.clone(), executable.last);
        self.renew_memory(handle)?;

        let mut start = self.predecessors(stream)?;
        start.extend(last);
        let mut tickets = Vec::<Ticket>::with_capacity(nodes.len());
        for node in nodes.iter() {
            let after = match node.after.as_slice() {
                [] => start.clone(),
                nodes => nodes.iter().map(|before| tickets[*before]).collect(),
            };
            tickets.push(self.enqueue_node(node, after)?);
        }
        let ends: Vec<Ticket> = leaves(&nodes).into_iter().map(|leaf| tickets[leaf]).collect();
        start.extend(ends);

        let context = self.streams.get(stream)?.context;
        let end = self.schedule.add(context, start, Work::Join);
        self.executables.get_mut(handle)?.last = Some(end);
        self.set_last(stream, end)
    }

    fn enqueue_node(&mut self, node: &Node, mut after: Vec<Ticket>) -> Result<Ticket> {
        let work = match &node.kind {
            NodeKind::Work(work) => work.clone(),
            NodeKind::Calls(communicator, actions) => {
                let enqueued =
                    self.enqueue_calls(*communicator, actions, true, node.context, after);
                return enqueued.map_err(|refusal| {
                    self.fail_for(&refusal);
                    Code::LaunchFailed.because(refusal.message)
                });
            }
            NodeKind::Allocate(_) | NodeKind::Free(_) => Work::Join,
            NodeKind::Wait(event) => {
                after.extend(self.ticket_of(*event)?);
                Work::Join
            }
            NodeKind::Record(event) => {
                let time = Arc::new(OnceLock::new());
                let stamp = Work::Stamp(time.clone());
                let ticket = self.schedule.add(node.context, after, stamp);
                self.events.get_mut(*event)?.point = Point::Recorded { ticket, time };
                return Ok(ticket);
            }
        };
        Ok(self.schedule.add(node.context, after, work))
    }

    /// Marks the memory that a launch leaves allocated as live. Fails if the last launch's memory
    /// is still live, unless the graph frees it on launch.
    fn renew_memory(&mut self, handle: ExecutableHandle) -> Result<()> {
        let executable = self.executables.get(handle)?;
        for address in &executable.left {
            let is_live = self.ownership.is_live_in_graph(*address);
            if is_live && !executable.frees_on_launch {
                let message = format!(
                    "memory {address:#x} of the last launch was not freed; free it, \
                     or instantiate with CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH"
                );
                return Err(Code::InvalidValue.because(message));
            }
        }
        for address in executable.left.clone() {
            self.ownership.set_live_in_graph(address, true);
        }
        Ok(())
    }

    /// Launching a graph in a capturing stream adds its nodes to the captured graph.
    fn capture_graph(&mut self, handle: ExecutableHandle, stream: StreamHandle) -> Result<()> {
        let nodes = self.executables.get(handle)?.nodes.clone();
        if nodes.iter().any(|node| matches!(node.kind, NodeKind::Allocate(_))) {
            let message = "a graph that allocates memory cannot be a child of another graph";
            return Err(Code::NotSupported.because(message));
        }
        let start = self.captured_tail(stream)?.clone();
        let graph = self.captured_graph(stream)?;
        let first = graph.nodes.len();
        for node in nodes.iter() {
            let mut after: Vec<NodeIndex> =
                node.after.iter().map(|before| first + before).collect();
            if after.is_empty() {
                after.clone_from(&start);
            }
            graph.add(node.context, after, node.kind.clone());
        }
        if !nodes.is_empty() {
            let ends = leaves(&nodes).into_iter().map(|leaf| first + leaf).collect();
            *self.captured_tail(stream)? = ends;
        }
        Ok(())
    }
}
