// SPDX-License-Identifier: Apache-2.0
// check_plan() at the end lists the checks. A check groups the hosts by their problem
// (hosts_by_text()), so that one message covers all hosts that have the same one.
#include "launcher/plan/plan_checks.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "launcher/plan/app_plan.h"
#include "launcher/plan/worker_ports.h"
#include "launcher/report/folded_ranks.h"
#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/python_command.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Linux rejects a longer argument or variable (MAX_ARG_STRLEN, including the final NUL).
constexpr std::size_t kMaxStringBytes = (128u << 10) - 1;

// Value of program_errno for a program whose interpreter is missing, as in the node's
// program_facts; both sides are always the same build.
constexpr int kInterpreterMissing = ELIBACC;

void check_directory(PlanContext& context) {
  const HostsByText groups = hosts_by_text(
      context, [](const HostFacts& facts) { return facts.working_directory_error(); });
  for (const auto& [error, names] : groups) {
    const std::string user = first_facts(context, names).user();
    const bool is_denied = error.ends_with(std::strerror(EACCES));
    context.reject({.id = "IVY-P003",
                    .what = "the working directory cannot be entered",
                    .where = fold_host_names(names),
                    .cause = error,
                    .fix = is_denied ? "use --wdir DIR with a directory that " +
                                           (user.empty() ? "the user" : user) +
                                           " can enter there, such as --wdir /tmp"
                                     : "create it there, or choose another one: --wdir DIR"});
  }
}

void check_container(PlanContext& context) {
  if (context.options.container.empty()) return;
  const HostsByText failed =
      hosts_by_text(context, [](const HostFacts& facts) { return facts.container_error(); });
  for (const auto& [error, names] : failed)
    context.reject({.id = "IVY-P050",
                    .what = "the container cannot be started: " + context.options.container,
                    .where = fold_host_names(names),
                    .cause = error,
                    .fix = first_facts(context, names).container_fix()});
  const HostsByText runtimes =
      hosts_by_text(context, [](const HostFacts& facts) { return facts.container(); });
  if (runtimes.empty()) return;
  context.plan.container_text = "in " + runtimes.begin()->first + " containers";
  if (runtimes.size() == 1) return;
  std::string cause;
  for (const auto& [runtime, names] : runtimes)
    cause += (cause.empty() ? "" : "\n") + runtime + " on " + fold_host_names(names);
  context.reject({.id = "IVY-P051",
                  .what = "hosts would use different container runtimes",
                  .cause = cause,
                  .fix = "choose one that all of them have: --container-runtime NAME"});
}

// Returns true for a name that could be a Python module: "pkg.mod".
bool may_be_module(const std::string& program) {
  std::string_view rest = program;
  while (true) {
    const std::string_view name = rest.substr(0, rest.find('.'));
    if (!is_env_name(name)) return false;
    if (name.size() == rest.size()) return true;
    rest.remove_prefix(name.size() + 1);
  }
}

// Suggests what a new user may have meant by the name of a missing program.
std::string not_found_fix(const std::string& program) {
  if (program.find_first_not_of("0123456789") == std::string::npos)
    return "-n " + program + " PROGRAM starts " + program + " workers";
  if (program == "help" || program == "version") return "ivyrun --" + program;
  if (program == "run" || program == "launch") return "ivyrun [flags] program [arguments]";
  const std::size_t equals = program.find('=');
  if (equals != std::string::npos && is_env_name(program.substr(0, equals)))
    return "pass variables with -x, one flag for each: -x " + program;
  if (program.find_first_of("|&;<>$`") != std::string::npos)
    return "run it in a shell: ivyrun [flags] sh -c " + quoted_arguments({program});
  if (program.find(' ') != std::string::npos)
    return "this is a single word with spaces; remove the quotes: ivyrun [flags] " + program;
  if (program.find('.') != std::string::npos && !program.ends_with(".py") && may_be_module(program))
    return "use -m " + program + " if it is a Python module, otherwise write its path";
  if (program.find('/') == std::string::npos && !program.ends_with(".py"))
    return "install it there, or write the path of a program that every host has" +
           std::string(may_be_module(program)
                           ? "\nor use -m " + program + " if it is a Python module"
                           : "");
  return "write a path that exists on every host";
}

