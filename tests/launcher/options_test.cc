// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "launcher/options/option_help.h"
#include "launcher/options/option_table.h"
#include "launcher/options/option_values.h"
#include "launcher/options/transport_kind.h"
#include "proto/contract/build.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/limits.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

using Words = std::vector<std::string>;

Result<ParsedCommandLine> parse(const Words& words, const Environment& environment = {}) {
  return parse_command_line(words, environment);
}

// Parses a command line that must be valid.
Options options_of(const Words& words, const Environment& environment = {}) {
  Result<ParsedCommandLine> parsed = parse(words, environment);
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message);
  return parsed.ok() ? std::move(parsed->options) : Options{};
}

Error error_of(const Words& words, const Environment& environment = {}) {
  const Result<ParsedCommandLine> parsed = parse(words, environment);
  EXPECT_FALSE(parsed.ok()) << words.front();
  return parsed.ok() ? Error{} : parsed.error();
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    char name[] = "/tmp/ivy_options_XXXXXX";
    const int fd = mkstemp(name);
    EXPECT_GE(fd, 0);
    path_ = name;
    std::ofstream(path_) << content;
    ::close(fd);
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// ---- Five traps of the parser ---------------------------------------------------------------

TEST(OptionsTest, AcceptsShortWordsWithOneDash) {
  EXPECT_EQ(options_of({"-np", "4", "x"}).num_proc, 4);
  EXPECT_EQ(options_of({"-np=4", "x"}).num_proc, 4);
  EXPECT_EQ(options_of({"-ppn", "2", "x"}).per_host.number, 2);
  EXPECT_EQ(options_of({"-host", "a,b", "x"}).hosts.size(), 2u);
  EXPECT_EQ(options_of({"-wdir", "/", "x"}).working_directory, "/");
}

TEST(OptionsTest, AcceptsOneDashBeforeALongName) {
  for (const Words& words : {Words{"-nproc_per_node", "2", "x"}, Words{"-nproc-per-node=2", "x"},
                             Words{"-num_gpus", "2", "x"}, Words{"-ntasks_per_node", "2", "x"}})
    EXPECT_EQ(options_of(words).per_host.number, 2) << words.front();
  EXPECT_EQ(options_of({"-nnodes", "2", "x"}).num_nodes, 2);
  EXPECT_EQ(options_of({"-master_port", "29501", "x"}).port_low, 29501);
  EXPECT_TRUE(options_of({"-raw", "x"}).raw);
  EXPECT_EQ(options_of({"-tee", "3", "x"}).command, Words{"x"});
  EXPECT_EQ(error_of({"-nnodes", "-quiet", "x"}).message,
            "-nnodes needs a value, but -quiet follows");
  EXPECT_EQ(error_of({"-nnodes"}).fix, "-nnodes N|MIN:MAX");
}

TEST(OptionsTest, DoesNotTakeAMistypedLongNameForALetterWithAValue) {
  const std::pair<Words, const char*> cases[] = {
      {{"-nproc", "2", "x"}, "did you mean --nproc-per-node?"},
      {{"-nproc_per_nod", "2", "x"}, "did you mean --nproc-per-node?"},
      {{"-nnode", "2", "x"}, "did you mean --nnodes?"},
      {{"-Host", "a", "x"}, "did you mean --host?"},
      {{"-NP", "4", "x"}, "did you mean -np?"},
      {{"--Nproc_Per_Node=2", "x"}, "did you mean --nproc-per-node?"},
      {{"--nproc", "2", "x"}, "did you mean --nproc-per-node?"},
      {{"--nproc_per", "2", "x"}, "did you mean --nproc-per-node?"},
      {{"--log", "d", "x"}, "did you mean --log-dir?"},
      {{"--env-fil", "d", "x"}, "did you mean --env-file?"},
      {{"-help1", "x"}, "did you mean --help?"}};
  for (const auto& [words, fix] : cases) {
    const Error error = error_of(words);
    EXPECT_EQ(error.fix, fix) << words.front();
    EXPECT_EQ(
        error.message.find("unknown flag " + words.front().substr(0, words.front().find('='))), 0u)
        << error.message;
  }
  // A single letter, or a word unlike all names, is not a typo.
  for (const char* far : {"-Z", "-k", "--zzz", "-mzpkg"})
    EXPECT_TRUE(contains(error_of({far, "x"}).fix, "ivyrun --help")) << far;
}

TEST(OptionsTest, DoesNotTakeTypographicDashesAndGluedValuesForPrograms) {
  for (const char* flag : {"\u2013n", "\u2014nproc_per_node", "\u2212n", "\u2010\u2010help"})
    EXPECT_TRUE(contains(error_of({flag, "2", "x"}).message, "starts with a typographic dash"));
  EXPECT_EQ(options_of({"--", "\u2013n"}).command, Words{"\u2013n"});
  EXPECT_EQ(options_of({"\u2026"}).command, Words{"\u2026"});
  for (const char* flag : {"-n 2", "--nproc_per_node 2"}) {
    EXPECT_EQ(error_of({flag, "x"}).message, "unknown flag \"" + std::string(flag) + "\"");
    EXPECT_TRUE(contains(error_of({flag, "x"}).fix, "two words")) << flag;
  }
}

TEST(OptionsTest, NeverTakesAMistypedFlagForTheProgram) {
  const Error error = error_of({"--bogus", "1", "train.py"});
  EXPECT_EQ(error.message, "unknown flag --bogus");
  EXPECT_EQ(error_of({"--npoc-per-node", "2", "x"}).fix, "did you mean --nproc-per-node?");
  EXPECT_EQ(error_of({"--nproc_per_nod=2", "x"}).fix, "did you mean --nproc-per-node?");
  EXPECT_EQ(error_of({"--hostflie", "f", "x"}).fix, "did you mean --hostfile?");
  EXPECT_EQ(error_of({"--dryrun", "x"}).fix, "did you mean --dry-run?");
  EXPECT_TRUE(contains(error_of({"--" + std::string(5000, 'x'), "x"}).fix, "--help"));
  EXPECT_EQ(error_of({"-Z", "x"}).message, "unknown flag -Z");
}

TEST(OptionsTest, NamesInvisibleCharacters) {
  EXPECT_EQ(error_of({"--nproc-per-node\u00a02", "x"}).message,
            "unknown flag \"--nproc-per-node<U+00A0>2\"");
  EXPECT_TRUE(contains(error_of({"-n", "2\u200b", "x"}).message, "\"2<U+200B>\" is not"));
  EXPECT_TRUE(contains(error_of({"--transport", "ssh\u3000", "x"}).message, "\"ssh<U+3000>\""));
  const Result<ParsedCommandLine> by_variable = parse({"x"}, {{"IVY_TIMEOUT", "\ufeff9"}});
  ASSERT_FALSE(by_variable.ok());
  EXPECT_TRUE(contains(by_variable.error().message, "\"<U+FEFF>9\" is not"));
}

TEST(OptionsTest, TreatsDashAndUnderscoreAlike) {
  EXPECT_EQ(options_of({"--nproc_per_node", "2", "x"}).per_host.number, 2);
  EXPECT_EQ(options_of({"--nproc-per-node=2", "x"}).per_host.number, 2);
  EXPECT_EQ(options_of({"--nproc_per-node=2", "x"}).per_host.number, 2);
  // Only in names: values and the program's own flags are not changed.
  const Options options = options_of({"--log_dir=a_b", "x", "--batch_size", "2"});
  EXPECT_EQ(options.log_dir, "a_b");
  EXPECT_EQ(options.command, (Words{"x", "--batch_size", "2"}));
}

TEST(OptionsTest, StopsReadingFlagsAtTheProgram) {
  const Options options = options_of({"-n", "2", "train.py", "-n", "5", "--help", "--", "-x"});
  EXPECT_EQ(options.num_proc, 2);
  EXPECT_EQ(options.command, (Words{"train.py", "-n", "5", "--help", "--", "-x"}));
}

TEST(OptionsTest, EndsTheFlagsAtTwoDashesAndDropsThem) {
  EXPECT_EQ(options_of({"-n", "2", "--", "-prog", "a"}).command, (Words{"-prog", "a"}));
  EXPECT_EQ(options_of({"--", "prog", "--", "a"}).command, (Words{"prog", "--", "a"}));
}

TEST(OptionsTest, KeepsTheBytesOfArguments) {
  const Words command = {"prog", "", "a b", "\xff\xfe", "new\nline", "'\"$(x)", "[1,2]", "{}"};
  Words words = {"-n", "1"};
  words.insert(words.end(), command.begin(), command.end());
  EXPECT_EQ(options_of(words).command, command);
}

TEST(OptionsTest, AcceptsClusteredShortFlags) {
  const Options options = options_of({"-qvvn4", "-lt3", "x"});
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.verbose, 2);
  EXPECT_EQ(options.num_proc, 4);
  EXPECT_EQ(options.label, "rank");
  EXPECT_EQ(options_of({"-xA=-b", "x"}).exports, Words{"A=-b"});
  EXPECT_EQ(options_of({"-n=3", "x"}).num_proc, 3);
}

