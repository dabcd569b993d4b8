// SPDX-License-Identifier: Apache-2.0
// The part of the Python hook (python_hook.h) that gives mpi4py its world: when mpi4py.MPI is
// imported, the worker gets its place from this host's MPI servers before the MPI library is
// loaded. A world that is still not the job's is an error that says what to type.
#pragma once

#include <string_view>

namespace ivy {

// Defines _mpi(), which arms it.
std::string_view python_hook_mpi();

}  // namespace ivy
