// An MPI program that does not depend on ivyrun: mpi_ring [abort CODE | wait | exit]. Each rank
// prints its world's size and the sum of all ranks' numbers; then rank 1 aborts, or exits without
// MPI_Finalize, or all wait.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size, sum, own;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  own = rank + 1;
  MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("rank %d of %d: sum %d\n", rank, size, sum);
  fflush(stdout);
  const char* end = argc > 1 ? argv[1] : "";
  if (rank == 1 && !strcmp(end, "abort")) MPI_Abort(MPI_COMM_WORLD, argc > 2 ? atoi(argv[2]) : 7);
  if (rank == 1 && !strcmp(end, "exit")) _exit(0);
  if (*end != '\0') sleep(600);
  MPI_Finalize();
  return 0;
}
