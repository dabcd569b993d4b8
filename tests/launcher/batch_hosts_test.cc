// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/batch_hosts.h"

#include <gtest/gtest.h>

#include "launcher/plan/allocation.h"

namespace ivy {
namespace {

Result<std::string> read(const std::string& path) {
  if (path == "/pbs") return std::string("n1.cluster\nn1.cluster\nn2.cluster\n\n");
  if (path == "/lsf") return std::string("n3\r\nn3\nn1\n");
  if (path == "/ge") return std::string("n1.c 4 all.q@n1 <NULL>\n n2.c 2 all.q@n2 UNDEFINED\n");
  if (path == "/empty") return std::string("\n");
  if (path == "/odd") return std::string("n1;reboot\n");
  return Error{Code::kInvalidArgument, "cannot read " + path};
}

std::string found(const Environment& environment) {
  const Result<std::optional<BatchHosts>> hosts = read_batch_hosts(environment, read);
  if (!hosts.ok()) return "error: " + hosts.error().message;
  if (!*hosts) return "none";
  std::string text = (*hosts)->name + ":";
  for (const std::string& host : (*hosts)->hosts) text += " " + host;
  return text;
}

TEST(BatchHosts, FollowTheOrderOfTheScheduler) {
  EXPECT_EQ(found({{"PBS_JOBID", "7.head"}, {"PBS_NODEFILE", "/pbs"}}),
            "PBS job 7.head: n1.cluster n2.cluster");
  EXPECT_EQ(found({{"LSB_JOBID", "7"}, {"LSB_DJOB_HOSTFILE", "/lsf"}}), "LSF job 7: n3 n1");
  EXPECT_EQ(found({{"LSB_JOBID", "7"}, {"LSB_MCPU_HOSTS", "n2 4  n1 16 "}}), "LSF job 7: n2 n1");
  EXPECT_EQ(found({{"JOB_ID", "7"}, {"PE_HOSTFILE", "/ge"}}), "Grid Engine job 7: n1.c n2.c");
}

TEST(BatchHosts, AreEmptyOutsideOfSuchJobs) {
  EXPECT_EQ(found({}), "none");
  EXPECT_EQ(found({{"JOB_ID", "7"}}), "none") << "which may be anybody's";
  EXPECT_EQ(found({{"PBS_NODEFILE", "/pbs"}}), "none");
  EXPECT_EQ(found({{"PBS_JOBID", ""}, {"PBS_NODEFILE", "/pbs"}}), "none");
}

TEST(BatchHosts, RejectAListThatIsNone) {
  for (const char* path : {"/missing", "/empty", "/odd"}) {
    const Result<std::optional<BatchHosts>> hosts =
        read_batch_hosts({{"PBS_JOBID", "7"}, {"PBS_NODEFILE", path}}, read);
    ASSERT_FALSE(hosts.ok()) << path;
    EXPECT_NE(hosts.error().message.find("PBS_NODEFILE"), std::string::npos);
    EXPECT_NE(hosts.error().fix.find("env -u PBS_JOBID"), std::string::npos);
  }
}

TEST(BatchHosts, PreferSlurm) {
  const Environment both{{"SLURM_JOB_ID", "1"},
                         {"SLURM_JOB_NODELIST", "s1"},
                         {"PBS_JOBID", "7"},
                         {"PBS_NODEFILE", "/pbs"}};
  EXPECT_EQ(find_allocation(both, read).value()->name, "Slurm job 1");
  const Environment pbs{{"PBS_JOBID", "7"}, {"PBS_NODEFILE", "/pbs"}};
  const Allocation allocation = *find_allocation(pbs, read).value();
  EXPECT_EQ(allocation.hosts.size(), 2u);
  EXPECT_FALSE(allocation.slurm.has_value());
}

}  // namespace
}  // namespace ivy
