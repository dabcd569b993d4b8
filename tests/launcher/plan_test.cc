// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/plan.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

// A job on paper: hosts with their facts, then the plan of them.
struct Paper {
  Paper() { options.command = {"train.py", "--lr", "1"}; }

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
    gone.is_here = false;
    gone.name = answers[index].name;
    answers[index] = gone;
  }
  void per_host(int number) {
    options.per_host.kind = PerHost::Kind::kNumber;
    options.per_host.number = number;
    options.per_host.written = true;
  }
  JobPlan plan() {
    refusals.clear();
    return make_plan(options, "job", answers, refusals).value();
  }
  // "a:2 b:1", the workers of each planned host.
  std::string placed() {
    const JobPlan made = plan();
    std::string text;
    for (const PlannedHost& host : made.hosts)
      text += (text.empty() ? "" : " ") + host.name + ":" + std::to_string(host.workers.size());
    return text + (refusals.empty() ? "" : " refused " + refusals.front().what);
  }
  std::string master() {
    const JobPlan made = plan();
    return made.master_address + ":" + std::to_string(made.master_port);
  }
  Diagnostic refusal() {
    plan();
    EXPECT_EQ(refusals.size(), 1u);
    return refusals.empty() ? Diagnostic{} : refusals.front();
  }

  Options options;
  std::vector<HostAnswer> answers;
  std::vector<Diagnostic> refusals;
};

// ---- Places ------------------------------------------------------------------------------------

TEST(PlanTest, OneWorkerPerHostWithoutAccelerators) {
  Paper paper;
  paper.hosts("a,b");
  EXPECT_EQ(paper.placed(), "a:1 b:1");
  EXPECT_EQ(plan_line(paper.plan()),
            "2 hosts x 1 = 2 ranks (one per host, no accelerators found), by ssh");
}

TEST(PlanTest, OneWorkerPerAccelerator) {
  Paper paper;
  paper.hosts("a,b");
  paper.answers[0].facts.set_accelerators(4);
  paper.answers[1].facts.set_accelerators(2);
  EXPECT_EQ(paper.placed(), "a:4 b:2");
  EXPECT_EQ(plan_line(paper.plan()),
            "2 hosts, 6 ranks (one per accelerator), by ssh, accelerators differ: 4 on a, 2 on b");
  EXPECT_FALSE(paper.plan().same_local_size);
}

TEST(PlanTest, NamesAnotherInterpreterInTheFirstLine) {
  const std::pair<const char*, const char*> cases[] = {{"/usr/bin/env -S uv run --script", "uv"},
                                                       {" /bin/bash -e", "bash"},
                                                       {"/usr/bin/env python3", ""},
                                                       {"/opt/pypy3.10 -u", ""},
                                                       {"/usr/bin/env -S A=1 python3 -u", ""},
                                                       {"", ""}};
  for (const auto& [line, named] : cases) {
    Paper paper;
    paper.hosts("a");
    paper.answers[0].facts.set_program_is_script(true);
    paper.answers[0].facts.set_program_first_line(line);
    const JobPlan plan = paper.plan();
    const std::string what =
        *named == '\0' ? "" : std::string("the script's first line names ") + named;
    EXPECT_EQ(plan.warnings.empty() ? "" : plan.warnings.front().what, what) << line;
  }
}

TEST(PlanTest, WrittenSlotsDecide) {
  Paper paper;
  paper.hosts("a:2,b:3,c");
  EXPECT_EQ(paper.placed(), "a:2 b:3 c:1");
  EXPECT_EQ(paper.plan().rule, "slots written for the hosts");
}

TEST(PlanTest, WorkersPerHostBeatSlots) {
  Paper paper;
  paper.hosts("a:2,b:3");
  paper.per_host(4);
  EXPECT_EQ(paper.placed(), "a:4 b:4");
  EXPECT_EQ(plan_line(paper.plan()), "2 hosts x 4 = 8 ranks (--nproc-per-node 4), by ssh");
}

