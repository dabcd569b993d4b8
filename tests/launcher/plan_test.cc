// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/plan.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "launcher/plan/plan_context.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

// Input of a plan: hosts with their facts.
struct PlanInput {
  PlanInput() { options.command = {"train.py", "--lr", "1"}; }

  HostFacts& host(const std::string& name, const std::string& transport = "ssh") {
    HostAnswer answer;
    answer.name = name;
    answer.transport = transport_named(transport);
    if (transport != "local") {
      answer.peer_address = "10.0.0." + std::to_string(answers.size() + 1);
      answer.local_address = "10.0.0.100";
    }
    HostFacts& facts = answer.facts;
    facts.set_cores(8);
    facts.set_program_is_script(true);
    facts.set_program_path("/data/train.py");
    facts.set_program_sha256("aa");
    facts.set_interpreter("/usr/bin/python3");
    facts.set_interpreter_version("3.11.2");
    facts.set_reserved_port(30000 + static_cast<std::uint32_t>(answers.size()));
    answers.push_back(std::move(answer));
    Host written;
    written.name = name;
    options.hosts.push_back(written);
    return answers.back().facts;
  }
  void hosts(const std::string& list) {
    const std::vector<Host> parsed = parse_host_list(list, "-H").value();
    for (const Host& written : parsed) host(written.name);
    options.hosts = parsed;
  }
  void leave_out(std::size_t index) {
    HostAnswer gone;
    gone.is_present = false;
    gone.name = answers[index].name;
    answers[index] = gone;
  }
  void per_host(int number) {
    options.per_host.kind = PerHost::Kind::kNumber;
    options.per_host.number = number;
    options.per_host.written = true;
  }
  JobPlan plan() {
    rejections.clear();
    return make_plan(options, "job", answers, rejections).value();
  }
  // Returns the workers of each planned host, for instance "a:2 b:1".
  std::string placed() {
    const JobPlan made = plan();
    std::string text;
    for (const PlannedHost& host : made.hosts)
      text += (text.empty() ? "" : " ") + host.name + ":" + std::to_string(host.workers.size());
    return text + (rejections.empty() ? "" : " refused " + rejections.front().what);
  }
  std::string master() {
    const JobPlan made = plan();
    return made.master_address + ":" + std::to_string(made.master_port);
  }
  Diagnostic rejection() {
    plan();
    EXPECT_EQ(rejections.size(), 1u);
    return rejections.empty() ? Diagnostic{} : rejections.front();
  }

  Options options;
  std::vector<HostAnswer> answers;
  std::vector<Diagnostic> rejections;
};

// ---- Workers of hosts --------------------------------------------------------------------------

TEST(PlanTest, StartsOneWorkerPerHostWithoutAccelerators) {
  PlanInput input;
  input.hosts("a,b");
  EXPECT_EQ(input.placed(), "a:1 b:1");
  EXPECT_EQ(plan_line(input.plan()),
            "2 hosts x 1 = 2 ranks (one per host, no accelerators found), by ssh");
}

TEST(PlanTest, StartsOneWorkerPerAccelerator) {
  PlanInput input;
  input.hosts("a,b");
  input.answers[0].facts.set_accelerators(4);
  input.answers[1].facts.set_accelerators(2);
  EXPECT_EQ(input.placed(), "a:4 b:2");
  EXPECT_EQ(plan_line(input.plan()),
            "2 hosts, 6 ranks (one per accelerator), by ssh, accelerators differ: 4 on a, 2 on b");
  EXPECT_FALSE(input.plan().same_local_size);
}

TEST(PlanTest, NamesAnotherInterpreterInTheFirstLine) {
  const std::pair<const char*, const char*> cases[] = {{"/usr/bin/env -S uv run --script", "uv"},
                                                       {" /bin/bash -e", "bash"},
                                                       {"/usr/bin/env python3", ""},
                                                       {"/opt/pypy3.10 -u", ""},
                                                       {"/usr/bin/env -S A=1 python3 -u", ""},
                                                       {"", ""}};
  for (const auto& [line, named] : cases) {
    PlanInput input;
    input.hosts("a");
    input.answers[0].facts.set_program_is_script(true);
    input.answers[0].facts.set_program_first_line(line);
    const JobPlan plan = input.plan();
    const std::string what =
        *named == '\0' ? "" : std::string("the script's first line names ") + named;
    EXPECT_EQ(plan.warnings.empty() ? "" : plan.warnings.front().what, what) << line;
  }
}

TEST(PlanTest, UsesWrittenSlots) {
  PlanInput input;
  input.hosts("a:2,b:3,c");
  EXPECT_EQ(input.placed(), "a:2 b:3 c:1");
  EXPECT_EQ(input.plan().rule, "slots written for the hosts");
}

