//! The table of cases, and the drawing of further ones.

use std::env;

use meshgrad_autograd::Module;
use meshgrad_data_parallel::Strategy;
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::Decoder;
use meshgrad_pipeline::{Named, Op, Program, Shape};
use meshgrad_train::Result;
use meshgrad_train::config::{Config, NoTables};

use crate::small::{
    self, ALL_EXPERTS, Axes, BALANCING, DENSE, EIGHT_EXPERTS, EXPERTS, TIED, add_adapters,
};

pub(crate) const MICROBATCHES: usize = 8;

/// A model on a mesh. Axis `pp` has the stages, `tp` divides matrices, `cp` and `sp` sequences, and all
/// others the batch.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) model: &'static str,
    pub(crate) mesh: Axes,
    pub(crate) schedule: Named,
    /// The layers of each stage.
    pub(crate) sizes: &'static [usize],
    pub(crate) home: Home,
    pub(crate) checkpointing: bool,
    pub(crate) extra: Extra,
    /// The mesh of the experts of a stage: sharded along `ep`, their inner features along `etp`, their
    /// rows along `rows`, and copied along `copies`.
    pub(crate) apart: Axes,
    /// Whether keys go around `cp`.
    pub(crate) ring: bool,
    /// Whether rows have two documents.
    pub(crate) documents: bool,
}

/// How data-parallel ranks share parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Replicated,
    Fsdp,
    Hsdp,
    Zero1,
}

/// What else happens in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    Nothing,
    /// The embedding and the first layer are not trained.
    Frozen,
    /// Only low-rank adapters are.
    Adapters,
    Averages,
    Muon,
    /// Everything sleeps between steps.
    Naps,
}

impl Case {
    pub(crate) const fn new(
        model: &'static str,
        mesh: Axes,
        schedule: Named,
        sizes: &'static [usize],
    ) -> Case {
        Case {
            model,
            mesh,
            schedule,
            sizes,
            home: Home::Replicated,
            checkpointing: false,
            extra: Extra::Nothing,
            apart: &[],
            ring: false,
            documents: false,
        }
    }

    const fn documents(self) -> Case {
        Case { documents: true, ..self }
    }

    const fn ring(self) -> Case {
        Case { ring: true, ..self }
    }

    pub(crate) const fn apart(self, apart: Axes) -> Case {
        Case { apart, ..self }
    }

    const fn home(self, home: Home) -> Case {
        Case { home, ..self }
    }

    const fn checkpointed(self) -> Case {
        Case { checkpointing: true, ..self }
    }

    const fn extra(self, extra: Extra) -> Case {
        Case { extra, ..self }
    }

    pub(crate) fn title(&self) -> String {
        let Case { mesh, schedule, sizes, home, checkpointing, extra, apart, documents, .. } = self;
        let model = small::config(self.model);
        format!(
            "{} layers, {} experts, tied {}: {mesh:?} {schedule} {sizes:?} {home:?} {extra:?}, \
             experts on {apart:?}, checkpointing {checkpointing}, documents {documents}",
            model.num_hidden_layers, model.num_experts, model.tie_word_embeddings
        )
    }

    pub(crate) fn config(&self) -> Config {
        let checkpointing = self.checkpointing;
        let extra = match self.extra {
            Extra::Averages => "optimizer.ema_decay = 0.5",
            Extra::Muon => "optimizer.name = 'muon'\noptimizer.product_dtype = 'f32'",
            _ => "",
        };
        let text = format!(
            "optimizer.learning_rate = 0.01
             train.activation_checkpointing = {checkpointing}
             {extra}"
        );
        Config::parse::<NoTables>(&text, "the test", &[]).unwrap()
    }

    pub(crate) fn model(&self) -> Result<Decoder> {
        let mut model = Decoder::new(&small::config(self.model))?.balanced(BALANCING);
        model.add_router_biases();
        match self.extra {
            Extra::Frozen => {
                model.layers[0].freeze();
                model.embedding.freeze();
            }
            Extra::Adapters => {
                model.freeze();
                add_adapters(&mut model);
            }
            _ => (),
        }
        Ok(model)
    }

    pub(crate) fn mesh(&self) -> Mesh {
        small::mesh(self.mesh)
    }

    /// The mesh of experts on a stage.
    pub(crate) fn mesh_of_experts(&self, stage: usize) -> Option<Mesh> {
        let axes = [&[("pp", self.ranks())], self.apart].concat();
        (!self.apart.is_empty()).then(|| small::mesh(axes.leak()).at("pp", stage).unwrap())
    }