TEST(PlanTest, ThePlanLineSaysWhichTransports) {
  Paper paper;
  paper.hosts("a,b,c,d");
  const auto end_of_line = [&](std::vector<std::string> transports) {
    for (std::size_t i = 0; i < transports.size(); ++i)
      paper.answers[i].transport = transport_named(transports[i]);
    const std::string line = plan_line(paper.plan());
    return line.substr(line.find(')') + 1);
  };
  EXPECT_EQ(end_of_line({"agent", "agent", "agent", "agent"}), ", by agent");
  EXPECT_EQ(end_of_line({"local", "agent", "ssh", "agent"}), ", 1 local, 2 by agent, 1 by ssh");
  EXPECT_EQ(end_of_line({"local", "local", "local", "local"}), "");
}

TEST(PlanTest, MoreWorkersThanAHostTakesAreRefused) {
  Paper most;
  most.hosts("a:4096,b");
  EXPECT_EQ(most.placed(), "a:4096 b:1");
  EXPECT_TRUE(most.refusals.empty());
  Paper paper;
  paper.hosts("a:4097,b:1,c:8000");
  const Diagnostic refusal = paper.refusal();
  EXPECT_EQ(refusal.id, "IVY-P015");
  EXPECT_EQ(refusal.exit_code, 2);
  EXPECT_NE(refusal.what.find("8000 processes on one host, but at most 4096"), std::string::npos);
  EXPECT_EQ(refusal.where, "a,c");
}

TEST(PlanTest, WorkersPerHostByFacts) {
  Paper paper;
  paper.hosts("a,b");
  paper.answers[0].facts.set_accelerators(4);
  paper.options.per_host.written = true;
  paper.options.per_host.kind = PerHost::Kind::kAuto;
  EXPECT_EQ(paper.placed(), "a:4 b:1");
  paper.options.per_host.kind = PerHost::Kind::kCpu;
  EXPECT_EQ(paper.placed(), "a:8 b:8");
  paper.options.per_host.kind = PerHost::Kind::kGpu;
  const Diagnostic refusal = paper.refusal();
  EXPECT_EQ(refusal.id, "IVY-P010");
  EXPECT_EQ(refusal.where, "b");
  EXPECT_EQ(refusal.exit_code, kExitRefused);
}

TEST(PlanTest, ANumberAloneIsSpreadInBlocks) {
  const std::pair<int, const char*> cases[] = {{1, "a:1"},         {2, "a:1 b:1"},
                                               {3, "a:1 b:1 c:1"}, {4, "a:2 b:1 c:1"},
                                               {5, "a:2 b:2 c:1"}, {9, "a:3 b:3 c:3"}};
  for (const auto& [workers, placed] : cases) {
    Paper paper;
    paper.hosts("a,b,c");
    paper.options.num_proc = workers;
    EXPECT_EQ(paper.placed(), placed);
  }
}

TEST(PlanTest, ANumberTakesTheFirstWrittenPlaces) {
  const std::pair<int, const char*> cases[] = {
      {1, "a:1"}, {2, "a:2"}, {3, "a:2 b:1"}, {5, "a:2 b:3"}};
  for (const auto& [workers, placed] : cases) {
    Paper paper;
    paper.hosts("a:2,b:3");
    paper.options.num_proc = workers;
    EXPECT_EQ(paper.placed(), placed);
  }
  Paper paper;
  paper.hosts("a,b");
  paper.per_host(2);
  paper.options.num_proc = 3;
  EXPECT_EQ(paper.placed(), "a:2 b:1");
  EXPECT_EQ(paper.plan().rule, "-n 3, --nproc-per-node 2");
}

TEST(PlanTest, MoreThanThereIsShowsTheArithmetic) {
  Paper paper;
  paper.hosts("node01:8,node02:8");
  paper.options.num_proc = 20;
  const Diagnostic refusal = paper.refusal();
  EXPECT_EQ(refusal.what, "-n 20 exceeds the 16 slots of the hosts (node01:8 node02:8)");
  EXPECT_EQ(refusal.fix.substr(0, 5), "-n 16");
  EXPECT_EQ(refusal.exit_code, kExitUsage);
}

TEST(PlanTest, NnodesTakesTheFirstHosts) {
  Paper paper;
  paper.hosts("a,b,c");
  paper.options.num_nodes = 2;
  EXPECT_EQ(paper.placed(), "a:1 b:1");
  paper.options.num_proc = 3;
  EXPECT_EQ(paper.placed(), "a:2 b:1");
  paper.options.num_proc.reset();
  paper.options.num_nodes = 4;
  EXPECT_EQ(paper.refusal().what, "--nnodes 4 needs 4 hosts, but only 3 are available (a,b,c)");
}

