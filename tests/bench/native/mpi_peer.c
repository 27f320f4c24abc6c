/* Open MPI's side of the comparison: what a C programmer would write, MPI_Allreduce in place, and
 * MPI_Iallreduce for many tensors. Commands: see tests/bench/cases.py. */
#include <mpi.h>

#include "tests/bench/native/control.h"

static void check(int code, const char* what) {
  if (code != MPI_SUCCESS) {
    fprintf(stderr, "%s failed with code %d\n", what, code);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

/* Fills with rank + 1, reduces once and compares with the sum over the ranks; leaves zeros, which
 * stay zeros however often they are added. */
static void verify(float* data, size_t count, int rank, int size) {
  const float expected = (float)(size * (size + 1)) / 2;
  for (size_t i = 0; i < count; ++i) data[i] = (float)(rank + 1);
  check(MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
        "MPI_Allreduce");
  for (size_t i = 0; i < count; ++i) {
    if (data[i] != expected) {
      fprintf(stderr, "element %zu is %g, expected %g\n", i, (double)data[i], (double)expected);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  memset(data, 0, count * sizeof(float));
}

static double allreduce(float* data, size_t count, int iterations) {
  const double start = control_now();
  for (int i = 0; i < iterations; ++i) {
    check(MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
          "MPI_Allreduce");
  }
  return (control_now() - start) / iterations;
}

/* As in training: each time the rank has just written what is reduced. */
static double fresh(float* data, size_t count, int iterations) {
  double seconds = 0;
  for (int i = 0; i < iterations; ++i) {
    for (size_t k = 0; k < count; ++k) data[k] = (float)i;
    check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    seconds += allreduce(data, count, 1);
  }
  return seconds / iterations;
}

static double many(float* data, size_t count, int tensors, MPI_Request* requests, int iterations) {
  const double start = control_now();
  for (int i = 0; i < iterations; ++i) {
    for (int t = 0; t < tensors; ++t) {
      check(MPI_Iallreduce(MPI_IN_PLACE, data + (size_t)t * count, (int)count, MPI_FLOAT, MPI_SUM,
                           MPI_COMM_WORLD, &requests[t]),
            "MPI_Iallreduce");
    }
    check(MPI_Waitall(tensors, requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
  }
  return (control_now() - start) / iterations;
}

/* A command is "<case> <bytes> <tensors> <warm-up iterations> <timed iterations>". */
static double run(const char* line, int rank, int size) {
  char name[32];
  size_t bytes = 0;
  int tensors = 0, warm = 0, iterations = 0;
  double seconds = 0;
  float* data;
  if (sscanf(line, "%31s %zu %d %d %d", name, &bytes, &tensors, &warm, &iterations) != 5) {
    fprintf(stderr, "command '%s' not understood\n", line);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  data = (float*)malloc(bytes * (size_t)tensors);
  if (data == NULL) control_die("out of memory");
  verify(data, bytes / sizeof(float) * (size_t)tensors, rank, size);
  if (strcmp(name, "allreduce") == 0) {
    allreduce(data, bytes / sizeof(float), warm);
    seconds = allreduce(data, bytes / sizeof(float), iterations);
  } else if (strcmp(name, "fresh") == 0) {
    fresh(data, bytes / sizeof(float), warm);
    seconds = fresh(data, bytes / sizeof(float), iterations);
  } else if (strcmp(name, "packed") == 0) {
    allreduce(data, bytes / sizeof(float) * (size_t)tensors, warm);
    seconds = allreduce(data, bytes / sizeof(float) * (size_t)tensors, iterations);
  } else {
    MPI_Request* requests = (MPI_Request*)malloc(sizeof(MPI_Request) * (size_t)tensors);
    if (requests == NULL) control_die("out of memory");
    many(data, bytes / sizeof(float), tensors, requests, warm);
    seconds = many(data, bytes / sizeof(float), tensors, requests, iterations);
    free(requests);
  }
  free(data);
  return seconds;
}

int main(int argc, char** argv) {
  char line[kControlLineBytes];
  int rank, size, control;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  control = control_connect(rank);
  while (control_next(control, line)) control_reply(control, run(line, rank, size));
  MPI_Finalize();
  return 0;
}
