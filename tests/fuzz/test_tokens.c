// Damaged token files: whatever bytes are wrong, opening refuses with a message or gives tokens that are in
// the vocabulary and that the file holds. Mutations come from a fixed seed, so a failure repeats: the number
// of the round is printed. PTB_FUZZ_ROUNDS sets how many.
#include "tests/unit/tokens_fixture.h"

#include "core/random.h"

enum {
    ROUNDS = 4000,
    LENGTH = 16,
    VOCABULARY = 50257,
    HEADER_BYTES = FIXTURE_HEADER * 4,
    TOKENS_MAX = 40000
};

typedef struct {
    uint64_t seed, count;
} draws;

static uint64_t next(draws *d)
{
    return ptb_random_u64(d->seed, 77, d->count++);
}

static size_t make(unsigned char *bytes, draws *d)
{
    bool is_llama = next(d) & 1;
    int32_t header[3] = {is_llama ? FIXTURE_LLAMA3 : FIXTURE_GPT2, is_llama ? 7 : 1, 0};
    // Both sides of the size from which files are mapped.
    header[2] = 1 + (int32_t)(next(d) % (next(d) & 1 ? 100 : TOKENS_MAX));
    size_t width = is_llama ? 4 : 2, size = HEADER_BYTES + (size_t)header[2] * width;
    memset(bytes, 0, size);
    memcpy(bytes, header, sizeof header);
    for (size_t i = HEADER_BYTES; i < size; i += width)
        bytes[i] = (unsigned char)(i >> 3);
    return size;
}

// Mostly the header's three numbers; also its other bytes, the tokens, and the length.
static size_t damage(unsigned char *bytes, size_t size, draws *d)
{
    static const int32_t telling[] = {0,        -1,        1,        2, 7, FIXTURE_GPT2, FIXTURE_LLAMA3,
                                      20240522, INT32_MAX, INT32_MIN};
    for (uint64_t i = next(d) % 4; i > 0; i--) {
        int32_t value = telling[next(d) % (sizeof telling / sizeof *telling)];
        int32_t old;
        size_t field = next(d) % 3 * sizeof value;
        memcpy(&old, bytes + field, sizeof old);
        if (next(d) & 1)
            value = (int32_t)((uint32_t)old + (uint32_t)(next(d) % 5) - 2);
        memcpy(bytes + field, &value, sizeof value);
    }
    for (uint64_t i = next(d) % 3; i > 0; i--)
        bytes[next(d) % size] = (unsigned char)next(d);
    switch (next(d) % 8) {
    case 0:
        return next(d) % size;
    case 1:
        return next(d) % (HEADER_BYTES + 1);
    case 2:
        return size + next(d) % 8;
    default:
        return size;
    }
}

// Whether a file of these bytes may be taken, restated: a magic with its version, and a count that is the
// size's; or neither name nor magic of a token file.
static bool is_sound(const char *path, const unsigned char *bytes, size_t size, int32_t header[3])
{
    memset(header, 0, 3 * sizeof *header);
    memcpy(header, bytes, size < 12 ? size : 12);
    bool is_gpt2 = size >= 4 && header[0] == FIXTURE_GPT2,
         is_llama = size >= 4 && header[0] == FIXTURE_LLAMA3;
    if (!is_gpt2 && !is_llama)
        return !strstr(path, ".bin");
    return header[1] == (is_gpt2 ? 1 : 7) && header[2] > 0 &&
           size == HEADER_BYTES + (uint64_t)header[2] * (is_gpt2 ? 2 : 4);
}

static void read_some(const ptb_tokens *tokens, long round)
{
    int32_t inputs[LENGTH], targets[LENGTH], start[LENGTH];
    uint64_t windows = ptb_tokens_windows(tokens);
    for (uint64_t i = 0; i < windows; i += 1 + windows / 50) {
        assert_int_equal(ptb_tokens_sequence(tokens, i, inputs, targets, start), PTB_OK);
        uint64_t counted = 0;
        for (int k = 0; k < LENGTH; k++) {
            if (inputs[k] < 0 || inputs[k] >= VOCABULARY || targets[k] < -1 || targets[k] >= VOCABULARY ||
                start[k] < 0 || start[k] > k)
                fail_msg("round %ld: window %lu, position %d: input %d, target %d, start %d", round,
                         (unsigned long)i, k, inputs[k], targets[k], start[k]);
            counted += targets[k] >= 0;
        }
        assert_int_equal(ptb_tokens_counted(tokens, i, 1), counted);
    }
}

static void damaged_token_files_are_refused_or_sound(void **state)
{
    (void)state;
    static unsigned char bytes[HEADER_BYTES + TOKENS_MAX * 4 + 16];
    const char *rounds_text = getenv("PTB_FUZZ_ROUNDS");
    long rounds = rounds_text ? atol(rounds_text) : ROUNDS;
    long taken = 0;
    for (long round = 0; round < rounds; round++) {
        draws d = {.seed = (uint64_t)round};
        size_t size = make(bytes, &d);
        size = damage(bytes, size, &d);
        const char *path = next(&d) % 4 ? "x.bin" : "x";
        fixture_write(path, bytes, size);
        ptb_tokens_config config = {.path = path,
                                    .seed = 1,
                                    .length = LENGTH,
                                    .vocabulary = VOCABULARY,
                                    .pack = next(&d) & 1,
                                    .unread = next(&d) % 8 == 0};
        ptb_tokens *tokens = NULL;
        char said[2048];
        int32_t header[3];
        ptb_status status = fixture_open(&config, &tokens, said, sizeof said);
        bool is_taken = status == PTB_OK;
        if (is_taken && !is_sound(path, bytes, size, header))
            fail_msg("round %ld: taken with the header %d, %d, %d and %zu bytes", round, header[0], header[1],
                     header[2], size);
        if (!is_taken && (status != PTB_USAGE || !strstr(said, "error: --data") || !strstr(said, "x")))
            fail_msg("round %ld: %s, \"%s\"", round, ptb_status_name(status), said);
        if (is_taken && !config.unread)
            read_some(tokens, round);
        taken += is_taken;
        ptb_tokens_close(tokens);
    }
    // Neither everything nor nothing was damaged.
    assert_true(rounds < 1000 || (taken > rounds / 20 && taken < rounds * 19 / 20));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_enter, fixture_leave)
    const struct CMUnitTest tests[] = {TEST(damaged_token_files_are_refused_or_sound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
