// Tests of the file section: safetensors, .npy and .npz, written and read; good files of other writers, and bad ones.
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#include "../nttrain.h"
#include "tap.h"
#include "files_samples.h"
#include <stdlib.h>

enum { SAFETENSORS, NPZ, NPY, FORMATS };
static const char *const format_names[FORMATS] = { "safetensors", "npz", "npy" };

static nt_status write_format(nt_tape *t, int format, nt_io io, int count, const nt_file_data *arrays) {
    if (format == SAFETENSORS) return nt_safetensors_write(t, io, count, arrays);
    if (format == NPZ) return nt_npz_write(t, io, count, arrays);
    return nt_npy_write(t, io, arrays[0].dtype, arrays[0].shape, arrays[0].data);
}

static nt_file_data array_of(const char *name, nt_dtype dtype, nt_shape shape, const void *data) {
    nt_file_data a;
    a.name = name;
    a.dtype = dtype;
    a.shape = shape;
    a.data = data;
    return a;
}

static size_t elements(nt_shape shape) {
    size_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= (size_t)shape.size[i];
    return n;
}

static int big_endian(void) {
    const uint16_t one = 1;
    return *(const unsigned char *)&one == 0;
}

static int same_shape(nt_shape a, nt_shape b) {
    int same = a.rank == b.rank;
    for (int i = 0; same && i < a.rank; i++) same = a.size[i] == b.size[i];
    return same;
}

// Four arrays of different kinds; an .npy takes the first.
static double doubles[30];
static unsigned char bytes[5] = { 0, 1, 127, 128, 255 };
static int some_arrays(nt_file_data *arrays) {
    for (int i = 0; i < 30; i++) doubles[i] = i * 0.75 - 4;
    arrays[0] = array_of("Conv_0/kernel", NT_F64, NT_SHAPE(2, 3, 5), doubles);
    arrays[1] = array_of("\"\xc3\xa9\\\n", NT_U8, NT_SHAPE(5), bytes);
    arrays[2] = array_of("", NT_I16, NT_SCALAR, bytes);
    arrays[3] = array_of("none", NT_F32, NT_SHAPE(3, 0), NULL);
    return 4;
}

static unsigned char memory[3][4096];
static size_t some_file(nt_tape *t, int format) {
    nt_file_data arrays[4];
    nt_buffer out = { memory[format], sizeof memory[format], 0 };
    int count = some_arrays(arrays);
    return write_format(t, format, nt_io_buffer(&out), count, arrays) == NT_OK ? out.bytes : 0;
}

// ---- round trips ------------------------------------------------------------------------------------------------------

static int array_returns(nt_file *f, const nt_file_data *a, const char *name) {
    const nt_file_entry *entry = nt_file_find(f, name);
    size_t n = elements(a->shape) * nt_dtype_size(a->dtype);
    unsigned char back[512];
    if (!entry || entry->dtype != a->dtype || entry->bytes != n || !same_shape(entry->shape, a->shape)) return 0;
    memset(back, 0xee, sizeof back);
    if (nt_file_read(f, entry, back, a->dtype) != NT_OK || (n > 0 && memcmp(back, a->data, n) != 0) || back[n] != 0xee) return 0;
    const void *place = nt_file_in_place(f, entry);
    return !place || n == 0 || memcmp(place, a->data, n) == 0;
}

static void test_round_trips(void) {
    nt_tape *t = nt_tape_open(NULL);
    static unsigned char data[512], again[4096];
    nt_shape shapes[5] = { NT_SCALAR, NT_SHAPE(0), NT_SHAPE(7), NT_SHAPE(3, 0, 2), NT_SHAPE(1, 2, 1, 2, 1, 2, 2, 3) };
    for (int i = 0; i < 512; i++) data[i] = (unsigned char)(i % 2);
    for (int format = 0; format < FORMATS; format++) {
        for (int d = 0; d < (int)NT_DTYPE_COUNT; d++) {
            int good = 1;
            for (int s = 0; s < 5; s++) {
                nt_file_data a = array_of("a", (nt_dtype)d, shapes[s], data);
                nt_buffer out = { memory[0], sizeof memory[0], 0 }, measure = { NULL, 0, 0 }, second = { again, sizeof again, 0 };
                nt_status status = write_format(t, format, nt_io_buffer(&out), 1, &a);
                if (format != SAFETENSORS && d == NT_BF16) {
                    good = good && status == NT_ERROR_DTYPE && out.bytes == 0;
                    continue;
                }
                write_format(t, format, nt_io_buffer(&measure), 1, &a);
                write_format(t, format, nt_io_buffer(&second), 1, &a);
                good = good && status == NT_OK && measure.bytes == out.bytes && second.bytes == out.bytes;
                good = good && memcmp(again, memory[0], out.bytes) == 0;
                nt_file *f = nt_file_open_io(t, nt_io_memory(memory[0], out.bytes));
                good = good && nt_file_count(f) == 1 && array_returns(f, &a, format == NPY ? "" : "a");
                nt_file_close(f);
            }
            tap_ok(good, "%s of %s: written, measured, read", format_names[format], nt_dtype_name((nt_dtype)d));
        }
    }
    nt_tape_close(t);
}

