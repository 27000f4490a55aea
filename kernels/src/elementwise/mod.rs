//! Elementwise kernels: y(i) = f(x0(i), x1(i), ...) with an [`Expression`] f. A chain of functions
//! takes a single pass over memory.
//!
//! Every element is loaded once, widened to f32, evaluated in registers, rounded once and stored.
//! Threads share nothing. The kernel is memory-bound, so it must keep enough bytes in flight. By
//! Little's law, a GPU with 4.8 TB/s and 0.7 us of latency needs some 25 KB in flight on each of
//! its 132 multiprocessors.
//!
//! There are two forms, chosen by [`IterationSpace::layout`]:
//!
//! - **Contiguous**: all operands have the result's layout. A thread moves 16 bytes per access and
//!   issues all its loads before the first use. The last CTA processes a partial tile element by
//!   element.
//! - **Strided**: up to six dims with a stride per operand and dim, which is 0 for a broadcast dim.
//!   Coordinates are computed by division, in 32 bits if all indices and offsets fit.
//!
//! A kernel may write in place: the result may alias an operand of the same dtype if both are
//! traversed in the same order.

mod contiguous;
mod element;
mod evaluate;
mod space;
pub(crate) mod strided;

use meshgrad_error::{Result, ensure};

pub use element::Element;
pub use space::IterationSpace;

pub(crate) use evaluate::evaluate;
use strided::{Space, SpaceForm};

use crate::assembler::{GlobalAddress, In, Kernel, Launch, List, Out, Ptx, Target, Variant};
use crate::expression::{Expression, short_name};
use crate::params;

/// Threads per CTA.
pub(crate) const THREADS: u32 = 256;

/// An elementwise kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elementwise {
    expression: Expression,
    operands: [Option<Element>; Elementwise::MAX_OPERANDS],
    result: Element,
    layout: Layout,
}

/// The layout of the result and the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// All tensors are contiguous in the same dim order and 16-byte aligned.
    Contiguous,
    /// Arbitrary strides.
    Strided {
        /// The number of dims, 1 to [`IterationSpace::MAX_DIMS`].
        dims: u8,
        /// Whether indices and offsets need 64 bits.
        wide: bool,
    },
}

impl Layout {
    /// The form of the parameters of an iteration space of `tensors` tensors.
    pub(crate) fn form(self, tensors: usize) -> SpaceForm {
        let (dims, wide) = match self {
            Layout::Contiguous => (0, false),
            Layout::Strided { dims, wide } => (dims, wide),
        };
        SpaceForm { dims, wide, tensors }
    }
}

impl Elementwise {
    /// Maximum number of operands.
    pub const MAX_OPERANDS: usize = 6;
    /// Maximum number of scalars.
    pub const MAX_SCALARS: usize = 8;
    /// Maximum number of operations of an expression. Shared operations are counted once per use.
    pub const MAX_OPERATIONS: usize = 128;

    /// The kernel that computes `expression` of operands in these formats.
    ///
    /// # Errors
    /// For too many operands, scalars or operations, if the expression reads an operand that does
    /// not exist, and if the layout has 0 or too many dims.
    pub fn new(
        expression: Expression,
        operands: &[Element],
        result: Element,
        layout: Layout,
    ) -> Result<Elementwise> {
        at_most("operands", operands.len(), Self::MAX_OPERANDS)?;
        at_most("operations", expression.operations(), Self::MAX_OPERATIONS)?;
        at_most("scalars", expression.scalars(), Self::MAX_SCALARS)?;
        let (read, count) = (expression.operands(), operands.len());
        ensure!(
            read <= count,
            Invalid,
            "elementwise: the expression reads operand {}, but only {count} are given",
            read - 1
        );
        if let Layout::Strided { dims, .. } = layout {
            let most = IterationSpace::MAX_DIMS;
            ensure!(
                (1..=most).contains(&dims.into()),
                Unsupported,
                "elementwise: dims = {dims} is not in 1..={most}"
            );
        }

        let mut formats = [None; Self::MAX_OPERANDS];
        for (format, operand) in formats.iter_mut().zip(operands) {
            *format = Some(*operand);
        }
        Ok(Elementwise { expression, operands: formats, result, layout })
    }