TEST(PlanTest, PrefersWorkersPerHostToSlots) {
  PlanInput input;
  input.hosts("a:2,b:3");
  input.per_host(4);
  EXPECT_EQ(input.placed(), "a:4 b:4");
  EXPECT_EQ(plan_line(input.plan()), "2 hosts x 4 = 8 ranks (--nproc-per-node 4), by ssh");
}

TEST(PlanTest, NamesTheTransportsInThePlanLine) {
  PlanInput input;
  input.hosts("a,b,c,d");
  const auto end_of_line = [&](std::vector<std::string> transports) {
    for (std::size_t i = 0; i < transports.size(); ++i)
      input.answers[i].transport = transport_named(transports[i]);
    const std::string line = plan_line(input.plan());
    return line.substr(line.find(')') + 1);
  };
  EXPECT_EQ(end_of_line({"agent", "agent", "agent", "agent"}), ", by agent");
  EXPECT_EQ(end_of_line({"local", "agent", "ssh", "agent"}), ", 1 local, 2 by agent, 1 by ssh");
  EXPECT_EQ(end_of_line({"local", "local", "local", "local"}), "");
}

TEST(PlanTest, RejectsMoreWorkersThanAHostAllows) {
  PlanInput most;
  most.hosts("a:4096,b");
  EXPECT_EQ(most.placed(), "a:4096 b:1");
  EXPECT_TRUE(most.rejections.empty());
  PlanInput input;
  input.hosts("a:4097,b:1,c:8000");
  const Diagnostic rejection = input.rejection();
  EXPECT_EQ(rejection.id, "IVY-P015");
  EXPECT_EQ(rejection.exit_code, 2);
  EXPECT_NE(rejection.what.find("8000 processes on one host, but at most 4096"), std::string::npos);
  EXPECT_EQ(rejection.where, "a,c");
}

TEST(PlanTest, DerivesWorkersPerHostFromTheFacts) {
  PlanInput input;
  input.hosts("a,b");
  input.answers[0].facts.set_accelerators(4);
  input.options.per_host.written = true;
  input.options.per_host.kind = PerHost::Kind::kAuto;
  EXPECT_EQ(input.placed(), "a:4 b:1");
  input.options.per_host.kind = PerHost::Kind::kCpu;
  EXPECT_EQ(input.placed(), "a:8 b:8");
  input.options.per_host.kind = PerHost::Kind::kGpu;
  const Diagnostic rejection = input.rejection();
  EXPECT_EQ(rejection.id, "IVY-P010");
  EXPECT_EQ(rejection.where, "b");
  EXPECT_EQ(rejection.exit_code, kExitRejected);
}

TEST(PlanTest, SpreadsWorkersInBlocks) {
  const std::pair<int, const char*> cases[] = {{1, "a:1"},         {2, "a:1 b:1"},
                                               {3, "a:1 b:1 c:1"}, {4, "a:2 b:1 c:1"},
                                               {5, "a:2 b:2 c:1"}, {9, "a:3 b:3 c:3"}};
  for (const auto& [workers, placed] : cases) {
    PlanInput input;
    input.hosts("a,b,c");
    input.options.num_proc = workers;
    EXPECT_EQ(input.placed(), placed);
  }
}

TEST(PlanTest, FillsTheFirstWrittenSlots) {
  const std::pair<int, const char*> cases[] = {
      {1, "a:1"}, {2, "a:2"}, {3, "a:2 b:1"}, {5, "a:2 b:3"}};
  for (const auto& [workers, placed] : cases) {
    PlanInput input;
    input.hosts("a:2,b:3");
    input.options.num_proc = workers;
    EXPECT_EQ(input.placed(), placed);
  }
  PlanInput input;
  input.hosts("a,b");
  input.per_host(2);
  input.options.num_proc = 3;
  EXPECT_EQ(input.placed(), "a:2 b:1");
  EXPECT_EQ(input.plan().rule, "-n 3, --nproc-per-node 2");
}

TEST(PlanTest, ExplainsTheArithmeticOfTooManyWorkers) {
  PlanInput input;
  input.hosts("node01:8,node02:8");
  input.options.num_proc = 20;
  const Diagnostic rejection = input.rejection();
  EXPECT_EQ(rejection.what, "-n 20 exceeds the 16 slots of the hosts (node01:8 node02:8)");
  EXPECT_EQ(rejection.fix.substr(0, 5), "-n 16");
  EXPECT_EQ(rejection.exit_code, kExitUsage);
}

TEST(PlanTest, TakesTheFirstHostsForNnodes) {
  PlanInput input;
  input.hosts("a,b,c");
  input.options.num_nodes = 2;
  EXPECT_EQ(input.placed(), "a:1 b:1");
  input.options.num_proc = 3;
  EXPECT_EQ(input.placed(), "a:2 b:1");
  input.options.num_proc.reset();
  input.options.num_nodes = 4;
  EXPECT_EQ(input.rejection().what, "--nnodes 4 needs 4 hosts, but only 3 are available (a,b,c)");
}

