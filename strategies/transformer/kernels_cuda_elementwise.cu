// Elementwise kernels of the back-end `cuda`: activations and their gradients, sums, dropout, conversions.
// Each value is read and written once, in accesses of 16 bytes where pointers and widths are multiples of
// them.
#include "strategies/transformer/dropout.h"
#include "strategies/transformer/kernels_cuda_each.cuh"

namespace {

template <typename T, int N> using pack = ptb_pack<T, N>;

template <typename T, int N> struct two_packs {
    pack<T, N> a, b;
};
template <typename T, int N> struct three_packs {
    pack<T, N> a, b, c;
};

// out[i] = f(in[i]), as numbers
template <typename T, int N, typename G> __device__ __forceinline__ pack<T, N> map(const G &g)
{
    pack<T, N> out;
#pragma unroll
    for (int e = 0; e < N; e++)
        out.at[e] = ptb_from_f32<T>(g(e));
    return out;
}

// 1 / (1 + 2^x)
__device__ __forceinline__ float gate_of(float x)
{
    return ptb_fast_inverse(1 + ptb_fast_exp2(x));
}

// 1 / (1 + exp(-x))
__device__ __forceinline__ float sigmoid(float x)
{
    return gate_of(x * -1.44269504f);
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3); constants times log2(e)
__device__ __forceinline__ float gelu_gate(float x)
{
    return gate_of(x * (-2.30220819f - 0.102943240f * x * x));
}

template <typename T> struct gelu {
    T *out;      /* [count] */
    const T *in; /* [count] */
    template <int N> __device__ pack<T, N> load(size_t i) const { return ptb_load_pack<N>(in + i); }
    template <int N> __device__ void finish(size_t i, const pack<T, N> &p) const
    {
        ptb_store_pack<N>(out + i, map<T, N>([&](int e) {
                              float x = ptb_to_f32(p.at[e]);
                              return x * gelu_gate(x);
                          }));
    }
};

template <typename T> struct gelu_gradient {
    T *d_in;             /* [count] */
    const T *d_out, *in; /* [count] */
    template <int N> __device__ two_packs<T, N> load(size_t i) const
    {
        return {ptb_load_pack<N>(d_out + i), ptb_load_pack<N>(in + i)};
    }
    template <int N> __device__ void finish(size_t i, const two_packs<T, N> &p) const
    {
        ptb_store_pack<N>(d_in + i, map<T, N>([&](int e) {
                              float x = ptb_to_f32(p.b.at[e]), gate = gelu_gate(x);
                              float slope = x * (1.59576912f + 0.2140644488f * x * x); // x * d(2u)/dx
                              return ptb_to_f32(p.a.at[e]) * (gate + slope * gate * (1 - gate));
                          }));
    }
};

// Element i of out has its gate at gate_at(i) of in, and its up `width` behind it.
template <typename T> struct swiglu {
    T *out;      /* [rows, width] */
    const T *in; /* [rows, 2 width] */
    size_t width;
    __device__ size_t gate_at(size_t i) const { return i + i / width * width; }
    template <int N> __device__ two_packs<T, N> load(size_t i) const
    {
        const T *gate = in + gate_at(i);
        return {ptb_load_pack<N>(gate), ptb_load_pack<N>(gate + width)};
    }
    template <int N> __device__ void finish(size_t i, const two_packs<T, N> &p) const
    {
        ptb_store_pack<N>(out + i, map<T, N>([&](int e) {
                              float gate = ptb_to_f32(p.a.at[e]);
                              return gate * sigmoid(gate) * ptb_to_f32(p.b.at[e]);
                          }));
    }
};

template <typename T> struct swiglu_gradient {
    T *d_in;        /* [rows, 2 width] */
    const T *d_out; /* [rows, width] */
    const T *in;    /* [rows, 2 width] */
    size_t width;
    __device__ size_t gate_at(size_t i) const { return i + i / width * width; }
    template <int N> __device__ three_packs<T, N> load(size_t i) const
    {
        const T *gate = in + gate_at(i);
        return {ptb_load_pack<N>(gate), ptb_load_pack<N>(gate + width), ptb_load_pack<N>(d_out + i)};
    }
    template <int N> __device__ void finish(size_t i, const three_packs<T, N> &p) const
    {
        float d_gate[N], d_up[N];
#pragma unroll
        for (int e = 0; e < N; e++) {
            float gate = ptb_to_f32(p.a.at[e]), up = ptb_to_f32(p.b.at[e]), d = ptb_to_f32(p.c.at[e]);
            float s = sigmoid(gate), silu = gate * s;
            d_gate[e] = d * up * (s + silu * (1 - s));
            d_up[e] = d * silu;
        }
        T *to = d_in + gate_at(i);
        ptb_store(to, d_gate);
        ptb_store(to + width, d_up);
    }
};

// F of the elements before row *rows alone: what is behind them is neither read nor written.
template <typename F> struct first_rows {
    F f;
    const int32_t *rows; /* [1] */
    size_t width;
    template <int N> __device__ auto load(size_t i) const
    {
        decltype(f.template load<N>(i)) packs;
        if (i < (size_t)*rows * width)
            packs = f.template load<N>(i);
        return packs;
    }
    template <int N, typename P> __device__ void finish(size_t i, const P &packs) const
    {
        if (i < (size_t)*rows * width)
            f.template finish<N>(i, packs);
    }
};

template <int N, typename F>
int each_row(cudaStream_t stream, const F &f, size_t rows, size_t width, const int32_t *used, bool vector)
{
    if (!used)
        return ptb_each_aligned<N>(stream, f, rows * width, vector);
    return ptb_each_aligned<N>(stream, first_rows<F>{f, used, width}, rows * width, vector);
}

template <typename T> struct sum {
    T *out;         /* [count] */
    const T *a, *b; /* [count] */
    template <int N> __device__ two_packs<T, N> load(size_t i) const
    {
        return {ptb_load_pack<N>(a + i), ptb_load_pack<N>(b + i)};
    }
    template <int N> __device__ void finish(size_t i, const two_packs<T, N> &p) const
    {
        ptb_store_pack<N>(out + i,
                          map<T, N>([&](int e) { return ptb_to_f32(p.a.at[e]) + ptb_to_f32(p.b.at[e]); }));
    }
};

template <typename T, bool residual> struct dropout {
    ptb_dropout a; // pointers [rows, width]
    uint32_t threshold;
    float scale;
    template <int N> __device__ two_packs<T, N> load(size_t i) const
    {
        two_packs<T, N> p;
        p.a = ptb_load_pack<N>((const T *)a.in + i);
        if constexpr (residual)
            p.b = ptb_load_pack<N>((const T *)a.residual + i);
        return p;
    }
    template <int N> __device__ void finish(size_t i, const two_packs<T, N> &p) const
    {
        size_t row = i / a.width, sequence = row / a.length;
        uint64_t position = (uint64_t)a.offset + (row - sequence * a.length);
        uint64_t key = ptb_dropout_key(a.seed, (a.sequence + sequence) * a.total_length + position);
        uint32_t column = (uint32_t)(i - row * a.width);
        ptb_store_pack<N>((T *)a.out + i, map<T, N>([&](int e) {
                              bool kept = ptb_dropout_draw(key, column + (uint32_t)e) >= threshold;
                              float x = kept ? ptb_to_f32(p.a.at[e]) * scale : 0;
                              if constexpr (residual)
                                  x += ptb_to_f32(p.b.at[e]);
                              return x;
                          }));
    }
};

template <typename TO, typename FROM> struct conversion {
    TO *out;        /* [count] */
    const FROM *in; /* [count] */
    template <int N> __device__ pack<FROM, N> load(size_t i) const { return ptb_load_pack<N>(in + i); }
    template <int N> __device__ void finish(size_t i, const pack<FROM, N> &p) const
    {
        ptb_store_pack<N>(out + i, map<TO, N>([&](int e) { return ptb_to_f32(p.at[e]); }));
    }
};

template <typename T> int launch_dropout(cudaStream_t stream, const ptb_dropout *a)
{
    constexpr int N = ptb_width<T>;
    bool vector = a->width % N == 0 && ptb_aligned(16, a->out, a->in, a->residual);
    uint32_t threshold = ptb_dropout_threshold(a->rate);
    float scale = ptb_dropout_scale(a->rate);
    size_t count = a->rows * a->width;
    if (a->residual)
        return ptb_each_aligned<N>(stream, dropout<T, true>{*a, threshold, scale}, count, vector);
    return ptb_each_aligned<N>(stream, dropout<T, false>{*a, threshold, scale}, count, vector);
}

} // namespace

