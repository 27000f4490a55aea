//! Laws of a single product. It is close to a naive product in f64. Its bits are the same for any
//! number of threads, for any subset of rows, and for the transposed product.

use super::*;

/// The memory layout of an operand in its slice.
#[derive(Debug, Clone, Copy)]
enum Order {
    Rows,
    Columns,
    /// Every third element, with gaps between rows.
    Sparse,
    /// Rows and columns in reverse order.
    Backwards,
}

const ORDERS: [Order; 4] = [Order::Rows, Order::Columns, Order::Sparse, Order::Backwards];

/// Strides, offset and the required length of the slice.
fn layout(order: Order, rows: usize, cols: usize) -> ([isize; 2], usize, usize) {
    let (r, c) = (rows as isize, cols as isize);
    match order {
        Order::Rows => ([c, 1], 0, rows * cols),
        Order::Columns => ([1, r], 0, rows * cols),
        Order::Sparse => ([3 * c + 2, 3], 1, (3 * cols + 2) * rows + 1),
        Order::Backwards => ([-c, -1], (rows * cols).saturating_sub(1), rows * cols),
    }
}

fn view<T: Copy>(data: &[T], order: Order, rows: usize, cols: usize) -> MatrixRef<'_, T> {
    let (strides, offset, _) = layout(order, rows, cols);
    MatrixRef::strided(data, offset, [rows, cols], strides)
}

fn view_mut<T: Copy>(data: &mut [T], order: Order, rows: usize, cols: usize) -> MatrixMut<'_, T> {
    let (strides, offset, _) = layout(order, rows, cols);
    MatrixMut::strided(data, offset, [rows, cols], strides)
}

/// Compares with a loop in f64. The tolerance is a few roundings of the sum of magnitudes.
struct AgreesWithNaive<C> {
    orders: [Order; 3],
    extents: [usize; 3],
    update: Update,
    output: std::marker::PhantomData<C>,
}

impl<T, C> EachKernel<T> for AgreesWithNaive<C>
where
    T: Element<Sum: Number> + Number,
    C: Output<T::Sum> + Number,
{
    fn check<K: Kernel<Input = T, Sum = T::Sum>>(&self, kernel: K) {
        let ([m, n, k], [a_order, b_order, c_order]) = (self.extents, self.orders);
        let mut numbers = Numbers::new((m * 31 + n) as u64 * 37 + k as u64);
        let a_data = numbers.vec::<T>(layout(a_order, m, k).2);
        let b_data = numbers.vec::<T>(layout(b_order, k, n).2);
        let c_old = numbers.vec::<C>(layout(c_order, m, n).2);

        let (a, b) = (view(&a_data, a_order, m, k), view(&b_data, b_order, k, n));
        let mut c_new = c_old.clone();
        product_by(kernel, a, b, view_mut(&mut c_new, c_order, m, n), self.update);

        let (old, new) = (view(&c_old, c_order, m, n), view(&c_new, c_order, m, n));
        for i in 0..m {
            for j in 0..n {
                let start = if self.update == Update::Add { old.get(i, j).to_f64() } else { 0.0 };
                let products = (0..k).map(|p| a.get(i, p).to_f64() * b.get(p, j).to_f64());
                let (mut sum, mut magnitude) = (start, start.abs());
                for product in products {
                    sum += product;
                    magnitude += product.abs();
                }

                let error = (new.get(i, j).to_f64() - sum).abs();
                let steps = (k as f64).sqrt() + 2.0;
                let bound = magnitude * T::Sum::EPSILON * steps + sum.abs() * C::EPSILON;
                assert!(
                    error <= bound,
                    "{:?} {:?} at ({i}, {j}): {:?}, not {sum}",
                    self.extents,
                    self.orders,
                    new.get(i, j)
                );
            }
        }

        let mut untouched = c_old.clone();
        let (strides, offset, _) = layout(c_order, m, n);
        for i in 0..m as isize {
            for j in 0..n as isize {
                let index = (offset as isize + i * strides[0] + j * strides[1]) as usize;
                untouched[index] = c_new[index];
            }
        }
        assert_eq!(bits(&untouched), bits(&c_new), "wrote outside of C");
    }
}

/// 150 random combinations of extents and orders, every pair of orders of A and B for some extents,
/// and one large product.
fn cases() -> impl Iterator<Item = ([usize; 3], [Order; 3], Update)> {
    let mut numbers = Numbers::new(7);
    let odd = (0..150).map(move |_| {
        let extents = [0; 3].map(|_| EXTENTS[numbers.below(EXTENTS.len())]);
        (extents, [0; 3].map(|_| ORDERS[numbers.below(ORDERS.len())]))
    });

    let pairs = ORDERS.into_iter().flat_map(|a| ORDERS.map(|b| [a, b, Order::Rows]));
    let ordered = pairs.flat_map(|orders| {
        [([13, 35, 70], orders), ([40, 17, 1100], orders), ([1, 50, 33], orders)]
    });
    let large = [([600, 300, 65], [Order::Rows, Order::Columns, Order::Rows])];

    let cases = odd.chain(ordered).chain(large);
    cases.flat_map(|(extents, orders)| {
        [Update::Replace, Update::Add].map(|update| (extents, orders, update))
    })
}

