//! Declarative signatures of ops.
//!
//! `x: F[.. i], w: F[o i] -> y: F[.. o]` declares the operands of an op, the dims that must agree,
//! and the results. The checks of shapes and dtypes, the result shapes, the counts of FLOPs and
//! bytes, the meta device, and the sharding rule are derived from it.
//!
//! | syntax | meaning |
//! |---|---|
//! | `i` | a dim: the same extent at each occurrence of the name |
//! | `i!` | as `i`, and the dim cannot be sharded; one `!` applies to all occurrences |
//! | `2` | a dim of exactly this extent |
//! | `..` | any leading dims, the same at each occurrence |
//! | `~` | all dims, broadcast against each other; must be alone |
//! | `*` | any dims, independent of other operands; must be alone |
//! | `F` | f64, f32 or bf16, the same at each occurrence; `G` is a second variable |
//! | `A` | the accumulator dtype of `F`: f64 for f64, f32 otherwise |
//! | `T` | any dtype, the same at each occurrence; `U` is a second variable |
//! | `I`, `J` | an index dtype: i64, i32 or u32 |
//! | `f32`, `bool`, ... | this dtype |
//!
//! If a result lacks a dim of the operands, it is the sum over that dim. A dim that is reduced in
//! any other way must have a `!`. Two properties are declared separately: the operands in which the
//! op is [linear](Signature::linear_in), and dims that [divide into blocks](Signature::grouped).

use std::sync::{Arc, OnceLock};

use meshgrad_error::{bail, error};
use meshgrad_mesh::{DimSpec, ParsedSignature, ShardingRule, TensorSpec};

use crate::core::sharding::gate::Gate;
use crate::core::sharding::memo::Results;
use crate::core::sharding::tag::Tag;
use crate::core::tensor::UninitTensor;
use crate::{DType, Device, Error, Result, Shape, ShardedShape, Tensor};

const MAX_NAMES: usize = 12;
const MOST_OPERANDS: usize = 16;
const DTYPE_VARIABLES: [&str; 6] = ["F", "G", "T", "U", "I", "J"];

/// The signature of an op: its name, operands and FLOPs.
pub struct Signature {
    name: &'static str,
    spec: &'static str,
    flops_per_point: u64,
    linear_in: &'static [&'static str],
    grouped: Option<(&'static str, &'static str)>,
    parsed: OnceLock<Parsed>,
    sharding_rule: OnceLock<ShardingRule>,
}

impl Signature {
    /// An op `name` with operands as in `spec`. It does `flops_per_point` floating-point operations
    /// per point of its iteration space, the product of all its dims (2 for a matmul).
    pub const fn new(name: &'static str, spec: &'static str, flops_per_point: u64) -> Signature {
        Signature {
            name,
            spec,
            flops_per_point,
            linear_in: &[],
            grouped: None,
            parsed: OnceLock::new(),
            sharding_rule: OnceLock::new(),
        }
    }

