// Reductions of the simulated NCCL: rank order, 16-bit floats in f32.
#include "tests/simcuda/nccl.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {
// How a type is computed in: wider than the type for 16-bit floats only.
template <class T> struct computed {
    typedef T type;
    static T load(T value) { return value; }
    static T store(T value) { return value; }
};
template <> struct computed<__half> {
    typedef float type;
    static float load(__half value) { return __half2float(value); }
    static __half store(float value) { return __float2half_rn(value); }
};
template <> struct computed<__nv_bfloat16> {
    typedef float type;
    static float load(__nv_bfloat16 value) { return __bfloat162float(value); }
    static __nv_bfloat16 store(float value) { return __float2bfloat16_rn(value); }
};

template <class T> struct is_floating {
    static const bool value = false;
};
template <> struct is_floating<float> {
    static const bool value = true;
};
template <> struct is_floating<double> {
    static const bool value = true;
};
template <> struct is_floating<__half> {
    static const bool value = true;
};
template <> struct is_floating<__nv_bfloat16> {
    static const bool value = true;
};

// Signed integers wrap.
template <class C> C add(C a, C b)
{
    return a + b;
}
template <> int32_t add(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}
template <> int64_t add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
template <class C> C multiply(C a, C b)
{
    return (C)(a * b);
}
template <> int32_t multiply(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a * (uint32_t)b);
}
template <> int64_t multiply(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

template <class C> C combine(int op, C a, C b)
{
    switch (op) {
    case ncclProd:
        return multiply(a, b);
    case ncclMax:
        return a < b ? b : a;
    case ncclMin:
        return b < a ? b : a;
    default:
        return add(a, b);
    }
}

template <class T> void reduce(int op, void *out, const char *const *vectors, int n, size_t count)
{
    typedef typename computed<T>::type C;
    const bool scaled = op == ncclAvg && is_floating<T>::value, divided = op == ncclAvg && !scaled;
    const C scale = scaled ? computed<T>::load(computed<T>::store((C)(1.0 / n))) : (C)1;
    for (size_t i = 0; i < count; i++) {
        C value = computed<T>::load(((const T *)vectors[0])[i]);
        if (scaled)
            value = multiply(value, scale);
        for (int r = 1; r < n; r++) {
            C next = computed<T>::load(((const T *)vectors[r])[i]);
            value = combine<C>(op, value, scaled ? multiply(next, scale) : next);
        }
        if (divided)
            value = (C)(value / (C)n);
        ((T *)out)[i] = computed<T>::store(value);
    }
}
} // namespace

void sim_nccl_reduce(int type, int op, void *out, const char *const *vectors, int n, size_t count)
{
    switch (type) {
    case ncclInt8:
        return reduce<int8_t>(op, out, vectors, n, count);
    case ncclUint8:
        return reduce<uint8_t>(op, out, vectors, n, count);
    case ncclInt32:
        return reduce<int32_t>(op, out, vectors, n, count);
    case ncclUint32:
        return reduce<uint32_t>(op, out, vectors, n, count);
    case ncclInt64:
        return reduce<int64_t>(op, out, vectors, n, count);
    case ncclUint64:
        return reduce<uint64_t>(op, out, vectors, n, count);
    case ncclFloat16:
        return reduce<__half>(op, out, vectors, n, count);
    case ncclFloat32:
        return reduce<float>(op, out, vectors, n, count);
    case ncclFloat64:
        return reduce<double>(op, out, vectors, n, count);
    case ncclBfloat16:
        return reduce<__nv_bfloat16>(op, out, vectors, n, count);
    }
}
