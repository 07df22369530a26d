// Arrays as blobs. A blob is two bytes (what it is, version), then one zstd frame of the values,
// byte-shuffled: first byte 0 of all records, then byte 1 of all records, and so on, which makes times
// compress well.
//   'F' 1: float64, little-endian, 8 bytes a record
//   'S' 1: spans, 76 bytes a record, little-endian: i64 begin minus the previous record's begin (the first:
//          minus 0), i64 end minus begin, i32 rank, i16 stream, u8 kind, u8 phase, i32 unit, i32 microbatch,
//          i32 axis, u64 bytes, u64 correlation, 24 bytes of name, zero-padded
#ifndef PTB_RESULTS_BLOB_H
#define PTB_RESULTS_BLOB_H

#include "core/status.h"
#include "core/trace.h"

#include <stddef.h>

typedef struct {
    void *data; // heap; NULL when there is nothing to store
    size_t bytes;
} ptb_blob;
void ptb_blob_release(ptb_blob *blob);

// count 0 gives an empty blob. NO_MEMORY or SYSTEM, logged.
ptb_status ptb_blob_from_f64(const double *values, size_t count, ptb_blob *blob);
ptb_status ptb_blob_from_spans(const ptb_span *spans, size_t count, ptb_blob *blob);

// Heap arrays; bytes 0 gives count 0 and NULL. STORE, logged, when the blob is damaged.
ptb_status ptb_blob_to_f64(const void *data, size_t bytes, double **values, size_t *count);
ptb_status ptb_blob_to_spans(const void *data, size_t bytes, ptb_span **spans, size_t *count);

#endif
