#include "launcher/ctl/ctl_options.h"

#include <algorithm>
#include <iterator>

#include "launcher/ctl/ctl_verbs.h"
#include "launcher/options/flag_values.h"
#include "proto/contract/build.h"
#include "proto/contract/edit_distance.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

template <class T, class Parse>
void add_parsed(CLI::App& app, const std::string& flag, T& place, Parse parse) {
  add_flag_value(app, flag, flag, stored_in(place, parse));
}

void add_display_flags(CLI::App& app, CtlOptions& options) {
  add_parsed(app, "--ranks,--rank", options.ranks, parse_show_ranks);
  add_parsed(app, "--label", options.label, parse_label);
  add_parsed(app, "--color", options.color, parse_colour_choice());
}

void add_ps_flags(CLI::App& app, CtlOptions& options) {
  app.add_flag("--json", options.json);
  app.add_flag("--all-hosts", options.all_hosts);
  app.add_option("-H,--hosts", options.hosts)->take_last();
}

void add_logs_flags(CLI::App& app, CtlOptions& options) {
  app.add_flag("-f,--follow", options.follow);
  add_display_flags(app, options);
}

void add_attach_flags(CLI::App& app, CtlOptions& options) {
  add_parsed(app, "--tail", options.tail_lines,
             [](const std::string& text) { return parse_number(text, 0, 100'000); });
  add_display_flags(app, options);
}

void add_stop_flags(CLI::App& app, CtlOptions& options) {
  app.add_option("-H,--hosts", options.hosts)->take_last();
  app.add_flag("--now", options.now);
  add_parsed(app, "--grace", options.grace, parse_duration);
}

void add_stack_flags(CLI::App& app, CtlOptions& options) {
  app.add_flag("--native", options.native);
  add_parsed(app, "--ranks,--rank", options.ranks, parse_show_ranks);
}

void add_no_flags(CLI::App&, CtlOptions&) {}

struct Verb {
  std::string_view name;
  int (*run)(const CtlOptions& options);
  void (*add_flags)(CLI::App& app, CtlOptions& options);
  std::string_view usage;
  std::string_view text;
  std::string_view more;  // Flags and examples for `ivyctl VERB --help`.
};

constexpr Verb kVerbs[] = {
    {"ps", ctl_ps, add_ps_flags, "ps [-H HOSTS] [--json]", "your jobs on this host",
     "  -H, --hosts LIST what the agents of these hosts know, wherever it was started\n"
     "  --all-hosts      the same for every host of the jobs listed without it\n"
     "  --json           for programs: one object per job\n"
     "\nExamples:\n  ivyctl ps\n  ivyctl ps -H 'node[01-08]'\n  ivyctl ps --json | jq -r "
     "'.[].job'\n"},
    {"logs", ctl_logs, add_logs_flags, "logs [-f] [JOB] [--ranks LIST]",
     "what the workers have printed",
     "  -f, --follow     go on until the job ends\n"
     "  --ranks LIST     only these ranks: 0,8-15\n"
     "  --label KIND     auto, none, rank, host or a template, as for ivyrun\n"
     "  --color WHEN     auto, always, never\n"
     "Reads the files of --log-dir. Without them nothing is kept, and only -f shows anything.\n"
     "\nExamples:\n  ivyctl logs 3f2a --ranks 0\n  ivyctl logs -f\n"},
    {"signal", ctl_signal, add_no_flags, "signal [JOB] SIGNAL",
     "send a signal to each rank's own process",
     "\nExamples:\n  ivyctl signal 3f2a USR1\n  ivyctl signal 3f2a STOP\n"},
    {"stop", ctl_stop, add_stop_flags, "stop [JOB] [-H HOSTS] [--now] [--grace TIME]",
     "stop a job gracefully and wait for its end",
     "  -H, --hosts LIST of a job whose launcher is gone: asks the agents of these hosts\n"
     "  --grace TIME     TERM to KILL, instead of the job's own time\n"
     "  --now            KILL at once\n"
     "A job without a launcher on this host is ended on this host alone.\n"
     "A host of an older version takes the job's own time, and is named.\n"
     "\nExamples:\n  ivyctl stop 3f2a\n  ivyctl stop 3f2a --grace 60\n"
     "  ivyctl stop 3f2a -H 'node[01-08]' --now\n"},
    {"attach", ctl_attach, add_attach_flags, "attach [JOB] [--ranks LIST]",
     "follow a job in the background and exit as it does",
     "  --ranks LIST     only these ranks: 0,8-15\n"
     "  --tail N         begin with the last N lines of each rank's files (default 10)\n"
     "  --label KIND     auto, none, rank, host or a template, as for ivyrun\n"
     "  --color WHEN     auto, always, never\n"
     "Ctrl-C leaves the job alone; `ivyctl stop` ends it.\n"
     "\nExamples:\n  ivyrun --detach -n 4 train.py\n  ivyctl attach\n"},
    {"why", ctl_why, add_no_flags, "why [JOB]",
     "diagnose a hang: which ranks wait, where, and for whom",
     "Says who has not entered the operation or torch collective that others are in; who waits\n"
     "in the job's store, where frameworks meet and a job that hangs often hangs; and where the\n"
     "ranks are (`ivyctl stack` shows all their threads).\n"
     "ivyrun --stall-timeout TIME says the same by itself.\n"
     "\nExamples:\n  ivyctl why\n  ivyctl why 3f2a\n"},
    {"stack", ctl_stack, add_stack_flags, "stack [JOB] [--ranks LIST] [--native]",
     "where the workers are: their stacks, equal ones together",
     "  --ranks LIST     only these ranks: 0,8-15\n"
     "  --native         frames of C and C++ too: py-spy --native or gdb, whichever is there\n"
     "Python workers are asked themselves; others need gdb on their host. Whom a torch collective\n"
     "waits for is said first, by torch's flight record (docs/hangs.md).\n"
     "\nExamples:\n  ivyctl stack\n  ivyctl stack 3f2a --ranks 0-3 --native\n"},
};

constexpr std::string_view kJobText =
    "JOB is the beginning of a job's id; the only job may be left out.\n";

std::string help() {
  std::string text = "ivyctl VERB [JOB]: look after running jobs\n\n";
  for (const Verb& verb : kVerbs)
    text += help_entry("  ivyctl " + std::string(verb.usage), verb.text, 44);
  return text + "\n" + std::string(kJobText) +
         "`ivyctl VERB --help` says more. --version prints the version.\n"
         "\nExamples:\n  ivyctl ps\n  ivyctl logs -f 3f2a\n  ivyctl stop 3f2a\n";
}

std::string help_of(const Verb& verb) {
  return "ivyctl " + std::string(verb.usage) + ": " + std::string(verb.text) + "\n" +
         (verb.usage.find("JOB") == std::string_view::npos ? "" : std::string(kJobText)) +
         std::string(verb.more);
}

// The word that was probably meant; empty when none is near.
template <class Words>
std::string nearest(const std::string& typed, const Words& words) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, typed.size() / 3) + 1;
  for (const std::string& word : words) {
    const std::size_t distance = edit_distance(typed, word);
    if (distance >= best_distance && !(typed.size() > 1 && word.starts_with(typed))) continue;
    best = word;
    best_distance = std::min(distance, best_distance);
  }
  return best;
}

Result<const Verb*> find_verb(const std::string& typed) {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) {
    if (verb.name == typed) return &verb;
    names.emplace_back(verb.name);
  }
  // Names of the same verbs in other tools.
  const std::string habit = typed == "kill" || typed == "cancel" ? "stop"
                            : typed == "list" || typed == "ls"   ? "ps"
                            : typed == "log" || typed == "tail"  ? "logs"
                                                                 : nearest(typed, names);
  return usage_error("there is no verb \"" + typed + "\"",
                     habit.empty() ? "ivyctl --help lists them" : "ivyctl " + habit);
}

