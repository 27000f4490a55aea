//! Reductions of equal tensors, such as those of the ranks of a group: y\[i\] is the sum, mean,
//! maximum or minimum of x0\[i\], x1\[i\], ..
//!
//! Sums combine in a fixed tree: n sources are split after the largest power of two below n, and
//! both parts are reduced before they are combined. Floats are summed in f32, f64 in f64, and
//! rounded once; integers wrap. The bits are those of the same operations on a CPU, except for the
//! payload of a NaN in a sum.

use meshgrad_error::{Result, ensure};

use crate::assembler::{
    B16, Bf16, F32, F64, GlobalAddress, In, Kernel, Launch, List, Out, Pred, Ptx, S32, S64, Target,
    U32, Variant,
};
use crate::copies::Format;
use crate::elementwise::THREADS;
use crate::params;

/// The most sources of one kernel. Each is a parameter.
pub const MAX_SOURCES: usize = 64;

/// Registers that a thread loads before it uses any, unless there are more sources.
const IN_FLIGHT: u32 = 16;

/// The operation of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeOp {
    /// The sum.
    Sum,
    /// The sum divided by the number of sources; the sum for integers.
    Mean,
    /// The first of the largest elements, or the first NaN.
    Max,
    /// The first of the smallest elements, or the first NaN.
    Min,
}

impl TreeOp {
    /// Every operation.
    pub const ALL: [TreeOp; 4] = [TreeOp::Sum, TreeOp::Mean, TreeOp::Max, TreeOp::Min];

    fn name(self) -> &'static str {
        match self {
            TreeOp::Sum => "sum",
            TreeOp::Mean => "mean",
            TreeOp::Max => "max",
            TreeOp::Min => "min",
        }
    }
}

/// A reduction of a given number of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeReduce {
    op: TreeOp,
    format: Format,
    sources: u32,
}

impl TreeReduce {
    /// The kernel for this number of sources.
    ///
    /// # Errors
    /// When there are none, or more than [`MAX_SOURCES`].
    pub fn new(op: TreeOp, format: Format, sources: usize) -> Result<TreeReduce> {
        ensure!(
            (1..=MAX_SOURCES).contains(&sources),
            Unsupported,
            "tree_reduce: sources = {sources} is not in 1..={MAX_SOURCES}"
        );
        Ok(TreeReduce { op, format, sources: sources as u32 })
    }

    /// The launch over elements; `None` if there are none.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        let ctas = elements.div_ceil(u64::from(THREADS * self.per_thread()));
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
    }

    /// Elements per thread.
    fn per_thread(&self) -> u32 {
        let registers = self.sources * self.format.size().div_ceil(4);
        (IN_FLIGHT / registers).max(1)
    }

    fn write<'k, E: Element<'k>>(&self, k: &'k Kernel) {
        let Call { sources, y, elements } = self.parameters(k);

        let first = k.cta().mul_wide(THREADS * self.per_thread());
        let load = |i: u32| {
            let index = first + (k.thread() + i * THREADS).wide();
            let (exists, at) = (index.lt(elements), index * u64::from(self.format.size()));
            let of_sources = sources.iter().map(|x| E::load_if(exists, x.byte_add(at)));
            (exists, at, of_sources.collect::<Vec<E>>())
        };
        let loaded: Vec<_> = (0..self.per_thread()).map(load).collect();

        for (exists, at, values) in loaded {
            let to = y.byte_add(at);
            match self.op {
                TreeOp::Sum => E::store_sum_if(exists, to, tree_sum(&values)),
                TreeOp::Mean => {
                    let mean = E::divide(tree_sum(&values), self.sources);
                    E::store_sum_if(exists, to, mean);
                }
                TreeOp::Max => extreme(&values, E::is_below).store_if(exists, to),
                TreeOp::Min => {
                    extreme(&values, |best, other| other.is_below(best)).store_if(exists, to);
                }
            }
        }
    }
}

