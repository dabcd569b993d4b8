// Which of ivyrun's two MPI servers a program needs, by the libraries that it names: PMI-1 for
// MPICH and what shares its binary interface (Intel MPI, MVAPICH), PMIx for Open MPI. Pure;
// thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

enum class MpiFamily {
  kNone,     // It is no MPI library.
  kMpich,    // It speaks PMI-1 to our server.
  kOpenMpi,  // It speaks PMIx to our server.
  kEither,   // MPI 5's common interface: whichever library is found when it is loaded.
  kUnknown,  // An MPI library that neither server is known to serve.
};

// "libmpi.so.40" is Open MPI's, "libmpi.so.12" MPICH's. Not "libmpir.so.23", which is no MPI.
MpiFamily mpi_family(std::string_view soname);

// Several libraries of one program, blank-separated: kNone where none is MPI's; kUnknown also where
// two families are among them.
MpiFamily mpi_family_of(std::string_view libraries);

}  // namespace ivy
