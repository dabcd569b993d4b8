// SPDX-License-Identifier: Apache-2.0
// A table of environments: the rank's identity, its source, and the method of rendezvous, or the
// error and the name of the wrong variable.
#include "comm/join/identity.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace ivy::comm {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Variables operator+(Variables left, const Variables& right) {
  for (const auto& [name, value] : right) {
    if (value == "-") {
      left.erase(name);
    } else {
      left[name] = value;
    }
  }
  return left;
}

IdentityRequest asks(std::string method, int rank = -1, int size = -1) {
  IdentityRequest request;
  request.init_method = std::move(method);
  if (rank >= 0) request.rank = static_cast<std::uint32_t>(rank);
  if (size >= 0) request.world_size = static_cast<std::uint32_t>(size);
  return request;
}

Result<Identity> identify_in(const Variables& variables, const IdentityRequest& request) {
  return identify(request, [&](std::string_view name) {
    const auto found = variables.find(name);
    return found != variables.end() ? std::optional(found->second) : std::nullopt;
  });
}

const Variables kIvyrun{{"IVY_RANK", "3"},        {"IVY_WORLD_SIZE", "4"}, {"IVY_NODE_RANK", "1"},
                        {"IVY_NUM_NODES", "2"},   {"IVY_STORE", "h:1"},    {"IVY_JOB_ID", "abc"},
                        {"IVY_TOKEN_FILE", "/t"}, {"IVY_GENERATION", "2"}, {"IVY_CONTROL", "/c"}};
