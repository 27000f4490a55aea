//! Variants of kernels, and their parameters, stated once by [`params!`](crate::params).

use std::fmt::Debug;
use std::hash::Hash;

use super::{Arguments, GlobalAddress, Kernel, Parameter, ParameterKind, Ptx, Register};

/// A value that the host passes to a kernel: a pointer, a number, or a struct of them.
pub trait Argument {
    /// The registers in which the kernel receives it.
    type InKernel<'k>;
}

/// An [`Argument`] whose parameters depend on `S`, which is known when the kernel is generated:
/// `()`, a length, or the kernel's [`Variant`].
///
/// Both methods must handle the same parameters in the same order.
pub trait ArgumentFor<S: ?Sized>: Argument {
    /// Declares the parameters of an argument called `name`.
    fn declare<'k>(k: &'k Kernel, name: &str, shape: &S) -> Self::InKernel<'k>;

    /// Adds their values.
    fn push(&self, shape: &S, arguments: &mut Arguments);
}

/// Identifies a kernel. Equal variants give equal text, so a variant is a cache key.
pub trait Variant: Clone + Eq + Hash + Debug + Send + Sync + 'static {
    /// The kernel's parameters, defined by [`params!`](crate::params).
    type Arguments: ArgumentFor<Self>;

    /// Writes the kernel.
    fn ptx(&self) -> Ptx;

    /// The name of its entry point. It encodes every field of the variant.
    fn entry(&self) -> String;

    /// Declares the parameters, in the kernel that [`Variant::ptx`] writes.
    #[track_caller]
    fn parameters<'k>(&self, k: &'k Kernel) -> Registers<'k, Self::Arguments> {
        Self::Arguments::declare(k, "", self)
    }

    /// The parameter bytes of a launch.
    fn pack(&self, arguments: &Self::Arguments) -> Arguments {
        let mut packed = Arguments::new();
        arguments.push(self, &mut packed);
        packed
    }
}

/// Arguments in the registers of a kernel.
pub type Registers<'k, A> = <A as Argument>::InKernel<'k>;

/// The address in device memory of something that a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct In(pub u64);

/// The address in device memory of something that a kernel writes, and may also read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Out(pub u64);

impl Out {
    /// For a result that this variant of a kernel does not have.
    pub const NONE: Out = Out(0);

    /// The same memory, for a kernel that reads what an earlier one wrote.
    pub fn written(self) -> In {
        In(self.0)
    }
}

macro_rules! pointers {
    ($($pointer:ident)*) => {$(
        impl $pointer {
            /// The address `bytes` bytes further on.
            #[must_use]
            pub fn byte_add(self, bytes: u64) -> $pointer {
                $pointer(self.0 + bytes)
            }
        }

        impl Argument for $pointer {
            type InKernel<'k> = GlobalAddress<'k>;
        }

        impl ArgumentFor<()> for $pointer {
            #[track_caller]
            fn declare<'k>(k: &'k Kernel, name: &str, (): &()) -> GlobalAddress<'k> {
                let generic: Register<'k, u64> = k.parameter(name, ParameterKind::Pointer);
                GlobalAddress::new(k.compute("cvta.to.global.u64", &[&generic]))
            }

            fn push(&self, (): &(), arguments: &mut Arguments) {
                arguments.push(self.0.to_ne_bytes());
            }
        }
    )*};
}

macro_rules! numbers {
    ($($number:ty: $kind:ident),*) => {$(
        impl Argument for $number {
            type InKernel<'k> = Register<'k, $number>;
        }

        impl ArgumentFor<()> for $number {
            #[track_caller]
            fn declare<'k>(k: &'k Kernel, name: &str, (): &()) -> Register<'k, $number> {
                k.parameter(name, ParameterKind::$kind)
            }

            fn push(&self, (): &(), arguments: &mut Arguments) {
                arguments.push(self.to_ne_bytes());
            }
        }
    )*};
}

pointers!(In Out);
numbers!(u32: U32, i32: I32, u64: U64, i64: I64, f32: F32, f64: F64);

impl Argument for bool {
    type InKernel<'k> = Register<'k, u32>;
}

