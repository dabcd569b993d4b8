#include "launcher/options/option_help.h"

#include <algorithm>
#include <iterator>

#include "launcher/options/option_table.h"
#include "launcher/options/option_values.h"
#include "launcher/options/other_launchers.h"
#include "proto/contract/text.h"

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
    {kNetwork, "network", "Network and carriers"},
    {kDiagnosis, "diagnosis", "Plan, configuration and help"},
};

// The flags that `ivyrun --help` shows.
constexpr std::string_view kDaily[] = {
    "hosts",   "hostfile", "num-proc",     "nproc-per-node", "nnodes",        "fake-hosts",
    "visible", "module",   "python",       "wdir",           "export",        "env-file",
    "backend", "label",    "show-ranks",   "log-dir",        "quiet",         "verbose",
    "timeout", "detach",   "max-restarts", "on-failure",     "stall-timeout", "transport",
    "iface",   "dry-run",  "explain-env",  "config",         "events",        "name",
    "help",    "version"};

PageOption page_option(const OptionEntry& entry) {
  PageOption option;
  for (const std::string_view alias : words_of(entry.aliases)) {
    if (alias.size() == 2) {
      option.spellings.emplace_back(alias);
    } else {
      option.aliases.emplace_back(alias);
    }
  }
  // More than one letter: the help shows one.
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

constexpr char kClosing[] =
    "Exit code: that of the worker that failed first (128 + N for signal N), or ivyrun's own:\n"
    "  2 wrong command line     75 stopped before the end of the Slurm job\n"
    "  120 hosts did not come up   121 host or supervisor lost\n"
    "  122 refused by a check   124 --timeout reached       125 a fault of ivyrun's own\n"
    "  126 cannot be executed   127 program not found       130, 143 interrupted\n"
    "  141 stdout was closed by its reader (for example `| head`)\n"
    "After a job that did not end well, the last line on standard error says whose code it is,\n"
    "and `ivyctl explain ID` says more about a message with that ID, such as IVY-H003.\n";

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
      "Starts one worker per accelerator on every host, gives each its rank, world size and "
      "peers,\n"
      "shows what they print, and exits with the code of the worker that failed first.\n"
      "Flags end at the program; `-` and `_` in their names are alike. Every flag takes its "
      "default\n"
      "from IVY_<FLAG>, such as IVY_HOSTS, torchrun's also from PET_<FLAG>, and from config files.";
  page.examples = {
      {"ivyrun -n 4 train.py --lr 3e-4", "four workers on this host"},
      {"ivyrun -H 'node[01-04]' --nproc_per_node 8 train.py", "eight on each of four hosts"},
      {"ivyrun --fake-hosts 2 --nproc_per_node 2 train.py", "two pretended hosts"}};
  for (const Topic& topic : kTopics) {
    PageSection& section = page.sections.emplace_back();
    section.topic = topic.name;
    section.title = topic.title;
    for (const OptionEntry& entry : option_table())
      if (entry.group == topic.group && entry.kind == OptionKind::kHonoured)
        section.options.push_back(page_option(entry));
  }
  page.closing = kClosing;
  return page;
}

std::string short_help() {
  return "ivyrun launches one worker per accelerator on every host and exits with the status of "
         "the\n"
         "first failure.\n"
         "\n"
         "usage: ivyrun [flags] program [arguments]\n"
         "  ivyrun -n 4 train.py --lr 3e-4\n"
         "  ivyrun -H 'node[01-04]' --nproc_per_node 8 train.py\n"
         "\n"
         "  -H LIST  hosts in rank order, with slots if wanted: node01:8,node02:8\n"
         "  -n N     number of workers in all; --nproc-per-node N: on each host\n"
         "  -x K=V   give workers a variable; -m: the program is a Python module\n"
         "  --dry-run connects, checks and prints the plan; --log-dir DIR keeps the output\n"
         "  --help shows the flags of every day, --help all every flag\n";
}

Result<std::string> help_about(const std::string& topic) {
  const CommandPage page = ivyrun_page();
  if (topic == "all") return help_text(page, HelpLength::kAll);
  if (topic.empty()) {
    CommandPage daily = page;
    daily.closing =
        "`ivyrun --help all` shows every flag and the exit codes, `ivyrun --help TOPIC` the flags "
        "of\n"
        "a topic (" +
        topics_text().substr(5) +
        ") or one flag;\n"
        "docs/README.md names a page for every question.\n";
    return help_text(daily, HelpLength::kDaily);
  }
  if (std::optional<std::string> text = topic_help(page, topic)) return *text;
  return Error{Code::kNotFound, "there is no help about \"" + topic + "\"",
               "ivyrun --help TOPIC: " + topics_text() + ", or a flag"};
}

Result<std::string> generated_text(const std::string& form) {
  if (form == "coming-from") return coming_from_page();
  if (std::optional<std::string> text = generated_page(ivyrun_page(), form)) return *text;
  return usage_error("--generate makes " + std::string(kGeneratedForms) + ", not \"" + form + "\"");
}

}  // namespace ivy
