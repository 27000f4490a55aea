//! Modules: containers of parameters, buffers and seams, which name and visit them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

pub use meshgrad_derive::Module;
use meshgrad_error::error;
use meshgrad_runtime::Device;

use crate::{Buffer, Error, Param, ParamId, Result, Seam};

/// A container of parameters and buffers: a model, a block, an adapter.
///
/// Building one allocates nothing; [`Module::materialize`] or a checkpoint sets the values. The
/// derive macro visits every field in order:
///
/// ```
/// use meshgrad_autograd::{Init, Module, ModulePath, Param};
///
/// #[derive(Module)]
/// #[module(crate = meshgrad_autograd)] // not needed with the `meshgrad` crate
/// struct Mlp {
///     up: Param,
///     gate: Option<Param>,
///     down: Vec<Param>,
///     dropout: f64,
///     #[module(skip)]
///     activation: fn(f32) -> f32,
/// }
///
/// let at = ModulePath::from("mlp");
/// let mlp = Mlp {
///     up: Param::new(at.sub("up"), [8, 4], Init::Zeros),
///     gate: None,
///     down: vec![Param::new(at.sub("down").index(0), [4, 8], Init::Zeros)],
///     dropout: 0.1,
///     activation: f32::tanh,
/// };
/// let names: Vec<String> = mlp.params().iter().map(|it| it.name().to_owned()).collect();
/// assert_eq!(names, ["mlp.up", "mlp.down.0"]);
/// ```
///
/// Numbers, strings and dtypes have no parameters; options, vectors, arrays, boxes and `Arc`s of
/// modules are modules. A field of any other type that is not a module does not compile without
/// `#[module(skip)]`, so no parameter is forgotten by accident:
///
/// ```compile_fail
/// # use meshgrad_autograd::{Module, Param};
/// struct Inner {
///     weight: Param,
/// }
///
/// #[derive(Module)]
/// #[module(crate = meshgrad_autograd)]
/// struct Outer {
///     inner: Inner, // `Inner` does not implement `Module`
/// }
/// ```
pub trait Module {
    /// Passes every parameter, buffer and seam to `visitor`, in a fixed order. A tied parameter may be
    /// passed more than once.
    fn visit(&self, visitor: &mut dyn Visitor);

    /// Every parameter once, in the order of [`Module::visit`].
    fn params(&self) -> Vec<Param> {
        let (mut params, mut seen) = (Vec::new(), HashSet::new());
        self.visit(&mut OnParams(|param: &Param| {
            if seen.insert(param.id()) {
                params.push(param.clone());
            }
        }));
        params
    }

    /// The parameters that an optimizer updates: all that are not frozen, in the order of
    /// [`Module::visit`].
    fn trained(&self) -> Vec<Param> {
        let mut params = self.params();
        params.retain(|param| !param.is_frozen());
        params
    }

    /// Freezes every parameter: see [`Param::freeze`].
    fn freeze(&self) {
        self.params().iter().for_each(Param::freeze);
    }

    /// Every buffer once, in the order of [`Module::visit`].
    fn buffers(&self) -> Vec<Buffer> {
        let (mut buffers, mut seen) = (Vec::new(), HashSet::new());
        self.visit(&mut OnBuffers(|buffer: &Buffer| {
            if seen.insert(buffer.id()) {
                buffers.push(buffer.clone());
            }
        }));
        buffers
    }

    /// Every seam, in the order of [`Module::visit`].
    fn seams(&self) -> Vec<Seam> {
        let mut seams = OnSeams(Vec::new());
        self.visit(&mut seams);
        seams.0
    }

    /// Checks that no two parameters or buffers have one name: a checkpoint would store one of them.
    /// A tied parameter, which is one [`Param`] in several fields, passes.
    ///
    /// # Errors
    /// When two have one name, with both fields.
    fn check_names(&self) -> Result<()> {
        let mut names = Names::default();
        self.visit(&mut names);
        names.repeated.map_or(Ok(()), Err)
    }

    /// Sets the initial value of every parameter and buffer on `device`. It depends only on `seed`,
    /// names and positions.
    ///
    /// # Errors
    /// As [`Module::check_names`]; when memory runs out.
    fn materialize(&self, device: &Device, seed: u64) -> Result<()> {
        self.check_names()?;
        for param in self.params() {
            param.materialize(device, seed)?;
        }
        for buffer in self.buffers() {
            buffer.materialize(device, seed)?;
        }
        Ok(())
    }

    /// As [`Module::materialize`], for parameters and buffers that have no value, such as those
    /// added to a loaded model.
    ///
    /// # Errors
    /// As [`Module::materialize`].
    fn materialize_missing(&self, device: &Device, seed: u64) -> Result<()> {
        self.check_names()?;
        for param in self.params() {
            if !param.has_value() {
                param.materialize(device, seed)?;
            }
        }
        for buffer in self.buffers() {
            if buffer.value().is_err() {
                buffer.materialize(device, seed)?;
            }
        }
        Ok(())
    }
}

/// Receives parameters, buffers and seams from [`Module::visit`]. By default it ignores them.
pub trait Visitor {
    /// Called for each parameter.
    fn param(&mut self, param: &Param) {
        let _ = param;
    }

    /// Called for each buffer.
    fn buffer(&mut self, buffer: &Buffer) {
        let _ = buffer;
    }