    /// Declares that all results are linear in each of these operands: `["a", "b"]` for a product,
    /// `["a + b"]` for a sum, which is linear in both jointly. If an entry is partial (sum or avg),
    /// the results are partial too; the operands of `"a + b"` must be partial together.
    pub const fn linear_in(mut self, operands: &'static [&'static str]) -> Signature {
        self.linear_in = operands;
        self
    }

    /// Declares that dim `many` consists of equal blocks, one per index of dim `groups`. They are
    /// sharded together, or `many` alone if `groups` has extent 1.
    pub const fn grouped(mut self, many: &'static str, groups: &'static str) -> Signature {
        self.grouped = Some((many, groups));
        self
    }

    /// The op's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The specification of the operands.
    pub fn spec(&self) -> &'static str {
        self.spec
    }

    /// Derives the shardings of the results from those of the operands. Dims that the signature
    /// leaves open (`*`) cannot be sharded; [`ShardingRule`] has constructors for ops that take
    /// dims as arguments.
    pub fn sharding_rule(&self) -> &ShardingRule {
        self.sharding_rule.get_or_init(|| {
            let rule = ShardingRule::from_signature(self.name, &self.parsed().signature);
            let rule = rule.linear_in(self.linear_in);
            let rule = rule.and_then(|rule| match self.grouped {
                Some((many, groups)) => rule.grouped(many, groups),
                None => Ok(rule),
            });
            rule.unwrap_or_else(|error| panic!("{error}"))
        })
    }

    /// Checks the shardings, shapes, dtypes and devices of `operands`, given in the order of the
    /// signature.
    ///
    /// # Errors
    /// When a shape or dtype does not match; when the operands are on several devices; for f64 on a
    /// GPU; when their shardings do not fit, with the redistributions that would help.
    pub fn call(&'static self, operands: &[&Tensor]) -> Result<Call> {
        self.call_with(operands, &[], || Ok(self.sharding_rule().clone()))
    }

    /// As [`Signature::call`], for an op whose sharding rule depends on `arguments`. `rule` may not
    /// be called again for equal `arguments` and equal shardings of the operands, so `arguments`
    /// must hold everything else that it depends on.
    ///
    /// # Errors
    /// As [`Signature::call`].
    pub fn call_with(
        &'static self,
        operands: &[&Tensor],
        arguments: &[usize],
        rule: impl Fn() -> Result<ShardingRule>,
    ) -> Result<Call> {
        let results = self.gate(operands, None, arguments, &rule)?;
        self.checked(operands, results)
    }

    /// As [`Signature::call_with`], for an op whose first result has the shape `to`. If that has a
    /// sharding, the result has its shards.
    ///
    /// # Errors
    /// As [`Signature::call`].
    pub(crate) fn call_to(
        &'static self,
        operands: &[&Tensor],
        to: &ShardedShape,
        arguments: &[usize],
        rule: impl Fn() -> Result<ShardingRule>,
    ) -> Result<Call> {
        let Some(to) = to.tag() else {
            return self.call_with(operands, arguments, rule);
        };
        let mut tags: Vec<_> = operands.iter().map(|x| x.tag()).collect();
        tags.push(Some(to));
        let gate = Gate {
            op: self.name,
            id: std::ptr::from_ref(self) as usize,
            operands: &tags,
            name: &|at| self.operand_names().nth(at).unwrap_or("to").to_owned(),
            last_is_open: false,
            arguments,
        };
        let results = gate.results(&|| Ok(rule()?.with_target()))?;
        self.checked(operands, results)
    }

    /// As [`Signature::call`], with `into` as the last operand. If `open` is given, `into` has no
    /// sharding yet and takes that of its result, which must have the shards that `open` holds.
    pub(crate) fn call_into(
        &'static self,
        operands: &[&Tensor],
        into: &Tensor,
        open: Option<Option<&Tag>>,
    ) -> Result<Call> {
        let mut all = [into; MOST_OPERANDS];
        all[..operands.len()].copy_from_slice(operands);
        let all = &all[..=operands.len()];
        let rule = || Ok(self.sharding_rule().clone());
        let arguments: &[usize] = if open.is_some() { &[1] } else { &[] };
        let results = self.gate(all, open, arguments, &rule)?;
        self.checked(all, results)
    }

    /// The shardings of the results; `None` if no operand has one.
    fn gate(
        &'static self,
        operands: &[&Tensor],
        open: Option<Option<&Tag>>,
        arguments: &[usize],
        rule: &dyn Fn() -> Result<ShardingRule>,
    ) -> Result<Option<Arc<Results>>> {
        let shards = open.flatten();
        if shards.is_none() && operands.iter().all(|x| x.tag().is_none()) {
            return Ok(None);
        }
        let mut tags = [None; MOST_OPERANDS];
        assert!(operands.len() <= MOST_OPERANDS, "{}: too many operands", self.name);
        for (tag, operand) in tags.iter_mut().zip(operands) {
            *tag = operand.tag();
        }
        if open.is_some() {
            tags[operands.len() - 1] = shards;
        }
        let gate = Gate {
            op: self.name,
            id: std::ptr::from_ref(self) as usize,
            operands: &tags[..operands.len()],
            name: &|at| self.operand_names().nth(at).unwrap_or_default().to_owned(),
            last_is_open: open.is_some(),
            arguments,
        };
        gate.results(rule)
    }

    fn checked(&'static self, operands: &[&Tensor], results: Option<Arc<Results>>) -> Result<Call> {
        let parsed = self.parsed();
        assert_eq!(
            operands.len(),
            parsed.signature.operands.len(),
            "{}: operands of `{}`",
            self.name,
            self.spec
        );

        let mut bound = Bound::default();
        for (at, tensor) in operands.iter().enumerate() {
            bound.bind(parsed, at, tensor).map_err(|problem| self.error(operands, problem))?;
        }

        let device = operands[0].device().clone();
        if operands.iter().any(|tensor| *tensor.device() != device) {
            let devices: Vec<String> = operands.iter().map(|t| t.device().to_string()).collect();
            bail!(
                Invalid,
                "{}: operands are on different devices ({}); copy them to one device first",
                self.name,
                devices.join(", ")
            );
        }

        // `F` and `G` are the dtypes that ops compute in; no GPU op takes f64 tensors for them.
        if device.is_gpu()
            && bound.dtypes[..2].iter().flatten().any(|(dtype, _)| *dtype == DType::F64)
        {
            return Err(device.no_kernel_for(self.name, DType::F64));
        }

        let bytes = operands.iter().map(|tensor| distinct_bytes(tensor)).sum();
        Ok(Call { signature: self, bound, device, bytes, flops: None, results })
    }

    /// The error for operands that match the signature but not the op.
    pub fn error(&self, operands: &[&Tensor], problem: String) -> Error {
        let given: Vec<String> = self
            .operand_names()
            .zip(operands)
            .map(|(name, tensor)| format!("{name} {}{}", tensor.dtype(), tensor.shape()))
            .collect();
        error!(
            Invalid,
            "{}: {problem}; the op is `{}` and was given {}",
            self.name,
            self.spec,
            given.join(", ")
        )
    }

    fn operand_names(&self) -> impl Iterator<Item = &'static str> {
        self.parsed().signature.operands.iter().map(|operand| operand.name)
    }

    fn parsed(&self) -> &Parsed {
        self.parsed.get_or_init(|| Parsed::new(self.spec))
    }
}

