/* 3 x 3 convolutions of channels-last images by Winograd's F(2 x 2, 3 x 3) (Lavin & Gray 2016,
   arXiv 1509.09308, Section 4.1): stride 1, one zero around the image, no groups.

   A tile is 2 x 2 outputs of an image, which read 4 x 4 inputs d. With the kernel g,

       tile = A' [sum over channels of (G g G') o (B' d B)] A,

   where o multiplies entry by entry: 16 products for the direct form's 36. The sums over channels
   are 16 matrix products, one an entry. A block of TILES tiles is worked on at a time, so that its
   entries stay in the cache, and by one thread. A tile's sums depend neither on the number of
   threads nor on the other images. */

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16 /* numbers in a vector */
#define VECTORS 4
#elif defined(__AVX__)
#define LANES 8
#define VECTORS 2
#else
#error "an x86 processor with AVX is required; others were not measured"
#endif
#define ROWS 6               /* tiles by VECTORS vectors of outputs whose sums are in registers */
#define TILES (4 * ROWS)     /* in a block; ours, measured */
#define WIDE (VECTORS * LANES)
#define ENTRIES 16
#define GAP 16 /* numbers between entries, which would else share few places of the cache */

#define INLINED static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
  int64_t images, height, width, channels, outputs; /* channels and outputs: multiples of LANES */
} Shape;

static inline int64_t at_most(int64_t one, int64_t other) { return one < other ? one : other; }

static inline vector *at(const float *from) { return (vector *)from; }

/* The outputs of the panel that begins at `output`. */
static inline int64_t panel_width(const Shape *of, int64_t output) {
  return at_most(WIDE, of->outputs - output);
}

/* Distances between numbers of a kernel, which may be negative. */
typedef struct {
  int64_t row, column, channel, output;
} Strides;

/* LANES outputs' numbers. */
INLINED vector gather(const float *from, int64_t apart) {
  if (apart == 1) return *at(from);
  vector some;
  for (int lane = 0; lane < LANES; lane++) some[lane] = from[lane * apart];
  return some;
}

/* A kernel g to the entries of G g G', panel by panel of outputs: [entry, channels, the panel's
   outputs]. */
void winograd_kernel(const Shape *of, const Strides *by, const float *kernel, float *to,
                     int threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
  for (int64_t p = 0; p < of->outputs; p += LANES)
    for (int64_t c = 0; c < of->channels; c++) {
      int64_t first = p / WIDE * WIDE, width = panel_width(of, first);
      const float *from = kernel + c * by->channel + p * by->output;
      float *entries = to + first * of->channels * ENTRIES + c * width + p - first;
      vector rows[4][3];
      for (int j = 0; j < 3; j++) {
        vector g[3];
        for (int i = 0; i < 3; i++)
          g[i] = gather(from + i * by->row + j * by->column, by->output);
        rows[0][j] = g[0];
        rows[1][j] = (g[0] + g[1] + g[2]) * 0.5f;
        rows[2][j] = (g[0] - g[1] + g[2]) * 0.5f;
        rows[3][j] = g[2];
      }
      for (int i = 0; i < 4; i++) {
        const vector *g = rows[i];
        float *entry = entries + 4 * i * of->channels * width;
        *at(entry) = g[0];
        *at(entry += of->channels * width) = (g[0] + g[1] + g[2]) * 0.5f;
        *at(entry += of->channels * width) = (g[0] - g[1] + g[2]) * 0.5f;
        *at(entry += of->channels * width) = g[2];
      }
    }
}

/* Where tile `index` is: its image, and its first output's row and column. */
INLINED void find(const Shape *of, int64_t index, int64_t *image, int64_t *row, int64_t *column) {
  int64_t down = (of->height + 1) / 2, along = (of->width + 1) / 2;
  *image = index / (down * along);
  *row = index / along % down * 2;
  *column = index % along * 2;
}

/* B' d B of a tile: `to` has its entries `apart` from each other. */
INLINED void read_tile(const Shape *of, const float *in, const float *zeros, int64_t index,
                       float *to, int64_t apart) {
  int64_t image, row, column;
  find(of, index, &image, &row, &column);
  const float *d[4][4];
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      int64_t y = row + i - 1, x = column + j - 1;
      int is_inside = y >= 0 && y < of->height && x >= 0 && x < of->width;
      int64_t position = (image * of->height + y) * of->width + x;
      d[i][j] = is_inside ? in + position * of->channels : zeros;
    }
  for (int64_t c = 0; c < of->channels; c += LANES) {
    vector rows[4][4];
    for (int j = 0; j < 4; j++) {
      vector one = *at(d[1][j] + c), two = *at(d[2][j] + c);
      rows[0][j] = *at(d[0][j] + c) - two;
      rows[1][j] = one + two;
      rows[2][j] = two - one;
      rows[3][j] = one - *at(d[3][j] + c);
    }
    for (int i = 0; i < 4; i++) {
      float *entry = to + 4 * i * apart + c;
      *at(entry) = rows[i][0] - rows[i][2];
      *at(entry + apart) = rows[i][1] + rows[i][2];
      *at(entry + 2 * apart) = rows[i][2] - rows[i][1];
      *at(entry + 3 * apart) = rows[i][1] - rows[i][3];
    }
  }
}