// --nnodes MIN:MAX: ranks are numbered over the hosts that are here, in their order, and each has
// as many workers as it would have beside the others.
TEST(PlanTest, HostsThatTakeNoPartHaveNoRanks) {
  Paper paper;
  paper.hosts("a,b,c,d");
  paper.options.num_nodes = 8;
  paper.options.min_nodes = 2;
  EXPECT_EQ(paper.placed(), "a:1 b:1 c:1 d:1");
  paper.options.per_host.written = true;
  paper.options.per_host.kind = PerHost::Kind::kNumber;
  paper.options.per_host.number = 2;
  paper.leave_out(0);
  paper.leave_out(2);
  EXPECT_EQ(paper.placed(), "b:2 d:2");
  const JobPlan plan = paper.plan();
  EXPECT_EQ(plan.world_size, 4);
  EXPECT_EQ(plan.hosts[0].host_index, 1u);
  EXPECT_EQ(plan.hosts[1].host_index, 3u);
  EXPECT_EQ(plan.hosts[1].node_rank, 1);
  EXPECT_EQ(plan.hosts[1].workers.front().rank, 2);

  EXPECT_NE(plan_table(paper.options, plan, paper.answers)
                .find("hosts: continues without lost hosts while 2 are left"),
            std::string::npos);

  Paper fakes;
  for (const Host& fake : fake_hosts(3)) fakes.host(fake.name, "local").set_accelerators(6);
  fakes.options.hosts = fake_hosts(3);
  fakes.options.num_nodes = 3;
  fakes.options.min_nodes = 1;
  fakes.leave_out(1);
  EXPECT_EQ(fakes.placed(), "fake0:2 fake2:2") << "no accelerator is given to two hosts";
}

TEST(PlanTest, PretendedHostsDivideTheAccelerators) {
  const std::pair<unsigned, const char*> cases[] = {{0, "fake0:1 fake1:1 fake2:1"},
                                                    {1, "fake0:1 fake1:1 fake2:1"},
                                                    {3, "fake0:1 fake1:1 fake2:1"},
                                                    {8, "fake0:3 fake1:3 fake2:2"}};
  for (const auto& [accelerators, placed] : cases) {
    Paper paper;
    for (const Host& fake : fake_hosts(3))
      paper.host(fake.name, "local").set_accelerators(accelerators);
    paper.options.hosts = fake_hosts(3);
    EXPECT_EQ(paper.placed(), placed) << accelerators;
  }
}