// Returns "bash run.sh" for a script with a known suffix, otherwise only the program.
std::string through_interpreter(const std::string& program) {
  constexpr std::pair<std::string_view, std::string_view> kEndings[] = {
      {".sh", "bash"}, {".bash", "bash"}, {".zsh", "zsh"},   {".csh", "csh"},  {".py", "python3"},
      {".pl", "perl"}, {".rb", "ruby"},   {".R", "Rscript"}, {".jl", "julia"}, {".lua", "lua"}};
  for (const auto& [ending, interpreter] : kEndings)
    if (program.ends_with(ending)) return std::string(interpreter) + " " + program;
  return "";
}

std::string cannot_run_fix(const HostFacts& facts, const std::string& program) {
  const std::string& path = facts.program_path();
  if (program.ends_with(".ipynb"))
    return "a notebook cannot be launched; convert it to a script: jupyter nbconvert --to script " +
           program;
  const std::string known = through_interpreter(program);
  switch (facts.program_errno()) {
    case EISDIR:
      return "give the path of a program or script in it";
    case ENOEXEC:
      return "put its interpreter before it: " +
             (known.empty() ? "sh " + program + ", python3 " + program : known) +
             "\nor start it with a line such as #!/bin/sh or #!/usr/bin/env python3";
    case kInterpreterMissing:
      return "install that interpreter there, or correct the first line of " + path +
             "\nor put the right interpreter before it" +
             (known.empty() ? ", such as: python3 " + program : ": " + known);
    default:
      break;
  }
  if (facts.program_is_script())
    return "make it readable for " + (facts.user().empty() ? "its user" : facts.user()) +
           " there: chmod +r " + path;
  return "chmod +x " + path + ", or put its interpreter before it: " +
         (known.empty() ? "bash " + program + ", python3 " + program : known);
}

void check_program(PlanContext& context) {
  const HostsByText groups = hosts_by_text(context, [](const HostFacts& facts) {
    // If the working directory is missing, so is a relative program; that was reported already.
    return facts.working_directory_error().empty() ? facts.program_error() : std::string();
  });
  for (const auto& [error, names] : groups) {
    const HostFacts& facts = first_facts(context, names);
    const std::string where = fold_host_names(names);
    if (facts.program_errno() == ENOENT || facts.program_errno() == ENOTDIR) {
      // The host may have found the intended program; its message then ends with that.
      const std::size_t advice = error.rfind(": write ");
      context.reject({.id = "IVY-P004",
                      .what = "program not found: " + context.plan.program,
                      .where = where,
                      .cause = error,
                      .fix = advice == std::string::npos ? not_found_fix(context.plan.program)
                                                         : error.substr(advice + 2),
                      .exit_code = kExitNotFound});
      continue;
    }
    context.reject({.id = "IVY-P005",
                    .what = "program cannot be run: " + context.plan.program,
                    .where = where,
                    .cause = error,
                    .fix = cannot_run_fix(facts, context.plan.program),
                    .exit_code = kExitNotExecutable});
  }
}

