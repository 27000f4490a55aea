//! Elementwise kernels. Contiguous chunks of the inputs are read in place; others are copied into
//! buffers on the stack first.
//!
//! Each function is compiled once per element type, with widening and rounding, so that chunks are
//! read and written only once. The outer loop is shared by all functions.

use super::rows::update_columns;
use super::strided::{CHUNK, Chunk, Source};
use super::{BLOCK, for_blocks};
use crate::core::dtype::not_a_float;
use crate::{Bool, Element, Float, Function, Number, Result, Tensor, UninitTensor, Wide};

/// The elements of a chunk of two-byte elements if all inputs are contiguous, so that none needs a
/// buffer. The arithmetic of a chunk hardly overlaps with that of the next, which takes a fifth of
/// the time of a sigmoid with short chunks. For f32, which memory limits, long chunks are slower.
const LONG_CHUNK: usize = 4 * CHUNK;

/// A [`Function`] applied to a chunk.
type Body<'a, T, U, const N: usize> = &'a (dyn Fn([&[T]; N], &mut [U]) + Sync);

/// `y[i] = f(inputs[0][i], inputs[1][i], ..)`. The inputs have `y`'s dtype and any layout.
pub(crate) fn map<const N: usize>(
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    y: &mut UninitTensor,
) -> Result<()> {
    match y.dtype() {
        crate::DType::F64 => for_chunks::<f64, f64, N>(inputs, y.slice()?, &body(f)),
        crate::DType::F32 => for_chunks::<f32, f32, N>(inputs, y.slice()?, &body(f)),
        crate::DType::BF16 => for_chunks::<half::bf16, half::bf16, N>(inputs, y.slice()?, &body(f)),
        other => Err(not_a_float(other)),
    }
}

/// `y[i] = (f(inputs[0][i], inputs[1][i], ..) != 0)`, for an `f` that returns 0 or 1.
pub(crate) fn predicate<const N: usize>(
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    y: &mut UninitTensor,
) -> Result<()> {
    match inputs[0].dtype() {
        crate::DType::F64 => for_chunks::<f64, Bool, N>(inputs, y.slice()?, &body(f)),
        crate::DType::F32 => for_chunks::<f32, Bool, N>(inputs, y.slice()?, &body(f)),
        crate::DType::BF16 => for_chunks::<half::bf16, Bool, N>(inputs, y.slice()?, &body(f)),
        other => Err(not_a_float(other)),
    }
}

fn body<T: Float, U: FromResult<T::Wide>, const N: usize>(
    f: &impl Function<N>,
) -> impl Fn([&[T]; N], &mut [U]) + Sync {
    |inputs, out| {
        vectorized!(T::Wide, || {
            update_columns(
                inputs,
                out,
                #[inline(always)]
                |_, x| U::from_result(f.value(x)),
            );
        });
    }
}

/// Calls `body` with each chunk of the inputs and of the output.
fn for_chunks<T: Float, U: Element, const N: usize>(
    inputs: [&Tensor; N],
    out: &mut [U],
    body: Body<'_, T, U, N>,
) -> Result<()> {
    let sources = sources::<T, N>(inputs)?;
    let chunk = match size_of::<T>() == 2 && sources.iter().all(Source::is_contiguous) {
        true => LONG_CHUNK,
        false => CHUNK,
    };
    for_blocks(out, BLOCK, |start, part| {
        let mut buffers = [Chunk::of(T::zeroed()); N];
        for (at, out) in part.chunks_mut(chunk).enumerate() {
            let start = start + at * chunk;
            let mut inputs: [&[T]; N] = [&[]; N];
            for ((input, buffer), source) in inputs.iter_mut().zip(&mut buffers).zip(&sources) {
                *input = source.elements(start, out.len(), &mut **buffer);
            }
            body(inputs, out);
        }
    });
    Ok(())
}

/// An element type that stores results computed in `W`.
trait FromResult<W>: Element {
    fn from_result(result: W) -> Self;
}

impl<T: Float> FromResult<T::Wide> for T {
    #[inline(always)]
    fn from_result(result: T::Wide) -> T {
        T::narrow(result)
    }
}

impl<W: Wide> FromResult<W> for Bool {
    #[inline(always)]
    fn from_result(result: W) -> Bool {
        Bool::from(result != W::ZERO)
    }
}

