//! Elementwise kernels: chunks of the inputs are widened into buffers on the stack, computed, and
//! rounded into the output.

use super::strided::{CHUNK, Source};
use super::{BLOCK, for_blocks};
use crate::{Element, Float, Result, Tensor, Truth, Wide};

/// `out[i] = f(inputs[..][i])` in the wide type of `T`, inputs read in row-major order.
pub(crate) fn map<T: Float, const N: usize>(
    inputs: [&Tensor; N],
    out: &mut [T],
    f: impl Fn([T::Wide; N]) -> T::Wide + Sync,
) -> Result<()> {
    map_to::<T, T, T::Wide, N>(inputs, out, f, T::narrow)
}

/// As [`map`], with a result of another type that `finish` makes.
pub(crate) fn map_to<T: Float, U: Element, V, const N: usize>(
    inputs: [&Tensor; N],
    out: &mut [U],
    f: impl Fn([T::Wide; N]) -> V + Sync,
    finish: impl Fn(V) -> U + Sync,
) -> Result<()> {
    for_chunks::<T, U, N>(inputs, out, |buffers, out| {
        for (i, out) in out.iter_mut().enumerate() {
            *out = finish(f(std::array::from_fn(|input| buffers[input][i])));
        }
    })
}

/// `out[i] = f(inputs[..][i], out[i])`, for results that accumulate.
pub(crate) fn update<T: Float, U: Float, const N: usize>(
    inputs: [&Tensor; N],
    out: &mut [U],
    f: impl Fn([T::Wide; N], U::Wide) -> U::Wide + Sync,
) -> Result<()> {
    for_chunks::<T, U, N>(inputs, out, |buffers, out| {
        for (i, out) in out.iter_mut().enumerate() {
            let values = std::array::from_fn(|input| buffers[input][i]);
            *out = U::narrow(f(values, out.wide()));
        }
    })
}

/// Calls `body`, as vector code, with each chunk of `out` and what the inputs hold there.
fn for_chunks<T: Float, U: Element, const N: usize>(
    inputs: [&Tensor; N],
    out: &mut [U],
    body: impl Fn(&[[T::Wide; CHUNK]; N], &mut [U]) + Sync,
) -> Result<()> {
    let sources = sources::<T, N>(inputs)?;
    for_blocks(out, BLOCK, |start, part| {
        let mut buffers = [[T::Wide::ZERO; CHUNK]; N];
        for (at, out) in part.chunks_mut(CHUNK).enumerate() {
            for (buffer, source) in buffers.iter_mut().zip(&sources) {
                source.load_wide(start + at * CHUNK, &mut buffer[..out.len()]);
            }
            vectorised!(|| body(&buffers, out));
        }
    });
    Ok(())
}

/// `out[i] = convert(x[i])` for any element types.
pub(crate) fn convert<T: Element, U: Element>(
    x: &Tensor,
    out: &mut [U],
    convert: impl Fn(T) -> U + Sync,
) -> Result<()> {
    let x = Source::<T>::new(x)?;
    for_blocks(out, BLOCK, |start, part| {
        vectorised!(|| x.load(start, part, &convert))
    });
    Ok(())
}

/// `out[i]` is `a[i]` where `condition[i]` holds, else `b[i]`.
pub(crate) fn select<T: Element>(
    condition: &Tensor,
    a: &Tensor,
    b: &Tensor,
    out: &mut [T],
) -> Result<()> {
    let condition = Source::<Truth>::new(condition)?;
    let [a, b] = sources::<T, 2>([a, b])?;
    for_blocks(out, BLOCK, |start, part| {
        for (at, out) in part.chunks_mut(CHUNK).enumerate() {
            let start = start + at * CHUNK;
            let mut holds = [Truth::default(); CHUNK];
            let mut otherwise = [T::zeroed(); CHUNK];
            condition.copy(start, &mut holds[..out.len()]);
            b.copy(start, &mut otherwise[..out.len()]);
            a.copy(start, out);
            for (out, (holds, otherwise)) in out.iter_mut().zip(holds.iter().zip(&otherwise)) {
                if !holds.holds() {
                    *out = *otherwise;
                }
            }
        }
    });
    Ok(())
}

fn sources<'a, T: Element, const N: usize>(inputs: [&'a Tensor; N]) -> Result<[Source<'a, T>; N]> {
    let sources: Result<Vec<_>> = inputs.into_iter().map(Source::new).collect();
    // Exactly N went in.
    sources.map(|sources| sources.try_into().ok().unwrap_or_else(|| unreachable!()))
}