void check_interpreter(PlanContext& context) {
  const HostsByText missing =
      hosts_by_text(context, [](const HostFacts& facts) { return facts.interpreter_error(); });
  for (const auto& [error, names] : missing) {
    // The host may have found another interpreter; its message then ends with that.
    const std::size_t advice = error.rfind(": write ");
    context.reject({.id = "IVY-P006",
                    .what = "no interpreter for " + context.plan.program,
                    .where = fold_host_names(names),
                    .cause = error.substr(0, advice),
                    .fix = advice == std::string::npos
                               ? "install Python there, or choose an interpreter: --python PATH"
                               : error.substr(advice + 2),
                    .exit_code = kExitNotFound});
  }
  const HostsByText versions =
      hosts_by_text(context, [](const HostFacts& facts) { return facts.interpreter_version(); });
  if (versions.size() < 2) return;
  std::string cause;
  for (const auto& [version, names] : versions)
    cause += (cause.empty() ? "" : "\n") + version + " on " + fold_host_names(names);
  context.warn({.id = "IVY-P008",
                .what = "hosts have different versions of the interpreter",
                .cause = cause,
                .fix = "choose one that is the same everywhere: --python PATH"});
}

// Returns the program that a first line names: "uv" for "/usr/bin/env -S uv run --script".
std::string named_program(std::string_view line) {
  while (!line.empty()) {
    const std::string_view word = take_part(line, ' ');
    const std::string_view name = word.substr(word.rfind('/') + 1);
    if (name.empty() || name == "env" || name.starts_with('-')) continue;
    if (name.find('=') != std::string_view::npos) continue;
    return std::string(name);
  }
  return {};
}

// Warns if a script's first line names another program than Python, because ivyrun runs it with the
// Python that it has chosen.
void check_first_line(PlanContext& context) {
  const HostFacts& facts = context.facts(context.plan.hosts.front());
  if (!facts.program_is_script() || !context.options.python.empty()) return;
  std::string line = RemoteText(facts.program_first_line()).line();
  line.erase(0, std::min(line.find_first_not_of(' '), line.size()));
  const std::string named = named_program(line);
  if (named.empty() || named.starts_with("python") || named.starts_with("pypy")) return;
  context.warn({.id = "IVY-P039",
                .what = "the script's first line names " + named,
                .where = facts.program_path(),
                .cause = "ivyrun runs it with " + facts.interpreter() + ", not by #!" + line,
                .fix = "use --no-python to run it as its first line says, or choose a Python with "
                       "--python PATH"});
}

// The text that most hosts have counts as correct; among equals, the first host's.
void check_script(PlanContext& context) {
  const HostsByText hashes =
      hosts_by_text(context, [](const HostFacts& facts) { return facts.program_sha256(); });
  if (hashes.size() < 2) return;
  std::string right = context.facts(context.plan.hosts.front()).program_sha256();
  for (const auto& [hash, names] : hashes)
    if (!hashes.contains(right) || names.size() > hashes.at(right).size()) right = hash;
  std::vector<std::string> others;
  for (const PlannedHost& host : context.plan.hosts) {
    const std::string& hash = context.facts(host).program_sha256();
    if (!hash.empty() && hash != right) others.push_back(host.name);
  }
  const std::string& name = context.plan.program;
  context.reject(
      {.id = "IVY-P007",
       .what = name.substr(name.rfind('/') + 1) + " differs on " + fold_host_names(others),
       .where = context.facts(context.plan.hosts.front()).program_path(),
       .cause = "its content differs from the copy on " + fold_host_names(hashes.at(right)),
       .fix = "copy the same file to every host, or use a shared directory\n"
              "if it was saved just now: a network file system may show the old file for a "
              "minute"});
}

void check_arguments(PlanContext& context) {
  for (std::size_t i = 0; i < context.plan.arguments.size(); ++i) {
    if (context.plan.arguments[i].size() <= kMaxStringBytes) continue;
    context.reject({.id = "IVY-P012",
                    .what = "argument " + std::to_string(i) + " has " +
                            std::to_string(context.plan.arguments[i].size()) +
                            " bytes, but Linux allows only " + std::to_string(kMaxStringBytes),
                    .cause = context.plan.arguments[i].substr(0, 60) + "...",
                    .fix = "put its text into a file"});
  }
}

