//! Events of a run, and their subscribers.
//!
//! [`Trainer`](crate::trainer::Trainer) reports its steps and evaluations, a
//! [`Session`](crate::session::Session) also its configuration, metrics, samples and checkpoints.
//! Subscribers are called in the order of subscription. The first error stops the step and is
//! returned with the subscriber's name.
//!
//! ```
//! use meshgrad_train::events::{Event, Events};
//!
//! let mut events = Events::default();
//! events.subscribe("limit", |event| match event {
//!     Event::OptimizerStarted { learning_rate, .. } if learning_rate > 1.0 => {
//!         Err("the learning rate is above 1".into())
//!     }
//!     _ => Ok(()),
//! });
//!
//! let started = |learning_rate| Event::OptimizerStarted {
//!     step: 3,
//!     learning_rate,
//! };
//! events.report(started(0.5))?;
//! let error = events.report(started(1.5)).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "subscriber `limit` failed at step 3, optimizer started: the learning rate is above 1"
//! );
//! # Ok::<(), meshgrad_train::Error>(())
//! ```

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use meshgrad_autograd::{Module, Param};
use meshgrad_pipeline::Action;
use meshgrad_runtime::Tensor;

use crate::config::Config;
use crate::metrics::Record;
use crate::{Error, Kind, Result};

/// What happens in a run. Steps count from 1.
///
/// On a GPU, tensors may not be computed yet; reading one waits for the device.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Text and tokenizer are ready; the model is built next.
    ConfigurationStarted {
        /// The configuration of the run.
        config: &'a Config,
    },
    /// The model has its values and the optimizer its state.
    ConfigurationFinished {
        /// Steps done; 0 unless the run resumes.
        step: u64,
        /// The model.
        model: &'a dyn Module,
    },
    /// A step starts.
    StepStarted {
        /// The step.
        step: u64,
    },
    /// The forward and backward passes of all microbatches start.
    ForwardBackwardStarted {
        /// The step.
        step: u64,
    },
    /// The host has enqueued an action of the step's program: a pass of a stage or a message.
    ActionFinished {
        /// The step.
        step: u64,
        /// The action.
        action: Action,
        /// When the host started it.
        started: Instant,
        /// How long the host has waited in it for messages.
        waited: Duration,
        /// The forward passes of this rank whose activations are kept.
        live: usize,
        /// The passes whose gradients of weights follow.
        pending: usize,
    },
    /// The gradients are complete. Writing to their tensors changes what the optimizer sees.
    ForwardBackwardFinished {
        /// The step.
        step: u64,
        /// The gradients, summed over `weight`, neither divided nor clipped. On several ranks, of the
        /// rows that this rank keeps.
        gradients: &'a [(Param, Tensor)],
        /// The scalar that the optimizer divides the gradients by.
        weight: &'a Tensor,
    },
    /// The optimizer starts.
    OptimizerStarted {
        /// The step.
        step: u64,
        /// Its learning rate.
        learning_rate: f64,
    },
    /// The parameters are updated.
    OptimizerFinished {
        /// The step.
        step: u64,
        /// The global norm of the gradient before clipping, a scalar.
        grad_norm: &'a Tensor,
    },
    /// The step is enqueued, including the model's own updates.
    StepFinished {
        /// The step.
        step: u64,
        /// The model.
        model: &'a dyn Module,
    },
    /// The metrics of a step are recorded, up to one step late.
    Measured {
        /// The metrics.
        record: &'a Record,
    },
    /// An evaluation on held-out data starts.
    EvaluationStarted {
        /// The step that it follows.
        step: u64,
    },
    /// An evaluation is finished.
    EvaluationFinished {
        /// The step that it follows.
        step: u64,
        /// The mean loss.
        loss: f64,
    },
    /// The model generated text.
    Sampled {
        /// The step that it follows.
        step: u64,
        /// Prompt and continuation.
        text: &'a str,
    },
    /// The state is about to be copied, to be written in the background.
    CheckpointStarted {
        /// The step that it follows.
        step: u64,
    },
    /// A checkpoint is complete on disk. Reported at the next step, save, or end of the run. The
    /// next save may remove it (`checkpoint.keep`), but not before all subscribers have returned.
    CheckpointFinished {
        /// The checkpoint.
        path: &'a Path,
    },
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::ConfigurationStarted { .. } => write!(f, "configuration started"),
            Event::ConfigurationFinished { .. } => write!(f, "configuration finished"),
            Event::StepStarted { step } => write!(f, "step {step} started"),
            Event::ForwardBackwardStarted { step } => {
                write!(f, "step {step}, forward and backward started")
            }
            Event::ActionFinished { step, action, .. } => {
                write!(f, "step {step}, action {action} finished")
            }
            Event::ForwardBackwardFinished { step, .. } => {
                write!(f, "step {step}, forward and backward finished")
            }
            Event::OptimizerStarted { step, .. } => write!(f, "step {step}, optimizer started"),
            Event::OptimizerFinished { step, .. } => write!(f, "step {step}, optimizer finished"),
            Event::StepFinished { step, .. } => write!(f, "step {step} finished"),
            Event::Measured { record } => write!(f, "step {}, measured", record.step),
            Event::EvaluationStarted { step } => write!(f, "step {step}, evaluation started"),
            Event::EvaluationFinished { step, .. } => {
                write!(f, "step {step}, evaluation finished")
            }
            Event::Sampled { step, .. } => write!(f, "step {step}, sampled"),
            Event::CheckpointStarted { step } => write!(f, "step {step}, checkpoint started"),
            Event::CheckpointFinished { path } => {
                write!(f, "checkpoint {} finished", path.display())
            }
        }
    }
}

/// What a subscriber returns: any error stops the run.
pub type Outcome = std::result::Result<(), Box<dyn StdError + Send + Sync>>;

type Subscriber = Box<dyn FnMut(Event<'_>) -> Outcome + Send>;

/// The subscribers of a run.
#[derive(Default)]
pub struct Events(Vec<(String, Subscriber)>);

impl Events {
    /// Calls `subscriber` at every event, after those that subscribed before. Its errors are
    /// returned under `name`.
    pub fn subscribe(
        &mut self,
        name: impl Into<String>,
        subscriber: impl FnMut(Event<'_>) -> Outcome + Send + 'static,
    ) {
        self.0.push((name.into(), Box::new(subscriber)));
    }

    /// Whether there are no subscribers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls the subscribers in order, up to the first error.
    ///
    /// # Errors
    /// That of the first subscriber that fails, with its name.
    pub fn report(&mut self, event: Event<'_>) -> Result<()> {
        for (name, subscriber) in &mut self.0 {
            subscriber(event).map_err(|cause| {
                let at = format!("subscriber `{name}` failed at {event}");
                match cause.downcast::<Error>() {
                    Ok(error) => error.context(at),
                    Err(cause) => {
                        Error::new(Kind::System, format!("{at}: {cause}")).caused_by(cause)
                    }
                }
            })?;
        }
        Ok(())
    }
}