    /// The launch over elements; `None` if there are none.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        let ctas = elements.div_ceil(u64::from(self.tile()));
        let ctas = u32::try_from(ctas).unwrap_or(u32::MAX);
        Launch::new([ctas, 1, 1], THREADS)
    }

    /// The formats of its operands.
    pub fn operands(&self) -> impl Iterator<Item = Element> {
        self.operands.into_iter().flatten()
    }

    /// The format of its result.
    pub fn result(&self) -> Element {
        self.result
    }

    /// The layout of its operands.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Elements per CTA.
    fn tile(&self) -> u32 {
        match self.layout {
            Layout::Contiguous => contiguous::tile(self),
            Layout::Strided { .. } => strided::TILE,
        }
    }
}

params! {
    /// Arguments of [`Elementwise`].
    pub struct ElementwiseArguments => Parameters for variant: Elementwise {
        /// The first element of each operand.
        operands: List<In, { Elementwise::MAX_OPERANDS }> = variant.operands().count(),
        /// The first element of the result.
        result: Out,
        /// The scalars of the expression.
        scalars: List<f32, { Elementwise::MAX_SCALARS }> = variant.expression.scalars(),
        /// Extents and strides.
        space: IterationSpace = variant.layout.form(1 + variant.operands().count()),
    }
}

impl Variant for Elementwise {
    type Arguments = ElementwiseArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let parameters = self.parameters(k);
        match (&parameters.space, self.layout) {
            (Space::Narrow(space), Layout::Contiguous) => {
                contiguous::write(k, self, &parameters, space.elements);
            }
            (Space::Narrow(space), _) => strided::write(k, self, &parameters, space),
            (Space::Wide(space), _) => strided::write(k, self, &parameters, space),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let operands: String = self.operands().map(|x| format!("_{}", x.name())).collect();
        let layout = match self.layout {
            Layout::Contiguous => "contiguous".to_owned(),
            Layout::Strided { dims, wide: false } => format!("strided{dims}"),
            Layout::Strided { dims, wide: true } => format!("strided{dims}_wide"),
        };
        let expression = short_name(self.expression.to_string());
        let result = self.result.name();
        format!("elementwise_{expression}{operands}_to_{result}_{layout}")
    }
}

impl Elementwise {
    /// The operands with their formats.
    fn formatted<'k>(
        &self,
        operands: &[GlobalAddress<'k>],
    ) -> impl Iterator<Item = (Element, GlobalAddress<'k>)> {
        self.operands().zip(operands.iter().copied())
    }
}

fn at_most(what: &'static str, count: usize, limit: usize) -> Result<()> {
    ensure!(
        count <= limit,
        Unsupported,
        "elementwise: {count} {what}, but the limit is {limit}; split the call"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    const F32: Element = Element::Float(Dtype::F32);

    fn sum_of(operands: u8) -> Expression {
        let more = (1..operands).map(Expression::operand);
        more.fold(Expression::operand(0), |sum, x| sum + x)
    }

    #[test]
    fn without_elements_nothing_is_launched() {
        let variant = |layout| Elementwise::new(sum_of(2), &[F32; 2], F32, layout).unwrap();
        let contiguous = variant(Layout::Contiguous);
        assert_eq!(contiguous.launch(0), None);
        assert_eq!(contiguous.launch(1).unwrap().grid, [1, 1, 1]);
        assert_eq!(contiguous.launch(2048).unwrap().grid, [1, 1, 1]);
        assert_eq!(contiguous.launch(2049).unwrap().grid, [2, 1, 1]);

        let strided = variant(Layout::Strided { dims: 2, wide: false });
        assert_eq!(strided.launch(1025).unwrap().grid, [2, 1, 1]);
    }

    #[test]
    fn errors_name_the_problem() {
        let build = |expression, layout| {
            let error = Elementwise::new(expression, &[F32], F32, layout).unwrap_err();
            error.to_string()
        };
        let missing = build(sum_of(2), Layout::Contiguous);
        assert_eq!(missing, "elementwise: the expression reads operand 1, but only 1 are given");

        let scalars = build(Expression::scalar(8), Layout::Contiguous);
        assert!(scalars.contains("9 scalars, but the limit is 8"), "{scalars}");

        let dims = build(sum_of(1), Layout::Strided { dims: 7, wide: false });
        assert_eq!(dims, "elementwise: dims = 7 is not in 1..=6");

        let mut long = sum_of(1);
        for _ in 0..60 {
            long = &long * &long;
        }
        let long = build(long, Layout::Contiguous);
        assert!(long.contains(" operations, but the limit is 128"), "{long}");
    }
}
