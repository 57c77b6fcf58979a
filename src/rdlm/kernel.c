/* What numbers.py, geometry/special.py and sampler/follow.py do in many operations of torch, in one pass each. */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* gcc makes a version for each kind of processor, and the program takes the best when it starts. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
#define EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#endif
#else
#define EACH_PROCESSOR
#endif

enum { BLOCK = 512 }; /* words whose parts stay in the nearest cache */

/* Normal numbers by key, bit for bit as numbers.py defines them; names and constants are explained there. */

static inline uint64_t word(uint64_t key, uint64_t place) {
    uint64_t z = key + (place + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline float squared_radius(int32_t high) {
    float u = ((float)high + 0.5f) * 0x1p-31f;
    int32_t bits;
    memcpy(&bits, &u, sizeof bits);
    int32_t exponent = (bits - 0x3f3504f3) >> 23;
    bits -= exponent * (1 << 23);
    float f;
    memcpy(&f, &bits, sizeof f);
    f -= 1.0f;
    float p = -0.1744469851255417f;
    p = p * f + 0.2873367965221405f;
    p = p * f + -0.2990453541278839f;
    p = p * f + 0.33124786615371704f;
    p = p * f + -0.39913666248321533f;
    p = p * f + 0.5000414848327637f;
    p = p * f + -0.6666837334632874f;
    p = p * f + 0.9999997615814209f;
    p = p * f + -2.0f;
    return p * f + (float)exponent * -1.3862943649291992f;
}

static inline void turned(float radius, int32_t low, float *restrict one, float *restrict other) {
    float t = (float)(int32_t)((uint32_t)low << 2) * 0x1p-32f, y = t * t;
    float s = ((-0.00460165785625577f * y + 0.07968003302812576f) * y + -0.6459634900093079f) * y + 1.5707963705062866f;
    float c = ((-0.02039858140051365f * y + 0.25359493494033813f) * y + -1.233696699142456f) * y + 0.9999999403953552f;
    s *= t;
    radius = low < 0 ? -radius : radius;
    int swapped = (low >> 30) & 1;
    *one = radius * (swapped ? s : c);
    *other = radius * (swapped ? c : s);
}

/* Fill each of `rows` rows of `count` numbers from its own key. */
EACH_PROCESSOR void rdlm_normals(float *out, const uint64_t *keys, int64_t rows, int64_t count) {
    int64_t words = (count + 1) / 2;
    int32_t high[BLOCK], low[BLOCK];
    float one[BLOCK], other[BLOCK];
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t begin = 0; begin < words; begin += BLOCK) {
            int size = words - begin < BLOCK ? (int)(words - begin) : BLOCK;
            for (int i = 0; i < size; i++) {
                uint64_t drawn = word(keys[row], (uint64_t)(begin + i));
                high[i] = (int32_t)(drawn >> 33);
                low[i] = (int32_t)drawn;
            }
            for (int i = 0; i < size; i++) turned(sqrtf(squared_radius(high[i])), low[i], one + i, other + i);
            int64_t place = words + begin;
            int second = count - place < size ? (int)(count - place) : size; /* an odd count ends in half a word */
            memcpy(out + begin, one, (size_t)size * sizeof *one);
            memcpy(out + place, other, (size_t)second * sizeof *other);
        }
        out += count;
    }
}

/* Write the polynomial with these coefficients, highest power first, at each of `count` numbers. */
EACH_PROCESSOR void rdlm_polynomial(
    float *restrict out, const float *restrict at, int64_t count, const float *restrict coefficients, int64_t terms) {
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int size = count - begin < BLOCK ? (int)(count - begin) : BLOCK;
        for (int i = 0; i < size; i++) out[i] = coefficients[0];
        for (int64_t term = 1; term < terms; term++)
            for (int i = 0; i < size; i++) out[i] = out[i] * at[i] + coefficients[term];
        out += size;
        at += size;
    }
}

/* Add `weight * ratio(1 - y) / y` with `y = sqrt((1 + cosine) / 2)` to each number of `out`, `ratio` being a polynomial
 * of degree 9. All have rows of `width` numbers, which begin so many numbers apart. */
EACH_PROCESSOR void rdlm_add_ratio(
    float *restrict out, int64_t out_apart, const float *restrict weight, int64_t weight_apart,
    const float *restrict cosine, int64_t cosine_apart, int64_t rows, int64_t width, const float *restrict c,
    float farthest) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < width; i++) {
            float capped = cosine[i] < farthest ? farthest : cosine[i];
            capped = capped > 1.0f ? 1.0f : capped;
            float y = sqrtf(capped * 0.5f + 0.5f), x = 1.0f - y;
            float ratio = (((c[0] * x + c[1]) * x + c[2]) * x + c[3]) * x + c[4];
            ratio = ((((ratio * x + c[5]) * x + c[6]) * x + c[7]) * x + c[8]) * x + c[9];
            out[i] += weight[i] * (ratio / y);
        }
        out += out_apart;
        weight += weight_apart;
        cosine += cosine_apart;
    }
}

typedef float four __attribute__((vector_size(16)));
typedef float sixteen __attribute__((vector_size(64)));

enum { STRETCH = 1024 }; /* numbers that are added up in float32 before double takes over */

static inline float added(four sum) { return (sum[0] + sum[1]) + (sum[2] + sum[3]); }

static inline void fold(four *to, const sixteen *sum) {
    four part[4];
    memcpy(part, sum, sizeof part);
    *to = (part[0] + part[1]) + (part[2] + part[3]);
}

/* Write `<a, b>`, then `<b, b>`, then `<a, a>` of each of `rows` rows. */
EACH_PROCESSOR void rdlm_products(
    float *restrict out, const float *restrict a, const float *restrict b, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++, a += width, b += width) {
        double mixed = 0.0, square = 0.0, own = 0.0;
        for (int64_t i = 0; i < width;) {
            int64_t end = width - i < STRETCH ? width : i + STRETCH;
            sixteen x = {0}, y = {0}, z = {0}, p, q;
            for (; i + 16 <= end; i += 16) {
                memcpy(&p, a + i, sizeof p);
                memcpy(&q, b + i, sizeof q);
                x += p * q, y += q * q, z += p * p;
            }
            four u, v, w, r, s;
            fold(&u, &x), fold(&v, &y), fold(&w, &z);
            for (; i + 4 <= end; i += 4) {
                memcpy(&r, a + i, sizeof r);
                memcpy(&s, b + i, sizeof s);
                u += r * s, v += s * s, w += r * r;
            }
            for (; i < end; i++) u[0] += a[i] * b[i], v[0] += b[i] * b[i], w[0] += a[i] * a[i];
            mixed += added(u), square += added(v), own += added(w);
        }
        out[row] = (float)mixed, out[rows + row] = (float)square, out[2 * rows + row] = (float)own;
    }
}
