// Curves as an SVG file, with titled axes that start at 0.
#ifndef EXAMPLES_PICTURE_H
#define EXAMPLES_PICTURE_H
#include <stdio.h>

typedef struct picture_curve {
    const char *name, *colour;
    double width;
    const float *y;
    int count;              // points, at equal distances
    double first_x, last_x;
} picture_curve;

typedef struct picture {
    const char *title, *x_title, *y_title;
    double x_end, y_end; // the axes go from 0 to here
} picture;

enum { PICTURE_WIDTH = 720, PICTURE_HEIGHT = 420, PICTURE_LEFT = 72, PICTURE_RIGHT = 24, PICTURE_TOP = 48, PICTURE_BOTTOM = 56 };

static double picture_x(const picture *p, double x) {
    return PICTURE_LEFT + (PICTURE_WIDTH - PICTURE_LEFT - PICTURE_RIGHT) * x / p->x_end;
}

static double picture_y(const picture *p, double y) {
    double part = y < p->y_end ? y / p->y_end : 1; // what is above the top (or not a number) is drawn at the top
    return PICTURE_HEIGHT - PICTURE_BOTTOM - (PICTURE_HEIGHT - PICTURE_TOP - PICTURE_BOTTOM) * part;
}

// A round distance between ticks: 1, 2 or 5 times a power of ten, at most ten of them.
static double picture_tick(double end) {
    static const double factor[] = { 2, 2.5, 2 };
    double tick = 1;
    while (tick > end / 10) tick /= 10;
    for (int i = 0; end / tick > 10; i++) tick *= factor[i % 3];
    return tick;
}

static void picture_text(FILE *f, double x, double y, const char *anchor, const char *more, const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>%s</text>\n", x, y, anchor, more, text);
}

static void picture_line(FILE *f, double x0, double y0, double x1, double y1, const char *colour) {
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x0, y0, x1, y1, colour);
}

static void picture_axes(FILE *f, const picture *p) {
    char text[64];
    const double left = PICTURE_LEFT, right = PICTURE_WIDTH - PICTURE_RIGHT, top = PICTURE_TOP, bottom = PICTURE_HEIGHT - PICTURE_BOTTOM;
    const double x_tick = picture_tick(p->x_end), y_tick = picture_tick(p->y_end);
    for (int i = 0; i * y_tick <= p->y_end * 1.0001; i++) {
        double y = picture_y(p, i * y_tick);
        picture_line(f, left, y, right, y, "#e0e0e0");
        snprintf(text, sizeof text, "%g", i * y_tick);
        picture_text(f, left - 8, y + 4, "end", "", text);
    }
    for (int i = 0; i * x_tick <= p->x_end * 1.0001; i++) {
        double x = picture_x(p, i * x_tick);
        picture_line(f, x, bottom, x, bottom + 5, "#404040");
        snprintf(text, sizeof text, "%g", i * x_tick);
        picture_text(f, x, bottom + 19, "middle", "", text);
    }
    picture_line(f, left, bottom, right, bottom, "#404040");
    picture_line(f, left, top, left, bottom, "#404040");
    picture_text(f, PICTURE_WIDTH / 2.0, 26, "middle", "font-size=\"16\"", p->title);
    picture_text(f, (left + right) / 2, PICTURE_HEIGHT - 14, "middle", "", p->x_title);
    snprintf(text, sizeof text, "transform=\"rotate(-90 20 %d)\"", (PICTURE_TOP + PICTURE_HEIGHT - PICTURE_BOTTOM) / 2);
    picture_text(f, 20, (top + bottom) / 2, "middle", text, p->y_title);
}

static void picture_draw(FILE *f, const picture *p, const picture_curve *c) {
    fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" stroke-linejoin=\"round\" points=\"", c->colour, c->width);
    for (int i = 0; i < c->count; i++) {
        double x = c->count > 1 ? c->first_x + (c->last_x - c->first_x) * i / (c->count - 1) : c->last_x;
        fprintf(f, "%.1f,%.1f%c", picture_x(p, x), picture_y(p, (double)c->y[i]), i % 12 == 11 ? '\n' : ' ');
    }
    fputs("\"/>\n", f);
}

static void picture_legend(FILE *f, const picture_curve *curves, int count) {
    for (int i = 0; i < count; i++) {
        double y = PICTURE_TOP + 16 + 18 * i, x = PICTURE_WIDTH - PICTURE_RIGHT - 170;
        fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%g\"/>\n", x, y, x + 26, y, curves[i].colour,
                curves[i].width + 1);
        picture_text(f, x + 34, y + 4, "start", "", curves[i].name);
    }
}

// 0: written; 1: the file could not be opened or filled.
static int picture_write(const char *path, const picture *p, const picture_curve *curves, int count) {
    FILE *f = fopen(path, "w");
    if (!f) return 1;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"13\" "
            "fill=\"#202020\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            PICTURE_WIDTH, PICTURE_HEIGHT, PICTURE_WIDTH, PICTURE_HEIGHT);
    picture_axes(f, p);
    for (int i = 0; i < count; i++) picture_draw(f, p, &curves[i]);
    picture_legend(f, curves, count);
    fputs("</svg>\n", f);
    int failed = ferror(f);
    return fclose(f) != 0 || failed;
}
#endif
