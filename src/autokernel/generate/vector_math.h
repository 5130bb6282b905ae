// Scalar functions that GCC and Clang turn into vector code: no branches, no calls, no tables. Each is one section; the
// generator copies the sections that a kernel uses. Errors are in units in the last place, against correct rounding,
// over all floats. Infinities, NaN, signed zeros and subnormals come out as IEEE 754 and PyTorch have them. None relies
// on -ffast-math, and none may be compiled with it.

//: section bits
static inline float float_of_bits(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
static inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}

//: section fused
// a * b + c, in one rounding where the machine has such an instruction.
static inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

//: section simd_exp bits fused
// exp(x) = 2^n · exp(r), |r| ≤ ln 2 / 2. Adding 1.5 · 2^23 rounds n to an integer and leaves n + 254 in the low bits;
// 2^n is two factors with half of that exponent each, so that overflow and subnormals round once. What is zero anyway
// (a masked score) is multiplied by zero: processors are slow at results that underflow. ≤ 1.1 ulp.
static inline float simd_exp(float x) {
    const bool zero = x < -104.0f;
    x = zero ? -104.0f : x;
    x = x > 90.0f ? 90.0f : x;
    const float shifted = fused(x, 1.44269504f, 12583166.0f);
    const float n = shifted - 12583166.0f;
    float r = fused(n, -0.693359375f, x);
    r = fused(n, 2.12194440e-4f, r);
    float p = 1.3814555e-3f;
    p = fused(p, r, 8.3687360e-3f);
    p = fused(p, r, 4.1668390e-2f);
    p = fused(p, r, 1.6666520e-1f);
    p = fused(p, r, 0.49999993f);
    p = fused(p, r * r, r) + 1.0f;
    const uint32_t power = bits_of_float(shifted);
    const uint32_t half = power >> 1;
    return p * float_of_bits(half << 23) * (zero ? 0.0f : float_of_bits((power - half) << 23));
}

//: section simd_exp_near bits fused
// exp(x) for |x| ≤ 87, where neither overflow nor subnormals arise; NaN stays NaN. ≤ 1.1 ulp.
static inline float simd_exp_near(float x) {
    const float shifted = fused(x, 1.44269504f, 12583039.0f);
    const float n = shifted - 12583039.0f;
    float r = fused(n, -0.693359375f, x);
    r = fused(n, 2.12194440e-4f, r);
    float p = 1.3814555e-3f;
    p = fused(p, r, 8.3687360e-3f);
    p = fused(p, r, 4.1668390e-2f);
    p = fused(p, r, 1.6666520e-1f);
    p = fused(p, r, 0.49999993f);
    p = fused(p, r * r, r) + 1.0f;
    return p * float_of_bits(bits_of_float(shifted) << 23);
}

//: section simd_log bits fused
// log(m · 2^n), √½ ≤ m < √2. ≤ 1 ulp.
static inline float simd_log(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const float scaled = tiny ? x * 33554432.0f : x;
    const uint32_t bits = bits_of_float(scaled);
    const int32_t power = static_cast<int32_t>(bits - 0x3F3504F3) >> 23;
    const float n = static_cast<float>(power) - (tiny ? 25.0f : 0.0f);
    const float f = float_of_bits(bits - (static_cast<uint32_t>(power) << 23)) - 1.0f;
    float p = 0.067466436f;
    p = fused(p, f, -0.11675761f);
    p = fused(p, f, 0.11888222f);
    p = fused(p, f, -0.12405576f);
    p = fused(p, f, 0.14219543f);
    p = fused(p, f, -0.16667996f);
    p = fused(p, f, 0.20002119f);
    p = fused(p, f, -0.2500001f);
    p = fused(p, f, 0.33333313f);
    const float ff = f * f;
    float low = fused(p, ff * f, n * -2.12194440e-4f);
    low = fused(ff, -0.5f, low);
    float result = fused(n, 0.693359375f, f + low);
    result = x == INFINITY ? x : result;
    result = x == 0.0f ? -INFINITY : result;
    return x >= 0.0f ? result : NAN;
}

//: section simd_expm1 simd_exp
// A polynomial near 0, where exp(x) - 1 would cancel. ≤ 1.8 ulp.
static inline float simd_expm1(float x) {
    float p = 1.9849805e-4f;
    p = fused(p, x, 1.3996178e-3f);
    p = fused(p, x, 8.3335791e-3f);
    p = fused(p, x, 4.1665359e-2f);
    p = fused(p, x, 1.6666664e-1f);
    p = fused(p, x, 0.5f);
    const float near = fused(p, x * x, x);
    const float far = simd_exp(x) - 1.0f;
    return std::abs(x) < 0.5f ? near : far;
}

//: section simd_log1p simd_log
// log(1 + x), corrected for what 1 + x rounds away. ≤ 2 ulp.
static inline float simd_log1p(float x) {
    const float sum = 1.0f + x;
    const float lost = x - (sum - 1.0f);
    const float result = simd_log(sum) + lost / sum;
    return std::abs(x) < 5.9604645e-8f || x == INFINITY || sum == 0.0f ? (sum == 0.0f ? -INFINITY : x) : result;
}

//: section simd_tanh simd_exp_near
// An odd polynomial below 0.625, 1 - 2 / (exp(2|x|) + 1) above. ≤ 1.5 ulp.
static inline float simd_tanh(float x) {
    const float size = std::abs(x);
    const float s = x * x;
    float p = -5.7049695e-3f;
    p = fused(p, s, 2.0639070e-2f);
    p = fused(p, s, -5.3739710e-2f);
    p = fused(p, s, 0.13331442f);
    p = fused(p, s, -0.33333282f);
    const float near = fused(p, s * x, x);
    const float t = size > 10.0f ? 10.0f : size;
    const float far = 1.0f - 2.0f / (simd_exp_near(t + t) + 1.0f);
    return size < 0.625f ? near : std::copysign(far, x);
}

