//! Ranks whose collectives are recorded.

use std::sync::{Arc, Mutex};

use meshgrad_collectives::{Operands, Output, Request};
use meshgrad_comm::{Collective, CommLog, Communicator, GroupConnector, Rank};
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Pending, Result, Tensor, UninitTensor};

use meshgrad_comm::conformance::RewiredRank;

/// A fault in what a rank executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deviation {
    None,
    /// An all_reduce returns its operand.
    DroppedReduction,
    /// An all_gather is executed twice.
    ExtraGather,
}

/// A call and the bytes of its input or output, whichever is larger.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Executed {
    pub(crate) group: Group,
    pub(crate) request: Request,
    pub(crate) bytes: u64,
}

/// The calls in a log.
pub(crate) fn logged(log: &CommLog) -> Vec<Executed> {
    let calls = log.calls();
    calls
        .map(|call| Executed {
            group: log.groups()[call.group].clone(),
            request: call.request.clone(),
            bytes: call.bytes,
        })
        .collect()
}

/// The calls of a rank.
#[derive(Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Executed>>>);

impl Recorder {
    /// `rank`, with its calls recorded here.
    pub(crate) fn on<'a>(&self, rank: &'a dyn Rank, deviation: Deviation) -> RewiredRank<'a> {
        let connector = Arc::new(RecordingConnector {
            connector: rank.connector(),
            deviation,
            calls: self.0.clone(),
        });
        RewiredRank::new(rank, connector)
    }

    /// The calls since the last time.
    pub(crate) fn take(&self) -> Vec<Executed> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct RecordingConnector {
    connector: Arc<dyn GroupConnector>,
    deviation: Deviation,
    calls: Arc<Mutex<Vec<Executed>>>,
}

impl GroupConnector for RecordingConnector {
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Recording {
            inner: self.connector.connect(name, group)?,
            deviation: self.deviation,
            calls: self.calls.clone(),
        }))
    }
}

struct Recording {
    inner: Arc<dyn Communicator>,
    deviation: Deviation,
    calls: Arc<Mutex<Vec<Executed>>>,
}

impl Recording {
    fn execute(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let bytes = |x: &Tensor| x.dtype().bytes(x.elements());
        let input = operands.input.as_ref().map_or(0, bytes);
        let output = match &operands.output {
            Output::None => 0,
            Output::New(x) => x.dtype().bytes(x.shape().elements()),
            Output::Into(x) => bytes(x),
        };
        self.calls.lock().unwrap().push(Executed {
            group: self.inner.group().clone(),
            request: request.clone(),
            bytes: input.max(output) as u64,
        });
        self.inner.start(request, operands)
    }
}

impl Communicator for Recording {
    fn group(&self) -> &Group {
        self.inner.group()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn index(&self) -> usize {
        self.inner.index()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        match (self.deviation, request.fingerprint.collective) {
            (Deviation::DroppedReduction, Collective::AllReduce) => {
                let input = operands.input;
                return Ok(Pending::by_host(move || Ok(input)));
            }
            (Deviation::ExtraGather, Collective::AllGather) => {
                let Output::New(output) = &operands.output else {
                    panic!("no new tensor");
                };
                let again = Operands {
                    input: operands.input.clone(),
                    output: Output::New(UninitTensor::new(
                        self.device(),
                        *output.shape(),
                        output.dtype(),
                    )?),
                };
                self.execute(request.clone(), again)?.wait()?;
            }
            _ => {}
        }
        self.execute(request, operands)
    }
}