/// 1 if true, otherwise 0.
impl ArgumentFor<()> for bool {
    #[track_caller]
    fn declare<'k>(k: &'k Kernel, name: &str, (): &()) -> Register<'k, u32> {
        u32::declare(k, name, &())
    }

    fn push(&self, (): &(), arguments: &mut Arguments) {
        u32::from(*self).push(&(), arguments);
    }
}

impl Argument for () {
    type InKernel<'k> = ();
}

/// No parameters.
impl<S: ?Sized> ArgumentFor<S> for () {
    fn declare(_: &Kernel, _: &str, _: &S) {}

    fn push(&self, _: &S, _: &mut Arguments) {}
}

impl<A: Argument, const N: usize> Argument for [A; N] {
    type InKernel<'k> = [A::InKernel<'k>; N];
}

impl<A: ArgumentFor<()>, const N: usize> ArgumentFor<()> for [A; N] {
    #[track_caller]
    fn declare<'k>(k: &'k Kernel, name: &str, (): &()) -> [A::InKernel<'k>; N] {
        let mut registers = [const { None }; N];
        for (i, register) in registers.iter_mut().enumerate() {
            *register = Some(A::declare(k, &format!("{name}{i}"), &()));
        }
        registers.map(|register| register.expect("every element is declared"))
    }

    fn push(&self, (): &(), arguments: &mut Arguments) {
        self.iter().for_each(|item| item.push(&(), arguments));
    }
}

impl<A: Argument> Argument for Option<A> {
    type InKernel<'k> = Option<A::InKernel<'k>>;
}

/// An argument that only some variants have: those for which the shape is true.
impl<A: ArgumentFor<()>> ArgumentFor<bool> for Option<A> {
    #[track_caller]
    fn declare<'k>(k: &'k Kernel, name: &str, exists: &bool) -> Option<A::InKernel<'k>> {
        match exists {
            true => Some(A::declare(k, name, &())),
            false => None,
        }
    }

    fn push(&self, exists: &bool, arguments: &mut Arguments) {
        if let Some(argument) = self.as_ref().filter(|_| *exists) {
            argument.push(&(), arguments);
        }
    }
}

/// Up to `N` arguments of one type; a variant determines how many.
#[derive(Clone, Copy, Debug)]
pub struct List<A, const N: usize>([Option<A>; N]);

impl<A: Copy, const N: usize> List<A, N> {
    /// The first `N` items.
    pub fn new(items: &[A]) -> List<A, N> {
        items.iter().copied().collect()
    }

    /// The items.
    pub fn iter(&self) -> impl Iterator<Item = &A> {
        self.0.iter().flatten()
    }
}

impl<A, const N: usize> FromIterator<A> for List<A, N> {
    fn from_iter<I: IntoIterator<Item = A>>(items: I) -> List<A, N> {
        let mut items = items.into_iter();
        List(std::array::from_fn(|_| items.next()))
    }
}

impl<A: Argument, const N: usize> Argument for List<A, N> {
    type InKernel<'k> = Vec<A::InKernel<'k>>;
}

impl<A: ArgumentFor<()>, const N: usize> ArgumentFor<usize> for List<A, N> {
    #[track_caller]
    fn declare<'k>(k: &'k Kernel, name: &str, count: &usize) -> Vec<A::InKernel<'k>> {
        let mut registers = Vec::with_capacity(*count);
        for i in 0..*count {
            registers.push(A::declare(k, &format!("{name}{i}"), &()));
        }
        registers
    }

    fn push(&self, count: &usize, arguments: &mut Arguments) {
        let items = self.0.iter().flatten().take(*count);
        items.for_each(|item| item.push(&(), arguments));
    }
}

impl Kernel {
    /// Declares a parameter and loads it.
    #[track_caller]
    pub(crate) fn parameter<T: super::Scalar>(
        &self,
        name: &str,
        kind: ParameterKind,
    ) -> Register<'_, T> {
        let name = name.to_owned();
        let load = format!("ld.param.{}", kind.ptx_type());
        let from = format!("[{name}]");
        self.add_parameter(Parameter { name, kind });
        self.compute(&load, &[&from])
    }
}

/// The name of a parameter within a struct called `outer`, which is empty for a kernel's own.
#[doc(hidden)]
pub fn nested(outer: &str, name: &str) -> String {
    match outer {
        "" => name.to_owned(),
        _ => format!("{outer}_{name}"),
    }
}