extern "C" int ptb_cuda_launch_activation(cudaStream_t stream, const ptb_activation *a)
{
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        constexpr int N = ptb_width<T>;
        bool aligned = ptb_aligned(16, a->out, a->in), vector = aligned && a->width % N == 0;
        T *out = (T *)a->out;
        const T *in = (const T *)a->in;
        if (a->kind == PTB_GELU)
            return each_row<N>(stream, gelu<T>{out, in}, a->rows, a->width, a->used,
                               a->used ? vector : aligned);
        return each_row<N>(stream, swiglu<T>{out, in, a->width}, a->rows, a->width, a->used, vector);
    });
}

extern "C" int ptb_cuda_launch_activation_gradient(cudaStream_t stream, const ptb_activation_gradient *a)
{
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        constexpr int N = ptb_width<T>;
        bool aligned = ptb_aligned(16, a->d_in, a->d_out, a->in), vector = aligned && a->width % N == 0;
        T *d_in = (T *)a->d_in;
        const T *d_out = (const T *)a->d_out, *in = (const T *)a->in;
        if (a->kind == PTB_GELU)
            return each_row<N>(stream, gelu_gradient<T>{d_in, d_out, in}, a->rows, a->width, a->used,
                               a->used ? vector : aligned);
        return each_row<N>(stream, swiglu_gradient<T>{d_in, d_out, in, a->width}, a->rows, a->width, a->used,
                           vector);
    });
}

extern "C" int ptb_cuda_launch_add(cudaStream_t stream, const ptb_add *a)
{
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        return ptb_each_aligned<ptb_width<T>>(stream, sum<T>{(T *)a->out, (const T *)a->a, (const T *)a->b},
                                              a->count, ptb_aligned(16, a->out, a->a, a->b));
    });
}

extern "C" int ptb_cuda_launch_dropout(cudaStream_t stream, const ptb_dropout *a)
{
    return ptb_for_type(a->type, [&](auto type) { return launch_dropout<decltype(type)>(stream, a); });
}

// As many elements at a time as 16 bytes hold of the larger type.
extern "C" int ptb_cuda_launch_convert(cudaStream_t stream, const ptb_convert *a)
{
    return ptb_for_type(a->out_type, [&](auto out_type) -> int {
        using TO = decltype(out_type);
        return ptb_for_type(a->in_type, [&](auto in_type) -> int {
            using FROM = decltype(in_type);
            constexpr int N = ptb_width<TO> < ptb_width<FROM> ? ptb_width<TO> : ptb_width<FROM>;
            return ptb_each_aligned<N>(stream, conversion<TO, FROM>{(TO *)a->out, (const FROM *)a->in},
                                       a->count, ptb_aligned(16, a->out, a->in));
        });
    });
}
