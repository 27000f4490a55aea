#[derive(Clone, Copy)]
pub(crate) enum Kind {
    F64,
}
impl Kind {
    pub(crate) fn flops(self) -> u64 {
        0
    }
    pub(crate) fn is_f64(self) -> bool {
        true
    }
}
pub(crate) fn multiply(
    _: Kind,
    _: &[[u32; 32]],
    _: &[[u32; 32]],
    _: &[[u32; 32]],
    _: &mut [[u32; 32]],
) {
}
pub(crate) fn load_matrix(_: &[[u32; 4]; 8], _: bool) -> [u32; 32] {
    [0; 32]
}
pub(crate) fn transpose_matrix(a: &[u32; 32]) -> [u32; 32] {
    *a
}