static void test_many_arrays(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_file_data arrays[4];
    int count = some_arrays(arrays);
    for (int format = 0; format < NPY; format++) {
        nt_file *f = nt_file_open_io(t, nt_io_memory(memory[format], some_file(t, format)));
        int good = nt_file_count(f) == count;
        for (int i = 0; i < count; i++) good = good && array_returns(f, &arrays[i], arrays[i].name);
        tap_ok(good, "%s of four arrays", format_names[format]);
        TAP_CHECK(nt_file_find(f, "Conv_0/kerne") == NULL && nt_file_find(f, "z") == NULL && nt_file_find(f, NULL) == NULL);
        TAP_CHECK(nt_file_entry_at(f, -1) == NULL && nt_file_entry_at(f, 4) == NULL && nt_file_entry_at(f, 0) != NULL);
        nt_file_close(f);
        nt_buffer out = { memory[format], sizeof memory[format], 0 };
        tap_ok(write_format(t, format, nt_io_buffer(&out), 0, NULL) == NT_OK, "%s of no arrays is written", format_names[format]);
        f = nt_file_open_io(t, nt_io_memory(memory[format], out.bytes));
        tap_ok(f && nt_file_count(f) == 0, "%s of no arrays is read", format_names[format]);
        nt_file_close(f);
    }
    TAP_CHECK(nt_error(t) == NULL);
    nt_tape_close(t);
}

// In a safetensors file at an aligned address every array lies aligned, whatever the order they were given in.
static void test_in_place(void) {
    nt_tape *t = nt_tape_open(NULL);
    double buffer[512];
    nt_file_data arrays[3] = { array_of("a", NT_U8, NT_SHAPE(3), bytes), array_of("b", NT_F32, NT_SHAPE(3), doubles),
                               array_of("c", NT_F64, NT_SHAPE(3), doubles) };
    nt_buffer out = { buffer, sizeof buffer, 0 };
    nt_safetensors_write(t, nt_io_buffer(&out), 3, arrays);
    nt_file *f = nt_file_open_io(t, nt_io_memory(buffer, out.bytes));
    int good = 1;
    for (int i = 0; i < 3; i++) {
        const void *p = nt_file_in_place(f, nt_file_find(f, arrays[i].name));
        size_t size = nt_dtype_size(arrays[i].dtype);
        if (big_endian() && i > 0) good = good && !p;
        else good = good && p && (uintptr_t)p % size == 0 && memcmp(p, arrays[i].data, 3 * size) == 0;
    }
    tap_ok(good, "safetensors in memory are used in place");
    nt_file_close(f);
    memmove((char *)buffer + 1, buffer, out.bytes);
    f = nt_file_open_io(t, nt_io_memory((char *)buffer + 1, out.bytes));
    TAP_CHECK(nt_file_in_place(f, nt_file_find(f, "a")) != NULL);
    tap_ok(nt_file_in_place(f, nt_file_find(f, "c")) == NULL, "not in place where it is not aligned");
    nt_file_close(f);
    nt_tape_close(t);
}

