//! Branches, loops and variables, which take effect when the kernel runs.

use std::ops::Deref;

use super::{Integer, Kernel, Number, Operand, Pred, Register, Scalar};

/// A register that changes while the kernel runs, such as an accumulator or a loop index.
///
/// [`Variable::get`] copies the current value. `*variable` is the variable's register, so an
/// instruction that uses it as an operand reads the value at that point.
#[derive(Clone, Copy, Debug)]
pub struct Variable<'k, T: Scalar>(Register<'k, T>);

impl<'k, T: Scalar> Deref for Variable<'k, T> {
    type Target = Register<'k, T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'k, T: Scalar> Variable<'k, T> {
    /// Copies the current value to a new register.
    #[track_caller]
    pub fn get(&self) -> Register<'k, T> {
        self.0.k.copy(self.0)
    }

    /// Assigns a new value.
    #[track_caller]
    pub fn set(&self, value: impl Operand<T>) {
        let instruction = format!("mov.{} {}, {}", T::BITS, self.0, value.written());
        self.0.k.emit(instruction);
    }
}

impl<T: Number> Variable<'_, T> {
    /// self += value.
    #[track_caller]
    pub fn add(&self, value: impl Operand<T>) {
        let (opcode, x) = (T::ADD, self.0);
        x.k.emit(format_args!("{opcode} {x}, {x}, {}", value.written()));
    }
}

impl Variable<'_, f32> {
    /// self += a * b, rounded once.
    #[track_caller]
    pub fn add_product(&self, a: impl Operand<f32>, b: impl Operand<f32>) {
        let (x, a, b) = (self.0, a.written(), b.written());
        x.k.emit(format_args!("fma.rn.f32 {x}, {a}, {b}, {x}"));
    }
}

impl Kernel {
    /// A variable with an initial value.
    #[track_caller]
    pub fn var<T: Scalar>(&self, value: impl Operand<T>) -> Variable<'_, T> {
        Variable(self.copy(value))
    }

    /// Runs `body` if `condition` is true.
    #[track_caller]
    pub fn if_(&self, condition: Pred<'_>, body: impl FnOnce()) {
        let end = self.label();
        self.emit(format_args!("@!{condition} bra {end}"));
        body();
        self.place(end);
    }

    /// Runs `then` if `condition` is true, otherwise `otherwise`.
    #[track_caller]
    pub fn if_else(&self, condition: Pred<'_>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        let (other, end) = (self.label(), self.label());
        self.emit(format_args!("@!{condition} bra {other}"));
        then();
        self.emit(format_args!("bra {end}"));
        self.place(other);
        otherwise();
        self.place(end);
    }

    /// Runs `body` while `condition` is true. The condition is tested before every iteration.
    #[track_caller]
    pub fn while_<'k>(&'k self, condition: impl FnOnce() -> Pred<'k>, body: impl FnOnce()) {
        let (top, end) = (self.label(), self.label());
        self.place(top);
        self.emit(format_args!("@!{} bra {end}", condition()));
        body();
        self.emit(format_args!("bra {top}"));
        self.place(end);
    }

    /// Runs `body` for the indices `start`, `start + step`, ... that are less than `end`. The index
    /// is valid only inside `body`.
    #[track_caller]
    pub fn for_range<'k, T: Integer>(
        &'k self,
        start: impl Operand<T>,
        end: impl Operand<T>,
        step: impl Operand<T>,
        body: impl FnOnce(Register<'k, T>),
    ) {
        let index = self.var(start);
        let (top, done) = (self.label(), self.label());
        self.place(top);
        let finished = index.ge(end);
        self.emit(format_args!("@{finished} bra {done}"));
        body(*index);
        index.add(step);
        self.emit(format_args!("bra {top}"));
        self.place(done);
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::body;
    use super::super::{Kernel, Target};

    #[test]
    fn a_loop_tests_before_every_iteration() {
        let k = &Kernel::new("loop", Target::Sm80, 32);
        let sum = k.var(0.0_f32);
        k.for_range(3u32, 9, 2, |_| sum.add(1.0));
        assert_eq!(
            body(k),
            [
                "mov.f32 %f1, 0f00000000;",
                "mov.b32 %r1, 3;",
                "$L1:",
                "setp.ge.u32 %p1, %r1, 9;",
                "@%p1 bra $L2;",
                "add.rn.f32 %f1, %f1, 0f3F800000;",
                "add.u32 %r1, %r1, 2;",
                "bra $L1;",
                "$L2:",
                "ret;",
                "}",
            ]
        );
    }

    #[test]
    fn both_branches_meet() {
        let k = &Kernel::new("branch", Target::Sm80, 32);
        let x = k.var(0u32);
        k.if_else(k.lane().equals(0), || x.set(1), || x.set(2));
        assert_eq!(
            body(k),
            [
                "mov.b32 %r1, 0;",
                "mov.u32 %r2, %tid.x;",
                "and.b32 %r3, %r2, 31;",
                "setp.eq.u32 %p1, %r3, 0;",
                "@!%p1 bra $L1;",
                "mov.b32 %r1, 1;",
                "bra $L2;",
                "$L1:",
                "mov.b32 %r1, 2;",
                "$L2:",
                "ret;",
                "}",
            ]
        );
    }

    /// `get` copies: later changes of the variable do not affect the copy.
    #[test]
    fn reading_a_variable_copies() {
        let k = &Kernel::new("copy", Target::Sm80, 32);
        let x = k.var(1u32);
        let before = x.get();
        x.add(1);
        let _sum = before + *x;
        assert_eq!(
            body(k)[1..4],
            ["mov.b32 %r2, %r1;", "add.u32 %r1, %r1, 1;", "add.u32 %r3, %r2, %r1;"]
        );
    }

    /// A profiler must find the file and line that emitted an instruction.
    #[test]
    fn instructions_point_at_their_rust_line() {
        let k = &Kernel::new("lines", Target::Sm80, 32);
        let line = line!() + 1;
        let _ = k.thread() + 1;
        let text = k.finish().text;
        assert!(text.contains(".file 1 \"kernels/src/assembler/control.rs\""), "{text}");
        assert!(text.contains(&format!(".loc 1 {line} ")), "{text}");
    }
}