TEST(PlanTest, RanksFollowTheOrderOfHosts) {
  Paper paper;
  paper.hosts("b:2,a:1,c:3");
  const JobPlan plan = paper.plan();
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

// ---- What runs ---------------------------------------------------------------------------------

TEST(PlanTest, ArgumentsOfAScriptAModuleAndAProgram) {
  Paper paper;
  HostFacts& facts = paper.host("a");
  using Words = std::vector<std::string>;
  EXPECT_EQ(paper.plan().arguments,
            (Words{"/usr/bin/python3", "-u", "/data/train.py", "--lr", "1"}));
  paper.options.program_kind = ProgramKind::kModule;
  paper.options.command = {"pkg.train", "", "\xff"};
  facts.set_program_is_script(false);
  facts.set_program_path("");
  EXPECT_EQ(paper.plan().arguments,
            (Words{"/usr/bin/python3", "-u", "-m", "pkg.train", "", "\xff"}));
  paper.options.program_kind = ProgramKind::kExecutable;
  paper.options.command = {"true"};
  facts.set_program_path("/bin/true");
  EXPECT_EQ(paper.plan().arguments, Words{"/bin/true"});
}

TEST(PlanTest, InterpretersMayHaveDifferentPlaces) {
  Paper paper;
  paper.host("a");
  paper.host("b").set_interpreter("/opt/python3");
  EXPECT_EQ(worker_arguments(paper.options, paper.answers[1].facts)[0], "/opt/python3");
  EXPECT_TRUE(paper.plan().warnings.empty());
}

TEST(PlanTest, DifferentVersionsAreAWarning) {
  Paper paper;
  paper.host("a");
  paper.host("b").set_interpreter_version("3.9.2");
  paper.host("c");
  const JobPlan plan = paper.plan();
  EXPECT_TRUE(paper.refusals.empty());
  ASSERT_EQ(plan.warnings.size(), 1u);
  EXPECT_EQ(plan.warnings[0].cause, "3.11.2 on a,c\n3.9.2 on b");
}

TEST(PlanTest, AMissingDirectoryIsFoldedOverHosts) {
  Paper paper;
  for (const char* name : {"n1", "n2", "n3"})
    paper.host(name).set_working_directory_error("/data: No such file or directory");
  paper.host("n4");
  const Diagnostic refusal = paper.refusal();
  EXPECT_EQ(refusal.where, "n[1-3]");
  EXPECT_EQ(refusal.cause, "/data: No such file or directory");
  EXPECT_EQ(refusal.exit_code, kExitRefused);
}

TEST(PlanTest, ADirectoryThatTheUserMayNotEnterIsNoMissingOne) {
  Paper paper;
  HostFacts& facts = paper.host("a");
  facts.set_user("ada");
  facts.set_working_directory_error("working directory /root: Permission denied");
  EXPECT_EQ(paper.refusal().fix,
            "use --wdir DIR with a directory that ada can enter there, such as --wdir /tmp");
  facts.set_working_directory_error("working directory /data: No such file or directory");
  EXPECT_EQ(paper.refusal().fix, "create it there, or choose another one: --wdir DIR");
}

TEST(PlanTest, TheFixOfAProgramThatCannotRun) {
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
    Paper paper;
    paper.options.command = {"./tool"};
    HostFacts& facts = paper.host("a");
    facts.set_user("ada");
    facts.set_program_is_script(is_script);
    facts.set_program_error("cannot");
    facts.set_program_errno(error);
    const Diagnostic refusal = paper.refusal();
    EXPECT_EQ(refusal.id, "IVY-P005");
    EXPECT_EQ(refusal.exit_code, kExitNotExecutable);
    EXPECT_EQ(refusal.fix.find(fix), 0u) << refusal.fix;
  }
}

TEST(PlanTest, TheFixOfAMissingProgramGuessesWhatWasMeant) {
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
    Paper paper;
    paper.options.command = {program};
    HostFacts& facts = paper.host("a");
    facts.set_program_error("gone");
    facts.set_program_errno(ENOENT);
    EXPECT_EQ(paper.refusal().fix.find(fix), 0u) << paper.refusal().fix;
  }
}

TEST(PlanTest, SuggestsTheProgramThatTheHostFound) {
  Paper paper;
  HostFacts& facts = paper.host("a");
  facts.set_program_error("program train does not exist, but /d/train.py does: write train.py");
  facts.set_program_errno(ENOENT);
  EXPECT_EQ(paper.refusal().fix, "write train.py");
}

TEST(PlanTest, AProgramIsRunByWhatItsNameSays) {
  const std::pair<const char*, const char*> cases[] = {
      {"./run.sh", "before it: bash ./run.sh"},
      {"run.pl", "before it: perl run.pl"},
      {"notes.ipynb", "a notebook cannot be launched"}};
  for (const int error : {EACCES, ENOEXEC})
    for (const auto& [program, fix] : cases) {
      Paper paper;
      paper.options.command = {program};
      HostFacts& facts = paper.host("a");
      facts.set_program_is_script(false);
      facts.set_program_error("cannot");
      facts.set_program_errno(error);
      EXPECT_NE(paper.refusal().fix.find(fix), std::string::npos) << paper.refusal().fix;
    }
}

struct MpiCase {
  Profile profile;
  const char* on_a;
  const char* on_b;
  const char* asks;  // "pmi", "pmix", "both", "none", or the id of a refusal.
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
    Paper paper;
    paper.options.profile = one.profile;
    paper.host("a").set_program_library(one.on_a);
    paper.host("b").set_program_library(one.on_b);
    const std::string asks = one.asks;
    if (asks.starts_with("IVY")) {
      EXPECT_EQ(paper.refusal().id, asks) << one.on_a;
      paper.options.allow_singletons = true;
      EXPECT_FALSE(paper.plan().mpi.served) << "each is meant to be alone";
      continue;
    }
    const MpiChoice choice = paper.plan().mpi;
    EXPECT_EQ(choice.pmi, asks == "pmi" || asks == "both") << one.on_a;
    EXPECT_EQ(choice.pmix, asks == "pmix" || asks == "both") << one.on_a;
    EXPECT_EQ(choice.required, one.profile == Profile::kMpi) << one.on_a;
    EXPECT_TRUE(choice.served) << "a script may import mpi4py";
  }
}