static void test_conversions(void) {
    nt_tape *t = nt_tape_open(NULL);
    static unsigned char many[1000];
    static float floats[1000];
    static double wide[1000];
    for (int i = 0; i < 1000; i++) many[i] = (unsigned char)(i % 251);
    nt_buffer out = { memory[0], sizeof memory[0], 0 };
    nt_npy_write(t, nt_io_buffer(&out), NT_U8, NT_SHAPE(10, 100), many);
    nt_file *f = nt_file_open_io(t, nt_io_memory(memory[0], out.bytes));
    const nt_file_entry *entry = nt_file_entry_at(f, 0);
    int good = nt_file_read(f, entry, floats, NT_F32) == NT_OK && nt_file_read(f, entry, wide, NT_F64) == NT_OK;
    for (int i = 0; i < 1000; i++) good = good && floats[i] == (float)many[i] && wide[i] == (double)many[i];
    tap_ok(good, "u8 read as f32 and f64");
    good = nt_file_read_range(f, entry, 333, 600, floats, NT_F32) == NT_OK;
    for (int i = 0; i < 600; i++) good = good && floats[i] == (float)many[333 + i];
    tap_ok(good, "a range, converted");
    TAP_CHECK(nt_file_read_range(f, entry, 999, 2, floats, NT_F32) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_file_read_range(f, entry, -1, 2, floats, NT_F32) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_file_read_range(f, entry, 1, -1, floats, NT_F32) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_file_read_range(f, entry, 1000, 0, NULL, NT_F32) == NT_OK);
    TAP_CHECK(nt_file_read(f, entry, NULL, NT_F32) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_file_read(f, entry, floats, NT_DTYPE_COUNT) == NT_ERROR_DTYPE);
    nt_file_close(f);
    nt_tape_close(t);
}

// ---- files of other writers -------------------------------------------------------------------------------------------

static nt_file *sample(nt_tape *t, int i) { return nt_file_open_io(t, nt_io_memory(samples[i].data, samples[i].size)); }

static void test_samples(void) {
    nt_tape *t = nt_tape_open(NULL);
    static float floats[2000];
    static unsigned char w[2000];
    int good = 1;
    nt_file *f = sample(t, 0);
    TAP_CHECK(nt_file_count(f) == 2 && same_shape(nt_file_find(f, "x")->shape, NT_SHAPE(8, 5)));
    good = nt_file_read(f, nt_file_find(f, "x"), floats, NT_F32) == NT_OK;
    for (int i = 0; i < 40; i++) good = good && floats[i] == (float)i;
    tap_ok(good, "a deflated array");
    good = nt_file_read(f, nt_file_find(f, "y"), floats, NT_F32) == NT_OK;
    for (int i = 0; i < 12; i++) good = good && floats[i] == (float)i;
    tap_ok(good, "a deflated big-endian array in Fortran order, converted");
    good = nt_file_read_range(f, nt_file_find(f, "x"), 7, 20, floats, NT_F32) == NT_OK;
    for (int i = 0; i < 20; i++) good = good && floats[i] == (float)(i + 7);
    tap_ok(good, "a range of a deflated array");
    TAP_CHECK(nt_file_read_range(f, nt_file_find(f, "y"), 1, 2, floats, NT_F32) == NT_ERROR_ARGUMENT);
    nt_file_close(f);

    f = sample(t, 1);
    good = nt_file_read(f, nt_file_find(f, "w"), w, NT_U8) == NT_OK;
    for (int i = 0; i < 2000; i++) good = good && w[i] == (unsigned char)(i * i / 7 % 11 * (i % 13));
    tap_ok(good, "a block with codes of its own, in a zip with a comment");
    nt_file_close(f);

    f = sample(t, 2);
    good = nt_file_read(f, nt_file_entry_at(f, 0), doubles, NT_F64) == NT_OK;
    good = good && (big_endian() || nt_file_in_place(f, nt_file_entry_at(f, 0)) == NULL);
    for (int i = 0; i < 6; i++) good = good && doubles[i] == i;
    tap_ok(good, "big-endian .npy of version 2");
    nt_file_close(f);

    f = sample(t, 3);
    good = nt_file_read(f, nt_file_entry_at(f, 0), floats, NT_F32) == NT_OK;
    for (int i = 0; i < 24; i++) good = good && floats[i] == (float)i;
    tap_ok(good, ".npy of version 3 in Fortran order");
    nt_file_close(f);

    for (int k = 4; k < 6; k++) {
        f = sample(t, k);
        good = nt_file_read(f, nt_file_find(f, "a"), floats, NT_F32) == NT_OK;
        for (int i = 0; i < 4; i++) good = good && floats[i] == (float)i;
        const nt_file_entry *b = nt_file_find(f, "b");
        if (k == 5) good = good && nt_file_read(f, b, w, NT_U8) == NT_OK && w[299] == 299 % 256 && nt_file_in_place(f, b);
        tap_ok(good, k == 4 ? "a block that is not deflated" : "64-bit sizes in a zip");
        nt_file_close(f);
    }
    nt_tape_close(t);
}

// ---- hostile headers --------------------------------------------------------------------------------------------------