// Returns "there are no ranks 0-2,5" for {0,1,2,5} and "there is no rank 9" for {9}.
std::string absent_text(const std::vector<int>& ranks) {
  // A longer list would not be read.
  constexpr std::size_t kMaxBytes = 80;
  std::string text = folded_ranks(ranks);
  if (text.size() > kMaxBytes) text = text.substr(0, text.rfind(',', kMaxBytes)) + ",...";
  return (ranks.size() == 1 ? "there is no rank " : "there are no ranks ") + text;
}

// Checks for ranks that this job does not have: nothing, or less than intended, would be shown,
// wrapped or given the input. With --nnodes MIN:MAX a rank may come back with its host.
void check_named_ranks(PlanContext& context, const ShowRanks& wanted, const std::string& flag) {
  std::size_t count = static_cast<std::size_t>(context.plan.world_size);
  if (wanted.local) count = 0;
  for (const PlannedHost& host : context.plan.hosts)
    if (wanted.local) count = std::max(count, host.workers.size());
  const auto absent =
      std::lower_bound(wanted.ranks.begin(), wanted.ranks.end(), static_cast<int>(count));
  if (wanted.all || absent == wanted.ranks.end()) return;
  const std::string last = std::to_string(count - 1);
  const std::string what = flag + ": " + absent_text({absent, wanted.ranks.end()});
  const std::string fix = "use " + flag + (count == 1 ? " 0" : " with ranks from 0 to " + last);
  const std::string cause = std::string(wanted.local ? "each host has at most " : "the job has ") +
                            std::to_string(count) + (wanted.local ? " local rank" : " rank") +
                            (count == 1 ? "" : "s") + (count == 1 ? ": 0" : ": 0-" + last);
  const bool may_come = std::any_of(context.answers.begin(), context.answers.end(),
                                    [](const HostAnswer& answer) { return !answer.is_present; });
  if (absent == wanted.ranks.begin() && !may_come) {
    context.reject(
        {.id = "IVY-P016", .what = what, .cause = cause, .fix = fix, .exit_code = kExitUsage});
  } else {
    context.warn({.id = "IVY-P016", .what = what, .cause = cause, .fix = fix});
  }
}

// Returns why the workers cannot be forked from a process that has imported modules; it completes
// "the workers ...". Empty if they can.
std::string preload_obstacle(const PlanContext& context) {
  const Options& options = context.options;
  if (!options.container.empty()) return "run in containers";
  if (options.app == App::kRoles) return "are started with the processes of --app or --role";
  if (!options.wrap.empty()) return "run under --wrap";
  if (context.plan.mpi.pmi || context.plan.mpi.pmix) return "join MPI before Python starts";
  const auto command = python_options(context.plan.arguments);
  return command.ok() ? "" : command.error().message;
}

}  // namespace

void check_preload(PlanContext& context) {
  if (context.options.preload.empty()) return;
  const std::string why = preload_obstacle(context);
  context.plan.preloads = why.empty();
  if (why.empty()) return;
  context.warn({.id = "IVY-P070",
                .what = "--preload has no effect: the workers " + why,
                .fix = "leave out --preload, or pass ivyrun a Python script or module"});
}

void check_plan(PlanContext& context) {
  check_container(context);
  check_directory(context);
  check_program(context);
  check_interpreter(context);
  check_first_line(context);
  check_script(context);
  check_arguments(context);
  const ShowRanks& wanted = context.options.show_ranks;
  check_named_ranks(context, wanted, wanted.local ? "--local-ranks-filter" : "--show-ranks");
  check_named_ranks(context, context.options.wrap_ranks, "--wrap-ranks");
  const InputChoice& input = context.options.input;
  if (input.kind == InputChoice::Kind::kRank)
    check_named_ranks(context, ShowRanks{.all = false, .ranks = {input.rank}}, "--stdin");
  check_worker_ports(context);
  check_app_plan(context);
}

}  // namespace ivy
