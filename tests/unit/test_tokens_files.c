// Token sources that are files: folders, patterns, llm.c's token files, packing, and what is refused.
#include "tests/unit/tokens_fixture.h"

#include <inttypes.h>

enum { LENGTH = 8, SAID = 2048 };

static ptb_tokens *open_good(const char *path, int64_t length, int64_t vocabulary, bool pack)
{
    ptb_tokens *tokens = NULL;
    ptb_tokens_config config = {
        .path = path, .seed = 1, .length = length, .vocabulary = vocabulary, .pack = pack};
    assert_int_equal(ptb_tokens_open(&config, &tokens), PTB_OK);
    return tokens;
}

static void refused(const char *path, int64_t length, int64_t vocabulary, const char *because)
{
    ptb_tokens *tokens = NULL;
    char said[SAID];
    ptb_tokens_config config = {.path = path, .length = length, .vocabulary = vocabulary};
    ptb_status status = fixture_open(&config, &tokens, said, sizeof said);
    if (status != PTB_USAGE || !strstr(said, because))
        fail_msg("%s: wanted USAGE and \"%s\", got %s and \"%s\"", path, because, ptb_status_name(status),
                 said);
    assert_null(tokens);
}

// Reads every window of one pass and puts it where it belongs, which the token values tell: token p of the
// stream has the value value(p). Checks windows, targets and starts against `begins`, the documents' first
// tokens (with a last entry past the end).
static void check_pass(const ptb_tokens *tokens, size_t count, size_t length, const uint32_t *stream,
                       const size_t *begins)
{
    uint64_t windows = (count - 1) / length;
    assert_int_equal(ptb_tokens_windows(tokens), windows);
    int32_t inputs[64], targets[64], start[64];
    bool *seen = calloc(windows, sizeof *seen);
    assert_non_null(seen);
    for (uint64_t index = 0; index < windows; index++) {
        assert_int_equal(ptb_tokens_sequence(tokens, index, inputs, targets, start), PTB_OK);
        uint64_t w = 0;
        while (w < windows && (seen[w] || memcmp(inputs, stream + w * length, length * sizeof *inputs)))
            w++;
        assert_true(w < windows);
        seen[w] = true;
        uint64_t counted = 0;
        for (size_t i = 0; i < length; i++) {
            size_t at = w * length + i, document = 0;
            while (begins[document + 1] <= at)
                document++;
            bool is_cut = begins[document + 1] == at + 1;
            size_t begin = begins[document] > w * length ? begins[document] - w * length : 0;
            assert_int_equal(targets[i], is_cut ? -1 : (int32_t)stream[at + 1]);
            assert_int_equal(start[i], begin);
            counted += !is_cut;
        }
        assert_int_equal(ptb_tokens_counted(tokens, index, 1), counted);
    }
    free(seen);
}

// Bytes of files in order of names, whatever the order in which they were made; small ones and mapped ones.
static void folders_are_read_in_order_of_names(void **state)
{
    (void)state;
    enum { BIG = 100000, TOTAL = 6 + BIG + 40000 + 1 };
    static unsigned char big[BIG];
    static uint32_t stream[TOTAL];
    for (size_t i = 0; i < BIG; i++)
        big[i] = (unsigned char)((i * i + i / 251) >> 3);
    assert_int_equal(mkdir("text", 0755) | mkdir("text/b", 0755) | mkdir("text/b/a", 0755), 0);
    fixture_text("text/c", "C");
    fixture_write("text/b/z", big, 40000);
    fixture_write("text/b/a/deep", big, BIG);
    fixture_text("text/a", "first.");
    fixture_text("text/b/m", "");
    size_t n = 0, begins[] = {0, 6, 6 + BIG, 6 + BIG + 40000, SIZE_MAX};
    for (size_t i = 0; i < 6; i++)
        stream[n++] = (unsigned char)"first."[i];
    for (size_t i = 0; i < BIG + 40000; i++)
        stream[n++] = big[i < BIG ? i : i - BIG];
    stream[n++] = 'C';
    ptb_tokens *tokens = open_good("text/", 50, 256, true);
    check_pass(tokens, TOTAL, 50, stream, begins);
    char text[64];
    ptb_tokens_describe(tokens, text, sizeof text);
    assert_string_equal(text, "text (4 files, 140007 bytes)");
    ptb_tokens_close(tokens);
    // Not packed: the same windows, one document.
    begins[1] = SIZE_MAX;
    tokens = open_good("text", 50, 256, false);
    check_pass(tokens, TOTAL, 50, stream, begins);
    ptb_tokens_close(tokens);
    tokens = open_good("text/[ac]", 3, 256, false);
    stream[6] = 'C';
    check_pass(tokens, 7, 3, stream, begins);
    ptb_tokens_close(tokens);
}

