use half::{bf16, f16};
pub(crate) fn f16_to_f32(a: u32) -> f32 {
    f16::from_bits(a as u16).to_f32()
}
pub(crate) fn bf16_to_f32(a: u32) -> f32 {
    bf16::from_bits(a as u16).to_f32()
}
pub(crate) fn add_f16(a: u32, b: u32) -> u32 {
    f16::from_f32(f16_to_f32(a) + f16_to_f32(b)).to_bits() as u32
}
pub(crate) fn add_bf16(a: u32, b: u32) -> u32 {
    bf16::from_f32(bf16_to_f32(a) + bf16_to_f32(b)).to_bits() as u32
}
pub(crate) fn add_f16x2(a: u32, b: u32) -> u32 {
    add_f16(a & 0xffff, b & 0xffff) | add_f16(a >> 16, b >> 16) << 16
}
pub(crate) fn add_bf16x2(a: u32, b: u32) -> u32 {
    add_bf16(a & 0xffff, b & 0xffff) | add_bf16(a >> 16, b >> 16) << 16
}
