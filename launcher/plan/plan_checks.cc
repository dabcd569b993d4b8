#include "launcher/plan/plan_checks.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>

#include "launcher/options/option_values.h"
#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/contract/unserved_worlds.h"

namespace ivy {
namespace {

// Linux refuses a longer argument or variable (MAX_ARG_STRLEN, with its final NUL).
constexpr std::size_t kMaxStringBytes = (128u << 10) - 1;

// What program_errno is when a program names an interpreter that is not there, as in the node's
// program_facts; the two sides are always the same build.
constexpr int kInterpreterMissing = ELIBACC;

struct Checker {
  const Options& options;
  const std::vector<HostAnswer>& answers;
  JobPlan& plan;
  std::vector<Diagnostic>& refusals;

  const HostFacts& facts(std::size_t index) const { return answers[index].facts; }
  // Facts of the first of these planned hosts.
  const HostFacts& first_facts(const std::vector<std::string>& names) const {
    const auto host =
        std::find_if(plan.hosts.begin(), plan.hosts.end(),
                     [&](const PlannedHost& planned) { return planned.name == names.front(); });
    IVY_ASSERT(host != plan.hosts.end());
    return facts(host->host_index);
  }
  void refuse(std::string id, int exit_code, std::string what, std::string where, std::string cause,
              std::string fix) {
    refusals.push_back(Diagnostic{Severity::kError, std::move(id), std::move(what),
                                  std::move(where), std::move(cause), std::move(fix), exit_code});
  }
};

// The hosts that said the same thing, for one message about all of them.
using Sayings = std::map<std::string, std::vector<std::string>>;

Sayings sayings(const Checker& checker, const std::function<std::string(const HostFacts&)>& say) {
  Sayings result;
  for (const PlannedHost& host : checker.plan.hosts) {
    const std::string said = say(checker.facts(host.host_index));
    if (!said.empty()) result[said].push_back(host.name);
  }
  return result;
}

void check_directory(Checker& checker) {
  const Sayings said =
      sayings(checker, [](const HostFacts& facts) { return facts.working_directory_error(); });
  for (const auto& [error, names] : said) {
    const std::string user = checker.first_facts(names).user();
    const bool is_denied = error.ends_with(std::strerror(EACCES));
    checker.refuse("IVY-P003", kExitRefused, "the working directory cannot be entered",
                   fold_host_names(names), error,
                   is_denied
                       ? "--wdir DIR, a directory that " + (user.empty() ? "the user" : user) +
                             " may enter there, such as --wdir /tmp"
                       : "make it there, or name another one: --wdir DIR");
  }
}

// "pkg.mod": names of Python, with dots between them.
bool may_be_module(const std::string& program) {
  std::string_view rest = program;
  while (true) {
    const std::string_view name = rest.substr(0, rest.find('.'));
    if (!is_env_name(name)) return false;
    if (name.size() == rest.size()) return true;
    rest.remove_prefix(name.size() + 1);
  }
}

// What a newcomer may have meant by the name of a program that is not there.
std::string not_found_fix(const std::string& program) {
  if (program.find_first_not_of("0123456789") == std::string::npos)
    return "-n " + program + " PROGRAM starts " + program + " workers";
  if (program == "help" || program == "version") return "ivyrun --" + program;
  if (program == "run" || program == "launch") return "ivyrun [flags] program [arguments]";
  const std::size_t equals = program.find('=');
  if (equals != std::string::npos && is_env_name(program.substr(0, equals)))
    return "a variable is given with -x, one for each: -x " + program;
  if (program.find_first_of("|&;<>$`") != std::string::npos)
    return "a shell runs that: ivyrun [flags] sh -c " + quoted_arguments({program});
  if (program.find(' ') != std::string::npos)
    return "this is one word with blanks; remove the quotes: ivyrun [flags] " + program;
  if (program.find('.') != std::string::npos && !program.ends_with(".py") && may_be_module(program))
    return "-m " + program + " if it is a Python module, else write its path";
  if (program.find('/') == std::string::npos && !program.ends_with(".py"))
    return "install it there, or write the path of a program that every host has" +
           std::string(may_be_module(program) ? "\n-m " + program + " if it is a Python module"
                                              : "");
  return "write a path that exists on every host";
}

// "bash run.sh": what runs a text of this name; the program alone where nothing does.
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
    return "a notebook cannot be launched; make a script of it: jupyter nbconvert --to script " +
           program;
  const std::string known = through_interpreter(program);
  switch (facts.program_errno()) {
    case EISDIR:
      return "name a program or a script in it";
    case ENOEXEC:
      return "put its interpreter in front of it: " +
             (known.empty() ? "sh " + program + ", python3 " + program : known) +
             "\nor begin it with a line such as #!/bin/sh or #!/usr/bin/env python3";
    case kInterpreterMissing:
      return "install that interpreter there, or correct the first line of " + path +
             "\nor put the right interpreter in front of it" +
             (known.empty() ? ", such as: python3 " + program : ": " + known);
    default:
      break;
  }
  if (facts.program_is_script())
    return "make it readable for " + (facts.user().empty() ? "its user" : facts.user()) +
           " there: chmod +r " + path;
  return "chmod +x " + path + ", or put its interpreter in front of it: " +
         (known.empty() ? "bash " + program + ", python3 " + program : known);
}

void check_program(Checker& checker) {
  const Sayings said = sayings(checker, [](const HostFacts& facts) {
    // A relative program is missing wherever its directory is: that has been said.
    return facts.working_directory_error().empty() ? facts.program_error() : std::string();
  });
  for (const auto& [error, names] : said) {
    const HostFacts& facts = checker.first_facts(names);
    const std::string where = fold_host_names(names);
    if (facts.program_errno() == ENOENT || facts.program_errno() == ENOTDIR) {
      // The host may have found what was meant: its message ends with it.
      const std::size_t advice = error.rfind(": write ");
      checker.refuse("IVY-P004", kExitNotFound, "program not found: " + checker.plan.program, where,
                     error,
                     advice == std::string::npos ? not_found_fix(checker.plan.program)
                                                 : error.substr(advice + 2));
      continue;
    }
    checker.refuse("IVY-P005", kExitNotExecutable, "program cannot be run: " + checker.plan.program,
                   where, error, cannot_run_fix(facts, checker.plan.program));
  }
}

// N workers that find no peers would each do the whole work and end well.
void check_worlds(Checker& checker) {
  const int workers = checker.plan.world_size;
  if (workers < 2 || checker.options.allow_singletons) return;
  const auto refuse = [&](const UnservedWorld& world, const std::string& what,
                          const std::string& where, const std::string& cause) {
    checker.refuse(
        "IVY-P024", kExitRefused,
        what + ": each of the " + std::to_string(workers) + " workers would be a world of one",
        where, cause,
        std::string(world.instead) + "\n--allow-singletons, if each worker is meant to be alone");
  };
  const std::string backend = profile_name(checker.options.profile);
  if (const UnservedWorld* world = world_of_backend(backend); world != nullptr)
    return refuse(*world, "-B " + backend + " is not served yet", "",
                  "ivyrun does not connect the workers of " + std::string(world->name));
  const Sayings said =
      sayings(checker, [](const HostFacts& facts) { return facts.program_library(); });
  for (const auto& [library, names] : said) {
    const UnservedWorld* world = world_of_library(library);
    if (world == nullptr) continue;
    refuse(*world,
           checker.plan.program + " is a program of " + std::string(world->name) +
               ", which ivyrun does not serve yet",
           fold_host_names(names), checker.first_facts(names).program_path() + " links " + library);
  }
}

void check_interpreter(Checker& checker) {
  const Sayings missing =
      sayings(checker, [](const HostFacts& facts) { return facts.interpreter_error(); });
  for (const auto& [error, names] : missing)
    checker.refuse("IVY-P006", kExitNotFound, "no interpreter for " + checker.plan.program,
                   fold_host_names(names), error,
                   "install Python there, or name the interpreter: --python PATH");
  const Sayings versions =
      sayings(checker, [](const HostFacts& facts) { return facts.interpreter_version(); });
  if (versions.size() < 2) return;
  std::string cause;
  for (const auto& [version, names] : versions)
    cause += (cause.empty() ? "" : "\n") + version + " on " + fold_host_names(names);
  checker.plan.warnings.push_back(
      Diagnostic{Severity::kWarning, "IVY-P008", "hosts have different versions of the interpreter",
                 "", cause, "--python PATH names one that is equal everywhere", 0});
}

// The text that most hosts have counts as right; among equals, the first host's.
void check_script(Checker& checker) {
  const Sayings hashes =
      sayings(checker, [](const HostFacts& facts) { return facts.program_sha256(); });
  if (hashes.size() < 2) return;
  std::string right = checker.facts(checker.plan.hosts.front().host_index).program_sha256();
  for (const auto& [hash, names] : hashes)
    if (!hashes.contains(right) || names.size() > hashes.at(right).size()) right = hash;
  std::vector<std::string> others;
  for (const PlannedHost& host : checker.plan.hosts) {
    const std::string& hash = checker.facts(host.host_index).program_sha256();
    if (!hash.empty() && hash != right) others.push_back(host.name);
  }
  const std::string& name = checker.plan.program;
  checker.refuse("IVY-P007", kExitRefused,
                 name.substr(name.rfind('/') + 1) + " differs on " + fold_host_names(others),
                 checker.facts(checker.plan.hosts.front().host_index).program_path(),
                 "its content is not that of " + fold_host_names(hashes.at(right)),
                 "copy the same file to every host, or use a shared directory");
}

void check_arguments(Checker& checker) {
  for (std::size_t i = 0; i < checker.plan.arguments.size(); ++i) {
    if (checker.plan.arguments[i].size() <= kMaxStringBytes) continue;
    checker.refuse("IVY-P012", kExitRefused,
                   "argument " + std::to_string(i) + " has " +
                       std::to_string(checker.plan.arguments[i].size()) + " bytes, Linux allows " +
                       std::to_string(kMaxStringBytes),
                   "", checker.plan.arguments[i].substr(0, 60) + "...", "put it into a file");
  }
}

// "there are no ranks 0-2,5" for {0,1,2,5}, "there is no rank 9" for {9}; the numbers are sorted.
std::string absent_text(const std::vector<int>& ranks) {
  // A longer list would not be read.
  constexpr std::size_t kMostBytes = 80;
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    if (text.size() > kMostBytes) {
      text += ",...";
      break;
    }
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "there is no rank " : "there are no ranks ") + text;
}