// ---- Values
// --------------------------------------------------------------------------------------

TEST(OptionsTest, NoticesAForgottenValue) {
  EXPECT_EQ(error_of({"--log-dir"}).message, "--log-dir needs a value");
  const Error error = error_of({"--log-dir", "--quiet", "x"});
  EXPECT_EQ(error.message, "--log-dir needs a value, but --quiet follows");
  EXPECT_EQ(error.fix, "if --quiet is the value, write --log-dir=--quiet");
  EXPECT_EQ(error_of({"--log-dir=", "x"}).message, "--log-dir has an empty value");
  EXPECT_EQ(options_of({"--ssh-args=-v -p 3", "x"}).ssh_args, (Words{"-v", "-p", "3"}));
  EXPECT_EQ(options_of({"--ssh-args", "-oX=y", "x"}).ssh_args, Words{"-oX=y"});
}

TEST(OptionsTest, NamesTheFlagOfAWrongValueAsTyped) {
  EXPECT_EQ(error_of({"-np", "x", "p"}).message, "-np: \"x\" is not a number from 1 to 262144");
  EXPECT_EQ(error_of({"-n", "0", "p"}).message, "-n: \"0\" is not a number from 1 to 262144");
  EXPECT_EQ(error_of({"-n", "0", "p"}).fix, "");
  EXPECT_EQ(error_of({"-n", "gpu", "p"}).fix,
            "--nproc-per-node gpu, which counts the workers of each host");
  EXPECT_EQ(error_of({"--color", "red", "p"}).message,
            "--color: \"red\" is not one of auto, always, never");
  EXPECT_EQ(error_of({"--timeout", "soon", "p"}).message,
            "--timeout: \"soon\" is not a time such as 90, 1.5s, 250ms, 30m, 1h30m or 01:30:00");
  EXPECT_FALSE(options_of({"--timeout", "0", "p"}).timeout.has_value());
  EXPECT_EQ(error_of({"--label", "prog", "x"}).message, "--label: \"prog\" is not a label");
  EXPECT_EQ(error_of({"--label", "%r %z", "x"}).message,
            "--label: \"%z\" is not a placeholder of a label");
  EXPECT_EQ(error_of({"--timestamps=iso", "x"}).message,
            "--timestamps takes no value: \"iso\" is not true or false");
  EXPECT_EQ(error_of({"--timestamps=iso", "x"}).fix, "write --timestamps");
  EXPECT_EQ(error_of({"-t", "10", "x"}).message,
            "-t: \"10\" is not 0, 1 (standard output), 2 (standard error) or 3 (both), or one of "
            "them for each local rank, such as 0:3,1:2");
  for (const Words& words :
       {Words{"--fanout", "0", "p"}, Words{"--ssh-port", "70000", "p"}, Words{"--stdin", "-1", "p"},
        Words{"--stdin", "one", "p"}, Words{"--transport", "pdsh", "p"},
        Words{"--nnodes", "0", "p"}, Words{"--raw=perhaps", "p"}})
    EXPECT_EQ(error_of(words).code, Code::kInvalidArgument);
}