/// `out[i] = x[i]` if `empty`, else `out[i] += x[i]`; rounded once.
pub(crate) fn accumulate<T: Float, U: Float>(x: &Tensor, out: &mut [U], empty: bool) -> Result<()> {
    let x = Source::<T>::new(x)?;
    for_blocks(out, BLOCK, |start, part| {
        let mut chunk = Chunk::of(T::Wide::ZERO);
        for (at, out) in part.chunks_mut(CHUNK).enumerate() {
            x.load_wide(start + at * CHUNK, &mut chunk[..out.len()]);
            vectorized!(U::Wide, || {
                for (out, x) in out.iter_mut().zip(chunk.iter()) {
                    let x = U::Wide::from_f64(x.to_f64());
                    *out = U::narrow(if empty { x } else { out.wide() + x });
                }
            });
        }
    });
    Ok(())
}

/// `out[i] = x[i]`.
pub(crate) fn copy<T: Element>(x: &Tensor, out: &mut [T]) -> Result<()> {
    let x = Source::<T>::new(x)?;
    match x.column_major() {
        Some(matrix) => matrix.copy(out),
        None => for_blocks(out, BLOCK, |start, part| x.copy(start, part)),
    }
    Ok(())
}

/// `out[i] = x[i]` between f32 and bf16, vectorized.
pub(crate) fn cast<T: Float<Wide = f32>, U: Float<Wide = f32>>(
    x: &Tensor,
    out: &mut [U],
) -> Result<()> {
    let x = Source::<T>::new(x)?;
    for_blocks(out, BLOCK, |start, part| {
        vectorized!(f32, || x.load(start, part, |element| U::narrow(element.wide())));
    });
    Ok(())
}

/// `out[i] = x[i]` for any element types, converted via `V`: i64 for integers, f64 for floats.
pub(crate) fn cast_via<V: Intermediate>(x: &Tensor, y: &mut UninitTensor) -> Result<()> {
    let load = crate::for_any!(x.dtype(), T => V::loader::<T>(x))?;
    crate::for_any!(y.dtype(), U => {
        for_blocks(y.slice::<U>()?, BLOCK, |start, part| {
            let mut chunk = [V::default(); CHUNK];
            for (at, out) in part.chunks_mut(CHUNK).enumerate() {
                load(start + at * CHUNK, &mut chunk[..out.len()]);
                for (out, value) in out.iter_mut().zip(chunk.iter()) {
                    *out = value.element();
                }
            }
        });
        Ok(())
    })
}

/// Reads a range of a tensor's elements in row-major order.
type Loader<'a, V> = Box<dyn Fn(usize, &mut [V]) + Sync + 'a>;

/// The type through which a cast converts.
pub(crate) trait Intermediate: Copy + Default + Send + Sync {
    fn of(element: impl Element) -> Self;
    fn element<U: Element>(self) -> U;

    fn loader<T: Element>(x: &Tensor) -> Result<Loader<'_, Self>> {
        let x = Source::<T>::new(x)?;
        Ok(Box::new(move |start, to| x.load(start, to, Self::of)))
    }
}

impl Intermediate for f64 {
    #[inline(always)]
    fn of(element: impl Element) -> f64 {
        element.to_f64()
    }

    #[inline(always)]
    fn element<U: Element>(self) -> U {
        U::from_f64(self)
    }
}

impl Intermediate for i64 {
    #[inline(always)]
    fn of(element: impl Element) -> i64 {
        element.to_i64()
    }

    #[inline(always)]
    fn element<U: Element>(self) -> U {
        U::from_i64(self)
    }
}

/// `out[i] = if condition[i] { a[i] } else { b[i] }`.
pub(crate) fn where_<T: Element>(
    condition: &Tensor,
    a: &Tensor,
    b: &Tensor,
    out: &mut [T],
) -> Result<()> {
    let condition = Source::<Bool>::new(condition)?;
    let [a, b] = sources::<T, 2>([a, b])?;
    for_blocks(out, BLOCK, |start, part| {
        for (at, out) in part.chunks_mut(CHUNK).enumerate() {
            let start = start + at * CHUNK;
            let mut holds = [Bool::default(); CHUNK];
            let mut otherwise = [T::zeroed(); CHUNK];
            condition.copy(start, &mut holds[..out.len()]);
            b.copy(start, &mut otherwise[..out.len()]);
            a.copy(start, out);
            for (out, (holds, otherwise)) in out.iter_mut().zip(holds.iter().zip(&otherwise)) {
                if !holds.get() {
                    *out = *otherwise;
                }
            }
        }
    });
    Ok(())
}

fn sources<'a, T: Element, const N: usize>(inputs: [&'a Tensor; N]) -> Result<[Source<'a, T>; N]> {
    let sources: Result<Vec<_>> = inputs.into_iter().map(Source::new).collect();
    // The vector has exactly N elements.
    sources.map(|sources| sources.try_into().ok().unwrap_or_else(|| unreachable!()))
}
