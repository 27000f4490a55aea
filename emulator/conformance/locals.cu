// Local arrays with dynamic indices, which cannot be kept in registers.

// Insertion sort of 16 keys per thread.
extern "C" __global__ void insertion_sort(const float *in, float *out) {
    float keys[16];
    size_t base = 16 * (size_t)(blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = 0; i < 16; ++i) {
        keys[i] = in[base + i];
    }
    for (int i = 1; i < 16; ++i) {
        float key = keys[i];
        int j = i;
        while (j > 0 && keys[j - 1] > key) {
            keys[j] = keys[j - 1];
            --j;
        }
        keys[j] = key;
    }
    for (int i = 0; i < 16; ++i) {
        out[base + i] = keys[i];
    }
}

// A stack machine: opcodes 0 push the next word, 1 add, 2 multiply, 3 duplicate, 4 swap, 5
// subtract, 6 negate, 7 halt.
extern "C" __global__ void stack_machine(const int *programs, int length, int *out) {
    int stack[32], top = 0;
    const int *at = programs + threadIdx.x * length;
    for (bool running = true; running;) {
        switch (*at++) {
        case 0:
            stack[top++] = *at++;
            break;
        case 1:
            --top;
            stack[top - 1] += stack[top];
            break;
        case 2:
            --top;
            stack[top - 1] *= stack[top];
            break;
        case 3:
            stack[top] = stack[top - 1];
            ++top;
            break;
        case 4: {
            int kept = stack[top - 1];
            stack[top - 1] = stack[top - 2];
            stack[top - 2] = kept;
            break;
        }
        case 5:
            --top;
            stack[top - 1] -= stack[top];
            break;
        case 6:
            stack[top - 1] = -stack[top - 1];
            break;
        default:
            running = false;
        }
    }
    out[threadIdx.x] = stack[top - 1];
}

// Local bytes, read back as words.
extern "C" __global__ void bytes_as_words(const unsigned char *in, unsigned long long *out,
                                          int turn) {
    __align__(8) unsigned char bytes[64];
    for (int i = 0; i < 64; ++i) {
        bytes[(i * 5 + turn) % 64] = in[i] ^ threadIdx.x;
    }
    const unsigned long long *words = reinterpret_cast<const unsigned long long *>(bytes);
    unsigned long long sum = 0;
    for (int i = 0; i < 8; ++i) {
        sum = sum * 31 + words[(i + threadIdx.x) % 8];
    }
    out[threadIdx.x] = sum;
}