// --nnodes MIN:MAX: ranks are numbered over the hosts that have joined, in their order. Each has as
// many workers as it would have with all hosts.
TEST(PlanTest, GivesNoRanksToHostsThatTakeNoPart) {
  PlanInput input;
  input.hosts("a,b,c,d");
  input.options.num_nodes = 8;
  input.options.min_nodes = 2;
  EXPECT_EQ(input.placed(), "a:1 b:1 c:1 d:1");
  input.options.per_host.written = true;
  input.options.per_host.kind = PerHost::Kind::kNumber;
  input.options.per_host.number = 2;
  input.leave_out(0);
  input.leave_out(2);
  EXPECT_EQ(input.placed(), "b:2 d:2");
  const JobPlan plan = input.plan();
  EXPECT_EQ(plan.world_size, 4);
  EXPECT_EQ(plan.hosts[0].host_index, 1u);
  EXPECT_EQ(plan.hosts[1].host_index, 3u);
  EXPECT_EQ(plan.hosts[1].node_rank, 1);
  EXPECT_EQ(plan.hosts[1].workers.front().rank, 2);

  EXPECT_NE(plan_table(input.options, plan, input.answers)
                .find("hosts: continues without lost hosts while 2 are left"),
            std::string::npos);

  PlanInput fakes;
  for (const Host& fake : fake_hosts(3)) fakes.host(fake.name, "local").set_accelerators(6);
  fakes.options.hosts = fake_hosts(3);
  fakes.options.num_nodes = 3;
  fakes.options.min_nodes = 1;
  fakes.leave_out(1);
  EXPECT_EQ(fakes.placed(), "fake0:2 fake2:2") << "no accelerator is assigned to two hosts";
}

TEST(PlanTest, DividesTheAcceleratorsBetweenFakeHosts) {
  const std::pair<unsigned, const char*> cases[] = {{0, "fake0:1 fake1:1 fake2:1"},
                                                    {1, "fake0:1 fake1:1 fake2:1"},
                                                    {3, "fake0:1 fake1:1 fake2:1"},
                                                    {8, "fake0:3 fake1:3 fake2:2"}};
  for (const auto& [accelerators, placed] : cases) {
    PlanInput input;
    for (const Host& fake : fake_hosts(3))
      input.host(fake.name, "local").set_accelerators(accelerators);
    input.options.hosts = fake_hosts(3);
    EXPECT_EQ(input.placed(), placed) << accelerators;
  }
}

TEST(PlanTest, NumbersRanksInTheOrderOfHosts) {
  PlanInput input;
  input.hosts("b:2,a:1,c:3");
  const JobPlan plan = input.plan();
  EXPECT_EQ(plan.world_size, 6);
  int rank = 0;
  for (std::size_t node = 0; node < plan.hosts.size(); ++node) {
    EXPECT_EQ(plan.hosts[node].node_rank, static_cast<int>(node));
    EXPECT_EQ(plan.hosts[node].host_index, node);
    int local = 0;
    for (const PlannedWorker& worker : plan.hosts[node].workers) {
      EXPECT_EQ(&plan.host_of_rank(rank), &plan.hosts[node]);
      EXPECT_EQ(worker.rank, rank++);
      EXPECT_EQ(worker.local_rank, local++);
    }
  }
  EXPECT_EQ(plan.hosts[0].name, "b");
}

// ---- Programs ---------------------------------------------------------------------------------

TEST(PlanTest, BuildsTheArgumentsOfAScriptAModuleAndAProgram) {
  PlanInput input;
  HostFacts& facts = input.host("a");
  using Words = std::vector<std::string>;
  EXPECT_EQ(input.plan().arguments,
            (Words{"/usr/bin/python3", "-u", "/data/train.py", "--lr", "1"}));
  input.options.program_kind = ProgramKind::kModule;
  input.options.command = {"pkg.train", "", "\xff"};
  facts.set_program_is_script(false);
  facts.set_program_path("");
  EXPECT_EQ(input.plan().arguments,
            (Words{"/usr/bin/python3", "-u", "-m", "pkg.train", "", "\xff"}));
  input.options.program_kind = ProgramKind::kExecutable;
  input.options.command = {"true"};
  facts.set_program_path("/bin/true");
  EXPECT_EQ(input.plan().arguments, Words{"/bin/true"});
}

TEST(PlanTest, AcceptsInterpretersInDifferentDirectories) {
  PlanInput input;
  input.host("a");
  input.host("b").set_interpreter("/opt/python3");
  EXPECT_EQ(worker_arguments(input.options, input.answers[1].facts)[0], "/opt/python3");
  EXPECT_TRUE(input.plan().warnings.empty());
}

TEST(PlanTest, WarnsOfDifferentVersions) {
  PlanInput input;
  input.host("a");
  input.host("b").set_interpreter_version("3.9.2");
  input.host("c");
  const JobPlan plan = input.plan();
  EXPECT_TRUE(input.rejections.empty());
  ASSERT_EQ(plan.warnings.size(), 1u);
  EXPECT_EQ(plan.warnings[0].cause, "3.11.2 on a,c\n3.9.2 on b");
}

