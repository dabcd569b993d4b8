// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_help.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <utility>

#include "launcher/options/option_table.h"
#include "launcher/options/option_values.h"
#include "launcher/options/other_launchers.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/pages/completions.h"

namespace ivy {
namespace {

using enum OptionGroup;

struct Topic {
  OptionGroup group;
  std::string_view name;
  std::string_view title;
};

constexpr Topic kTopics[] = {
    {kPlacement, "placement", "Hosts, workers and accelerators"},
    {kCommand, "program", "The program and its environment"},
    {kOutput, "output", "Output"},
    {kLifecycle, "endings", "Time limits, failures and restarts"},
    {kNetwork, "network", "Network and transports"},
    {kDiagnosis, "diagnosis", "Plan, configuration and help"},
};

// The flags that `ivyrun --help` lists.
constexpr std::string_view kDaily[] = {
    "hosts",     "hostfile",     "num-proc",      "nproc-per-node", "nnodes", "fake-hosts",
    "module",    "python",       "wdir",          "stage",          "export", "label",
    "log-dir",   "name",         "verbose",       "timeout",        "detach", "dry-run",
    "transport", "max-restarts", "stall-timeout", "help",           "version"};

PageOption page_option(const OptionEntry& entry) {
  PageOption option;
  for (const std::string_view alias : words_of(entry.aliases)) {
    if (alias.size() == 2) {
      option.spellings.emplace_back(alias);
    } else {
      option.aliases.emplace_back(alias);
    }
  }
  // The help shows only one of several spellings.
  while (option.spellings.size() > 1) {
    option.aliases.push_back(option.spellings.back());
    option.spellings.pop_back();
  }
  option.spellings.push_back("--" + std::string(entry.name));
  option.value = entry.value;
  option.text = entry.text;
  option.is_daily = std::find(std::begin(kDaily), std::end(kDaily), entry.name) != std::end(kDaily);
  return option;
}

// ivyrun's own exit codes. docs/endings-and-exit-codes.md lists them for users.
struct ExitCodeRow {
  int code;
  std::string_view meaning;
  int other_code = 0;
};

constexpr ExitCodeRow kExitCodes[] = {
    {kExitUsage, "wrong command line"},
    {kExitPreempted, "stopped before the end of Slurm job or pod"},
    {kExitNoProgress, "restarts make no progress"},
    {kExitFetchFailed, "files of --fetch missing"},
    {kExitHostsNotUp, "hosts not reachable"},
    {kExitHostLost, "host or supervisor lost"},
    {kExitRejected, "rejected by a check"},
    {kExitStalled, "no progress (--on-stall stop)"},
    {kExitTimeout, "--timeout reached"},
    {kExitInternal, "internal error of ivyrun"},
    {kExitNotExecutable, "program not executable"},
    {kExitNotFound, "program not found"},
    {128 + SIGINT, "interrupted", 128 + SIGTERM},
    {kExitOutputClosed, "standard output was closed (`| head`)"},
};

// Returns the list of exit codes in two columns, and what else is printed after all flags.
std::string closing_text() {
  constexpr std::size_t kColumn = 31;
  std::string text = "Exit code: that of the worker that failed first (128 + N for signal N), or\n";
  bool is_left = true;
  for (const ExitCodeRow& row : kExitCodes) {
    std::string cell = std::to_string(row.code);
    if (row.other_code != 0) cell += ", " + std::to_string(row.other_code);
    cell += " " + std::string(row.meaning);
    if (is_left) cell.resize(std::max(cell.size() + 1, kColumn), ' ');
    text += (is_left ? "  " : "") + cell + (is_left ? "" : "\n");
    is_left = !is_left;
  }
  if (!is_left) text += "\n";
  return text +
         "If a job fails, the last line on standard error names the source of its code.\n"
         "Pages such as docs/hangs.md are in share/doc/ivyrun, next to the bin of ivyrun.\n"
         "`ivyctl explain ID` explains a message, such as IVY-H003.\n";
}

std::string topics_text() {
  std::string text = "all";
  for (const Topic& topic : kTopics) text += ", " + std::string(topic.name);
  return text;
}

}  // namespace

CommandPage ivyrun_page() {
  CommandPage page;
  page.name = "ivyrun";
  page.summary = "launch one worker per accelerator on every host";
  page.usages = {"ivyrun [flags] program [arguments]"};
  page.description =
      "Runs one process per GPU on every host and sets up rank, world size and rendezvous. Labels "
      "their output, reports which rank failed first and why, and cleans up completely.\n"
      "Put flags before the program; `-` and `_` in their names are alike. The default of a flag "
      "can be set by IVY_<FLAG>, such as IVY_HOSTS, or in a config file.";
  page.examples = {{"ivyrun -n 4 train.py --lr 3e-4", "four workers here"},
                   {"ivyrun -H 'node[01-04]' --nproc_per_node 8 train.py", "eight on each host"},
                   {"ivyrun --fake-hosts 2 --nproc_per_node 2 train.py", "two simulated hosts"}};
  page.width = help_width();
  for (const Topic& topic : kTopics) {
    PageSection& section = page.sections.emplace_back();
    section.topic = topic.name;
    section.title = topic.title;
    for (const OptionEntry& entry : option_table())
      if (entry.group == topic.group && entry.kind == OptionKind::kHonoured)
        section.options.push_back(page_option(entry));
  }
  page.closing = closing_text();
  return page;
}

std::string short_help() {
  constexpr std::pair<std::string_view, std::string_view> kFlags[] = {
      {"-H LIST", "hosts in rank order: node01,node02 or node01:8,node02:8"},
      {"-n N", "number of workers in total; --nproc-per-node N: on each host"},
      {"-x K=V", "set a variable for the workers; -m: the program is a module"},
      {"--dry-run", "connect, check and print the plan; --log-dir DIR keeps output"},
      {"--help", "common flags; --help all: every flag"}};
  constexpr std::size_t kFlagColumn = 13;
  const std::size_t width = help_width();
  std::string text =
      entry_text("", "ivyrun runs one process per GPU on every host and reports the first failure.",
                 0, width) +
      "\nusage: ivyrun [flags] program [arguments]\n"
      "  ivyrun -n 4 train.py --lr 3e-4\n"
      "  ivyrun -H 'node[01-04]' --nproc_per_node 8 train.py\n\n";
  for (const auto& [typed, what] : kFlags)
    text += entry_text("  " + std::string(typed), what, kFlagColumn, width);
  return text;
}

Result<std::string> help_about(const std::string& topic) {
  const CommandPage page = ivyrun_page();
  if (topic == "all") return help_text(page, HelpLength::kAll);
  if (topic.empty()) {
    CommandPage daily = page;
    daily.closing =
        "More: `ivyrun --help all` (every flag, exit codes), `ivyrun --help FLAG`, or `ivyrun "
        "--help TOPIC`: " +
        topics_text().substr(5) + ".\n";
    return help_text(daily, HelpLength::kDaily);
  }
  if (std::optional<std::string> text = topic_help(page, topic)) return *text;
  return Error{Code::kNotFound, "no help for \"" + topic + "\"",
               "ivyrun --help TOPIC: " + topics_text() + ", or a flag"};
}

Result<std::string> generated_text(const std::string& form) {
  if (form == "coming-from") return coming_from_page();
  if (std::optional<std::string> text = generated_page(ivyrun_page(), form)) return *text;
  return usage_error("--generate makes " + std::string(kGeneratedForms) + ", not \"" + form + "\"");
}

}  // namespace ivy