TEST(PlanTest, MpiAcrossHostsNeedsTheStore) {
  Paper paper;
  paper.options.no_store = true;
  paper.host("a").set_program_library("libmpi.so.40");
  paper.options.per_host.number = 1;
  EXPECT_FALSE(paper.plan().mpi.served) << "a world of one needs nothing";
  paper.host("b").set_program_library("libmpi.so.40");
  EXPECT_EQ(paper.refusal().id, "IVY-P026");
}

TEST(PlanTest, MaxSlotsBoundWhateverIsAskedFor) {
  Paper paper;
  paper.host("a");
  paper.options.hosts.front().max_slots = 2;
  paper.options.num_proc = 2;
  EXPECT_EQ(paper.plan().world_size, 2);
  paper.options.num_proc = 3;
  EXPECT_EQ(paper.refusal().what, "requested 3 processes on a, which allows only 2");
  EXPECT_EQ(paper.refusal().id, "IVY-P001");
}

TEST(PlanTest, RanksToShowMustExist) {
  const struct {
    std::vector<int> ranks;
    bool local;
    const char* refused;  // What is refused, or empty.
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
  for (const auto& [ranks, local, refused, warned] : cases) {
    Paper paper;
    paper.hosts("a:2,b:2");
    paper.options.show_ranks.all = false;
    paper.options.show_ranks.local = local;
    paper.options.show_ranks.ranks = ranks;
    const JobPlan plan = paper.plan();
    EXPECT_EQ(paper.refusals.empty() ? "" : paper.refusals[0].what, refused);
    EXPECT_EQ(plan.warnings.empty() ? "" : plan.warnings[0].what, warned);
    if (!paper.refusals.empty() && !local) {
      EXPECT_EQ(paper.refusals[0].cause, "the job has 4 ranks: 0-3");
      EXPECT_EQ(paper.refusals[0].exit_code, kExitUsage);
    }
  }
}

TEST(PlanTest, ExitCodesOfAProgramThatCannotRun) {
  const struct {
    int error;
    int exit_code;
  } cases[] = {{ENOENT, kExitNotFound},
               {ENOTDIR, kExitNotFound},
               {EACCES, kExitNotExecutable},
               {EISDIR, kExitNotExecutable},
               {ENOEXEC, kExitNotExecutable}};
  for (const auto& [error, exit_code] : cases) {
    Paper paper;
    paper.host("a");
    HostFacts& facts = paper.host("b");
    facts.set_program_error("cannot");
    facts.set_program_errno(error);
    const Diagnostic refusal = paper.refusal();
    EXPECT_EQ(refusal.exit_code, exit_code) << error;
    EXPECT_EQ(refusal.where, "b");
  }
}

TEST(PlanTest, AMissingInterpreterIs127) {
  Paper paper;
  paper.host("a").set_interpreter_error("python3: not found");
  EXPECT_EQ(paper.refusal().exit_code, kExitNotFound);
}

TEST(PlanTest, ADifferentScriptStopsTheLaunchByName) {
  Paper paper;
  paper.options.command = {"src/train.py"};
  paper.host("node01");
  paper.host("node02").set_program_sha256("bb");
  EXPECT_EQ(paper.refusal().what, "train.py differs on node02");
  EXPECT_EQ(paper.refusal().exit_code, kExitRefused);
  // Most hosts are right, even when the first is not among them.
  paper.host("node03").set_program_sha256("bb");
  EXPECT_EQ(paper.refusal().what, "train.py differs on node01");
}

TEST(PlanTest, OnlyHostsWithWorkersAreChecked) {
  Paper paper;
  paper.host("a");
  paper.host("b").set_program_sha256("bb");
  paper.options.num_proc = 1;
  EXPECT_EQ(paper.placed(), "a:1");
}

TEST(PlanTest, SaysEverythingAtOnce) {
  Paper paper;
  HostFacts& facts = paper.host("a");
  facts.set_program_error("gone");
  facts.set_program_errno(ENOENT);
  facts.set_interpreter_error("gone");
  facts.set_reserved_port(0);
  facts.set_reserved_port_error("bind: Address already in use");
  paper.host("b").set_working_directory_error("gone");
  paper.plan();
  EXPECT_EQ(paper.refusals.size(), 4u);
}

TEST(PlanTest, AMissingDirectoryIsNotAMissingProgramToo) {
  Paper paper;
  HostFacts& facts = paper.host("a");
  facts.set_working_directory_error("gone");
  facts.set_program_error("gone");
  facts.set_program_errno(ENOENT);
  EXPECT_EQ(paper.refusal().id, "IVY-P003");
}

TEST(PlanTest, AnArgumentThatLinuxRefusesIsRefusedBefore) {
  Paper paper;
  paper.host("a");
  paper.options.command = {"train.py", std::string((128u << 10) - 1, 'x')};
  paper.plan();
  EXPECT_TRUE(paper.refusals.empty());
  paper.options.command[1] += "x";
  EXPECT_EQ(paper.refusal().id, "IVY-P012");
}

TEST(PlanTest, SharedAcceleratorsStandInThePlanLine) {
  Paper paper;
  paper.host("a").set_accelerators(2);
  paper.per_host(4);
  EXPECT_TRUE(paper.plan().warnings.empty());
  EXPECT_NE(plan_line(paper.plan()).find("4 workers share 2 accelerators"), std::string::npos);
}

// ---- Where rank 0 is reached -------------------------------------------------------------------

void add_address(HostFacts& facts, const char* interface, const char* address,
                 bool loopback = false) {
  Address* added = facts.add_addresses();
  added->set_interface(interface);
  added->set_address(address);
  added->set_loopback(loopback);
}

TEST(PlanMasterTest, ThisMachineAlone) {
  Paper paper;
  paper.host("localhost", "local");
  EXPECT_EQ(paper.master(), "127.0.0.1:30000");
}

TEST(PlanMasterTest, TheAddressByWhichHost0WasReached) {
  Paper paper;
  paper.host("a");
  paper.host("b");
  EXPECT_EQ(paper.master(), "10.0.0.1:30000");
}

TEST(PlanMasterTest, Host0IsThisMachine) {
  Paper paper;
  paper.host("here", "local");
  paper.host("b");
  EXPECT_EQ(paper.master(), "10.0.0.100:30000");
}

TEST(PlanMasterTest, WithoutAKnownAddressTheFactsDecide) {
  Paper paper;
  HostFacts& facts = paper.host("here", "local");
  add_address(facts, "lo", "127.0.0.1", true);
  add_address(facts, "eth0", "fe80::1");
  add_address(facts, "eth0", "fd00::1");
  add_address(facts, "eth0", "10.1.0.1");
  paper.host("b");
  paper.answers[1].local_address.clear();
  EXPECT_EQ(paper.master(), "10.1.0.1:30000");
  paper.answers[0].facts.clear_addresses();
  EXPECT_EQ(paper.refusal().id, "IVY-P014");
}

TEST(PlanMasterTest, AnInterfaceByName) {
  Paper paper;
  HostFacts& facts = paper.host("a");
  add_address(facts, "eth0", "10.1.0.1");
  add_address(facts, "ib0", "fd00::2");
  paper.options.interface = "ib0";
  EXPECT_EQ(paper.master(), "fd00::2:30000");
  paper.options.interface = "ib1";
  const Diagnostic refusal = paper.refusal();
  EXPECT_EQ(refusal.where, "a");
  EXPECT_EQ(refusal.cause, "eth0 10.1.0.1\nib0 fd00::2");
}

// Two machines, the first with two networks.
struct TwoMachines : Paper {
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
  // --master-addr NAME, which the resolver says is these.
  void named(const std::string& name, std::vector<std::string> addresses = {}) {
    options.master_addr = name;
    options.master_addresses = std::move(addresses);
  }
};

TEST(PlanMasterTest, AWrittenAddressOfTheFirstHostIsTakenBeforeAnInterface) {
  TwoMachines paper;
  paper.options.interface = "none";
  for (const char* address : {"10.9.0.1", "FD00::1"}) {
    paper.named(address);
    EXPECT_EQ(paper.master(), std::string(address) + ":30000");
    EXPECT_TRUE(paper.refusals.empty()) << address;
  }
}

TEST(PlanMasterTest, ANameBecomesTheFirstHostsAddress) {
  TwoMachines paper;
  paper.named("a-ib", {"fd00::1", "10.9.0.1"});
  EXPECT_EQ(paper.master(), "10.9.0.1:30000") << "every framework can use IPv4";
  paper.named("a-ib", {"10.200.0.1", "fd00::1"});
  EXPECT_EQ(paper.master(), "fd00::1:30000");
  // Names of the host itself, whatever the launcher's resolver makes of them.
  for (const char* name : {"a", "A.Cluster"}) {
    paper.named(name, {"127.0.1.1"});
    EXPECT_EQ(paper.master(), "10.0.0.1:30000") << name;
    EXPECT_TRUE(paper.refusals.empty()) << name;
  }
}

TEST(PlanMasterTest, LocalhostIsRightOnOneMachine) {
  Paper paper;
  paper.host("fake0", "local");
  paper.host("fake1", "local");
  for (const char* name : {"localhost", "127.0.0.1"}) {
    paper.options.master_addr = name;
    EXPECT_EQ(paper.master(), "127.0.0.1:30000");
    EXPECT_TRUE(paper.refusals.empty()) << name;
  }
  paper.options.master_addr = "own-name";
  paper.options.master_addresses = {"127.0.1.1"};
  EXPECT_EQ(paper.master(), "127.0.1.1:30000");
}

TEST(PlanMasterTest, ANameOfAnotherHostIsRefused) {
  TwoMachines paper;
  for (const auto& [name, addresses] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"b", {}}, {"b.cluster", {}}, {"other-name", {"10.0.0.2"}}, {"10.0.0.2", {}}}) {
    for (const bool no_store : {false, true}) {
      paper.options.no_store = no_store;
      paper.named(name, addresses);
      const Diagnostic refusal = paper.refusal();
      EXPECT_EQ(refusal.id, "IVY-P022") << name;
      EXPECT_EQ(refusal.what,
                "--master-addr " + name + " is host b, but rank 0 runs on the first host, a");
      EXPECT_NE(refusal.fix.find("-H b,..."), std::string::npos);
    }
  }
}