TEST(PlanTest, FoldsAMissingDirectoryOverHosts) {
  PlanInput input;
  for (const char* name : {"n1", "n2", "n3"})
    input.host(name).set_working_directory_error("/data: No such file or directory");
  input.host("n4");
  const Diagnostic rejection = input.rejection();
  EXPECT_EQ(rejection.where, "n[1-3]");
  EXPECT_EQ(rejection.cause, "/data: No such file or directory");
  EXPECT_EQ(rejection.exit_code, kExitRejected);
}

TEST(PlanTest, DistinguishesAnInaccessibleDirectoryFromAMissingOne) {
  PlanInput input;
  HostFacts& facts = input.host("a");
  facts.set_user("ada");
  facts.set_working_directory_error("working directory /root: Permission denied");
  EXPECT_EQ(input.rejection().fix,
            "use --wdir DIR with a directory that ada can enter there, such as --wdir /tmp");
  facts.set_working_directory_error("working directory /data: No such file or directory");
  EXPECT_EQ(input.rejection().fix, "create it there, or choose another one: --wdir DIR");
}

TEST(PlanTest, SuggestsAFixForAProgramThatCannotRun) {
  const struct {
    int error;
    bool is_script;
    const char* fix;
  } cases[] = {
      {EISDIR, false, "give the path of a program"},
      {ENOEXEC, false, "put its interpreter before it: sh ./tool, python3 ./tool\nor "},
      {ELIBACC, false, "install that interpreter there"},
      {EACCES, true, "make it readable for ada there: chmod +r /data/train.py"},
      {EACCES, false, "chmod +x /data/train.py, or put its interpreter before it: bash ./tool"}};
  for (const auto& [error, is_script, fix] : cases) {
    PlanInput input;
    input.options.command = {"./tool"};
    HostFacts& facts = input.host("a");
    facts.set_user("ada");
    facts.set_program_is_script(is_script);
    facts.set_program_error("cannot");
    facts.set_program_errno(error);
    const Diagnostic rejection = input.rejection();
    EXPECT_EQ(rejection.id, "IVY-P005");
    EXPECT_EQ(rejection.exit_code, kExitNotExecutable);
    EXPECT_EQ(rejection.fix.find(fix), 0u) << rejection.fix;
  }
}

TEST(PlanTest, SuggestsASimilarProgram) {
  const std::pair<const char*, const char*> cases[] = {
      {"4", "-n 4 PROGRAM starts 4 workers"},
      {"help", "ivyrun --help"},
      {"A=1", "pass variables with -x, one flag for each: -x A=1"},
      {"launch", "ivyrun [flags] program"},
      {"tool", "install it there"},
      {"pkg.mod", "use -m pkg.mod if it is a Python module"},
      {"train.py --lr 3",
       "this is a single word with spaces; remove the quotes: ivyrun [flags] train.py --lr 3"},
      {"a | b", "run it in a shell: ivyrun [flags] sh -c 'a | b'"},
      {"./tool", "write a path that exists"},
      {"train.py", "write a path that exists"}};
  for (const auto& [program, fix] : cases) {
    PlanInput input;
    input.options.command = {program};
    HostFacts& facts = input.host("a");
    facts.set_program_error("gone");
    facts.set_program_errno(ENOENT);
    EXPECT_EQ(input.rejection().fix.find(fix), 0u) << input.rejection().fix;
  }
}

TEST(PlanTest, SuggestsTheProgramThatTheHostFound) {
  PlanInput input;
  HostFacts& facts = input.host("a");
  facts.set_program_error("program train does not exist, but /d/train.py does: write train.py");
  facts.set_program_errno(ENOENT);
  EXPECT_EQ(input.rejection().fix, "write train.py");
}

TEST(PlanTest, RunsAProgramByItsNameExtension) {
  const std::pair<const char*, const char*> cases[] = {
      {"./run.sh", "before it: bash ./run.sh"},
      {"run.pl", "before it: perl run.pl"},
      {"notes.ipynb", "a notebook cannot be launched"}};
  for (const int error : {EACCES, ENOEXEC})
    for (const auto& [program, fix] : cases) {
      PlanInput input;
      input.options.command = {program};
      HostFacts& facts = input.host("a");
      facts.set_program_is_script(false);
      facts.set_program_error("cannot");
      facts.set_program_errno(error);
      EXPECT_NE(input.rejection().fix.find(fix), std::string::npos) << input.rejection().fix;
    }
}

struct MpiCase {
  Profile profile;
  const char* on_a;
  const char* on_b;
  const char* asks;  // "pmi", "pmix", "both", "none", or the id of a rejection.
};

