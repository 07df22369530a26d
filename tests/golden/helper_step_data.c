// helper_step_data FOLDER: writes what make_step_golden.py trains from. For each case of step_cases.h:
// NAME.txt with lines `set NAME VALUE` (shape and optimizer) and `tensor UNIT NAME MATRICES ROWS COLUMNS
// DECAY`, NAME.weights with the initial values of the tensors in that order (f32), and NAME.tokens with
// inputs, then targets, of each step's batch (i32).
#include "strategies/tokens.h"
#include "tests/golden/step_cases.h"

#include <stdlib.h>

static FILE *open_file(const char *folder, const char *name, const char *ending)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, ending);
    FILE *file = fopen(path, "we");
    if (!file) {
        perror(path);
        exit(1);
    }
    return file;
}

static void set(FILE *out, const char *name, double value)
{
    fprintf(out, "set %s %.17g\n", name, value);
}

static void write_settings(const step_case *c, const ptb_model_shape *s, FILE *out)
{
    set(out, "layers", (double)s->layers);
    set(out, "hidden", (double)s->hidden);
    set(out, "heads", (double)s->heads);
    set(out, "kv_heads", (double)s->kv_heads);
    set(out, "head_width", (double)s->head_width);
    set(out, "sequence", (double)s->sequence);
    set(out, "rms_norm", s->norm == PTB_RMS_NORM);
    set(out, "epsilon", s->epsilon);
    set(out, "rotary", s->position == PTB_ROTARY_POSITIONS);
    set(out, "rotary_base", s->rotary_base);
    set(out, "swiglu", s->activation == PTB_SWIGLU);
    set(out, "experts", (double)s->experts);
    set(out, "top_k", (double)s->top_k);
    set(out, "balance", s->balance);
    set(out, "normalise", s->normalise);
    fprintf(out, "set optimizer %s\n", c->optimizer);
    set(out, "rate", c->rate);
    set(out, "warmup", (double)c->warmup);
    set(out, "beta1", c->beta1);
    set(out, "beta2", c->beta2);
    set(out, "decay", c->decay);
    set(out, "momentum", c->momentum);
    set(out, "clip", c->clip);
    set(out, "batch", (double)c->batch);
    set(out, "steps", c->steps);
}

static void write_weights(const step_case *c, const ptb_layout *layout, FILE *out, FILE *weights)
{
    for (size_t u = 0; u < layout->units; u++) {
        const ptb_unit *unit = &layout->unit[u];
        float *values = calloc(unit->count, sizeof *values);
        if (!values)
            exit(1);
        ptb_layout_fill(layout, c->seed, u, values);
        for (size_t t = 0; t < unit->tensors; t++) {
            const ptb_tensor *x = &unit->tensor[t];
            fprintf(out, "tensor %zu %s %zu %zu %zu %d\n", u, x->name, x->matrices, x->rows, x->columns,
                    x->decay);
            fwrite(values + x->first, sizeof *values, ptb_tensor_count(x), weights);
        }
        free(values);
    }
}

static int write_tokens(const step_case *c, FILE *out)
{
    int64_t length = c->shape.sequence;
    ptb_tokens_config config = {.path = PTB_SOURCE_DIR "/" STEP_CASE_TEXT,
                                .seed = c->seed,
                                .length = length,
                                .vocabulary = c->shape.vocabulary};
    ptb_tokens *tokens;
    size_t batch = (size_t)(c->batch * length);
    int32_t *inputs = calloc(2 * batch, sizeof *inputs), *targets = inputs + batch;
    if (!inputs || ptb_tokens_open(&config, &tokens) != PTB_OK)
        return 1;
    for (int step = 0; step < c->steps; step++) {
        for (int64_t i = 0; i < c->batch; i++)
            if (ptb_tokens_sequence(tokens, (uint64_t)(step * c->batch + i), inputs + i * length,
                                    targets + i * length, NULL) != PTB_OK)
                return 1;
        fwrite(inputs, sizeof *inputs, 2 * batch, out);
    }
    ptb_tokens_close(tokens);
    free(inputs);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    int failed = 0;
    for (size_t i = 0; i < STEP_CASES && !failed; i++) {
        const step_case *c = &step_cases[i];
        ptb_layout layout;
        if (ptb_layout_init(&layout, &c->shape, NULL) != PTB_OK)
            return 1;
        FILE *text = open_file(argv[1], c->name, "txt"), *weights = open_file(argv[1], c->name, "weights");
        FILE *tokens = open_file(argv[1], c->name, "tokens");
        write_settings(c, &layout.shape, text);
        write_weights(c, &layout, text, weights);
        failed = write_tokens(c, tokens);
        failed |= fclose(text) | fclose(weights) | fclose(tokens);
        ptb_layout_release(&layout);
    }
    return failed != 0;
}
