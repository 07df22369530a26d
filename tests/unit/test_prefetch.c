// Batches filled ahead: the right ones in order, for any number of ranks, with packing, after errors, and
// without an allocation while it runs.
#include "core/clock.h"
#include "strategies/prefetch.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LENGTH = 16, BATCH = 8 };

static ptb_device *device;

static int open_device(void **state)
{
    (void)state;
    const char *name = getenv("PTB_TEST_DEVICE");
    return ptb_device_open(name && *name ? name : "host", 0, &device) != PTB_OK;
}

static int close_device(void **state)
{
    (void)state;
    ptb_device_close(device);
    return 0;
}

static ptb_tokens *open_generator(bool pack)
{
    ptb_tokens *tokens;
    ptb_tokens_config config = {.seed = 3, .length = LENGTH, .vocabulary = 64, .pack = pack};
    assert_int_equal(ptb_tokens_open(&config, &tokens), PTB_OK);
    return tokens;
}

static ptb_prefetch_config config_of(const ptb_tokens *tokens, bool pack, int rank, int ranks, size_t depth)
{
    return (ptb_prefetch_config){.tokens = tokens,
                                 .device = device,
                                 .length = LENGTH,
                                 .pack = pack,
                                 .batch = BATCH,
                                 .first = (uint64_t)(BATCH / ranks * rank),
                                 .mine = (uint64_t)(BATCH / ranks),
                                 .depth = depth};
}

// The batches of a rank are the sequences that are its own, whatever the number of ranks and of batches
// ahead.
static void check_batches(bool pack, int ranks, size_t depth, uint64_t first_step)
{
    ptb_tokens *tokens = open_generator(pack);
    for (int rank = 0; rank < ranks; rank++) {
        ptb_prefetch *prefetch;
        ptb_prefetch_config config = config_of(tokens, pack, rank, ranks, depth);
        config.first_step = first_step;
        assert_int_equal(ptb_prefetch_start(&config, &prefetch), PTB_OK);
        for (uint64_t step = first_step; step < first_step + 20; step++) {
            ptb_prefetch_batch batch;
            int32_t wanted[3][LENGTH];
            assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_OK);
            assert_int_equal(batch.step, step);
            assert_true(batch.starved ? batch.waited_ns >= 0 : batch.waited_ns == 0);
            assert_true(batch.fill_end_ns >= batch.fill_begin_ns);
            assert_true(pack == (batch.start != NULL));
            for (uint64_t i = 0; i < config.mine; i++) {
                uint64_t index = step * BATCH + config.first + i;
                ptb_tokens_sequence(tokens, index, wanted[0], wanted[1], wanted[2]);
                assert_memory_equal(batch.inputs + i * LENGTH, wanted[0], sizeof wanted[0]);
                assert_memory_equal(batch.targets + i * LENGTH, wanted[1], sizeof wanted[1]);
                if (pack)
                    assert_memory_equal(batch.start + i * LENGTH, wanted[2], sizeof wanted[2]);
            }
            // Of the whole global batch, on each rank.
            uint64_t counted = 0;
            for (uint64_t i = 0; i < BATCH; i++) {
                ptb_tokens_sequence(tokens, step * BATCH + i, wanted[0], wanted[1], NULL);
                for (int k = 0; k < LENGTH; k++)
                    counted += wanted[1][k] >= 0;
            }
            assert_int_equal(batch.counted, counted);
        }
        ptb_prefetch_stop(prefetch);
    }
    ptb_tokens_close(tokens);
}

static void batches_are_those_of_the_rank(void **state)
{
    (void)state;
    check_batches(false, 1, 2, 0);
    check_batches(true, 1, 3, 5);
    check_batches(false, 2, 2, 1000000);
    check_batches(true, 4, PTB_PREFETCH_MAX, 0);
}

