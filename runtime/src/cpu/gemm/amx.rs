//! bf16 with AMX (Sapphire Rapids and later): a core has eight registers of 16 rows x 64 bytes and
//! an instruction that multiplies two of them, at about 16 times the rate of f32 vectors.
//!
//! Four registers hold a 32 x 32 tile of accumulators. Two hold parts of a panel of A (each 16 rows
//! x 32 along k), and two of a panel of B (each 16 pairs along k x 16 columns). Rust has no stable
//! intrinsics for AMX yet, so this uses inline assembly.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

use half::bf16;
use pulp::x86::V4;

use super::MatrixRef;
use super::kernel::{Kernel, Order, Rows, Start, Tile};
use super::pack::{pack_by_depth, pack_by_lane};
use super::vector::Closure;

/// Rows and columns of the accumulator tile, and lanes of both panels.
const TILE: usize = 32;

/// bf16 pairs per row of a register. One multiplication advances by this many pairs along k.
const PAIRS: usize = 16;

/// The AMX kernel. A value is proof that the process may use the instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct AmxKernel {
    vectors: V4,
}

impl AmxKernel {
    /// Queries the processor, and requests permission from the operating system, once per process.
    pub(super) fn detect() -> Option<Self> {
        static PERMITTED: OnceLock<bool> = OnceLock::new();

        let vectors = V4::try_new()?;
        let permitted = *PERMITTED.get_or_init(|| has_instructions() && permission_granted());
        permitted.then_some(Self { vectors })
    }
}

fn has_instructions() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const NEEDED: u32 = AMX_BF16 | AMX_TILE;

    // SAFETY: every x86-64 processor has CPUID. (The intrinsic is safe in later Rust versions.)
    #[allow(unused_unsafe)]
    let (highest_leaf, features) = unsafe { (__cpuid(0).eax, __cpuid_count(7, 0).edx) };
    highest_leaf >= 7 && features & NEEDED == NEEDED
}

/// Linux enables the AMX register state of a process only on request (arch_prctl(2)); the
/// permission covers all of its threads.
#[cfg(target_os = "linux")]
fn permission_granted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;

    let status: i64;
    // SAFETY: the call takes two numbers and touches no memory of this process; `syscall` clobbers
    // rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    status == 0
}

#[cfg(not(target_os = "linux"))]
fn permission_granted() -> bool {
    false
}

/// The operand of `ldtilecfg`: all eight registers have 16 rows of 64 bytes.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl Kernel for AmxKernel {
    type Input = bf16;
    type Packed = u32;
    type Sum = f32;

    const DEPTH_PER_UNIT: usize = 2;
    const DEPTH_STEP: usize = 2 * PAIRS;

    fn tile(self) -> Tile {
        Tile { rows: TILE, cols: TILE }
    }

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        // SAFETY: `self` proves that the instructions may be used. Neither the compiler nor a
        // library uses tile registers.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly)) };

        let result = pulp::Simd::vectorize(self.vectors, Closure(f));

        // SAFETY: as above. Released tiles need not be saved on a context switch.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
        result
    }

    #[inline(always)]
    fn unpacked(_: MatrixRef<'_, bf16>) -> Option<Rows<'_, u32>> {
        None
    }

    #[inline(always)]
    fn pack_a(self, rows: MatrixRef<'_, bf16>, panels: &mut [u32], stride: usize) -> Order {
        let units = rows.cols().next_multiple_of(Self::DEPTH_STEP) / Self::DEPTH_PER_UNIT;
        let firsts = (0..rows.rows()).step_by(TILE);
        for (first, panel) in firsts.zip(panels.chunks_mut(stride)) {
            let live = TILE.min(rows.rows() - first);
            let rows = rows.part([first, 0], [live, rows.cols()]);
            pack_by_lane(rows, TILE, &mut panel[..TILE * units]);
        }
        Order::Rows { stride: units }
    }

    #[inline(always)]
    fn pack_b(self, cols: MatrixRef<'_, bf16>, panel: &mut [u32]) {
        pack_by_depth(cols, TILE, panel);
    }

    #[inline(always)]
    fn multiply(self, a: Rows<'_, u32>, b: &[u32], live: Tile, start: Start, sums: &mut [f32]) {
        let a = a.units;
        let steps = a.len() / (TILE * PAIRS);
        assert!(a.len() == b.len() && steps > 0 && sums.len() == TILE * TILE);

        // SAFETY: `self` proves that the instructions may be used, and the caller runs this within
        // `vectorize`, which configured the tiles; panels and sums have the lengths that are
        // accessed.
        unsafe { multiply_panels(steps, a, b, live.rows > TILE / 2, start, sums) };
    }

    #[inline(always)]
    fn multiply_row(
        self,
        _: MatrixRef<'_, bf16>,
        _: MatrixRef<'_, bf16>,
        _: &mut [f32],
    ) -> Option<()> {
        None
    }
}

/// One step reads 2048 bytes of each panel:
/// - A: two groups of 16 lanes of 64 bytes, one register each.
/// - B: 16 rows of 128 bytes. The first 64 bytes of each row form one register, the last 64 the
///   other.
///
/// tmm0 to tmm3 hold the quadrants of the accumulator tile: upper left, upper right, lower left,
/// lower right. Rows of the tile are 128 bytes apart, and its lower half starts at byte 2048. The
/// lower half is skipped if at most 16 rows are used.
///
/// # Safety
/// Tiles must be configured, `a` and `b` must hold `steps` x 2048 bytes, and `sums` 4096.
#[inline(always)]
unsafe fn multiply_panels(
    steps: usize,
    a: &[u32],
    b: &[u32],
    with_lower_half: bool,
    start: Start,
    sums: &mut [f32],
) {
    let resume = start == Start::Resume;

    // SAFETY: accesses only the bytes that the caller guarantees, and lists all changed registers.
    unsafe {
        asm!(
            "test {resume}, {resume}",
            "jnz 2f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 3f",

            "2:",
            "tileloadd tmm0, [{sums} + {apart_128}]",
            "tileloadd tmm1, [{sums} + {apart_128} + 64]",
            "tileloadd tmm2, [{sums} + {apart_128} + 2048]",
            "tileloadd tmm3, [{sums} + {apart_128} + 2112]",

            "3:",
            "tileloadd tmm6, [{b} + {apart_128}]",
            "tileloadd tmm4, [{a} + {apart_64}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {apart_128} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "test {lower}, {lower}",
            "jz 4f",
            "tileloadd tmm5, [{a} + {apart_64} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "4:",
            "add {a}, 2048",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 3b",

            "tilestored [{sums} + {apart_128}], tmm0",
            "tilestored [{sums} + {apart_128} + 64], tmm1",
            "tilestored [{sums} + {apart_128} + 2048], tmm2",
            "tilestored [{sums} + {apart_128} + 2112], tmm3",

            a = inout(reg) a.as_ptr() => _,
            b = inout(reg) b.as_ptr() => _,
            steps = inout(reg) steps => _,
            sums = in(reg) sums.as_mut_ptr(),
            lower = in(reg) usize::from(with_lower_half),
            resume = in(reg) usize::from(resume),
            apart_64 = in(reg) 64_usize,
            apart_128 = in(reg) 128_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
