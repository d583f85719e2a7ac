// Fuzzes the readers of safetensors, .npy and .npz: whatever the bytes are, opening and reading give arrays or an error, and
// what was read can be written and read again.
//
//     clang -fsanitize=fuzzer,address,undefined fuzz_files.c        libFuzzer
//     cc -DFUZZ_STANDALONE -fsanitize=address,undefined fuzz_files.c
//     fuzz_files [COUNT [SEED]]                                     COUNT mutations of good files, always the same ones
//     fuzz_files FILE...                                            these inputs, once each
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#include "../nttrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARRAYS 16
#define ARRAY_BYTES (1 << 16)

static void fuzz_fail(const char *what) {
    fprintf(stderr, "fuzz_files: %s\n", what);
    abort();
}

// Writes the arrays that could be read as safetensors and opens that: a good file must come out of any.
static void fuzz_rewrite(nt_tape *t, int count, const nt_file_data *arrays) {
    nt_buffer out = { NULL, 0, 0 };
    if (nt_safetensors_write(t, nt_io_buffer(&out), count, arrays) != NT_OK) return;       // "__metadata__" is a good name in an .npz
    out.data = malloc(out.bytes);
    out.capacity = out.bytes;
    out.bytes = 0;
    if (nt_safetensors_write(t, nt_io_buffer(&out), count, arrays) != NT_OK) fuzz_fail("the second write differs from the first");
    nt_error_clear(t);
    nt_file *f = nt_file_open_io(t, nt_io_memory(out.data, out.bytes));
    if (!f && nt_error_status(t) != NT_ERROR_MEMORY) fuzz_fail("what was written cannot be opened");
    for (int i = 0; f && i < count; i++) {
        const nt_file_entry *entry = nt_file_find(f, arrays[i].name);
        const void *data = nt_file_in_place(f, entry);
        if (!entry || entry->dtype != arrays[i].dtype || entry->shape.rank != arrays[i].shape.rank) fuzz_fail("an array changed");
        if (data && memcmp(data, arrays[i].data, (size_t)entry->bytes) != 0) fuzz_fail("data changed");
    }
    nt_file_close(f);
    free(out.data);
}

static void fuzz_read(nt_tape *t, nt_file *f) {
    nt_file_data arrays[ARRAYS];
    int count = 0;
    for (int i = 0; i < nt_file_count(f) && count < ARRAYS; i++) {
        const nt_file_entry *entry = nt_file_entry_at(f, i);
        if (nt_file_find(f, entry->name) != entry) fuzz_fail("find differs from entry_at");
        if (entry->bytes > ARRAY_BYTES) continue;
        size_t size = nt_dtype_size(entry->dtype), n = size ? (size_t)entry->bytes / size : 0;
        void *data = malloc(n * size + 1), *converted = malloc(n * 8 + 1);
        int good = nt_file_read(f, entry, data, entry->dtype) == NT_OK;
        nt_file_read(f, entry, converted, (nt_dtype)((i + count) % (int)NT_DTYPE_COUNT));
        if (n > 0) nt_file_read_range(f, entry, (int64_t)(n / 3), (int64_t)(n - n / 3), converted, NT_F32);
        free(converted);
        arrays[count].name = entry->name;
        arrays[count].dtype = entry->dtype;
        arrays[count].shape = entry->shape;
        arrays[count].data = data;
        if (good) count++;
        else free(data);
    }
    fuzz_rewrite(t, count, arrays);
    while (count > 0) free((void *)(uintptr_t)arrays[--count].data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ data[i]) * 16777619u;
    nt_tape_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.memory_size = nt_tape_size_min() + (hash % 4 ? 400000 : hash / 4 % 60000);        // sometimes there is too little memory
    desc.memory = malloc(desc.memory_size);
    uint8_t *copy = (uint8_t *)malloc(size + 1);                                           // of just that size, for the address sanitizer
    if (size > 0) memcpy(copy, data, size);
    nt_tape *t = nt_tape_open(&desc);
    nt_file *f = nt_file_open_io(t, nt_io_memory(copy, size));
    if (f) fuzz_read(t, f);
    else if (!nt_error(t)) fuzz_fail("an error without a message");
    nt_file_close(f);
    nt_tape_close(t);
    free(copy);
    free(desc.memory);
    return 0;
}

#ifdef FUZZ_STANDALONE
#include "tap.h"
#include "files_samples.h"

typedef struct fuzz_file { uint8_t *data; size_t size; } fuzz_file;

static uint32_t fuzz_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

