// The 1,797 handwritten digits of examples/data: the first 1,437 are learned from, the last 360, which other people wrote, are the test.
#ifndef EXAMPLES_DIGITS_DATA_H
#define EXAMPLES_DIGITS_DATA_H
#include "../nttrain.h"
#include <stdio.h>
#include <string.h>

enum { TRAIN = 1437, TEST = 360, IMAGES = TRAIN + TEST, SIDE = 8, PIXELS = SIDE * SIDE };

typedef struct digits_data { // the host's: pictures of 8 by 8 bytes, each 0 to 16
    uint8_t pixel[IMAGES * PIXELS], label[IMAGES];
} digits_data;

static void explain(const nt_tape *t, nt_status status, char *error, size_t size) {
    const char *message = nt_error(t);
    error[0] = 0;
    if (status != NT_OK) snprintf(error, size, "%s: %s", nt_status_name(status), message ? message : "nothing more is known");
}

// Reads one array of bytes. The file may be anything, so its shape is compared before its data are read.
static nt_status load_array(nt_tape *t, const char *folder, const char *name, nt_shape shape, uint8_t *to) {
    char path[768];
    snprintf(path, sizeof path, "%s%s", folder, name);
    nt_file *file = nt_file_open(t, path);
    const nt_file_entry *entry = nt_file_entry_at(file, 0);
    nt_status status = file ? NT_OK : NT_ERROR_FILE;
    if (entry && memcmp(&entry->shape, &shape, sizeof shape) != 0) status = NT_ERROR_SHAPE;
    if (status == NT_OK) status = nt_file_read(file, entry, to, NT_U8);
    nt_file_close(file);
    return status;
}

// The images and labels of a folder (its name ends in a slash). 0: read; otherwise error says what went wrong.
static int digits_load(const nt_tape_desc *desc, const char *folder, digits_data *data, char *error, size_t error_size) {
    nt_tape *t = nt_tape_open(desc);
    nt_status status = load_array(t, folder, "digits_images.npy", NT_SHAPE(IMAGES, SIDE, SIDE), data->pixel);
    if (status == NT_OK) status = load_array(t, folder, "digits_labels.npy", NT_SHAPE(IMAGES), data->label);
    explain(t, status, error, error_size);
    nt_tape_close(t);
    return status != NT_OK;
}
#endif
