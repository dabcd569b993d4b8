// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/worker_environment.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "launcher/options/exports.h"
#include "launcher/plan/device_plan.h"
#include "launcher/plan/explain_env.h"

namespace ivy {
namespace {

struct Job {
  explicit Job(const std::string& transport = "ssh", int hosts = 2) {
    options.command = {"train.py"};
    options.working_directory = "/w";
    options.program_kind = ProgramKind::kAuto;
    for (int i = 0; i < hosts; ++i) {
      HostAnswer answer;
      answer.name = "n" + std::to_string(i);
      answer.transport = transport_named(transport);
      answer.facts.set_cores(8);
      answer.facts.set_program_path("/w/train.py");
      answer.facts.set_program_is_script(true);
      answer.facts.set_interpreter("/usr/bin/python3");
      answers.push_back(std::move(answer));
      Host host;
      host.name = "n" + std::to_string(i);
      options.hosts.push_back(host);
    }
    plan.job_id = "0123";
    plan.master_address = "10.0.0.1";
    plan.master_port = 29500;
    plan.coordinator_port = 29501;
    plan.store_port = 29502;
    for (int i = 0; i < hosts; ++i) {
      PlannedHost host;
      host.name = answers[static_cast<std::size_t>(i)].name;
      host.transport = transport_named(transport);
      host.node_rank = i;
      host.host_index = static_cast<std::size_t>(i);
      host.workers = {{plan.world_size, 0}, {plan.world_size + 1, 1}};
      plan.world_size += 2;
      plan.hosts.push_back(host);
    }
    caller = {{"PATH", "/bin"},
              {"HOME", "/root"},
              {"HF_TOKEN", "h"},
              {"AWS_SECRET", "s"},
              {"CUDA_VISIBLE_DEVICES", "3"},
              {"OMPI_COMM_WORLD_RANK", "5"}};
  }

  HostPlan host_plan(std::size_t host = 0) {
    std::vector<Diagnostic> rejections;
    PlanContext context{options, answers, plan, rejections};
    plan_devices(context);
    const Result<HostPlan> made = make_host_plan(inputs(), plan.hosts[host]);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? made.value() : HostPlan{};
  }
  // Returns the variables that a worker gets from the plan, without the supervisor's own
  // environment.
  Environment worker(std::size_t host = 0, int local_rank = 0) {
    const HostPlan made = host_plan(host);
    Environment environment;
    for (const Variable& v : made.environment()) set_variable(environment, v.name(), v.value());
    for (const Variable& v : made.workers(local_rank).environment())
      set_variable(environment, v.name(), v.value());
    return environment;
  }
  EnvironmentInputs inputs() {
    EnvironmentInputs all;
    all.options = &options;
    all.plan = &plan;
    all.answers = &answers;
    all.caller = &caller;
    all.started_in = "/start";
    all.from_files = from_files;
    all.interfaces = interfaces;
    all.generation = generation;
    all.shared_machines = shared_machines(plan, answers);
    return all;
  }

