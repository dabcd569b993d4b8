// SPDX-License-Identifier: Apache-2.0
// The variables by which any MPI library in a worker finds its rank.
#include "agent/node/workers/mpi_identity.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

std::string value_of(const Environment& environment, std::string_view name) {
  const std::string* const value = find_variable(environment, name);
  return value == nullptr ? "(not set)" : *value;
}

TEST(MpiIdentityTest, NamesThePortsAndTheRank) {
  const Environment identity = mpi_identity_variables({.rank = 5,
                                                       .size = 8,
                                                       .local_rank = 1,
                                                       .local_size = 4,
                                                       .pmi_port = 4001,
                                                       .pmix_port = 4002,
                                                       .host = 1,
                                                       .host_name = "node2",
                                                       .pmix_namespace = "ivy-j-0-s",
                                                       .directory = "/job/pmix/0/server"});
  EXPECT_EQ(value_of(identity, "PMI_PORT"), "127.0.0.1:4001");
  EXPECT_EQ(value_of(identity, "PMI_ID"), "5");
  EXPECT_EQ(value_of(identity, "PMI_SIZE"), "8");
  EXPECT_EQ(value_of(identity, "MPI_LOCALRANKID"), "1");
  EXPECT_EQ(value_of(identity, "PMIX_RANK"), "5");
  EXPECT_EQ(value_of(identity, "PMIX_SERVER_URI41"), "ivyrun-pmix.1;tcp4://127.0.0.1:4002");
  // The Python hook compares it with its own value.
  EXPECT_EQ(value_of(identity, "IVY_MPI_PLACE"), "127.0.0.1:4001 ivy-j-0-s");
  // Its descriptor would not exist in every process.
  EXPECT_EQ(value_of(identity, "PMI_FD"), "(not set)");
}

TEST(MpiIdentityTest, RecognizesItsOwnSettings) {
  const std::string directory = "/dev/shm/ivyrun-7/pmix-j-0-1";
  const Environment settings =
      mpi_settings({.job_id = "0123456789abcdef0123456789abcdef", .segment_directory = directory});
  EXPECT_EQ(value_of(settings, "OMPI_MCA_btl_vader_backing_directory"), directory);
  EXPECT_EQ(value_of(settings, "OMPI_MCA_orte_precondition_transports"),
            "0123456789abcdef-0123456789abcdef");
  EXPECT_EQ(value_of(settings, "OMPI_MCA_mpi_oversubscribe"), "(not set)");
  EXPECT_EQ(value_of(settings, "I_MPI_THREAD_YIELD"), "(not set)");
  EXPECT_TRUE(is_old_mpi_setting(directory));
  EXPECT_FALSE(is_old_mpi_setting("/scratch/segments"));
}

TEST(MpiIdentityTest, MakesRanksThatShareProcessorsYieldWhileTheyWait) {
  const Environment settings = mpi_settings({.job_id = "0123456789abcdef0123456789abcdef",
                                             .segment_directory = "/d",
                                             .is_oversubscribed = true});
  EXPECT_EQ(value_of(settings, "OMPI_MCA_mpi_oversubscribe"), "1");
  EXPECT_EQ(value_of(settings, "I_MPI_THREAD_YIELD"), "2");
}

}  // namespace
}  // namespace ivy