    /// Those of the axes of the mesh of experts.
    pub(crate) fn expert_axes(&self, named: &'static str) -> Vec<&'static str> {
        let axes = self.apart.iter().map(|(axis, _)| *axis);
        axes.filter(|axis| *axis == named).collect()
    }

    /// The axes that the rows of a batch are divided over.
    pub(crate) fn batch_axes(&self) -> impl Iterator<Item = (&'static str, usize)> + Clone {
        self.mesh.iter().copied().filter(|(name, _)| !["pp", "tp", "cp", "sp"].contains(name))
    }

    /// The axis of this name, if the mesh has it.
    pub(crate) fn axis(&self, named: &str) -> Vec<&'static str> {
        self.mesh.iter().map(|(name, _)| *name).filter(|name| *name == named).collect()
    }

    /// The placements of a batch [rows, tokens].
    pub(crate) fn of_batch(&self) -> Vec<(&'static str, Placement)> {
        let rows = self.batch_axes().map(|(axis, _)| (axis, Placement::shard(0)));
        let context = self.axis("cp").into_iter().map(|axis| (axis, Placement::head_and_tail(1)));
        let ulysses = self.axis("sp").into_iter().map(|axis| (axis, Placement::shard(1)));
        rows.chain(context).chain(ulysses).collect()
    }

    pub(crate) fn strategy(&self) -> Strategy {
        let axes = self.mesh.iter().map(|(name, _)| *name);
        let axes: Vec<&str> = axes.filter(|name| !["pp", "tp"].contains(name)).collect();
        match self.home {
            Home::Replicated => Strategy::replicate(axes),
            Home::Fsdp => Strategy::fsdp(axes),
            Home::Hsdp => Strategy::hsdp(&axes[1..], &axes[..1]),
            Home::Zero1 => Strategy::zero1(axes),
        }
    }

    fn ranks(&self) -> usize {
        self.mesh().size("pp").unwrap()
    }

    pub(crate) fn is_tied(&self) -> bool {
        small::config(self.model).tie_word_embeddings
    }

    /// Whether one rank has both ends.
    pub(crate) fn is_v(&self) -> bool {
        matches!(self.schedule, Named::Zbv | Named::DualPipeV)
    }

    /// Whether ranks of a stage have different tokens, whose experts are counted.
    pub(crate) fn counts_tokens(&self) -> bool {
        let config = small::config(self.model);
        let divides = |(name, ranks): &(&str, usize)| !["pp", "tp"].contains(name) && *ranks > 1;
        self.mesh.iter().any(divides) && config.num_experts > config.num_experts_per_tok
    }

    /// The ranks of the pipeline with copies of a tied table.
    pub(crate) fn tied(&self) -> Vec<usize> {
        match self.is_tied() && !self.is_v() {
            true => vec![0, self.ranks() - 1],
            false => Vec::new(),
        }
    }

    pub(crate) fn program(&self) -> Program {
        let shape = Shape::new(self.ranks(), self.sizes.len(), MICROBATCHES).unwrap();
        self.schedule.schedule(shape).unwrap().lower(&Default::default()).unwrap()
    }

    /// The order in which each stage adds the gradients of microbatches, if it is the same for all.
    /// In that order, one rank without other divisions has the same bits.
    pub(crate) fn order(&self) -> Option<Vec<usize>> {
        let program = self.program();
        let of_stage = |stage: usize| -> Vec<usize> {
            let rank = program.placement().rank_of(stage);
            let passes = program.ranks()[rank].iter().flat_map(|action| action.computes());
            let adds = |op| matches!(op, Op::Backward | Op::BackwardWeight);
            let last = passes.filter(|pass| pass.stage == stage && adds(pass.op));
            last.map(|pass| pass.microbatch).collect()
        };
        let first = of_stage(0);
        (1..self.sizes.len()).all(|stage| of_stage(stage) == first).then_some(first)
    }

    /// Whether rounding may change what tokens choose. Ranks then replay what one rank chose.
    pub(crate) fn replays(&self) -> bool {
        let model = small::config(self.model);
        model.num_experts > model.num_experts_per_tok && self.mesh.len() > 1
    }

    /// Whether the first gradients have the bits of one rank.
    pub(crate) fn is_exact(&self) -> bool {
        self.mesh.len() == 1 && !self.is_tied() && self.order().is_some()
    }
}

