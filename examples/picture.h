// Curves, bands and dots as an SVG file with titled axes.
#ifndef EXAMPLES_PICTURE_H
#define EXAMPLES_PICTURE_H
#include <math.h>
#include <stdio.h>

typedef struct picture_curve {
    const char *name, *colour;
    double width; // of the line; of dots their radius
    const float *y;
    int count;              // points, at equal distances
    double first_x, last_x;
    const float *x;     // NULL, or the places of dots
    const float *to;    // NULL, or the other edge of a band
    const char *dashes; // NULL, or lengths of ink and gap: "6 4"
} picture_curve;

typedef struct picture {
    const char *title, *x_title, *y_title;
    double x_end, y_end;     // the axes go to here
    double x_begin, y_begin; // from here
} picture;

enum { PICTURE_WIDTH = 720, PICTURE_HEIGHT = 420, PICTURE_LEFT = 72, PICTURE_RIGHT = 24, PICTURE_TOP = 48, PICTURE_BOTTOM = 56 };

static double picture_x(const picture *p, double x) {
    return PICTURE_LEFT + (PICTURE_WIDTH - PICTURE_LEFT - PICTURE_RIGHT) * (x - p->x_begin) / (p->x_end - p->x_begin);
}

static double picture_y(const picture *p, double y) {
    double part =
        y < p->y_end ? (y - p->y_begin) / (p->y_end - p->y_begin) : 1; // what is above the top (or not a number) is drawn at the top
    if (part < 0) part = 0;
    return PICTURE_HEIGHT - PICTURE_BOTTOM - (PICTURE_HEIGHT - PICTURE_TOP - PICTURE_BOTTOM) * part;
}

// A round distance between ticks: 1, 2 or 5 times a power of ten, at most ten of them.
static double picture_tick(double end) { // of an axis of this length
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
    const double x_tick = picture_tick(p->x_end - p->x_begin), y_tick = picture_tick(p->y_end - p->y_begin);
    for (int i = (int)ceil(p->y_begin / y_tick - 1e-4); i * y_tick <= p->y_end + 1e-4 * y_tick; i++) {
        double y = picture_y(p, i * y_tick);
        picture_line(f, left, y, right, y, "#e0e0e0");
        snprintf(text, sizeof text, "%g", i * y_tick);
        picture_text(f, left - 8, y + 4, "end", "", text);
    }
    for (int i = (int)ceil(p->x_begin / x_tick - 1e-4); i * x_tick <= p->x_end + 1e-4 * x_tick; i++) {
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

static double picture_place(const picture_curve *c, int i) {
    if (c->x) return (double)c->x[i];
    return c->count > 1 ? c->first_x + (c->last_x - c->first_x) * i / (c->count - 1) : c->last_x;
}

static void picture_points(FILE *f, const picture *p, const picture_curve *c, const float *y, int backwards) {
    for (int k = 0; k < c->count; k++) {
        int i = backwards ? c->count - 1 - k : k;
        fprintf(f, "%.1f,%.1f%c", picture_x(p, picture_place(c, i)), picture_y(p, (double)y[i]), k % 12 == 11 ? '\n' : ' ');
    }
}

static void picture_draw(FILE *f, const picture *p, const picture_curve *c) {
    for (int i = 0; c->x && i < c->count; i++)
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" fill=\"%s\"/>\n", picture_x(p, (double)c->x[i]), picture_y(p, (double)c->y[i]),
                c->width, c->colour);
    if (c->x) return;
    if (c->to)
        fprintf(f, "<polygon fill=\"%s\" points=\"", c->colour);
    else
        fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" stroke-linejoin=\"round\" stroke-dasharray=\"%s\" points=\"",
                c->colour, c->width, c->dashes ? c->dashes : "none");
    picture_points(f, p, c, c->y, 0);
    if (c->to) picture_points(f, p, c, c->to, 1);
    fputs("\"/>\n", f);
}

static void picture_legend(FILE *f, const picture_curve *curves, int count) {
    for (int i = 0; i < count; i++) {
        const picture_curve *c = &curves[i];
        double y = PICTURE_TOP + 16 + 18 * i, x = PICTURE_WIDTH - PICTURE_RIGHT - 170;
        if (c->x)
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" fill=\"%s\"/>\n", x + 13, y, c->width, c->colour);
        else
            fprintf(f,
                    "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%g\" stroke-dasharray=\"%s\"/>\n",
                    x, y, x + 26, y, c->colour, c->to ? 10 : c->width + 1, c->dashes ? c->dashes : "none");
        picture_text(f, x + 34, y + 4, "start", "", c->name);
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
