//! The groups that Megatron and torchtitan create, as lists of ranks in creation order.
//!
//! These are plain enumerations. As a reference, they share no code with our implementation.

/// A name and its lists of ranks.
pub(crate) type Kind = (&'static str, Vec<Vec<usize>>);

/// A configuration of Megatron's `initialize_model_parallel` in its default order,
/// `tp-cp-ep-dp-pp`, without Gloo.
pub(crate) struct Megatron {
    pub(crate) world: usize,
    pub(crate) tp: usize,
    pub(crate) pp: usize,
    pub(crate) cp: usize,
    pub(crate) ep: usize,
    pub(crate) etp: usize,
    /// `num_distributed_optimizer_instances`.
    pub(crate) instances: usize,
}

/// The groups of ranks that differ only in the masked digits. Sizes are fastest first.
fn masked_orthogonal(sizes: &[usize], mask: &[bool]) -> Vec<Vec<usize>> {
    let offsets = |of: bool| {
        let mut offsets = vec![0];
        let mut stride = 1;
        for (size, is_masked) in sizes.iter().zip(mask) {
            if *is_masked == of {
                let digits = (0..*size).map(|digit| digit * stride);
                offsets = digits
                    .flat_map(|digit| offsets.iter().map(move |offset| offset + digit))
                    .collect();
            }
            stride *= size;
        }
        offsets
    };
    let (inside, between) = (offsets(true), offsets(false));
    let group = |first: &usize| inside.iter().map(|rank| first + rank).collect();
    between.iter().map(group).collect()
}

impl Megatron {
    fn dense(&self, tokens: &str) -> Vec<Vec<usize>> {
        let dp = self.world / (self.tp * self.cp * self.pp);
        let names = ["tp", "cp", "dp", "pp"];
        ranks_of(tokens, &names, &[self.tp, self.cp, dp, self.pp])
    }

    fn expert(&self, tokens: &str) -> Vec<Vec<usize>> {
        let names = ["tp", "ep", "dp", "pp"];
        ranks_of(tokens, &names, &[self.etp, self.ep, self.expert_dp(), self.pp])
    }

    fn expert_dp(&self) -> usize {
        self.world / (self.etp * self.ep * self.pp)
    }

    /// All groups that it creates.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let alone = || (0..self.world).map(|rank| vec![rank]).collect::<Vec<_>>();
        let ends = |pp: &Vec<usize>| match pp.as_slice() {
            [first, .., last] => vec![*first, *last],
            one => one.to_vec(),
        };
        let dp_cp = self.dense("dp-cp");
        let edp = self.expert("dp");
        let intra = self.expert_dp() / self.instances;
        let mut kinds = vec![
            ("gtp_remat", alone()),
            ("dp_cp", dp_cp.clone()),
            ("dp", self.dense("dp")),
            ("cp", self.dense("cp")),
            ("mp", self.dense("tp-pp")),
            ("tp", self.dense("tp")),
            ("pp", self.dense("pp")),
            ("embd", self.dense("pp").iter().map(ends).collect()),
            ("pos_embd", self.dense("pp").iter().map(|pp| vec![pp[0]]).collect()),
            ("tp_dp_cp", self.dense("tp-dp-cp")),
            ("tp_dp", self.dense("tp-dp")),
            ("tp_cp", self.dense("tp-cp")),
            ("expt_gtp_remat", alone()),
            ("ep", self.expert("ep")),
            ("ep_tp", self.expert("tp")),
            ("tp_ep_mp", self.expert("tp-ep")),
            ("tp_ep_pp", self.expert("tp-ep-pp")),
            ("tp_ep_gtp_pp", self.expert("tp-ep-pp")),
            ("ep_dp", edp.clone()),
            (
                "intra_dist_opt_instance",
                self.expert("tp-ep-pp").chunks(intra).map(|some| some.concat()).collect(),
            ),
        ];
        if self.instances > 1 {
            let slices = |of: &[Vec<usize>]| -> Vec<Vec<usize>> {
                let split = |ranks: &Vec<usize>| {
                    let size = ranks.len() / self.instances;
                    ranks.chunks(size).map(<[usize]>::to_vec).collect::<Vec<_>>()
                };
                of.iter().flat_map(split).collect()
            };
            let across = |ranks: &Vec<usize>| {
                let at = |offset: usize| ranks[offset..].iter().step_by(intra).copied().collect();
                (0..intra).map(at).collect::<Vec<Vec<usize>>>()
            };
            kinds.push(("intra_dp_cp", slices(&dp_cp)));
            kinds.push(("intra_ep_dp", slices(&edp)));
            kinds.push(("inter_ep_dp", edp.iter().flat_map(across).collect()));
        }
        kinds
    }
}

fn ranks_of(tokens: &str, names: &[&str], sizes: &[usize]) -> Vec<Vec<usize>> {
    let tokens: Vec<&str> = tokens.split('-').collect();
    let mask: Vec<bool> = names.iter().map(|name| tokens.contains(name)).collect();
    masked_orthogonal(sizes, &mask)
}

/// A configuration of torchtitan's `ParallelDims` on its default backend.
pub(crate) struct Titan {
    pub(crate) pp: usize,
    pub(crate) dp_replicate: usize,
    pub(crate) dp_shard: usize,
    pub(crate) cp: usize,
    pub(crate) tp: usize,
    pub(crate) ep: usize,
}

impl Titan {
    pub(crate) fn world(&self) -> usize {
        self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp
    }

    /// The groups of each axis of each mesh that torchtitan derives from its world mesh.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let (pp, cp, tp) = (("pp", self.pp), ("cp", self.cp), ("tp", self.tp));
        let replicate = ("dp_replicate", self.dp_replicate);
        let dp = self.dp_replicate * self.dp_shard;
        let efsdp = self.dp_shard * self.cp * self.tp / self.ep;

        let meshes: [&[(&str, usize)]; 4] = [
            &[pp, ("batch", dp), cp, tp],
            &[pp, replicate, ("dp_shard", self.dp_shard), cp, tp],
            &[pp, ("dp", dp), cp, tp],
            &[pp, replicate, ("efsdp", efsdp), ("ep", self.ep)],
        ];
        let axes = meshes.into_iter().flat_map(axes_of);
        let loss = axes_of(&[pp, ("loss", dp * self.cp), tp]).remove(1);
        axes.chain([loss]).collect()
    }

    /// Whether torchtitan creates a group for an axis. For axes of one rank, it does so only if
    /// FSDP needs the group.
    pub(crate) fn is_real(&self, axis: &str, size: usize) -> bool {
        match axis {
            "dp_shard" => true,
            "efsdp" => self.ep > 1,
            _ => size > 1,
        }
    }
}

/// The groups of each axis; the last axis varies fastest.
fn axes_of(axes: &[(&'static str, usize)]) -> Vec<Kind> {
    let sizes: Vec<usize> = axes.iter().rev().map(|(_, size)| *size).collect();
    let groups = |at: usize| {
        let mask: Vec<bool> = (0..axes.len()).rev().map(|other| other == at).collect();
        masked_orthogonal(&sizes, &mask)
    };
    (0..axes.len()).map(|at| (axes[at].0, groups(at))).collect()
}