// The variables of torchrun --nproc_per_node 4.
const Variables kTorchrun{{"RANK", "1"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "10.0.0.1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"TORCHELASTIC_RESTART_COUNT", "0"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"NCCL_ASYNC_ERROR_HANDLING", "1"}};
const Variables kTwoHosts{{"LOCAL_WORLD_SIZE", "2"}};
const Variables kNewTorch{{"NCCL_ASYNC_ERROR_HANDLING", "-"},
                          {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"OMPI_MCA_orte_hnp_uri", "760545280.0;tcp://192.0.2.2:34621"},
                         {"PMIX_NAMESPACE", "760545281"}};
const Variables kHydra{
    {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}};
const Variables kSlurm{{"SLURM_JOB_ID", "71"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "2"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                       {"SLURM_STEP_NODELIST", "node[07-08]"}};
const Variables kSlurmOneHost{{"SLURM_NODEID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "4"}};
// srun starts one torchrun or mpirun on each host.
const Variables kSlurmOnePerHost{
    {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
const Variables kMaster{{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};

struct Right {
  const char* name;
  Variables variables;
  IdentityRequest request;
  Bootstrap bootstrap;
  std::uint32_t rank;
  std::uint32_t world_size;
  const char* source;
};

const IdentityRequest nothing;

const Right kRight[] = {
    {"nothing", {}, nothing, Bootstrap::kSingle, 0, 1, "a world of one"},
    {"env is nothing", {}, asks("env://"), Bootstrap::kSingle, 0, 1, "a world of one"},
    {"self", kTorchrun, asks("self://"), Bootstrap::kSingle, 0, 1, "a world of one"},
    {"ivyrun", kIvyrun, nothing, Bootstrap::kStore, 3, 4, "ivyrun (IVY_RANK=3, IVY_WORLD_SIZE=4)"},
    {"ivyrun over an outer srun", kIvyrun + kSlurm + kSlurmOnePerHost, nothing, Bootstrap::kStore,
     3, 4, "ivyrun"},
    {"ivyrun and torch's block of the same", kIvyrun + kTorchrun + Variables{{"RANK", "3"}},
     nothing, Bootstrap::kStore, 3, 4, "ivyrun"},
    {"ivyrun over a variable of another launcher", kIvyrun + Variables{{"PMI_SIZE", "9"}}, nothing,
     Bootstrap::kStore, 3, 4, "ivyrun"},
    {"torchrun, one host", kTorchrun, nothing, Bootstrap::kHostFile, 1, 4,
     "torchrun (RANK=1, WORLD_SIZE=4)"},
    {"torchrun, two hosts", kTorchrun + kTwoHosts, nothing, Bootstrap::kTorchStore, 1, 4,
     "torchrun"},
    {"torchrun, two hosts, without the agent's store",
     kTorchrun + kTwoHosts + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "False"}}, nothing,
     Bootstrap::kAddress, 1, 4, "torchrun"},
    {"torchrun of one",
     {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}},
     nothing,
     Bootstrap::kSingle,
     0,
     1,
     "torchrun"},
    {"torchrun, one on each host of srun", kTorchrun + kTwoHosts + kSlurm + kSlurmOnePerHost,
     nothing, Bootstrap::kTorchStore, 1, 4, "torchrun"},
    {"torchrun inside srun --pty",
     kTorchrun + kSlurm + Variables{{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}, nothing,
     Bootstrap::kHostFile, 1, 4, "torchrun"},
    {"Open MPI, one host", kOpenMpi, nothing, Bootstrap::kHostFile, 2, 4, "Open MPI's mpirun"},
    {"Open MPI, two hosts", kOpenMpi + kMaster + Variables{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
     nothing, Bootstrap::kAddress, 2, 4, "Open MPI's mpirun"},
    {"Open MPI whose daemons srun started", kOpenMpi + kSlurm + kSlurmOnePerHost, nothing,
     Bootstrap::kHostFile, 2, 4, "Open MPI's mpirun"},
    {"Open MPI with a WORLD_SIZE of another program", kOpenMpi + Variables{{"WORLD_SIZE", "4"}},
     nothing, Bootstrap::kHostFile, 2, 4, "Open MPI's mpirun"},
    {"Hydra, one host", kHydra, nothing, Bootstrap::kHostFile, 2, 4, "MPICH's mpiexec"},
    {"Hydra, two hosts", kHydra + kMaster + Variables{{"MPI_LOCALNRANKS", "2"}}, nothing,
     Bootstrap::kAddress, 2, 4, "MPICH's mpiexec"},
    {"Slurm step", kSlurm, nothing, Bootstrap::kAddress, 2, 4,
     "the Slurm step (SLURM_PROCID=2, SLURM_STEP_NUM_TASKS=4)"},
    {"Slurm step on one host", kSlurm + kSlurmOneHost, nothing, Bootstrap::kHostFile, 2, 4,
     "the Slurm step"},
    {"Slurm step of an old version",
     kSlurm + Variables{{"SLURM_STEP_NUM_TASKS", "-"}, {"SLURM_NTASKS", "4"}}, nothing,
     Bootstrap::kAddress, 2, 4, "the Slurm step (SLURM_PROCID=2, SLURM_NTASKS=4)"},
    {"srun --mpi=pmi2", kSlurm + Variables{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}, nothing,
     Bootstrap::kAddress, 2, 4, "the Slurm step"},
    {"a batch script is not a rank", kSlurm + Variables{{"SLURM_STEP_ID", "-"}}, nothing,
     Bootstrap::kSingle, 0, 1, "a world of one"},
    {"IVY_LAUNCHER resolves a conflict",
     kTorchrun + kOpenMpi + Variables{{"IVY_LAUNCHER", "openmpi"}}, nothing, Bootstrap::kHostFile,
     2, 4, "Open MPI's mpirun"},
    {"IVY_LAUNCHER=none", kTorchrun + Variables{{"IVY_LAUNCHER", "none"}}, nothing,
     Bootstrap::kSingle, 0, 1, "a world of one"},
    {"tcp with rank and size",
     {},
     asks("tcp://node1:4000", 1, 2),
     Bootstrap::kAddress,
     1,
     2,
     "the program (rank=1, world_size=2)"},
    {"the program overrides every launcher", kTorchrun, asks("tcp://10.0.0.1:4000", 0, 2),
     Bootstrap::kAddress, 0, 2, "the program"},
    {"tcp with a launcher's numbers", kTorchrun, asks("tcp://10.0.0.1:4000"), Bootstrap::kAddress,
     1, 4, "torchrun"},
    {"file", {}, asks("file:///home/me/meet", 1, 2), Bootstrap::kFile, 1, 2, "the program"},
    {"tcp of one", {}, asks("tcp://10.0.0.1:4000", 0, 1), Bootstrap::kSingle, 0, 1, "the program"},
    {"IVY_INIT_METHOD", kOpenMpi + Variables{{"IVY_INIT_METHOD", "tcp://10.0.0.1:4000"}}, nothing,
     Bootstrap::kAddress, 2, 4, "Open MPI's mpirun"},
    {"IVY_INIT_METHOD for hosts that the launcher does not name",
     kOpenMpi +
         Variables{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"IVY_INIT_METHOD", "tcp://10.0.0.1:4000"}},
     nothing, Bootstrap::kAddress, 2, 4, "Open MPI's mpirun"},
    {"ivyrun --no-store, with the program's address", kIvyrun + Variables{{"IVY_STORE", "-"}},
     asks("tcp://10.0.0.1:4000"), Bootstrap::kAddress, 3, 4, "ivyrun"},
    {"the program over IVY_INIT_METHOD", Variables{{"IVY_INIT_METHOD", "tcp://10.0.0.1:4000"}},
     asks("env://"), Bootstrap::kSingle, 0, 1, "a world of one"},
    {"the program agrees", kTorchrun, asks("", 1, 4), Bootstrap::kHostFile, 1, 4, "torchrun"},
};

TEST(IdentityTableTest, TheMostSpecificSourceWins) {
  for (const Right& right : kRight) {
    SCOPED_TRACE(right.name);
    const Result<Identity> identity = identify_in(right.variables, right.request);
    EXPECT_TRUE(identity.ok()) << identity.error().message;
    if (!identity.ok()) continue;
    EXPECT_EQ(identity->bootstrap, right.bootstrap);
    EXPECT_EQ(identity->rank, right.rank);
    EXPECT_EQ(identity->world_size, right.world_size);
    EXPECT_TRUE(source_text(*identity).starts_with(right.source)) << source_text(*identity);
  }
}

struct Wrong {
  const char* name;
  Variables variables;
  IdentityRequest request;
  std::vector<const char*> named;  // In the message or in the fix.
};

const Wrong kWrong[] = {
    {"two launchers that disagree",
     kTorchrun + kOpenMpi,
     nothing,
     {"RANK=1", "WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4",
      "IVY_LAUNCHER=torchrun", "IVY_LAUNCHER=openmpi"}},
    {"a launcher inside ivyrun's worker",
     kIvyrun + kOpenMpi,
     nothing,
     {"IVY_RANK=3", "OMPI_COMM_WORLD_RANK=2"}},
    {"torchrun and a full srun", kTorchrun + kSlurm, nothing, {"RANK=1", "SLURM_PROCID=2"}},
    {"Hydra and a full srun",
     kHydra + kSlurm + Variables{{"SLURM_PROCID", "3"}},
     nothing,
     {"PMI_RANK=2", "SLURM_PROCID=3"}},
    {"no WORLD_SIZE", {{"RANK", "1"}}, nothing, {"RANK=1 is set", "WORLD_SIZE"}},
    {"no MASTER_PORT",
     kTorchrun + Variables{{"MASTER_PORT", "-"}},
     nothing,
     {"MASTER_PORT is not"}},
    {"no LOCAL_RANK", kTorchrun + Variables{{"LOCAL_RANK", "-"}}, nothing, {"LOCAL_RANK is not"}},
    {"no PMI_SIZE", {{"PMI_RANK", "0"}}, nothing, {"PMI_RANK=0", "PMI_SIZE"}},
    {"no SLURM_PROCID", {{"SLURM_STEP_ID", "0"}}, nothing, {"SLURM_PROCID"}},
    {"rank beyond the world",
     kTorchrun + Variables{{"RANK", "4"}},
     nothing,
     {"rank 4 in a world of 4", "RANK=4"}},
    {"no number",
     kOpenMpi + Variables{{"OMPI_COMM_WORLD_RANK", "two"}},
     nothing,
     {"OMPI_COMM_WORLD_RANK=two"}},
    {"an invalid port",
     kTorchrun + kTwoHosts + Variables{{"MASTER_PORT", "70000"}},
     nothing,
     {"MASTER_PORT", "70000"}},
    {"Open MPI on unknown hosts",
     kOpenMpi + Variables{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
     nothing,
     {"which host rank 0 runs on", "MASTER_ADDR", "IVY_INIT_METHOD=tcp://"}},
    {"Hydra on unknown hosts",
     kHydra + Variables{{"MPI_LOCALNRANKS", "-"}},
     nothing,
     {"-genv MASTER_ADDR"}},
    {"Slurm without its nodes",
     kSlurm + Variables{{"SLURM_STEP_NODELIST", "-"}},
     nothing,
     {"SLURM_STEP_NODELIST"}},
    {"IVY_LAUNCHER of another world",
     {{"IVY_LAUNCHER", "horovod"}},
     nothing,
     {"horovod", "torchrun"}},
    {"IVY_LAUNCHER without its variables",
     {{"IVY_LAUNCHER", "slurm"}},
     nothing,
     {"IVY_LAUNCHER is slurm"}},
    {"the program gives another rank", kTorchrun, asks("", 0, 4), {"rank 0", "torchrun set 1"}},
    {"a world without an address", {}, asks("", 0, 2), {"world size 2", "tcp://"}},
    {"tcp without numbers", {}, asks("tcp://10.0.0.1:4000"), {"rank", "world size"}},
    {"tcp with a rank that differs from the launcher's",
     kTorchrun,
     asks("tcp://10.0.0.1:4000", 2),
     {"rank 2", "RANK=1"}},
    {"tcp without port", {}, asks("tcp://10.0.0.1", 0, 2), {"port"}},
    {"tcp with port 0", {}, asks("tcp://10.0.0.1:0", 0, 2), {"\"0\" is not a port"}},
    {"a rank that is not below the size",
     {},
     asks("tcp://10.0.0.1:4000", 2, 2),
     {"rank 2 in a world of 2"}},
    {"a relative path", {}, asks("file://meet", 0, 2), {"absolute"}},
    {"another method", {}, asks("etcd://x", 0, 2), {"etcd://x", "tcp://"}},
};

TEST(IdentityTableTest, NamesTheInvalidVariable) {
  for (const Wrong& wrong : kWrong) {
    SCOPED_TRACE(wrong.name);
    const Result<Identity> identity = identify_in(wrong.variables, wrong.request);
    EXPECT_FALSE(identity.ok());
    if (identity.ok()) continue;
    const std::string text = identity.error().message + "; " + identity.error().fix;
    for (const char* const named : wrong.named) {
      EXPECT_NE(text.find(named), std::string::npos) << named << " in: " << text;
    }
  }
}

TEST(IdentityTableTest, DistinguishesJobsByTheirKeys) {
  const auto key = [](const Variables& variables) {
    return identify_in(variables, {}).value().bootstrap_key;
  };
  EXPECT_EQ(key(kTorchrun), key(kTorchrun + Variables{{"RANK", "0"}, {"LOCAL_RANK", "0"}}));
  EXPECT_NE(key(kTorchrun), key(kTorchrun + Variables{{"TORCHELASTIC_RESTART_COUNT", "1"}}));
  EXPECT_NE(key(kTorchrun), key(kTorchrun + Variables{{"TORCHELASTIC_RUN_ID", "other"}}));
  EXPECT_NE(key(kOpenMpi), key(kOpenMpi + Variables{{"PMIX_NAMESPACE", "760545283"}}));
  EXPECT_NE(key(kSlurm), key(kSlurm + Variables{{"SLURM_STEP_ID", "1"}}));
  EXPECT_NE(key(kSlurm), key(kSlurm + Variables{{"SLURM_RESTART_COUNT", "1"}}));
}

TEST(IdentityTableTest, RecognizesTorchsDialectByTorchrunsVariables) {
  const auto old_torch = identify_in(kTorchrun + kTwoHosts, {});
  const auto new_torch = identify_in(kTorchrun + kTwoHosts + kNewTorch, {});
  ASSERT_TRUE(old_torch.ok() && new_torch.ok());
  EXPECT_FALSE(old_torch->is_new_torch);
  EXPECT_TRUE(new_torch->is_new_torch);
  EXPECT_EQ(new_torch->bootstrap_host, "10.0.0.1");
  EXPECT_EQ(new_torch->bootstrap_port, 29500);
}

TEST(IdentityTableTest, FindsRankZeroThroughSlurm) {
  const Result<Identity> identity = identify_in(kSlurm, {});
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(identity->bootstrap_host, "node07");
  EXPECT_GE(identity->bootstrap_port, 20000);
  EXPECT_LT(identity->bootstrap_port, 32000);
  EXPECT_NE(identity->bootstrap_port,
            identify_in(kSlurm + Variables{{"SLURM_STEP_ID", "1"}}, {})->bootstrap_port);
  const Result<Identity> numeric = identify_in({}, asks("tcp://[fd00::1]:4000", 0, 2));
  ASSERT_TRUE(numeric.ok());
  EXPECT_EQ(numeric->bootstrap_host, "fd00::1");
  EXPECT_EQ(numeric->bootstrap_port, 4000);
}

TEST(SlurmTextTest, ReturnsTheFirstHost) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"node1", "node1"},
      {"node1,node2", "node1"},
      {"node[01-03,7],login", "node01"},
      {"n[9,10-12]", "n9"},
      {"rack[1-2]node[03-04]", "rack1node03"},
      {"a-b,c", "a-b"},
  };
  for (const auto& [list, host] : cases) EXPECT_EQ(first_host(list), host) << list;
}

TEST(SlurmTextTest, ReturnsTheTasksOfANode) {
  EXPECT_EQ(tasks_on_node("2(x3),1", 0), 2U);
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2U);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1U);
  EXPECT_EQ(tasks_on_node("2(x3),1", 4), std::nullopt);
  for (const char* const wrong : {"", "x", "2(x", "2(x3", "2(y3)", "(x3)"}) {
    EXPECT_EQ(tasks_on_node(wrong, 0), std::nullopt) << wrong;
  }
}

TEST(IdentityTest, RejectsTheVariableOfTuningTables) {
  const Result<Identity> found = identify_in(kIvyrun + Variables{{"IVY_TUNING_FILE", "/t"}}, {});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, Code::kInvalidArgument);
  EXPECT_NE(found.error().fix.find("unset it"), std::string::npos);
}

}  // namespace
}  // namespace ivy::comm
