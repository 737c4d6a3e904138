/* Per-example kernel gradients of a 2-d convolution without groups, channels last:

   grads[i][p][c][a][b] = sum over outputs (y, x) of
       dh[i][y][x][p] * in[i][y stride - padding + a dilation][x stride - padding + b dilation][c],

   without the padding. For one shift (a, b) this is a matrix product over the positions. A tile of
   ROWS outputs by two vectors of channels stays in registers during a block of positions, and its
   totals stay in the cache. Only one thread works on an example's channels, so that the sums are
   the same for any number of threads. */

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16 /* numbers in a vector */
#define ROWS 8   /* 16 sums in 32 registers */
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6 /* 12 in 16 */
#else
#error "an x86 processor with AVX is required; others were not measured"
#endif
#define WIDE (2 * LANES)
#define TAPS 32    /* most positions of a kernel; their sums are on the stack, in the cache */
#define BLOCK 1024 /* positions summed in sequence; more would lose precision */

#define INLINED static inline __attribute__((always_inline))

/* Aligned like float, and may alias floats. */
typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

typedef struct {
  int64_t examples, channels, outputs;
  int64_t in[2], out[2], kernel[2], stride[2], padding[2], dilation[2]; /* rows, columns */
} Layer;

static inline int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

/* Narrow [*first, *last) to the outputs whose kernel position `shift` is inside the image, along an
   axis; return the input position of that kernel position for output 0. */
static inline int64_t touching(const Layer *at, int axis, int64_t shift, int64_t *first,
                               int64_t *last) {
  int64_t stride = at->stride[axis], offset = shift * at->dilation[axis] - at->padding[axis];
  int64_t from = offset < 0 ? (stride - 1 - offset) / stride : 0;
  int64_t room = at->in[axis] - offset;
  if (*first < from) *first = from;
  *last = least(*last, room > 0 ? (room - 1) / stride + 1 : 0);
  return offset;
}

/* Add one shift's sums over the outputs' rows [top, bottom) to a tile. */
INLINED void add(const Layer *at, const float *in, const float *dh, vector tile[ROWS][2],
                 int64_t shift, int64_t top, int64_t bottom, const int rows, const int vectors) {
  int64_t left = 0, right = at->out[1];
  int64_t down = touching(at, 0, shift / at->kernel[1], &top, &bottom);
  int64_t along = touching(at, 1, shift % at->kernel[1], &left, &right);
  if (left >= right) return;
  vector sums[ROWS][2];
  memset(sums, 0, sizeof sums);
  for (int64_t y = top; y < bottom; y++) {
    int64_t row = y * at->stride[0] + down, column = left * at->stride[1] + along;
    const float *x = in + (row * at->in[1] + column) * at->channels;
    const float *d = dh + (y * at->out[1] + left) * at->outputs;
    for (int64_t n = left; n < right; n++) {
      for (int p = 0; p < rows; p++)
        for (int v = 0; v < vectors; v++) sums[p][v] += d[p] * *(const vector *)(x + v * LANES);
      x += at->stride[1] * at->channels;
      d += at->outputs;
    }
  }
  for (int p = 0; p < rows; p++)
    for (int v = 0; v < vectors; v++) tile[p][v] += sums[p][v];
}

/* Sum `rows` outputs' gradients of `vectors` vectors of channels. */
INLINED void fill(const Layer *at, const float *in, const float *dh, vector tiles[TAPS][ROWS][2],
                  const int rows, const int vectors) {
  int64_t taps = at->kernel[0] * at->kernel[1];
  int64_t height = at->out[1] < BLOCK ? BLOCK / at->out[1] : 1;
  memset(tiles, 0, taps * sizeof *tiles);
  for (int64_t top = 0; top < at->out[0]; top += height)
    for (int64_t shift = 0; shift < taps; shift++)
      add(at, in, dh, tiles[shift], shift, top, least(top + height, at->out[0]), rows, vectors);
}