TEST(PlanTest, ChoosesTheServersOfMpi) {
  const MpiCase kTable[] = {
      {Profile::kTorch, "", "", "none"},
      {Profile::kTorch, "libmpich.so.12", "libmpich.so.12", "pmi"},
      {Profile::kTorch, "libmpi.so.12 libmpicxx.so.12", "libmpi.so.12 libmpicxx.so.12", "pmi"},
      {Profile::kTorch, "libmpi.so.40", "libmpi.so.40", "pmix"},
      {Profile::kTorch, "libmpi_abi.so.0", "libmpi_abi.so.0", "both"},
      {Profile::kMpi, "", "", "both"},
      {Profile::kMpi, "libmpi.so.40", "libmpi.so.40", "pmix"},
      {Profile::kMpi, "libmpi.so.1", "libmpi.so.1", "both"},
      {Profile::kTorch, "libmpi.so.1", "libmpi.so.1", "IVY-P024"},
      {Profile::kMpi, "libmpi.so.40 libmpich.so.12", "libmpi.so.40 libmpich.so.12", "IVY-P025"},
      {Profile::kTorch, "libmpi.so.40", "libmpich.so.12", "IVY-P025"},
      {Profile::kTorch, "libmpi.so.40", "libmpi.so.20", "IVY-P025"},
      {Profile::kTorch, "libmpi.so.40", "", "IVY-P025"},
  };
  for (const MpiCase& one : kTable) {
    PlanInput input;
    input.options.profile = one.profile;
    input.host("a").set_program_library(one.on_a);
    input.host("b").set_program_library(one.on_b);
    const std::string asks = one.asks;
    if (asks.starts_with("IVY")) {
      EXPECT_EQ(input.rejection().id, asks) << one.on_a;
      input.options.allow_singletons = true;
      EXPECT_FALSE(input.plan().mpi.served) << "each rank is a separate world";
      continue;
    }
    const MpiChoice choice = input.plan().mpi;
    EXPECT_EQ(choice.pmi, asks == "pmi" || asks == "both") << one.on_a;
    EXPECT_EQ(choice.pmix, asks == "pmix" || asks == "both") << one.on_a;
    EXPECT_EQ(choice.required, one.profile == Profile::kMpi) << one.on_a;
    EXPECT_TRUE(choice.served) << "a script may import mpi4py";
  }
}

TEST(PlanTest, NeedsTheStoreForMpiAcrossHosts) {
  PlanInput input;
  input.options.no_store = true;
  input.host("a").set_program_library("libmpi.so.40");
  input.options.per_host.number = 1;
  EXPECT_FALSE(input.plan().mpi.served) << "a world of one needs nothing";
  input.host("b").set_program_library("libmpi.so.40");
  EXPECT_EQ(input.rejection().id, "IVY-P026");
}

TEST(PlanTest, AppliesMaxSlotsToEveryRequest) {
  PlanInput input;
  input.host("a");
  input.options.hosts.front().max_slots = 2;
  input.options.num_proc = 2;
  EXPECT_EQ(input.plan().world_size, 2);
  input.options.num_proc = 3;
  EXPECT_EQ(input.rejection().what, "requested 3 processes on a, which allows only 2");
  EXPECT_EQ(input.rejection().id, "IVY-P001");
}

TEST(PlanTest, RejectsRanksToShowThatDoNotExist) {
  const struct {
    std::vector<int> ranks;
    bool local;
    const char* rejected;  // The rejection; empty: none.
    const char* warned;
  } cases[] = {
      {{9}, false, "--show-ranks: there is no rank 9", ""},
      {{4, 5, 9}, false, "--show-ranks: there are no ranks 4-5,9", ""},
      {{0, 3}, false, "", ""},
      {{3, 4}, false, "", "--show-ranks: there is no rank 4"},
      {{2}, true, "--local-ranks-filter: there is no rank 2", ""},
      {{1}, true, "", ""},
      {{}, false, "", ""},
  };
  for (const auto& [ranks, local, rejected, warned] : cases) {
    PlanInput input;
    input.hosts("a:2,b:2");
    input.options.show_ranks.all = false;
    input.options.show_ranks.local = local;
    input.options.show_ranks.ranks = ranks;
    const JobPlan plan = input.plan();
    EXPECT_EQ(input.rejections.empty() ? "" : input.rejections[0].what, rejected);
    EXPECT_EQ(plan.warnings.empty() ? "" : plan.warnings[0].what, warned);
    if (!input.rejections.empty() && !local) {
      EXPECT_EQ(input.rejections[0].cause, "the job has 4 ranks: 0-3");
      EXPECT_EQ(input.rejections[0].exit_code, kExitUsage);
    }
  }
}

TEST(PlanTest, SelectsTheExitCodeOfAProgramThatCannotRun) {
  const struct {
    int error;
    int exit_code;
  } cases[] = {{ENOENT, kExitNotFound},
               {ENOTDIR, kExitNotFound},
               {EACCES, kExitNotExecutable},
               {EISDIR, kExitNotExecutable},
               {ENOEXEC, kExitNotExecutable}};
  for (const auto& [error, exit_code] : cases) {
    PlanInput input;
    input.host("a");
    HostFacts& facts = input.host("b");
    facts.set_program_error("cannot");
    facts.set_program_errno(error);
    const Diagnostic rejection = input.rejection();
    EXPECT_EQ(rejection.exit_code, exit_code) << error;
    EXPECT_EQ(rejection.where, "b");
  }
}

