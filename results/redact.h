// The environment as it is stored with a run: only the variables that can change a measurement, and no
// secrets.
#ifndef PTB_RESULTS_REDACT_H
#define PTB_RESULTS_REDACT_H

#include "core/text.h"

// Appends a JSON object, name -> value in order of name, of those variables of `environ` ("NAME=value",
// NULL-terminated) that matter: of MPI, UCX, NCCL, CUDA, OpenMP, the math libraries, Slurm, the loader,
// malloc, the locale, and ptbench's own. A value is "***" when the name looks like a secret's (holds KEY,
// TOKEN, SECRET, PASS, CREDENTIAL, AUTH, COOKIE, SESSION or PRIVATE, in any case) or the value holds
// "://user:password@".
void ptb_redact_environment(char **environ, ptb_text *json);
// Appends a command line or a part of one, as text, in which the values of words NAME=value are masked by the
// same rules (as in `mpirun -x NAME=value`).
void ptb_redact_words(const char *words, ptb_text *out);

#endif
