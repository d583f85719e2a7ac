// A square matrix as a picture: an SVG file of coloured cells with their numbers, small gray images at the left and at the top.
#ifndef EXAMPLES_HEATMAP_H
#define EXAMPLES_HEATMAP_H
#include <stdio.h>

typedef struct heatmap {
    const char *title;
    int n;               // rows and columns
    const double *value; // (n, n)
    const float *image;  // (n, side, side), about -2 to 2
    int side;            // a multiple of 16
} heatmap;

enum { HEATMAP_CELL = 56, HEATMAP_SQUARES = 16, HEATMAP_LEFT = HEATMAP_CELL + 16, HEATMAP_TOP = HEATMAP_CELL + 52, HEATMAP_EDGE = 16 };

// From dark blue over green to yellow for 0 to 1.
static void heatmap_colour(double part, char *text, size_t size) {
    static const double stop[4][3] = { { 38, 24, 92 }, { 32, 110, 140 }, { 72, 178, 104 }, { 250, 230, 60 } };
    const double at = 3 * part;
    const int k = at < 2 ? (int)at : 2;
    double c[3];
    for (int i = 0; i < 3; i++) c[i] = stop[k][i] + (at - k) * (stop[k + 1][i] - stop[k][i]);
    snprintf(text, size, "rgb(%.0f,%.0f,%.0f)", c[0], c[1], c[2]);
}

// Image k, 16 by 16 squares, defined once and used twice.
static void heatmap_image(FILE *f, const heatmap *h, int k) {
    const int each = h->side / HEATMAP_SQUARES;
    const double scale = (HEATMAP_CELL - 4.0) / HEATMAP_SQUARES;
    fprintf(f, "<defs><g id=\"image%d\" shape-rendering=\"crispEdges\">\n", k);
    for (int q = 0; q < HEATMAP_SQUARES * HEATMAP_SQUARES; q++) {
        const float *corner = h->image + (k * h->side + q / HEATMAP_SQUARES * each) * h->side + q % HEATMAP_SQUARES * each;
        double mean = 0;
        for (int p = 0; p < each * each; p++) mean += (double)corner[p / each * h->side + p % each] / (each * each);
        double gray = 128 + 60 * mean;
        gray = gray < 0 ? 0 : gray > 255 ? 255 : gray;
        fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"1\" height=\"1\" fill=\"rgb(%.0f,%.0f,%.0f)\"/>\n", q % HEATMAP_SQUARES,
                q / HEATMAP_SQUARES, gray, gray, gray);
    }
    fprintf(f, "</g></defs>\n<use href=\"#image%d\" transform=\"translate(%d %d) scale(%g)\"/>\n", k, HEATMAP_LEFT + k * HEATMAP_CELL + 2,
            HEATMAP_TOP - HEATMAP_CELL - 4, scale);
    fprintf(f, "<use href=\"#image%d\" transform=\"translate(%d %d) scale(%g)\"/>\n", k, 8, HEATMAP_TOP + k * HEATMAP_CELL + 2, scale);
}

static void heatmap_cell(FILE *f, const heatmap *h, int i, double least, double most) {
    const double part = most > least ? (h->value[i] - least) / (most - least) : 1;
    const int x = HEATMAP_LEFT + i % h->n * HEATMAP_CELL, y = HEATMAP_TOP + i / h->n * HEATMAP_CELL;
    char colour[32];
    heatmap_colour(part, colour, sizeof colour);
    fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", x, y, HEATMAP_CELL, HEATMAP_CELL, colour);
    fprintf(f, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%.3f</text>\n", x + HEATMAP_CELL / 2, y + HEATMAP_CELL / 2 + 4,
            part < 0.6 ? "#ffffff" : "#202020", h->value[i]);
}

// 0: written; 1: the file could not be opened or filled.
static inline int heatmap_write(const char *path, const heatmap *h) {
    const int width = HEATMAP_LEFT + h->n * HEATMAP_CELL + HEATMAP_EDGE, height = HEATMAP_TOP + h->n * HEATMAP_CELL + HEATMAP_EDGE;
    double least = h->value[0], most = h->value[0];
    FILE *f = fopen(path, "w");
    if (!f) return 1;
    for (int i = 1; i < h->n * h->n; i++) {
        if (h->value[i] < least) least = h->value[i];
        if (h->value[i] > most) most = h->value[i];
    }
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"11\" text-anchor=\"middle\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
            "<text x=\"%d\" y=\"26\" font-size=\"16\">%s</text>\n",
            width, height, width, height, width / 2, h->title);
    for (int k = 0; k < h->n; k++) heatmap_image(f, h, k);
    for (int i = 0; i < h->n * h->n; i++) heatmap_cell(f, h, i, least, most);
    fputs("</svg>\n", f);
    int failed = ferror(f);
    return fclose(f) != 0 || failed;
}
#endif