typedef struct hostile { const char *header; int data; const char *message; } hostile;      // message NULL: it is good

static nt_file *open_safetensors(nt_tape *t, const hostile *h, unsigned char *space) {
    size_t n = strlen(h->header);
    for (int i = 0; i < 8; i++) space[i] = (unsigned char)((uint64_t)n >> (8 * i) & 255);
    memcpy(space + 8, h->header, n);
    return nt_file_open_io(t, nt_io_memory(space, 8 + n + (size_t)h->data));
}

static nt_file *open_npy(nt_tape *t, const hostile *h, unsigned char *space) {
    size_t n = strlen(h->header);
    memcpy(space, "\x93NUMPY\1\0", 8);
    space[8] = (unsigned char)(n & 255);
    space[9] = (unsigned char)(n >> 8);
    memcpy(space + 10, h->header, n);
    return nt_file_open_io(t, nt_io_memory(space, 10 + n + (size_t)h->data));
}

typedef nt_file *open_fn(nt_tape *t, const hostile *h, unsigned char *space);
static void test_hostile(const char *format, open_fn *open, const hostile *cases, int count) {
    nt_tape *t = nt_tape_open(NULL);
    static unsigned char space[4096];
    for (int i = 0; i < count; i++) {
        memset(space, 1, sizeof space);
        nt_file *f = open(t, &cases[i], space);
        const char *error = nt_error(t);
        int good = cases[i].message ? !f && error && strstr(error, cases[i].message) : f && !error;
        tap_ok(good, "%s: %.90s", format, cases[i].header);
        if (!good) tap_note("%s", error ? error : "no error");
        nt_file_close(f);
        nt_error_clear(t);
    }
    nt_tape_close(t);
}

#define ONE "\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}"
static const hostile safetensors_cases[] = {
    { "{}", 0, NULL },
    { "{ \"a\" : { \"dtype\" : \"U8\", \"data_offsets\" : [ 0 , 4 ], \"shape\" : [ 2 , 2 ] } }  \n", 4, NULL },
    { "{\"\\u00e9\\ud83d\\ude00\\n\\/\":{" ONE "}", 1, NULL },
    { "{\"__metadata__\":{\"format\":\"pt\",\"b\":\"\\\"\"},\"a\":{" ONE "}", 1, NULL },
    { "{\"a\":{" ONE ",\"__metadata__\":{}}", 1, NULL },
    { "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[9],\"data_offsets\":[0,1]}}", 1, NULL },
    { "{\"a\":{" ONE "}", 0, "data_offsets outside" },
    { "{\"a\":{" ONE "}", 2, "do not fill" },
    { "{\"a\":{" ONE ",\"b\":{" ONE "}", 1, "overlap" },
    { "{\"a\":{" ONE ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}", 3, "gaps" },
    { "{\"a\":{" ONE ",\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "two arrays are named 'a'" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, "do not fit the shape" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "data_offsets outside" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, "expected dtype, shape and data_offsets" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0, "do not fit the shape" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, "do not fit the shape" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}", 0, "too large" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "whole number" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "expected ','" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", 1, "expected ','" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,],\"data_offsets\":[0,1]}}", 1, "whole number" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}", 1, "whole number" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "more than 8 axes" },
    { "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "expected dtype, shape and data_offsets" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 0, "expected dtype, shape and data_offsets" },
    { "{\"a\":{\"x\":[[[[[[[[[[]]]]]]]]]]}}", 0, "expected dtype, shape and data_offsets" },
    { "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":", 0, "expected dtype, shape and data_offsets" },
    { "{\"\\x\":{" ONE "}", 1, "bad character" },
    { "{\"\\u00\":{" ONE "}", 1, "bad character" },
    { "{\"\\ud800\":{" ONE "}", 1, "bad character" },
    { "{\"\\ud800\\u0041\":{" ONE "}", 1, "bad character" },
    { "{\"\\udc00\":{" ONE "}", 1, "bad character" },
    { "{\"\\u0000\":{" ONE "}", 1, "bad character" },
    { "{\"\xc0\x80\":{" ONE "}", 1, "bad character" },
    { "{\"\xe0\x80\x80\":{" ONE "}", 1, "bad character" },
    { "{\"\xed\xa0\x80\":{" ONE "}", 1, "bad character" },
    { "{\"\xf4\x90\x80\x80\":{" ONE "}", 1, "bad character" },
    { "{\"\xe2\x82\":{" ONE "}", 1, "bad character" },
    { "{\"\n\":{" ONE "}", 1, "bad character" },
    { "{\"a\":{" ONE ",}", 1, "expected '\"'" },
    { "{\"a\":{" ONE "}}", 1, "unexpected text" },
    { "{\"a\":{" ONE, 1, "expected '}'" },
    { "{\"a", 0, "bad character" },
    { "{\"__metadata__\":{\"a\":1}}", 0, "expected '\"'" },
    { "{\"__metadata__\":{\"a\":{}}}", 0, "expected '\"'" },
    { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "a second __metadata__" },
    { "[]", 0, "expected '{'" },
    { "  ", 0, "expected '{'" },
    { "{", 0, "is no safetensors" },
};

static const hostile npy_cases[] = {
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }   \n", 8, NULL },
    { "{'shape':(),'descr':'|b1','fortran_order':True}", 1, NULL },
    { "{'descr': '<U4', 'fortran_order': False, 'shape': (2,), }", 8, NULL },
    { "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", 8, NULL },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 7, "does not fit" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 9, "does not fit" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 0, "does not fit" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1), }", 4, "more than 8 axes" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", 8, "whole number" },
    { "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }", 8, "expected True or False" },
    { "{'descr': '<f4', 'shape': (2,), }", 8, "expected descr, fortran_order and shape" },
    { "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 8, "expected descr, fortran_order and shape" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } + 1", 8, "unexpected text" },
    { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 8, "expected ','" },
    { "{'de\\x41': '<f4'}", 8, "bad character" },
    { "__import__('os')", 8, "expected '{'" },
    { "", 8, "expected '{'" },
};