TEST(PlanTest, ExitsWith127WithoutAnInterpreter) {
  PlanInput input;
  input.host("a").set_interpreter_error("python3: not found");
  EXPECT_EQ(input.rejection().exit_code, kExitNotFound);
}

TEST(PlanTest, NamesTheHostOfADifferentScript) {
  PlanInput input;
  input.options.command = {"src/train.py"};
  input.host("node01");
  input.host("node02").set_program_sha256("bb");
  EXPECT_EQ(input.rejection().what, "train.py differs on node02");
  EXPECT_EQ(input.rejection().exit_code, kExitRejected);
  // Most hosts have the same script, but the first host differs.
  input.host("node03").set_program_sha256("bb");
  EXPECT_EQ(input.rejection().what, "train.py differs on node01");
}

TEST(PlanTest, ChecksOnlyHostsWithWorkers) {
  PlanInput input;
  input.host("a");
  input.host("b").set_program_sha256("bb");
  input.options.num_proc = 1;
  EXPECT_EQ(input.placed(), "a:1");
}

TEST(PlanTest, ReportsAllProblemsTogether) {
  PlanInput input;
  HostFacts& facts = input.host("a");
  facts.set_program_error("gone");
  facts.set_program_errno(ENOENT);
  facts.set_interpreter_error("gone");
  facts.set_reserved_port(0);
  facts.set_reserved_port_error("bind: Address already in use");
  input.host("b").set_working_directory_error("gone");
  input.plan();
  EXPECT_EQ(input.rejections.size(), 4u);
}

TEST(PlanTest, DoesNotReportAMissingProgramInAMissingDirectory) {
  PlanInput input;
  HostFacts& facts = input.host("a");
  facts.set_working_directory_error("gone");
  facts.set_program_error("gone");
  facts.set_program_errno(ENOENT);
  EXPECT_EQ(input.rejection().id, "IVY-P003");
}

TEST(PlanTest, RejectsAnArgumentThatLinuxWouldReject) {
  PlanInput input;
  input.host("a");
  input.options.command = {"train.py", std::string((128u << 10) - 1, 'x')};
  input.plan();
  EXPECT_TRUE(input.rejections.empty());
  input.options.command[1] += "x";
  EXPECT_EQ(input.rejection().id, "IVY-P012");
}

TEST(PlanTest, ListsSharedAcceleratorsInThePlanLine) {
  PlanInput input;
  input.host("a").set_accelerators(2);
  input.per_host(4);
  EXPECT_TRUE(input.plan().warnings.empty());
  EXPECT_NE(plan_line(input.plan()).find("4 workers share 2 accelerators"), std::string::npos);
}

// ---- Address of rank 0 -------------------------------------------------------------------

void add_address(HostFacts& facts, const char* interface, const char* address,
                 bool loopback = false) {
  Address* added = facts.add_addresses();
  added->set_interface(interface);
  added->set_address(address);
  added->set_loopback(loopback);
}

TEST(PlanMasterTest, UsesLoopbackOnOneMachine) {
  PlanInput input;
  input.host("localhost", "local");
  EXPECT_EQ(input.master(), "127.0.0.1:30000");
}

TEST(PlanMasterTest, UsesTheAddressByWhichHost0WasReached) {
  PlanInput input;
  input.host("a");
  input.host("b");
  EXPECT_EQ(input.master(), "10.0.0.1:30000");
}

TEST(PlanMasterTest, UsesAnAddressOfThisMachineIfItIsHost0) {
  PlanInput input;
  input.host("here", "local");
  input.host("b");
  EXPECT_EQ(input.master(), "10.0.0.100:30000");
}

TEST(PlanMasterTest, ChoosesAnAddressFromTheFacts) {
  PlanInput input;
  HostFacts& facts = input.host("here", "local");
  add_address(facts, "lo", "127.0.0.1", true);
  add_address(facts, "eth0", "fe80::1");
  add_address(facts, "eth0", "fd00::1");
  add_address(facts, "eth0", "10.1.0.1");
  input.host("b");
  input.answers[1].local_address.clear();
  EXPECT_EQ(input.master(), "10.1.0.1:30000");
  input.answers[0].facts.clear_addresses();
  EXPECT_EQ(input.rejection().id, "IVY-P014");
}

