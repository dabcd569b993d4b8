// Prints how long the slowest rank took from before MPI_Init to behind MPI_Finalize, in milliseconds.
#include <mpi.h>
#include <stdio.h>
#include <time.h>

static double now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

int main(int argc, char **argv) {
  const double before = now_ms();
  MPI_Init(&argc, &argv);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  printf("ms %.1f\n", now_ms() - before);
  return 0;
}
