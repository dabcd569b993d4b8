// SPDX-License-Identifier: Apache-2.0
// Frameworks (Horovod and the like) whose worlds ivyrun serves only if -B names them. A program
// that joins one finds no peers in a worker, so a job of N workers would be N worlds of one
// process, and would succeed with wrong results. Such a job is an error unless --allow-singletons
// is given. Remove a row when ivyrun serves the framework by default. Pure; thread: any.
#pragma once

#include <span>
#include <string_view>

namespace ivy {

struct UnservedWorld {
  std::string_view name;     // "Horovod", as people write it.
  std::string_view modules;  // Python modules that join it when imported, blank-separated.
  std::string_view instead;  // Advice: how to run such a program.
};

std::span<const UnservedWorld> unserved_worlds();

// Variables with which launchers that serve these frameworks tell a process its rank,
// blank-separated. If one is set, the process has peers (mpirun inside a worker). PMI_PORT and
// PMIX_NAMESPACE are not included: ivyrun sets these itself, and the process has other peers if
// IVY_MPI_PLACE does not name them.
std::string_view rank_variables();

}  // namespace ivy