TEST(OptionsTest, ParsesEveryValue) {
  const auto words = words_of(
      "-H a:2,b -n 3 --nnodes 2 --python /opt/py --wdir /data -x A --export B=c --env-file e1 "
      "--env_file e2 --stdin none --label %r: --color always --show-ranks 0-1 --log-dir logs "
      "--log-to both --raw --timestamps --console-overflow drop -q -v --start-timeout 5 "
      "--timeout 1h --shutdown-timeout 2s --lease 3s --iface eth0 --port-range 1000-2000 "
      "--master-addr 10.0.0.1 --transport ssh --ssh-port 2222 --ssh-command=ssh --fanout 8 "
      "--dry-run prog");
  const Options options = options_of(Words(words.begin(), words.end()));
  EXPECT_EQ(options.hosts.size(), 2u);
  EXPECT_EQ(options.host_source, "-H");
  EXPECT_EQ(options.num_proc, 3);
  EXPECT_EQ(options.num_nodes, 2);
  EXPECT_EQ(options.python, "/opt/py");
  EXPECT_EQ(options.working_directory, "/data");
  EXPECT_EQ(options.exports, (Words{"A", "B=c"}));
  EXPECT_EQ(options.env_files, (Words{"e1", "e2"}));
  EXPECT_EQ(options.input.kind, InputChoice::Kind::kNone);
  EXPECT_EQ(options_of({"--stdin", "3", "p"}).input.rank, 3);
  EXPECT_EQ(options.label, "%r:");
  EXPECT_EQ(options.color, ColorChoice::kAlways);
  EXPECT_EQ(options.show_ranks.ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(options.log_dir, "logs");
  EXPECT_EQ(options.log_to, LogLocation::kBoth);
  EXPECT_TRUE(options.raw && options.timestamps && options.quiet && options.dry_run);
  EXPECT_EQ(options.overflow, OverflowChoice::kDrop);
  EXPECT_EQ(options.verbose, 1);
  EXPECT_EQ(options.start_timeout, std::chrono::seconds(5));
  EXPECT_EQ(options.timeout, std::chrono::hours(1));
  EXPECT_EQ(options.shutdown_timeout, std::chrono::seconds(2));
  EXPECT_EQ(options.lease, std::chrono::seconds(3));
  EXPECT_EQ(options.interface, "eth0");
  EXPECT_EQ(options.port_low, 1000);
  EXPECT_EQ(options.port_high, 2000);
  EXPECT_EQ(options.master_addr, "10.0.0.1");
  EXPECT_EQ(options.transport, TransportChoice::kSsh);
  EXPECT_EQ(options.ssh_port, 2222);
  EXPECT_EQ(options.ssh_command, Words{"ssh"});
  EXPECT_EQ(options.fanout, 8);
  EXPECT_EQ(options.command, Words{"prog"});
}

TEST(OptionsTest, BracketsInValuesAreNotLists) {
  EXPECT_EQ(options_of({"-H", "[::1]", "x"}).hosts[0].name, "::1");
  EXPECT_EQ(options_of({"-H", "n[1-3]", "x"}).hosts.size(), 3u);
  EXPECT_EQ(options_of({"-x", "A=[1,2]", "-x", "B={}", "x"}).exports, (Words{"A=[1,2]", "B={}"}));
  EXPECT_EQ(options_of({"--log-dir", "[a,b]", "x"}).log_dir, "[a,b]");
  EXPECT_EQ(options_of({"--env-file", "[a,b]", "x"}).env_files, Words{"[a,b]"});
}

TEST(OptionsTest, UsesTheLastValue) {
  EXPECT_EQ(options_of({"-n", "1", "--num-proc", "2", "x"}).num_proc, 2);
  EXPECT_EQ(options_of({"-H", "a", "-H", "b", "x"}).hosts.size(), 2u);
}

TEST(OptionsTest, ParsesModuleAndNoPython) {
  EXPECT_EQ(options_of({"-m", "pkg.train", "--lr", "1"}).program_kind, ProgramKind::kModule);
  EXPECT_EQ(options_of({"-m", "pkg.train", "--lr"}).command, (Words{"pkg.train", "--lr"}));
  EXPECT_EQ(options_of({"--no_python", "a.py"}).program_kind, ProgramKind::kExecutable);
  EXPECT_EQ(options_of({"a.py"}).program_kind, ProgramKind::kAuto);
  EXPECT_TRUE(contains(error_of({"-m", "--no-python", "x"}).message, "cannot be used together"));
}

TEST(OptionsTest, RejectsAFileAsAModule) {
  EXPECT_EQ(error_of({"-m", "train.py"}).message, "-m: train.py is a file, not a module");
  EXPECT_EQ(error_of({"-m", "./src/train.py"}).fix,
            "leave out -m, or write the module's name: src.train");
  EXPECT_EQ(options_of({"-m", "train"}).command, Words{"train"});
}

TEST(OptionsTest, NotesAmbiguousCommandLines) {
  const std::pair<Words, const char*> cases[] = {
      {{"torchrun", "x"}, "torchrun is itself a launcher"},
      {{"train.py", "--nproc_per_node=2"}, "--nproc_per_node=2 is passed to the program"},
      {{"hello.py", "-n", "2"}, "-n is passed to the program"},
      {{"uv", "run", "train.py"}, "`uv run ivyrun [flags] PROGRAM`"},
      {{"conda", "run", "-n", "x", "train.py"}, "`ivyrun --activate conda:NAME [flags] PROGRAM`"},
      {{"/opt/bin/micromamba", "run", "train.py"}, "every worker runs micromamba"},
      {{"/usr/bin/mpirun", "x"}, "mpirun is itself a launcher"}};
  for (const auto& [words, note] : cases) {
    const Options options = options_of(words);
    ASSERT_EQ(options.notes.size(), 1u) << words.front();
    EXPECT_TRUE(contains(options.notes[0], note)) << options.notes[0];
  }
  EXPECT_TRUE(options_of({"train.py", "torchrun"}).notes.empty());
  EXPECT_TRUE(options_of({"-n", "1", "uv", "run", "train.py"}).notes.empty());
  EXPECT_TRUE(options_of({"uv", "pip", "list"}).notes.empty());
  EXPECT_TRUE(options_of({"-n", "1", "hello.py", "-n", "2"}).notes.empty());
  EXPECT_TRUE(options_of({"head", "-n", "2"}).notes.empty());
}

TEST(OptionsTest, ParsesTheStagedEnvironment) {
  const Options active = options_of({"--stage-venv", "train.py"});
  EXPECT_TRUE(active.stage);
  EXPECT_EQ(active.stage_venv, StageVenv::kActive);
  EXPECT_EQ(active.command, Words{"train.py"});
  EXPECT_EQ(options_of({"--stage-venv=uv", "train.py"}).stage_venv, StageVenv::kUv);
  EXPECT_EQ(options_of({"--stage", "train.py"}).stage_venv, StageVenv::kNone);
  EXPECT_FALSE(error_of({"--stage-venv=pip", "train.py"}).message.empty());
  EXPECT_TRUE(contains(error_of({"--stage-venv", "--env", "none", "x"}).message, "--env none"));
}

TEST(OptionsTest, RejectsSeveralPrograms) {
  for (const Words& words : {Words{"-np", "2", "a", ":", "-np", "1", "b"},
                             Words{"-np", "2", ":", "-np", "2", "b"}, Words{"a", ":", "b"}})
    EXPECT_TRUE(contains(error_of(words).message, "are not supported")) << words.front();
  EXPECT_EQ(options_of({"--", "a", ":", "b"}).command, (Words{"a", ":", "b"}));
  EXPECT_EQ(options_of({"echo", ":"}).command, (Words{"echo", ":"}));
}

TEST(OptionsTest, NotesHostCountsThatLookLikePorts) {
  const Options options = options_of({"-H", "a:22,b:2222,c:8", "x"});
  ASSERT_EQ(options.notes.size(), 1u);
  EXPECT_TRUE(contains(options.notes[0], "a:22 means 22 workers on a")) << options.notes[0];
}

TEST(OptionsTest, TreatsANumberAfterAForeignSwitchAsItsValue) {
  EXPECT_EQ(options_of({"-K1", "x"}).notes.size(), 1u);
  EXPECT_TRUE(contains(error_of({"-K1x", "x"}).message, "unknown flag -K1x"));
  EXPECT_TRUE(contains(error_of({"-q1", "x"}).message, "unknown flag -q1"));
}

TEST(OptionsTest, NamesSrunsListOfVariablesAsTyped) {
  for (const char* value : {"ALL", "NONE", "ALL,FOO=1", "A,B"}) {
    const Error error = error_of({std::string("--export=") + value, "x"});
    EXPECT_TRUE(error.message.starts_with("--export: ")) << error.message;
  }
  EXPECT_EQ(options_of({"--export", "ALLOWED=1", "-x", "A*", "x"}).exports,
            (Words{"ALLOWED=1", "A*"}));
}

TEST(OptionsTest, NotesAnUnknownVariable) {
  const auto notes_of = [](const Environment& environment) {
    return parse({"x"}, environment)->options.notes;
  };
  ASSERT_EQ(notes_of({{"IVY_HOST", "a"}}).size(), 1u);
  EXPECT_TRUE(contains(notes_of({{"IVY_HOST", "a"}})[0], "did you mean IVY_HOSTS?"));
  EXPECT_TRUE(contains(notes_of({{"IVY_TIMEOUTS", "9"}})[0], "did you mean IVY_TIMEOUT?"));
  EXPECT_TRUE(contains(notes_of({{"IVY_QQQQQQQQ", "9"}})[0], "nothing reads it"));
  EXPECT_TRUE(notes_of({{"IVY_HOSTS", "a"},
                        {"IVY_RANK", "3"},
                        {"IVY_NCCL_ROOTS", "2"},
                        {"IVY_PYTHON", "p"},
                        {"IVYX", "1"},
                        {"PET_FOO", "1"}})
                  .empty());
}

TEST(OptionsTest, MakesARelativeDirectoryAbsolute) {
  const std::string directory = options_of({"--wdir", "sub/../other", "x"}).working_directory;
  EXPECT_EQ(directory, (std::filesystem::current_path() / "other").string());
}

// ---- Other launchers' flags
// -----------------------------------------------------------------------

TEST(OptionsTest, AcceptsAliasesOfOtherLaunchers) {
  for (const char* flag : {"-n", "-np", "--np", "--num-proc", "--num_processes", "--ntasks"})
    EXPECT_EQ(options_of({flag, "3", "x"}).num_proc, 3) << flag;
  for (const char* flag : {"--nproc_per_node", "--npernode", "-npernode", "--ppn", "-ppn",
                           "--ntasks-per-node", "--num_gpus", "--slots-per-host"})
    EXPECT_EQ(options_of({flag, "3", "x"}).per_host.number, 3) << flag;
  for (const char* flag : {"--nnodes", "--num_nodes", "--num_machines", "--nodes"})
    EXPECT_EQ(options_of({flag, "3", "x"}).num_nodes, 3) << flag;
  for (const char* flag : {"--master_port", "--main_process_port"})
    EXPECT_EQ(options_of({flag, "29500", "x"}).port_high, 29500) << flag;
  for (const char* flag : {"-l", "--tag-output", "-prepend-rank", "--label-io"})
    EXPECT_EQ(options_of({flag, "x"}).label, "rank") << flag;
}

TEST(OptionsTest, AcceptsATorchrunCommandLineUnchanged) {
  const Options options = options_of({"--standalone", "--nnodes=1:1", "--nproc_per_node=4",
                                      "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0",
                                      "--rdzv_id=5", "--max_restarts=0", "--monitor_interval", "5",
                                      "--role=default", "--node_rank=0", "--tee", "3", "train.py"});
  EXPECT_EQ(options.per_host.number, 4);
  EXPECT_EQ(options.num_nodes, 1);
  EXPECT_EQ(options.command, Words{"train.py"});
  // standalone, three of rdzv, monitor-interval, node-rank, tee
  EXPECT_EQ(options.notes.size(), 7u);
  EXPECT_TRUE(contains(options.notes.front(), "--standalone is ignored"));
}

TEST(OptionsTest, UsesTheRestartsForReplacementsWithOnFailure) {
  EXPECT_EQ(options_of({"x"}).on_failure, OnFailure::kRestart);
  const Options shrink = options_of({"--on-failure", "shrink", "--max-restarts", "2", "x"});
  EXPECT_EQ(shrink.on_failure, OnFailure::kShrink);
  EXPECT_EQ(shrink.max_restarts, 2);
  EXPECT_EQ(shrink.max_replacements, 0);
  const Options replace = options_of({"--on-failure", "replace", "x"});
  EXPECT_EQ(replace.max_replacements, kDefaultReplacements);
  const Options seven = options_of({"--on_failure=replace", "--max_restarts=7", "x"});
  EXPECT_EQ(seven.max_replacements, 7);
  EXPECT_EQ(seven.max_restarts, 0);
  EXPECT_TRUE(contains(error_of({"--on-failure", "replace", "--max-restarts", "0", "x"}).fix,
                       "--on-failure shrink"));
  EXPECT_TRUE(contains(error_of({"--min-workers", "2", "x"}).message, "--on-failure shrink"));
}

TEST(OptionsTest, ParsesTheChecksOfHosts) {
  EXPECT_FALSE(options_of({"x"}).wants_gate());
  const Options options =
      options_of({"--check", "nvidia-smi -L", "--check=unix:/run/nvhcd.sock", "--check-timeout",
                  "2m", "--expect-gpus", "8", "--check-load", "x"});
  EXPECT_TRUE(options.wants_gate());
  EXPECT_EQ(options.checks, (Words{"nvidia-smi -L", "unix:/run/nvhcd.sock"}));
  EXPECT_EQ(options.check_timeout, std::chrono::minutes(2));
  EXPECT_EQ(options.expect_gpus, 8);
  EXPECT_TRUE(options.check_load);
  const Options by_default = options_of({"--check", "default", "x"});
  EXPECT_TRUE(by_default.wants_gate());
  EXPECT_TRUE(by_default.checks.empty());
  EXPECT_TRUE(options_of({"--expect-gpus", "0", "x"}).wants_gate());
}

TEST(OptionsTest, RejectsChecksThatCannotBeRun) {
  EXPECT_TRUE(contains(error_of({"--check", " ", "x"}).message, "needs a command"));
  EXPECT_TRUE(contains(error_of({"--check", "unix:x.sock", "x"}).message, "must be absolute"));
  EXPECT_TRUE(contains(error_of({"--check-timeout", "5s", "x"}).message, "needs a check"));
  EXPECT_TRUE(
      contains(error_of({"--check", "a", "--check-timeout", "0", "x"}).message, "1 s or more"));
  EXPECT_TRUE(contains(error_of({"--check-load", "--check-timeout", "5s", "x"}).message, "10 s"));
  error_of({"--expect-gpus", "-1", "x"});
  Words many;
  for (int i = 0; i < 33; ++i) many.insert(many.end(), {"--check", "a"});
  many.push_back("x");
  EXPECT_TRUE(contains(error_of(many).message, "more than 32 times"));
  EXPECT_TRUE(contains(error_of({"--check", std::string(9000, 'a'), "x"}).message, "8192 bytes"));
}

TEST(OptionsTest, ParsesRestartsAndStalls) {
  EXPECT_EQ(options_of({"x"}).max_restarts, 0);
  EXPECT_EQ(options_of({"--max_restarts=3", "x"}).max_restarts, 3);
  EXPECT_EQ(options_of({"x"}).stall_timeout, std::chrono::seconds(0));
  EXPECT_EQ(options_of({"--stall-timeout", "1.2s", "x"}).stall_timeout, std::chrono::seconds(2));
  EXPECT_EQ(options_of({"x"}).on_stall, OnStall::kReport);
  EXPECT_EQ(options_of({"--stall-timeout", "9", "--on-stall", "stop", "x"}).on_stall,
            OnStall::kStop);
  EXPECT_TRUE(contains(error_of({"--on-stall", "stop", "x"}).message, "needs --stall-timeout"));
  EXPECT_EQ(options_of({"--rdzv-backend", "static", "x"}).notes.size(), 1u);
}

TEST(OptionsTest, ParsesTheEndOfASlurmJob) {
  const Options none = options_of({"x"});
  EXPECT_FALSE(none.stop_before_end || none.preempt_signal || none.requeue);
  const Options all =
      options_of({"--stop_before_end", "2m", "--preempt-signal", "SIGUSR1", "--requeue", "x"});
  EXPECT_EQ(all.stop_before_end, std::chrono::seconds(120));
  EXPECT_EQ(all.preempt_signal, SIGUSR1);
  EXPECT_TRUE(all.requeue);
  EXPECT_EQ(options_of({"--preempt_signal=usr2", "x"}).preempt_signal, SIGUSR2);
  EXPECT_EQ(none.watch_notices, WatchNotices::kAuto);
  const Options notices = options_of({"--watch-notices", "gcp", "--notice-time", "2m", "x"});
  EXPECT_EQ(notices.watch_notices, WatchNotices::kGcp);
  EXPECT_EQ(notices.notice_time, std::chrono::minutes(2));
  EXPECT_TRUE(contains(error_of({"--notice-time", "11m", "x"}).message, "at most 10m"));
  EXPECT_TRUE(
      contains(error_of({"--preempt-signal", "LOUD", "x"}).message, "unknown signal \"LOUD\""));
  EXPECT_TRUE(contains(error_of({"--preempt-signal", "KILL", "x"}).fix, "USR1"));
  EXPECT_TRUE(contains(error_of({"--stop-before-end", "soon", "x"}).message, "--stop-before-end"));
}

TEST(OptionsTest, CutsTheHostsToNodesAndSpares) {
  const auto cut = [](std::initializer_list<std::string> words) {
    Options options = options_of(Words(words));
    EXPECT_TRUE(cut_to_nodes(options).ok());
    return std::pair(options.hosts.size(), options.spares);
  };
  using Cut = std::pair<std::size_t, int>;
  EXPECT_EQ(cut({"-H", "a,b,c,d", "--nnodes", "2", "x"}), Cut(2, 0));
  EXPECT_EQ(cut({"-H", "a,b,c,d", "--spares", "1", "x"}), Cut(4, 1));
  EXPECT_EQ(cut({"-H", "a,b,c,d", "--nnodes", "2", "--spares", "1", "x"}), Cut(3, 1));
  EXPECT_EQ(cut({"-H", "a,b,c,d", "--nnodes", "2:4", "--spares", "2", "x"}), Cut(4, 2));
  EXPECT_EQ(cut({"-H", "a,b,c,d", "--nnodes", "3", "--pick", "healthiest", "x"}), Cut(4, 1));
  Options few = options_of({"-H", "a,b", "--spares", "2", "x"});
  EXPECT_EQ(cut_to_nodes(few).error().message,
            "--spares 2 needs 3 hosts at least, but only 2 were given");
  few = options_of({"-H", "a,b,c", "--nnodes", "2:3", "--spares", "2", "x"});
  EXPECT_EQ(cut_to_nodes(few).error().message,
            "--nnodes 2:MAX with --spares 2 needs 4 hosts, but only 3 were given");
}

TEST(OptionsTest, ParsesARangeOfHosts) {
  const Options options = options_of({"-H", "a,b,c", "--nnodes", "2:3", "x"});
  EXPECT_EQ(options.min_nodes, 2);
  EXPECT_EQ(options.num_nodes, 3);
  // MAX is only an upper bound. A single number, or MIN equal to MAX, needs every host.
  EXPECT_EQ(options_of({"-H", "a,b", "--nnodes=1:8", "x"}).num_nodes, 8);
  EXPECT_EQ(options_of({"--nnodes=1:4", "x"}).min_nodes, 1);
  EXPECT_EQ(options_of({"-H", "a,b", "--nnodes", "2", "x"}).min_nodes, std::nullopt);
  EXPECT_EQ(options_of({"-H", "a,b", "--nnodes", "2:2", "x"}).min_nodes, std::nullopt);
  EXPECT_EQ(options_of({"-H", "a,b", "--nnodes", "1:2", "--nnodes", "2", "x"}).min_nodes,
            std::nullopt);

  const struct {
    std::vector<std::string> words;
    std::string message;
    std::string fix;
  } rejected[] = {
      {{"-H", "a,b", "--nnodes", "3:2", "x"}, "has a MIN greater than MAX", "--nnodes 2:3"},
      {{"--nnodes", "0:2", "x"}, "", ""},
      {{"--nnodes", "1:", "x"}, "", ""},
      {{"--nnodes", ":2", "x"}, "", ""},
      {{"--nnodes", "1:2:3", "x"}, "", ""},
      {{"-H", "a,b", "--nnodes", "3:4", "x"}, "needs 3 hosts at least, but 2 were given", "-H"},
      {{"-H", "a,b", "--nnodes", "1:2", "-n", "2", "x"}, "-n fixes", "--nproc-per-node N"},
      {{"-H", "a,b", "--nnodes", "1:2", "--detach", "--lease", "60", "x"}, "another launcher", ""},
  };
  for (const auto& row : rejected) {
    EXPECT_TRUE(contains(error_of(row.words).message, row.message)) << row.words[3];
    EXPECT_TRUE(contains(error_of(row.words).fix, row.fix)) << row.words[3];
  }
}

TEST(OptionsTest, RejectsUnsupportedFlagsByName) {
  EXPECT_TRUE(contains(error_of({"-N", "2", "x"}).fix, "--nnodes N or --nproc-per-node N"));
  EXPECT_TRUE(contains(error_of({"--mca", "btl", "tcp", "x"}).fix, "OMPI_MCA_"));
  EXPECT_TRUE(contains(error_of({"-rankfile", "f", "x"}).message, "unknown flag"));
  EXPECT_TRUE(
      contains(error_of({"--rdzv-backend", "etcd", "x"}).message, "\"etcd\" is not supported"));
  EXPECT_TRUE(contains(error_of({"--rdzv_backend=etcd-v2", "x"}).fix, "leave it out"));
  EXPECT_TRUE(contains(error_of({"--max-restarts", "10001", "x"}).message, "0 to 10000"));
  for (const char* flag : {"--min-np", "--gloo", "--gpu-ids", "--start-method", "--no_ssh"})
    EXPECT_TRUE(contains(error_of({flag, "2", "x"}).message, "unknown flag")) << flag;
  EXPECT_TRUE(contains(error_of({"--role", "trainer", "x"}).message, "it has no command"));
  EXPECT_TRUE(contains(error_of({"--mixed_precision", "bf16", "x"}).fix, "ACCELERATE_"));
  EXPECT_TRUE(contains(error_of({"--node-rank", "1", "x"}).message, "started only once"));
  EXPECT_TRUE(contains(error_of({"--machine_rank=2", "x"}).fix, "rank order"));
  EXPECT_TRUE(contains(error_of({"-p", "22", "x"}).fix, "--ssh-port"));
  EXPECT_TRUE(contains(error_of({"-p2222", "x"}).fix, "--ssh-port"));
  const std::pair<const char*, const char*> others[] = {
      {"--world_size", "-n N"},
      {"--deepspeed", "script"},
      {"--master_adress", "--master-address"},
      {"--gpus", "--nproc-per-node"},
      {"--workers", "-n N"},
      {"--gres=gpu:8", "--nproc-per-node N"},
      {"--config-file", "--config FILE"},
      {"--partition", "salloc"},
      {"--time", "--timeout"},
      {"-w", "--hostfile"},
      {"--nodelist=a", "-H"},
      {"-f", "--hostfile"},
      {"-c", "OMP_NUM_THREADS"},
      {"--nprc", "--nproc-per-node"},
      {"-e", "--output 'run-%r.%s'"},
      {"-i", "--stdin"},
      {"--num_cpu_threads_per_process", "OMP_NUM_THREADS"}};
  for (const auto& [flag, fix] : others)
    EXPECT_TRUE(contains(error_of({flag, "2", "x"}).fix, fix)) << flag;
  EXPECT_TRUE(options_of({"--allow-run-as-root", "x"}).notes.empty());
}

TEST(OptionsTest, ParsesRedirectsAndTee) {
  EXPECT_TRUE(contains(error_of({"-r", "3", "x"}).message, "-r needs --log-dir"));
  const Options hidden = options_of({"-r", "3", "--log-dir", "d", "x"});
  EXPECT_EQ(hidden.redirects.of(5), 3);
  EXPECT_TRUE(hidden.notes.empty());
  const Options some = options_of({"-r", "0:3,1:0", "-t", "0:1", "--log-dir", "d", "x"});
  EXPECT_EQ(some.redirects.of(0), 3);
  EXPECT_EQ(some.redirects.of(1), 0);
  EXPECT_EQ(some.tee.of(0), 1);
  EXPECT_TRUE(some.notes.empty());
  EXPECT_EQ(options_of({"-t", "3", "x"}).notes.size(), 1u);
  EXPECT_TRUE(options_of({"-r", "0", "-t", "0", "x"}).notes.empty());
}

TEST(OptionsTest, ParsesTheLocalRanksFilter) {
  const Options options = options_of({"--local-ranks-filter", "0,1", "x"});
  EXPECT_TRUE(options.show_ranks.local);
  EXPECT_EQ(options.show_ranks.ranks, (std::vector<int>{0, 1}));
  EXPECT_TRUE(contains(error_of({"--local-ranks-filter", "0", "--show-ranks", "1", "x"}).message,
                       "cannot be used together"));
}

TEST(OptionsTest, ParsesTheMasterPort) {
  const Options options = options_of({"--master-port", "29501", "x"});
  EXPECT_EQ(options.port_low, 29501);
  EXPECT_EQ(options.port_high, 29501);
  EXPECT_EQ(options_of({"--master-port", "0", "x"}).port_low, 0);
  EXPECT_TRUE(contains(error_of({"--master-port", "1", "--port-range", "1-2", "x"}).message,
                       "cannot be used together"));
  EXPECT_TRUE(contains(error_of({"--stall-timeout", "9", "--no-store", "x"}).message,
                       "cannot be used together"));
}

TEST(OptionsTest, NamesTheReplacementOfRemovedStoreFlags) {
  for (const char* gone : {"--wal=/var/tmp/logs", "--store-wal=here"})
    EXPECT_TRUE(contains(error_of({gone, "x"}).fix, "--max-restarts")) << gone;
  EXPECT_TRUE(contains(error_of({"--store-proxy", "x"}).fix, "the store directly"));
}

// ---- Hosts
// -----------------------------------------------------------------------------------------

TEST(OptionsTest, ReadsTheHostfile) {
  const TemporaryFile file("a slots=2\nb slots=3\n");
  const Options options = options_of({"--hostfile", file.path(), "x"});
  ASSERT_EQ(options.hosts.size(), 2u);
  EXPECT_EQ(options.hosts[1].slots, 3);
  EXPECT_EQ(options.host_source, "hostfile " + file.path());
  EXPECT_TRUE(options.notes.empty());
  for (const std::string& value : {file.path(), "@" + file.path()}) {
    const Options by_flag = options_of({"-H", value, "x"});
    EXPECT_EQ(by_flag.hosts.size(), 2u);
    ASSERT_EQ(by_flag.notes.size(), 1u);
    EXPECT_TRUE(contains(by_flag.notes[0], "read as a hostfile"));
  }
}

TEST(OptionsTest, NeverUsesLocalhostForABrokenHostSource) {
  EXPECT_TRUE(contains(error_of({"--hostfile", "/nowhere/f", "x"}).message,
                       "--hostfile: cannot read /nowhere/f: No such file or directory"));
  EXPECT_TRUE(contains(error_of({"--hostfile", "/tmp", "x"}).message, "is a directory"));
  EXPECT_TRUE(contains(error_of({"-H", "@/nowhere/f", "x"}).message, "cannot read"));
  EXPECT_EQ(error_of({"-H", "a,,b", "x"}).message, "-H, column 3: empty host name before \",\"");
  const TemporaryFile empty("# no host\n");
  EXPECT_TRUE(
      contains(error_of({"--hostfile", empty.path(), "x"}).message, "the file lists no hosts"));
  const TemporaryFile broken("a\nb cores=4\n");
  EXPECT_EQ(error_of({"--hostfile", broken.path(), "x"}).message,
            broken.path() + ":2:3: unknown key \"cores\"");
}

TEST(OptionsTest, DoesNotRunTheCommandOfHostsFromYet) {
  const Options options = options_of({"--hosts-from", "exit 1", "--nnodes", "2:4", "x"});
  EXPECT_EQ(options.hosts_from, "exit 1");
  EXPECT_TRUE(options.hosts.empty());
  EXPECT_EQ(options_of({"x"}, {{"IVY_HOSTS_FROM", "list"}}).hosts_from, "list");
  EXPECT_EQ(options_of({"-H", "a", "x"}, {{"IVY_HOSTS_FROM", "list"}}).hosts_from, "");
  EXPECT_EQ(error_of({"--hosts-from", "list", "-H", "a", "x"}).message,
            "-H and --hosts-from both list hosts");
  EXPECT_TRUE(
      contains(error_of({"--hosts-from", "list", "--nnodes", "2", "--node-rank", "1", "x"}).message,
               "started only once"));
}

TEST(OptionsTest, AcceptsOnlyOneSourceOfHosts) {
  EXPECT_EQ(error_of({"-H", "a", "--fake-hosts", "2", "x"}).message,
            "-H and --fake-hosts both list hosts");
  EXPECT_EQ(options_of({"--fake-hosts", "2", "x"}).hosts[1].name, "fake1");
}

// ---- Environment
// -----------------------------------------------------------------------------------

TEST(OptionsTest, TakesDefaultsFromTheEnvironment) {
  const Environment environment = {{"IVY_HOSTS", "a,b"},        {"IVY_NPROC_PER_NODE", "2"},
                                   {"PET_NPROC_PER_NODE", "8"}, {"PET_NNODES", "2"},
                                   {"IVY_QUIET", "1"},          {"IVY_RAW", "0"},
                                   {"IVY_LABEL", ""},           {"IVY_RANK", "7"}};
  const Options options = options_of({"x"}, environment);
  EXPECT_EQ(options.hosts.size(), 2u);
  EXPECT_EQ(options.per_host.number, 2);
  EXPECT_EQ(options.num_nodes, 2);
  EXPECT_TRUE(options.quiet);
  EXPECT_FALSE(options.raw);
  EXPECT_EQ(options.label, "auto");
}

TEST(OptionsTest, PrefersATypedFlagToTheEnvironment) {
  const Environment environment = {
      {"IVY_HOSTS", "a,b"}, {"IVY_NUM_PROC", "9"}, {"PET_NNODES", "5"}};
  const Options options =
      options_of({"--fake-hosts", "3", "-n", "1", "--nnodes", "2", "x"}, environment);
  EXPECT_EQ(options.hosts.size(), 3u);
  EXPECT_EQ(options.num_proc, 1);
  EXPECT_EQ(options.num_nodes, 2);
}

TEST(OptionsTest, NamesAWrongVariable) {
  EXPECT_EQ(error_of({"x"}, {{"IVY_NUM_PROC", "many"}}).message,
            "IVY_NUM_PROC: \"many\" is not a number from 1 to 262144");
  EXPECT_EQ(error_of({"x"}, {{"IVY_RAW", "maybe"}}).message,
            "IVY_RAW: \"maybe\" is not true or false");
  EXPECT_TRUE(
      contains(error_of({"x"}, {{"PET_MAX_RESTARTS", "some"}}).message, "PET_MAX_RESTARTS"));
}

// ---- Texts
// ------------------------------------------------------------------------------------------

TEST(OptionsTest, ShowsTheShortHelpWithoutArguments) {
  const Result<ParsedCommandLine> parsed = parse({});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->exit_code, kExitUsage);
  const std::string& text = parsed->text_to_print;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 11);
}

