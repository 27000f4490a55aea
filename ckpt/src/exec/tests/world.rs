//! Random graphs over random files, with their expected values: each expression is built together
//! with its elements by the simplest code, which shares nothing with the tested code.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Dtype;
use crate::graph::{Expr, Graph};
use crate::plan::LoadRequest;

/// An expression and its elements.
#[derive(Clone)]
struct Value {
    expr: Expr,
    shape: Vec<u64>,
    elements: Vec<Element>,
}

/// An element: tensor number and index.
type Element = (usize, u64);

struct Tensor {
    name: String,
    dtype: Dtype,
    value: Value,
    bytes: Vec<u8>,
}

pub(super) struct World {
    pub(super) graph: Graph,
    pub(super) requests: Vec<LoadRequest>,
    tensors: Vec<Tensor>,
    /// For each request: the dtype and the elements of its region.
    meant: Vec<(Dtype, Vec<Element>)>,
    /// Values that were requested, for repeated requests.
    requested: Vec<(Dtype, Value)>,
    seed: u64,
}

/// The coordinates of a shape, row-major.
fn coordinates(shape: &[u64]) -> Vec<Vec<u64>> {
    let mut all = vec![Vec::new()];
    for extent in shape {
        let longer = |at: &Vec<u64>| {
            let at = at.clone();
            (0..*extent).map(move |index| [&at[..], &[index]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

impl Value {
    fn at(&self, at: &[u64]) -> Element {
        let digits = at.iter().zip(&self.shape);
        let index = digits.fold(0, |index, (at, extent)| index * extent + at);
        self.elements[index as usize]
    }

    fn new(expr: Expr, shape: &[u64], element: impl Fn(&[u64]) -> Element) -> Value {
        Value {
            expr,
            shape: shape.to_vec(),
            elements: coordinates(shape).iter().map(|at| element(at)).collect(),
        }
    }
}

impl World {
    /// A world with this many requested regions.
    pub(super) fn with_requests(seed: u64, requests: usize, depth: u32) -> World {
        let mut world = World::new(seed);
        for _ in 0..requests {
            world.request(depth);
        }
        world
    }

    fn new(seed: u64) -> World {
        World {
            graph: Graph::new(),
            requests: Vec::new(),
            tensors: Vec::new(),
            meant: Vec::new(),
            requested: Vec::new(),
            seed,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % bound
    }

    /// Requests a region of a new expression, or of one that was requested before.
    fn request(&mut self, depth: u32) {
        let again = self.below(4) == 0;
        let (dtype, value) = match self.requested.last() {
            Some(last) if again => last.clone(),
            _ => {
                let dtypes = [Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::I64];
                let dtype = dtypes[self.below(4) as usize];
                let rank = self.below(4) as usize;
                let shape: Vec<u64> = (0..rank).map(|_| 1 + self.below(9)).collect();
                (dtype, self.value(&shape, depth, dtype))
            }
        };
        let none = self.below(12) == 0;
        let region: Vec<Range<u64>> = value
            .shape
            .iter()
            .map(|extent| {
                let start = self.below(*extent);
                match none {
                    true => start..start,
                    false => start..start + 1 + self.below(extent - start),
                }
            })
            .collect();

        let inside = |at: &&Vec<u64>| at.iter().zip(&region).all(|(at, range)| range.contains(at));
        let all = coordinates(&value.shape);
        let elements = all.iter().filter(inside).map(|at| value.at(at)).collect();
        self.meant.push((dtype, elements));
        let name = format!("target {}", self.requests.len());
        self.requests.push(LoadRequest::new(name, value.expr, region));
        self.requested.push((dtype, value));
    }

    fn tensor(&mut self, shape: &[u64], dtype: Dtype) -> Value {
        let alike = |it: &&Tensor| it.dtype == dtype && it.value.shape == shape;
        if let Some(tensor) = self.tensors.iter().find(alike) {
            let known = tensor.value.clone();
            if self.below(3) == 0 {
                return known;
            }
        }
        let number = self.tensors.len();
        let name = format!("tensor.{number}");
        let expr = self.graph.source(&name, dtype, shape).unwrap();
        let count: u64 = shape.iter().product();
        let value = Value {
            expr,
            shape: shape.to_vec(),
            elements: (0..count).map(|at| (number, at)).collect(),
        };
        let bytes = (0..count * dtype.bits() as u64 / 8).map(|_| self.below(256) as u8);
        let bytes = bytes.collect();
        self.tensors.push(Tensor { name, dtype, value: value.clone(), bytes });
        value
    }

    /// A random expression of a shape, with at most `depth` nested operations.
    fn value(&mut self, shape: &[u64], depth: u32, dtype: Dtype) -> Value {
        if depth == 0 || shape.is_empty() {
            return self.tensor(shape, dtype);
        }
        let (rank, depth) = (shape.len(), depth - 1);
        let dim = self.below(rank as u64) as usize;
        let with = |at: Range<usize>, new: &[u64]| {
            let mut other = shape.to_vec();
            other.splice(at, new.iter().copied());
            other
        };
        match self.below(7) {
            0 => {
                let mut dims: Vec<usize> = (0..rank).collect();
                for at in 1..rank {
                    dims.swap(at, self.below(at as u64 + 1) as usize);
                }
                let mut of = vec![0; rank];
                dims.iter().zip(shape).for_each(|(dim, extent)| of[*dim] = *extent);
                let of = self.value(&of, depth, dtype);
                let expr = self.graph.permute(of.expr, &dims).unwrap();
                Value::new(expr, shape, |at| {
                    let mut from = vec![0; rank];
                    dims.iter().zip(at).for_each(|(dim, at)| from[*dim] = *at);
                    of.at(&from)
                })
            }
            1 => {
                let (start, step) = (self.below(3), 1 + self.below(3));
                let extent = start + (shape[dim] - 1) * step + 1 + self.below(3);
                let of = self.value(&with(dim..dim + 1, &[extent]), depth, dtype);
                let cut = self.graph.slice(of.expr, dim, (start, shape[dim], step));
                Value::new(cut.unwrap(), shape, |at| {
                    let mut from = at.to_vec();
                    from[dim] = start + at[dim] * step;
                    of.at(&from)
                })
            }
            2 if shape[dim] > 1 => {
                let first = 1 + self.below(shape[dim] - 1);
                let a = self.value(&with(dim..dim + 1, &[first]), depth, dtype);
                let b = self.value(&with(dim..dim + 1, &[shape[dim] - first]), depth, dtype);
                let expr = self.graph.concat(&[a.expr, b.expr], dim).unwrap();
                Value::new(expr, shape, |at| {
                    let mut from = at.to_vec();
                    match at[dim].checked_sub(first) {
                        None => a.at(&from),
                        Some(rest) => {
                            from[dim] = rest;
                            b.at(&from)
                        }
                    }
                })
            }
            3 if shape[dim] <= 4 => {
                let one = with(dim..dim + 1, &[]);
                let of: Vec<Value> =
                    (0..shape[dim]).map(|_| self.value(&one, depth, dtype)).collect();
                let exprs: Vec<Expr> = of.iter().map(|it| it.expr).collect();
                let expr = self.graph.stack(&exprs, dim).unwrap();
                Value::new(expr, shape, |at| {
                    let mut from = at.to_vec();
                    let which = from.remove(dim);
                    of[which as usize].at(&from)
                })
            }
            4 if dim + 1 < rank => {
                let extent = shape[dim] * shape[dim + 1];
                let of = self.value(&with(dim..dim + 2, &[extent]), depth, dtype);
                let expr = self.graph.unflatten(of.expr, dim, shape[dim]).unwrap();
                Value { expr, shape: shape.to_vec(), ..of }
            }
            5 => {
                let rows: Vec<u64> =
                    (1..=shape[dim]).filter(|it| shape[dim].is_multiple_of(*it)).collect();
                let rows = rows[self.below(rows.len() as u64) as usize];
                let of = with(dim..dim + 1, &[rows, shape[dim] / rows]);
                let of = self.value(&of, depth, dtype);
                let expr = self.graph.flatten(of.expr, dim).unwrap();
                Value { expr, shape: shape.to_vec(), ..of }
            }
            _ => self.value(shape, depth, dtype),
        }
    }

    /// Writes all tensors to some files of a new folder, without alignment.
    pub(super) fn write(&mut self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let count = 1 + self.below(3) as usize;
        let mut map = serde_json::Map::new();
        for file in 0..count {
            let name = format!("model-{file}.safetensors");
            let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
            for tensor in self.tensors.iter().skip(file).step_by(count) {
                let start = data.len();
                data.extend_from_slice(&tensor.bytes);
                let entry = serde_json::json!({
                    "dtype": tensor.dtype.name(),
                    "shape": tensor.value.shape,
                    "data_offsets": [start, data.len()],
                });
                header.insert(tensor.name.clone(), entry);
                map.insert(tensor.name.clone(), name.clone().into());
            }
            let header = serde_json::to_vec(&header).unwrap();
            let length = (header.len() as u64).to_le_bytes();
            let bytes = [&length[..], &header, &data].concat();
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let index = serde_json::json!({ "weight_map": map });
        let path = folder.path().join("model.safetensors.index.json");
        std::fs::write(path, serde_json::to_vec(&index).unwrap()).unwrap();
        folder
    }

    /// The expected targets.
    pub(super) fn expected(&self) -> BTreeMap<String, Vec<u8>> {
        let requests = self.requests.iter().zip(&self.meant);
        let bytes = |(request, (dtype, elements)): (&LoadRequest, &(Dtype, Vec<Element>))| {
            let size = dtype.bits() / 8;
            let bytes = elements.iter().flat_map(|(tensor, at)| {
                &self.tensors[*tensor].bytes[*at as usize * size..][..size]
            });
            (request.target.to_string(), bytes.copied().collect())
        };
        requests.map(bytes).collect()
    }
}