TEST(PlanMasterTest, AnAddressThatNoHostHasIsRefusedUnlessRank0Serves) {
  TwoMachines paper;
  paper.named("service", {"10.96.0.7"});
  EXPECT_EQ(paper.refusal().what, "--master-addr service is not an address of the first host, a");
  EXPECT_EQ(paper.refusal().cause,
            "service is 10.96.0.7\na has:\neth0 10.0.0.1\nib0 10.9.0.1\nib0 fd00::1");
  paper.options.no_store = true;
  EXPECT_EQ(paper.master(), "10.96.0.7:30000") << "a service or a translated address";
  EXPECT_TRUE(paper.refusals.empty());
  paper.named("nobody");
  paper.options.master_addr_error = "the name nobody has no address: Host not found";
  EXPECT_EQ(paper.refusal().what, "--master-addr nobody has no address");
  EXPECT_EQ(paper.refusal().cause, "the name nobody has no address: Host not found");
}

TEST(PlanMasterTest, ALoopbackAddressIsRefusedAcrossMachines) {
  TwoMachines paper;
  paper.options.interface = "lo";
  EXPECT_EQ(paper.refusal().id, "IVY-P023");
  EXPECT_EQ(paper.refusal().where, "--iface lo");
  EXPECT_EQ(paper.refusal().cause, "a has:\neth0 10.0.0.1\nib0 10.9.0.1\nib0 fd00::1");
  paper.options.interface.clear();
  add_address(paper.answers[0].facts, "eth0", "fe80::1");
  for (const char* address : {"127.0.0.1", "127.3.4.5", "::1", "localhost", "fe80::1%eth0"}) {
    paper.named(address);
    EXPECT_EQ(paper.refusal().id, "IVY-P023") << address;
  }
}

