// Conversions between char, short, bool, int, long, float and double, in C++ and by intrinsics with
// explicit rounding.

// From f32 in all rounding modes. `out` has 16 words per element.
extern "C" __global__ void from_float(const float *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float x = in[i];
    int *to = out + 16 * i;
    to[0] = (int)x;
    to[1] = __float2int_rn(x);
    to[2] = __float2int_rd(x);
    to[3] = __float2int_ru(x);
    to[4] = (int)(unsigned)x;
    to[5] = (int)__float2uint_rn(x);
    to[6] = (signed char)(int)x;
    to[7] = (short)(int)x;
    to[8] = x != 0;
    to[9] = __float_as_int(floorf(x));
    to[10] = __float_as_int(ceilf(x));
    to[11] = __float_as_int(truncf(x));
    to[12] = __float_as_int(rintf(x));
    to[13] = __float_as_int(roundf(x));
    to[14] = __float_as_int(__saturatef(x));
    to[15] =
        signbit(x) != 0 | (isnan(x) != 0) << 1 | (isinf(x) != 0) << 2 | (isfinite(x) != 0) << 3;
}

// 64 bits: from f32, f64 and back. `out` has 10 words per element.
extern "C" __global__ void to_and_from_long(const double *in, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    double x = in[i];
    float narrow = (float)x;
    long long whole = (long long)x;
    long long *to = out + 10 * i;
    to[0] = whole;
    to[1] = (long long)(unsigned long long)x;
    to[2] = __double2ll_rn(x);
    to[3] = __float2ll_ru(narrow);
    to[4] = __float_as_int((float)whole);
    to[5] = __double_as_longlong((double)(whole * 3));
    to[6] = __float_as_int(__ll2float_rd(whole * 5));
    to[7] = __float_as_int((float)(unsigned long long)whole);
    to[8] = __double2int_rn(x);
    to[9] = __float_as_int(__double2float_rz(x));
}

// Narrow integers with their sign and width. `out` has 12 words per element.
extern "C" __global__ void narrow(const signed char *bytes, const unsigned short *halves, int *out,
                                  int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    signed char b = bytes[i];
    unsigned short h = halves[i];
    int *to = out + 12 * i;
    to[0] = b;
    to[1] = (unsigned char)b;
    to[2] = (short)h;
    to[3] = (signed char)(b * 3);
    to[4] = (unsigned short)(h + 0x8001u);
    to[5] = (short)(h << 3) >> 2;
    to[6] = b ? h : -h;
    to[7] = __float_as_int((float)b);
    to[8] = __float_as_int((float)h * 0.1f);
    to[9] = (bool)(h & 0x100) + (bool)b * 2;
    to[10] = (short)h / 7;
    to[11] = (unsigned char)(h >> 4) % 11;
}

// Structures with holes, of bytes and booleans, read and written in place.
struct Packed {
    char letter;
    bool flag;
    short number;
    unsigned char tail[3];
};

extern "C" __global__ void structures(Packed *items, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        Packed item = items[i];
        item.letter = item.letter >= 'a' && item.letter <= 'z' ? item.letter - 32 : item.letter;
        item.flag = !item.flag;
        item.number = (short)(item.number + (item.flag ? item.tail[0] : -item.tail[1]));
        item.tail[2] ^= 0x5a;
        items[i] = item;
    }
}

// A structure as a parameter, with a dynamic index into its array.
struct Settings {
    double scale;
    int shifts[5];
    char mode;
    const int *in;
    int *out;
};

extern "C" __global__ void by_value(Settings settings, unsigned char salt) {
    int i = threadIdx.x;
    int shifted = settings.in[i] << settings.shifts[i % 5];
    settings.out[i] = settings.mode == 'x' ? (int)(shifted * settings.scale) + salt : shifted;
}