// --show-ranks with ranks that this job does not have: nothing at all would be shown, or less than
// is hoped for.
void check_shown_ranks(Checker& checker) {
  const ShowRanks& shown = checker.options.show_ranks;
  std::size_t count = static_cast<std::size_t>(checker.plan.world_size);
  if (shown.local) count = 0;
  for (const PlannedHost& host : checker.plan.hosts)
    if (shown.local) count = std::max(count, host.workers.size());
  const auto absent =
      std::lower_bound(shown.ranks.begin(), shown.ranks.end(), static_cast<int>(count));
  if (shown.all || absent == shown.ranks.end()) return;
  const std::string flag = shown.local ? "--local-ranks-filter" : "--show-ranks";
  const std::string last = std::to_string(count - 1);
  const std::string what = flag + ": " + absent_text({absent, shown.ranks.end()});
  const std::string fix = flag + (count == 1 ? " 0" : " with ranks from 0 to " + last);
  const std::string cause = std::string(shown.local ? "each host has at most " : "the job has ") +
                            std::to_string(count) + (shown.local ? " local rank" : " rank") +
                            (count == 1 ? "" : "s") + (count == 1 ? ": 0" : ": 0-" + last);
  if (absent == shown.ranks.begin()) {
    checker.refuse("IVY-P016", kExitUsage, what, "", cause, fix);
  } else {
    checker.plan.warnings.push_back(
        Diagnostic{Severity::kWarning, "IVY-P016", what, "", cause, fix, 0});
  }
}

}  // namespace

void check_plan(const Options& options, const std::vector<HostAnswer>& answers, JobPlan& plan,
                std::vector<Diagnostic>& refusals) {
  Checker checker{options, answers, plan, refusals};
  check_directory(checker);
  check_program(checker);
  check_worlds(checker);
  check_interpreter(checker);
  check_script(checker);
  check_arguments(checker);
  check_shown_ranks(checker);
}

}  // namespace ivy
