// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/app_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/options/app_file.h"
#include "launcher/options/tf_roles.h"
#include "launcher/plan/framework_variables.h"
#include "launcher/plan/worker_ports.h"

namespace ivy {
namespace {

// Two hosts with two workers each and ports from 1000 and 2000 on.
struct TwoHosts {
  TwoHosts() {
    options.command = {"train.py", "a", "b"};
    answers.resize(2);
    plan.master_address = "10.0.0.1";
    plan.coordinator_port = 29501;
    plan.master_port = 29500;
    for (int i = 0; i < 2; ++i) {
      HostFacts& facts = answers[static_cast<std::size_t>(i)].facts;
      facts.set_interpreter("/py");
      facts.set_program_path("/w/train.py");
      facts.set_program_is_script(true);
      facts.set_job_directory("/j" + std::to_string(i));
      for (std::uint32_t port = 0; port < 6; ++port)
        facts.add_worker_ports(1000u * static_cast<std::uint32_t>(i + 1) + port);
      Address& address = *facts.add_addresses();
      address.set_interface("eth0");
      address.set_address("10.0.0." + std::to_string(i + 1));
      PlannedHost host;
      host.name = "n" + std::to_string(i);
      host.transport = Transport::kSsh;
      host.node_rank = i;
      host.host_index = static_cast<std::size_t>(i);
      host.workers = {{plan.world_size, 0}, {plan.world_size + 1, 1}};
      plan.world_size += 2;
      plan.hosts.push_back(host);
    }
  }

  EnvironmentInputs inputs() const {
    EnvironmentInputs all;
    all.options = &options;
    all.plan = &plan;
    all.answers = &answers;
    all.caller = &caller;
    all.interfaces = {"", "eth0"};
    return all;
  }
  std::string of(std::size_t host, std::size_t local, const std::string& name) const {
    const PlannedHost& planned = plan.hosts[host];
    Environment all = framework_variables(inputs(), planned);
    for (const EnvVariable& variable :
         framework_rank_variables(inputs(), planned, planned.workers[local]))
      set_variable(all, variable.name, variable.value);
    const std::string* const found = find_variable(all, name);
    return found == nullptr ? "(unset)" : *found;
  }
  AppPlan app(std::size_t host, std::size_t local = 0) const {
    WorkerSpec spec;
    add_app_plan(inputs(), plan.hosts[host], plan.hosts[host].workers[local], spec);
    return spec.app();
  }