TEST(OptionsTest, RejectsFlagsWithoutAProgram) {
  EXPECT_EQ(error_of({"-n", "2", "-q"}).message, "no program given");
  EXPECT_EQ(error_of({"-n", "2", "--"}).fix, "ivyrun -n 2 PROGRAM");
  EXPECT_EQ(error_of({"-H", "node[1-3]"}).fix, "ivyrun -H 'node[1-3]' PROGRAM");
  EXPECT_EQ(error_of({"-x", "./train"}).message,
            "no program given: \"./train\" was taken as the value of -x");
  EXPECT_EQ(error_of({"-x", "./train"}).fix, "-x K[=V] ./train");
  EXPECT_EQ(error_of({"-n2"}).message, "no program given");
  EXPECT_EQ(error_of({""}).message, "the program name is empty");
}

TEST(OptionsTest, ShowsEveryFlagOfTheHelpWithinTheWidth) {
  for (const Words& words :
       {Words{"--help=all"}, Words{"--help", "all"}, Words{"-h", "all", "x"}}) {
    const Result<ParsedCommandLine> parsed = parse(words);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed->exit_code, 0);
    for (const OptionEntry& entry : option_table()) {
      const bool is_shown = contains(parsed->text_to_print, "--" + std::string(entry.name));
      EXPECT_TRUE(is_shown || entry.kind != OptionKind::kHonoured) << entry.name;
    }
    std::istringstream lines(parsed->text_to_print);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(OptionsTest, ShowsAShortHelpUnlessMoreIsRequested) {
  const std::string all = parse({"--help=all"})->text_to_print;
  for (const Words& words :
       {Words{"--help"}, Words{"-h"}, Words{"-help"}, Words{"--help", "x.py"}}) {
    const std::string daily = parse(words)->text_to_print;
    EXPECT_TRUE(contains(daily, "--nproc-per-node") && !contains(daily, "--port-range"));
    EXPECT_LT(daily.size(), all.size() * 2 / 3);
  }
  EXPECT_TRUE(parse({"--help", "output"})->text_to_print.starts_with("Output:\n"));
  EXPECT_TRUE(contains(parse({"--help=lease"})->text_to_print, "--lease TIME"));
  EXPECT_TRUE(contains(parse({"--help", "ppn"})->text_to_print, "--nproc-per-node"));
  EXPECT_EQ(error_of({"--help=frobnicate"}).message, "no help for \"frobnicate\"");
}

TEST(OptionsTest, NamesEveryTopicOfTheHelpInIt) {
  const std::string text = parse({"--help", "help"})->text_to_print;
  for (const PageSection& section : ivyrun_page().sections)
    EXPECT_TRUE(contains(text, section.topic)) << section.topic;
}

TEST(OptionsTest, PrintsTheBuildWithVerboseVersion) {
  EXPECT_EQ(parse({"--version"})->text_to_print, "ivyrun " + std::string(version()) + "\n");
  EXPECT_TRUE(contains(parse({"-V", "-v"})->text_to_print, build_name()));
  EXPECT_EQ(parse({"-V"}, {{"IVY_NUM_PROC", "bad"}})->exit_code, 0);
}

TEST(OptionTableTest, HasUniqueSpellings) {
  std::set<std::string> seen;
  for (const OptionEntry& entry : option_table()) {
    EXPECT_TRUE(seen.insert(entry.name.front() == '-' ? "entry " + std::string(entry.name)
                                                      : "--" + std::string(entry.name))
                    .second)
        << entry.name;
    std::istringstream aliases{std::string(entry.aliases)};
    for (std::string alias; aliases >> alias;) {
      EXPECT_TRUE(seen.insert(alias.substr(0, alias.find('='))).second) << alias;
      EXPECT_EQ(alias.find('_'), std::string::npos) << alias;
      const std::optional<OptionSpelling> found = find_option(alias.substr(0, alias.find('=')));
      ASSERT_TRUE(found.has_value()) << alias;
      EXPECT_EQ(found->entry, &entry) << alias;
    }
    EXPECT_TRUE(!entry.text.empty() || entry.name == "allow-run-as-root") << entry.name;
  }
}

TEST(OptionsTest, ParsesAcceleratorsAndCores) {
  const Options options = options_of({"--visible", "own", "--gpus_per_proc", "2", "-B", "jax",
                                      "--bind-to=core", "--report-bindings", "--oversubscribe",
                                      "--device-env", "A_B", "--device-env", "C", "x"});
  EXPECT_EQ(options.visible, VisibleChoice::kOwn);
  EXPECT_EQ(options.gpus_per_proc, 2);
  EXPECT_EQ(options.profile, Profile::kJax);
  EXPECT_EQ(options.bind_to, BindChoice::kCore);
  EXPECT_TRUE(options.report_bindings && options.oversubscribe);
  EXPECT_EQ(options.device_env, (std::vector<std::string>{"A_B", "C"}));
  EXPECT_EQ(options.map_by, MapChoice::kHost);
  EXPECT_EQ(options_of({"--map-by", "nvlink", "x"}).map_by, MapChoice::kNvlink);
  EXPECT_EQ(options_of({"-map-by", "switch", "x"}).map_by, MapChoice::kSwitch);
  EXPECT_EQ(options_of({"--map-by=slot", "x"}).map_by, MapChoice::kHost);
  EXPECT_TRUE(contains(error_of({"--map-by", "ppr:8:node", "x"}).fix, "--nproc-per-node N"));
  EXPECT_TRUE(contains(error_of({"--map-by", "node", "x"}).message, "host, nvlink, switch"));
  EXPECT_EQ(options_of({"--virtual-local-rank", "x"}).visible, VisibleChoice::kOwn);
  EXPECT_EQ(options_of({"--numa-binding", "node", "x"}).bind_to, BindChoice::kNuma);
  EXPECT_EQ(options_of({"--numa-binding=exclusive", "x"}).bind_to, BindChoice::kCore);
  EXPECT_EQ(options_of({"--bind-cores-to-rank", "x"}).bind_to, BindChoice::kCore);
  EXPECT_EQ(options_of({"--gpus-per-task=4", "x"}).gpus_per_proc, 4);
  EXPECT_TRUE(options_of({"--explain-env", "x"}).dry_run);
  EXPECT_TRUE(contains(error_of({"--bind-to", "hwthread", "x"}).message, "none, core, l3"));
  EXPECT_TRUE(contains(error_of({"-B", "nccl", "x"}).fix, "init_process_group"));
  EXPECT_TRUE(contains(error_of({"--gpus-per-proc", "0", "x"}).message, "gpus-per-proc"));
  EXPECT_TRUE(contains(error_of({"--device-env", "A-B", "x"}).message, "A-B"));
  EXPECT_TRUE(contains(error_of({"--device-env", "RANK", "x"}).message, "RANK is set by ivyrun"));
}

TEST(TransportKind, WaitsForHalfTheLeaseIfTheHostDialsBack) {
  using std::chrono::milliseconds;
  EXPECT_EQ(dial_back_silence(Transport::kSrun, std::nullopt), kLeaseAttended / 2);
  EXPECT_EQ(dial_back_silence(Transport::kJoined, milliseconds(4'000)), milliseconds(2'000));
  EXPECT_EQ(dial_back_silence(Transport::kJoined, milliseconds(600'000)), kLeaseAttended / 2);
}

}  // namespace
}  // namespace ivy
