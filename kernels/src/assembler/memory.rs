//! Addresses in global memory, loads and stores.

use super::shared::SharedAddress;
use super::{Bf16, Bf16x2, Integer, Kernel, Operand, Pred, Register, Scalar, U32, U64, Variable};

/// A type that can be loaded and stored.
pub trait Stored: Scalar {
    /// Its size in bytes.
    const BYTES: u32;
    /// The value whose bits are all zero.
    #[doc(hidden)]
    const ZERO: Self;
}

macro_rules! stored {
    ($($type:ty: $bytes:literal, $zero:expr;)+) => {
        $(impl Stored for $type {
            const BYTES: u32 = $bytes;
            const ZERO: $type = $zero;
        })+
    };
}

stored! {
    f32: 4, 0.0;
    f64: 8, 0.0;
    u32: 4, 0;
    i32: 4, 0;
    u64: 8, 0;
    i64: 8, 0;
    Bf16: 2, Bf16(0);
    Bf16x2: 4, Bf16x2(0);
}

/// An address in global memory: a register and a constant offset.
#[derive(Clone, Copy, Debug)]
pub struct GlobalAddress<'k> {
    base: U64<'k>,
    offset: i64,
}

impl<'k> GlobalAddress<'k> {
    pub(super) fn new(base: U64<'k>) -> Self {
        GlobalAddress { base, offset: 0 }
    }

    /// Adds a constant byte offset. No instruction.
    pub fn offset(self, bytes: i64) -> Self {
        GlobalAddress { offset: self.offset + bytes, ..self }
    }

    /// The address of element `index` of an array of `T` that begins here. The offset is computed
    /// in 64 bits.
    #[track_caller]
    pub fn element<T: Stored>(self, index: U32<'k>) -> Self {
        self.byte_add(index.mul_wide(T::BYTES))
    }

    /// Like [`GlobalAddress::element`], with a 64-bit index.
    #[track_caller]
    pub fn element_wide<T: Stored>(self, index: U64<'k>) -> Self {
        self.byte_add(index * u64::from(T::BYTES))
    }

    /// Adds a byte offset; one instruction.
    #[track_caller]
    pub fn byte_add(self, bytes: impl Operand<u64>) -> Self {
        let base = self.base;
        let base = base.k.compute("add.u64", &[&base, &bytes.written()]);
        GlobalAddress { base, ..self }
    }