/// Bytes of the distinct elements of a tensor: broadcast dims count once.
fn distinct_bytes(tensor: &Tensor) -> u64 {
    let dims = tensor.shape().iter().zip(tensor.layout().strides());
    let elements: usize =
        dims.map(|(extent, stride)| if *stride == 0 { 1 } else { *extent }).product();
    tensor.dtype().bytes(elements) as u64
}

struct Parsed {
    signature: ParsedSignature<'static>,
    operand_dtypes: Vec<DTypeRule>,
    result_dtypes: Vec<DTypeRule>,
}

#[derive(Clone, Copy)]
enum DTypeRule {
    Exactly(DType),
    /// An index into [`DTYPE_VARIABLES`].
    Variable(usize),
    /// The accumulator of variable `F`.
    Accumulator,
}

impl Parsed {
    /// Panics for a malformed specification, at the first call of the op.
    fn new(spec: &'static str) -> Parsed {
        let signature = ParsedSignature::parse(spec).unwrap_or_else(|error| panic!("{error}"));
        let names = signature.dims.len();
        assert!(names <= MAX_NAMES, "too many dim names in `{spec}`");
        Parsed {
            operand_dtypes: signature.operands.iter().map(DTypeRule::of).collect(),
            result_dtypes: signature.results.iter().map(DTypeRule::of).collect(),
            signature,
        }
    }

    fn dim(&self, name: &str) -> Option<usize> {
        self.signature.dims.iter().position(|dim| dim.name == name)
    }
}