/// Cases that all run.
pub(crate) const CASES: [Case; 39] = [
    Case::new(DENSE, &[("pp", 3)], Named::Gpipe, &[1, 1, 1]),
    Case::new(DENSE, &[("pp", 3)], Named::OneFOneB, &[0, 2, 1]),
    Case::new(DENSE, &[("pp", 3)], Named::Zb1p, &[1, 1, 1]).checkpointed(),
    Case::new(DENSE, &[("pp", 2)], Named::LoopedBfs, &[1, 0, 1, 1]),
    Case::new(EXPERTS, &[("pp", 2)], Named::Interleaved, &[1, 1, 0, 1]),
    Case::new(EXPERTS, &[("pp", 3)], Named::InterleavedZb, &[0, 1, 0, 1, 0, 1]),
    Case::new(EXPERTS, &[("pp", 2)], Named::Zbv, &[1, 0, 1, 1]).checkpointed(),
    Case::new(TIED, &[("pp", 2)], Named::DualPipeV, &[1, 0, 0, 1]),
    Case::new(TIED, &[("pp", 2)], Named::OneFOneB, &[1, 1]),
    Case::new(DENSE, &[("pp", 3)], Named::OneFOneB, &[1, 1, 1]).extra(Extra::Frozen),
    Case::new(DENSE, &[("pp", 2)], Named::Zbv, &[1, 1, 1, 0]).extra(Extra::Adapters),
    Case::new(TIED, &[("pp", 2)], Named::Zb1p, &[2, 0]).extra(Extra::Averages),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 2)], Named::Gpipe, &[1, 1]).extra(Extra::Naps),
    Case::new(DENSE, &[("pp", 2), ("dp", 2)], Named::OneFOneB, &[1, 2]).extra(Extra::Muon),
    // Each home, on two and three ranks of the pipeline.
    Case::new(TIED, &[("pp", 3), ("dp", 2)], Named::OneFOneB, &[1, 0, 1]),
    Case::new(EXPERTS, &[("pp", 2), ("dp", 3)], Named::OneFOneB, &[1, 2]).home(Home::Fsdp),
    Case::new(DENSE, &[("pp", 3), ("dp", 2)], Named::Interleaved, &[1, 0, 1, 0, 1, 0])
        .home(Home::Fsdp),
    Case::new(DENSE, &[("pp", 2), ("rep", 2), ("dp", 2)], Named::Zbv, &[1, 1, 0, 1])
        .home(Home::Hsdp),
    Case::new(TIED, &[("pp", 3), ("rep", 2), ("dp", 2)], Named::Gpipe, &[0, 1, 1]).home(Home::Hsdp),
    Case::new(TIED, &[("dp", 2), ("pp", 2)], Named::Zb1p, &[1, 1]).home(Home::Zero1),
    Case::new(DENSE, &[("dp", 2), ("pp", 3)], Named::DualPipeV, &[1, 0, 1, 0, 0, 1])
        .home(Home::Zero1),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 2), ("tp", 2)], Named::Interleaved, &[1, 0, 1, 0]),
    Case::new(EIGHT_EXPERTS, &[("pp", 3), ("tp", 2)], Named::Zb1p, &[1, 0, 1]),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 2), ("tp", 2)], Named::DualPipeV, &[0, 1, 1, 0])
        .home(Home::Fsdp),
    // Experts on a mesh of their own.
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 2)], Named::OneFOneB, &[1, 1])
        .apart(&[("ep", 2)])
        .home(Home::Fsdp),
    Case::new(ALL_EXPERTS, &[("pp", 2), ("dp", 3)], Named::Gpipe, &[1, 1])
        .apart(&[("ep", 3)])
        .extra(Extra::Muon),
    Case::new(EIGHT_EXPERTS, &[("pp", 3), ("dp", 2)], Named::Zb1p, &[1, 0, 1]).apart(&[("etp", 2)]),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 4)], Named::Zbv, &[1, 0, 1, 0])
        .apart(&[("rows", 2), ("ep", 2)])
        .home(Home::Fsdp)
        .checkpointed(),
    Case::new(
        EIGHT_EXPERTS,
        &[("pp", 2), ("rep", 2), ("dp", 2)],
        Named::Interleaved,
        &[1, 0, 1, 0],
    )
    .apart(&[("copies", 2), ("ep", 2)])
    .home(Home::Hsdp)
    .extra(Extra::Naps),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 2), ("tp", 2)], Named::OneFOneB, &[1, 1])
        .apart(&[("ep", 4)])
        .extra(Extra::Averages),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 2), ("tp", 2)], Named::DualPipeV, &[0, 1, 1, 0])
        .apart(&[("rows", 2), ("ep", 2)])
        .home(Home::Zero1),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 4)], Named::InterleavedZb, &[0, 1, 0, 1])
        .apart(&[("ep", 2), ("etp", 2)])
        .home(Home::Fsdp),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 4)], Named::LoopedBfs, &[1, 0, 0, 1])
        .apart(&[("ep", 4)])
        .checkpointed(),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("dp", 4), ("tp", 2)], Named::OneFOneB, &[1, 1])
        .apart(&[("ep", 8)]),
    // Sequences of which no rank has all tokens.
    Case::new(DENSE, &[("pp", 2), ("cp", 3)], Named::OneFOneB, &[1, 2]).home(Home::Fsdp),
    Case::new(DENSE, &[("pp", 2), ("cp", 3), ("sp", 2)], Named::Zbv, &[1, 0, 1, 1])
        .ring()
        .documents()
        .checkpointed(),
    Case::new(TIED, &[("pp", 2), ("dp", 2), ("cp", 2)], Named::Zb1p, &[1, 1])
        .home(Home::Hsdp)
        .documents(),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("cp", 2), ("tp", 2)], Named::Interleaved, &[1, 0, 1, 0])
        .ring()
        .home(Home::Zero1),
    Case::new(EIGHT_EXPERTS, &[("pp", 2), ("cp", 2), ("sp", 2)], Named::DualPipeV, &[0, 1, 1, 0])
        .ring()
        .home(Home::Fsdp)
        .apart(&[("rows", 2), ("ep", 2)]),
];

