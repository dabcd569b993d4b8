// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/mpi_library.h"

#include <algorithm>

#include "proto/contract/text.h"

namespace ivy {
namespace {

struct Row {
  std::string_view prefix;
  MpiFamily family;
};

// The first matching row applies.
constexpr Row kTable[] = {
    {"libmpi_abi.so", MpiFamily::kEither},
    {"libmpi.so.12", MpiFamily::kMpich},
    {"libmpi.so.0", MpiFamily::kMpich},  // MVAPICH 4. Open MPI used this name until 2010.
    {"libmpich", MpiFamily::kMpich},
    {"libpmpich", MpiFamily::kMpich},
    {"libmpicxx.so", MpiFamily::kMpich},
    {"libmpifort.so.12", MpiFamily::kMpich},
    {"libmpi.so.20", MpiFamily::kOpenMpi},
    {"libmpi.so.40", MpiFamily::kOpenMpi},
    {"libmpi.so.80", MpiFamily::kOpenMpi},
    {"libmpi_cxx.so", MpiFamily::kOpenMpi},
    {"libmpi_mpifh.so", MpiFamily::kOpenMpi},
    {"libmpi_usempi", MpiFamily::kOpenMpi},
    // Other libraries: MPICH 1 and 2, Open MPI 1, Cray's, IBM's, Fujitsu's.
    {"libmpi.", MpiFamily::kUnknown},
    {"libmpi_", MpiFamily::kUnknown},
    {"libmpi++", MpiFamily::kUnknown},
    {"libmpifort", MpiFamily::kUnknown},
    {"libpmpi", MpiFamily::kUnknown},
};

}  // namespace

MpiFamily mpi_family(std::string_view soname) {
  for (const Row& row : kTable)
    if (soname.starts_with(row.prefix)) return row.family;
  return MpiFamily::kNone;
}

MpiFamily mpi_family_of(std::string_view libraries) {
  MpiFamily all = MpiFamily::kNone;
  for (const std::string_view library : words_of(libraries)) {
    const MpiFamily family = mpi_family(library);
    const bool says_nothing = family == MpiFamily::kNone || family == MpiFamily::kUnknown;
    if (says_nothing && all != MpiFamily::kNone) continue;
    const bool is_better = all == MpiFamily::kNone || all == MpiFamily::kUnknown;
    if (is_better)
      all = family;
    else if (all != family)
      return MpiFamily::kUnknown;
  }
  return all;
}

}  // namespace ivy