impl DTypeRule {
    fn of(tensor: &TensorSpec) -> DTypeRule {
        let dtype = tensor.dtype;
        let dtype = dtype.unwrap_or_else(|| panic!("`{}` has no dtype", tensor.name));
        match DTYPE_VARIABLES.iter().position(|variable| *variable == dtype) {
            Some(variable) => DTypeRule::Variable(variable),
            None if dtype == "A" => DTypeRule::Accumulator,
            None => DTypeRule::Exactly(
                DType::from_name(dtype)
                    .unwrap_or_else(|| panic!("`{}` has unknown dtype `{dtype}`", tensor.name)),
            ),
        }
    }
}

/// The values of names, leading dims and dtype variables in one call, and the operands that bound
/// them.
#[derive(Default)]
struct Bound {
    names: [Option<(usize, usize)>; MAX_NAMES],
    leading: Option<(Shape, usize)>,
    broadcast: Option<Shape>,
    anything: usize,
    dtypes: [Option<(DType, usize)>; DTYPE_VARIABLES.len()],
}

impl Bound {
    fn bind(&mut self, parsed: &Parsed, at: usize, tensor: &Tensor) -> Result<(), String> {
        let operand = &parsed.signature.operands[at];
        self.bind_dtype(parsed, at, tensor.dtype())?;

        let shape = tensor.shape();
        match operand.dims.first() {
            Some(DimSpec::Any) => {
                self.anything = self.anything.max(shape.elements());
                Ok(())
            }
            Some(DimSpec::Broadcast) => self.bind_broadcast(operand, shape),
            Some(DimSpec::Leading) => {
                let named = operand.dims.len() - 1;
                let Some(leading) = shape.len().checked_sub(named) else {
                    return Err(format!("`{}` needs at least {named} dims", operand.name));
                };
                self.bind_leading(parsed, at, operand, &shape[..leading])?;
                self.bind_dims(parsed, at, operand, &operand.dims[1..], &shape[leading..])
            }
            _ if shape.len() != operand.dims.len() => {
                Err(format!("`{}` needs {} dims", operand.name, operand.dims.len()))
            }
            _ => self.bind_dims(parsed, at, operand, &operand.dims, shape),
        }
    }

    fn bind_dtype(&mut self, parsed: &Parsed, at: usize, dtype: DType) -> Result<(), String> {
        let name = parsed.signature.operands[at].name;
        let rule = parsed.operand_dtypes[at];
        let variable = match rule {
            DTypeRule::Variable(variable) => variable,
            DTypeRule::Exactly(_) | DTypeRule::Accumulator => {
                let required = self.dtype(rule).unwrap_or(DType::F32);
                return match dtype == required {
                    true => Ok(()),
                    false => Err(format!("`{name}` must be {required}")),
                };
            }
        };

        let allowed = match DTYPE_VARIABLES[variable] {
            "F" | "G" if !dtype.computes() => Some("f64, f32 or bf16"),
            "I" | "J" if !dtype.is_index() => Some("i64, i32 or u32"),
            _ => None,
        };
        if let Some(allowed) = allowed {
            return Err(format!("`{name}` must be {allowed}"));
        }

        match self.dtypes[variable] {
            Some((other, from)) if other != dtype => {
                let from = parsed.signature.operands[from].name;
                Err(format!("`{name}` is {dtype} but `{from}` is {other}; cast one of them"))
            }
            _ => {
                self.dtypes[variable].get_or_insert((dtype, at));
                Ok(())
            }
        }
    }

    fn bind_broadcast(&mut self, operand: &TensorSpec, shape: &Shape) -> Result<(), String> {
        let so_far = self.broadcast.unwrap_or_default();
        match Shape::broadcast(&so_far, shape) {
            Some(common) => {
                self.broadcast = Some(common);
                Ok(())
            }
            None => Err(format!("`{}` does not broadcast with {so_far}", operand.name)),
        }
    }

