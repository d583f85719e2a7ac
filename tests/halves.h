// f16 and bf16 by their definition, one number at a time and with nothing but powers of two and comparisons: what the
// conversions of the library are tested against.
#ifndef HALVES_H
#define HALVES_H
#include "nttrain.h"
#include <math.h>
#include <stdlib.h>

static int half_mantissa(nt_dtype dtype) { return dtype == NT_F16 ? 10 : 7; }
static int half_bias(nt_dtype dtype) { return dtype == NT_F16 ? 15 : 127; }

static double half_value(nt_dtype dtype, uint16_t bits) {
    int m = half_mantissa(dtype), exponent = (bits & 0x7fff) >> m, fraction = bits & ((1 << m) - 1), bias = half_bias(dtype);
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 2 * bias + 1) return fraction ? (double)NAN : sign * HUGE_VAL;
    return sign * (exponent ? ldexp((1 << m) + fraction, exponent - bias - m) : ldexp(fraction, 1 - bias - m));
}

// To nearest, ties to even: x lies among multiples of a power of two, which doubles hold exactly.
static uint16_t half_bits(nt_dtype dtype, double x) {
    int m = half_mantissa(dtype), bias = half_bias(dtype), e;
    unsigned sign = signbit(x) ? 0x8000u : 0, infinite = (unsigned)(2 * bias + 1) << m;
    x = fabs(x);
    if (x != x) return (uint16_t)(sign | infinite | 1u << (m - 1));
    if (x == HUGE_VAL) return (uint16_t)(sign | infinite);
    if (x == 0) return (uint16_t)sign;
    frexp(x, &e); // x = f 2^e with f in [1/2, 1)
    if (e < 2 - bias) e = 2 - bias;
    double steps = ldexp(x, m + 1 - e), low = floor(steps), rest = steps - low;
    if (rest > 0.5 || (rest == 0.5 && fmod(low, 2) == 1)) low += 1;
    double value = ldexp(low, e - m - 1);
    if (value >= ldexp(1, bias + 1)) return (uint16_t)(sign | infinite);
    if (value < ldexp(1, 1 - bias)) return (uint16_t)(sign | (unsigned)low);
    frexp(value, &e);
    return (uint16_t)(sign | (unsigned)(e - 1 + bias) << m | ((unsigned)ldexp(value, m + 1 - e) & ((1u << m) - 1)));
}

static int half_is_nan(nt_dtype dtype, uint16_t bits) { return (bits & 0x7fffu) > (unsigned)(2 * half_bias(dtype) + 1) << half_mantissa(dtype); }
// How many numbers of the dtype it is from one to the other.
static inline int half_steps(nt_dtype dtype, double a, double b) {
    int place[2];
    for (int k = 0; k < 2; k++) {
        uint16_t bits = half_bits(dtype, k ? b : a);
        place[k] = bits & 0x8000 ? -(bits & 0x7fff) : bits;
    }
    return abs(place[0] - place[1]);
}
// Any NaN is as good as another.
static int half_same(nt_dtype dtype, uint16_t a, uint16_t b) { return a == b || (half_is_nan(dtype, a) && half_is_nan(dtype, b)); }
#endif