//: section simd_sigmoid simd_exp
// As PyTorch has it: 1 / (1 + exp(-x)). ≤ 2 ulp of that formula.
static inline float simd_sigmoid(float x) { return 1.0f / (1.0f + simd_exp(-x)); }

//: section simd_erf simd_exp_near
// An odd polynomial below 0.925, 1 - exp(p(|x|)) above. ≤ 1.5 ulp.
static inline float simd_erf(float x) {
    const float size = std::abs(x);
    const float s = x * x;
    float p = 8.3318755e-5f;
    p = fused(p, s, -8.1336293e-4f);
    p = fused(p, s, 5.2002294e-3f);
    p = fused(p, s, -2.6859073e-2f);
    p = fused(p, s, 0.1128369f);
    p = fused(p, s, -0.37612633f);
    p = fused(p, s, 0.12837917f);
    const float near = fused(p, x, x);
    const float t = size > 4.0f ? 4.0f : size;
    float q = 1.9593932e-4f;
    q = fused(q, t, -3.0432364e-3f);
    q = fused(q, t, 2.2226991e-2f);
    q = fused(q, t, -0.10393173f);
    q = fused(q, t, -0.6371821f);
    q = fused(q, t, -0.12767571f);
    q = fused(q, t, -1.9565718e-4f);
    const float far = 1.0f - simd_exp_near(q - t);
    return size < 0.925f ? near : std::copysign(far, x);
}

//: section nan_max
// The larger, or NaN if either is.
#pragma omp declare reduction(nan_max : float, double : omp_out = omp_in > omp_out || omp_in != omp_in ? omp_in : omp_out) \
    initializer(omp_priv = -INFINITY)

//: section nan_min
// The smaller, or NaN if either is.
#pragma omp declare reduction(nan_min : float, double : omp_out = omp_in < omp_out || omp_in != omp_in ? omp_in : omp_out) \
    initializer(omp_priv = INFINITY)

//: section lane_sum
// The sum of an array of accumulators, pair by pair.
template <int lanes, typename T>
static inline T lane_sum(T* values) {
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) values[lane] += values[lane + half];
    return values[0];
}

//: section lane_max
// The largest of an array of accumulators, or NaN if one is.
template <int lanes, typename T>
static inline T lane_max(T* values) {
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) {
            const T other = values[lane + half];
            values[lane] = other > values[lane] || other != other ? other : values[lane];
        }
    return values[0];
}

//: section lane_min
// The smallest of an array of accumulators, or NaN if one is.
template <int lanes, typename T>
static inline T lane_min(T* values) {
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) {
            const T other = values[lane + half];
            values[lane] = other < values[lane] || other != other ? other : values[lane];
        }
    return values[0];
}

//: section bfloat16_to_float bits
static inline float bfloat16_to_float(uint16_t half) { return float_of_bits(static_cast<uint32_t>(half) << 16); }

//: section float_to_bfloat16 bits
// Rounds to nearest, ties to even.
static inline uint16_t float_to_bfloat16(float value) {
    const uint32_t bits = bits_of_float(value);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return static_cast<uint16_t>(value == value ? rounded : 0x7FC0);
}

//: section float16_to_float bits
// Shifts the exponent by a multiplication, which also makes subnormals normal.
static inline float float16_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t rest = static_cast<uint32_t>(half & 0x7FFF) << 13;
    const float scaled = float_of_bits(rest) * 5.192296858534828e+33f;
    const uint32_t bits = rest >= 0x0F800000 ? rest | 0x7F800000 : bits_of_float(scaled);
    return float_of_bits(bits | sign);
}

//: section float_to_float16 bits
// Rounds to nearest, ties to even; subnormals by an addition that aligns their last bit.
static inline uint16_t float_to_float16(float value) {
    const uint32_t all = bits_of_float(value);
    const uint32_t sign = (all >> 16) & 0x8000;
    const uint32_t size = all & 0x7FFFFFFF;
    const float small = float_of_bits(size) + 0.5f;
    const uint32_t subnormal = bits_of_float(small) - 0x3F000000;
    const uint32_t normal = (size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13;
    const uint32_t finite = size < 0x38800000 ? subnormal : normal;
    const uint32_t large = size > 0x7F800000 ? 0x7E00 : 0x7C00;
    return static_cast<uint16_t>((size < 0x477FF000 ? finite : large) | sign);
}

//: section stream_row
// Copies a finished row to memory past the caches: it isn't read back here, so its lines need not be fetched first.
// (By builtins: including <immintrin.h> takes longer than compiling all the rest.)
static inline void stream_row(float* __restrict to, const float* __restrict from, int64_t count) {
    int64_t j = 0;
#if defined(__AVX__)
    typedef float float8 __attribute__((vector_size(32)));
    for (; j < count && (reinterpret_cast<uintptr_t>(to + j) & 31) != 0; ++j) to[j] = from[j];
    for (; j + 8 <= count; j += 8) {
        float8 eight;
        __builtin_memcpy(&eight, from + j, 32);
#if defined(__clang__)
        __builtin_nontemporal_store(eight, reinterpret_cast<float8*>(to + j));
#else
        __builtin_ia32_movntps256(to + j, eight);
#endif
    }
    __builtin_ia32_sfence();
#endif
    for (; j < count; ++j) to[j] = from[j];
}
