// The worlds that ivyrun does not serve yet: what joins them finds no peers in a worker, so that a
// job of N workers would be N worlds of one and end well with wrong results. Such a job is an error
// unless --allow-singletons is given. The one table of them; a row goes when its world is served.
// Pure; thread: any.
#pragma once

#include <span>
#include <string_view>

namespace ivy {

struct UnservedWorld {
  std::string_view name;       // "MPI"
  std::string_view backend;    // The word of -B that asks for it; empty: none.
  std::string_view libraries;  // How the names of its shared libraries begin, blank-separated.
  std::string_view modules;    // Python modules that join it when they are loaded, blank-separated.
  std::string_view instead;    // What starts such a program today.
};

std::span<const UnservedWorld> unserved_worlds();

// Null when none is meant.
const UnservedWorld* world_of_backend(std::string_view backend);
const UnservedWorld* world_of_library(std::string_view soname);

// Variables by which those who do serve these worlds tell a process its rank, blank-separated:
// where one is set, the process has peers (mpirun inside a worker).
std::string_view rank_variables();

}  // namespace ivy
