// An MPI program that does not depend on ivyrun: mpi_world [WHAT]. Each rank prints its world's
// size, the sum of all ranks' numbers and the number of ranks that share its memory; then rank 1
// does WHAT, and the others wait for it.
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  const char *name = getenv("IVY_RANK"), *attempt = getenv("IVY_GENERATION");
  if (!strcmp(what, "absent") && name && !strcmp(name, "1")) return 0;
  MPI_Init(&argc, &argv);
  int rank, size, sum, own, near;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  own = rank + 1;
  MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Comm shared;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared);
  MPI_Comm_size(shared, &near);
  printf("rank %d of %d: sum %d, near %d\n", rank, size, sum, near);
  fflush(stdout);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1 && !strcmp(what, "abort")) MPI_Abort(MPI_COMM_WORLD, 7);
  if (rank == 1 && !strcmp(what, "abort-once") && attempt && !strcmp(attempt, "0"))
    MPI_Abort(MPI_COMM_WORLD, 7);
  if (rank == 1 && !strcmp(what, "kill")) raise(SIGKILL);
  if (rank == 1 && !strcmp(what, "leave")) _exit(0);
  if (rank == 1 && !strcmp(what, "spawn")) {
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm more;
    if (MPI_Comm_spawn("true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &more,
                       MPI_ERRCODES_IGNORE) == MPI_SUCCESS)
      return 3;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