/// Every schedule on 2, 3 and 4 ranks of a pipeline, alone and with each other division.
pub(crate) fn all() -> Vec<Case> {
    const BESIDE: [(&[(&str, usize)], Home); 6] = [
        (&[], Home::Replicated),
        (&[("dp", 2)], Home::Replicated),
        (&[("dp", 2)], Home::Fsdp),
        (&[("rep", 2), ("dp", 2)], Home::Hsdp),
        (&[("dp", 2)], Home::Zero1),
        (&[("tp", 2)], Home::Replicated),
    ];
    let mut cases = Vec::new();
    let schedules = Named::ALL.into_iter().filter(|named| *named != Named::Inference);
    for schedule in schedules {
        for ranks in 2..=4 {
            for (beside, home) in BESIDE {
                for model in [DENSE, TIED, EXPERTS, EIGHT_EXPERTS] {
                    if model == DENSE && beside.contains(&("tp", 2)) {
                        continue; // Three heads cannot be halved.
                    }
                    let number = cases.len();
                    let mesh = [&[("pp", ranks)], beside].concat().leak();
                    let sizes = sizes(schedule, ranks, model, number);
                    let case = Case::new(model, mesh, schedule, sizes).home(home);
                    cases.push(Case { checkpointing: number % 3 == 0, ..case });
                }
            }
        }
    }
    cases
}

/// Layers of stages, which depend on `number`.
fn sizes(schedule: Named, ranks: usize, model: &str, number: usize) -> &'static [usize] {
    let per_rank = match schedule {
        Named::Gpipe | Named::OneFOneB | Named::Zb1p => 1,
        Named::Zbv | Named::DualPipeV => 2,
        _ => 2 + number % 2,
    };
    let mut sizes = vec![0; ranks * per_rank];
    for layer in 0..small::config(model).num_hidden_layers {
        let stage = (number + layer * (1 + number % 5)) % sizes.len();
        sizes[stage] += 1;
    }
    sizes.leak()
}

/// `count` of [`all`], by a seed; all with `MESHGRAD_EXHAUSTIVE=1`.
pub(crate) fn drawn(count: usize) -> Vec<Case> {
    let all = all();
    if env::var_os("MESHGRAD_EXHAUSTIVE").is_some() {
        return all;
    }
    let seed = env::var("MESHGRAD_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("MESHGRAD_TEST_SEED={seed}");
    // Steps of a number without common factors visit each case.
    let at = |number: usize| (seed * count + number) * 97 % all.len();
    (0..count).map(|number| all[at(number)]).collect()
}