// The other host would reach itself there, and the check between hosts would not notice.
TEST(PlanMasterTest, RefusesAnAddressThatAnotherHostHasToo) {
  TwoMachines paper;
  add_address(paper.answers[0].facts, "docker0", "172.17.0.1");
  add_address(paper.answers[1].facts, "docker0", "172.17.0.1");
  paper.named("172.17.0.1");
  EXPECT_EQ(paper.refusal().id, "IVY-P023");
  EXPECT_NE(paper.refusal().what.find("172.17.0.1, which b also has"), std::string::npos)
      << paper.refusal().what;
  paper.options.master_addr.clear();
  paper.options.interface = "docker0";
  EXPECT_EQ(paper.refusal().id, "IVY-P023");
  paper.options.interface.clear();
  EXPECT_EQ(paper.master(), "10.0.0.1:30000");
}

TEST(PlanMasterTest, SkipsAddressesThatEveryHostHasBehindAGateway) {
  Paper paper;
  for (const char* name : {"a", "b"}) {
    HostFacts& facts = paper.host(name);
    facts.set_boot_id(name);
    add_address(facts, "docker0", "172.17.0.1");
    add_address(facts, "eth0", *name == 'a' ? "10.1.0.1" : "10.1.0.2");
    paper.answers.back().peer_address = "192.0.2.1";
  }
  EXPECT_EQ(paper.master(), "10.1.0.1:30000");
}

