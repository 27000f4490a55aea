#[derive(Clone, Copy)]
pub(crate) enum PermuteMode {
    Default,
    Forward4,
    Backward4,
    Replicate8,
    ClampLeft,
    ClampRight,
    Replicate16,
}
pub(crate) fn mul24_lo_u32(a: u32, b: u32) -> u32 {
    (a & 0xffffff).wrapping_mul(b & 0xffffff)
}
pub(crate) fn mul24_lo_s32(a: i32, b: i32) -> i32 {
    ((a << 8) >> 8).wrapping_mul((b << 8) >> 8)
}
pub(crate) fn dp4a(a: u32, b: u32, c: u32, sa: bool, sb: bool) -> u32 {
    let mut s = c as i32;
    for i in 0..4 {
        let x = (a >> (8 * i)) as u8;
        let y = (b >> (8 * i)) as u8;
        let x = if sa { x as i8 as i32 } else { x as i32 };
        let y = if sb { y as i8 as i32 } else { y as i32 };
        s = s.wrapping_add(x * y);
    }
    s as u32
}
pub(crate) fn dp2a(a: u32, b: u32, c: u32, sa: bool, sb: bool, hi: bool) -> u32 {
    let b = if hi { b >> 16 } else { b };
    let mut s = c as i32;
    for i in 0..2 {
        let x = (a >> (16 * i)) as u16;
        let y = (b >> (8 * i)) as u8;
        let x = if sa { x as i16 as i32 } else { x as i32 };
        let y = if sb { y as i8 as i32 } else { y as i32 };
        s = s.wrapping_add(x.wrapping_mul(y));
    }
    s as u32
}
pub(crate) fn shf_l(lo: u32, hi: u32, n: u32, wrap: bool) -> u32 {
    let n = if wrap { n & 31 } else { n.min(32) };
    let v = ((hi as u64) << 32 | lo as u64) << n;
    (v >> 32) as u32
}
pub(crate) fn shf_r(lo: u32, hi: u32, n: u32, wrap: bool) -> u32 {
    let n = if wrap { n & 31 } else { n.min(32) };
    let v = ((hi as u64) << 32 | lo as u64) >> n;
    v as u32
}
pub(crate) fn lop3(a: u32, b: u32, c: u32, t: u8) -> u32 {
    let mut r = 0;
    for i in 0..8 {
        if t >> i & 1 != 0 {
            let x = if i & 4 != 0 { a } else { !a };
            let y = if i & 2 != 0 { b } else { !b };
            let z = if i & 1 != 0 { c } else { !c };
            r |= x & y & z;
        }
    }
    r
}
pub(crate) fn prmt(a: u32, b: u32, s: u32, _m: PermuteMode) -> u32 {
    let v = (b as u64) << 32 | a as u64;
    let mut r = 0;
    for i in 0..4 {
        let c = s >> (4 * i) & 15;
        let byte = (v >> (8 * (c & 7))) as u8;
        let byte = if c & 8 != 0 {
            ((byte as i8) >> 7) as u8
        } else {
            byte
        };
        r |= (byte as u32) << (8 * i);
    }
    r
}
pub(crate) fn bfe_u32(a: u32, p: u32, l: u32) -> u32 {
    let p = p & 255;
    let l = l & 255;
    if l == 0 || p > 31 {
        0
    } else {
        let v = a >> p;
        if l >= 32 { v } else { v & ((1 << l) - 1) }
    }
}
pub(crate) fn bfe_s32(a: i32, p: u32, l: u32) -> i32 {
    let p = p & 255;
    let l = l & 255;
    if l == 0 {
        0
    } else {
        let top = (p + l - 1).min(31);
        let s = (a >> top) & 1;
        let mut r = 0i32;
        for i in 0..32 {
            let bit = if i < l && p + i <= 31 {
                (a >> (p + i)) & 1
            } else {
                s
            };
            r |= bit << i;
        }
        r
    }
}
pub(crate) fn bfe_u64(a: u64, p: u32, l: u32) -> u64 {
    let p = p & 255;
    let l = l & 255;
    if l == 0 || p > 63 {
        0
    } else {
        let v = a >> p;
        if l >= 64 { v } else { v & ((1 << l) - 1) }
    }
}
pub(crate) fn bfe_s64(a: i64, p: u32, l: u32) -> i64 {
    let p = p & 255;
    let l = l & 255;
    if l == 0 {
        0
    } else {
        let top = (p + l - 1).min(63);
        let s = (a >> top) & 1;
        let mut r = 0i64;
        for i in 0..64 {
            let bit = if i < l && p + i <= 63 {
                (a >> (p + i)) & 1
            } else {
                s
            };
            r |= bit << i;
        }
        r
    }
}
pub(crate) fn bfi_b32(a: u32, b: u32, p: u32, l: u32) -> u32 {
    let p = p & 255;
    let l = l & 255;
    let mut f = b;
    for i in 0..l {
        if p + i <= 31 {
            f = f & !(1 << (p + i)) | (a >> i & 1) << (p + i);
        }
    }
    f
}
pub(crate) fn bfi_b64(a: u64, b: u64, p: u32, l: u32) -> u64 {
    let p = p & 255;
    let l = l & 255;
    let mut f = b;
    for i in 0..l {
        if p + i <= 63 {
            f = f & !(1 << (p + i)) | (a >> i & 1) << (p + i);
        }
    }
    f
}
fn fin(v: u32, bits: u32, m: bool) -> u32 {
    if v == u32::MAX {
        v
    } else if m {
        bits - 1 - v
    } else {
        v
    }
}
pub(crate) fn bfind_u32(a: u32, m: bool) -> u32 {
    fin(
        if a == 0 {
            u32::MAX
        } else {
            31 - a.leading_zeros()
        },
        32,
        m,
    )
}
pub(crate) fn bfind_s32(a: i32, m: bool) -> u32 {
    bfind_u32(if a < 0 { !a as u32 } else { a as u32 }, m)
}
pub(crate) fn bfind_u64(a: u64, m: bool) -> u32 {
    fin(
        if a == 0 {
            u32::MAX
        } else {
            63 - a.leading_zeros()
        },
        64,
        m,
    )
}
pub(crate) fn bfind_s64(a: i64, m: bool) -> u32 {
    bfind_u64(if a < 0 { !a as u64 } else { a as u64 }, m)
}