fn agrees_with_naive<C>() -> impl Iterator<Item = AgreesWithNaive<C>> {
    cases().map(|(extents, orders, update)| AgreesWithNaive {
        orders,
        extents,
        update,
        output: std::marker::PhantomData,
    })
}

#[test]
fn f32_agrees_with_naive() {
    agrees_with_naive::<f32>().for_each(|test| for_each_f32_kernel(&test));
}

#[test]
fn f64_agrees_with_naive() {
    agrees_with_naive::<f64>().for_each(|test| for_each_f64_kernel(&test));
}

#[test]
fn bf16_agrees_with_naive() {
    agrees_with_naive::<bf16>().for_each(|test| for_each_bf16_kernel(&test));
}

#[test]
fn bf16_into_f32_agrees_with_naive() {
    agrees_with_naive::<f32>().for_each(|test| for_each_bf16_kernel(&test));
}

/// Computing some rows of a product alone gives the same bits as computing all rows.
struct RowsAreIndependent {
    extents: [usize; 3],
    orders: [Order; 2],
}

impl<T> EachKernel<T> for RowsAreIndependent
where
    T: Element<Sum: Number + Output<T::Sum>> + Number,
{
    fn check<K: Kernel<Input = T, Sum = T::Sum>>(&self, kernel: K) {
        let ([m, n, k], [a_order, b_order]) = (self.extents, self.orders);
        let mut numbers = Numbers::new(m as u64);
        let a = numbers.vec::<T>(layout(a_order, m, k).2);
        let b = numbers.vec::<T>(layout(b_order, k, n).2);
        let (a, b) = (view(&a, a_order, m, k), view(&b, b_order, k, n));

        let mut whole = vec![T::Sum::from_f64(0.0); m * n];
        product_by(kernel, a, b, view_mut(&mut whole, Order::Rows, m, n), Update::Replace);

        for rows in [1, 2, 3, 5, 8, 16, 17, 65] {
            let rows = rows.min(m);
            let first = numbers.below(m - rows + 1);
            let mut part = vec![T::Sum::from_f64(0.0); rows * n];
            let c = view_mut(&mut part, Order::Rows, rows, n);
            product_by(kernel, a.part([first, 0], [rows, k]), b, c, Update::Replace);

            let expected = &whole[first * n..(first + rows) * n];
            assert_eq!(bits(&part), bits(expected), "{rows} rows of {:?}", self.extents);
        }
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_the_others() {
    let extents =
        [[1, 1, 1], [130, 8, 40], [130, 16, 300], [130, 64, 700], [70, 33, 2], [90, 5, 1500]];
    for extents in extents {
        for orders in [
            [Order::Rows, Order::Rows],
            [Order::Rows, Order::Columns],
            [Order::Columns, Order::Columns],
            [Order::Sparse, Order::Sparse],
        ] {
            let test = RowsAreIndependent { extents, orders };
            for_each_f32_kernel(&test);
            for_each_f64_kernel(&test);
            for_each_bf16_kernel(&test);
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let shapes = [[1, 700, 900], [700, 1, 900], [300, 260, 128], [517, 400, 1025], [64, 2000, 65]];
    for [m, n, k] in shapes {
        let mut numbers = Numbers::new(n as u64);
        let (a, b) = (numbers.vec::<f32>(m * k), numbers.vec::<f32>(k * n));
        let to_bf16 = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
        let (a_half, b_half) = (to_bf16(&a), to_bf16(&b));

        let product = || {
            let (mut c, mut c_half) = (vec![0f32; m * n], vec![bf16::ZERO; m * n]);
            let (a, b) = (view(&a, Order::Rows, m, k), view(&b, Order::Columns, k, n));
            super::super::gemm(a, b, view_mut(&mut c, Order::Rows, m, n), Update::Replace);
            let (a, b) = (view(&a_half, Order::Rows, m, k), view(&b_half, Order::Columns, k, n));
            let c_view = view_mut(&mut c_half, Order::Rows, m, n);
            super::super::gemm(a, b, c_view, Update::Replace);
            (c, c_half)
        };

        let (one, one_half) = with_threads(1, product);
        for threads in [2, 3, 8] {
            let (many, many_half) = with_threads(threads, product);
            assert_eq!(bits(&one), bits(&many), "{m} x {n} x {k}, {threads} threads");
            assert_eq!(bits(&one_half), bits(&many_half), "{m} x {n} x {k}, {threads} threads");
        }
    }
}

/// (A B)^T = B^T A^T, bit for bit. A column-major C is computed as its transpose.
struct TransposeCommutes;

impl<T> EachKernel<T> for TransposeCommutes
where
    T: Element<Sum: Number + Output<T::Sum>> + Number,
{
    fn check<K: Kernel<Input = T, Sum = T::Sum>>(&self, kernel: K) {
        let (m, n, k) = (37, 61, 530);
        let mut numbers = Numbers::new(3);
        let (a, b) = (numbers.vec::<T>(m * k), numbers.vec::<T>(k * n));
        let (a, b) = (view(&a, Order::Rows, m, k), view(&b, Order::Rows, k, n));

        let mut direct = vec![T::Sum::from_f64(0.0); m * n];
        let mut swapped = direct.clone();
        product_by(kernel, a, b, view_mut(&mut direct, Order::Rows, m, n), Update::Replace);
        let c = view_mut(&mut swapped, Order::Rows, m, n).transposed();
        product_by(kernel, b.transposed(), a.transposed(), c, Update::Replace);

        assert_eq!(bits(&direct), bits(&swapped));
    }
}

#[test]
fn transpose_commutes_with_the_product() {
    for_each_f32_kernel(&TransposeCommutes);
    for_each_f64_kernel(&TransposeCommutes);
    for_each_bf16_kernel(&TransposeCommutes);
}

/// A NaN or an infinity affects only its row or column, although tiles are padded.
struct NonFinitePropagates;

impl<T> EachKernel<T> for NonFinitePropagates
where
    T: Element<Sum: Number + Output<T::Sum>> + Number,
{
    fn check<K: Kernel<Input = T, Sum = T::Sum>>(&self, kernel: K) {
        let (m, n, k) = (15, 37, 9);
        let mut a = vec![T::from_f64(1.0); m * k];
        let mut b = vec![T::from_f64(1.0); k * n];
        a[3 * k + 8] = T::from_f64(f64::NAN);
        a[14 * k + 2] = T::from_f64(f64::INFINITY);
        b[8 * n + 36] = T::from_f64(f64::NEG_INFINITY);

        let mut c = vec![T::Sum::from_f64(0.0); m * n];
        let (a, b) = (view(&a, Order::Rows, m, k), view(&b, Order::Rows, k, n));
        product_by(kernel, a, b, view_mut(&mut c, Order::Rows, m, n), Update::Replace);

        for (index, value) in c.iter().map(|c| c.to_f64()).enumerate() {
            match (index / n, index % n) {
                (3, _) | (14, 36) => assert!(value.is_nan()),
                (14, _) => assert_eq!(value, f64::INFINITY),
                (_, 36) => assert_eq!(value, f64::NEG_INFINITY),
                _ => assert_eq!(value, k as f64),
            }
        }
    }
}

#[test]
fn nan_and_infinity_propagate() {
    for_each_f32_kernel(&NonFinitePropagates);
    for_each_f64_kernel(&NonFinitePropagates);
    for_each_bf16_kernel(&NonFinitePropagates);
}

/// Products are accumulated in f32 over all of k: 1 + 1 + 4096 / 4096 is 3. In bf16, the small
/// terms would be lost.
struct SumsInF32;

impl EachKernel<bf16> for SumsInF32 {
    fn check<K: Kernel<Input = bf16, Sum = f32>>(&self, kernel: K) {
        let k = 4097;
        let mut a = vec![bf16::from_f32(1.0 / 4096.0); k];
        a[0] = bf16::ONE;
        let ones = vec![bf16::ONE; k];
        let mut c = [bf16::ONE];

        let (a, b) = (view(&a, Order::Rows, 1, k), view(&ones, Order::Rows, k, 1));
        product_by(kernel, a, b, view_mut(&mut c, Order::Rows, 1, 1), Update::Add);
        assert_eq!(c[0].to_f32(), 3.0);
    }
}

#[test]
fn bf16_sums_are_rounded_once() {
    for_each_bf16_kernel(&SumsInF32);
}

#[test]
fn rounding_to_bf16_equals_half_crate() {
    let mut numbers = Numbers::new(1);
    let ties = (0..=u32::from(u16::MAX)).map(|high| high << 16 | 0x8000);
    let others = (0..200_000).map(|_| numbers.bits() as u32 ^ (numbers.bits() << 7) as u32);

    for bits in ties.chain(others).chain([0x7f80_0001, 0x7fff_ffff, 0xff80_0000, 0x7f7f_ffff]) {
        let value = f32::from_bits(bits);
        let rounded = <bf16 as Output<f32>>::replace(value);
        assert_eq!(rounded.to_bits(), bf16::from_f32(value).to_bits(), "{bits:#x}");
    }
}
