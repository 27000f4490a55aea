//! Laws of the product, for every kernel that this machine supports.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytemuck::Pod;
use half::bf16;
use pulp::Simd;

use super::block::{Problem, multiply_all};
use super::kernel::{Element, Kernel, WithKernel};
use super::output::Output;
use super::vector::{F32, F64, VectorKernel};
use super::{MatrixMut, MatrixRef, Update};
use crate::threads::with_threads;

mod grouped;
mod laws;

/// Extents around the edges of the kernels' tiles (4, 8, 24, 32, 48) and of packing blocks (16).
const EXTENTS: [usize; 16] = [0, 1, 2, 3, 7, 8, 9, 16, 17, 25, 31, 33, 47, 49, 64, 130];

/// A generator of pseudorandom numbers.
#[derive(Clone)]
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.bits() as usize % bound
    }

    /// Uniform in [-1, 1), rounded to `T`.
    pub(super) fn vec<T: Number>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| T::from_f64(self.bits() as f64 / (1u64 << 30) as f64 - 1.0)).collect()
    }
}

/// A number type of the tests.
pub(super) trait Number: Pod + Send + Sync + std::fmt::Debug {
    /// The relative distance of adjacent numbers.
    const EPSILON: f64;
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

impl Number for f32 {
    const EPSILON: f64 = f32::EPSILON as f64;
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Number for f64 {
    const EPSILON: f64 = f64::EPSILON;
    fn from_f64(value: f64) -> Self {
        value
    }
    fn to_f64(self) -> f64 {
        self
    }
}

impl Number for bf16 {
    const EPSILON: f64 = 1.0 / 128.0;
    fn from_f64(value: f64) -> Self {
        bf16::from_f64(value)
    }
    fn to_f64(self) -> f64 {
        f64::from(self.to_f32())
    }
}

/// The bytes of `values`, so that comparisons are exact and NaN equals itself.
pub(super) fn bits<T: Pod>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Computes a product with the given kernel instead of the one that `gemm` selects.
pub(super) fn product_by<K, C>(
    kernel: K,
    a: MatrixRef<'_, K::Input>,
    b: MatrixRef<'_, K::Input>,
    mut c: MatrixMut<'_, C>,
    update: Update,
) where
    K: Kernel,
    C: Output<K::Sum>,
{
    let c = c.target::<K::Sum>();
    multiply_all(kernel, 1, &|_| Problem { a, b, c }, update);
}

/// Runs a test with each kernel for `T` that this machine supports.
pub(super) trait EachKernel<T: Element> {
    fn check<K: Kernel<Input = T, Sum = T::Sum>>(&self, kernel: K);
}

pub(super) fn for_each_f32_kernel(test: &impl EachKernel<f32>) {
    test.check(VectorKernel(F32::<_, f32>::new(pulp::Scalar)));
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        test.check(VectorKernel(F32::<_, f32>::new(simd)));
    }
    on_best::<f32>(test);
}

pub(super) fn for_each_f64_kernel(test: &impl EachKernel<f64>) {
    test.check(VectorKernel(F64(pulp::Scalar)));
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        test.check(VectorKernel(F64(simd)));
    }
    on_best::<f64>(test);
}

/// AMX, AVX512-BF16 and the portable kernel, regardless of which `gemm` selects.
pub(super) fn for_each_bf16_kernel(test: &impl EachKernel<bf16>) {
    check_widened(test, pulp::Scalar);
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(simd) = pulp::x86::V3::try_new() {
            check_widened(test, simd);
        }
        if let Some(simd) = pulp::x86::V4::try_new() {
            check_widened(test, simd);
        }
        if let Some(dot) = super::dot::Dot::detect() {
            test.check(VectorKernel(dot));
        }
    }
    on_best::<bf16>(test);
}

fn check_widened(test: &impl EachKernel<bf16>, simd: impl Simd) {
    test.check(VectorKernel(F32::<_, bf16>::new(simd)));
}

fn on_best<T: Element>(test: &impl EachKernel<T>) {
    struct Best<'a, E>(&'a E);

    impl<T: Element, E: EachKernel<T>> WithKernel<T> for Best<'_, E> {
        fn run<K: Kernel<Input = T, Sum = T::Sum>>(self, kernel: K) {
            self.0.check(kernel);
        }
    }

    T::with_kernel(Best(test));
}

/// The message that `f` panics with.
fn panic_message<T>(f: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("no panic");
    *panic.downcast::<String>().unwrap()
}

#[test]
#[should_panic(expected = "gemm: columns of a and rows of b must be equal")]
fn a_wrong_extent_is_named() {
    let (a, b, mut c) = ([0f32; 6], [0f32; 8], [0f32; 6]);
    let a = MatrixRef::new(&a, [2, 3]);
    let b = MatrixRef::new(&b, [4, 2]);
    let c = MatrixMut::new(&mut c, [2, 2]);

    super::gemm(a, b, c, Update::Replace);
}

#[test]
fn views_stay_within_their_slice() {
    let data = [0f32; 12];
    let view = |(offset, extents, strides)| MatrixRef::strided(&data, offset, extents, strides);
    for inside in
        [(0, [3, 4], [4, 1]), (0, [0, 99], [99, 1]), (11, [3, 4], [-4, -1]), (0, [1000, 4], [0, 1])]
    {
        view(inside);
    }
    for outside in [
        (0, [3, 5], [5, 1]),
        (10, [3, 4], [-4, -1]),
        (1, [3, 4], [4, 1]),
        (0, [usize::MAX, 2], [isize::MAX, 1]),
        (usize::MAX, [1, 1], [1, 1]),
    ] {
        let message = panic_message(|| view(outside));
        assert!(message.contains("is out of bounds of its slice of 12 elements"), "{message}");
    }
}

#[test]
fn mutable_views_address_each_element_once() {
    let mut data = [0f32; 24];
    let mut view = |extents, strides, batch: &[usize], batch_strides: &[isize]| {
        let _ = MatrixMut::batched(&mut data, 0, extents, strides, batch, batch_strides);
    };

    view([3, 4], [4, 1], &[2], &[12]);
    view([4, 3], [1, 4], &[2], &[12]);
    view([3, 2], [4, 1], &[2], &[2]);
    view([1, 4], [0, 1], &[], &[]);

    let overlapping: [(_, _, &[usize], &[isize]); 4] = [
        ([3, 4], [0, 1], &[], &[]),
        ([3, 4], [3, 1], &[], &[]),
        ([3, 4], [4, 1], &[2], &[11]),
        ([2, 2], [1, 1], &[], &[]),
    ];
    for (extents, strides, batch, batch_strides) in overlapping {
        let message = panic_message(|| view(extents, strides, batch, batch_strides));
        assert!(message.contains("may address an element twice"), "{message}");
    }
}
