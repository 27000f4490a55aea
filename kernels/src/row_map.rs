//! Kernels of functions of rows: numbers of each row, computed from sums over it, then a value for
//! each element. Normalizations and their gradients are such functions.
//!
//! Numbers and values are [`Expression`]s, computed in f32. A row stays in registers from the first
//! sum to the store if it fits ([`crate::row`]).

use meshgrad_error::{Result, ensure};

use crate::assembler::{F32, In, Kernel, Launch, List, Out, Ptx, Target, Variant};
use crate::dtype::Dtype;
use crate::elementwise::evaluate;
use crate::expression::{Binary, Expression, Node, short_name};
use crate::params;
use crate::row::{Form, Row, Values};

/// Number of a row, from a sum over its elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowNumber {
    /// What an element adds to the sum. Its operands are those of the kernel, then the numbers of
    /// the row, of which only those before this one may be read. The sum of a product fuses multiply
    /// and add.
    pub summand: Expression,
    /// The number. Its operands are the numbers of the row, this one being the sum.
    pub number: Expression,
}

/// y_rd = value(operands_rd, numbers_r).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowMap {
    form: Form,
    /// Whether each operand is a matrix; the others are vectors that all rows share.
    is_matrix: [Option<bool>; RowMap::MAX_OPERANDS],
    given: usize,
    numbers: [Option<RowNumber>; RowMap::MAX_NUMBERS],
    value: Expression,
    /// How many numbers are written: none or all that are computed.
    written: usize,
    scalars: usize,
}

impl RowMap {
    /// Maximum number of operands.
    pub const MAX_OPERANDS: usize = 6;
    /// Maximum number of numbers of a row.
    pub const MAX_NUMBERS: usize = 4;
    /// Maximum number of scalars.
    pub const MAX_SCALARS: usize = 8;

    /// The kernel for rows of a dtype and a number of features; `aligned`: whether all operands
    /// begin at multiples of 16 bytes. The first `given` numbers of a row are operands, `numbers`
    /// are computed and, if `writes_numbers`, written. The operands of `value` are those of
    /// [`RowNumber::summand`].
    ///
    /// # Errors
    /// For too many operands, numbers or scalars.
    pub fn new(
        (dtype, features, aligned): (Dtype, usize, bool),
        is_matrix: impl IntoIterator<Item = bool>,
        given: usize,
        numbers: impl IntoIterator<Item = RowNumber>,
        value: Expression,
        writes_numbers: bool,
    ) -> Result<RowMap> {
        let (is_matrix, _) = array("operands", 0, is_matrix)?;
        let (numbers, count) = array("numbers of a row", given, numbers)?;
        let expressions = numbers.iter().flatten();
        let expressions = expressions.flat_map(|it| [&it.summand, &it.number]);
        let scalars = expressions.chain([&value]).map(Expression::scalars);
        let scalars = scalars.max().unwrap_or(0);
        at_most("scalars", scalars, Self::MAX_SCALARS)?;
        Ok(RowMap {
            form: Form::new(dtype, features, aligned),
            is_matrix,
            given,
            numbers,
            value,
            written: if writes_numbers { count } else { 0 },
            scalars,
        })
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        self.form.launch(rows)
    }

    /// For each operand, whether it is a matrix.
    fn operands(&self) -> impl Iterator<Item = bool> {
        self.is_matrix.iter().copied().flatten()
    }

    /// Whether a thread's part of the longest row fits into 64 registers.
    fn fits_64_registers(&self) -> bool {
        let matrices = self.operands().filter(|is_matrix| *is_matrix).count();
        self.operands().count() <= 2 && matrices == 1
    }
}

params! {
    /// Arguments of [`RowMap`].
    pub struct RowMapArguments => Call for variant: RowMap {
        /// The operands: \[R, D\], or \[D\].
        operands: List<In, { RowMap::MAX_OPERANDS }> = variant.operands().count(),
        /// The given numbers: \[R\] of f32 each.
        given: List<In, { RowMap::MAX_NUMBERS }> = variant.given,
        /// \[R, D\].
        y: Out,
        /// The computed numbers, if they are written: \[R\] of f32 each.
        numbers: List<Out, { RowMap::MAX_NUMBERS }> = variant.written,
        /// The scalars of the expressions.
        scalars: List<f32, { RowMap::MAX_SCALARS }> = variant.scalars,
        /// R.
        rows: u64,
        /// D.
        features: u32,
    }
}

impl Variant for RowMap {
    type Arguments = RowMapArguments;