TEST(PlanTest, RefusesOneMachineUnderTwoNames) {
  Paper paper;
  for (const char* name : {"node2", "10.77.0.2"}) {
    HostFacts& facts = paper.host(name);
    facts.set_boot_id("1");
    facts.set_host_name("node2");
    add_address(facts, "eth0", "10.0.0.1");
  }
  EXPECT_EQ(paper.refusal().id, "IVY-P038");
  EXPECT_EQ(paper.refusal().what, "node2 and 10.77.0.2 are the same machine");
  for (Host& host : paper.options.hosts) host.fake = true;
  paper.plan();
  EXPECT_TRUE(paper.refusals.empty()) << "pretended hosts";
  for (Host& host : paper.options.hosts) host.fake = false;
  paper.answers[1].facts.set_user("guest");
  paper.plan();
  EXPECT_TRUE(paper.refusals.empty()) << "another user";
  paper.answers[1].facts.clear_user();
  add_address(paper.answers[1].facts, "eth1", "10.0.0.7");
  paper.plan();
  EXPECT_TRUE(paper.refusals.empty()) << "a container with a network of its own";
}

// ssh to a forwarded port of our own machine, as virtual machines are reached.
TEST(PlanMasterTest, AHostBehindAForwardedPortIsReachedByAnAddressOfItsOwn) {
  TwoMachines paper;
  paper.answers[0].peer_address = "127.0.0.1";
  EXPECT_EQ(paper.master(), "10.0.0.1:30000");
  EXPECT_TRUE(paper.refusals.empty());
  // A gateway's address, whose ports lead to the hosts.
  paper.answers[0].peer_address = "192.0.2.1";
  EXPECT_EQ(paper.master(), "10.0.0.1:30000");
  EXPECT_TRUE(paper.refusals.empty());
  paper.answers[0].peer_address = "127.0.0.1";
  // The same machine by two names: its loopback would do, but not its devices.
  paper.answers[1].facts = paper.answers[0].facts;
  EXPECT_EQ(paper.master(), "127.0.0.1:30000");
  EXPECT_EQ(paper.refusal().id, "IVY-P038");
}

TEST(PlanMasterTest, NoPortIsARefusal) {
  Paper paper;
  paper.host("a").set_reserved_port(0);
  paper.answers[0].facts.set_reserved_port_error("bind 29500: Address already in use");
  EXPECT_EQ(paper.refusal().cause, "bind 29500: Address already in use");
}

TEST(PlanTextTest, TheTableNamesHostsRanksAddressesAndTheCommand) {
  Paper paper;
  paper.hosts("node01:2,node02:1");
  paper.options.host_source = "-H";
  paper.options.command.push_back("it's");
  const std::string table = plan_table(paper.options, paper.plan(), paper.answers);
  for (const char* part :
       {"plan: 2 hosts, 3 ranks (slots written for the hosts)", "hosts from: -H",
        "  node01  0     0-1    ssh        10.0.0.1", "  node02  1     2      ssh        10.0.0.2",
        "listens: 10.0.0.1:30000 (",
        "worker: /usr/bin/python3 -u /data/train.py --lr 1 'it'\\''s'"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
}

}  // namespace
}  // namespace ivy
