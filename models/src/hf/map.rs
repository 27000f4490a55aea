//! Which Hugging Face tensors a parameter is, as a [map](meshgrad_ckpt::mapping): parameters on the
//! left, tensors of a folder on the right.

use meshgrad_ckpt::mapping::{MapError, Mapping};

/// How a folder stores the experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// `experts.N.gate_proj.weight` and so on, as on the hub.
    OneByOne,
    /// `experts.gate_up_proj` [E, 2F, H] and `experts.down_proj` [E, H, F], as transformers 5 holds
    /// them in memory.
    Fused,
}

impl Experts {
    /// How these tensor names store experts; one by one where there are none.
    pub fn of<'a>(mut names: impl Iterator<Item = &'a str>) -> Experts {
        match names.any(|name| name.ends_with(".experts.gate_up_proj")) {
            true => Experts::Fused,
            false => Experts::OneByOne,
        }
    }
}

/// What is the same wherever the experts are: gate [F, H] and up [F, H] are one parameter
/// [2, F, H], and everything else is what it is called.
const COMMON: &str = "
[model.layers.{l}.mlp. = model.layers.{l}.mlp.]
gate_up_proj.weight = stack({h:gate|up}_proj.weight, each=h)
[=]
{rest:path} = {rest:path}
";

/// All experts of a layer are one parameter, gate and up [E, 2, F, H], down [E, H, F].
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

/// Some folders store tied embeddings twice. That is right as long as both are the same.
const TIED: &str = "
model.embed_tokens.weight = tied(model.embed_tokens.weight, lm_head.weight)
";

/// The map of a Qwen3 model, dense or of experts.
///
/// # Errors
/// None: a test reads each of the maps.
pub fn map(experts: Experts, tied: bool) -> Result<Mapping, MapError> {
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
        let map = map(experts, false).unwrap().reversed();
        let bound = map
            .bind(&parameters, None, &AllowedProblems::none())
            .unwrap();
        bound.outputs().map(|it| (it.name, it.shape)).collect()
    }

    #[test]
    fn names_are_those_of_transformers() {
        let shape = |shape: &[u64]| shape.to_vec();
        let common = [
            ("lm_head.weight".to_owned(), shape(&[7, 4])),
            (
                "model.layers.0.mlp.gate_proj.weight".to_owned(),
                shape(&[3, 4]),
            ),
            (
                "model.layers.0.mlp.up_proj.weight".to_owned(),
                shape(&[3, 4]),
            ),
            ("model.layers.3.mlp.gate.weight".to_owned(), shape(&[5, 4])),
        ];
        let experts = |names: &[(&str, &[u64])]| {
            let layer = "model.layers.3.mlp.experts";
            let named = names
                .iter()
                .map(|(name, of)| (format!("{layer}.{name}"), shape(of)));
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

    /// Either layout, tied or not, is read as it was written, proven by the map itself.
    #[test]
    fn every_map_has_a_way_back() {
        for experts in [Experts::OneByOne, Experts::Fused] {
            for tied in [false, true] {
                let mut there = tensors(experts);
                there.push(("model.embed_tokens.weight".into(), vec![7, 4]));
                let there: Vec<TensorSpec> = there
                    .iter()
                    .map(|(name, shape)| TensorSpec::new(name, Dtype::BF16, shape))
                    .filter(|it| !(tied && it.name == "lm_head.weight"))
                    .collect();
                let bound =
                    map(experts, tied)
                        .unwrap()
                        .bind(&there, None, &AllowedProblems::none());
                let bound = bound.unwrap_or_else(|report| panic!("{report}"));
                let back = bound.inverse().unwrap_or_else(|why| panic!("{why}"));
                assert_eq!(back.outputs().count(), there.len());
            }
        }
    }
}
