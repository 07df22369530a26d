// Tokens: the generator's text and a file's bytes are a function of the sequence number alone.
#include "strategies/tokens.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LENGTH = 16 };

static ptb_status open_tokens(const char *path, uint64_t seed, int64_t length, int64_t vocabulary,
                              ptb_tokens **tokens)
{
    ptb_tokens_config config = {.path = path, .seed = seed, .length = length, .vocabulary = vocabulary};
    return ptb_tokens_open(&config, tokens);
}

static void sequence(const ptb_tokens *tokens, uint64_t index, int32_t *inputs, int32_t *targets)
{
    assert_int_equal(ptb_tokens_sequence(tokens, index, inputs, targets, NULL), PTB_OK);
}

static void test_generator(void **state)
{
    (void)state;
    ptb_tokens *a, *b, *other;
    int32_t inputs[2][LENGTH], targets[2][LENGTH];
    assert_int_equal(open_tokens(NULL, 1, LENGTH, 256, &a), PTB_OK);
    assert_int_equal(open_tokens(NULL, 1, LENGTH, 256, &b), PTB_OK);
    assert_int_equal(open_tokens(NULL, 2, LENGTH, 5, &other), PTB_OK);
    sequence(a, 3, inputs[1], targets[1]);
    sequence(a, 9, inputs[0], targets[0]);
    assert_memory_not_equal(inputs[0], inputs[1], sizeof inputs[0]);
    sequence(b, 9, inputs[1], targets[1]); // asked first here
    assert_memory_equal(inputs[0], inputs[1], sizeof inputs[0]);
    assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
    assert_memory_equal(inputs[0] + 1, targets[0], (LENGTH - 1) * sizeof(int32_t));
    for (uint64_t i = 0; i < 100; i++) {
        sequence(other, i, inputs[0], targets[0]);
        for (int k = 0; k < LENGTH; k++)
            assert_in_range(inputs[0][k], 0, 4);
    }
    char text[64];
    ptb_tokens_describe(a, text, sizeof text);
    assert_string_equal(text, "generator");
    ptb_tokens_close(a);
    ptb_tokens_close(b);
    ptb_tokens_close(other);
}

// Packed documents of the generator: what crosses none is as any text, and what does is not counted.
static void test_packed(void **state)
{
    (void)state;
    ptb_tokens *tokens;
    ptb_tokens_config config = {.seed = 1, .length = LENGTH, .vocabulary = 64, .pack = true};
    assert_int_equal(ptb_tokens_open(&config, &tokens), PTB_OK);
    assert_int_equal(ptb_tokens_windows(tokens), UINT64_MAX);
    uint64_t documents = 0, counted = 0;
    for (uint64_t index = 0; index < 1000; index++) {
        int32_t inputs[LENGTH], targets[LENGTH], start[LENGTH];
        assert_int_equal(ptb_tokens_sequence(tokens, index, inputs, targets, start), PTB_OK);
        assert_int_equal(start[0], 0);
        for (int i = 0; i < LENGTH; i++) {
            counted += targets[i] >= 0;
            if (i + 1 == LENGTH)
                continue;
            bool is_cut = start[i + 1] == i + 1;
            documents += is_cut;
            assert_int_equal(targets[i], is_cut ? -1 : inputs[i + 1]);
            if (!is_cut)
                assert_int_equal(start[i + 1], start[i]);
        }
    }
    assert_in_range(documents, 1000 * (LENGTH - 1) / 4 * 0.9, 1000 * (LENGTH - 1) / 4 * 1.1);
    assert_int_equal(ptb_tokens_counted(tokens, 0, 1000), counted);
    ptb_tokens_close(tokens);
}