    /// A variable initialized to this address.
    #[track_caller]
    pub fn to_variable(self) -> AddressVariable<'k> {
        let start = match self.offset {
            0 => self.base,
            bytes => self.base + bytes as u64,
        };
        AddressVariable(self.kernel().var(start))
    }

    /// Loads one value.
    #[track_caller]
    pub fn load<T: Stored>(self) -> Register<'k, T> {
        self.kernel().load("global", &self.written())
    }

    /// Loads one value if the predicate is true; otherwise reads nothing and returns 0.
    #[track_caller]
    pub fn load_if<T: Stored>(self, condition: Pred<'k>) -> Register<'k, T> {
        let k = self.kernel();
        let value = k.constant(T::ZERO);
        let (bits, address) = (memory_type::<T>(), self.written());
        k.emit(format_args!("@{condition} ld.global.{bits} {value}, {address}"));
        value
    }

    /// Loads `N` values (2 or 4) in one access. The address must be a multiple of their total size.
    #[track_caller]
    pub fn load_vector<T: Stored, const N: usize>(self) -> [Register<'k, T>; N] {
        self.kernel().load_vector("global", &self.written())
    }

    /// Like [`GlobalAddress::load_vector`] if the predicate is true; otherwise reads nothing and
    /// returns zeros.
    #[track_caller]
    pub fn load_vector_if<T: Stored, const N: usize>(
        self,
        condition: Pred<'k>,
    ) -> [Register<'k, T>; N] {
        let k = self.kernel();
        let values = [(); N].map(|()| k.constant(T::ZERO));
        let (bits, list, address) = (memory_type::<T>(), list(&values), self.written());
        k.emit(format_args!("@{condition} ld.global.v{N}.{bits} {list}, {address}"));
        values
    }

    /// Stores one value.
    #[track_caller]
    pub fn store<T: Stored>(self, value: Register<'k, T>) {
        self.kernel().store("global", &self.written(), value);
    }

    /// Stores one value if the predicate is true.
    #[track_caller]
    pub fn store_if<T: Stored>(self, condition: Pred<'k>, value: Register<'k, T>) {
        let (bits, address) = (memory_type::<T>(), self.written());
        self.kernel().emit(format_args!("@{condition} st.global.{bits} {address}, {value}"));
    }

    /// Stores `N` values (2 or 4) in one access. The address must be a multiple of their total
    /// size.
    #[track_caller]
    pub fn store_vector<T: Stored, const N: usize>(self, values: [Register<'k, T>; N]) {
        self.kernel().store_vector("global", &self.written(), &values);
    }

    /// Like [`GlobalAddress::store_vector`] if the predicate is true; otherwise writes nothing.
    #[track_caller]
    pub fn store_vector_if<T: Stored, const N: usize>(
        self,
        condition: Pred<'k>,
        values: [Register<'k, T>; N],
    ) {
        let (bits, list, address) = (memory_type::<T>(), list(&values), self.written());
        self.kernel().emit(format_args!("@{condition} st.global.v{N}.{bits} {address}, {list}"));
    }

    /// Loads a byte, zero-extended.
    #[track_caller]
    pub fn load_byte(self) -> U32<'k> {
        self.kernel().compute("ld.global.u8", &[&self.written()])
    }

    /// Stores the lowest byte.
    #[track_caller]
    pub fn store_byte(self, value: U32<'k>) {
        let address = self.written();
        self.kernel().emit(format_args!("st.global.u8 {address}, {value}"));
    }

    /// Loads a byte, zero-extended, if the predicate is true; otherwise returns 0.
    #[track_caller]
    pub fn load_byte_if(self, condition: Pred<'k>) -> U32<'k> {
        let (k, address) = (self.kernel(), self.written());
        let value = k.constant(0u32);
        k.emit(format_args!("@{condition} ld.global.u8 {value}, {address}"));
        value
    }

    /// Stores the lowest byte if the predicate is true.
    #[track_caller]
    pub fn store_byte_if(self, condition: Pred<'k>, value: U32<'k>) {
        let address = self.written();
        self.kernel().emit(format_args!("@{condition} st.global.u8 {address}, {value}"));
    }

    /// Loads 16 bits, zero-extended, if the predicate is true; otherwise returns 0.
    #[track_caller]
    pub fn load_half_if(self, condition: Pred<'k>) -> U32<'k> {
        let (k, address) = (self.kernel(), self.written());
        let value = k.constant(0u32);
        k.emit(format_args!("@{condition} ld.global.u16 {value}, {address}"));
        value
    }

    /// Stores the lowest 16 bits if the predicate is true.
    #[track_caller]
    pub fn store_half_if(self, condition: Pred<'k>, value: U32<'k>) {
        let address = self.written();
        self.kernel().emit(format_args!("@{condition} st.global.u16 {address}, {value}"));
    }

    /// Raises the u64 at this address to at least `value`, atomically (relaxed), if the predicate
    /// is true. The final value does not depend on the order of threads.
    #[track_caller]
    pub fn atomic_max_if(self, condition: Pred<'k>, value: U64<'k>) {
        let address = self.written();
        self.kernel().emit(format_args!("@{condition} red.global.max.u64 {address}, {value}"));
    }

    fn kernel(self) -> &'k Kernel {
        self.base.kernel()
    }

    /// In PTX syntax: `[%rd1+16]`.
    pub(super) fn written(self) -> String {
        written(&self.base, self.offset)
    }
}

/// An address in global memory that changes while the kernel runs.
#[derive(Clone, Copy, Debug)]
pub struct AddressVariable<'k>(Variable<'k, u64>);

impl<'k> U64<'k> {
    /// Converts a generic address, such as one loaded from memory, to a global address.
    #[track_caller]
    pub fn to_global(self) -> GlobalAddress<'k> {
        GlobalAddress::new(self.k.compute("cvta.to.global.u64", &[&self]))
    }
}

impl<'k> AddressVariable<'k> {
    /// The current address.
    #[track_caller]
    pub fn get(self) -> GlobalAddress<'k> {
        GlobalAddress::new(self.0.get())
    }

    /// Advances the address.
    #[track_caller]
    pub fn advance(self, bytes: impl Operand<u64>) {
        self.0.add(bytes);
    }
}