TEST(PlanMasterTest, UsesAnInterfaceByName) {
  PlanInput input;
  HostFacts& facts = input.host("a");
  add_address(facts, "eth0", "10.1.0.1");
  add_address(facts, "ib0", "fd00::2");
  input.options.interface = "ib0";
  EXPECT_EQ(input.master(), "fd00::2:30000");
  input.options.interface = "ib1";
  const Diagnostic rejection = input.rejection();
  EXPECT_EQ(rejection.where, "a");
  EXPECT_EQ(rejection.cause, "eth0 10.1.0.1\nib0 fd00::2");
}

// Two machines, the first with two networks.
struct TwoMachines : PlanInput {
  TwoMachines() {
    HostFacts& a = host("a");
    a.set_host_name("a.cluster");
    a.set_boot_id("1");
    add_address(a, "lo", "127.0.0.1", true);
    add_address(a, "eth0", "10.0.0.1");
    add_address(a, "ib0", "10.9.0.1");
    add_address(a, "ib0", "fd00::1");
    HostFacts& b = host("b");
    b.set_host_name("b.cluster");
    b.set_boot_id("2");
    add_address(b, "lo", "127.0.0.1", true);
    add_address(b, "eth0", "10.0.0.2");
  }
  // Sets --master-addr and the addresses that the resolver returns for it.
  void named(const std::string& name, std::vector<std::string> addresses = {}) {
    options.master_addr = name;
    options.master_addresses = std::move(addresses);
  }
};

TEST(PlanMasterTest, PrefersAWrittenAddressOfTheFirstHostToAnInterface) {
  TwoMachines input;
  input.options.interface = "none";
  for (const char* address : {"10.9.0.1", "FD00::1"}) {
    input.named(address);
    EXPECT_EQ(input.master(), std::string(address) + ":30000");
    EXPECT_TRUE(input.rejections.empty()) << address;
  }
}

TEST(PlanMasterTest, ResolvesANameToTheFirstHostsAddress) {
  TwoMachines input;
  input.named("a-ib", {"fd00::1", "10.9.0.1"});
  EXPECT_EQ(input.master(), "10.9.0.1:30000") << "every framework can use IPv4";
  input.named("a-ib", {"10.200.0.1", "fd00::1"});
  EXPECT_EQ(input.master(), "fd00::1:30000");
  // Names of the host itself, whatever the launcher's resolver returns for them.
  for (const char* name : {"a", "A.Cluster"}) {
    input.named(name, {"127.0.1.1"});
    EXPECT_EQ(input.master(), "10.0.0.1:30000") << name;
    EXPECT_TRUE(input.rejections.empty()) << name;
  }
}

TEST(PlanMasterTest, AcceptsLocalhostOnOneMachine) {
  PlanInput input;
  input.host("fake0", "local");
  input.host("fake1", "local");
  for (const char* name : {"localhost", "127.0.0.1"}) {
    input.options.master_addr = name;
    EXPECT_EQ(input.master(), "127.0.0.1:30000");
    EXPECT_TRUE(input.rejections.empty()) << name;
  }
  input.options.master_addr = "own-name";
  input.options.master_addresses = {"127.0.1.1"};
  EXPECT_EQ(input.master(), "127.0.1.1:30000");
}

TEST(PlanMasterTest, RejectsANameOfAnotherHost) {
  TwoMachines input;
  for (const auto& [name, addresses] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"b", {}}, {"b.cluster", {}}, {"other-name", {"10.0.0.2"}}, {"10.0.0.2", {}}}) {
    for (const bool no_store : {false, true}) {
      input.options.no_store = no_store;
      input.named(name, addresses);
      const Diagnostic rejection = input.rejection();
      EXPECT_EQ(rejection.id, "IVY-P022") << name;
      EXPECT_EQ(rejection.what,
                "--master-addr " + name + " is host b, but rank 0 runs on the first host, a");
      EXPECT_NE(rejection.fix.find("-H b,..."), std::string::npos);
    }
  }
}

TEST(PlanMasterTest, RejectsAnAddressThatNoHostHasUnlessRank0Serves) {
  TwoMachines input;
  input.named("service", {"10.96.0.7"});
  EXPECT_EQ(input.rejection().what, "--master-addr service is not an address of the first host, a");
  EXPECT_EQ(input.rejection().cause,
            "service is 10.96.0.7\na has:\neth0 10.0.0.1\nib0 10.9.0.1\nib0 fd00::1");
  input.options.no_store = true;
  EXPECT_EQ(input.master(), "10.96.0.7:30000") << "a service or a translated address";
  EXPECT_TRUE(input.rejections.empty());
  input.named("nobody");
  input.options.master_addr_error = "the name nobody has no address: Host not found";
  EXPECT_EQ(input.rejection().what, "--master-addr nobody has no address");
  EXPECT_EQ(input.rejection().cause, "the name nobody has no address: Host not found");
}