#[track_caller]
fn tree_sum<'k, E: Element<'k>>(values: &[E]) -> E::Sum {
    match values {
        [value] => value.widen(),
        values => {
            let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
            E::add(tree_sum(left), tree_sum(right))
        }
    }
}

/// The first value that no other value beats, or the first NaN.
#[track_caller]
fn extreme<'k, E: Element<'k>>(values: &[E], is_better: impl Fn(E, E) -> Pred<'k>) -> E {
    let others = values[1..].iter();
    others.fold(values[0], |best, other| {
        let mut replaces = is_better(best, *other);
        if let (Some(best), Some(other)) = (best.is_nan(), other.is_nan()) {
            replaces = (replaces | other) & !best;
        }
        other.or_else_if(replaces, best)
    })
}

/// An element as it is stored.
trait Element<'k>: Copy {
    /// The type of sums.
    type Sum: Copy;

    fn load_if(exists: Pred<'k>, from: GlobalAddress<'k>) -> Self;

    fn store_if(self, exists: Pred<'k>, to: GlobalAddress<'k>);

    fn widen(self) -> Self::Sum;

    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;

    /// Divides a float; returns an integer unchanged.
    fn divide(sum: Self::Sum, by: u32) -> Self::Sum;

    /// Rounds and stores a sum.
    fn store_sum_if(exists: Pred<'k>, to: GlobalAddress<'k>, sum: Self::Sum);

    fn is_below(self, other: Self) -> Pred<'k>;

    /// Whether it is a NaN; `None` for integers.
    fn is_nan(self) -> Option<Pred<'k>>;

    /// This element if the predicate is true, else `other`. Moves bits.
    fn or_else_if(self, takes: Pred<'k>, other: Self) -> Self;
}

macro_rules! whole_registers {
    ($($register:ident, $divide:expr, $is_nan:expr;)+) => {
        $(impl<'k> Element<'k> for $register<'k> {
            type Sum = $register<'k>;

            #[track_caller]
            fn load_if(exists: Pred<'k>, from: GlobalAddress<'k>) -> Self {
                from.load_if(exists)
            }

            #[track_caller]
            fn store_if(self, exists: Pred<'k>, to: GlobalAddress<'k>) {
                to.store_if(exists, self);
            }

            fn widen(self) -> Self {
                self
            }

            #[track_caller]
            fn add(a: Self, b: Self) -> Self {
                a + b
            }

            #[track_caller]
            fn divide(sum: Self, by: u32) -> Self {
                $divide(sum, by)
            }

            #[track_caller]
            fn store_sum_if(exists: Pred<'k>, to: GlobalAddress<'k>, sum: Self) {
                sum.store_if(exists, to);
            }

            #[track_caller]
            fn is_below(self, other: Self) -> Pred<'k> {
                self.lt(other)
            }

            #[track_caller]
            fn is_nan(self) -> Option<Pred<'k>> {
                $is_nan(self)
            }

            #[track_caller]
            fn or_else_if(self, takes: Pred<'k>, other: Self) -> Self {
                takes.select(self, other)
            }
        })+
    };
}

whole_registers! {
    F64, |sum, by| sum / f64::from(by), |x: Self| Some(x.differs(x));
    F32, |sum, by| sum / by as f32, |x: Self| Some(x.differs(x));
    S64, |sum, _| sum, |_| None;
    S32, |sum, _| sum, |_| None;
    U32, |sum, _| sum, |_| None;
}

/// Two bytes that are summed in f32: bf16, or f16 if `IEEE`.
#[derive(Clone, Copy)]
struct Half<'k, const IEEE: bool>(B16<'k>);

