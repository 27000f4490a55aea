// Integer arithmetic: one row of results per input pair.

// Counting and moving bits. `out` has 16 values per element.
extern "C" __global__ void bits(const unsigned *a, const unsigned *b, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    unsigned x = a[i], y = b[i];
    unsigned long long wide = (unsigned long long)x << 32 | y;
    unsigned *to = out + 16 * i;
    to[0] = __popc(x);
    to[1] = __clz(x);
    to[2] = __brev(x);
    to[3] = __ffs(x);
    to[4] = __byte_perm(x, y, 0x7531);
    to[5] = __byte_perm(x, y, y & 0xffff);
    to[6] = __funnelshift_l(x, y, y);
    to[7] = __funnelshift_r(x, y, x);
    to[8] = __funnelshift_lc(x, y, 35);
    to[9] = __popcll(wide);
    to[10] = __clzll(wide);
    to[11] = __ffsll(wide);
    to[12] = (unsigned)(__brevll(wide) >> 13);
    to[13] = (x >> (y & 31)) & ((1u << (x & 15)) - 1);
    to[14] = (x & y) | (~x & 0x55555555u) ^ (y << 3);
    to[15] = __fns(x, y & 31, 1);
}

// Products and sums. `out` has 16 values per element.
extern "C" __global__ void products(const int *a, const int *b, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    int x = a[i], y = b[i];
    int *to = out + 16 * i;
    to[0] = __mulhi(x, y);
    to[1] = (int)__umulhi((unsigned)x, (unsigned)y);
    to[2] = __mul24(x, y);
    to[3] = __sad(x, y, 7);
    to[4] = (int)__usad(x, y, 7);
    to[5] = __hadd(x, y);
    to[6] = __rhadd(x, y);
    to[7] = __dp4a(x, y, 5);
    to[8] = (int)__dp4a((unsigned)x, (unsigned)y, 5u);
    to[9] = __dp2a_lo(x, y, 5);
    to[10] = (int)__dp2a_hi((unsigned)x, (unsigned)y, 5u);
    to[11] = x * y + i;
    to[12] = abs(x);
    to[13] = max(min(x, 1000), -1000);
    to[14] = (int)__mul64hi((long long)x * y, (long long)y << 32);
    to[15] = (int)(((long long)x * y) >> 17);
}

// Quotients and remainders of 32 and 64 bits, with variable and constant divisors. `out` has 12
// values per element. `b` is never zero.
extern "C" __global__ void quotients(const long long *a, const long long *b, long long *out,
                                     int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    long long x = a[i], y = b[i];
    unsigned long long ux = x, uy = y;
    int narrow = (int)x, by = (int)(y | 1);
    unsigned unarrow = narrow, uby = by;
    long long *to = out + 12 * i;
    to[0] = x / y;
    to[1] = x % y;
    to[2] = ux / uy;
    to[3] = ux % uy;
    to[4] = by == -1 ? 0 : narrow / by;
    to[5] = by == -1 ? 0 : narrow % by;
    to[6] = unarrow / uby;
    to[7] = unarrow % uby;
    to[8] = narrow / 7;
    to[9] = unarrow % 10;
    to[10] = x / 1000000007;
    to[11] = narrow / 8;
}

// Four bytes or two halfwords per word. `out` has 10 values per element.
extern "C" __global__ void packed(const unsigned *a, const unsigned *b, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    unsigned x = a[i], y = b[i];
    unsigned *to = out + 10 * i;
    to[0] = __vadd4(x, y);
    to[1] = __vsub4(x, y);
    to[2] = __vabsdiffu4(x, y);
    to[3] = __vmaxs4(x, y);
    to[4] = __vminu2(x, y);
    to[5] = __vavgu4(x, y);
    to[6] = __vcmpgtu4(x, y);
    to[7] = __vaddus4(x, y);
    to[8] = __vsadu4(x, y);
    to[9] = __vadd2(x, y);
}

// 128-bit integers `a` and `b`, as pairs of words. `out` has their sum, product and shifted
// difference.
extern "C" __global__ void wide(const ulonglong2 *a, const ulonglong2 *b, ulonglong2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    auto join = [](ulonglong2 v) { return (unsigned __int128)v.y << 64 | v.x; };
    auto split = [](unsigned __int128 v) {
        return make_ulonglong2((unsigned long long)v, (unsigned long long)(v >> 64));
    };
    unsigned __int128 x = join(a[i]), y = join(b[i]);
    out[3 * i] = split(x + y);
    out[3 * i + 1] = split(x * y);
    out[3 * i + 2] = split((x - y) >> (y & 127));
}

// A hand-written carry chain.
extern "C" __global__ void carries(const uint4 *a, const uint4 *b, uint4 *sum, uint4 *difference) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    uint4 x = a[i], y = b[i], s, d;
    asm("add.cc.u32 %0, %4, %8;\n\t"
        "addc.cc.u32 %1, %5, %9;\n\t"
        "addc.cc.u32 %2, %6, %10;\n\t"
        "addc.u32 %3, %7, %11;"
        : "=r"(s.x), "=r"(s.y), "=r"(s.z), "=r"(s.w)
        : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y), "r"(y.z), "r"(y.w));
    asm("sub.cc.u32 %0, %4, %8;\n\t"
        "subc.cc.u32 %1, %5, %9;\n\t"
        "subc.cc.u32 %2, %6, %10;\n\t"
        "subc.u32 %3, %7, %11;"
        : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
        : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y), "r"(y.z), "r"(y.w));
    sum[i] = s;
    difference[i] = d;
}
