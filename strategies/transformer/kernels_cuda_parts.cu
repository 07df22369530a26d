// Partial results of attention joined by their log-sum-exp, and blocks of numbers moved from one arrangement
// of rows to another. Each value is read and written once, in accesses of 16 bytes where pointers, widths and
// strides are multiples of them.
#include "strategies/transformer/kernels_cuda_each.cuh"

namespace {

// ---- merge

template <typename T, int N> struct merge_pack {
    ptb_pack<T, N> part;
    ptb_pack<float, N> out;
};

// Element i of out is in row i / (heads * head_width) of the batch; a pack lies in one head. The pack that
// has a head's first column writes its lse to `joined`, since others still read a.lse.
template <typename T, bool FIRST> struct merging {
    ptb_merge a;
    __device__ size_t lse_at(size_t i) const
    {
        size_t head = i / a.head_width, h = head % a.heads, row = head / a.heads;
        return (row / a.length * a.heads + h) * a.length + row % a.length;
    }
    template <int N> __device__ merge_pack<T, N> load(size_t i) const
    {
        merge_pack<T, N> p;
        p.part = ptb_load_pack<N>((const T *)a.part + i);
        if (!FIRST)
            p.out = ptb_load_pack<N>(a.out + i);
        return p;
    }
    template <int N> __device__ void finish(size_t i, const merge_pack<T, N> &p) const
    {
        size_t at = lse_at(i);
        float before = FIRST ? -INFINITY : a.lse[at], top = fmaxf(before, a.part_lse[at]), x[N];
        bool nothing = top == -INFINITY;
        float so_far = nothing ? 0 : expf(before - top), part = nothing ? 0 : expf(a.part_lse[at] - top);
        float inverse = nothing ? 0 : 1 / (so_far + part);
        so_far *= inverse, part *= inverse;
#pragma unroll
        for (int e = 0; e < N; e++) { // what has no weight may be anything
            x[e] = so_far > 0 ? so_far * p.out.at[e] : 0;
            x[e] += part > 0 ? part * ptb_to_f32(p.part.at[e]) : 0;
        }
        ptb_store<N>(a.out + i, x);
        if (a.rounded)
            ptb_store<N>((T *)a.rounded + i, x);
    }
};

// After the values: their weights are made from the lse of before.
template <bool FIRST> struct joining {
    float *lse;        /* [count] */
    const float *part; /* [count] */
    template <int N> __device__ ptb_pack<float, N> load(size_t i) const { return ptb_load_pack<N>(part + i); }
    template <int N> __device__ void finish(size_t i, const ptb_pack<float, N> &p) const
    {
#pragma unroll
        for (int e = 0; e < N; e++) {
            float so_far = FIRST ? -INFINITY : lse[i + e], top = fmaxf(so_far, p.at[e]);
            if (FIRST || top == -INFINITY)
                lse[i + e] = p.at[e];
            else
                lse[i + e] = top + logf(expf(so_far - top) + expf(p.at[e] - top));
        }
    }
};

template <typename T, bool FIRST> int launch_merge(cudaStream_t stream, const ptb_merge *a)
{
    constexpr int N = ptb_width<T>;
    size_t rows = a->batch * a->length * a->heads;
    bool vector = ptb_aligned(16, a->out, a->rounded, a->part) && a->head_width % N == 0;
    int error = ptb_each_aligned<N>(stream, merging<T, FIRST>{*a}, rows * a->head_width, vector);
    return error ? error : ptb_each<1>(stream, joining<FIRST>{a->lse, a->part_lse}, rows);
}

// ---- permute

template <typename TO, typename FROM, int N> struct permute_pack {
    ptb_pack<FROM, N> in;
    ptb_pack<TO, N> out;
};

template <typename TO, typename FROM, bool ADD> struct permutation {
    ptb_permute a;
    __device__ int64_t place(const int64_t (&stride)[3], size_t i) const
    {
        size_t c = i % a.width, block = i / a.width;
        size_t k = block % a.count[2], j = block / a.count[2] % a.count[1],
               first = block / a.count[2] / a.count[1];
        return (int64_t)first * stride[0] + (int64_t)j * stride[1] + (int64_t)k * stride[2] + (int64_t)c;
    }
    template <int N> __device__ permute_pack<TO, FROM, N> load(size_t i) const
    {
        permute_pack<TO, FROM, N> p;
        p.in = ptb_load_pack<N>((const FROM *)a.in + place(a.in_stride, i));
        if (ADD)
            p.out = ptb_load_pack<N>((const TO *)a.out + place(a.out_stride, i));
        return p;
    }
    template <int N> __device__ void finish(size_t i, const permute_pack<TO, FROM, N> &p) const
    {
        TO *to = (TO *)a.out + place(a.out_stride, i);
        float x[N];
#pragma unroll
        for (int e = 0; e < N; e++)
            x[e] = ptb_to_f32(p.in.at[e]) + (ADD ? ptb_to_f32(p.out.at[e]) : 0);
        ptb_store<N>(to, x);
    }
};

// Bits of one size, whatever they mean.
template <typename W> struct moving {
    permutation<float, float, false> where;
    template <int N> __device__ ptb_pack<W, N> load(size_t i) const
    {
        return ptb_load_pack<N>((const W *)where.a.in + where.place(where.a.in_stride, i));
    }
    template <int N> __device__ void finish(size_t i, const ptb_pack<W, N> &p) const
    {
        ptb_store_pack<N>((W *)where.a.out + where.place(where.a.out_stride, i), p);
    }
};

// Whether packs of n elements stay within blocks and are aligned on both sides.
bool permute_aligned(const ptb_permute *a, int64_t n)
{
    bool aligned = ptb_aligned(16, a->out, a->in) && a->width % (size_t)n == 0;
    for (int d = 0; d < 3; d++)
        aligned = aligned && a->out_stride[d] % n == 0 && a->in_stride[d] % n == 0;
    return aligned;
}

template <typename W> int launch_moving(cudaStream_t stream, const ptb_permute *a, size_t count)
{
    constexpr int N = ptb_width<W>;
    return ptb_each_aligned<N>(stream, moving<W>{{*a}}, count, permute_aligned(a, N));
}

template <typename TO, typename FROM>
int launch_permutation(cudaStream_t stream, const ptb_permute *a, size_t count)
{
    constexpr int N = ptb_width<TO> < ptb_width<FROM> ? ptb_width<TO> : ptb_width<FROM>;
    bool aligned = permute_aligned(a, N);
    if (a->accumulate)
        return ptb_each_aligned<N>(stream, permutation<TO, FROM, true>{*a}, count, aligned);
    return ptb_each_aligned<N>(stream, permutation<TO, FROM, false>{*a}, count, aligned);
}

} // namespace

extern "C" int ptb_cuda_launch_merge(cudaStream_t stream, const ptb_merge *a)
{
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        return a->first ? launch_merge<T, true>(stream, a) : launch_merge<T, false>(stream, a);
    });
}

extern "C" int ptb_cuda_launch_permute(cudaStream_t stream, const ptb_permute *a)
{
    size_t count = a->count[0] * a->count[1] * a->count[2] * a->width;
    if (a->out_type == a->in_type && !a->accumulate)
        return ptb_dtype_size(a->in_type) == 4 ? launch_moving<unsigned>(stream, a, count)
                                               : launch_moving<unsigned short>(stream, a, count);
    return ptb_for_type(a->out_type, [&](auto out_type) -> int {
        using TO = decltype(out_type);
        return ptb_for_type(a->in_type, [&](auto in_type) -> int {
            return launch_permutation<TO, decltype(in_type)>(stream, a, count);
        });
    });
}