/// Defines the parameters of a kernel, in order: a struct of their values for the host, and a
/// struct of registers with the same fields for the kernel. From it follow the kernel's
/// declarations, the bytes of a launch, and the type of a launch's arguments
/// ([`Variant::Arguments`](crate::Variant::Arguments)).
///
/// ```
/// use meshgrad_kernels::assembler::{In, Kernel, Out, Ptx, Registers, Target, Variant};
/// use meshgrad_kernels::params;
///
/// params! {
///     /// Arguments of [`Scale`].
///     pub struct ScaleArguments {
///         /// \[n\] of f32.
///         x: In,
///         /// \[n\] of f32.
///         y: Out,
///         /// Elements.
///         n: u32,
///         /// Factor of every element.
///         scale: f32,
///     }
/// }
///
/// /// y = scale x.
/// #[derive(Clone, Debug, PartialEq, Eq, Hash)]
/// pub struct Scale;
///
/// impl Variant for Scale {
///     type Arguments = ScaleArguments;
///
///     fn entry(&self) -> String {
///         "scale".to_owned()
///     }
///
///     fn ptx(&self) -> Ptx {
///         let k = &Kernel::new(self.entry(), Target::Sm80, 128);
///         let p: Registers<'_, ScaleArguments> = self.parameters(k);
///         let i = k.cta() * 128 + k.thread();
///         let x = p.x.element::<f32>(i).load_if::<f32>(i.lt(p.n));
///         p.y.element::<f32>(i).store_if(i.lt(p.n), x * p.scale);
///         k.finish()
///     }
/// }
///
/// let arguments = ScaleArguments { x: In(0x1000), y: Out(0x2000), n: 77, scale: 2.0 };
/// assert_eq!(Scale.pack(&arguments).bytes().len(), 24);
/// ```
///
/// Fields are [`In`] or [`Out`] pointers, numbers (`u32`, `i32`, `u64`, `i64`, `f32`, `f64`,
/// `bool`), arrays of them, or other structs defined in this way. Swapped operands of different
/// types do not compile:
///
/// ```compile_fail,E0308
/// # use meshgrad_kernels::assembler::{In, Out};
/// # meshgrad_kernels::params! { pub struct ScaleArguments { x: In, y: Out, n: u32, scale: f32 } }
/// let (x, y) = (In(0x1000), Out(0x2000));
/// let arguments = ScaleArguments { x: y, y: x, n: 77, scale: 2.0 };
/// ```
///
/// If the kernel's variant determines which parameters there are, the struct names the variant, and
/// a field says how it depends on it: `pub struct SumArguments for variant: Sum { x: List<In, 8> =
/// variant.operands, .. }` ([`List`], [`Option`]). `=> Name` after the struct's name gives a name
/// to the struct of registers.
#[macro_export]
macro_rules! params {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(=> $registers:ident)? {
            $($(#[$doc:meta])* $field:ident: $type:ty $(= $shape:expr)?),* $(,)?
        }
    ) => {
        $crate::params!(@host [$(#[$meta])*] $vis $name {$([$(#[$doc])*] $field: $type,)*});
        $crate::params!(
            @kernel [$($registers)?] [derive(Clone, Copy)] [S: ?Sized] [S] _shape, $name
            {$([$(#[$doc])*] $field: $type = ($($shape)?),)*}
        );
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(=> $registers:ident)? for $variant:ident: $Variant:ty {
            $($(#[$doc:meta])* $field:ident: $type:ty $(= $shape:expr)?),* $(,)?
        }
    ) => {
        $crate::params!(@host [$(#[$meta])*] $vis $name {$([$(#[$doc])*] $field: $type,)*});
        $crate::params!(
            @kernel [$($registers)?] [derive(Clone)] [] [$Variant] $variant, $name
            {$([$(#[$doc])*] $field: $type = ($($shape)?),)*}
        );
    };
    (@host [$(#[$meta:meta])*] $vis:vis $name:ident
        {$([$(#[$doc:meta])*] $field:ident: $type:ty,)*}
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        $vis struct $name {
            $($(#[$doc])* $vis $field: $type,)*
        }
    };
    (@kernel [] $($rest:tt)*) => {
        const _: () = {
            $crate::params!(@kernel [Registers] $($rest)*);
        };
    };
    (@kernel [$registers:ident] [$derive:meta] [$($bounds:tt)*] [$Shape:ty] $shape:ident,
        $name:ident {$([$(#[$doc:meta])*] $field:ident: $type:ty = $of:expr,)*}
    ) => {
        #[doc = concat!("[`", stringify!($name), "`] in registers.")]
        #[$derive]
        #[allow(dead_code, unreachable_pub)] // some variants do not read all parameters
        pub struct $registers<'k> {
            $($(#[$doc])* pub $field: <$type as $crate::assembler::Argument>::InKernel<'k>,)*
        }

        impl $crate::assembler::Argument for $name {
            type InKernel<'k> = $registers<'k>;
        }

        impl<$($bounds)*> $crate::assembler::ArgumentFor<$Shape> for $name {
            #[track_caller]
            fn declare<'k>(
                k: &'k $crate::assembler::Kernel,
                name: &str,
                $shape: &$Shape,
            ) -> $registers<'k> {
                $registers {
                    $($field: <$type as $crate::assembler::ArgumentFor<_>>::declare(
                        k,
                        &$crate::assembler::nested(name, stringify!($field)),
                        &$of,
                    ),)*
                }
            }

            fn push(&self, $shape: &$Shape, arguments: &mut $crate::assembler::Arguments) {
                $($crate::assembler::ArgumentFor::push(&self.$field, &$of, arguments);)*
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::super::Target;
    use super::*;

    params! {
        struct Pair {
            first: u32,
            second: f64,
        }
    }

    params! {
        struct AllKinds for variant: All {
            x: List<In, 3> = variant.operands,
            y: Out,
            weight: Option<f32> = variant.weighted,
            key: [u32; 2],
            pair: Pair,
            wide: bool,
            stride: i64,
        }
    }

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct All {
        operands: usize,
        weighted: bool,
    }

    impl Variant for All {
        type Arguments = AllKinds;

        fn entry(&self) -> String {
            "all".to_owned()
        }

        fn ptx(&self) -> Ptx {
            let k = &Kernel::new(self.entry(), Target::Sm80, 32);
            let p = self.parameters(k);
            assert_eq!(p.x.len(), self.operands);
            assert_eq!(p.weight.is_some(), self.weighted);
            k.finish()
        }
    }

    fn arguments() -> AllKinds {
        AllKinds {
            x: List::new(&[In(0x11), In(0x22)]),
            y: Out(0x33),
            weight: Some(1.5),
            key: [4, 5],
            pair: Pair { first: 6, second: 2.5 },
            wide: true,
            stride: -7,
        }
    }

    /// The bytes of the parameters, in the order and with the types in which they are declared.
    #[test]
    fn arguments_follow_the_declaration() {
        let all = All { operands: 2, weighted: true };
        let ptx = all.ptx();
        let declared = ptx.parameters.iter();
        let declared: Vec<_> = declared.map(|it| (it.name.as_str(), it.kind)).collect();
        use ParameterKind::{F32, F64, I64, Pointer, U32};
        let expected = [
            ("x0", Pointer),
            ("x1", Pointer),
            ("y", Pointer),
            ("weight", F32),
            ("key0", U32),
            ("key1", U32),
            ("pair_first", U32),
            ("pair_second", F64),
            ("wide", U32),
            ("stride", I64),
        ];
        assert_eq!(declared, expected);

        let mut bytes = [0x11u64, 0x22, 0x33].map(u64::to_ne_bytes).concat();
        bytes.extend(1.5f32.to_ne_bytes());
        bytes.extend([4u32, 5, 6].map(u32::to_ne_bytes).concat());
        bytes.extend(2.5f64.to_ne_bytes());
        bytes.extend(1u32.to_ne_bytes());
        bytes.extend([0; 4]); // the next parameter begins at a multiple of its size
        bytes.extend((-7i64).to_ne_bytes());
        let packed = all.pack(&arguments());
        assert_eq!(packed.bytes(), bytes);
        assert_eq!(packed.bytes().len(), ptx.parameter_bytes());
    }

    /// Arguments that a variant does not have are not passed.
    #[test]
    fn the_variant_determines_the_parameters() {
        for (operands, weighted) in [(0, false), (1, true), (2, false)] {
            let all = All { operands, weighted };
            let packed = all.pack(&arguments());
            assert_eq!(packed.bytes().len(), all.ptx().parameter_bytes(), "{all:?}");
        }
    }
}
