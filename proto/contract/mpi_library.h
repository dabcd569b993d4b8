// SPDX-License-Identifier: Apache-2.0
// Decides which of ivyrun's two MPI servers a program needs, from the libraries that it links:
// PMI-1 for MPICH and libraries that share its binary interface (Intel MPI, MVAPICH), PMIx for Open
// MPI. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

enum class MpiFamily {
  kNone,     // Not an MPI library.
  kMpich,    // Uses PMI-1.
  kOpenMpi,  // Uses PMIx.
  kEither,   // MPI 5's common interface: whichever library the loader finds.
  kUnknown,  // An MPI library that neither server is known to support.
};

// Returns the family of a library name: "libmpi.so.40" is Open MPI, "libmpi.so.12" MPICH, and
// "libmpir.so.23" is not an MPI library.
MpiFamily mpi_family(std::string_view soname);

// Returns the family of a program's libraries, separated by blanks: kNone if none is an MPI
// library, kUnknown also if they belong to two families.
MpiFamily mpi_family_of(std::string_view libraries);

}  // namespace ivy
