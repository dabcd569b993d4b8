// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm/step.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ivy::test {
namespace {

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(SlurmVersion, IsReadFromTheOutputOfSrun) {
  const struct {
    const char* text;
    std::optional<SlurmVersion> version;
  } cases[] = {
      {"slurm-wlm 22.05.8", SlurmVersion{22, 5}},
      {"slurm 23.11.4", SlurmVersion{23, 11}},
      {"slurm 24.05.0-0rc1", SlurmVersion{24, 5}},
      {"slurm 20.02", SlurmVersion{20, 2}},
      {"srun: error: no config", std::nullopt},
      {"", std::nullopt},
      {"slurm 23", std::nullopt},
      {"slurm 23.x", std::nullopt},
  };
  for (const auto& each : cases)
    EXPECT_EQ(parse_slurm_version(each.text), each.version) << each.text;
}

TEST(SrunCommand, RequestsNoResourcesFromTheAllocation) {
  StepRequest request;
  request.hosts = {"node1", "node2", "node3"};
  request.script = "the script";
  const struct {
    std::optional<SlurmVersion> version;
    bool external;
    bool overlap;
  } cases[] = {
      {SlurmVersion{26, 5}, true, false},  {SlurmVersion{23, 11}, true, false},
      {SlurmVersion{23, 2}, false, true},  {SlurmVersion{22, 5}, false, true},
      {SlurmVersion{20, 11}, false, true}, {SlurmVersion{20, 2}, false, false},
      {std::nullopt, false, true},
  };
  for (const auto& each : cases) {
    request.version = each.version;
    const std::vector<std::string> words = srun_command(request);
    EXPECT_EQ(words.front(), "srun");
    EXPECT_EQ(has(words, "--external-launcher"), each.external);
    EXPECT_EQ(has(words, "--overlap"), each.overlap);
    EXPECT_EQ(has(words, "--whole"), each.overlap);
    EXPECT_EQ(has(words, "--mem=0"), each.overlap);
    for (const char* const word :
         {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--mpi=none", "--cpu-bind=none",
          "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--input=all", "--export=ALL"})
      EXPECT_TRUE(has(words, word)) << word;
    EXPECT_FALSE(has(words, "--nodelist=node[1-3]"));
    EXPECT_EQ(words.back(), "the script");
  }
}

TEST(SrunCommand, NamesHostsThatAreNotTheWholeAllocation) {
  StepRequest request;
  request.hosts = {"node3", "node1"};
  request.is_whole_allocation = false;
  EXPECT_TRUE(has(srun_command(request), "--nodelist=node[3,1]"));
}

TEST(SrunCommand, PlacesTheUsersArgumentsLast) {
  StepRequest request;
  request.hosts = {"a"};
  request.extra_arguments = {"--mpi=pmix", "--time=5"};
  request.script = "s";
  const std::vector<std::string> words = srun_command(request);
  const auto ours = std::find(words.begin(), words.end(), "--mpi=none");
  const auto theirs = std::find(words.begin(), words.end(), "--mpi=pmix");
  EXPECT_LT(ours, theirs);
  EXPECT_EQ(std::vector<std::string>(words.end() - 4, words.end()),
            (std::vector<std::string>{"--time=5", "/bin/sh", "-c", "s"}));
}

TEST(SrunEnvironment, OmitsVariablesThatSrunReads) {
  Environment caller;
  for (const char* const name :
       {"SLURM_NTASKS",       "SLURM_NTASKS_PER_NODE", "SLURM_NPROCS",     "SLURM_CPUS_PER_TASK",
        "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK",   "SLURM_CPU_BIND",   "SLURM_CPU_BIND_TYPE",
        "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU",     "SLURM_GPUS",       "SLURM_GPUS_PER_TASK",
        "SLURM_DISTRIBUTION", "SLURM_EXCLUSIVE",       "SLURM_LABELIO",    "SLURM_KILL_BAD_EXIT",
        "SLURM_WAIT",         "SLURM_HOSTFILE",        "SLURM_EXPORT_ENV", "SLURM_TIMELIMIT"}) {
    caller.push_back({name, "1"});
    EXPECT_TRUE(is_hidden_from_srun(name)) << name;
  }
  EXPECT_TRUE(srun_environment(caller, false).empty());
  const Environment kept = {{"SLURM_JOB_ID", "7"},
                            {"SLURM_JOBID", "7"},
                            {"SLURM_CONF", "/x"},
                            {"SLURM_CLUSTER_NAME", "c"},
                            {"SLURM_JOB_NODELIST", "n"},
                            {"SLURM_GPUS_ON_NODE", "4"},
                            {"PATH", "/bin"},
                            {"HOME", "/h"}};
  EXPECT_EQ(srun_environment(kept, false), kept);
}

TEST(SrunEnvironment, OmitsDeviceMasksOfThisHost) {
  const Environment caller = {{"CUDA_VISIBLE_DEVICES", "0,1"}, {"ROCR_VISIBLE_DEVICES", "0"}};
  EXPECT_TRUE(srun_environment(caller, false).empty());
  EXPECT_EQ(srun_environment(caller, true), caller);
}

// srun may not start with a vendor's libraries; ivy-node gets them back.
TEST(SrunEnvironment, HidesTheUsersLibrariesFromSrun) {
  const Environment caller = {{"LD_LIBRARY_PATH", "/opt/x"}, {"LD_PRELOAD", "/opt/y.so"}};
  EXPECT_EQ(srun_environment(caller, true),
            (Environment{{"IVY_LD_LIBRARY_PATH", "/opt/x"}, {"IVY_LD_PRELOAD", "/opt/y.so"}}));
}

TEST(StepScript, QuotesArguments) {
  const std::string script =
      step_script("/opt/it's here/ivy-node", "x86_64", "ivy-node 1 build x", "abc");
  EXPECT_TRUE(script.starts_with(
      "p='/opt/it'\\''s here/ivy-node' m='x86_64' v='ivy-node 1 build x' h='abc' "));
}

// Returns the output of the step script if its input is empty.
std::string run_step_script(const std::filesystem::path& home,
                            const std::string& own_binary = "/nowhere/ivy-node",
                            const std::string& own_architecture = "x86_64") {
  std::ofstream(home / "script") << step_script(own_binary, own_architecture, "v", "abc");
  const std::string command =
      "HOME=" + home.string() + " XDG_CACHE_HOME= sh " + home.string() + "/script < /dev/null 2>&1";
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe));
  pclose(pipe);
  return text;
}