/* Sums over channels for ROWS tiles and `vectors` vectors of outputs. */
INLINED void multiply(const Shape *of, const float *tiles, const float *kernel, float *sums,
                      const int vectors) {
  vector total[ROWS][VECTORS];
  memset(total, 0, sizeof total);
  for (int64_t c = 0; c < of->channels; c++, kernel += vectors * LANES) {
    vector of_kernel[VECTORS];
    for (int v = 0; v < vectors; v++) of_kernel[v] = *at(kernel + v * LANES);
    for (int t = 0; t < ROWS; t++)
      for (int v = 0; v < vectors; v++) total[t][v] += tiles[t * of->channels + c] * of_kernel[v];
  }
  for (int t = 0; t < ROWS; t++)
    for (int v = 0; v < vectors; v++) *at(sums + t * of->outputs + v * LANES) = total[t][v];
}

/* A' sums A of a tile, whose entries are `apart` from each other. */
INLINED void write_tile(const Shape *of, const float *sums, int64_t apart, int64_t index,
                        float *out) {
  int64_t image, row, column;
  find(of, index, &image, &row, &column);
  out += ((image * of->height + row) * of->width + column) * of->outputs;
  int64_t down = of->width * of->outputs, along = of->outputs;
  int is_below = row + 1 < of->height, is_beside = column + 1 < of->width;
  for (int64_t p = 0; p < of->outputs; p += LANES) {
    vector rows[2][4];
    for (int j = 0; j < 4; j++) {
      const float *entry = sums + j * apart + p;
      vector one = *at(entry + 4 * apart), two = *at(entry + 8 * apart);
      rows[0][j] = *at(entry) + one + two;
      rows[1][j] = one - two - *at(entry + 12 * apart);
    }
    for (int i = 0; i <= is_below; i++) {
      *at(out + i * down + p) = rows[i][0] + rows[i][1] + rows[i][2];
      if (is_beside) *at(out + i * down + along + p) = rows[i][1] - rows[i][2] - rows[i][3];
    }
  }
}

static inline int64_t apart_of(int64_t numbers) { return TILES * numbers + GAP; }

/* Numbers of `scratch` for a thread. */
int64_t winograd_scratch(const Shape *of) {
  return ENTRIES * (apart_of(of->channels) + apart_of(of->outputs)) + of->channels;
}

/* out [images, height, width, outputs] from in [images, height, width, channels] and what
   winograd_kernel wrote. */
void winograd(const Shape *of, const float *in, const float *kernel, float *out, float *scratch,
              int threads) {
  int64_t all = of->images * ((of->height + 1) / 2) * ((of->width + 1) / 2);
  int64_t of_tiles = apart_of(of->channels), of_sums = apart_of(of->outputs);
  int64_t blocks = (all + TILES - 1) / TILES, pieces = at_most(threads, blocks);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t piece = 0; piece < pieces; piece++) {
    float *tiles = scratch + piece * winograd_scratch(of), *sums = tiles + ENTRIES * of_tiles;
    float *zeros = sums + ENTRIES * of_sums;
    memset(zeros, 0, of->channels * sizeof *zeros);
    for (int64_t b = blocks * piece / pieces; b < blocks * (piece + 1) / pieces; b++) {
      int64_t first = b * TILES, count = at_most(TILES, all - first);
      for (int64_t t = 0; t < count; t++)
        read_tile(of, in, zeros, first + t, tiles + t * of->channels, of_tiles);
      for (int64_t t = count; t % ROWS; t++) /* of which nothing is written */
        for (int e = 0; e < ENTRIES; e++)
          memset(tiles + e * of_tiles + t * of->channels, 0, of->channels * sizeof *tiles);
      for (int e = 0; e < ENTRIES; e++)
        for (int64_t p = 0; p < of->outputs; p += WIDE) {
          int64_t width = panel_width(of, p);
          const float *panel = kernel + (p * ENTRIES + e * width) * of->channels;
          for (int64_t t = 0; t < count; t += ROWS) {
            const float *some = tiles + e * of_tiles + t * of->channels;
            float *to = sums + e * of_sums + t * of->outputs + p;
            switch (width / LANES) {
              case 1: multiply(of, some, panel, to, 1); break;
              case 2: multiply(of, some, panel, to, 2); break;
#if VECTORS > 2
              case 3: multiply(of, some, panel, to, 3); break;
              case 4: multiply(of, some, panel, to, 4); break;
#endif
            }
          }
        }
      for (int64_t t = 0; t < count; t++)
        write_tile(of, sums + t * of->outputs, of_sums, first + t, out);
    }
  }
}