static void links_are_followed_but_not_in_circles(void **state)
{
    (void)state;
    ptb_tokens *tokens = NULL;
    char said[SAID];
    assert_int_equal(mkdir("d", 0755) | mkdir("other", 0755), 0);
    fixture_text("other/x", "linked");
    fixture_text("d/a", "plain ");
    assert_int_equal(symlink("..", "d/up") | symlink("../other", "d/zzz") | symlink(".", "d/self"), 0);
    ptb_tokens_config config = {.path = "d", .length = 2, .vocabulary = 256};
    assert_int_equal(fixture_open(&config, &tokens, said, sizeof said), PTB_OK);
    assert_non_null(strstr(said, "'d/self' links back"));
    char text[64];
    ptb_tokens_describe(tokens, text, sizeof text);
    // up leads to the folder above, in which d is met again (left out) and other is not.
    assert_string_equal(text, "d (3 files, 18 bytes)");
    ptb_tokens_close(tokens);
    assert_int_equal(symlink("nowhere", "d/dangling"), 0);
    refused("d", 2, 256, "'d/dangling' leads nowhere");
    assert_int_equal(unlink("d/dangling") | symlink("me", "d/me"), 0);
    refused("d", 2, 256, "'d/me' leads nowhere");
    assert_int_equal(unlink("d/me"), 0);
    if (geteuid() == 0)
        return; // root reads everything
    assert_int_equal(chmod("d/a", 0), 0);
    refused("d", 2, 256, "'d/a' cannot be read: Permission denied");
    assert_int_equal(chmod("d/a", 0644) | chmod("other", 0), 0);
    refused("d", 2, 256, "cannot be read: Permission denied");
}

static void nothing_to_read_is_refused(void **state)
{
    (void)state;
    assert_int_equal(mkdir("none", 0755) | mkdir("empty", 0755) | mkdir("empty/sub", 0755), 0);
    fixture_text("empty/1", "");
    fixture_text("empty/sub/2", "");
    refused("none", 2, 256, "there is nothing to read");
    refused("empty", 2, 256, "2 empty files");
    refused("empty/1", 2, 256, "the only file is empty");
    refused("/dev/null", 2, 256, "not a regular file");
    refused("missing", 2, 256, "'missing' cannot be read: No such file");
    refused("missing*", 2, 256, "no file has such a name");
    refused("", 2, 256, "cannot be read");
    fixture_text("short", "12345678");
    refused("short", 8, 256, "has 8 tokens; one sequence of 8 and its last target need 9");
    refused("short", 1000000, 256, "need 1000001");
    ptb_tokens_close(open_good("short", 7, 256, false));
}

static void warned_of_empty_files(void **state)
{
    (void)state;
    ptb_tokens *tokens = NULL;
    char said[SAID];
    assert_int_equal(mkdir("d", 0755), 0);
    fixture_text("d/a", "");
    fixture_text("d/b", "some text");
    ptb_tokens_config config = {.path = "d", .length = 2, .vocabulary = 256};
    assert_int_equal(fixture_open(&config, &tokens, said, sizeof said), PTB_OK);
    assert_non_null(strstr(said, "1 empty files are left out, the first is 'd/a'"));
    ptb_tokens_close(tokens);
}