    fn ptx(&self) -> Ptx {
        let k = Kernel::new(self.entry(), Target::Sm80, self.form.threads());
        let k = &match self.fits_64_registers() {
            true => k.reserve_load_registers(),
            false => k,
        };
        let call = self.parameters(k);
        let row = Row::new(k, self.form, call.rows, call.features);
        let load = |(is_matrix, operand): (bool, &_)| match is_matrix {
            true => row.load(*operand),
            false => row.load_vector(*operand),
        };
        let operands = self.operands().zip(&call.operands).map(load);
        let operands: Vec<Values<'_>> = operands.collect();
        let given = call.given.iter().map(|given| row.load_scalar(*given));
        let mut numbers: Vec<F32<'_>> = given.collect();

        for RowNumber { summand, number } in self.numbers.iter().flatten() {
            let read = Read::of(summand, &operands);
            let is_zero_outside = summand.is_zero_without(operands.len());
            let sum = k.var(0.0_f32);
            row.each_of(&read.operands, |x, exists| {
                let arguments = read.arguments(x, &numbers);
                let evaluate = |it| evaluate(k, it, &arguments, &call.scalars);
                match summand.node() {
                    Node::Binary(Binary::Mul, a, b) if is_zero_outside => {
                        sum.add_product(evaluate(a), evaluate(b));
                    }
                    _ if is_zero_outside => sum.add(evaluate(summand)),
                    _ => sum.add(exists.select(evaluate(summand), 0.0)),
                }
            });
            numbers.push(row.sum(sum.get()));
            let value = evaluate(k, number, &numbers, &call.scalars);
            numbers.pop();
            numbers.push(value);
        }

        let read = Read::of(&self.value, &operands);
        row.store_of(call.y, &read.operands, |x| {
            evaluate(k, &self.value, &read.arguments(x, &numbers), &call.scalars)
        });
        for (to, number) in call.numbers.iter().zip(&numbers[self.given..]) {
            row.store_scalar(*to, *number);
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let kind = |is_matrix: bool| if is_matrix { 'm' } else { 'v' };
        let operands: String = self.operands().map(kind).collect();
        let of = |it: &RowNumber| format!("sum_{}_is_{}_", it.summand, it.number);
        let numbers: String = self.numbers.iter().flatten().map(of).collect();
        let functions = short_name(format!("{numbers}to_{}", self.value));
        let (form, given) = (self.form.name(), self.given);
        let written = if self.written > 0 { "_written" } else { "" };
        format!("row_map_{form}_{operands}_given{given}{written}_{functions}")
    }
}

/// The operands that an expression reads: a loop over a row loads no others.
struct Read<'o, 'k> {
    operands: Vec<&'o Values<'k>>,
    /// For each operand of the kernel, its place in `operands`; 0 if it is not read.
    places: Vec<usize>,
}

impl<'o, 'k> Read<'o, 'k> {
    /// All operands, if the expression reads none.
    fn of(expression: &Expression, all: &'o [Values<'k>]) -> Read<'o, 'k> {
        let reads = |at: &usize| expression.reads(*at);
        let any = (0..all.len()).any(|at| reads(&at));
        let (mut operands, mut places) = (Vec::new(), Vec::new());
        for (at, operand) in all.iter().enumerate() {
            let is_read = reads(&at) || !any;
            places.push(if is_read { operands.len() } else { 0 });
            operands.extend(is_read.then_some(operand));
        }
        Read { operands, places }
    }

    /// The arguments of the expression at an element, from the elements of `operands`.
    fn arguments(&self, x: &[F32<'k>], numbers: &[F32<'k>]) -> Vec<F32<'k>> {
        let operands = self.places.iter().map(|place| x[*place]);
        operands.chain(numbers.iter().copied()).collect()
    }
}

/// `items` in an array, so that a launch allocates no memory, and their number. With `before`, they
/// must fit into it.
fn array<T, const N: usize>(
    what: &'static str,
    before: usize,
    items: impl IntoIterator<Item = T>,
) -> Result<([Option<T>; N], usize)> {
    let (mut array, mut count) = ([const { None }; N], 0);
    for item in items {
        if let Some(place) = array.get_mut(count) {
            *place = Some(item);
        }
        count += 1;
    }
    at_most(what, before + count, N)?;
    Ok((array, count))
}

fn at_most(what: &'static str, count: usize, limit: usize) -> Result<()> {
    ensure!(
        count <= limit,
        Unsupported,
        "row_map: {count} {what}, but the limit is {limit}; split the call"
    );
    Ok(())
}