impl<'k> SharedAddress<'k> {
    /// Loads one value.
    #[track_caller]
    pub fn load<T: Stored>(self) -> Register<'k, T> {
        self.kernel().load("shared", &self.written())
    }

    /// Loads `N` values (2 or 4) in one access. The address must be a multiple of their total size.
    #[track_caller]
    pub fn load_vector<T: Stored, const N: usize>(self) -> [Register<'k, T>; N] {
        self.kernel().load_vector("shared", &self.written())
    }

    /// Stores one value.
    #[track_caller]
    pub fn store<T: Stored>(self, value: Register<'k, T>) {
        self.kernel().store("shared", &self.written(), value);
    }

    /// Stores `N` values (2 or 4) in one access. The address must be a multiple of their total
    /// size.
    #[track_caller]
    pub fn store_vector<T: Stored, const N: usize>(self, values: [Register<'k, T>; N]) {
        self.kernel().store_vector("shared", &self.written(), &values);
    }
}

impl Kernel {
    #[track_caller]
    fn load<T: Stored>(&self, space: &str, address: &str) -> Register<'_, T> {
        self.compute(&format!("ld.{space}.{}", memory_type::<T>()), &[&address])
    }

    #[track_caller]
    fn load_vector<T: Stored, const N: usize>(
        &self,
        space: &str,
        address: &str,
    ) -> [Register<'_, T>; N] {
        let values = [(); N].map(|()| self.register());
        let (bits, list) = (memory_type::<T>(), list(&values));
        self.emit(format_args!("ld.{space}.v{N}.{bits} {list}, {address}"));
        values
    }

    #[track_caller]
    fn store<T: Stored>(&self, space: &str, address: &str, value: Register<'_, T>) {
        let bits = memory_type::<T>();
        self.emit(format_args!("st.{space}.{bits} {address}, {value}"));
    }

    #[track_caller]
    fn store_vector<T: Stored>(&self, space: &str, address: &str, values: &[Register<'_, T>]) {
        let (bits, list, n) = (memory_type::<T>(), list(values), values.len());
        self.emit(format_args!("st.{space}.v{n}.{bits} {address}, {list}"));
    }
}

fn memory_type<T: Stored>() -> &'static str {
    T::BITS
}

/// `{%r1, %r2}`.
pub(super) fn list<T: Scalar>(registers: &[Register<'_, T>]) -> String {
    let names: Vec<String> = registers.iter().map(Register::to_string).collect();
    format!("{{{}}}", names.join(", "))
}

/// `[%rd1+16]`.
pub(super) fn written<T: Integer>(base: &Register<'_, T>, offset: i64) -> String {
    match offset {
        0 => format!("[{base}]"),
        _ => format!("[{base}{offset:+}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::body;
    use super::super::{ArgumentFor, In, Kernel, Target};

    #[test]
    fn offsets_are_part_of_the_address() {
        let k = &Kernel::new("offsets", Target::Sm80, 32);
        let x = In::declare(k, "x", &()).offset(16).offset(-4);
        let values = x.load_vector::<f32, 4>();
        x.offset(-12).store_vector::<f32, 2>([values[0], values[3]]);
        assert_eq!(
            body(k)[2..4],
            [
                "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2+12];",
                "st.global.v2.f32 [%rd2], {%f1, %f4};",
            ]
        );
    }

    /// The result is zeroed before a conditional load.
    #[test]
    fn conditional_loads_begin_with_zeros() {
        let k = &Kernel::new("conditional", Target::Sm80, 32);
        let (x, inside) = (In::declare(k, "x", &()), k.constant(true));
        x.load_vector_if::<u32, 2>(inside);
        x.store_if(inside, k.constant(1u32));
        assert_eq!(
            body(k)[3..8],
            [
                "mov.b32 %r1, 0;",
                "mov.b32 %r2, 0;",
                "@%p1 ld.global.v2.b32 {%r1, %r2}, [%rd2];",
                "mov.b32 %r3, 1;",
                "@%p1 st.global.b32 [%rd2], %r3;",
            ]
        );
    }
}