/* Write them. */
INLINED void write(const Layer *at, const float *in, const float *dh, float *grads, const int rows,
                   const int vectors) {
  int64_t taps = at->kernel[0] * at->kernel[1];
  vector tiles[TAPS][ROWS][2];
  fill(at, in, dh, tiles, rows, vectors);
  for (int p = 0; p < rows; p++)
    for (int64_t shift = 0; shift < taps; shift++) {
      const float *from = (const float *)tiles[shift][p];
      float *to = grads + p * at->channels * taps + shift;
      for (int c = 0; c < vectors * LANES; c++) to[c * taps] = from[c];
    }
}

/* Return the sum of the squares of those that are kept. */
INLINED double square(const Layer *at, const float *in, const float *dh, const uint8_t *is_kept,
                      const int rows, const int vectors) {
  int64_t taps = at->kernel[0] * at->kernel[1];
  vector tiles[TAPS][ROWS][2], squares;
  fill(at, in, dh, tiles, rows, vectors);
  memset(&squares, 0, sizeof squares);
  for (int p = 0; p < rows; p++)
    for (int64_t shift = 0; shift < taps; shift++)
      for (int v = 0; v < vectors; v++) {
        const uint8_t *some = is_kept + (p * taps + shift) * at->channels + v * LANES;
        vector kept = tiles[shift][p][v] * __builtin_convertvector(*(const bytes *)some, vector);
        squares += kept * kept;
      }
  double total = 0;
  for (int lane = 0; lane < LANES; lane++) total += squares[lane];
  return total;
}

/* Channels must be a multiple of `lanes`; a kernel may have at most `most_taps` positions. A lane
   of `squares` adds `most_squares` numbers at most. */
const int lanes = LANES, most_taps = TAPS, most_squares = TAPS * ROWS * 2;

/* Do `of(rows, vectors)` with each tile of outputs p and channels c of an example. */
#define ROWS_AT_ONCE(rows, of)                       \
  for (; p + rows <= at->outputs; p += rows) {       \
    if (is_wide) of(rows, 2);                        \
    else of(rows, 1);                                \
  }
#define FOR_EACH_TILE(of)                                                              \
  for (int64_t i = 0; i < at->examples * pieces; i++) {                                \
    int64_t example = i / pieces, c = i % pieces * WIDE, p = 0;                        \
    int is_wide = at->channels - c >= WIDE;                                            \
    const float *x = in + example * at->in[0] * at->in[1] * at->channels + c;          \
    const float *d = dh + example * at->out[0] * at->out[1] * at->outputs;             \
    ROWS_AT_ONCE(ROWS, of)                                                             \
    ROWS_AT_ONCE(4, of)                                                                \
    ROWS_AT_ONCE(1, of)                                                                \
  }
/* in [examples, in.., channels], dh [examples, out.., outputs], grads [examples, outputs, channels,
   kernel..]. */
void kernel_gradients(const Layer *at, const float *in, const float *dh, float *grads,
                      int threads) {
  int64_t pieces = (at->channels + WIDE - 1) / WIDE, taps = at->kernel[0] * at->kernel[1];
#define WRITE(rows, vectors)                                                            \
  write(at, x, d + p, grads + ((example * at->outputs + p) * at->channels + c) * taps, \
        rows, vectors)
#pragma omp parallel for schedule(static) num_threads(threads)
  FOR_EACH_TILE(WRITE)
}

/* squares [examples, pieces of two vectors of channels]: of the gradients' entries that is_kept
   [outputs, kernel.., channels] says, which is 0 or 1. */
void kept_squares(const Layer *at, const float *in, const float *dh, const uint8_t *is_kept,
                  double *squares, int threads) {
  int64_t pieces = (at->channels + WIDE - 1) / WIDE, taps = at->kernel[0] * at->kernel[1];
#define SQUARE(rows, vectors) \
  squares[i] += square(at, x, d + p, is_kept + p * taps * at->channels + c, rows, vectors)
#pragma omp parallel for schedule(static) num_threads(threads)
  FOR_EACH_TILE(SQUARE)
}