// ---- truncated and damaged files --------------------------------------------------------------------------------------

static int all_readable(nt_file *f) {
    static unsigned char data[4096];
    int good = f != NULL;
    for (int i = 0; i < nt_file_count(f); i++) {
        const nt_file_entry *entry = nt_file_entry_at(f, i);
        good = good && entry->bytes <= sizeof data && nt_file_read(f, entry, data, entry->dtype) == NT_OK;
    }
    return good;
}

static void test_truncated(void) {
    nt_tape *t = nt_tape_open(NULL);
    for (int k = 0; k < FORMATS + SAMPLE_COUNT; k++) {
        const unsigned char *data = k < FORMATS ? memory[k] : samples[k - FORMATS].data;
        size_t size = k < FORMATS ? some_file(t, k) : samples[k - FORMATS].size;
        int opened = 0;
        for (size_t n = 0; n < size; n++) {
            unsigned char *copy = (unsigned char *)malloc(n + 1);
            memcpy(copy, data, n);
            nt_file *f = nt_file_open_io(t, nt_io_memory(copy, n));
            opened += f != NULL || nt_error(t) == NULL;
            nt_file_close(f);
            nt_error_clear(t);
            free(copy);
        }
        tap_ok(opened == 0, "%s %d cut at each of %d lengths is refused", k < FORMATS ? format_names[k] : "sample", k, (int)size);
    }
    nt_tape_close(t);
}

// One bit at a time: in a zip the CRC of the data and the two directories leave few places where that is not noticed.
static void test_damaged_zip(void) {
    nt_tape *t = nt_tape_open(NULL);
    unsigned char copy[1024];
    nt_file *good = sample(t, 1);
    static unsigned char want[2000], got[2000];
    nt_file_read(good, nt_file_entry_at(good, 0), want, NT_U8);
    nt_file_close(good);
    int wrong = 0;
    for (size_t bit = 0; bit < samples[1].size * 8; bit++) {
        memcpy(copy, samples[1].data, samples[1].size);
        copy[bit / 8] = (unsigned char)(copy[bit / 8] ^ 1u << bit % 8);
        nt_file *f = nt_file_open_io(t, nt_io_memory(copy, samples[1].size));
        const nt_file_entry *entry = nt_file_find(f, "w");
        if (entry && entry->bytes == 2000 && nt_file_read(f, entry, got, NT_U8) == NT_OK) wrong += memcmp(got, want, 2000) != 0;
        nt_file_close(f);
        nt_error_clear(t);
    }
    tap_ok(wrong == 0, "no damaged bit of a zip gives wrong data");
    nt_tape_close(t);
}

// ---- memory and hooks that fail ---------------------------------------------------------------------------------------

