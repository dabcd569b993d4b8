// SPDX-License-Identifier: Apache-2.0
// ivyctl's command line, and the job that a few digits select.
#include "launcher/ctl/ctl_options.h"

#include <gtest/gtest.h>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_table.h"
#include "launcher/ctl/ctl_verbs.h"
#include "proto/contract/exit_code.h"

namespace ivy {
namespace {

using Words = std::vector<std::string>;

CtlOptions parsed(const Words& words) {
  const Result<ParsedCtl> result = parse_ctl_command_line(words);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result->options : CtlOptions{};
}

struct Wrong {
  Words words;
  std::string message;
  std::string fix;
};

TEST(CtlOptions, ParseVerbs) {
  EXPECT_EQ(parse_ctl_command_line({"ps"})->run, ctl_ps);
  EXPECT_TRUE(parsed({"ps", "--json"}).json);
  const CtlOptions logs = parsed({"logs", "-f", "3f2a", "--rank", "0,2-3"});
  EXPECT_TRUE(logs.follow);
  EXPECT_EQ(logs.job, "3f2a");
  EXPECT_EQ(logs.ranks.ranks, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(parsed({"signal", "USR1"}).signal, 10);
  EXPECT_EQ(parsed({"signal", "3f2a", "SIGTERM"}).signal, 15);
  EXPECT_EQ(parsed({"signal", "3f2a", "10"}).job, "3f2a");
  const CtlOptions signal = parsed({"signal", "USR1", "--ranks", "0,2-3"});
  EXPECT_TRUE(signal.job.empty());
  EXPECT_EQ(signal.ranks.ranks, (std::vector<int>{0, 2, 3}));
  for (const char* verb : {"logs", "attach", "stack", "top"})
    for (const char* flag : {"--rank", "--ranks"})
      EXPECT_EQ(parsed({verb, flag, "1"}).ranks.ranks, std::vector<int>{1}) << verb << flag;
  EXPECT_EQ(parsed({"stop", "3f", "--grace", "2m"}).grace, std::chrono::minutes(2));
  EXPECT_TRUE(parsed({"stop", "--now"}).now);
  EXPECT_EQ(parse_ctl_command_line({"why", "3f"})->run, ctl_why);
  EXPECT_EQ(parsed({"why", "3f"}).job, "3f");
  EXPECT_EQ(parsed({"attach", "--tail=3", "ab"}).tail_lines, 3);
}

TEST(CtlOptions, SuggestTheIntendedName) {
  const Wrong table[] = {
      {{"stpo"}, "unknown verb \"stpo\"", "ivyctl stop"},
      {{"kill", "3f"}, "unknown verb \"kill\"", "ivyctl stop"},
      {{"ls"}, "unknown verb \"ls\"", "ivyctl ps"},
      {{"completion", "bash"}, "unknown verb \"completion\"", "ivyctl --generate bash"},
      {{"atach"}, "unknown verb \"atach\"", "ivyctl attach"},
      {{"frobnicate"}, "unknown verb \"frobnicate\"", "ivyctl --help lists them"},
      {{"logs", "--folow"}, "ivyctl logs has no flag --folow", "--follow"},
      {{"stop", "--grace", "soon"}, "--grace: ", ""},
      {{"stop", "--now", "--grace", "3"}, "--now and --grace cannot be used together", ""},
      {{"stack", "--ranks", "first-per-host"}, "--ranks: first-per-host is for logs", ""},
      {{"top", "--ranks", "first-per-host"}, "--ranks: first-per-host is for logs", ""},
      {{"signal"}, "which signal?", "ivyctl signal JOB USR1"},
      {{"signal", "3f", "WHAT"}, "\"WHAT\" is not a signal", ""},
      {{"ps", "3f"}, "unexpected argument \"3f\"", ""},
      {{"logs", "3f", "4a"}, "unexpected argument \"4a\"", ""},
      {{"logs", "--color", "pink"}, "--color: \"pink\" is not one of auto, always, never", ""},
  };
  for (const Wrong& wrong : table) {
    const Result<ParsedCtl> result = parse_ctl_command_line(wrong.words);
    ASSERT_FALSE(result.ok()) << wrong.message;
    EXPECT_EQ(result.error().message.substr(0, wrong.message.size()), wrong.message);
    EXPECT_TRUE(wrong.fix.empty() || result.error().fix == wrong.fix) << result.error().fix;
  }
}

TEST(CtlOptions, ShowExamplesForEveryVerbInTheHelp) {
  EXPECT_EQ(parse_ctl_command_line({})->exit_code, kExitUsage);
  EXPECT_EQ(parse_ctl_command_line({"--help"})->exit_code, 0);
  for (const char* verb : {"ps", "logs", "signal", "stop", "attach"}) {
    EXPECT_NE(parse_ctl_command_line({"--help"})->text_to_print.find(verb), std::string::npos);
    for (const Words& words : {Words{verb, "--help"}, Words{"help", verb}}) {
      const std::string text = parse_ctl_command_line(words)->text_to_print;
      EXPECT_NE(text.find("Examples:"), std::string::npos) << verb;
    }
  }
  EXPECT_TRUE(parse_ctl_command_line({"--version"})->text_to_print.starts_with("ivyctl "));
}

TEST(CtlOptions, ShowAPageForEveryVerb) {
  for (const char* verb :
       {"ps", "logs", "signal", "stop", "attach", "why", "stack", "status", "explain", "config"}) {
    const std::string text = parse_ctl_command_line({verb, "--help"})->text_to_print;
    EXPECT_TRUE(text.starts_with("usage: ivyctl " + std::string(verb))) << text;
    for (const Words& words : {Words{"--generate", "markdown"}, Words{"--complete", ""}})
      EXPECT_NE(parse_ctl_command_line(words)->text_to_print.find(verb), std::string::npos);
  }
  EXPECT_FALSE(parse_ctl_command_line({"--generate", "man"}).ok());
}

TEST(CtlOptions, ListAllFlagsInTheUsage) {
  const auto usage_of = [](const char* verb) {
    const std::string text = parse_ctl_command_line({verb, "--help"})->text_to_print;
    std::string usage = text.substr(0, text.find("\n\n"));
    std::string flat;
    for (const char c : usage)
      if (c != '\n' && c != ' ') flat += c;
    return flat;
  };
  EXPECT_NE(usage_of("logs").find("logs[JOB][-f][--ranksLIST][--labelKIND]"), std::string::npos)
      << usage_of("logs");
  EXPECT_NE(usage_of("attach").find("[--tailN]"), std::string::npos) << usage_of("attach");
  EXPECT_NE(usage_of("signal").find("signal[JOB]SIGNAL[--ranksLIST]"), std::string::npos);
  EXPECT_NE(usage_of("explain").find("explain[ID]"), std::string::npos);
}

TEST(CtlOptions, ParseFlagsOfMachineOutput) {
  for (const char* verb : {"ps", "why", "stack", "status", "config"}) {
    const auto parsed = parse_ctl_command_line({verb, "--json"});
    ASSERT_TRUE(parsed.ok()) << verb;
    EXPECT_TRUE(parsed->options.json) << verb;
  }
  EXPECT_TRUE(parse_ctl_command_line({"ps", "-a"})->options.all);
  EXPECT_EQ(parse_ctl_command_line({"status", "bert-large"})->options.job, "bert-large");
  EXPECT_EQ(parse_ctl_command_line({"explain", "IVY-H003"})->options.job, "IVY-H003");
  EXPECT_EQ(parse_ctl_command_line({"config", "--config", "a.toml"})->options.config_file,
            "a.toml");
  EXPECT_FALSE(parse_ctl_command_line({"logs", "--json"}).ok());
}

FoundJob job(const std::string& id) {
  FoundJob found;
  found.directory.job_id = id;
  found.is_alive = true;
  return found;
}

TEST(CtlOptions, ParseTheFlagsOfStack) {
  const auto parsed = parse_ctl_command_line({"stack", "3f2a", "--ranks", "0,2-3", "--native"});
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->run, ctl_stack);
  EXPECT_EQ(parsed->options.job, "3f2a");
  EXPECT_EQ(parsed->options.ranks.ranks, (std::vector<int>{0, 2, 3}));
  EXPECT_TRUE(parsed->options.native);
  EXPECT_FALSE(parse_ctl_command_line({"stack", "--ranks", "x"}).ok());
  EXPECT_FALSE(parse_ctl_command_line({"stack", "a", "b"}).ok());
}

TEST(ChooseJob, AcceptsAUniquePrefixOrTheOnlyJob) {
  const std::vector<FoundJob> two{job("aa11"), job("ab22")};
  EXPECT_EQ(choose_job("aa", two)->directory.job_id, "aa11");
  EXPECT_EQ(choose_job("ab22", two)->directory.job_id, "ab22");
  EXPECT_EQ(choose_job("", {job("aa11")})->directory.job_id, "aa11");
  EXPECT_EQ(choose_job("a", two).error().fix, "running jobs: aa11, ab22");
  EXPECT_EQ(choose_job("", two, {{"aa11", "bert"}}).error().fix, "running jobs: aa11 (bert), ab22");
  EXPECT_EQ(choose_job("zz", two).error().fix,
            "running jobs: aa11, ab22; finished jobs: ivyctl ps -a");
  EXPECT_EQ(choose_job("", {}).error().code, Code::kNotFound);
}

TEST(CtlTable, CutsBetweenCharacters) {
  EXPECT_EQ(table_cell("abcdefgh", 8), "abcdefgh");
  EXPECT_EQ(table_cell("abcdefghi", 8), "abcde...");
  EXPECT_EQ(table_cell("abcd\xc3\xa4"
                       "efg",
                       8),
            "abcd...");
  EXPECT_EQ(table_cell("abcd", 2), "..");
  EXPECT_EQ(table_cell("abcd", 0), "");
}

TEST(CtlTable, DropsColumnsUntilTheTableFits) {
  const std::vector<TextRow> table{{"RANK", "HOST", "IN"}, {"0", "a", std::string(30, 'x')}};
  constexpr std::string_view kDispensable[] = {"HOST"};
  std::vector<TextRow> lines = table;
  drop_columns(lines, kDispensable, 28);  // 4 + 2, 4 + 2, and 16 for the last column.
  EXPECT_EQ(lines, table);
  drop_columns(lines, kDispensable, 27);
  EXPECT_EQ(lines.front(), (TextRow{"RANK", "IN"}));
  EXPECT_EQ(lines.back().size(), 2u);
}

}  // namespace
}  // namespace ivy
