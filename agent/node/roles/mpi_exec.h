// SPDX-License-Identifier: Apache-2.0
// The role `ivy-node mpi-exec`: runs before a worker that is an MPI program, gets its place in the
// MPI world from this host's servers, and then executes the program in the same process.
//
//   ivy-node mpi-exec --directory JOBDIR [--pmi] [--pmix] --path FILE -- ARGUMENTS...
//
// --pmi: connects to JOBDIR/pmi.sock and sets PMI_FD to the descriptor. --pmix: sets the variables
// that JOBDIR/pmix.sock returns. At least one of them is required. With both, one may fail, because
// it is not known which one the program's library uses. Rank and world size are taken from the
// worker's variables.
#pragma once

namespace ivy {

// Takes the argv after "mpi-exec". Returns only on failure, with an exit code.
int run_mpi_exec(int argc, char** argv);

}  // namespace ivy