static void test_memory(void) {
    for (int k = 0; k < FORMATS + SAMPLE_COUNT; k++) {
        nt_tape *writer = nt_tape_open(NULL);
        const unsigned char *data = k < FORMATS ? memory[k] : samples[k - FORMATS].data;
        size_t size = k < FORMATS ? some_file(writer, k) : samples[k - FORMATS].size;
        nt_tape_close(writer);
        int refused = 0, worked = 0, wrong = 0;
        for (size_t more = 0; more < 60000; more += 232) {
            nt_tape_desc desc;
            memset(&desc, 0, sizeof desc);
            desc.memory_size = nt_tape_size_min() + more;
            desc.memory = malloc(desc.memory_size);
            nt_tape *t = nt_tape_open(&desc);
            nt_file *f = nt_file_open_io(t, nt_io_memory(data, size));
            int good = all_readable(f);
            nt_file_close(f);
            worked += good;
            refused += !good;
            wrong += good ? nt_error(t) != NULL : worked > 0 || nt_error_status(t) != NT_ERROR_MEMORY;
            nt_tape_close(t);
            free(desc.memory);
        }
        const char *name = k < FORMATS ? format_names[k] : "sample";
        tap_ok(wrong == 0 && refused > 0 && worked > 0, "%s %d: too little memory is an error, enough is enough", name, k);
    }
}

static void test_memory_returns(void) {
    nt_tape_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.memory_size = nt_tape_size_min() + 60000;
    desc.memory = malloc(desc.memory_size);
    nt_tape *t = nt_tape_open(&desc);
    nt_file_data arrays[4];
    int good = 1, count = some_arrays(arrays);
    for (int i = 0; i < 100; i++) {
        nt_buffer out = { NULL, 0, 0 };
        nt_file *outer = sample(t, 0), *inner = sample(t, 3);
        good = good && all_readable(inner) && all_readable(outer) && nt_npz_write(t, nt_io_buffer(&out), count, arrays) == NT_OK;
        nt_file_close(inner);
        nt_file_close(outer);
        good = good && !nt_file_open_io(t, nt_io_memory(samples[0].data, 100));
    }
    tap_ok(good, "closed, failed and written files give their memory back");
    nt_tape_close(t);
    free(desc.memory);
}

typedef struct failing { const unsigned char *data; size_t size; int calls, fail_at, closed; } failing;

static int failing_read(void *user, uint64_t offset, void *out, size_t n) {
    failing *x = (failing *)user;
    if (offset > x->size || n > x->size - offset) x->closed = 1000;                       // a range outside: never asked for
    if (x->calls++ == x->fail_at || x->closed) return 0;
    memcpy(out, x->data + (size_t)offset, n);
    return 1;
}

static int failing_write(void *user, const void *data, size_t n) {
    failing *x = (failing *)user;
    (void)data;
    (void)n;
    return x->calls++ != x->fail_at && !x->closed;
}

static int failing_close(void *user) {
    failing *x = (failing *)user;
    x->closed++;
    return x->calls++ != x->fail_at;
}

static nt_io failing_io(failing *x, int write) {
    nt_io io;
    memset(&io, 0, sizeof io);
    if (write) io.write = failing_write;
    else io.read = failing_read;
    io.close = failing_close;
    io.user = x;
    io.size = x->size;
    return io;
}

static void test_hooks(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_file_data arrays[4];
    int count = some_arrays(arrays);
    for (int format = 0; format < FORMATS; format++) {
        size_t size = some_file(t, format);
        int wrong = 0, steps = 0;
        for (int done = 0; !done; steps++) {
            failing x = { memory[format], size, 0, steps, 0 };
            nt_file *f = nt_file_open_io(t, failing_io(&x, 0));
            done = all_readable(f);
            nt_file_close(f);
            wrong += x.closed != 1 || (nt_error_status(t) == NT_ERROR_FILE) == done;
            nt_error_clear(t);
        }
        tap_ok(wrong == 0 && steps > 3, "%s: a read that fails, each of %d in turn", format_names[format], steps - 1);
        wrong = steps = 0;
        for (int done = 0; !done; steps++) {
            failing x = { NULL, 0, 0, steps, 0 };
            done = write_format(t, format, failing_io(&x, 1), count, arrays) == NT_OK;
            wrong += x.closed != 1 || (nt_error_status(t) == NT_ERROR_FILE) == done;
            nt_error_clear(t);
        }
        tap_ok(wrong == 0 && steps > 3, "%s: a write or close that fails, each of %d in turn", format_names[format], steps - 1);
        nt_buffer out = { NULL, 0, 0 }, small;
        write_format(t, format, nt_io_buffer(&out), count, arrays);
        small = out;
        small.data = memory[format];
        small.capacity = out.bytes - 1;
        small.bytes = 0;
        nt_status status = write_format(t, format, nt_io_buffer(&small), count, arrays);
        tap_ok(status == NT_ERROR_FILE, "%s: a buffer that is a byte too small", format_names[format]);
        nt_error_clear(t);
    }
    nt_tape_close(t);
}