// What is there to learn: entropies (nats) of a symbol alone and given the one before it fall well below ln
// 64 and below each other.
static void test_structure(void **state)
{
    (void)state;
    enum { SYMBOLS = 64, SEQUENCES = 20000 };
    static double pair[SYMBOLS][SYMBOLS], one[SYMBOLS];
    ptb_tokens *tokens;
    int32_t inputs[LENGTH], targets[LENGTH];
    assert_int_equal(open_tokens(NULL, 1, LENGTH, 256, &tokens), PTB_OK);
    double total = (double)SEQUENCES * LENGTH, unigram = 0, bigram = 0;
    for (uint64_t i = 0; i < SEQUENCES; i++) {
        sequence(tokens, i, inputs, targets);
        for (int k = 0; k < LENGTH; k++) {
            pair[inputs[k]][targets[k]]++;
            one[inputs[k]]++;
        }
    }
    for (int a = 0; a < SYMBOLS; a++) {
        unigram -= one[a] ? one[a] / total * log(one[a] / total) : 0;
        for (int b = 0; b < SYMBOLS; b++)
            bigram -= pair[a][b] ? pair[a][b] / total * log(pair[a][b] / one[a]) : 0;
    }
    assert_true(unigram < 0.97 * log(SYMBOLS));
    assert_true(bigram < 0.8 * unigram);
    ptb_tokens_close(tokens);
}

static void write_file(char *path, size_t bytes)
{
    strcpy(path, "/tmp/ptb_tokens_XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)(i * 7 + i / 256);
        assert_int_equal(write(file, &byte, 1), 1);
    }
    close(file);
}

// Every window once a pass, in another order in the next, targets one byte later.
static void test_file(void **state)
{
    (void)state;
    enum { WINDOWS = 21, BYTES = WINDOWS * LENGTH + 1 + 5 };
    char path[32];
    write_file(path, BYTES);
    ptb_tokens *tokens;
    assert_int_equal(open_tokens(path, 1, LENGTH, 256, &tokens), PTB_OK);
    int order[2][WINDOWS];
    for (int pass = 0; pass < 2; pass++) {
        bool seen[WINDOWS] = {0};
        for (int i = 0; i < WINDOWS; i++) {
            int32_t inputs[LENGTH], targets[LENGTH];
            sequence(tokens, (uint64_t)(pass * WINDOWS + i), inputs, targets);
            int found = -1;
            for (int w = 0; w < WINDOWS; w++)
                if (inputs[0] == (unsigned char)(w * LENGTH * 7 + w * LENGTH / 256) &&
                    inputs[1] == (unsigned char)((w * LENGTH + 1) * 7 + (w * LENGTH + 1) / 256))
                    found = w;
            assert_true(found >= 0);
            assert_false(seen[found]);
            seen[found] = true;
            order[pass][i] = found;
            for (int k = 0; k < LENGTH; k++) {
                int at = found * LENGTH + k + 1;
                assert_int_equal(targets[k], (unsigned char)(at * 7 + at / 256));
            }
        }
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    char text[64];
    ptb_tokens_describe(tokens, text, sizeof text);
    assert_non_null(strstr(text, "342 bytes"));
    ptb_tokens_close(tokens);
    unlink(path);
}

static void test_refused(void **state)
{
    (void)state;
    char path[32];
    ptb_tokens *tokens;
    write_file(path, LENGTH);
    assert_int_equal(open_tokens(path, 1, LENGTH, 256, &tokens), PTB_USAGE); // no last target
    assert_int_equal(open_tokens(path, 1, LENGTH - 1, 15 * 7, &tokens), PTB_USAGE);
    assert_int_equal(open_tokens(path, 1, LENGTH - 1, 15 * 7 + 1, &tokens), PTB_OK);
    int32_t inputs[LENGTH], targets[LENGTH];
    sequence(tokens, 5, inputs, targets); // the only window, again and again
    assert_int_equal(inputs[0], 0);
    ptb_tokens_close(tokens);
    unlink(path);
    assert_int_equal(open_tokens(path, 1, LENGTH, 256, &tokens), PTB_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generator), cmocka_unit_test(test_packed),  cmocka_unit_test(test_structure),
        cmocka_unit_test(test_file),      cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