TEST(PlanMasterTest, RejectsALoopbackAddressAcrossMachines) {
  TwoMachines input;
  input.options.interface = "lo";
  EXPECT_EQ(input.rejection().id, "IVY-P023");
  EXPECT_EQ(input.rejection().where, "--iface lo");
  EXPECT_EQ(input.rejection().cause, "a has:\neth0 10.0.0.1\nib0 10.9.0.1\nib0 fd00::1");
  input.options.interface.clear();
  add_address(input.answers[0].facts, "eth0", "fe80::1");
  for (const char* address : {"127.0.0.1", "127.3.4.5", "::1", "localhost", "fe80::1%eth0"}) {
    input.named(address);
    EXPECT_EQ(input.rejection().id, "IVY-P023") << address;
  }
}

// The other host would reach itself at that address, and the check between hosts would not notice.
TEST(PlanMasterTest, RejectsAnAddressThatAnotherHostHasToo) {
  TwoMachines input;
  add_address(input.answers[0].facts, "docker0", "172.17.0.1");
  add_address(input.answers[1].facts, "docker0", "172.17.0.1");
  input.named("172.17.0.1");
  EXPECT_EQ(input.rejection().id, "IVY-P023");
  EXPECT_NE(input.rejection().what.find("172.17.0.1, which b also has"), std::string::npos)
      << input.rejection().what;
  input.options.master_addr.clear();
  input.options.interface = "docker0";
  EXPECT_EQ(input.rejection().id, "IVY-P023");
  input.options.interface.clear();
  EXPECT_EQ(input.master(), "10.0.0.1:30000");
}

TEST(PlanMasterTest, SkipsAddressesThatEveryHostHas) {
  PlanInput input;
  for (const char* name : {"a", "b"}) {
    HostFacts& facts = input.host(name);
    facts.set_boot_id(name);
    add_address(facts, "docker0", "172.17.0.1");
    add_address(facts, "eth0", *name == 'a' ? "10.1.0.1" : "10.1.0.2");
    input.answers.back().peer_address = "192.0.2.1";
  }
  EXPECT_EQ(input.master(), "10.1.0.1:30000");
}

TEST(PlanTest, RejectsOneMachineUnderTwoNames) {
  PlanInput input;
  for (const char* name : {"node2", "10.77.0.2"}) {
    HostFacts& facts = input.host(name);
    facts.set_boot_id("1");
    facts.set_host_name("node2");
    add_address(facts, "eth0", "10.0.0.1");
  }
  EXPECT_EQ(input.rejection().id, "IVY-P038");
  EXPECT_EQ(input.rejection().what, "node2 and 10.77.0.2 are the same machine");
  for (Host& host : input.options.hosts) host.fake = true;
  input.plan();
  EXPECT_TRUE(input.rejections.empty()) << "fake hosts";
  for (Host& host : input.options.hosts) host.fake = false;
  input.answers[1].facts.set_user("guest");
  input.plan();
  EXPECT_TRUE(input.rejections.empty()) << "another user";
  input.answers[1].facts.clear_user();
  add_address(input.answers[1].facts, "eth1", "10.0.0.7");
  input.plan();
  EXPECT_TRUE(input.rejections.empty()) << "a container with a separate network";
}

// ssh to a forwarded port of this machine, as with virtual machines.
TEST(PlanMasterTest, UsesTheOwnAddressOfAHostWithAForwardedPort) {
  TwoMachines input;
  input.answers[0].peer_address = "127.0.0.1";
  EXPECT_EQ(input.master(), "10.0.0.1:30000");
  EXPECT_TRUE(input.rejections.empty());
  // The address of a gateway whose ports lead to the hosts.
  input.answers[0].peer_address = "192.0.2.1";
  EXPECT_EQ(input.master(), "10.0.0.1:30000");
  EXPECT_TRUE(input.rejections.empty());
  input.answers[0].peer_address = "127.0.0.1";
  // One machine with two names: its loopback could be used, but its devices would be used twice.
  input.answers[1].facts = input.answers[0].facts;
  EXPECT_EQ(input.master(), "127.0.0.1:30000");
  EXPECT_EQ(input.rejection().id, "IVY-P038");
}

TEST(PlanMasterTest, RejectsAHostWithoutAReservedPort) {
  PlanInput input;
  input.host("a").set_reserved_port(0);
  input.answers[0].facts.set_reserved_port_error("bind 29500: Address already in use");
  EXPECT_EQ(input.rejection().cause, "bind 29500: Address already in use");
}

TEST(PlanTextTest, NamesHostsRanksAddressesAndTheCommandInTheTable) {
  PlanInput input;
  input.hosts("node01:2,node02:1");
  input.options.host_source = "-H";
  input.options.command.push_back("it's");
  const std::string table = plan_table(input.options, input.plan(), input.answers);
  for (const char* part :
       {"plan: 2 hosts, 3 ranks (slots written for the hosts)", "hosts from: -H",
        "  node01  0     0-1    ssh        10.0.0.1", "  node02  1     2      ssh        10.0.0.2",
        "listens: 10.0.0.1:30000 (",
        "worker: /usr/bin/python3 -u /data/train.py --lr 1 'it'\\''s'"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
}

}  // namespace
}  // namespace ivy