// Where sequences are split, pieces of all sequences of a microbatch follow each other.
static void pieces_are_in_order(void **state)
{
    (void)state;
    ptb_tokens *tokens = open_generator(true);
    ptb_prefetch *prefetch;
    ptb_prefetch_config config = config_of(tokens, true, 1, 2, 3);
    enum { PIECE = 3, GROUP = 2 };
    config.slices = (ptb_slices){.pieces = 2, .length = PIECE, .offset = {5, 12}};
    config.group = GROUP;
    assert_int_equal(ptb_prefetch_start(&config, &prefetch), PTB_OK);
    for (uint64_t step = 0; step < 10; step++) {
        ptb_prefetch_batch batch;
        int32_t wanted[3][LENGTH];
        size_t row = 0;
        assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_OK);
        for (uint64_t microbatch = 0; microbatch < config.mine / GROUP; microbatch++)
            for (size_t piece = 0; piece < 2; piece++)
                for (uint64_t i = 0; i < GROUP; i++, row += PIECE) {
                    uint64_t index = step * BATCH + config.first + microbatch * GROUP + i;
                    ptb_tokens_sequence(tokens, index, wanted[0], wanted[1], wanted[2]);
                    size_t at = (size_t)config.slices.offset[piece], bytes = PIECE * sizeof(int32_t);
                    assert_memory_equal(batch.inputs + row, wanted[0] + at, bytes);
                    assert_memory_equal(batch.targets + row, wanted[1] + at, bytes);
                    assert_memory_equal(batch.start + row, wanted[2] + at, bytes);
                }
    }
    ptb_prefetch_stop(prefetch);
    ptb_tokens_close(tokens);
}

// Whoever only takes is faster than the thread; whoever waits finds the next batch there.
static void starved_batches_are_named(void **state)
{
    (void)state;
    ptb_tokens *tokens = open_generator(false);
    ptb_prefetch *prefetch;
    ptb_prefetch_config config = config_of(tokens, false, 0, 1, 2);
    ptb_prefetch_batch batch;
    config.batch = config.mine = 4096;
    assert_int_equal(ptb_prefetch_start(&config, &prefetch), PTB_OK);
    // A wait may be shorter than what the clock resolves, and the thread once in a while faster than this
    // one.
    int64_t waited_ns = 0, begin_ns = ptb_clock_ns();
    while (waited_ns == 0 && ptb_clock_ns() < begin_ns + 60000000000) {
        assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_OK);
        assert_true(batch.starved ? batch.waited_ns >= 0 : batch.waited_ns == 0);
        waited_ns += batch.waited_ns;
    }
    assert_true(waited_ns > 0 && waited_ns <= ptb_clock_ns() - begin_ns);
    batch.starved = true;
    for (unsigned wait_us = 1000; batch.starved && wait_us < 8000000; wait_us *= 2) {
        usleep(wait_us);
        assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_OK);
    }
    assert_false(batch.starved);
    ptb_prefetch_stop(prefetch);
    ptb_tokens_close(tokens);
}

static void nothing_is_allocated_while_it_runs(void **state)
{
    (void)state;
    ptb_tokens *tokens = open_generator(true);
    ptb_prefetch *prefetch;
    ptb_prefetch_config config = config_of(tokens, true, 0, 1, 4);
    ptb_prefetch_batch batch;
    assert_int_equal(ptb_prefetch_bytes(&config), 4 * 3 * BATCH * LENGTH * sizeof(int32_t));
    assert_int_equal(ptb_prefetch_start(&config, &prefetch), PTB_OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_OK);
    struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < 200; i++)
        assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_OK);
    struct mallinfo2 after = mallinfo2();
    assert_int_equal(before.uordblks, after.uordblks);
    ptb_prefetch_stop(prefetch);
    ptb_tokens_close(tokens);
}