  Options options;
  JobPlan plan;
  std::vector<HostAnswer> answers;
  Environment caller;
  Environment from_files;
  std::vector<std::string> interfaces;
  std::uint32_t generation = 0;
};

std::string value(const Environment& environment, const std::string& name) {
  const std::string* found = find_variable(environment, name);
  return found == nullptr ? "(unset)" : *found;
}

bool is_unset(const HostPlan& plan, const std::string& pattern) {
  return std::find(plan.unset().begin(), plan.unset().end(), pattern) != plan.unset().end();
}

TEST(WorkerEnvironmentTest, RejectsAVariableThatNoProgramCanBeGiven) {
  Job job;
  job.caller.push_back({"NCCL_BIG", std::string(131'072 - 10, 'x')});
  const auto made = [&] { return make_host_plan(job.inputs(), job.plan.hosts[1]); };
  EXPECT_TRUE(made().ok()) << "with its name and its end: 128 KiB";
  job.caller.back().value += 'x';
  ASSERT_FALSE(made().ok());
  EXPECT_EQ(
      made().error().message,
      "the variable NCCL_BIG takes 131073 bytes, and Linux passes at most 131072 to a program");
}

TEST(WorkerEnvironmentTest, SetsPwdToTheWorkingDirectoryAndNoOldpwd) {
  for (const char* transport : {"local", "ssh", "srun", "agent"}) {
    Job job(transport);
    job.caller.push_back({"PWD", "/elsewhere"});
    job.caller.push_back({"OLDPWD", "/before"});
    const HostPlan plan = job.host_plan(1);
    const auto is_pwd = [](const Variable& variable) { return variable.name() == "PWD"; };
    const auto pwd = std::find_if(plan.environment().begin(), plan.environment().end(), is_pwd);
    ASSERT_NE(pwd, plan.environment().end()) << transport;
    EXPECT_EQ(pwd->value(), "/w") << transport;
    EXPECT_EQ(std::count(plan.unset().begin(), plan.unset().end(), "OLDPWD"), 1) << transport;
  }
}

TEST(WorkerEnvironmentTest, SetsTorchrunsWholeBlock) {
  Job job;
  job.generation = 3;
  const Environment worker = job.worker(1, 1);
  const std::pair<const char*, const char*> expected[] = {
      {"RANK", "3"},
      {"LOCAL_RANK", "1"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "1"},
      {"NODE_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_RANK", "3"},
      {"ROLE_NAME", "default"},
      {"ROLE_WORLD_SIZE", "4"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_RESTART_COUNT", "3"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", "0123"},
      {"IVY_RANK", "3"},
      {"IVY_WORLD_SIZE", "4"},
      {"IVY_LOCAL_RANK", "1"},
      {"IVY_LOCAL_WORLD_SIZE", "2"},
      {"IVY_NODE_RANK", "1"},
      {"IVY_NUM_NODES", "2"},
      {"IVY_JOB_ID", "0123"},
      {"IVY_MASTER_ADDR", "10.0.0.1"},
      {"IVY_MASTER_PORT", "29500"},
      {"IVY_GENERATION", "3"},
      {"PYTHONUNBUFFERED", "1"},
      {"OMP_NUM_THREADS", "4"},
      {"JAX_COORDINATOR_ADDRESS", "10.0.0.1:29501"},
      {"KERAS_DISTRIBUTION_JOB_ADDRESSES", "10.0.0.1:29501"},
      {"KERAS_DISTRIBUTION_NUM_PROCESSES", "4"},
      {"KERAS_DISTRIBUTION_PROCESS_ID", "3"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"IVY_STORE", "10.0.0.1:29502"}};
  for (const auto& [name, text] : expected) EXPECT_EQ(value(worker, name), text) << name;
}

TEST(WorkerEnvironmentTest, SetsOnlyVariablesOfTheTable) {
  Job job;
  job.caller.clear();
  job.answers[0].facts.set_accelerators(2);
  for (const EnvVariable& variable : job.worker())
    EXPECT_TRUE(env_rule(variable.name) == EnvRule::kSet ||
                env_rule(variable.name) == EnvRule::kAllow)
        << variable.name;
}

TEST(WorkerEnvironmentTest, SendsOnlyAllowedVariablesToOtherHosts) {
  Job job;
  const Environment worker = job.worker();
  EXPECT_EQ(value(worker, "PATH"), "/bin");
  EXPECT_EQ(value(worker, "HF_TOKEN"), "h");
  for (const char* name : {"HOME", "AWS_SECRET", "CUDA_VISIBLE_DEVICES", "OMPI_COMM_WORLD_RANK"})
    EXPECT_EQ(value(worker, name), "(unset)") << name;
}

TEST(WorkerEnvironmentTest, SendsExportedFunctionsByteForByteWithEnvAll) {
  Job job;
  const std::string body = "() {  printf '%s\\t\"$1\"\\n' \"\xff\"\n}";
  job.caller.push_back({"BASH_FUNC_module%%", body});
  EXPECT_EQ(value(job.worker(1), "BASH_FUNC_module%%"), "(unset)");
  job.options.env_choice = EnvChoice::kAll;
  EXPECT_EQ(value(job.worker(1), "BASH_FUNC_module%%"), body);
}

TEST(WorkerEnvironmentTest, SendsOnlyDifferencesOnThisHost) {
  Job job("local", 1);
  const Environment worker = job.worker();
  EXPECT_EQ(value(worker, "PATH"), "(unset)");
  EXPECT_EQ(value(worker, "HF_TOKEN"), "(unset)");
  EXPECT_EQ(value(worker, "RANK"), "0");
}

TEST(WorkerEnvironmentTest, UsesTheStagedEnvironmentOfTheHost) {
  Job job;
  job.caller.push_back({"VIRTUAL_ENV", "/home/me/.venv"});
  job.caller.push_back({"CONDA_PREFIX", "/home/me/conda"});
  job.caller.push_back({"PYTHONPATH", "/mine"});
  job.answers[0].facts.set_search_path("/cache/venv/bin:/usr/bin");
  job.answers[0].environment = HostEnvironment{"/cache/venv", false, {"/tree/src", "/tree"}};
  const Environment worker = job.worker();
  EXPECT_EQ(*find_variable(worker, "VIRTUAL_ENV"), "/cache/venv");
  EXPECT_EQ(*find_variable(worker, "PATH"), "/cache/venv/bin:/usr/bin");
  EXPECT_EQ(*find_variable(worker, "PYTHONPATH"), "/mine:/tree/src:/tree");
  EXPECT_EQ(find_variable(worker, "CONDA_PREFIX"), nullptr);
  EXPECT_EQ(*find_variable(job.worker(1), "VIRTUAL_ENV"), "/home/me/.venv") << "not staged there";
  job.answers[0].environment->is_conda = true;
  EXPECT_EQ(*find_variable(job.worker(), "CONDA_PREFIX"), "/cache/venv");
  EXPECT_EQ(find_variable(job.worker(), "VIRTUAL_ENV"), nullptr);
}

TEST(WorkerEnvironmentTest, PassesAllowedNamesWithinADeniedPrefix) {
  Job job("ssh", 1);
  for (const char* name : {"IVY_TCP_STREAMS", "IVY_LIBRARY", "IVY_HOSTS", "IVY_RANK"})
    set_variable(job.caller, name, "/mine");
  const Environment worker = job.worker();
  EXPECT_EQ(value(worker, "IVY_TCP_STREAMS"), "/mine");
  EXPECT_EQ(value(worker, "IVY_LIBRARY"), "(unset)");
  EXPECT_EQ(value(worker, "IVY_HOSTS"), "(unset)");
  EXPECT_EQ(value(worker, "IVY_RANK"), "0");
}

TEST(WorkerEnvironmentTest, UnsetsTheVariablesOfTheTransportsSession) {
  for (const char* name : {"SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION"}) {
    EXPECT_TRUE(is_unset(Job("ssh", 1).host_plan(), name)) << name;
    EXPECT_TRUE(is_unset(Job("agent", 1).host_plan(), name)) << name;
    EXPECT_FALSE(is_unset(Job("local", 1).host_plan(), name)) << name;
    EXPECT_FALSE(is_unset(Job("srun", 1).host_plan(), name)) << name;
  }
  Job job("ssh", 1);
  job.options.exports = {"SSH_AUTH_SOCK=/mine"};
  EXPECT_EQ(value(job.worker(), "SSH_AUTH_SOCK"), "/mine") << "a request by name is honoured";
}

TEST(WorkerEnvironmentTest, KeepsTheCallersNumberOfThreads) {
  Job job;
  job.caller.push_back({"OMP_NUM_THREADS", "3"});
  EXPECT_EQ(value(job.worker(), "OMP_NUM_THREADS"), "3");
  Job local("local", 1);
  local.caller.push_back({"OMP_NUM_THREADS", "3"});
  EXPECT_EQ(value(local.worker(), "OMP_NUM_THREADS"), "(unset)");
  Job small;
  small.answers[0].facts.set_cores(1);
  EXPECT_EQ(value(small.worker(), "OMP_NUM_THREADS"), "1");
}

TEST(WorkerEnvironmentTest, ReplacesAnEmptyNumberOfThreads) {
  Job job;
  job.caller.push_back({"OMP_NUM_THREADS", ""});
  EXPECT_EQ(value(job.worker(), "OMP_NUM_THREADS"), "4");
}

TEST(WorkerEnvironmentTest, FitsThreadsIntoTheQuotaOfTheHost) {
  const std::pair<double, const char*> cases[] = {
      {0, "4"}, {0.5, "1"}, {4.9, "2"}, {7.65, "3"}, {96, "4"}};
  for (const auto& [quota, threads] : cases) {
    Job job;
    job.answers[0].facts.set_processor_quota(quota);
    EXPECT_EQ(value(job.worker(), "OMP_NUM_THREADS"), threads) << quota;
  }
}

TEST(WorkerEnvironmentTest, NamesPinnedThreadsOfRanksThatShareCores) {
  Job job;
  EXPECT_EQ(pinned_threads_line(job.inputs()), "");
  job.caller.push_back({"OMP_PROC_BIND", "false"});
  EXPECT_EQ(pinned_threads_line(job.inputs()), "");
  job.caller.push_back({"OMP_PLACES", "cores"});
  EXPECT_NE(pinned_threads_line(job.inputs()).find("OMP_PLACES is set, and 2 ranks share"),
            std::string::npos);
}

TEST(WorkerEnvironmentTest, PrefersExportsToFilesAndFilesToDefaults) {
  Job job;
  job.from_files = {{"OMP_NUM_THREADS", "5"}, {"A", "file"}, {"B", "file"}};
  job.options.exports = {"A=export", "PATH=/opt", "AWS_SECRET", "CUDA_VISIBLE_DEVICES=1"};
  const Environment worker = job.worker();
  EXPECT_EQ(value(worker, "OMP_NUM_THREADS"), "5");
  EXPECT_EQ(value(worker, "A"), "export");
  EXPECT_EQ(value(worker, "B"), "file");
  EXPECT_EQ(value(worker, "PATH"), "/opt");
  EXPECT_EQ(value(worker, "AWS_SECRET"), "s");
  EXPECT_EQ(value(worker, "CUDA_VISIBLE_DEVICES"), "1");
}

TEST(WorkerEnvironmentTest, SetsUnsetInterfacesOnSeveralHostsOnly) {
  Job job;
  job.interfaces = {"lo", "eth1"};
  Address* address = job.answers[0].facts.add_addresses();
  address->set_interface("eth7");
  address->set_address("10.0.0.1");
  EXPECT_EQ(value(job.worker(0), "GLOO_SOCKET_IFNAME"), "eth7");
  EXPECT_EQ(value(job.worker(1), "GLOO_SOCKET_IFNAME"), "eth1");
  EXPECT_EQ(value(job.worker(1), "NCCL_SOCKET_IFNAME"), "eth1");
  job.options.exports = {"GLOO_SOCKET_IFNAME=mine"};
  EXPECT_EQ(value(job.worker(1), "GLOO_SOCKET_IFNAME"), "mine");
  EXPECT_EQ(value(job.worker(1), "NCCL_SOCKET_IFNAME"), "eth1");
  job.caller.push_back({"NCCL_SOCKET_IFNAME", "callers"});
  EXPECT_EQ(value(job.worker(1), "NCCL_SOCKET_IFNAME"), "callers");
  Job alone("ssh", 1);
  alone.interfaces = {"eth0"};
  EXPECT_EQ(value(alone.worker(), "GLOO_SOCKET_IFNAME"), "(unset)");
}

TEST(WorkerEnvironmentTest, GivesEveryJobALoopbackAddressForNcclsRas) {
  Job job;
  job.plan.job_id = "00fffe00000000000000000000000000";
  EXPECT_EQ(value(job.worker(), "NCCL_RAS_ADDR"), "127.1.2.1:28028");
  job.plan.job_id = "fdFD10aa000000000000000000000000";
  EXPECT_EQ(value(job.worker(), "NCCL_RAS_ADDR"), "127.254.254.17:28028");
  job.caller.push_back({"NCCL_RAS_ADDR", "localhost:5"});
  EXPECT_EQ(value(job.worker(), "NCCL_RAS_ADDR"), "localhost:5");
}

TEST(WorkerEnvironmentTest, DistinguishesHostsOfOneBootForNccl) {
  Job job("ssh", 3);
  for (HostAnswer& answer : job.answers) {
    answer.facts.set_boot_id("b");
    answer.facts.set_host_name("pod");
  }
  job.answers[2].facts.set_boot_id("c");
  EXPECT_EQ(value(job.worker(0), "NCCL_HOSTID"), "n0");
  EXPECT_EQ(value(job.worker(1), "NCCL_HOSTID"), "n1");
  EXPECT_EQ(value(job.worker(2), "NCCL_HOSTID"), "(unset)");
  job.caller.push_back({"NCCL_HOSTID", "mine"});
  EXPECT_EQ(value(job.worker(0), "NCCL_HOSTID"), "mine");
  for (Host& host : job.options.hosts) host.fake = 0;
  job.caller.pop_back();
  EXPECT_EQ(value(job.worker(0), "NCCL_HOSTID"), "(unset)") << "fake hosts share memory";
}

TEST(WorkerEnvironmentTest, NamesTheUserEvenWithoutAnAccount) {
  Job job("local", 1);
  job.answers[0].facts.set_user("12345");
  EXPECT_EQ(value(job.worker(), "USER"), "12345");
  EXPECT_EQ(value(job.worker(), "LOGNAME"), "12345");
  job.caller.push_back({"USER", "alice"});
  EXPECT_EQ(value(job.worker(), "USER"), "(unset)") << "it is inherited";
  Job other("ssh", 1);
  other.answers[0].facts.set_user("12345");
  EXPECT_EQ(value(other.worker(), "USER"), "(unset)") << "the login there has set it";
}

TEST(WorkerEnvironmentTest, TellsNcclThatDevicesAreSharedOnPurpose) {
  Job job;
  EXPECT_EQ(value(job.worker(), "IVY_OVERSUBSCRIBE"), "(unset)");
  job.options.oversubscribe = true;
  EXPECT_EQ(value(job.worker(), "IVY_OVERSUBSCRIBE"), "1");
  EXPECT_EQ(value(job.worker(1, 1), "IVY_OVERSUBSCRIBE"), "1");
}

TEST(WorkerEnvironmentTest, EnablesNcclShrinkIfTheJobContinues) {
  Job job;
  EXPECT_EQ(value(job.worker(), "IVY_NCCL_SHRINK"), "(unset)");
  job.options.on_failure = OnFailure::kShrink;
  EXPECT_EQ(value(job.worker(), "IVY_NCCL_SHRINK"), "1");
  job.caller.push_back({"IVY_NCCL_SHRINK", "0"});
  EXPECT_EQ(value(job.worker(), "IVY_NCCL_SHRINK"), "0");
}

TEST(WorkerEnvironmentTest, DividesCoresAndDevicesBetweenFakeHosts) {
  Job job("local", 2);
  job.options.hosts = fake_hosts(2);
  job.interfaces = {"lo", "lo"};
  for (HostAnswer& answer : job.answers) {
    answer.facts.set_accelerators(5);
    answer.facts.set_accelerator_source("nvidia");
  }
  unset_variable(job.caller, "CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(value(job.worker(0), "CUDA_VISIBLE_DEVICES"), "0,1,2");
  EXPECT_EQ(value(job.worker(1), "CUDA_VISIBLE_DEVICES"), "3,4");
  EXPECT_EQ(value(job.worker(1), "OMP_NUM_THREADS"), "2");
  EXPECT_EQ(value(job.worker(1), "GLOO_SOCKET_IFNAME"), "(unset)");
  for (HostAnswer& answer : job.answers) {
    answer.facts.set_accelerators(2);
    for (const char* entry : {"7", "GPU-a"}) answer.facts.add_devices()->set_mask_entry(entry);
  }
  EXPECT_EQ(value(job.worker(1), "CUDA_VISIBLE_DEVICES"), "GPU-a") << "their part of the mask";
}

void give_devices(HostFacts& facts, int count, const std::string& source = "nvidia") {
  facts.set_accelerators(static_cast<std::uint32_t>(count));
  facts.set_accelerator_source(source);
  for (int i = 0; i < count; ++i) {
    Accelerator& device = *facts.add_devices();
    device.set_mask_entry(std::to_string(i));
    device.set_uuid("GPU-" + std::to_string(i));
    device.set_bdf("0000:0" + std::to_string(i) + ":00.0");
    device.set_cores(std::to_string(2 * i) + "-" + std::to_string(2 * i + 1));
  }
  facts.set_allowed_cores("0-63");
}

TEST(WorkerEnvironmentTest, ShowsEachWorkerAllDevicesOrItsOwn) {
  Job job("local", 1);
  give_devices(job.answers[0].facts, 4);
  Environment worker = job.worker(0, 1);
  EXPECT_EQ(value(worker, "IVY_DEVICE_ORDINAL"), "1");
  EXPECT_EQ(value(worker, "IVY_DEVICE_UUID"), "GPU-1");
  EXPECT_EQ(value(worker, "IVY_DEVICE_BDF"), "0000:01:00.0");
  EXPECT_EQ(value(worker, "LOCAL_RANK"), "1");
  EXPECT_EQ(value(worker, "CUDA_VISIBLE_DEVICES"), "(unset)");
  EXPECT_EQ(value(worker, "CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
  EXPECT_EQ(value(worker, "OMP_NUM_THREADS"), "2") << "near its accelerator";
  job.options.visible = VisibleChoice::kOwn;
  job.options.gpus_per_proc = 2;
  job.options.device_env = {"XPU_VISIBLE"};
  worker = job.worker(0, 1);
  EXPECT_EQ(value(worker, "IVY_DEVICE_ORDINAL"), "0,1");
  EXPECT_EQ(value(worker, "LOCAL_RANK"), "0");
  EXPECT_EQ(value(worker, "IVY_LOCAL_RANK"), "1");
  EXPECT_EQ(value(worker, "CUDA_VISIBLE_DEVICES"), "2,3");
  EXPECT_EQ(value(worker, "XPU_VISIBLE"), "2,3");
  EXPECT_EQ(value(worker, "JAX_LOCAL_DEVICE_IDS"), "0,1");
  job.caller.push_back({"CUDA_DEVICE_ORDER", "FASTEST_FIRST"});
  worker = job.worker(0, 1);
  EXPECT_EQ(value(worker, "CUDA_VISIBLE_DEVICES"), "GPU-2,GPU-3");
  EXPECT_EQ(value(worker, "CUDA_DEVICE_ORDER"), "(unset)") << "the caller's value is sent anyway";
}

TEST(WorkerEnvironmentTest, PrefersTheUsersValues) {
  Job job("local", 1);
  give_devices(job.answers[0].facts, 4);
  job.options.visible = VisibleChoice::kOwn;
  job.options.exports = {"OMP_NUM_THREADS=7"};
  EXPECT_EQ(value(job.worker(0, 1), "OMP_NUM_THREADS"), "7");
  job.from_files = {{"CUDA_VISIBLE_DEVICES", "1,2"}};
  const Environment worker = job.worker(0, 1);
  EXPECT_EQ(value(worker, "CUDA_VISIBLE_DEVICES"), "1,2");
  EXPECT_EQ(value(worker, "LOCAL_RANK"), "1");
  EXPECT_EQ(value(worker, "IVY_DEVICE_ORDINAL"), "(unset)");
}

TEST(WorkerEnvironmentTest, SetsTheVariableOfAmd) {
  Job job("ssh", 1);
  give_devices(job.answers[0].facts, 2, "amd");
  job.options.visible = VisibleChoice::kOwn;
  const Environment worker = job.worker(0, 1);
  EXPECT_EQ(value(worker, "HIP_VISIBLE_DEVICES"), "1");
  EXPECT_EQ(value(worker, "CUDA_VISIBLE_DEVICES"), "(unset)");
  EXPECT_EQ(value(worker, "CUDA_DEVICE_ORDER"), "(unset)");
}

TEST(WorkerEnvironmentTest, BindsTheWorkersOfAHostPlan) {
  Job job("local", 1);
  give_devices(job.answers[0].facts, 2);
  job.answers[0].facts.mutable_devices(1)->set_numa_node(1);
  const HostPlan plan = job.host_plan();
  EXPECT_EQ(plan.workers(1).cores(), "2-3");
  EXPECT_EQ(plan.workers(1).memory_node(), 1u);
  EXPECT_EQ(Job("local", 1).host_plan().workers(0).cores(), "");
}

TEST(ExplainEnvTest, NamesTheReaderAndTheReason) {
  Job job("ssh", 1);
  give_devices(job.answers[0].facts, 2);
  job.options.exports = {"MODE=fast", "https_proxy=http://me:secret@proxy:3128"};
  job.options.visible = VisibleChoice::kOwn;
  job.host_plan();
  const Result<std::string> text = explain_environment(job.inputs());
  ASSERT_TRUE(text.ok());
  const auto line_of = [&](const std::string& begin) {
    const std::size_t at = text->find("\n  " + begin);
    return at == std::string::npos ? "" : text->substr(at, text->find('\n', at + 1) - at);
  };
  EXPECT_NE(line_of("RANK=0 ").find("index in host order"), std::string::npos) << *text;
  EXPECT_NE(line_of("HF_TOKEN=(hidden) ").find("passed on from this shell"), std::string::npos);
  EXPECT_NE(line_of("MODE=fast ").find("-x"), std::string::npos);
  EXPECT_NE(line_of("https_proxy=(hidden) ").find("-x"), std::string::npos) << *text;
  EXPECT_NE(line_of("OMP_NUM_THREADS=2 ").find("divided by the workers of the host"),
            std::string::npos)
      << *text;
  EXPECT_NE(line_of("LOCAL_WORLD_SIZE=2 ").find("workers on its host"), std::string::npos);
  EXPECT_NE(line_of("WORLD_SIZE=2 ").find("workers in total"), std::string::npos);
  EXPECT_NE(line_of("NCCL_RAS_ADDR=127.").find("a loopback address derived from the job's id"),
            std::string::npos);
  EXPECT_NE(line_of("NCCL_PROFILER_PLUGIN=... ").find("set on the host, because"),
            std::string::npos);
  EXPECT_NE(line_of("NCCL_DEBUG_FILE=... ").find("set on the host, because"), std::string::npos);
  EXPECT_NE(line_of("TORCH_FR_BUFFER_SIZE=... ").find("set on the host"), std::string::npos);
  EXPECT_NE(text->find("removed from every worker: OMPI_COMM_WORLD_RANK"), std::string::npos);
  EXPECT_NE(text->find("rank 1 on n0: "), std::string::npos);
  EXPECT_NE(text->find("AWS_SECRET (send one with -x"), std::string::npos);
  EXPECT_EQ(text->find("CUDA_VISIBLE_DEVICES=3"), std::string::npos)
      << "the launcher's value is not sent";
  job.options.exports = {"NCCL_DEBUG=INFO"};
  job.host_plan();
  const Result<std::string> other = explain_environment(job.inputs());
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->find("\n  NCCL_DEBUG=INFO "), std::string::npos) << *other;
  EXPECT_EQ(other->find("NCCL_DEBUG_FILE=..."), std::string::npos) << *other;
}

TEST(ExplainEnvTest, HasAReasonForEveryVariableThatIvyrunSets) {
  for (const EnvEntry& entry : env_table())
    if (entry.rule == EnvRule::kSet)
      EXPECT_FALSE(reason_for_variable(std::string(entry.pattern)).empty()) << entry.pattern;
}

TEST(ExplainEnvTest, HasAReasonForEveryVariableOfAPlan) {
  const std::pair<const char*, const char*> rows[] = {
      {"srun", "nvidia"}, {"ssh", "amd"}, {"srun", "intel"}};
  for (const auto& [transport, source] : rows) {
    Job job(transport, 2);
    for (HostAnswer& answer : job.answers) {
      give_devices(answer.facts, 4, source);
      answer.facts.set_user("me");
    }
    job.caller.push_back({"http_proxy", "http://proxy:3128"});
    job.caller.push_back({"OMPI_COMM_WORLD_LOCAL_RANK", "0"});
    job.options.visible = VisibleChoice::kOwn;
    job.options.allocation.emplace();
    job.options.allow_singletons = true;
    job.options.oversubscribe = true;
    job.options.on_failure = OnFailure::kShrink;
    job.options.cpu_devices = 2;
    job.options.nccl_profiler = "all";
    job.options.device_env = {"XPU_VISIBLE"};
    job.host_plan();
    const Result<std::string> text = explain_environment(job.inputs());
    ASSERT_TRUE(text.ok());
    EXPECT_NE(text->find("\n  SLURM_PROCID=0 "), std::string::npos) << *text;
    EXPECT_NE(text->find("\n  XPU_VISIBLE=0 "), std::string::npos) << *text;
    EXPECT_EQ(text->find("ivyrun's default"), std::string::npos) << *text;
  }
}

TEST(WorkerEnvironmentTest, LetsRankZeroServeWithoutAStore) {
  Job job;
  job.plan.store_port = 0;
  EXPECT_EQ(value(job.worker(), "TORCHELASTIC_USE_AGENT_STORE"), "False");
  EXPECT_EQ(value(job.worker(), "MASTER_PORT"), "29500");
  EXPECT_EQ(value(job.worker(), "IVY_STORE"), "(unset)");
}

TEST(WorkerEnvironmentTest, SetsJaxsDeviceOnlyIfEveryRankHasOne) {
  Job job;
  EXPECT_EQ(value(job.worker(0, 1), "JAX_LOCAL_DEVICE_IDS"), "(unset)");
  job.answers[0].facts.set_accelerators(2);
  EXPECT_EQ(value(job.worker(0, 1), "JAX_LOCAL_DEVICE_IDS"), "1");
  job.plan.master_address = "fd00::1";
  EXPECT_EQ(value(job.worker(), "JAX_COORDINATOR_ADDRESS"), "[fd00::1]:29501");
  EXPECT_EQ(value(job.worker(), "MASTER_ADDR"), "fd00::1");
}

TEST(HostPlanTest, ContainsTheSupervisorsInputs) {
  Job job;
  job.answers[1].facts.set_interpreter("/opt/python3");
  job.options.log_dir = "logs";
  const HostPlan plan = job.host_plan(1);
  EXPECT_EQ(plan.working_directory(), "/w");
  EXPECT_EQ(plan.log_directory(), "");
  EXPECT_EQ(plan.world_size(), 4u);
  ASSERT_EQ(plan.arguments_size(), 3);
  EXPECT_EQ(plan.arguments(0), "/opt/python3");
  EXPECT_EQ(plan.workers(1).rank(), 3u);
  EXPECT_EQ(plan.workers(1).local_rank(), 1u);
  job.options.log_to = LogLocation::kNode;
  EXPECT_EQ(job.host_plan(1).log_directory(), "/start/logs");
  job.options.log_dir = "/logs";
  EXPECT_EQ(job.host_plan(1).log_directory(), "/logs");
}

TEST(HostPlanTest, GivesStandardInputToRankZero) {
  Job job;
  EXPECT_TRUE(job.host_plan(0).workers(0).standard_input());
  EXPECT_FALSE(job.host_plan(0).workers(1).standard_input());
  EXPECT_FALSE(job.host_plan(1).workers(0).standard_input());
  job.options.input.kind = InputChoice::Kind::kNone;
  EXPECT_FALSE(job.host_plan(0).workers(0).standard_input());
}

TEST(ExportTest, KeepsEveryByteOfValues) {
  const std::string bytes = "\x01\xff=\n\"' $(x)";
  Job job;
  job.options.exports = {"A=" + bytes, "EMPTY="};
  const Environment worker = job.worker();
  EXPECT_EQ(value(worker, "A"), bytes);
  EXPECT_EQ(value(worker, "EMPTY"), "");
}

TEST(ExportTest, ExportsTheCallersVariablesByPattern) {
  const Environment caller = {{"MY_A", "1"},
                              {"MY_B", "2"},
                              {"OTHER", "3"},
                              {"IVY_RANK", "4"},
                              {"OMPI_COMM_WORLD_RANK", "5"}};
  EXPECT_EQ(parse_exports({"MY_*"}, caller).value(), (Environment{{"MY_A", "1"}, {"MY_B", "2"}}));
  EXPECT_EQ(parse_exports({"*"}, caller)->size(), 3u);
  EXPECT_TRUE(parse_exports({"NONE*"}, caller)->empty());
}

TEST(ExportTest, NamesTheRejectedVariable) {
  const std::pair<std::string, const char*> cases[] = {
      {"RANK=1", "-x: RANK is set by ivyrun for every worker"},
      {"MASTER_ADDR=x", "-x: MASTER_ADDR is set by ivyrun for every worker"},
      {"TORCHELASTIC_ERROR_FILE=x",
       "-x: TORCHELASTIC_ERROR_FILE is set by ivyrun for every worker"},
      {"IVY_TOKEN_FILE", "-x: IVY_TOKEN_FILE is set by ivyrun for every worker"},
      {"NOT_THERE", "-x: NOT_THERE is not set in this environment"},
      {"A-B=1", "-x: \"A-B\" is not a valid variable name"},
      {"=1", "-x: \"\" is not a valid variable name"},
      {std::string("A=b\0c", 5), "-x: the value of A contains a NUL byte"},
      {"A=" + std::string(128u << 10, 'x'),
       "-x: A has 131072 bytes, but Linux allows only 131069"}};
  for (const auto& [text, message] : cases) {
    const Result<Environment> parsed = parse_exports({text}, {});
    ASSERT_FALSE(parsed.ok()) << message;
    EXPECT_EQ(parsed.error().message, message);
  }
  EXPECT_EQ(parse_exports({"MASTER_PORT=1"}, {}).error().fix, "use --master-port PORT");
  Job job;
  job.options.exports = {"WORLD_SIZE=9"};
  EXPECT_FALSE(make_host_plan(job.inputs(), job.plan.hosts[0]).ok());
}

TEST(NotPassedTest, NamesVariablesThatAreNotPassed) {
  Job job;
  job.caller.push_back({"MY_DATA", "/d"});
  EXPECT_EQ(not_passed_line(job.inputs()),
            "not sent to other hosts: AWS_SECRET, MY_DATA (send one with -x NAME)");
  job.options.exports = {"MY_DATA"};
  job.from_files = {{"AWS_SECRET", "x"}};
  EXPECT_EQ(not_passed_line(job.inputs()), "");
}

TEST(WorkerEnvironmentTest, PassesAProxyOfTheNetworkButNoPassword) {
  Job job;
  job.caller = {{"http_proxy", "http://proxy.example:3128"},
                {"HTTPS_PROXY", "http://user:secret@proxy.example:3128"},
                {"all_proxy", "socks5://127.0.0.1:1080"},
                {"no_proxy", ".example"}};
  const Environment worker = job.worker();
  EXPECT_EQ(value(worker, "http_proxy"), "http://proxy.example:3128");
  EXPECT_EQ(find_variable(worker, "HTTPS_PROXY"), nullptr) << "a password";
  EXPECT_EQ(find_variable(worker, "all_proxy"), nullptr) << "true on this host only";
  // gRPC would try to reach rank 0 through the proxy.
  EXPECT_EQ(value(worker, "no_proxy"), ".example,10.0.0.1");
  EXPECT_EQ(value(worker, "NO_PROXY"), ".example,10.0.0.1") << "some libraries read this one";
  EXPECT_EQ(not_passed_line(job.inputs()),
            "not sent to other hosts: HTTPS_PROXY, all_proxy (send one with -x NAME)");
  job.caller[3] = {"NO_PROXY", "*"};
  EXPECT_EQ(value(job.worker(), "no_proxy"), "*") << "urllib accepts * only as the whole value";
  EXPECT_EQ(value(job.worker(), "NO_PROXY"), "*");
  job.options.exports = {"HTTPS_PROXY"};
  EXPECT_EQ(value(job.worker(), "HTTPS_PROXY"), "http://user:secret@proxy.example:3128");
  job.options.exports.clear();
  job.caller = {{"no_proxy", ".example"}};
  EXPECT_EQ(value(job.worker(), "no_proxy"), ".example")
      << "without a proxy there is nothing to bypass";
}

TEST(NotPassedTest, IsEmptyOnOneHost) {
  Job job("local", 1);
  EXPECT_EQ(not_passed_line(job.inputs()), "");
}

TEST(NotPassedTest, TruncatesALongList) {
  Job job;
  job.caller.clear();
  for (int i = 0; i < 20; ++i) job.caller.push_back({"V" + std::to_string(10 + i), "x"});
  const std::string line = not_passed_line(job.inputs());
  EXPECT_NE(line.find("V17 and 12 more"), std::string::npos) << line;
  EXPECT_EQ(line.find("V18"), std::string::npos);
}

}  // namespace
}  // namespace ivy