impl<'k, const IEEE: bool> Element<'k> for Half<'k, IEEE> {
    type Sum = F32<'k>;

    #[track_caller]
    fn load_if(exists: Pred<'k>, from: GlobalAddress<'k>) -> Self {
        Half(from.load_if::<Bf16>(exists))
    }

    #[track_caller]
    fn store_if(self, exists: Pred<'k>, to: GlobalAddress<'k>) {
        to.store_if(exists, self.0);
    }

    #[track_caller]
    fn widen(self) -> F32<'k> {
        match IEEE {
            true => self.0.kernel().compute("cvt.f32.f16", &[&self.0]),
            false => self.0.to_f32(),
        }
    }

    #[track_caller]
    fn add(a: F32<'k>, b: F32<'k>) -> F32<'k> {
        a + b
    }

    #[track_caller]
    fn divide(sum: F32<'k>, by: u32) -> F32<'k> {
        sum / by as f32
    }

    #[track_caller]
    fn store_sum_if(exists: Pred<'k>, to: GlobalAddress<'k>, sum: F32<'k>) {
        let rounded: B16<'k> = match IEEE {
            true => sum.kernel().compute("cvt.rn.f16.f32", &[&sum]),
            false => sum.to_bf16(),
        };
        to.store_if(exists, rounded);
    }

    #[track_caller]
    fn is_below(self, other: Self) -> Pred<'k> {
        self.widen().lt(other.widen())
    }

    #[track_caller]
    fn is_nan(self) -> Option<Pred<'k>> {
        let wide = self.widen();
        Some(wide.differs(wide))
    }

    #[track_caller]
    fn or_else_if(self, takes: Pred<'k>, other: Self) -> Self {
        Half(takes.select(self.0, other.0))
    }
}

/// One byte, unsigned.
#[derive(Clone, Copy)]
struct Byte<'k>(U32<'k>);

impl<'k> Element<'k> for Byte<'k> {
    type Sum = U32<'k>;

    #[track_caller]
    fn load_if(exists: Pred<'k>, from: GlobalAddress<'k>) -> Self {
        Byte(from.load_byte_if(exists))
    }

    #[track_caller]
    fn store_if(self, exists: Pred<'k>, to: GlobalAddress<'k>) {
        to.store_byte_if(exists, self.0);
    }

    fn widen(self) -> U32<'k> {
        self.0
    }

    #[track_caller]
    fn add(a: U32<'k>, b: U32<'k>) -> U32<'k> {
        a + b
    }

    fn divide(sum: U32<'k>, _by: u32) -> U32<'k> {
        sum
    }

    #[track_caller]
    fn store_sum_if(exists: Pred<'k>, to: GlobalAddress<'k>, sum: U32<'k>) {
        to.store_byte_if(exists, sum); // the low byte
    }

    #[track_caller]
    fn is_below(self, other: Self) -> Pred<'k> {
        self.0.lt(other.0)
    }

    fn is_nan(self) -> Option<Pred<'k>> {
        None
    }

    #[track_caller]
    fn or_else_if(self, takes: Pred<'k>, other: Self) -> Self {
        Byte(takes.select(self.0, other.0))
    }
}

params! {
    /// Arguments of [`TreeReduce`].
    pub struct TreeReduceArguments => Call for variant: TreeReduce {
        /// The first element of each source.
        sources: List<In, MAX_SOURCES> = variant.sources as usize,
        /// The first element of the result, which may be a source.
        y: Out,
        /// The number of elements of each source and of the result.
        elements: u64,
    }
}

impl Variant for TreeReduce {
    type Arguments = TreeReduceArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS).reserve_load_registers();
        match self.format {
            Format::F64 => self.write::<F64<'_>>(k),
            Format::F32 => self.write::<F32<'_>>(k),
            Format::Bf16 => self.write::<Half<'_, false>>(k),
            Format::F16 => self.write::<Half<'_, true>>(k),
            Format::I64 => self.write::<S64<'_>>(k),
            Format::I32 => self.write::<S32<'_>>(k),
            Format::U32 => self.write::<U32<'_>>(k),
            Format::U8 | Format::Bool => self.write::<Byte<'_>>(k),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let (op, format) = (self.op.name(), self.format.name());
        format!("tree_{op}_{format}_n{}", self.sources)
    }
}