TEST(StepShell, RunsOnlyOwnedFilesAndNoLinks) {
  std::string name = (std::filesystem::temp_directory_path() / "ivy-step-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const std::filesystem::path home = name;
  utsname machine{};
  uname(&machine);
  const std::filesystem::path cache = home / ".cache/ivyrun";
  const std::filesystem::path build = cache / (std::string("abc-") + machine.machine);
  std::filesystem::create_directories(build);
  std::filesystem::permissions(cache, std::filesystem::perms{0700});
  std::ofstream(build / "ivy-node") << "#!/bin/sh\nprintf 'ran %s' \"$1\"\n";
  std::filesystem::permissions(build / "ivy-node", std::filesystem::perms{0755});
  const auto write_size = [&](std::uintmax_t bytes) {
    std::ofstream(build / "sizes") << "ivy-node\n" << bytes << " ivy-node\n";
  };
  write_size(std::filesystem::file_size(build / "ivy-node") + 1);
  EXPECT_NE(run_step_script(home).find("ivy:need"), std::string::npos) << "it is truncated";
  write_size(std::filesystem::file_size(build / "ivy-node"));
  EXPECT_EQ(run_step_script(home), "ran dial");
  std::filesystem::permissions(cache, std::filesystem::perms{0770});
  EXPECT_NE(run_step_script(home).find("ivy:need"), std::string::npos) << "others may write there";
  std::filesystem::permissions(cache, std::filesystem::perms{0700});
  std::filesystem::rename(build, home / "planted");
  std::filesystem::create_directory_symlink(home / "planted", build);
  EXPECT_NE(run_step_script(home).find("ivy:need"), std::string::npos);
  std::filesystem::remove(build);
  std::filesystem::create_directories(build);
  std::filesystem::create_symlink(home / "planted/ivy-node", build / "ivy-node");
  EXPECT_NE(run_step_script(home).find("ivy:need"), std::string::npos);
  std::filesystem::remove_all(home);
}

TEST(StepShell, RunsTheLaunchersProgramOnlyOnItsArchitecture) {
  std::string name = (std::filesystem::temp_directory_path() / "ivy-step-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const std::filesystem::path home = name;
  const std::filesystem::path own = home / "ivy-node";
  std::ofstream(own)
      << "#!/bin/sh\ncase $1 in --version) echo v;; *) printf 'ran %s' \"$1\";; esac\n";
  std::filesystem::permissions(own, std::filesystem::perms{0755});
  utsname machine{};
  uname(&machine);
  EXPECT_EQ(run_step_script(home, own, machine.machine), "ran dial");
  EXPECT_NE(run_step_script(home, own, "sparc64").find("ivy:need"), std::string::npos);
  std::filesystem::remove_all(home);
}

TEST(StepScript, CountsTheBytesAfterTheHeader) {
  const std::string header = bundle_header("x86_64", "cafe", 123, 45);
  const std::size_t newline = header.find('\n');
  EXPECT_EQ(header.substr(0, newline),
            "bundle x86_64 123 cafe " + std::to_string(header.size() - newline - 1));
}

TEST(StepAnswer, IsFoundInTheOutputOfHosts) {
  const std::optional<StepAnswer> need = parse_step_answer("noise\001ivy:need x86_64 node3");
  ASSERT_TRUE(need);
  EXPECT_EQ(need->kind, StepAnswer::Kind::kNeed);
  EXPECT_EQ(need->architecture, "x86_64");
  EXPECT_EQ(need->node, "node3");
  const std::optional<StepAnswer> fail = parse_step_answer("\001ivy:fail node3 /tmp: no room; x");
  ASSERT_TRUE(fail);
  EXPECT_EQ(fail->kind, StepAnswer::Kind::kFail);
  EXPECT_EQ(fail->node, "node3");
  EXPECT_EQ(fail->text, "/tmp: no room; x");
  for (const char* const line : {"", "hello", "ivy:need x86_64 node3", "\001ivy:need",
                                 "\001ivy:need x", "\001ivy:fail", "\001ivy:ready"})
    EXPECT_FALSE(parse_step_answer(line)) << line;
}

TEST(SrunWords, ParsesTasksThatHaveExited) {
  const struct {
    const char* line;
    std::vector<std::string> nodes;
    const char* how;
  } cases[] = {
      {"srun: error: node1: task 0: Exited with exit code 4", {"node1"}, "Exited with exit code 4"},
      {"srun: error: node[2-3]: tasks 1-2: Killed", {"node2", "node3"}, "Killed"},
      {"srun: error: n1,gpu[01-02]: tasks 0-2: Segmentation fault (core dumped)",
       {"n1", "gpu01", "gpu02"},
       "Segmentation fault (core dumped)"},
      {"srun: node4: task 3: Terminated", {"node4"}, "Terminated"},
  };
  for (const auto& each : cases) {
    const std::optional<TasksEnded> ended = parse_tasks_ended(each.line);
    ASSERT_TRUE(ended) << each.line;
    EXPECT_EQ(ended->nodes, each.nodes);
    EXPECT_EQ(ended->how, each.how);
  }
  for (const char* const line :
       {"srun: error: Unable to create step for job 5: Invalid job id specified",
        "node1: task 0: x", "srun: error: node[1-: task 0: Killed", "srun: error: node1: task 0",
        ""})
    EXPECT_FALSE(parse_tasks_ended(line)) << line;
}

TEST(SrunWords, ParsesMessagesOfHosts) {
  const std::optional<HostMessage> words =
      parse_host_message("ivy-node: n3: cannot reach the launcher (10.0.0.1:7: refused)");
  ASSERT_TRUE(words);
  EXPECT_EQ(words->node, "n3");
  EXPECT_EQ(words->text, "cannot reach the launcher (10.0.0.1:7: refused)");
  for (const char* const line : {"", "ivy-node: x", "srun: error: n3: x", "ivy-node"})
    EXPECT_FALSE(parse_host_message(line)) << line;
}

TEST(SrunWords, ExplainsFailuresOfSrun) {
  const struct {
    const char* printed;
    const char* message;
    const char* fix;
  } cases[] = {
      {"srun: unrecognized option '--external-launcher'\nTry \"srun --help\" for more "
       "information\n",
       "unrecognized option '--external-launcher'", "--srun-args"},
      {"srun: cluster configuration lacks support for cpu binding\n"
       "srun: error: Unable to create step for job 9: Job/step already completing or completed\n",
       "already completing", ""},
      {"srun: error: Unable to create step for job 9: Invalid job id specified\n", "Invalid job id",
       "new sbatch or salloc"},
      {"srun: error: node1: task 0: Killed\nslurmstepd-node1: error: *** STEP 3.0 ON node1 "
       "CANCELLED "
       "AT 2026-01-01T00:00:00 ***\n",
       "CANCELLED AT", "cancelled"},
      {"srun: error: Unable to contact slurm controller (connect failure)\n", "slurm controller",
       "slurmctld"},
      {"srun: error: Unable to create step for job 9: Required node not available (down, drained "
       "or reserved)\n",
       "(down, drained or reserved)", "scontrol show node"},
      {"", "srun exited (exit 1)", ""},
  };
  for (const auto& each : cases) {
    const Error error = srun_failure(each.printed, "exited (exit 1)");
    EXPECT_NE(error.message.find(each.message), std::string::npos) << error.message;
    EXPECT_NE(error.fix.find(each.fix), std::string::npos) << error.fix;
  }
}

TEST(SrunWords, RecognizesWaitingAndNoise) {
  EXPECT_TRUE(is_waiting_for_resources(
      "srun: Job 5 step creation temporarily disabled, retrying (Requested nodes are busy)"));
  EXPECT_TRUE(is_waiting_for_resources("srun: Job 5 step creation still disabled, retrying (x)"));
  EXPECT_FALSE(is_waiting_for_resources("srun: Step created for job 5"));
  EXPECT_NE(why_srun_waits("srun: Job 5 step creation temporarily disabled, retrying (Requested "
                           "nodes are busy)")
                .find("--overlap"),
            std::string::npos);
  EXPECT_EQ(why_srun_waits("srun: Job 5 step creation temporarily disabled, retrying (Job prolog "
                           "is still running)"),
            "");
  EXPECT_TRUE(is_srun_noise("srun: cluster configuration lacks support for cpu binding"));
}

}  // namespace
}  // namespace ivy::test
