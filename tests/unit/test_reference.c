// The reference transformer against finite differences of itself: if its loss is right, so are its gradients.
// Its loss is held to the engine's in tests/conformance/test_model_reference.c, and the engine's to PyTorch's
// in tests/golden.
#include "tests/unit/model_cases.h"

enum { ALL = 40, DIRECTIONS = 3 }; // elements of a tensor that are tried one by one; else random directions

// Slope of the loss along a direction of one tensor, by the difference of fourth order.
static double slope(model_data *d, size_t first, const double *direction, size_t count)
{
    static const double at[] = {-2, -1, 1, 2}, weight[] = {1, -8, 8, -1};
    const double step = 2e-4;
    double *moved = reference_numbers(d->layout.count), sum = 0;
    memcpy(moved, d->parameters, d->layout.count * sizeof *moved);
    for (int i = 0; i < 4; i++) {
        for (size_t k = 0; k < count; k++)
            moved[first + k] = d->parameters[first + k] + at[i] * step * direction[k];
        sum += weight[i] * reference_run(&d->batch, moved, NULL, NULL).loss;
    }
    free(moved);
    return sum / (12 * step);
}

static void check_tensor(model_data *d, size_t unit, const ptb_tensor *tensor, const double *gradients)
{
    size_t first = d->layout.unit[unit].first + tensor->first, count = ptb_tensor_count(tensor);
    double *direction = reference_numbers(count), norm = 0;
    for (size_t i = 0; i < count; i++)
        norm += gradients[first + i] * gradients[first + i];
    norm = sqrt(norm);
    for (size_t trial = 0; trial < (count <= ALL ? count : DIRECTIONS); trial++) {
        double wanted = 0, length = 0;
        for (size_t i = 0; i < count; i++) {
            direction[i] = count <= ALL ? i == trial : ptb_random_normal(trial, 17, i);
            length += direction[i] * direction[i];
        }
        for (size_t i = 0; i < count; i++) {
            direction[i] /= sqrt(length);
            wanted += direction[i] * gradients[first + i];
        }
        double got = slope(d, first, direction, count);
        if (!(fabs(got - wanted) < 1e-6 * norm + 1e-10))
            fail_msg("%s, unit %zu, %s: slope %.12g, gradient %.12g; norm of the gradient %g", d->what->name,
                     unit, tensor->name, got, wanted, norm);
    }
    free(direction);
}

static void test_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        model_data d;
        model_data_init(&d, &model_cases[i], MODEL_SMALL, 2, PTB_F64, 0.1);
        double *gradients = reference_numbers(d.layout.count);
        reference_run(&d.batch, d.parameters, gradients, NULL);
        for (size_t u = 0; u < d.layout.units; u++)
            for (size_t t = 0; t < d.layout.unit[u].tensors; t++)
                check_tensor(&d, u, &d.layout.unit[u].tensor[t], gradients);
        free(gradients);
        model_data_release(&d);
    }
}

// Options must reach the loss: a case that computes what another does tests nothing.
static void test_cases_differ(void **state)
{
    (void)state;
    double loss[MODEL_CASES];
    size_t parameters[MODEL_CASES];
    for (size_t i = 0; i < MODEL_CASES; i++) {
        model_data d;
        model_data_init(&d, &model_cases[i], MODEL_SMALL, 2, PTB_F64, 0.1);
        loss[i] = reference_run(&d.batch, d.parameters, NULL, NULL).loss;
        parameters[i] = d.layout.parameters;
        model_data_release(&d);
        for (size_t j = 0; j < i; j++)
            if (fabs(loss[i] - loss[j]) < 1e-9 && parameters[i] == parameters[j])
                fail_msg("%s and %s have the same loss %.12g", model_cases[i].name, model_cases[j].name,
                         loss[i]);
    }
}

static void assert_close(const model_data *d, const double *got, const double *wanted, const char *what)
{
    for (size_t i = 0; i < d->layout.count; i++)
        if (!(fabs(got[i] - wanted[i]) < 1e-12))
            fail_msg("%s: %s changes gradient %zu from %.15g to %.15g", d->what->name, what, i, wanted[i],
                     got[i]);
}

// Two microbatches add up to one, where nothing is counted over a whole one.
static void test_accumulation(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        if (model_cases[i].shape.experts)
            continue;
        model_data d;
        model_data_init(&d, &model_cases[i], MODEL_SMALL, 2, PTB_F64, 0);
        double *whole = reference_numbers(d.layout.count), *halves = reference_numbers(d.layout.count);
        reference_run(&d.batch, d.parameters, whole, NULL);
        for (size_t half = 0; half < 2; half++) {
            reference_batch b = d.batch;
            size_t first = half * d.rows / 2;
            b.batch = 1;
            b.inputs += first;
            b.targets += first;
            b.starts = b.starts ? b.starts + first : NULL;
            b.place.sequence += half;
            reference_run(&b, d.parameters, halves, NULL);
        }
        assert_close(&d, halves, whole, "accumulation");
        free(whole), free(halves);
        model_data_release(&d);
    }
}

// Documents of 3 rows packed into sequences of 6 are sequences of 3.
static void test_packing(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        model_case one = model_cases[i], two = model_cases[i];
        one.packed = false;
        two.packed = true;
        one.shape.sequence = 3;
        two.shape.sequence = 6;
        one.shape.positions = two.shape.positions = 6;
        one.shape.dropout = two.shape.dropout = 0; // draws are numbered by sequence
        model_data separate, packed;
        model_data_init(&separate, &one, MODEL_SMALL, 4, PTB_F64, 0);
        model_data_init(&packed, &two, MODEL_SMALL, 2, PTB_F64, 0);
        for (size_t r = 0; r < packed.rows; r++)
            packed.starts[r] = (int32_t)(r % 6 / 3 * 3);
        double *wanted = reference_numbers(packed.layout.count),
               *got = reference_numbers(packed.layout.count);
        reference_run(&separate.batch, separate.parameters, wanted, NULL);
        reference_run(&packed.batch, packed.parameters, got, NULL);
        assert_close(&packed, got, wanted, "packing");
        free(wanted), free(got);
        model_data_release(&separate);
        model_data_release(&packed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_cases_differ),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_packing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
