// SPDX-License-Identifier: Apache-2.0
// One table describes all verbs and their flags (kVerbs). parse_ctl_command_line() at the end finds
// the verb, lets CLI11 parse its flags (parse_verb()) and checks the remaining words
// (take_words()). The help, man pages and completions are made from the same table (ctl_page()).
#include "launcher/ctl/ctl_options.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/options/flag_values.h"
#include "launcher/report/message_table.h"
#include "proto/contract/build.h"
#include "proto/contract/edit_distance.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/pages/command_page.h"
#include "proto/pages/completions.h"

namespace ivy {
namespace {

// One flag of a verb: its text in help and completions, and the function that adds it.
struct CtlFlag {
  std::string_view spellings;  // "-H,--hosts", in CLI11's form.
  std::string_view value;
  std::string_view text;
  void (*add)(CLI::App& app, const std::string& spellings, CtlOptions& options);
};

template <bool CtlOptions::*member>
void add_switch(CLI::App& app, const std::string& spellings, CtlOptions& options) {
  app.add_flag(spellings, options.*member);
}

template <auto member, auto parse>
void add_value(CLI::App& app, const std::string& spellings, CtlOptions& options) {
  const std::string long_spellings = spellings.substr(spellings.find("--"));
  add_flag_value(app, spellings, long_spellings.substr(0, long_spellings.find(',')),
                 stored_in(options.*member, parse));
}

// Hidden output is not kept for ivyctl, so "failed" is only for ivyrun.
Result<ShowRanks> shown_ranks(const std::string& text) {
  if (text != "failed") return parse_show_ranks(text);
  return usage_error("failed is for ivyrun --show-ranks", "list the ranks: --ranks 0,8-15");
}
Result<ShowRanks> numbered_ranks(const std::string& text) {
  if (text != "first-per-host") return shown_ranks(text);
  return usage_error("first-per-host is for logs and attach", "name the ranks: --ranks 0,8-15");
}
Result<std::string> any_text(const std::string& text) { return text; }
Result<int> tail_number(const std::string& text) { return parse_number(text, 0, 100'000); }
Result<ColorChoice> color_choice(const std::string& text) { return parse_colour_choice()(text); }

constexpr CtlFlag kHosts = {"-H,--hosts", "LIST", "", add_value<&CtlOptions::hosts, any_text>};
constexpr CtlFlag kRanks = {"--ranks,--rank", "LIST", "only these ranks: 0,8-15",
                            add_value<&CtlOptions::ranks, numbered_ranks>};
constexpr CtlFlag kShownRanks = {"--ranks,--rank", "LIST", "only these ranks: 0,8-15",
                                 add_value<&CtlOptions::ranks, shown_ranks>};
constexpr CtlFlag kLabel = {"--label", "KIND",
                            "auto, none, rank, host or a template, as for ivyrun",
                            add_value<&CtlOptions::label, parse_label>};
constexpr CtlFlag kColor = {"--color", "auto|always|never", "colour labels",
                            add_value<&CtlOptions::color, color_choice>};

constexpr CtlFlag with_text(CtlFlag flag, std::string_view text) {
  flag.text = text;
  return flag;
}

constexpr CtlFlag json_flag(std::string_view text) {
  return {"--json", "", text, add_switch<&CtlOptions::json>};
}

constexpr CtlFlag kPsFlags[] = {
    {"-a,--all", "",
     "include jobs that finished in the last day, if they ran in the background or kept log files",
     add_switch<&CtlOptions::all>},
    with_text(kHosts,
              "list the jobs that the agents of these hosts run, wherever they were started"),
    {"--all-hosts", "", "like -H, with every host of the jobs listed here",
     add_switch<&CtlOptions::all_hosts>},
    json_flag("print one JSON object per job")};
constexpr CtlFlag kLogsFlags[] = {
    {"-f,--follow", "", "follow the output until the job ends", add_switch<&CtlOptions::follow>},
    kShownRanks,
    kLabel,
    kColor};
constexpr CtlFlag kSignalFlags[] = {kRanks};
constexpr CtlFlag kStopFlags[] = {
    with_text(kHosts,
              "stop the job on these hosts through their agents, if its launcher has exited"),
    {"--grace", "TIME", "time from SIGTERM to SIGKILL (default: the job's own)",
     add_value<&CtlOptions::grace, parse_duration>},
    {"--now", "", "send SIGKILL immediately", add_switch<&CtlOptions::now>}};
constexpr CtlFlag kAttachFlags[] = {
    kShownRanks,
    {"--tail", "N", "start with the last N lines of each rank's files (default 10)",
     add_value<&CtlOptions::tail_lines, tail_number>},
    kLabel,
    kColor};
constexpr CtlFlag kStackFlags[] = {
    kRanks,
    {"--native", "", "include C and C++ frames, using py-spy --native or gdb",
     add_switch<&CtlOptions::native>},
    json_flag("for programs: one object")};

constexpr CtlFlag kTopFlags[] = {kRanks,
                                 {"--once", "", "print one table and exit, as without a terminal",
                                  add_switch<&CtlOptions::once>},
                                 json_flag("for programs: one object")};

constexpr CtlFlag kJsonFlags[] = {json_flag("for programs: one object")};
constexpr CtlFlag kConfigFlags[] = {
    {"--origin", "", "show where each value comes from", add_switch<&CtlOptions::origin>},
    {"--config", "FILE|none", "as for ivyrun", add_value<&CtlOptions::config_file, any_text>},
    json_flag("print JSON: flag, value and origin of each")};

struct Verb {
  std::string_view name;
  int (*run)(const CtlOptions& options);
  // Its arguments without flags, as in the usage line: "[JOB] SIGNAL". take_words() parses by it.
  std::string_view words;
  std::span<const CtlFlag> flags;
  std::string_view text;
  std::string_view more;  // Paragraphs for `ivyctl VERB --help`.
  std::string_view examples;
  bool passes_on = false;  // Its arguments are not parsed here: it passes them to another program.
};

constexpr Verb kVerbs[] = {
    {"ps", ctl_ps, "", kPsFlags, "list your jobs on this host", "",
     "ivyctl ps\nivyctl ps -a\nivyctl ps -H 'node[01-08]'\nivyctl ps --json | jq -r '.[].job'"},
    {"logs", ctl_logs, "[JOB]", kLogsFlags, "show the output of the workers",
     "Reads the files of --log-dir. Without log files, only -f shows output.",
     "ivyctl logs 3f2a --ranks 0\nivyctl logs -f"},
    {"signal", ctl_signal, "[JOB] SIGNAL", kSignalFlags,
     "send a signal to the process of each rank", "",
     "ivyctl signal 3f2a USR1\nivyctl signal 3f2a STOP --ranks 0,8-15"},
    {"stop", ctl_stop, "[JOB]", kStopFlags, "stop a job gracefully and wait until it has exited",
     "A job without a launcher on this host is stopped only on this host.\n"
     "If a host runs an older version, it uses the job's own time, and ivyctl names that host.",
     "ivyctl stop 3f2a\nivyctl stop 3f2a --grace 60\nivyctl stop 3f2a -H 'node[01-08]' --now"},
    {"attach", ctl_attach, "[JOB]", kAttachFlags,
     "follow a background job and exit with its exit code",
     "Ctrl-C detaches and leaves the job running; `ivyctl stop` stops it.",
     "ivyrun --detach -n 4 train.py\nivyctl attach"},
    {"why", ctl_why, "[JOB]", kJsonFlags, "diagnose a hang: which ranks wait, where, and for whom",
     "Reports which ranks have not entered the operation or torch collective that others wait in, "
     "which ranks wait in the job's store (where frameworks synchronize), and where the ranks are "
     "(`ivyctl stack` shows all threads).\n"
     "ivyrun --stall-timeout TIME prints the same report by itself.",
     "ivyctl why\nivyctl why 3f2a"},
    {"stack", ctl_stack, "[JOB]", kStackFlags,
     "show the workers' stacks, identical stacks only once",
     "Python workers dump their own stacks; other programs need py-spy or gdb on their host. If a "
     "torch collective waits for a rank, the report says so first.",
     "ivyctl stack\nivyctl stack 3f2a --ranks 0-3 --native"},
    {"top", ctl_top, "[JOB]", kTopFlags, "show what each rank does and uses",
     "CPU% is 100 for one processor, and includes a rank's child processes. IN is the ivycomm\n"
     "operation that the rank has been in for the longest. On a terminal the table is updated\n"
     "every 2 s until you press q.",
     "ivyctl top\nivyctl top 3f2a --ranks 0-7\nivyctl top --json | jq '.ranks[].cpu_percent'"},
    {"doctor",
     ctl_doctor,
     "[-H HOSTS] [flags of ivyrun] [PROGRAM]",
     {},
     "check hosts before a job, and report problems and fixes",
     "The same as `ivyrun --doctor`: connects to the hosts as a job would, but starts nothing.\n"
     "The exit code is 0 if all checks passed, else 1.",
     "ivyctl doctor -H 'node[01-08]'\nivyctl doctor -H 'node[01-08]' --check-module torch\nivyctl "
     "doctor --json",
     true},
    {"status", ctl_status, "[JOB]", kJsonFlags, "describe a running or finished job", "",
     "ivyctl status\nivyctl status bert-large --json"},
    {"explain",
     ctl_explain,
     "[ID]",
     {},
     "explain a message such as IVY-H003 and what to do",
     "Without an ID it lists all messages.",
     "ivyctl explain IVY-H003"},
    {"config", ctl_config, "", kConfigFlags,
     "print the defaults of ivyrun's flags, as a config file",
     "Values come from IVY_<FLAG>, PET_<FLAG> (torchrun's flags), the file of --config,\n"
     "~/.config/ivyrun/config.toml and /etc/ivyrun/config.toml; the first with a value wins.",
     "ivyctl config --origin\nivyctl config > ~/.config/ivyrun/config.toml"},
};

constexpr std::string_view kJobText =
    "JOB is a job's --name or a unique prefix of its id; it may be omitted if you have only one "
    "job.";

// Returns "logs [JOB] [-f] [--ranks LIST]", with all flags.
std::string usage_of(const Verb& verb) {
  std::string usage(verb.name);
  if (!verb.words.empty()) usage += " " + std::string(verb.words);
  for (const CtlFlag& flag : verb.flags) {
    usage += " [" + std::string(flag.spellings.substr(0, flag.spellings.find(',')));
    if (!flag.value.empty()) usage += " " + std::string(flag.value);
    usage += "]";
  }
  return usage;
}

PageOption page_option(const CtlFlag& flag) {
  PageOption option;
  std::string_view rest = flag.spellings;
  while (!rest.empty()) {
    // The first long name is shown.
    const std::string_view name = take_part(rest, ',');
    const bool is_shown = option.spellings.empty() || option.spellings.back().size() == 2;
    (is_shown ? option.spellings : option.aliases).emplace_back(name);
  }
  option.value = flag.value;
  option.text = flag.text;
  return option;
}

PageVerb page_verb(const Verb& verb) {
  PageVerb page;
  page.name = verb.name;
  page.usage = usage_of(verb);
  page.text = verb.text;
  for (const CtlFlag& flag : verb.flags) page.options.push_back(page_option(flag));
  page.more = verb.more;
  if (verb.words.starts_with("[JOB]"))
    page.more = std::string(kJobText) + (page.more.empty() ? "" : "\n" + page.more);
  std::string_view rest = verb.examples;
  while (!rest.empty()) page.examples.emplace_back(take_part(rest, '\n'));
  return page;
}

CommandPage ctl_page() {
  CommandPage page;
  page.name = "ivyctl";
  page.summary = "manage jobs of ivyrun";
  page.usages = {"ivyctl VERB [JOB] [flags]"};
  page.description = "Manage running jobs and inspect finished ones.\n" + std::string(kJobText);
  page.examples = {{"ivyctl ps", "list your jobs"},
                   {"ivyctl logs -f 3f2a", "follow the output of the workers"},
                   {"ivyctl stop 3f2a", "stop a job"}};
  page.width = help_width();
  for (const Verb& verb : kVerbs) page.verbs.push_back(page_verb(verb));
  page.closing = "`ivyctl VERB --help` describes a verb. --version prints the version.\n";
  return page;
}

// Returns words for completions: jobs by name and id, and the ids of messages.
std::vector<std::string> known_words(std::string_view value) {
  std::vector<std::string> words;
  if (value == "ID")
    for (const MessageEntry& entry : message_table()) words.emplace_back(entry.id);
  if (value != "JOB") return words;
  for (const FoundJob& job : find_launcher_directories()) {
    words.push_back(short_id(job.directory.job_id));
    if (!job.is_alive) continue;
    const Result<ctl::JobDescription> described = describe_job(job.directory);
    if (described.ok() && !described->name().empty()) words.push_back(described->name());
  }
  return words;
}

Result<const Verb*> find_verb(const std::string& typed) {
  std::vector<std::string_view> names;
  for (const Verb& verb : kVerbs) {
    if (verb.name == typed) return &verb;
    names.push_back(verb.name);
  }
  // Other tools' names for these verbs.
  const std::string suggested = typed == "kill" || typed == "cancel" ? "stop"
                                : typed == "list" || typed == "ls"   ? "ps"
                                : typed.starts_with("completion")    ? "--generate bash"
                                : typed == "log" || typed == "tail"  ? "logs"
                                                                     : nearest_word(typed, names);
  return usage_error("unknown verb \"" + typed + "\"",
                     suggested.empty() ? "ivyctl --help lists them" : "ivyctl " + suggested);
}

Error unknown_flag(const CLI::App& app, const std::string& typed, const Verb& verb) {
  std::vector<std::string> flags{"--help"};
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  const std::vector<std::string_view> known(flags.begin(), flags.end());
  const std::string near = nearest_word(typed.substr(0, typed.find('=')), known);
  return usage_error("ivyctl " + std::string(verb.name) + " has no flag " + typed,
                     near.empty() ? "ivyctl " + std::string(verb.name) + " --help" : near);
}

Result<void> take_words(const Verb& verb, std::vector<std::string> words, CtlOptions& options) {
  if (verb.words.ends_with("SIGNAL")) {
    if (words.empty()) return usage_error("which signal?", "ivyctl signal JOB USR1");
    const std::string name = words.back();
    words.pop_back();
    options.signal = signal_number(name);
    if (options.signal == 0)
      return usage_error("\"" + name + "\" is not a signal",
                         "ivyctl signal [JOB] SIGNAL, such as USR1, TERM or 10");
  }
  if (!verb.words.empty() && !words.empty()) {
    options.job = words.front();
    words.erase(words.begin());
  }
  if (!words.empty())
    return usage_error("unexpected argument \"" + words.front() + "\"", "ivyctl " + usage_of(verb));
  if (options.all_hosts && !options.hosts.empty())
    return usage_error("--all-hosts and -H cannot be used together", "use only one of them");
  if (options.now && options.grace)
    return usage_error("--now and --grace cannot be used together", "use only one of them");
  return {};
}

Result<void> parse_verb(const Verb& verb, std::vector<std::string> arguments, CtlOptions& options) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  for (const CtlFlag& flag : verb.flags) flag.add(app, std::string(flag.spellings), options);
  IVY_CHECK(parse_words(app, std::move(arguments), "ivyctl " + usage_of(verb)));
  const std::vector<std::string> words = app.remaining();
  for (const std::string& word : words)
    if (word.size() > 1 && word.front() == '-') return unknown_flag(app, word, verb);
  return take_words(verb, words, options);
}

}  // namespace

Result<ParsedCtl> parse_ctl_command_line(const std::vector<std::string>& arguments) {
  ParsedCtl parsed;
  if (arguments.empty()) {
    parsed.text_to_print = help_text(ctl_page(), HelpLength::kAll);
    parsed.exit_code = kExitUsage;
    return parsed;
  }
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  const std::string& first = arguments.front();
  if (is_help(first) || (first == "help" && arguments.size() == 1)) {
    parsed.text_to_print = help_text(ctl_page(), HelpLength::kAll);
    return parsed;
  }
  if (first == "--version" || first == "-V" || first == "version") {
    parsed.text_to_print = "ivyctl " + std::string(version()) + "\n";
    return parsed;
  }
  if (first == "--complete") {
    parsed.text_to_print =
        completions(ctl_page(), {arguments.begin() + 1, arguments.end()}, known_words) + "\n";
    return parsed;
  }
  if (first == "--generate") {
    const std::string form = arguments.size() > 1 ? arguments[1] : "";
    const auto text = form == "messages" ? messages_page() : generated_page(ctl_page(), form);
    if (!text)
      return usage_error("--generate makes " + std::string(kGeneratedForms) + ", not \"" + form +
                         "\"");
    parsed.text_to_print = *text;
    return parsed;
  }
  const bool is_help_verb = first == "help";
  const Verb* verb = IVY_TRY(find_verb(is_help_verb ? arguments[1] : first));
  if (is_help_verb || std::any_of(arguments.begin() + 1, arguments.end(), is_help)) {
    parsed.text_to_print = verb_help(ctl_page(), page_verb(*verb));
    return parsed;
  }
  parsed.run = verb->run;
  const std::vector<std::string> words(arguments.begin() + 1, arguments.end());
  if (verb->passes_on)
    parsed.options.words = words;
  else
    IVY_CHECK(parse_verb(*verb, words, parsed.options));
  return parsed;
}

}  // namespace ivy
