// SPDX-License-Identifier: Apache-2.0
// Recognizes MPI libraries by the names that real programs use.
#include "proto/contract/mpi_library.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

TEST(MpiLibraryTest, RecognizesALibraryByItsName) {
  const std::pair<const char*, MpiFamily> kTable[] = {
      {"libmpi.so.12", MpiFamily::kMpich},       {"libmpich.so.12", MpiFamily::kMpich},
      {"libmpi.so.0", MpiFamily::kMpich},        {"libmpi.so.0.0.0", MpiFamily::kMpich},
      {"libmpichcxx.so.12", MpiFamily::kMpich},  {"libmpicxx.so.12", MpiFamily::kMpich},
      {"libmpifort.so.12", MpiFamily::kMpich},   {"libmpi.so.40", MpiFamily::kOpenMpi},
      {"libmpi_cxx.so.40", MpiFamily::kOpenMpi}, {"libmpi_mpifh.so.40", MpiFamily::kOpenMpi},
      {"libmpi.so.80", MpiFamily::kOpenMpi},     {"libmpi_abi.so.0", MpiFamily::kEither},
      {"libmpi.so.1", MpiFamily::kUnknown},      {"libmpi_gnu_91.so.12", MpiFamily::kUnknown},
      {"libpmpi.so.12", MpiFamily::kUnknown},    {"libmpir.so.3", MpiFamily::kNone},
      {"libmp3lame.so.0", MpiFamily::kNone},     {"libopen-pal.so.40", MpiFamily::kNone},
      {"libc.so.6", MpiFamily::kNone},           {"", MpiFamily::kNone},
  };
  for (const auto& [name, family] : kTable) EXPECT_EQ(mpi_family(name), family) << name;
}

TEST(MpiLibraryTest, PrefersAKnownLibrary) {
  EXPECT_EQ(mpi_family_of("libmpich.so.12 libmpicxx.so.12"), MpiFamily::kMpich);
  EXPECT_EQ(mpi_family_of("libpmpi.so.12 libmpi.so.12"), MpiFamily::kMpich);
  EXPECT_EQ(mpi_family_of("libmpi.so.40 libmpich.so.12"), MpiFamily::kUnknown);
  EXPECT_EQ(mpi_family_of("libc.so.6"), MpiFamily::kNone);
  EXPECT_EQ(mpi_family_of(""), MpiFamily::kNone);
}

}  // namespace
}  // namespace ivy
