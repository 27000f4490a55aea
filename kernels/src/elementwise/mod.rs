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

pub use element::Element;
pub use space::IterationSpace;

pub(crate) use strided::push_space;

use crate::assembler::{Arguments, F32, GlobalAddress, Kernel, Launch, Ptx, Target, Variant};
use crate::error::{Error, Result};
use crate::expression::{Expression, Node};

/// Threads per CTA.
pub(crate) const THREADS: u32 = 256;

/// An elementwise kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elementwise {
    expression: Expression,
    operands: [Option<Element>; Elementwise::MAX_OPERANDS],
    scalars: u8,
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
    /// [`Error::TooMany`] for too many operands, scalars or operations, [`Error::Missing`] if the
    /// expression reads an operand that does not exist, [`Error::Extent`] if the layout has 0 or
    /// too many dims.
    pub fn new(
        expression: Expression,
        operands: &[Element],
        result: Element,
        layout: Layout,
    ) -> Result<Elementwise> {
        at_most("operands", operands.len(), Self::MAX_OPERANDS)?;
        let operations = expression.operations(Self::MAX_OPERATIONS + 1);
        at_most("operations", operations, Self::MAX_OPERATIONS)?;
        let scalars = check_indices(&expression, operands.len())?;
        at_most("scalars", scalars, Self::MAX_SCALARS)?;
        check_layout(layout)?;

        let mut formats = [None; Self::MAX_OPERANDS];
        for (format, operand) in formats.iter_mut().zip(operands) {
            *format = Some(*operand);
        }
        Ok(Elementwise {
            expression,
            operands: formats,
            scalars: scalars as u8,
            result,
            layout,
        })
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

/// Arguments of [`Elementwise`].
#[derive(Clone, Copy, Debug)]
pub struct ElementwiseArguments<'a> {
    /// The address of each operand's first element.
    pub operands: &'a [u64],
    /// The address of the result's first element.
    pub result: u64,
    /// Extents and strides.
    pub space: &'a IterationSpace,
    /// The scalars of the expression.
    pub scalars: &'a [f32],
}

impl ElementwiseArguments<'_> {
    /// The bytes of the parameters of `variant`.
    pub fn arguments(&self, variant: &Elementwise) -> Arguments {
        let mut arguments = Arguments::new();
        for operand in self.operands.iter().take(variant.operands().count()) {
            arguments.push_pointer(*operand);
        }
        arguments.push_pointer(self.result);
        for scalar in self.scalars.iter().take(variant.scalars.into()) {
            arguments.push_f32(*scalar);
        }

        match variant.layout {
            Layout::Contiguous => {
                arguments.push_u64(self.space.elements());
            }
            Layout::Strided { wide, .. } => strided::push_space(&mut arguments, self.space, wide),
        }
        arguments
    }
}

impl Variant for Elementwise {
    fn ptx(&self) -> Ptx {
        match self.layout {
            Layout::Contiguous => contiguous::ptx(self),
            Layout::Strided { dims, wide: false } => strided::ptx::<u32, i32>(self, dims.into()),
            Layout::Strided { dims, wide: true } => strided::ptx::<u64, i64>(self, dims.into()),
        }
    }

    fn entry(&self) -> String {
        let operands: String = self.operands().map(|x| format!("_{}", x.name())).collect();
        let layout = match self.layout {
            Layout::Contiguous => "contiguous".to_owned(),
            Layout::Strided { dims, wide: false } => format!("strided{dims}"),
            Layout::Strided { dims, wide: true } => format!("strided{dims}_wide"),
        };
        let (expression, result) = (&self.expression, self.result.name());
        format!("elementwise_{expression}{operands}_to_{result}_{layout}")
    }
}

/// The first parameters of both forms.
struct Parameters<'k> {
    operands: Vec<(Element, GlobalAddress<'k>)>,
    result: GlobalAddress<'k>,
    scalars: Vec<F32<'k>>,
}

impl Elementwise {
    fn kernel(&self) -> Kernel {
        Kernel::new(self.entry(), Target::Sm80, THREADS)
    }

    #[track_caller]
    fn parameters<'k>(&self, k: &'k Kernel) -> Parameters<'k> {
        let operands = self.operands().enumerate();
        Parameters {
            operands: operands
                .map(|(i, x)| (x, k.pointer(&format!("x{i}"))))
                .collect(),
            result: k.pointer("y"),
            scalars: (0..self.scalars)
                .map(|i| k.f32_param(&format!("s{i}")))
                .collect(),
        }
    }
}

fn at_most(what: &'static str, count: usize, limit: usize) -> Result<()> {
    match count <= limit {
        true => Ok(()),
        false => Err(Error::TooMany {
            kernel: "elementwise",
            what,
            count,
            limit,
        }),
    }
}

