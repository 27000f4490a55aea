//! Faults that the comparison of all dimensions must find.

use std::sync::Arc;

use meshgrad_comm::conformance::RewiredRank;
use meshgrad_comm::{Communicator, GroupConnector, Rank};
use meshgrad_mesh::Group;
use meshgrad_models::Decoder;
use meshgrad_runtime::{Result, ops};
use meshgrad_train::events::Event;
use meshgrad_train::trainer::Trainer;

use crate::together::draw::Combination;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    Nothing,
    /// The gradients of experts have a factor of their degree.
    ExpertFactor,
    /// All gradients have a factor of the ranks that share a sequence.
    ContextFactor,
    /// All gradients are divided by the number of microbatches.
    MicrobatchFactor,
    /// The norm counts experts once per copy.
    ExpertNorm,
    /// The gradient of a tied table is added twice.
    TiedTwice,
    /// Homes are connected with the ranks of another domain.
    WrongDomain,
}

impl Planted {
    pub(crate) const FAULTS: [Planted; 6] = [
        Planted::ExpertFactor,
        Planted::ContextFactor,
        Planted::MicrobatchFactor,
        Planted::ExpertNorm,
        Planted::TiedTwice,
        Planted::WrongDomain,
    ];

    /// The factor of the gradient of the parameter `name`.
    fn factor(self, of: &Combination, name: &str) -> f64 {
        let is_expert = name.contains(".experts.");
        match self {
            Planted::ExpertFactor if is_expert => of.degree("ep") as f64,
            Planted::ContextFactor => of.context() as f64,
            Planted::MicrobatchFactor => 1.0 / of.microbatches() as f64,
            Planted::ExpertNorm if is_expert => (of.replicas() as f64).sqrt(),
            Planted::TiedTwice if name == "model.embed_tokens.weight" => 2.0,
            _ => 1.0,
        }
    }

    /// Plants the fault in what the optimizer sees.
    pub(crate) fn plant(self, of: &Combination, trainer: &mut Trainer<Decoder>) {
        let of = of.clone();
        trainer.events.subscribe("planted", move |event| {
            let Event::ForwardBackwardFinished { gradients, .. } = event else {
                return Ok(());
            };
            for (param, gradient) in gradients {
                let factor = self.factor(&of, param.name());
                if factor != 1.0 {
                    let gradient = gradient.local();
                    ops::copy_into(&ops::affine(&gradient, factor, 0.0)?, &gradient)?;
                }
            }
            Ok(())
        });
    }

    /// Plants the fault in the groups of a rank.
    pub(crate) fn rewire(self, rank: &dyn Rank) -> RewiredRank<'_> {
        let wrong = self == Planted::WrongDomain;
        RewiredRank::new(
            rank,
            Arc::new(Groups { wrong, connector: rank.connector(), own: rank.rank() }),
        )
    }
}

struct Groups {
    wrong: bool,
    own: usize,
    connector: Arc<dyn GroupConnector>,
}

impl GroupConnector for Groups {
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        if !self.wrong || name != "home" {
            return self.connector.connect(name, group);
        }
        // Neighbours, which are ranks of tensor parallelism.
        let first = self.own / group.len() * group.len();
        let neighbours = Group::new((first..first + group.len()).collect::<Vec<_>>())?;
        self.connector.connect(name, &neighbours.with_channel(group.channel()))
    }
}
