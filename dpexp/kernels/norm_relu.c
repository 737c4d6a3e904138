/* GroupNorm without parameters, then ReLU, channels last: images [examples, positions, channels].

   Sums over a block of positions are in float32, sums over blocks and over the channels of a group
   in float64. Only one thread works on an example, which stays in its cache between passes. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CHANNELS 2048
#define BLOCK 1024

const int most_channels = CHANNELS;

typedef struct {
  int64_t examples, positions, channels, groups;
} Images;

/* For every channel c, sum `term` over all positions t. */
#define SUM(total, term)                                                     \
  memset(total, 0, channels * sizeof *total);                                \
  for (int64_t start = 0; start < at->positions; start += BLOCK) {           \
    float part[CHANNELS];                                                    \
    memset(part, 0, channels * sizeof *part);                                \
    for (int64_t t = start; t < start + BLOCK && t < at->positions; t++)     \
      for (int64_t c = 0; c < channels; c++) part[c] += (term);              \
    for (int64_t c = 0; c < channels; c++) total[c] += part[c];              \
  }

/* For every channel, the mean over its group of the channels' totals. */
static void means(const Images *at, const double *total, float *mean) {
  int64_t size = at->channels / at->groups;
  for (int64_t g = 0; g < at->groups; g++) {
    double sum = 0;
    for (int64_t c = g * size; c < (g + 1) * size; c++) sum += total[c];
    for (int64_t c = g * size; c < (g + 1) * size; c++) mean[c] = sum / (size * at->positions);
  }
}

/* out = max(0, (in - mean) scale); mean and scale, the inverse standard deviation, are
   [examples, channels]. */
void norm_relu(const Images *at, float eps, const float *in, float *out, float *mean, float *scale,
               int threads) {
  int64_t channels = at->channels, numbers = at->positions * channels;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < at->examples; i++) {
    const float *restrict x = in + i * numbers;
    float *restrict y = out + i * numbers, *m = mean + i * channels, *s = scale + i * channels;
    double total[CHANNELS];
    SUM(total, x[t * channels + c])
    means(at, total, m);
    SUM(total, (x[t * channels + c] - m[c]) * (x[t * channels + c] - m[c]))
    means(at, total, s);
    for (int64_t c = 0; c < channels; c++) s[c] = 1 / sqrtf(s[c] + eps);
    for (int64_t t = 0; t < at->positions; t++)
      for (int64_t c = 0; c < channels; c++) {
        float value = (x[t * channels + c] - m[c]) * s[c];
        y[t * channels + c] = value < 0 ? 0 : value; /* NaN stays */
      }
  }
}

/* dx from the output gradient dy; where the ReLU is active, `out` holds the normalised values. */
void norm_relu_backward(const Images *at, const float *in, const float *out, const float *mean,
                        const float *scale, const float *gradient, float *result, int threads) {
  int64_t channels = at->channels, numbers = at->positions * channels;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < at->examples; i++) {
    const float *restrict x = in + i * numbers, *restrict y = out + i * numbers;
    const float *restrict dy = gradient + i * numbers;
    const float *m = mean + i * channels, *s = scale + i * channels;
    float *restrict dx = result + i * numbers;
    double total[CHANNELS];
    float along_one[CHANNELS], along_x[CHANNELS];
#define PASSED(t, c) (y[t * channels + c] <= 0 ? 0 : dy[t * channels + c])
    SUM(total, PASSED(t, c))
    means(at, total, along_one);
    SUM(total, PASSED(t, c) * y[t * channels + c])
    means(at, total, along_x);
    for (int64_t t = 0; t < at->positions; t++)
      for (int64_t c = 0; c < channels; c++) {
        float normed = (x[t * channels + c] - m[c]) * s[c];
        dx[t * channels + c] = s[c] * (PASSED(t, c) - along_one[c] - normed * along_x[c]);
      }
#undef PASSED
  }
}