static void fuzz_seed(fuzz_file *file, const void *data, size_t size) {
    file->data = (uint8_t *)malloc(size);
    file->size = size;
    memcpy(file->data, data, size);
}

static int fuzz_seeds(fuzz_file *files) {
    static const float values[24] = { 1, 2, 3, -4.5f };
    static unsigned char memory[4096];
    nt_tape *t = nt_tape_open(NULL);
    nt_file_data arrays[4] = { { "Conv_0/kernel", NT_F32, { 3, { 2, 3, 4 } }, values }, { "b", NT_U8, { 1, { 5 } }, values },
                               { "\"\xc3\xa9\\", NT_BOOL, { 0, { 0 } }, values }, { "none", NT_F64, { 2, { 0, 7 } }, NULL } };
    int count = 0;
    for (int format = 0; format < 3; format++) {
        nt_buffer out = { memory, sizeof memory, 0 };
        if (format == 0) nt_safetensors_write(t, nt_io_buffer(&out), 4, arrays);
        else if (format == 1) nt_npz_write(t, nt_io_buffer(&out), 4, arrays);
        else nt_npy_write(t, nt_io_buffer(&out), NT_F32, arrays[0].shape, values);
        fuzz_seed(&files[count++], memory, out.bytes);
    }
    nt_tape_close(t);
    for (int i = 0; i < SAMPLE_COUNT; i++) fuzz_seed(&files[count++], samples[i].data, samples[i].size);
    return count;
}

// One to eight changes; `size` may shrink, or grow up to `most`.
static size_t fuzz_mutate(uint8_t *p, size_t size, size_t most, const fuzz_file *other, uint64_t *state) {
    static const char bytes[] = "\0\1\2\177\200\377 0129{}[](),:\"'\\uT<>|fbi";
    for (uint32_t n = 1 + fuzz_random(state) % 8; n > 0 && size > 0; n--) {
        size_t at = fuzz_random(state) % size, length = 1 + fuzz_random(state) % 16, from = fuzz_random(state) % other->size;
        switch (fuzz_random(state) % 8) {
        case 0: p[at] = (uint8_t)(p[at] ^ 1u << fuzz_random(state) % 8); break;
        case 1: p[at] = (uint8_t)fuzz_random(state); break;
        case 2: p[at] = (uint8_t)bytes[fuzz_random(state) % (sizeof bytes - 1)]; break;
        case 3: memset(p + at, fuzz_random(state) % 2 ? 0xff : 0, length < size - at ? length : size - at); break;
        case 4: if (fuzz_random(state) % 4 == 0) size = at; break;
        case 5:                                                                            // a stretch goes away
            length = length < size - at ? length : size - at;
            memmove(p + at, p + at + length, size - at - length);
            size -= length;
            break;
        case 6:                                                                            // a stretch is doubled
            length = length < size - at ? length : size - at;
            if (length > most - size) break;
            memmove(p + at + length, p + at, size - at);
            size += length;
            break;
        default:                                                                           // a stretch of another file
            length = length < size - at ? length : size - at;
            memcpy(p + at, other->data + from, length < other->size - from ? length : other->size - from);
        }
    }
    return size;
}

static void fuzz_replay(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fuzz_fail("an input cannot be opened");
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    uint8_t *data = (uint8_t *)malloc(size + 1);
    rewind(file);
    if (fread(data, 1, size, file) != size) fuzz_fail("an input cannot be read");
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
}

int main(int argc, char **argv) {
    static uint8_t bytes[8192];
    fuzz_file files[3 + SAMPLE_COUNT];
    int seeds = fuzz_seeds(files);
    if (argc > 1 && (argv[1][0] < '0' || argv[1][0] > '9')) {
        for (int i = 1; i < argc; i++) fuzz_replay(argv[i]);
        tap_ok(1, "%d inputs", argc - 1);
        return tap_end();
    }
    long count = argc > 1 ? atol(argv[1]) : 20000;
    uint64_t state = 0x9e3779b97f4a7c15u + (argc > 2 ? strtoull(argv[2], NULL, 0) : 0);
    for (long k = 0; k < count; k++) {
        const fuzz_file *file = &files[fuzz_random(&state) % (uint32_t)seeds], *other = &files[fuzz_random(&state) % (uint32_t)seeds];
        memcpy(bytes, file->data, file->size);
        LLVMFuzzerTestOneInput(bytes, fuzz_mutate(bytes, file->size, sizeof bytes, other, &state));
    }
    while (seeds > 0) free(files[--seeds].data);
    tap_ok(1, "%ld mutated files", count);
    return tap_end();
}
#endif
