// What this program was built with.
#ifndef PTB_BENCH_BUILD_INFO_H
#define PTB_BENCH_BUILD_INFO_H

#include "core/text.h"

// JSON object name -> version, for the database.
void ptb_build_json(ptb_text *out);
// "name value" lines, for `ptbench version`.
void ptb_build_describe(ptb_text *out);

// "off", "cuda" or "sim": which GPU back-ends.
const char *ptb_build_gpu(void);

#endif
