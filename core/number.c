// Numbers as text, in both directions, with a decimal point whatever the locale is: digits are read and
// written here, not by strtod or printf, whose decimal sign depends on LC_NUMERIC once a library has called
// setlocale.
#include "core/text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ptb_text_parse_int(const char *string, int64_t *value)
{
    const char *at = string + (*string == '-' || *string == '+');
    uint64_t magnitude = 0, limit = (uint64_t)INT64_MAX + (*string == '-');
    if (!isdigit((unsigned char)*at))
        return false;
    for (; isdigit((unsigned char)*at); at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (magnitude > (limit - digit) / 10)
            return false;
        magnitude = magnitude * 10 + digit;
    }
    if (*at)
        return false;
    *value = *string == '-' ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

// True when `string` is [sign] digits [. digits] [e [sign] digits] with at least one digit before the
// exponent.
static bool is_decimal(const char *string)
{
    const char *at = string + (*string == '-' || *string == '+');
    int digits = 0;
    for (; isdigit((unsigned char)*at); at++)
        digits++;
    if (*at == '.')
        for (at++; isdigit((unsigned char)*at); at++)
            digits++;
    if (digits && (*at == 'e' || *at == 'E')) {
        at += 1 + (at[1] == '-' || at[1] == '+');
        if (!isdigit((unsigned char)*at))
            return false;
        while (isdigit((unsigned char)*at))
            at++;
    }
    return digits && !*at;
}

// The decimal sign of the current locale, as printf and strtod use it.
static void locale_point(char point[8])
{
    char sample[16];
    snprintf(sample, sizeof sample, "%.1f", 0.5);
    size_t length = strlen(sample);
    memcpy(point, sample + 1, length - 2);
    point[length - 2] = '\0';
}

bool ptb_text_parse_double(const char *string, double *value)
{
    char copy[64], point[8];
    if (!is_decimal(string) || strlen(string) > 48)
        return false;
    locale_point(point);
    const char *dot = strchr(string, '.');
    if (dot)
        snprintf(copy, sizeof copy, "%.*s%s%s", (int)(dot - string), string, point, dot + 1);
    else
        snprintf(copy, sizeof copy, "%s", string);
    char *end;
    double parsed = strtod(copy, &end);
    if (*end || !isfinite(parsed))
        return false;
    *value = parsed;
    return true;
}

bool ptb_text_parse_size(const char *string, uint64_t *bytes)
{
    static const char suffixes[] = "KMGT";
    char number[32];
    size_t digits = strspn(string, "0123456789.");
    const char *unit = string + digits;
    if (digits == 0 || digits >= sizeof number)
        return false;
    memcpy(number, string, digits);
    number[digits] = '\0';
    uint64_t scale = 1;
    const char *suffix = *unit ? strchr(suffixes, toupper((unsigned char)*unit)) : NULL;
    if (suffix) {
        scale = (uint64_t)1 << (10 * (suffix - suffixes + 1));
        unit++;
        unit += *unit == 'i';
    }
    unit += *unit == 'B' || *unit == 'b';
    if (*unit)
        return false;
    int64_t whole;
    if (ptb_text_parse_int(number, &whole)) {
        if ((uint64_t)whole > UINT64_MAX / scale)
            return false;
        *bytes = (uint64_t)whole * scale;
        return true;
    }
    double fraction;
    if (!ptb_text_parse_double(number, &fraction))
        return false;
    double product = fraction * (double)scale;
    if (product != floor(product) || product >= 0x1p53)
        return false;
    *bytes = (uint64_t)product;
    return true;
}

void ptb_text_format_size(uint64_t bytes, char *out, size_t out_size)
{
    static const char *const suffixes[] = {"", "K", "M", "G", "T"};
    size_t power = 0;
    while (bytes && bytes % 1024 == 0 && power < 4) {
        bytes /= 1024;
        power++;
    }
    snprintf(out, out_size, "%llu%s", (unsigned long long)bytes, suffixes[power]);
}

void ptb_text_format_ns(double ns, char *out, size_t out_size)
{
    static const struct {
        double scale;
        const char *unit;
    } units[] = {{1, "ns"}, {1e3, "us"}, {1e6, "ms"}, {1e9, "s"}};
    size_t u = 0;
    while (u < 3 && fabs(ns) >= 999.5 * units[u].scale)
        u++;
    double value = ns / units[u].scale;
    int decimals = fabs(value) >= 99.95 ? 0 : fabs(value) >= 9.995 ? 1 : 2;
    ptb_text number = PTB_TEXT_INIT;
    ptb_text_append_number(&number, value, decimals);
    snprintf(out, out_size, "%s %s", ptb_text_string(&number), units[u].unit);
    ptb_text_release(&number);
}

void ptb_text_append_number(ptb_text *text, double value, int decimals)
{
    char digits[400], point[8];
    if (!isfinite(value)) {
        ptb_text_append(text, "n/a");
        return;
    }
    if (decimals < 0 && value == floor(value) && fabs(value) < 1e15)
        decimals = 0; // whole numbers in full: %g would write 1.2e+02 for 120
    if (decimals >= 0)
        snprintf(digits, sizeof digits, "%.*f", decimals, value);
    // 15 digits give back any decimal number of up to 15, and %g drops its zeros: so the first that reads
    // back is the shortest.
    for (int precision = 15; decimals < 0 && precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    locale_point(point);
    char *at = strstr(digits, point);
    if (at) {
        memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
        *at = '.';
    }
    ptb_text_append(text, digits);
}
