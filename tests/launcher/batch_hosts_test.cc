// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/batch_hosts.h"

#include <gtest/gtest.h>

#include "launcher/plan/allocation.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

struct Site final : AllocationInputs {
  std::string flux_hosts = "f[1-3],f2\n";
  std::string flux_owner = "1000\n";
  std::string flux_error;
  std::vector<std::string> programs;

  Result<std::string> file(const std::string& path) override {
    if (path == "/pbs") return std::string("n1.cluster\nn1.cluster\nn2.cluster\n\n");
    if (path == "/lsf") return std::string("n3\r\nn3\nn1\n");
    if (path == "/ge") return std::string("n1.c 4 all.q@n1 <NULL>\n n2.c 2 all.q@n2 UNDEFINED\n");
    if (path == "/empty") return std::string("\n");
    if (path == "/odd") return std::string("n1;reboot\n");
    return Error{Code::kInvalidArgument, "cannot read " + path};
  }
  Result<std::string> program(const std::vector<std::string>& arguments) override {
    programs.push_back(joined(arguments, " "));
    if (!flux_error.empty()) return Error{Code::kNotFound, flux_error};
    return programs.back() == "flux getattr hostlist" ? flux_hosts : flux_owner;
  }
  std::uint32_t user_id() override { return 1000; }
};

std::string text_of(const Result<std::optional<BatchHosts>>& hosts) {
  if (!hosts.ok()) return "error: " + hosts.error().message;
  if (!*hosts) return "none";
  std::string text = (*hosts)->name + ":";
  for (const std::string& host : (*hosts)->hosts) text += " " + host;
  return text;
}

std::string found(const Environment& environment) {
  Site site;
  return text_of(read_batch_hosts(environment, site));
}

const Environment kFlux = {{"FLUX_URI", "local:///tmp/flux-x/local-0"}};

std::string in_flux(Site site, const Environment& environment = kFlux) {
  return text_of(read_flux_hosts(environment, site));
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
  EXPECT_EQ(found({{"JOB_ID", "7"}}), "none") << "it may belong to any user";
  EXPECT_EQ(found({{"PBS_NODEFILE", "/pbs"}}), "none");
  EXPECT_EQ(found({{"PBS_JOBID", ""}, {"PBS_NODEFILE", "/pbs"}}), "none");
}

TEST(BatchHosts, RejectAnInvalidList) {
  for (const char* path : {"/missing", "/empty", "/odd"}) {
    Site site;
    const Result<std::optional<BatchHosts>> hosts =
        read_batch_hosts({{"PBS_JOBID", "7"}, {"PBS_NODEFILE", path}}, site);
    ASSERT_FALSE(hosts.ok()) << path;
    EXPECT_NE(hosts.error().message.find("PBS_NODEFILE"), std::string::npos);
    EXPECT_NE(hosts.error().fix.find("env -u PBS_JOBID"), std::string::npos);
  }
}

TEST(BatchHosts, RejectSeveralHostsWithoutAList) {
  EXPECT_EQ(found({{"PBS_JOBID", "7"}, {"PBS_NUM_NODES", "2"}}),
            "error: PBS_NUM_NODES=2, but PBS_NODEFILE is not set");
  EXPECT_EQ(found({{"JOB_ID", "7"}, {"NHOSTS", "4"}}),
            "error: NHOSTS=4, but PE_HOSTFILE is not set");
  EXPECT_EQ(found({{"JOB_ID", "7"}, {"NHOSTS", "1"}}), "none");
  EXPECT_EQ(found({{"JOB_ID", "7"}, {"NHOSTS", "many"}}), "none");
  EXPECT_EQ(found({{"NHOSTS", "4"}}), "none");
}

TEST(FluxHosts, AreThoseOfTheInstance) {
  Site site;
  EXPECT_EQ(in_flux(site), "the Flux instance: f1 f2 f3");
  EXPECT_EQ(in_flux(site, {}), "none");
  EXPECT_EQ(in_flux(site, {{"FLUX_URI", ""}}), "none");
  site.flux_hosts = "f1";
  site.flux_owner = "0";
  EXPECT_EQ(in_flux(site), "the Flux instance: f1");
}

TEST(FluxHosts, AreNotThoseOfAnotherUsersInstance) {
  Site site;
  site.flux_owner = "500\n";
  EXPECT_EQ(in_flux(site), "none") << "it belongs to the system";
}

TEST(FluxHosts, RejectAnAnswerWithoutHosts) {
  Site site;
  site.flux_hosts = "\n";
  const std::string unknown = "error: the hosts of the Flux instance are not known: ";
  EXPECT_EQ(in_flux(site), unknown + "flux getattr hostlist printed nothing");
  site.flux_hosts = "f[1-";
  EXPECT_EQ(in_flux(site),
            unknown + "flux getattr hostlist, column 2: \"f[1-\" has an unmatched bracket");
  site.flux_error = "flux getattr hostlist: start flux: No such file or directory";
  EXPECT_EQ(in_flux(site), unknown + site.flux_error);
  const Error error = read_flux_hosts(kFlux, site).error();
  EXPECT_NE(error.fix.find("env -u FLUX_URI"), std::string::npos);
}

TEST(BatchHosts, PreferSlurm) {
  const Environment both{{"SLURM_JOB_ID", "1"},
                         {"SLURM_JOB_NODELIST", "s1"},
                         {"PBS_JOBID", "7"},
                         {"PBS_NODEFILE", "/pbs"}};
  Site site;
  EXPECT_EQ(find_allocation(both, site).value()->name, "Slurm job 1");
  const Environment pbs{{"PBS_JOBID", "7"}, {"PBS_NODEFILE", "/pbs"}};
  const Allocation allocation = *find_allocation(pbs, site).value();
  EXPECT_EQ(allocation.hosts.size(), 2u);
  EXPECT_FALSE(allocation.slurm.has_value());
  EXPECT_TRUE(site.programs.empty());
}

TEST(BatchHosts, PreferFluxToTheJobThatItRunsIn) {
  Environment both{{"PBS_JOBID", "7"}, {"PBS_NODEFILE", "/pbs"}};
  set_variable(both, "FLUX_URI", "local:///tmp/flux-x/local-0");
  Site site;
  EXPECT_EQ(find_allocation(both, site).value()->name, "the Flux instance");
  // `flux run -n 1`: only this host.
  set_variable(both, "FLUX_JOB_ID", "f23");
  EXPECT_FALSE(find_allocation(both, site).value().has_value());
}

}  // namespace
}  // namespace ivy