// A file that becomes another one of the same size while its header is read: any answer will do but a crash.
static int changing_read(void *user, uint64_t offset, void *out, size_t n) {
    failing *x = (failing *)user;
    const unsigned char *from = x->data + (x->calls++ >= x->fail_at ? x->size : 0);
    memcpy(out, from + (size_t)offset, n);
    return 1;
}

static void test_changing(void) {
    static const char *const headers[4] = {
        "{\"a name that is much longer than before ............................\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
        "{}" };
    nt_tape *t = nt_tape_open(NULL);
    unsigned char space[512];
    int opened = 0, refused = 0;
    for (int k = 0; k < 16; k++) {
        size_t n = strlen(headers[0]), size = n + 9;
        memset(space, 0, sizeof space);
        space[0] = space[size] = (unsigned char)n;
        memset(space + 8, ' ', n);
        memset(space + size + 8, ' ', n);
        memcpy(space + 8, headers[k / 4], strlen(headers[k / 4]));
        memcpy(space + size + 8, headers[k % 4], strlen(headers[k % 4]));
        for (int calls = 0; calls < 8; calls++) {
            failing x = { space, size, 0, calls, 0 };
            nt_io io = failing_io(&x, 0);
            io.read = changing_read;
            nt_file *f = nt_file_open_io(t, io);
            opened += f != NULL && all_readable(f);
            refused += f == NULL && nt_error_status(t) == NT_ERROR_FILE;
            nt_file_close(f);
            nt_error_clear(t);
        }
    }
    int all = opened + refused == 128;
    tap_ok(opened > 0 && refused > 0 && all, "a file that changes while it is read: %d opened, %d refused", opened, refused);
    nt_tape_close(t);
}

// ---- arguments, and files of the C library ----------------------------------------------------------------------------

static nt_status write_one(nt_tape *t, nt_dtype dtype, nt_shape shape, const char *name, const void *data) {
    nt_buffer out = { NULL, 0, 0 };
    nt_file_data a[2] = { array_of("first", NT_F64, NT_SHAPE(2), doubles), array_of(name, dtype, shape, data) };
    nt_status status = nt_safetensors_write(t, nt_io_buffer(&out), 2, a), other = nt_npz_write(t, nt_io_buffer(&out), 2, a);
    nt_error_clear(t);
    return out.bytes == 0 && status == other ? status : NT_OK;
}

static void test_arguments(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_io none = nt_io_memory(bytes, 5);
    nt_shape bad = NT_SHAPE(1);
    TAP_CHECK(write_one(t, NT_F32, NT_SHAPE(2), NULL, doubles) == NT_ERROR_ARGUMENT);
    TAP_CHECK(write_one(t, NT_F32, NT_SHAPE(2), "first", doubles) == NT_ERROR_ARGUMENT);
    TAP_CHECK(write_one(t, NT_F32, NT_SHAPE(2), "\xff", doubles) == NT_ERROR_ARGUMENT);
    TAP_CHECK(write_one(t, NT_F32, NT_SHAPE(2), "a", NULL) == NT_ERROR_ARGUMENT);
    TAP_CHECK(write_one(t, NT_DTYPE_COUNT, NT_SHAPE(2), "a", doubles) == NT_ERROR_DTYPE);
    TAP_CHECK(write_one(t, NT_F32, NT_SHAPE(-2), "a", doubles) == NT_ERROR_SHAPE);
    TAP_CHECK(write_one(t, NT_F32, NT_SHAPE(INT64_MAX, INT64_MAX), "a", doubles) == NT_ERROR_SHAPE);
    bad.rank = 9;
    TAP_CHECK(write_one(t, NT_F32, bad, "a", doubles) == NT_ERROR_SHAPE);
    TAP_CHECK(nt_npy_write(t, none, NT_F32, NT_SHAPE(1), doubles) == NT_ERROR_ARGUMENT);
    nt_error_clear(t);
    nt_buffer out = { NULL, 0, 0 };
    TAP_CHECK(nt_file_open_io(t, nt_io_buffer(&out)) == NULL && nt_error_status(t) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_file_open_io(NULL, none) == NULL);
    TAP_CHECK(nt_npy_write(NULL, nt_io_buffer(&out), NT_F64, NT_SHAPE(2), doubles) == NT_ERROR_ARGUMENT);
    nt_file_close(NULL);
    TAP_CHECK(nt_file_count(NULL) == 0 && !nt_file_entry_at(NULL, 0) && !nt_file_find(NULL, "a") && !nt_file_in_place(NULL, NULL));
    TAP_CHECK(nt_file_read(NULL, NULL, doubles, NT_F64) != NT_OK);
    nt_error_clear(t);
    nt_file *f = sample(t, 0);
    TAP_CHECK(nt_file_read(f, nt_file_find(f, "nothing"), doubles, NT_F64) == NT_ERROR_ARGUMENT && nt_error(t));
    nt_file_close(f);
    nt_tape_close(t);
}

