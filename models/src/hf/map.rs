//! The [mapping](meshgrad_ckpt::mapping) between parameters, on the left, and Hugging Face tensors,
//! on the right.

use meshgrad_ckpt::mapping::Mapping;
use meshgrad_error::Result;

/// How a folder stores the experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// `experts.N.gate_proj.weight` and so on, as on the Hub.
    OneByOne,
    /// `experts.gate_up_proj` [E, 2F, H] and `experts.down_proj` [E, H, F], the layout of
    /// transformers 5 in memory.
    Fused,
}

impl Experts {
    /// How a folder with these tensor names stores experts; `OneByOne` without experts.
    pub fn of<'a>(mut names: impl Iterator<Item = &'a str>) -> Experts {
        match names.any(|name| name.ends_with(".experts.gate_up_proj")) {
            true => Experts::Fused,
            false => Experts::OneByOne,
        }
    }
}

/// The common part: gate [F, H] and up [F, H] are one parameter [2, F, H]; everything else keeps
/// its name.
const COMMON: &str = "
[model.layers.{l}.mlp. = model.layers.{l}.mlp.]
gate_up_proj.weight = stack({h:gate|up}_proj.weight, each=h)
shared_experts.gate_up_proj.weight ?= stack(shared_experts.{h:gate|up}_proj.weight, each=h)
[=]
{rest:path} = {rest:path}
";

/// All experts of a layer are one parameter: gate and up [E, 2, F, H], down [E, H, F].
const ONE_BY_ONE: &str = "
[model.layers.{l}.mlp.experts. = model.layers.{l}.mlp.experts.]
gate_up_proj = stack(stack({e}.{h:gate|up}_proj.weight, each=h), each=e)
down_proj = stack({e}.down_proj.weight, each=e)
[=]
";

const FUSED: &str = "
[model.layers.{l}.mlp.experts. = model.layers.{l}.mlp.experts.]
gate_up_proj = unflatten(gate_up_proj, 2, dim=1)
down_proj = down_proj
[=]
";

/// Some folders store tied embeddings twice, which is valid if both are equal.
pub(crate) const TIED: &str = "
model.embed_tokens.weight = tied(model.embed_tokens.weight, lm_head.weight)
";

/// The mapping of a model whose tensors have the names of Qwen3, dense or mixture-of-experts.
///
/// # Errors
/// Never: a test parses each mapping.
pub(crate) fn mapping(experts: Experts, tied: bool) -> Result<Mapping> {
    let experts = match experts {
        Experts::OneByOne => ONE_BY_ONE,
        Experts::Fused => FUSED,
    };
    let tied = if tied { TIED } else { "" };
    Mapping::parse(&[experts, tied, COMMON].concat())
}

#[cfg(test)]
mod tests {
    use meshgrad_ckpt::Dtype;
    use meshgrad_ckpt::mapping::{AllowedProblems, TensorSpec};

    use super::*;

    const PARAMETERS: [(&str, &[u64]); 5] = [
        ("lm_head.weight", &[7, 4]),
        ("model.layers.0.mlp.gate_up_proj.weight", &[2, 3, 4]),
        ("model.layers.3.mlp.experts.down_proj", &[2, 4, 3]),
        ("model.layers.3.mlp.experts.gate_up_proj", &[2, 2, 3, 4]),
        ("model.layers.3.mlp.gate.weight", &[5, 4]),
    ];

    fn tensors(experts: Experts) -> Vec<(String, Vec<u64>)> {
        let parameters = PARAMETERS.map(|(name, shape)| TensorSpec::new(name, Dtype::F32, shape));
        let map = mapping(experts, false).unwrap().reversed();
        let bound = map.bind(&parameters, None, &AllowedProblems::none()).unwrap();
        bound.outputs().map(|it| (it.name, it.shape)).collect()
    }

    #[test]
    fn names_match_transformers() {
        let shape = |shape: &[u64]| shape.to_vec();
        let common = [
            ("lm_head.weight".to_owned(), shape(&[7, 4])),
            ("model.layers.0.mlp.gate_proj.weight".to_owned(), shape(&[3, 4])),
            ("model.layers.0.mlp.up_proj.weight".to_owned(), shape(&[3, 4])),
            ("model.layers.3.mlp.gate.weight".to_owned(), shape(&[5, 4])),
        ];
        let experts = |names: &[(&str, &[u64])]| {
            let layer = "model.layers.3.mlp.experts";
            let named = names.iter().map(|(name, of)| (format!("{layer}.{name}"), shape(of)));
            let mut all: Vec<_> = named.chain(common.clone()).collect();
            all.sort();
            all
        };
        let one_by_one = experts(&[
            ("0.down_proj.weight", &[4, 3]),
            ("0.gate_proj.weight", &[3, 4]),
            ("0.up_proj.weight", &[3, 4]),
            ("1.down_proj.weight", &[4, 3]),
            ("1.gate_proj.weight", &[3, 4]),
            ("1.up_proj.weight", &[3, 4]),
        ]);
        assert_eq!(tensors(Experts::OneByOne), one_by_one);
        let fused = experts(&[("down_proj", &[2, 4, 3]), ("gate_up_proj", &[2, 6, 4])]);
        assert_eq!(tensors(Experts::Fused), fused);
    }

    /// Every mapping is invertible, for both layouts, tied or not.
    #[test]
    fn every_mapping_is_invertible() {
        for experts in [Experts::OneByOne, Experts::Fused] {
            for tied in [false, true] {
                let mut stored = tensors(experts);
                stored.push(("model.embed_tokens.weight".into(), vec![7, 4]));
                let stored: Vec<TensorSpec> = stored
                    .iter()
                    .map(|(name, shape)| TensorSpec::new(name, Dtype::BF16, shape))
                    .filter(|it| !(tied && it.name == "lm_head.weight"))
                    .collect();
                let bound =
                    mapping(experts, tied).unwrap().bind(&stored, None, &AllowedProblems::none());
                let bound = bound.unwrap_or_else(|report| panic!("{report}"));
                let inverse = bound.inverse().unwrap_or_else(|why| panic!("{why}"));
                assert_eq!(inverse.outputs().count(), stored.len());
            }
        }
    }
}