    /// Called for each seam.
    fn seam(&mut self, seam: &Seam) {
        let _ = seam;
    }

    /// Called before a field of a derived module, or an element of a list, is visited.
    fn enter(&mut self, field: &dyn fmt::Display) {
        let _ = field;
    }

    /// Called after it.
    fn leave(&mut self) {}
}

/// The fields that have a name, and the first name of two parameters or buffers.
#[derive(Default)]
struct Names {
    path: Vec<String>,
    visited: usize,
    fields: HashMap<String, (ParamId, String)>,
    repeated: Option<Error>,
}

impl Names {
    fn add(&mut self, param: &Param) {
        self.visited += 1;
        let field = match self.path.is_empty() {
            // A module that implements `visit` itself need not name fields.
            true => format!("number {} of `visit`", self.visited),
            false => format!("`{}`", self.path.join(".")),
        };
        let name = param.name();
        match self.fields.get(name) {
            None => drop(self.fields.insert(name.to_owned(), (param.id(), field))),
            Some((id, first)) if *id != param.id() => {
                self.repeated.get_or_insert_with(|| error!(
                    Invalid,
                    "{first} and {field} are two parameters or buffers named `{name}`, of which a \
                     checkpoint would store one: give each the path of its field (`ModulePath`), \
                     or put one `Param` in both to tie them"
                ));
            }
            Some(_) => {}
        }
    }
}

impl Visitor for Names {
    fn param(&mut self, param: &Param) {
        self.add(param);
    }

    fn buffer(&mut self, buffer: &Buffer) {
        self.add(buffer.as_param());
    }

    fn enter(&mut self, field: &dyn fmt::Display) {
        self.path.push(field.to_string());
    }

    fn leave(&mut self) {
        self.path.pop();
    }
}

struct OnParams<F>(F);

impl<F: FnMut(&Param)> Visitor for OnParams<F> {
    fn param(&mut self, param: &Param) {
        (self.0)(param);
    }
}

struct OnBuffers<F>(F);

impl<F: FnMut(&Buffer)> Visitor for OnBuffers<F> {
    fn buffer(&mut self, buffer: &Buffer) {
        (self.0)(buffer);
    }
}

struct OnSeams(Vec<Seam>);

impl Visitor for OnSeams {
    fn seam(&mut self, seam: &Seam) {
        self.0.push(seam.clone());
    }
}

impl Module for Param {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param(self);
    }
}

impl Module for Buffer {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.buffer(self);
    }
}

impl Module for Seam {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.seam(self);
    }
}

impl<M: Module + ?Sized> Module for &M {
    fn visit(&self, visitor: &mut dyn Visitor) {
        (**self).visit(visitor);
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        (**self).visit(visitor);
    }
}

impl<M: Module + ?Sized> Module for Arc<M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        (**self).visit(visitor);
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.iter().for_each(|module| module.visit(visitor));
    }
}

impl<M: Module> Module for [M] {
    fn visit(&self, visitor: &mut dyn Visitor) {
        for (index, module) in self.iter().enumerate() {
            visitor.enter(&index);
            module.visit(visitor);
            visitor.leave();
        }
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.as_slice().visit(visitor);
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.as_slice().visit(visitor);
    }
}

/// Implements `Module`, so that fields of these types need no attribute.
macro_rules! without_parameters {
    ($($type:ty),+ $(,)?) => {
        $(
            impl Module for $type {
                fn visit(&self, _: &mut dyn Visitor) {}
            }
        )+
    };
}

without_parameters!(
    (),
    bool,
    char,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    isize,
    u8,
    u16,
    u32,
    u64,
    usize,
    String,
    &'static str,
    meshgrad_runtime::DType,
    meshgrad_runtime::Shape,
    Device,
    ModulePath,
);

/// The path of a module in its model. The names of its parameters start with it.
///
/// ```
/// use meshgrad_autograd::ModulePath;
///
/// let layers = ModulePath::from("model").sub("layers");
/// assert_eq!(layers.index(3).sub("norm").to_string(), "model.layers.3.norm");
/// assert_eq!(ModulePath::root().sub("head").to_string(), "head");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModulePath(String);

impl ModulePath {
    /// The empty path, of the model itself.
    pub fn root() -> ModulePath {
        ModulePath::default()
    }

    /// The path of the submodule or parameter `name` of this module.
    #[must_use]
    pub fn sub(&self, name: &str) -> ModulePath {
        match self.0.is_empty() {
            true => ModulePath(name.to_owned()),
            false => ModulePath(format!("{self}.{name}")),
        }
    }

    /// The path of element `index` of this list of modules.
    #[must_use]
    pub fn index(&self, index: usize) -> ModulePath {
        self.sub(&index.to_string())
    }
}

impl fmt::Display for ModulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for ModulePath {
    fn from(path: &str) -> ModulePath {
        ModulePath(path.to_owned())
    }
}

impl From<String> for ModulePath {
    fn from(path: String) -> ModulePath {
        ModulePath(path)
    }
}

impl From<&ModulePath> for ModulePath {
    fn from(path: &ModulePath) -> ModulePath {
        path.clone()
    }
}

impl From<ModulePath> for String {
    fn from(path: ModulePath) -> String {
        path.0
    }
}
