// SPDX-License-Identifier: Apache-2.0
// Says how long this rank was between the call of MPI_Init and the return of MPI_Finalize.
#include <mpi.h>
#include <stdio.h>
#include <time.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(int argc, char** argv) {
  int size;
  const double begin = now();
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Finalize();
  printf("span %d %.6f\n", size, now() - begin);
  return 0;
}