/// Checks that every operand that is read exists; returns the number of scalars.
fn check_indices(expression: &Expression, operands: usize) -> Result<usize> {
    let (mut reads, mut scalars) = (0, 0);
    expression.visit(&mut |node| match node {
        Node::Operand(index) => reads = reads.max(usize::from(*index) + 1),
        Node::Scalar(index) => scalars = scalars.max(usize::from(*index) + 1),
        _ => {}
    });
    if reads <= operands {
        return Ok(scalars);
    }
    Err(Error::Missing {
        kernel: "elementwise",
        what: "operand",
        index: reads - 1,
        count: operands,
    })
}

fn check_layout(layout: Layout) -> Result<()> {
    match layout {
        Layout::Strided { dims, .. } if !(1..=IterationSpace::MAX_DIMS).contains(&dims.into()) => {
            Err(Error::Extent {
                kernel: "elementwise",
                what: "dims",
                value: dims.into(),
                least: 1,
                most: IterationSpace::MAX_DIMS,
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    const F32: Element = Element::Float(Dtype::F32);
    const BF16: Element = Element::Float(Dtype::Bf16);

    fn sum_of(operands: u8) -> Expression {
        let more = (1..operands).map(Expression::operand);
        more.fold(Expression::operand(0), |sum, x| sum + x)
    }

    /// The arguments have the size of the declared parameters, even for the largest kernels.
    #[test]
    fn arguments_fill_the_parameter_space() {
        let strides = [1; IterationSpace::MAX_DIMS];
        let scalars = (0..8).map(Expression::scalar).reduce(|a, b| a * b).unwrap();
        for operands in 0..=Elementwise::MAX_OPERANDS {
            let formats = vec![BF16; operands];
            let expression = sum_of(operands.max(1) as u8) + &scalars;
            let expression = if operands == 0 {
                scalars.clone()
            } else {
                expression
            };
            let space =
                IterationSpace::new(&[7; 6], &strides, &vec![&strides[..]; operands]).unwrap();
            let strided = |wide| Layout::Strided { dims: 6, wide };
            for layout in [Layout::Contiguous, strided(false), strided(true)] {
                let expression = expression.clone();
                let variant = Elementwise::new(expression, &formats, F32, layout).unwrap();
                let arguments = ElementwiseArguments {
                    operands: &vec![256; operands],
                    result: 512,
                    space: &space,
                    scalars: &[1.0; 8],
                };
                let bytes = arguments.arguments(&variant);
                assert_eq!(
                    bytes.bytes().len(),
                    variant.ptx().parameter_bytes(),
                    "{variant:?}"
                );
            }
        }
    }

    #[test]
    fn without_elements_nothing_is_launched() {
        let variant = |layout| Elementwise::new(sum_of(2), &[F32; 2], F32, layout).unwrap();
        let contiguous = variant(Layout::Contiguous);
        assert_eq!(contiguous.launch(0), None);
        assert_eq!(contiguous.launch(1).unwrap().grid, [1, 1, 1]);
        assert_eq!(contiguous.launch(2048).unwrap().grid, [1, 1, 1]);
        assert_eq!(contiguous.launch(2049).unwrap().grid, [2, 1, 1]);

        let strided = variant(Layout::Strided {
            dims: 2,
            wide: false,
        });
        assert_eq!(strided.launch(1025).unwrap().grid, [2, 1, 1]);
    }

    #[test]
    fn errors_name_the_problem() {
        let build =
            |expression, layout| Elementwise::new(expression, &[F32], F32, layout).unwrap_err();
        let missing = build(sum_of(2), Layout::Contiguous);
        assert!(
            matches!(
                missing,
                Error::Missing {
                    index: 1,
                    count: 1,
                    ..
                }
            ),
            "{missing}"
        );

        let scalars = build(Expression::scalar(8), Layout::Contiguous);
        assert!(
            matches!(
                scalars,
                Error::TooMany {
                    what: "scalars",
                    count: 9,
                    ..
                }
            ),
            "{scalars}"
        );

        let dims = build(
            sum_of(1),
            Layout::Strided {
                dims: 7,
                wide: false,
            },
        );
        assert!(
            matches!(
                dims,
                Error::Extent {
                    what: "dims",
                    value: 7,
                    ..
                }
            ),
            "{dims}"
        );

        let mut long = sum_of(1);
        for _ in 0..60 {
            long = &long * &long;
        }
        let long = build(long, Layout::Contiguous);
        assert!(
            matches!(
                long,
                Error::TooMany {
                    what: "operations",
                    ..
                }
            ),
            "{long}"
        );
    }
}