Error unknown_flag(const CLI::App& app, const std::string& typed, const Verb& verb) {
  std::vector<std::string> known{"--help"};
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  const std::string near = nearest(typed.substr(0, typed.find('=')), known);
  return usage_error("ivyctl " + std::string(verb.name) + " has no flag " + typed,
                     near.empty() ? "ivyctl " + std::string(verb.name) + " --help" : near);
}

Result<void> take_words(const Verb& verb, std::vector<std::string> words, CtlOptions& options) {
  if (verb.run == ctl_signal) {
    if (words.empty()) return usage_error("which signal?", "ivyctl signal JOB USR1");
    const std::string name = words.back();
    words.pop_back();
    options.signal = signal_number(name);
    if (options.signal == 0)
      return usage_error("\"" + name + "\" is not a signal", "such as USR1, TERM or 10");
  }
  if (verb.run != ctl_ps && !words.empty()) {
    options.job = words.front();
    words.erase(words.begin());
  }
  if (!words.empty())
    return usage_error("what is \"" + words.front() + "\"?", "ivyctl " + std::string(verb.usage));
  if (options.all_hosts && !options.hosts.empty())
    return usage_error("--all-hosts and -H contradict each other", "keep one of them");
  if (options.now && options.grace)
    return usage_error("--now and --grace contradict each other", "keep one of them");
  return {};
}

Result<void> parse_verb(const Verb& verb, std::vector<std::string> arguments, CtlOptions& options) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  verb.add_flags(app, options);
  IVY_CHECK(parse_words(app, std::move(arguments), "ivyctl " + std::string(verb.usage)));
  const std::vector<std::string> words = app.remaining();
  for (const std::string& word : words)
    if (word.size() > 1 && word.front() == '-') return unknown_flag(app, word, verb);
  return take_words(verb, words, options);
}

}  // namespace

Result<ParsedCtl> parse_ctl_command_line(const std::vector<std::string>& arguments) {
  ParsedCtl parsed;
  if (arguments.empty()) {
    parsed.text_to_print = help();
    parsed.exit_code = kExitUsage;
    return parsed;
  }
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  const std::string& first = arguments.front();
  if (is_help(first) || (first == "help" && arguments.size() == 1)) {
    parsed.text_to_print = help();
    return parsed;
  }
  if (first == "--version" || first == "-V" || first == "version") {
    parsed.text_to_print = "ivyctl " + std::string(version()) + "\n";
    return parsed;
  }
  const bool asks = first == "help";
  const Verb* verb = IVY_TRY(find_verb(asks ? arguments[1] : first));
  if (asks || std::any_of(arguments.begin() + 1, arguments.end(), is_help)) {
    parsed.text_to_print = help_of(*verb);
    return parsed;
  }
  parsed.run = verb->run;
  IVY_CHECK(parse_verb(*verb, {arguments.begin() + 1, arguments.end()}, parsed.options));
  return parsed;
}

}  // namespace ivy