// Shards are one stream; documents begin at delimiters, at the edge of windows and of shards too.
static void check_shards(int32_t magic, int32_t version, uint32_t delimiter, const char *name)
{
    enum { FIRST = 53, SECOND = 20000, TOTAL = FIRST + SECOND };
    static uint32_t stream[TOTAL];
    for (size_t i = 0; i < TOTAL; i++)
        stream[i] = (uint32_t)(i * 7 % delimiter);
    size_t begins[] = {0, 1, 5, LENGTH, 2 * LENGTH - 1, 40, 41, FIRST + LENGTH, SIZE_MAX};
    for (size_t i = 1; begins[i] != SIZE_MAX; i++)
        stream[begins[i]] = delimiter;
    fixture_tokens("s_000001.bin", magic, version, SECOND, stream + FIRST, SECOND);
    fixture_tokens("s_000000.bin", magic, version, FIRST, stream, FIRST);
    ptb_tokens *tokens = open_good(".", LENGTH, delimiter + 1, true);
    check_pass(tokens, TOTAL, LENGTH, stream, begins);
    ptb_tokens_close(tokens);
    tokens = open_good("s_*.bin", LENGTH, delimiter + 1, false);
    begins[1] = SIZE_MAX;
    check_pass(tokens, TOTAL, LENGTH, stream, begins);
    char text[96], wanted[96];
    ptb_tokens_describe(tokens, text, sizeof text);
    snprintf(wanted, sizeof wanted, "s_*.bin (2 shards, 20053 %s tokens)", name);
    assert_string_equal(text, wanted);
    ptb_tokens_close(tokens);
    tokens = open_good("s_000000.bin", LENGTH, delimiter + 1, false);
    ptb_tokens_describe(tokens, text, sizeof text);
    snprintf(wanted, sizeof wanted, "s_000000.bin (53 %s tokens)", name);
    assert_string_equal(text, wanted);
    ptb_tokens_close(tokens);
    refused(".", LENGTH, delimiter,
            name[0] == 'G' ? "token number 1 of './s_000000.bin' is 50256, and --vocab is 50256"
                           : "token number 1 of './s_000000.bin' is 128000");
}

static void token_files_of_gpt2(void **state)
{
    (void)state;
    check_shards(FIXTURE_GPT2, 1, 50256, "GPT-2");
}

static void token_files_of_llama3(void **state)
{
    (void)state;
    check_shards(FIXTURE_LLAMA3, 7, 128000, "Llama 3");
}

static void bad_token_files_are_refused(void **state)
{
    (void)state;
    uint32_t tokens[100] = {0};
    fixture_tokens("magic.bin", 20240522, 1, 100, tokens, 100);
    refused("magic.bin", LENGTH, 50257, "begins with 20240522, and wanted is 20240520");
    fixture_tokens("version.bin", FIXTURE_GPT2, 7, 100, tokens, 100);
    refused("version.bin", LENGTH, 50257, "GPT-2 token file of version 7; version 1 can be read");
    fixture_tokens("version3.bin", FIXTURE_LLAMA3, 1, 100, tokens, 100);
    refused("version3.bin", LENGTH, 50257, "of version 1; version 7");
    fixture_tokens("cut.bin", FIXTURE_GPT2, 1, 101, tokens, 100);
    refused("cut.bin", LENGTH, 50257,
            "101 tokens, which would be 1226 bytes (1024 of header and 2 a token); it has 1224");
    fixture_tokens("long.bin", FIXTURE_GPT2, 1, 99, tokens, 100);
    refused("long.bin", LENGTH, 50257, "it has 1224. Write it again");
    fixture_tokens("huge.bin", FIXTURE_LLAMA3, 7, INT32_MAX, tokens, 100);
    refused("huge.bin", LENGTH, 50257, "2147483647 tokens, which would be 8589935612 bytes");
    fixture_tokens("negative.bin", FIXTURE_GPT2, 1, -5, tokens, 100);
    refused("negative.bin", LENGTH, 50257, "says -5 tokens");
    fixture_tokens("none.bin", FIXTURE_GPT2, 1, 0, tokens, 0);
    refused("none.bin", LENGTH, 50257, "at least one token");
    int32_t header[2] = {FIXTURE_GPT2, 1};
    fixture_write("header.bin", header, sizeof header);
    refused("header.bin", LENGTH, 50257, "has 8 bytes, less than the header");
    fixture_write("few.bin", header, 3);
    refused("few.bin", LENGTH, 50257, "has 3 bytes, less than the header");
    fixture_write("unnamed", header, sizeof header); // known by its magic
    refused("unnamed", LENGTH, 50257, "less than the header");
    assert_int_equal(mkdir("mixed", 0755), 0);
    fixture_tokens("mixed/a.bin", FIXTURE_GPT2, 1, 100, tokens, 100);
    fixture_text("mixed/readme", "words");
    refused("mixed", LENGTH, 50257, "'mixed/a.bin' is a file of GPT-2 and 'mixed/readme' of bytes");
    ptb_tokens_close(open_good("mixed/*.bin", LENGTH, 50257, true));
    fixture_tokens("mixed/readme", FIXTURE_LLAMA3, 7, 100, tokens, 100);
    refused("mixed", LENGTH, 50257, "of Llama 3; give a pattern");
}