// Stopped before the first batch, in the middle, and when all of the ring is full.
static void it_stops_at_any_time(void **state)
{
    (void)state;
    ptb_tokens *tokens = open_generator(false);
    ptb_prefetch_config config = config_of(tokens, false, 0, 1, 2);
    ptb_prefetch *prefetch;
    ptb_prefetch_batch batch;
    for (int takes = 0; takes < 6; takes++)
        for (int sleeps = 0; sleeps < 2; sleeps++) {
            assert_int_equal(ptb_prefetch_start(&config, &prefetch), PTB_OK);
            for (int i = 0; i < takes; i++)
                assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_OK);
            if (sleeps)
                usleep(2000);
            ptb_prefetch_stop(prefetch);
        }
    ptb_prefetch_stop(NULL);
    config.depth = PTB_PREFETCH_MIN - 1;
    assert_int_equal(ptb_prefetch_start(&config, &prefetch), PTB_USAGE);
    config.depth = PTB_PREFETCH_MAX + 1;
    assert_int_equal(ptb_prefetch_start(&config, &prefetch), PTB_USAGE);
    ptb_tokens_close(tokens);
}

// A file that changes under the run: the batch that meets a token outside of the vocabulary is not handed
// out, nor any after it.
static void a_failed_fill_is_reported(void **state)
{
    (void)state;
    enum { BYTES = 64 * 1024 };
    static unsigned char bytes[BYTES];
    char path[] = "/tmp/ptb_prefetch_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    memset(bytes, 7, sizeof bytes);
    assert_int_equal(write(file, bytes, sizeof bytes), sizeof bytes);
    ptb_tokens *tokens;
    ptb_tokens_config open = {.path = path, .length = LENGTH, .vocabulary = 8};
    assert_int_equal(ptb_tokens_open(&open, &tokens), PTB_OK);
    ptb_prefetch *prefetch;
    ptb_prefetch_config config = config_of(tokens, false, 0, 1, 2);
    ptb_prefetch_batch batch;
    assert_int_equal(ptb_prefetch_start(&config, &prefetch), PTB_OK);
    assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_OK);
    memset(bytes, 8, sizeof bytes);
    assert_int_equal(pwrite(file, bytes, sizeof bytes, 0), sizeof bytes);
    int good = 0;
    ptb_status status;
    while ((status = ptb_prefetch_take(prefetch, &batch)) == PTB_OK) {
        for (int i = 0; i < BATCH * LENGTH; i++)
            assert_int_equal(batch.inputs[i], 7);
        good++;
    }
    assert_int_equal(status, PTB_SYSTEM);
    assert_true(good < 3);
    assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_SYSTEM);
    ptb_prefetch_stop(prefetch);
    ptb_tokens_close(tokens);
    close(file);
    unlink(path);
}

// Documents of one token each: there is no target in any batch.
static void a_batch_without_targets_is_refused(void **state)
{
    (void)state;
    char folder[] = "/tmp/ptb_prefetch_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2 * LENGTH; i++) {
        snprintf(path, sizeof path, "%s/%02d", folder, i);
        FILE *file = fopen(path, "w");
        assert_true(file && fputc('a', file) == 'a' && fclose(file) == 0);
    }
    ptb_tokens *tokens;
    ptb_tokens_config open = {.path = folder, .length = LENGTH, .vocabulary = 256, .pack = true};
    assert_int_equal(ptb_tokens_open(&open, &tokens), PTB_OK);
    ptb_prefetch *prefetch;
    ptb_prefetch_config config = config_of(tokens, true, 0, 1, 2);
    ptb_prefetch_batch batch;
    assert_int_equal(ptb_prefetch_start(&config, &prefetch), PTB_OK);
    assert_int_equal(ptb_prefetch_take(prefetch, &batch), PTB_USAGE);
    ptb_prefetch_stop(prefetch);
    ptb_tokens_close(tokens);
    for (int i = 0; i < 2 * LENGTH; i++) {
        snprintf(path, sizeof path, "%s/%02d", folder, i);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(batches_are_those_of_the_rank),
                                       cmocka_unit_test(pieces_are_in_order),
                                       cmocka_unit_test(starved_batches_are_named),
                                       cmocka_unit_test(nothing_is_allocated_while_it_runs),
                                       cmocka_unit_test(it_stops_at_any_time),
                                       cmocka_unit_test(a_failed_fill_is_reported),
                                       cmocka_unit_test(a_batch_without_targets_is_refused)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