static void test_unreadable(void) {
    nt_tape *t = nt_tape_open(NULL);
    static unsigned char space[256];
    nt_file *f = open_npy(t, &npy_cases[2], space);
    const nt_file_entry *entry = nt_file_entry_at(f, 0);
    TAP_CHECK(entry && entry->dtype == NT_DTYPE_COUNT && entry->bytes == 0 && nt_file_in_place(f, entry) == NULL);
    TAP_CHECK(nt_file_read(f, entry, doubles, NT_F32) == NT_ERROR_DTYPE && nt_error(t));
    nt_file_close(f);
    nt_tape_close(t);
}

static void test_stdio(void) {
    static const char path[] = "test_files.tmp";
    nt_tape *t = nt_tape_open(NULL);
    nt_file_data arrays[4];
    int count = some_arrays(arrays);
    for (int format = 0; format < FORMATS; format++) {
        int good = write_format(t, format, nt_io_open(t, path, "wb"), count, arrays) == NT_OK;
        nt_file *f = nt_file_open(t, path);
        good = good && nt_file_count(f) == (format == NPY ? 1 : count) && all_readable(f);
        good = good && array_returns(f, &arrays[0], format == NPY ? "" : arrays[0].name);
        tap_ok(good, "%s by its path", format_names[format]);
        nt_file_close(f);
    }
    remove(path);
    TAP_CHECK(nt_error(t) == NULL);
    TAP_CHECK(nt_file_open(t, path) == NULL && nt_error(t) && strstr(nt_error(t), path) && strstr(nt_error(t), "no such file"));
    nt_error_clear(t);
    TAP_CHECK(nt_npy_write(t, nt_io_open(t, "no/such/directory.npy", "wb"), NT_F64, NT_SHAPE(2), doubles) != NT_OK);
    TAP_CHECK(nt_error(t) && strstr(nt_error(t), "no/such") && strstr(nt_error(t), "no such file or directory"));
    nt_error_clear(t);
    TAP_CHECK(nt_file_open(t, ".") == NULL && nt_error(t) && strstr(nt_error(t), "it is a directory"));
    nt_error_clear(t);
    TAP_CHECK(nt_npy_write(t, nt_io_open(t, ".", "wb"), NT_F64, NT_SHAPE(2), doubles) != NT_OK && nt_error(t) && strstr(nt_error(t), "it is a directory"));
    nt_error_clear(t);
    char inside[64]; // of a file
    FILE *plain = fopen(path, "wb");
    snprintf(inside, sizeof inside, "%s/file.npy", path);
    TAP_CHECK(plain && fclose(plain) == 0 && nt_file_open(t, inside) == NULL && strstr(nt_error(t), "no directory"));
    nt_error_clear(t);
    TAP_CHECK(nt_file_open(t, path) == NULL && nt_error(t)); // empty
    remove(path);
    TAP_CHECK(nt_file_open(t, NULL) == NULL && nt_file_open(NULL, path) == NULL);
    nt_tape_close(t);
}

int main(void) {
    test_round_trips();
    test_many_arrays();
    test_in_place();
    test_conversions();
    test_samples();
    test_hostile("safetensors", open_safetensors, safetensors_cases, (int)(sizeof safetensors_cases / sizeof safetensors_cases[0]));
    test_hostile("npy", open_npy, npy_cases, (int)(sizeof npy_cases / sizeof npy_cases[0]));
    test_truncated();
    test_damaged_zip();
    test_memory();
    test_memory_returns();
    test_hooks();
    test_changing();
    test_arguments();
    test_unreadable();
    test_stdio();
    return tap_end();
}