// The place named is that of the first token outside, whichever thread found one.
static void tokens_outside_of_the_vocabulary_are_refused(void **state)
{
    (void)state;
    enum { COUNT = 5 << 20 };
    uint32_t *tokens = calloc(COUNT, sizeof *tokens);
    assert_non_null(tokens);
    uint32_t before[10] = {0};
    fixture_tokens("0.bin", FIXTURE_GPT2, 1, 10, before, 10);
    tokens[COUNT - 1] = 999;
    fixture_tokens("1.bin", FIXTURE_GPT2, 1, COUNT, tokens, COUNT);
    refused(".", LENGTH, 999, "token number 5242879 of './1.bin' is 999, and --vocab is 999");
    tokens[1234567] = 60000;
    fixture_tokens("1.bin", FIXTURE_GPT2, 1, COUNT, tokens, COUNT);
    refused(".", LENGTH, 999, "token number 1234567 of './1.bin' is 60000");
    ptb_tokens_close(open_good(".", LENGTH, 60001, false));
    ptb_tokens_close(open_good(".", LENGTH, 65536, false));
    tokens[7] = UINT32_MAX;
    fixture_tokens("0.bin", FIXTURE_LLAMA3, 7, 10, tokens, 10);
    refused("0.bin", LENGTH, 1 << 24, "token number 7 of '0.bin' is 4294967295");
    fixture_text("text", "ASCII and \xe9");
    refused("text", LENGTH, 128, "token number 10 of 'text' is 233");
    free(tokens);
}

// Names, sizes and headers only: a token outside of the vocabulary is not seen, a bad header is.
static void unread_looks_at_headers_only(void **state)
{
    (void)state;
    uint32_t tokens[100] = {50000};
    ptb_tokens *t = NULL;
    char said[SAID];
    ptb_tokens_config config = {.path = "a.bin", .length = LENGTH, .vocabulary = 100, .unread = true};
    fixture_tokens("a.bin", FIXTURE_GPT2, 1, 100, tokens, 100);
    assert_int_equal(fixture_open(&config, &t, said, sizeof said), PTB_OK);
    ptb_tokens_close(t);
    config.unread = false;
    assert_int_equal(fixture_open(&config, &t, said, sizeof said), PTB_USAGE);
    fixture_tokens("a.bin", FIXTURE_GPT2, 1, 101, tokens, 100);
    config.unread = true;
    assert_int_equal(fixture_open(&config, &t, said, sizeof said), PTB_USAGE);
}

// Over the ranks of a data-parallel run each window of a pass is used once, for any number of ranks, and the
// global batches are the same.
static void every_window_once_a_pass(void **state)
{
    (void)state;
    enum { WINDOWS = 60, BATCH = 12, PASSES = 3 };
    unsigned char bytes[WINDOWS * LENGTH + 3];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i / LENGTH);
    fixture_write("text", bytes, sizeof bytes);
    ptb_tokens *tokens = open_good("text", LENGTH, 256, false);
    assert_int_equal(ptb_tokens_windows(tokens), WINDOWS);
    int order[4][PASSES * WINDOWS];
    const int ranks_of[] = {1, 2, 3, 12};
    for (int k = 0; k < 4; k++) {
        int ranks = ranks_of[k], mine = BATCH / ranks, uses[PASSES][WINDOWS] = {{0}};
        for (int rank = 0; rank < ranks; rank++)
            for (int step = 0; step < PASSES * WINDOWS / BATCH; step++)
                for (int i = 0; i < mine; i++) {
                    int index = step * BATCH + rank * mine + i;
                    int32_t inputs[LENGTH], targets[LENGTH];
                    assert_int_equal(ptb_tokens_sequence(tokens, (uint64_t)index, inputs, targets, NULL),
                                     PTB_OK);
                    order[k][index] = inputs[0];
                    uses[index / WINDOWS][inputs[0]]++;
                }
        for (int pass = 0; pass < PASSES; pass++)
            for (int w = 0; w < WINDOWS; w++)
                assert_int_equal(uses[pass][w], 1);
        assert_memory_equal(order[k], order[0], sizeof order[0]);
    }
    assert_memory_not_equal(order[0], order[0] + WINDOWS, WINDOWS * sizeof(int));
    ptb_tokens_close(tokens);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_enter, fixture_leave)
    const struct CMUnitTest tests[] = {
        TEST(folders_are_read_in_order_of_names),
        TEST(links_are_followed_but_not_in_circles),
        TEST(nothing_to_read_is_refused),
        TEST(warned_of_empty_files),
        TEST(token_files_of_gpt2),
        TEST(token_files_of_llama3),
        TEST(bad_token_files_are_refused),
        TEST(tokens_outside_of_the_vocabulary_are_refused),
        TEST(unread_looks_at_headers_only),
        TEST(every_window_once_a_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
