// SPDX-License-Identifier: Apache-2.0
// The role `ivy-node mpi-exec`: stands in front of a worker that is an MPI program, gets its place
// in the MPI world from this host's servers, and becomes the program; the process stays the same.
//
//   ivy-node mpi-exec --directory JOBDIR [--pmi] [--pmix] --path FILE -- ARGUMENTS...
//
// --pmi: a connection to JOBDIR/pmi.sock, whose descriptor is PMI_FD. --pmix: the variables that
// JOBDIR/pmix.sock answers with. With both, either is enough: which of them the program's library
// speaks is not known. The rank and the size of the world are those of the worker's variables.
#pragma once

namespace ivy {

// Takes the argv after "mpi-exec". Returns, with an exit code, only when it fails.
int run_mpi_exec(int argc, char** argv);

}  // namespace ivy
