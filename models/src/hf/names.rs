//! Which Hugging Face tensors a parameter is.

use std::ops::Range;

use meshgrad_autograd::Param;

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

/// One Hugging Face tensor: a run of a parameter's elements, in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name in the file.
    pub name: String,
    /// Its extents in the file.
    pub shape: Vec<usize>,
    /// Its elements among those of the parameter.
    pub elements: Range<usize>,
}

/// The tensors that `param` is, in the order of its elements.
pub fn parts(param: &Param, experts: Experts) -> Vec<Part> {
    let (name, shape) = (param.name(), param.shape());
    let experts_of = |suffix: &str| {
        name.strip_suffix(suffix)
            .map(|layer| format!("{layer}.experts"))
    };

    if let Some(block) = name.strip_suffix(".gate_up_proj.weight") {
        let names = ["gate", "up"].map(|half| format!("{block}.{half}_proj.weight"));
        return cut(names.to_vec(), &shape[1..]);
    }
    if experts == Experts::Fused {
        if experts_of(".experts.gate_up_proj").is_some() {
            return cut(vec![name.into()], &[shape[0], 2 * shape[2], shape[3]]);
        }
        return cut(vec![name.into()], shape);
    }
    if let Some(block) = experts_of(".experts.gate_up_proj") {
        let halves =
            |expert| ["gate", "up"].map(|half| format!("{block}.{expert}.{half}_proj.weight"));
        return cut((0..shape[0]).flat_map(halves).collect(), &shape[2..]);
    }
    if let Some(block) = experts_of(".experts.down_proj") {
        let names = (0..shape[0]).map(|expert| format!("{block}.{expert}.down_proj.weight"));
        return cut(names.collect(), &shape[1..]);
    }
    cut(vec![name.into()], shape)
}

/// Tensors of one shape, one after the other.
fn cut(names: Vec<String>, shape: &[usize]) -> Vec<Part> {
    let size: usize = shape.iter().product();
    let part = |(at, name)| Part {
        name,
        shape: shape.to_vec(),
        elements: at * size..(at + 1) * size,
    };
    names.into_iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use meshgrad_autograd::Init;

    use super::*;

    fn of(
        name: &str,
        shape: &[usize],
        experts: Experts,
    ) -> Vec<(String, Vec<usize>, Range<usize>)> {
        let param = Param::new(name, shape, Init::Zeros).unwrap();
        let parts = parts(&param, experts);
        parts
            .into_iter()
            .map(|part| (part.name, part.shape, part.elements))
            .collect()
    }

    /// Whatever the layout, the parts of a parameter are its elements, each once and in order.
    #[test]
    fn parts_tile_their_parameter() {
        let shapes: [(&str, &[usize]); 4] = [
            ("model.layers.0.mlp.gate_up_proj.weight", &[2, 3, 4]),
            ("model.layers.0.mlp.experts.gate_up_proj", &[5, 2, 3, 4]),
            ("model.layers.0.mlp.experts.down_proj", &[5, 4, 3]),
            ("lm_head.weight", &[7, 4]),
        ];
        for (name, shape) in shapes {
            for experts in [Experts::OneByOne, Experts::Fused] {
                let mut end = 0;
                for (_, part, elements) in of(name, shape, experts) {
                    assert_eq!(elements.start, end);
                    assert_eq!(elements.len(), part.iter().product::<usize>());
                    end = elements.end;
                }
                assert_eq!(end, shape.iter().product::<usize>(), "{name}");
            }
        }
    }

    #[test]
    fn names_are_those_of_transformers() {
        let names = |name, shape: &[usize], experts| -> Vec<String> {
            of(name, shape, experts)
                .into_iter()
                .map(|(name, _, _)| name)
                .collect()
        };
        assert_eq!(
            names(
                "model.layers.3.mlp.experts.gate_up_proj",
                &[2, 2, 3, 4],
                Experts::OneByOne
            ),
            [
                "model.layers.3.mlp.experts.0.gate_proj.weight",
                "model.layers.3.mlp.experts.0.up_proj.weight",
                "model.layers.3.mlp.experts.1.gate_proj.weight",
                "model.layers.3.mlp.experts.1.up_proj.weight",
            ]
        );
        assert_eq!(
            of(
                "model.layers.3.mlp.experts.gate_up_proj",
                &[2, 2, 3, 4],
                Experts::Fused
            ),
            [(
                "model.layers.3.mlp.experts.gate_up_proj".into(),
                vec![2, 6, 4],
                0..48
            )]
        );
        assert_eq!(
            names(
                "model.layers.3.mlp.gate_up_proj.weight",
                &[2, 3, 4],
                Experts::Fused
            ),
            [
                "model.layers.3.mlp.gate_proj.weight",
                "model.layers.3.mlp.up_proj.weight"
            ]
        );
        assert_eq!(
            names("model.layers.3.mlp.gate.weight", &[5, 4], Experts::Fused).len(),
            1
        );
    }
}