  Options options;
  JobPlan plan;
  std::vector<HostAnswer> answers;
  Environment caller;
};

std::string words(const AppServer& server) {
  std::string text;
  for (const std::string& word : server.arguments()) text += (text.empty() ? "" : " ") + word;
  return text;
}

void use_app(Options& options, const char* name) {
  options.app = App::kRoles;
  options.app_spec = find_app(name, {IVY_APPS}).value();
}

TEST(FrameworkVariablesTest, SetsOnlyUnambiguousVariablesForEveryWorker) {
  const TwoHosts job;
  EXPECT_EQ(job.of(1, 1, "CROSS_RANK"), "1");
  EXPECT_EQ(job.of(1, 1, "CROSS_SIZE"), "2");
  EXPECT_EQ(job.of(1, 1, "LOCAL_SIZE"), "2");
  EXPECT_EQ(job.of(1, 1, "PJRT_LOCAL_PROCESS_RANK"), "1");
  EXPECT_EQ(job.of(0, 0, "CUPYX_DISTRIBUTED_HOST"), "10.0.0.1");
  for (const char* name : {"TF_CONFIG", "HOROVOD_RANK", "MLX_RANK", "PADDLE_TRAINER_ID",
                           "IVY_MACHINES", "DMLC_TASK_ID"})
    EXPECT_EQ(job.of(0, 0, name), "(unset)") << name;
}

TEST(FrameworkVariablesTest, GivesEachTensorflowRankATaskAndAPort) {
  TwoHosts job;
  job.options.profile = Profile::kTensorflow;
  EXPECT_EQ(
      job.of(1, 0, "TF_CONFIG"),
      R"({"cluster":{"worker":["10.0.0.1:1000","10.0.0.1:1001","10.0.0.2:2000","10.0.0.2:2001"]},)"
      R"("task":{"type":"worker","index":2}})");
  job.options.tf_roles = parse_tf_roles("chief,worker,evaluator").value();
  EXPECT_EQ(job.of(1, 0, "TF_CONFIG"),
            R"({"cluster":{"chief":["10.0.0.1:1000"],"worker":["10.0.0.1:1001","10.0.0.2:2000"]},)"
            R"("task":{"type":"worker","index":1}})");
  EXPECT_NE(job.of(1, 1, "TF_CONFIG").find(R"("type":"evaluator","index":0)"), std::string::npos);
}

TEST(FrameworkVariablesTest, AddsVariablesOfRequestedFrameworks) {
  TwoHosts job;
  job.options.profile = Profile::kPaddle;
  EXPECT_EQ(job.of(1, 1, "PADDLE_CURRENT_ENDPOINT"), "10.0.0.2:2001");
  EXPECT_EQ(job.of(1, 1, "PADDLE_MASTER"), "10.0.0.1:29501");
  EXPECT_EQ(job.of(1, 1, "PADDLE_DISTRI_BACKEND"), "gloo") << "there are no accelerators";
  job.options.profile = Profile::kLightgbm;
  EXPECT_EQ(job.of(1, 1, "IVY_LISTEN_PORT"), "2001");
  job.options.profile = Profile::kHorovod;
  EXPECT_EQ(job.of(1, 1, "HOROVOD_CROSS_RANK"), "1");
  EXPECT_EQ(job.of(1, 1, "HOROVOD_HOSTNAME"), "n1");
  EXPECT_EQ(job.of(1, 1, "HOROVOD_GLOO_RENDEZVOUS_PORT"), "29500");
  job.options.profile = Profile::kMlx;
  EXPECT_EQ(job.of(1, 1, "MLX_HOSTFILE"), "/j1/mlx-hosts.json");
  HostPlan plan;
  add_framework_files(job.inputs(), plan);
  EXPECT_EQ(plan.files(0).text(),
            R"([["10.0.0.1:1000"],["10.0.0.1:1001"],["10.0.0.2:2000"],["10.0.0.2:2001"]])");
}

TEST(TfRolesTest, TakeRanksInOrder) {
  EXPECT_EQ(min_ranks(parse_tf_roles("chief,ps:2,worker").value()), 4);
  const std::vector<TfTask> tasks = tf_tasks(parse_tf_roles("ps:1,chief").value(), 4);
  EXPECT_EQ(tasks[0].type + tasks[1].type + tasks[2].type, "pschiefworker");
  EXPECT_EQ(tasks[3].index, 1);
  for (const char* bad : {"", "chef", "ps:0", "ps:x", "chief:2", "ps,worker", "worker,worker:1"})
    EXPECT_FALSE(parse_tf_roles(bad).ok()) << bad;
}

TEST(AppPlanTest, RunsADaskSchedulerAndWorkers) {
  TwoHosts job;
  use_app(job.options, "dask");
  job.options.app_workers = 3;
  job.options.app_args = {"--nthreads", "2"};
  const AppPlan first = job.app(0);
  ASSERT_EQ(first.servers_size(), 2);
  EXPECT_EQ(words(first.servers(0)),
            "/py -m dask scheduler --host 10.0.0.1 --port 1000 --dashboard-address 10.0.0.1:1001");
  EXPECT_EQ(first.servers(0).ready_address(), "10.0.0.1:1000");
  EXPECT_TRUE(first.servers(0).is_first());
  EXPECT_TRUE(first.has_client());
  EXPECT_EQ(first.client_environment(0).value(), "tcp://10.0.0.1:1000");
  EXPECT_EQ(first.ready_command(4), "6");
  const AppPlan other = job.app(1);
  ASSERT_EQ(other.servers_size(), 1);
  EXPECT_EQ(words(other.servers(0)),
            "/py -m dask worker tcp://10.0.0.1:1000 --host 10.0.0.2 --nworkers 3 --name host1 "
            "--local-directory /j1 --no-dashboard --nthreads 2");
  EXPECT_FALSE(other.has_client());
  EXPECT_EQ(other.ready_command_size(), 0);
}

TEST(AppPlanTest, MakesEveryRankAClientOfXgboostsTracker) {
  TwoHosts job;
  use_app(job.options, "xgboost");
  EXPECT_EQ(job.app(0, 0).servers_size(), 1);
  EXPECT_EQ(job.app(0, 1).servers_size(), 0);
  EXPECT_TRUE(job.app(1, 1).has_client());
  const AppPlan last = job.app(1, 1);
  EXPECT_EQ(last.client_environment(1).name(), "DMLC_TASK_ID");
  EXPECT_EQ(last.client_environment(1).value(), "3");
}

TEST(AppPlanTest, RunsTheProgramAsTheChiefOfParameterServers) {
  TwoHosts job;
  use_app(job.options, "tf-ps");
  const std::string cluster = R"({"cluster":{"chief":["10.0.0.1:1001"],"ps":["10.0.0.1:1000"],)"
                              R"("worker":["10.0.0.1:1002","10.0.0.2:2002"]},"task":{"type":)";
  const AppPlan first = job.app(0);
  ASSERT_EQ(first.servers_size(), 2);
  EXPECT_EQ(words(first.servers(0)), "/py -u /w/train.py a b");
  EXPECT_EQ(first.servers(0).environment(0).value(), cluster + R"("ps","index":0}})");
  EXPECT_EQ(first.client_environment(0).value(), cluster + R"("chief","index":0}})");
  const AppPlan other = job.app(1);
  ASSERT_EQ(other.servers_size(), 1);
  EXPECT_EQ(other.servers(0).environment(0).value(), cluster + R"("worker","index":1}})");
  EXPECT_FALSE(other.has_client());
}

TEST(AppPlanTest, PassesTheCommandLineToModelServers) {
  TwoHosts job;
  use_app(job.options, "vllm");
  job.options.app_args = {"org/model", "--tensor-parallel-size", "8"};
  EXPECT_EQ(words(job.app(0).servers(0)),
            "/py -m vllm.entrypoints.cli.main serve org/model --tensor-parallel-size 8 --nnodes 2 "
            "--node-rank 0 --master-addr 10.0.0.1 --master-port 1001 --host 10.0.0.1 --port 1000");
  EXPECT_EQ(job.app(0).servers(0).ready_path(), "/health");
  EXPECT_NE(words(job.app(1).servers(0)).find("--node-rank 1"), std::string::npos);
  EXPECT_NE(words(job.app(1).servers(0)).find("--headless"), std::string::npos);
}

TEST(AppPlanTest, RunsRolesOfTheCommandLine) {
  TwoHosts job;
  job.options.app = App::kRoles;
  job.options.app_spec = app_of_roles(
      {parse_role("store@first=./db --at {store.port} --name 'a b'").value(),
       parse_role("part=./part {store.port} {part.port} '{\"json\":1}' {program}").value()});
  EXPECT_EQ(words(job.app(0).servers(0)), "./db --at 1000 --name a b");
  EXPECT_EQ(job.app(0).servers(0).arguments_size(), 5);
  EXPECT_EQ(words(job.app(1).servers(0)), "./part 1000 2001 {\"json\":1} /py -u /w/train.py a b");
  EXPECT_EQ(job.app(1).client_environment(0).name(), "IVY_ROLE_STORE");
  EXPECT_EQ(job.app(1).client_environment(0).value(), "10.0.0.1:1000");
  EXPECT_EQ(port_count(job.options.app_spec), 2);
  for (const char* bad : {"x", "=y", "a-b=y", "a@some=y", "a=", "a='x"})
    EXPECT_FALSE(parse_role(bad).ok()) << bad;
}

TEST(AppPlanTest, GivesRanksAndRolesDifferentPorts) {
  TwoHosts job;
  job.options.app = App::kRoles;
  job.options.app_spec = app_of_roles({parse_role("store@first=./db {store.port}").value(),
                                       parse_role("part=./part {part.port}").value()});
  job.options.profile = Profile::kLightgbm;
  EXPECT_EQ(words(job.app(0).servers(0)), "./db 1000");
  EXPECT_EQ(words(job.app(1).servers(0)), "./part 2001");
  EXPECT_EQ(job.of(0, 0, "IVY_MACHINES"),
            "10.0.0.1:1002,10.0.0.1:1003,10.0.0.2:2002,10.0.0.2:2003");
}

TEST(AppFileTest, ReadsEveryAppOfThePackage) {
  for (const char* name : {"dask", "ray", "sglang", "tf-ps", "vllm", "xgboost"}) {
    const Result<AppSpec> app = find_app(name, {"/nowhere", IVY_APPS});
    ASSERT_TRUE(app.ok()) << app.error().message;
    EXPECT_EQ(app->name, name);
    EXPECT_FALSE(app->roles.empty());
  }
  const Result<AppSpec> none = find_app("spark", {IVY_APPS});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message,
            "\"spark\" is not one of dask, jax-service, ray, sglang, tf-ps, vllm, xgboost");
}

TEST(AppFileTest, NamesTheLineOfAMistake) {
  struct Case {
    const char* text;
    const char* why;
  };
  const std::string role = "[[role]]\nname = \"db\"\ncommand = [\"db\"]\n";
  ASSERT_TRUE(parse_app(role, "a.toml", "a").ok());
  for (const Case& one :
       {Case{"x = ", "a.toml:1: "},
        {"port = 1\n", "a.toml:1: unknown key \"port\"; known keys: client, "},
        {"client = \"twice\"\n", "a.toml:1: client is \"twice\", which is not one of once,"},
        {"ready-command = \"x\"\n", "a.toml:1: ready-command must be a list of strings"},
        {"client-environment = { \"a b\" = \"c\" }\n",
         "a.toml:1: a variable must have the form NAME"}}) {
    const Result<AppSpec> app = parse_app(one.text + role, "a.toml", "a");
    ASSERT_FALSE(app.ok()) << one.text;
    EXPECT_TRUE(app.error().message.starts_with(one.why)) << app.error().message;
  }
  for (const Case& one :
       {Case{"ports = 99\n", "a.toml:4: ports must be a number from 0 to 64"},
        {"ready = \"port\"\n", "a.toml:1: ready of role db must be \"port\" or a path such as"},
        {"on = \"second\"\n",
         "a.toml:4: on is \"second\", which is not one of every, first, others"}}) {
    const Result<AppSpec> app = parse_app(role + one.text, "a.toml", "a");
    ASSERT_FALSE(app.ok()) << one.text;
    EXPECT_TRUE(app.error().message.starts_with(one.why)) << app.error().message;
  }
  EXPECT_EQ(parse_app("client = \"once\"", "a.toml", "a").error().message,
            "a.toml:1: an app needs 1 to 32 roles: [[role]]");
}

TEST(WorkerPortsTest, AreRequestedIfEveryRankListens) {
  Options options;
  EXPECT_EQ(worker_port_wish(options).each() + worker_port_wish(options).more(), 0u);
  options.profile = Profile::kTensorflow;
  options.num_proc = 7;
  EXPECT_EQ(worker_port_wish(options).each(), 1u);
  EXPECT_EQ(worker_port_wish(options).workers(), 7u);
}

}  // namespace
}  // namespace ivy