    fn bind_leading(
        &mut self,
        parsed: &Parsed,
        at: usize,
        operand: &TensorSpec,
        dims: &[usize],
    ) -> Result<(), String> {
        match &self.leading {
            Some((other, from)) if **other != *dims => {
                let from = parsed.signature.operands[*from].name;
                Err(format!(
                    "`{}` has leading dims {dims:?} but `{from}` has {other}",
                    operand.name
                ))
            }
            Some(_) => Ok(()),
            None => {
                let dims = Shape::new(dims).map_err(|error| error.to_string())?;
                self.leading = Some((dims, at));
                Ok(())
            }
        }
    }

    fn bind_dims(
        &mut self,
        parsed: &Parsed,
        at: usize,
        operand: &TensorSpec,
        dims: &[DimSpec],
        extents: &[usize],
    ) -> Result<(), String> {
        for (dim, &extent) in dims.iter().zip(extents) {
            let name = operand.name;
            match *dim {
                DimSpec::Fixed(required) if required != extent => {
                    return Err(format!(
                        "`{name}` has a dim of extent {extent}, which must be {required}"
                    ));
                }
                DimSpec::Named(id) => {
                    let (bound, from) = *self.names[id].get_or_insert((extent, at));
                    if bound != extent {
                        let (dim, from) =
                            (parsed.signature.dims[id].name, parsed.signature.operands[from].name);
                        return Err(format!(
                            "`{name}` has {dim} = {extent} but `{from}` has {dim} = {bound}"
                        ));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn dtype(&self, rule: DTypeRule) -> Option<DType> {
        match rule {
            DTypeRule::Exactly(dtype) => Some(dtype),
            DTypeRule::Variable(variable) => self.dtypes[variable].map(|(dtype, _)| dtype),
            DTypeRule::Accumulator => self.dtypes[0].map(|(dtype, _)| dtype.accumulator()),
        }
    }
}

/// One checked call of an op: its dims, and methods that allocate outputs and run kernels.
pub struct Call {
    signature: &'static Signature,
    bound: Bound,
    device: Device,
    bytes: u64,
    flops: Option<u64>,
    /// `None` if no operand has a sharding.
    results: Option<Arc<Results>>,
}

impl Call {
    /// The device of the operands.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The op's name.
    pub fn name(&self) -> &'static str {
        self.signature.name
    }

    /// The extent of dim `name` of the signature in this call.
    pub fn extent(&self, name: &str) -> usize {
        let id = self.signature.parsed().dim(name);
        let bound = id.and_then(|id| self.bound.names[id]);
        bound
            .unwrap_or_else(|| panic!("{}: dim `{name}` is not bound by an operand", self.name()))
            .0
    }

    /// Sets an extent that no operand determines.
    pub fn set_extent(&mut self, name: &str, extent: usize) {
        let id = self.signature.parsed().dim(name);
        let id = id.unwrap_or_else(|| panic!("{}: no dim `{name}`", self.name()));
        self.bound.names[id] = Some((extent, 0));
    }

    /// The product of the leading dims (`..`).
    pub fn rows(&self) -> usize {
        self.bound.leading.map_or(1, |(shape, _)| shape.elements())
    }

    /// The leading dims (`..`).
    pub fn leading(&self) -> Shape {
        self.bound.leading.map_or_else(Shape::default, |(shape, _)| shape)
    }

    /// The common shape of the operands that broadcast (`~`).
    pub fn broadcast(&self) -> Shape {
        self.bound.broadcast.unwrap_or_default()
    }

    /// Replaces the FLOPs of the signature by `flops`, for ops whose FLOPs depend on more than the
    /// dims.
    pub fn with_flops(mut self, flops: u64) -> Call {
        self.flops = Some(flops);
        self
    }

    /// Allocates output `at` of the signature. The op must write every element.
    ///
    /// # Errors
    /// When memory runs out; when the tensor is larger than the address space; for too many dims.
    pub fn output(&mut self, at: usize) -> Result<UninitTensor> {
        let parsed = self.signature.parsed();
        let result = &parsed.signature.results[at];
        let dtype = self.bound.dtype(parsed.result_dtypes[at]);
        let dtype =
            dtype.unwrap_or_else(|| panic!("{}: unset dtype of `{}`", self.name(), result.name));
        let shape = self.shape_of(result)?;
        self.allocate(at, shape, dtype)
    }

    /// Allocates the first output, whose shape the signature leaves open (`*`).
    ///
    /// # Errors
    /// As [`Call::output`].
    pub fn output_of(&mut self, shape: Shape, dtype: DType) -> Result<UninitTensor> {
        self.allocate(0, shape, dtype)
    }

    fn allocate(&mut self, at: usize, shape: Shape, dtype: DType) -> Result<UninitTensor> {
        self.bytes += dtype.bytes(shape.elements()) as u64;
        let out = UninitTensor::new(&self.device, shape, dtype);
        if self.results.is_none() {
            return out;
        }
        let mut out = out?;
        out.set_tag(self.result_tag(at, &shape)?);
        Ok(out)
    }

    /// The sharding of result `at`, which has `shape`.
    pub(crate) fn result_tag(&self, at: usize, shape: &Shape) -> Result<Option<Tag>> {
        let results = self.results.as_ref();
        results.map(|results| results.tag(self.name(), at, shape)).transpose()
    }

    /// The sharding of the last operand, which has `shape`, after the op has changed it in place.
    pub(crate) fn changed_tag(&self, shape: &Shape) -> Result<Option<Tag>> {
        if self.results.is_none() {
            return Ok(None);
        }
        let ParsedSignature { operands, results, .. } = &self.signature.parsed().signature;
        let last = operands.last().map(|operand| operand.name);
        match results.iter().position(|result| Some(result.name) == last) {
            Some(at) => self.result_tag(at, shape),
            None => Ok(None),
        }
    }

    /// Allocates a workspace of `elements` elements. Unlike an output, it does not count towards
    /// the op's bytes.
    ///
    /// # Errors
    /// When memory runs out; when the tensor is larger than the address space.
    pub fn workspace(&self, elements: usize, dtype: DType) -> Result<UninitTensor> {
        UninitTensor::new(&self.device, Shape::new(&[elements])?, dtype)
    }

    /// Counts the op, and runs its CPU kernel. On a meta device the kernel does not run.
    ///
    /// # Errors
    /// The error of `kernel`; on a GPU.
    pub fn compute(&self, kernel: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut kernel = Some(kernel);
        self.compute_any(&mut || kernel.take().map_or(Ok(()), |kernel| kernel()))
    }

    /// [`Call::compute`], compiled once for all kernels.
    fn compute_any(&self, kernel: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if self.device.is_gpu() {
            return Err(self.device.no_kernel(self.name()));
        }
        self.count();
        match self.device.computes() {
            true => self.device.run(|| self.device.recorded(self.name(), kernel)),
            false => Ok(()),
        }
    }

    /// Counts the op, its FLOPs and its bytes.
    pub(crate) fn count(&self) {
        self.device.count(self.flops(), self.bytes);
    }

    fn flops(&self) -> u64 {
        let named = self.bound.names.iter().flatten().map(|(extent, _)| *extent as u64);
        let points = named.product::<u64>()
            * self.rows() as u64
            * self.broadcast().elements() as u64
            * self.bound.anything.max(1) as u64;
        self.flops.unwrap_or(points * self.signature.flops_per_point)
    }

    fn shape_of(&self, operand: &TensorSpec) -> Result<Shape> {
        let mut shape = Shape::default();
        for dim in &operand.dims {
            shape = match *dim {
                DimSpec::Leading => shape.followed_by(&self.leading())?,
                DimSpec::Broadcast => shape.followed_by(&self.broadcast())?,
                DimSpec::Fixed(extent) => shape.followed_by(&[extent])?,
                DimSpec::Named(id) => {
                    let dims = &self.signature.parsed().signature.dims;
                    shape.followed_by(&[self.extent(dims[id].name)])?
                }
                DimSpec::Any => {
                    panic!("{}: allocate `{}` with output_of", self.name(), operand.name)
                }
            };
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests;