/* Of a depthwise convolution, in which output c reads channel c alone:

   grads[i][c][a][b] = sum over outputs (y, x) of
       dh[i][y][x][c] * in[i][y stride - padding + a dilation][x stride - padding + b dilation][c].

   Vectors are of channels, and CHAINS of them are summed at once. */
#define CHAINS 4 /* sums that do not wait for each other */

/* Write the gradients of `vectors` vectors of channels of an example. */
INLINED void of_channels(const Layer *at, const float *in, const float *dh, float *grads,
                        const int vectors) {
  int64_t taps = at->kernel[0] * at->kernel[1];
  int64_t height = at->out[1] < BLOCK ? BLOCK / at->out[1] : 1;
  for (int64_t shift = 0; shift < taps; shift++) {
    vector totals[CHAINS];
    memset(totals, 0, sizeof totals);
    int64_t top = 0, bottom = at->out[0], left = 0, right = at->out[1];
    int64_t down = touching(at, 0, shift / at->kernel[1], &top, &bottom);
    int64_t along = touching(at, 1, shift % at->kernel[1], &left, &right);
    for (int64_t from = top; from < bottom; from += height) {
      vector sums[CHAINS];
      memset(sums, 0, sizeof sums);
      for (int64_t y = from; y < least(from + height, bottom); y++) {
        int64_t row = y * at->stride[0] + down, column = left * at->stride[1] + along;
        const float *x = in + (row * at->in[1] + column) * at->channels;
        const float *d = dh + (y * at->out[1] + left) * at->channels;
        for (int64_t n = left; n < right; n++) {
          for (int v = 0; v < vectors; v++)
            sums[v] += *(const vector *)(d + v * LANES) * *(const vector *)(x + v * LANES);
          x += at->stride[1] * at->channels;
          d += at->channels;
        }
      }
      for (int v = 0; v < vectors; v++) totals[v] += sums[v];
    }
    for (int c = 0; c < vectors * LANES; c++) grads[c * taps + shift] = ((float *)totals)[c];
  }
}

/* Write the gradient of one channel, as of those that fill no vector. */
static void of_channel(const Layer *at, const float *in, const float *dh, float *grads) {
  int64_t height = at->out[1] < BLOCK ? BLOCK / at->out[1] : 1;
  for (int64_t shift = 0; shift < at->kernel[0] * at->kernel[1]; shift++) {
    int64_t top = 0, bottom = at->out[0], left = 0, right = at->out[1];
    int64_t down = touching(at, 0, shift / at->kernel[1], &top, &bottom);
    int64_t along = touching(at, 1, shift % at->kernel[1], &left, &right);
    float total = 0, sum = 0;
    for (int64_t y = top; y < bottom; y++) {
      int64_t row = y * at->stride[0] + down;
      for (int64_t n = left; n < right; n++)
        sum += dh[(y * at->out[1] + n) * at->channels] *
               in[(row * at->in[1] + n * at->stride[1] + along) * at->channels];
      if ((y - top) % height == height - 1) total += sum, sum = 0;
    }
    grads[shift] = total + sum;
  }
}

/* in [examples, in.., channels], dh [examples, out.., channels], grads [examples, channels,
   kernel..]; `outputs` is not read. */
void depthwise_gradients(const Layer *at, const float *in, const float *dh, float *grads,
                         int threads) {
  int64_t wide = CHAINS * LANES, taps = at->kernel[0] * at->kernel[1];
  int64_t pieces = (at->channels + wide - 1) / wide;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < at->examples * pieces; i++) {
    int64_t example = i / pieces, c = i % pieces * wide;
    const float *x = in + example * at->in[0] * at->in[1] * at->channels;
    const float *d = dh + example * at->out[0] * at->out[1] * at->channels;
    float *to = grads + example * at->channels * taps;
    if (at->channels - c >= wide) of_channels(at, x + c, d + c, to + c * taps, CHAINS);
    else {
      for (; c + LANES <= at->channels; c += LANES)
        of_channels(at, x + c, d + c, to + c * taps, 1);
      for (; c < at->channels; c++) of_channel(at, x + c, d + c, to + c * taps);
    }
  }
}
