// Rotary positions. Angles are reduced to a quarter turn in double, so that late positions are as exact as
// early ones; the sines of a row's columns serve several of its heads.
#include "strategies/transformer/kernels_cuda.cuh"

enum { ROTARY_THREADS = 256 };

struct rotary_call {
    int64_t rows, stride, length, offset;
    const int32_t *start; /* [rows], NULL: 0 */
    int heads, half;      // half: of a head's width
    int groups;           // of N columns in half a head
    int parts;            // threads that share a row's heads
    double step;          // columns' turns at position 1 are 2^(step * column) / (2 pi)
    bool inverse;
};

// Sine and cosine of an angle given in turns.
static __device__ __forceinline__ void rotary_angle(double turns, float &sine, float &cosine)
{
    double quarters = 4 * (turns - rint(turns)); // in [-2, 2]
    double whole = rint(quarters);
    int quadrant = (int)whole;
    float x = (float)((quarters - whole) * 1.5707963267948966), square = x * x;
    // Minimax polynomials on [-pi/4, pi/4], errors 3e-9 and 6e-11.
    float s = fmaf(square, -1.9501754e-4f, 8.3320159e-3f);
    s = fmaf(s, square, -1.6666650e-1f);
    s = fmaf(s * square, x, x);
    float c = fmaf(square, 2.4372807e-5f, -1.3886531e-3f);
    c = fmaf(c, square, 4.1666613e-2f);
    c = fmaf(c, square, -0.5f);
    c = fmaf(c, square, 1);
    sine = quadrant & 1 ? c : s;
    cosine = quadrant & 1 ? s : c;
    if (quadrant & 2)
        sine = -sine;
    if ((quadrant + 1) & 2)
        cosine = -cosine;
}

// A thread turns N neighbouring columns and their partners of some heads of a row, row after row.
template <typename T, int N>
__global__ void __launch_bounds__(ROTARY_THREADS) rotary_turn(rotary_call c, T *values)
{
    PTB_DYNAMIC_SHARED(double, turns); /* [half]: at position 1 */
    for (int i = (int)threadIdx.x; i < c.half; i += ROTARY_THREADS)
        turns[i] = exp2(c.step * i) * 0.15915494309189535;
    __syncthreads();
    int64_t items = c.rows * c.parts * c.groups;
    for (int64_t item = (int64_t)blockIdx.x * ROTARY_THREADS + threadIdx.x; item < items;
         item += (int64_t)gridDim.x * ROTARY_THREADS) {
        int column = (int)(item % c.groups) * N, part = (int)(item / c.groups % c.parts);
        int64_t row = item / c.groups / c.parts;
        int64_t position = c.offset + row % c.length - (c.start ? c.start[row] : 0);
        double at = (double)(c.inverse ? -position : position);
        float sine[N], cosine[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            rotary_angle(at * turns[column + i], sine[i], cosine[i]);
        T *p = values + row * c.stride + column;
        for (int h = part; h < c.heads; h += c.parts) {
            T *low = p + (int64_t)h * 2 * c.half, *high = low + c.half;
            float x[N], y[N], turned_x[N], turned_y[N];
            ptb_load<N>(x, low);
            ptb_load<N>(y, high);
#pragma unroll
            for (int i = 0; i < N; i++) {
                turned_x[i] = x[i] * cosine[i] - y[i] * sine[i];
                turned_y[i] = y[i] * cosine[i] + x[i] * sine[i];
            }
            ptb_store<N>(low, turned_x);
            ptb_store<N>(high, turned_y);
        }
    }
}

template <typename T, int N> static int launch_rotary(cudaStream_t stream, const ptb_rotary *a)
{
    rotary_call c = {};
    c.rows = (int64_t)a->rows, c.stride = (int64_t)a->stride, c.length = (int64_t)a->length;
    c.offset = a->offset, c.start = a->start;
    c.heads = (int)a->heads, c.half = (int)(a->head_width / 2), c.groups = c.half / N;
    c.step = -log2((double)a->base) / c.half;
    c.inverse = a->inverse;
    // As few threads to a row as fill the device: each computes the row's angles.
    size_t wanted = (size_t)ptb_multiprocessors() * 2048, threads = a->rows * (size_t)c.groups;
    size_t parts = threads ? (wanted + threads - 1) / threads : 1;
    c.parts = (int)(parts < a->heads ? parts : a->heads);
    unsigned grid = ptb_grid(threads * (size_t)c.parts, ROTARY_THREADS, 8);
    return PTB_LAUNCH((rotary_turn<T, N>), dim3(grid), dim3(ROTARY_THREADS), (size_t)c.half * sizeof(double),
                      stream, c, (T *)a->values);
}

template <typename T> static int launch_type(cudaStream_t stream, const ptb_rotary *a)
{
    constexpr size_t n = ptb_width<T>;
    bool aligned = ptb_aligned(16, a->values) && a->stride % n == 0 && a->head_width / 2 % n == 0;
    return aligned ? launch_rotary<T, (int)n>(stream, a) : launch_rotary<T, 1>(stream, a);
}

extern "C" int ptb_cuda_launch_rotary(cudaStream_t stream, const ptb_rotary *args)
{
    if (!args->rows || !args->heads || args->head_width < 2)
        return cudaSuccess;
    return ptb_for_type(args->type, [&](auto t) { return launch_type<decltype(t)>(stream, args); });
}
